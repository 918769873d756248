"""Where nodes are drawn: grids as grids, chains in a row, everything else by graph distance. No two nodes overlap."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fgnn.drawing.stress import stress_layout

Points = NDArray[np.float64]  # shape: (n, 2), pixels
Scopes = Sequence[Sequence[int]]

GAP = 80.0  # between neighbouring variables of a grid or chain
ROOM = 38.0  # the least distance of two nodes


def lay_out(count: int, scopes: Scopes) -> tuple[Points, Points]:
    """Return the places of the variables and of the factors."""
    near: list[set[int]] = [set() for _ in range(count)]
    for scope in scopes:
        if len(scope) == 2:
            near[scope[0]].add(scope[1])
            near[scope[1]].add(scope[0])
    places = grid_places(near)
    if places is None:
        places = chain_places(near)
    if places is None:
        points = stress_layout(count, scopes, length=0.65 * GAP, room=ROOM)
        return points[:count], points[count:]
    variables = GAP * np.asarray(places, np.float64)
    return variables, _factors_between(variables, scopes)


def grid_places(near: Sequence[set[int]]) -> list[tuple[int, int]] | None:
    """Column and row of each variable if the pairs form a grid, in any numbering; None otherwise.

    In a grid with corners A and B on one side, d(A) = column + row and d(B) = columns − 1 − column + row.
    """
    corners = [i for i, others in enumerate(near) if len(others) == 2]
    if len(near) < 4 or len(corners) < 4:
        return None
    first = _distances(near, corners[0])
    if min(first) < 0:
        return None
    for corner in corners[1:]:
        columns = first[corner] + 1
        rows, rest = divmod(len(near), columns)
        if rest or rows < 2 or columns < 2:
            continue
        second = _distances(near, corner)
        places = [((a - b + columns - 1) // 2, (a + b - columns + 1) // 2) for a, b in zip(first, second, strict=True)]
        if _is_grid(near, places, columns, rows):
            return _upright(places, columns, rows)
    return None


def chain_places(near: Sequence[set[int]]) -> list[tuple[int, int]] | None:
    """The order along a chain, in one row; None if the pairs form no path through all variables."""
    ends = [i for i, others in enumerate(near) if len(others) == 1]
    if len(near) < 2 or len(ends) != 2 or any(len(others) > 2 for others in near):
        return None
    distance = _distances(near, ends[0])
    return None if min(distance) < 0 else [(d, 0) for d in distance]


def _distances(near: Sequence[set[int]], start: int) -> list[int]:
    """Steps from one variable to each; -1 where there is no way."""
    distance, queue = [-1] * len(near), deque([start])
    distance[start] = 0
    while queue:
        i = queue.popleft()
        for j in near[i]:
            if distance[j] < 0:
                distance[j] = distance[i] + 1
                queue.append(j)
    return distance


def _is_grid(near: Sequence[set[int]], places: Sequence[tuple[int, int]], columns: int, rows: int) -> bool:
    at = {place: i for i, place in enumerate(places) if 0 <= place[0] < columns and 0 <= place[1] < rows}
    if len(at) != len(near):
        return False
    steps = ((1, 0), (-1, 0), (0, 1), (0, -1))
    return all(near[i] == {at[x + a, y + b] for a, b in steps if (x + a, y + b) in at} for (x, y), i in at.items())


def _upright(places: list[tuple[int, int]], columns: int, rows: int) -> list[tuple[int, int]]:
    """Turn a grid so that variable 1 is to the right of variable 0, as models are usually numbered."""
    if places[1][0] == places[0][0]:
        places, columns, rows = [(y, x) for x, y in places], rows, columns
    flip_x, flip_y = places[1][0] < places[0][0], 2 * places[0][1] > rows - 1
    return [(columns - 1 - x if flip_x else x, rows - 1 - y if flip_y else y) for x, y in places]


def _factors_between(variables: Points, scopes: Scopes) -> Points:
    """Factors at the centre of their scope; those over long scopes of a row in lanes above it."""
    spots, places = _Spots(), np.zeros((len(scopes), 2))
    for place in variables:
        spots.add(place)
    in_row = bool((variables[:, 1] == variables[0, 1]).all())
    for c in sorted(range(len(scopes)), key=lambda c: len(scopes[c])):
        scope = list(scopes[c])
        centre = variables[scope].mean(0) if scope else variables.max(0) + np.array([GAP, 0.0])
        if in_row and len(scope) > 2:
            centre = centre - (0.0, 1.2 * GAP)
            while not spots.free(centre):
                centre = centre - (0.0, ROOM + 2.0)
        else:
            centre = spots.free_near(centre)
        places[c] = centre
        spots.add(centre)
    return places


class _Spots:
    """The places in use, by cells of a raster."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], list[Points]] = {}

    def add(self, place: Points) -> None:
        self.cells.setdefault(_cell(place), []).append(place)

    def free(self, place: Points) -> bool:
        x, y = _cell(place)
        around = [(x + a, y + b) for a in (-1, 0, 1) for b in (-1, 0, 1)]
        return all(np.hypot(*(place - other)) >= ROOM - 1e-6 for cell in around for other in self.cells.get(cell, ()))

    def free_near(self, place: Points) -> Points:
        """The nearest free place on a spiral around a place."""
        turn, radius = 0.0, 0.0
        while True:
            spot = place + radius * np.array([np.cos(turn), np.sin(turn)])
            if self.free(spot):
                return np.asarray(spot)
            turn += 2.399963  # the golden angle covers a disc evenly
            radius = 8.0 * np.sqrt(turn / 2.399963)


def _cell(place: Points) -> tuple[int, int]:
    return int(place[0] // ROOM), int(place[1] // ROOM)
