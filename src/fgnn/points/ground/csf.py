"""The cloth simulation filter (CSF)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fgnn.points.ground.raster import MOST_CELLS

_GRAVITY, _DAMPING = 0.2, 0.01
# The cloth starts this far from the highest point of the inverted scan, and extends two cells beyond it.
_START, _MARGIN = 0.05, 2
# The simulation ends when no particle moves by more than this.
_AT_REST = 0.005
# Shares of a difference in height that are corrected in one step, by rigidness: a particle next to a fixed one, and
# each of two that can move.
_SINGLE = (0.0, 0.3, 0.51, 0.657)
_DOUBLE = (0.0, 0.3, 0.42, 0.468)
# Particles that pull at each other: neighbours, and those two steps away.
_LINKS = ((0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0), (2, 2), (2, -2))
# Hanging parts of more particles than this sag where the floor rises by less than this between particles.
_LARGE, _SLOPE_STEP = 50, 0.3
# The four neighbours of all particles in an array that is wider by one.
_INSIDE = slice(1, -1)
_AROUND = ((slice(0, -2), _INSIDE), (slice(2, None), _INSIDE), (_INSIDE, slice(0, -2)), (_INSIDE, slice(2, None)))


def csf(
    xyz: NDArray[np.float64],
    resolution: float = 1.0,
    threshold: float = 0.5,
    rigidness: int = 3,
    step: float = 0.65,
    iterations: int = 500,
    smooth: bool = True,
) -> NDArray[np.bool_]:
    """Mask of ground points, after Zhang et al. (2016).

    The scan is turned upside down, and a cloth falls on it. Where it comes to rest is the ground; points within
    ``threshold`` of it are ground points. Particles of the cloth move together in each step, not one after the other as
    in the original program.

    Args:
        xyz: Finite points, (N, 3).
        resolution: Distance between the particles of the cloth.
        rigidness: 1 for a soft cloth, on steep slopes, to 3 for a stiff one, on flat ground.
        step: Of the simulation in time.
        smooth: Let the cloth sag to ground that it hangs above at steep slopes.
    """
    if rigidness not in (1, 2, 3):
        raise ValueError(f"Expected rigidness 1, 2 or 3 (got {rigidness})")
    if not len(xyz):
        return np.zeros(0, np.bool_)
    local = xyz - xyz.min(0)
    height = -local[:, 2]
    position = local[:, :2] / resolution + _MARGIN  # shape: (N, 2), in particles
    shape = tuple((position.max(0) + _MARGIN + 1).astype(int))
    if shape[0] * shape[1] > MOST_CELLS:
        raise ValueError(f"Expected at most {MOST_CELLS:,} particles (got {shape[0]} x {shape[1]})")
    floor = _floor(position, height, shape)
    cloth, movable = _fall(floor, height.max() + _START, rigidness, step, iterations)
    if smooth:
        _sag(cloth, movable, floor)
    return np.asarray(np.abs(height - _bilinear(cloth, position)) < threshold)


def _floor(position: NDArray[np.float64], height: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The height under each particle: of the point nearest to it in its cell.

    An empty cell takes the next one along x, else the one before, else the same along y, as the original program does.
    """
    near = np.floor(position + 0.5).astype(np.int64)
    cell = near[:, 0] * shape[1] + near[:, 1]
    distance = ((position - near) ** 2).sum(1)
    order = np.lexsort((distance, cell))
    first = np.ones(len(order), np.bool_)
    first[1:] = cell[order][1:] != cell[order][:-1]
    floor = np.full(shape[0] * shape[1], np.nan)
    floor[cell[order][first]] = height[order][first]
    floor = floor.reshape(shape)
    for axis in (0, 1):
        for reverse in (True, False):
            floor = _carried(floor, axis, reverse)
    return floor


def _carried(values: NDArray[np.float64], axis: int, reverse: bool) -> NDArray[np.float64]:
    """Fill NaNs with the last value before them along an axis, or the next one after them."""
    turned = np.flip(values, axis) if reverse else values
    index = np.arange(values.shape[axis])[:, None] if axis == 0 else np.arange(values.shape[axis])[None]
    last = np.maximum.accumulate(np.where(np.isnan(turned), 0, index), axis=axis)
    filled = np.take_along_axis(turned, last, axis)
    return np.asarray(np.flip(filled, axis) if reverse else filled)


def _fall(
    floor: NDArray[np.float64], start: float, rigidness: int, step: float, iterations: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Let a cloth fall until it rests; returns heights and which particles never touched the floor."""
    cloth = np.full(floor.shape, start)
    before, movable = cloth.copy(), np.ones(floor.shape, np.bool_)
    pull = _GRAVITY * step**4  # the force is scaled by the squared step, and so is the motion
    for _ in range(iterations):
        last = cloth.copy()
        cloth = np.where(movable, cloth + (cloth - before) * (1 - _DAMPING) - pull, cloth)
        before = last
        _relax(cloth, movable, rigidness)
        landed = cloth < floor
        cloth[landed] = floor[landed]
        movable &= ~landed
        moved = float(np.abs(cloth - last)[movable].max()) if movable.any() else 0.0
        if moved < _AT_REST:
            break
    return cloth, movable


def _relax(cloth: NDArray[np.float64], movable: NDArray[np.bool_], rigidness: int) -> None:
    """Draw linked particles towards each other, in place, one kind of link after another, each twice."""
    single, double = _SINGLE[rigidness], _DOUBLE[rigidness]
    free = movable.astype(np.float64)
    share = single + (double - single) * free  # of the difference, for the particle at the other end
    for a, b in (pair for _ in range(2) for link in _LINKS for pair in _pairs(cloth.shape, *link)):
        difference = cloth[b] - cloth[a]
        cloth[a] += difference * free[a] * share[b]
        cloth[b] -= difference * free[b] * share[a]


def _pairs(shape: tuple[int, ...], di: int, dj: int) -> Iterator[tuple[tuple[slice, slice], tuple[slice, slice]]]:
    """The particles at either end of the links of a kind; every other pair, so that no particle is in two at once."""
    (rows, columns), step = shape, di or dj
    left, right = max(0, -dj), columns - max(0, dj)
    for start in range(2 * step):
        if di:
            first = slice(start, rows - di, 2 * step), slice(left, right)
            yield first, (slice(start + di, rows, 2 * step), slice(left + dj, right + dj))
        else:
            yield (slice(None), slice(start, right, 2 * step)), (slice(None), slice(start + dj, columns, 2 * step))


def _sag(cloth: NDArray[np.float64], movable: NDArray[np.bool_], floor: NDArray[np.float64]) -> None:
    """Let hanging parts of the cloth down to the floor, in place, where it continues that of fixed particles."""
    from scipy.ndimage import label

    part, count = label(movable)
    large = np.bincount(part.ravel(), minlength=count + 1) > _LARGE
    hanging = movable & large[part]
    while True:
        fixed, beside = np.pad(~movable, 1), np.pad(floor, 1, constant_values=np.inf)
        sags = np.zeros(cloth.shape, np.bool_)
        for view in _AROUND:
            sags |= fixed[view] & (np.abs(beside[view] - floor) < _SLOPE_STEP)
        sags &= hanging & movable
        if not sags.any():
            return
        cloth[sags] = floor[sags]
        movable[sags] = False


def _bilinear(surface: NDArray[np.float64], position: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.ndimage import map_coordinates

    return np.asarray(map_coordinates(surface, position.T, order=1, mode="nearest"))
