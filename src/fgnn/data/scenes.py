"""Generated rooms, shapes and terrain of any size, so that every point-cloud path runs without a download."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.data.s3dis import CLASSES, Room
from fgnn.data.shapenet import FIRST_PART, SYNSETS, Shapes
from fgnn.points import Cloud
from fgnn.points.cloud import write_chunks

_COLOURS = {
    "ceiling": (0.9, 0.9, 0.85), "floor": (0.45, 0.4, 0.35), "wall": (0.8, 0.78, 0.7), "window": (0.55, 0.7, 0.85),
    "door": (0.5, 0.3, 0.15), "table": (0.6, 0.45, 0.25), "chair": (0.2, 0.25, 0.5), "sofa": (0.5, 0.15, 0.2),
    "bookcase": (0.4, 0.3, 0.2), "board": (0.95, 0.95, 0.95), "beam": (0.6, 0.6, 0.6), "column": (0.65, 0.65, 0.6),
    "clutter": (0.3, 0.5, 0.3),
}  # fmt: skip
_HOUSES, _TREES = 25.0, 8.0  # metres: side of the cells of a large scan with at most one house or tree
_ORIGIN = (512_000, 5_403_000, 200)


def make_room(name: str = "Area_1_office_1", seed: int = 0, density: float = 400.0) -> Room:
    """A furnished room in the thirteen classes of S3DIS.

    Args:
        name: ``Area_k_<kind>_<n>``, as in the data set.
        seed: Determines the room.
        density: Points per square metre of surface.
    """
    rng = np.random.default_rng(seed)
    wide, deep, high = rng.uniform(3.0, 6.0), rng.uniform(3.0, 6.0), rng.uniform(2.5, 3.2)
    boxes: list[tuple[str, NDArray[np.float64], NDArray[np.float64]]] = []

    def add(kind: str, low: tuple[float, ...], top: tuple[float, ...]) -> None:
        boxes.append((kind, np.array(low), np.array(top)))

    add("floor", (0, 0, 0), (wide, deep, 0))
    add("ceiling", (0, 0, high), (wide, deep, high))
    add("wall", (0, 0, 0), (wide, 0, high))
    add("wall", (0, deep, 0), (wide, deep, high))
    add("wall", (0, 0, 0), (0, deep, high))
    add("wall", (wide, 0, 0), (wide, deep, high))
    add("beam", (0, deep / 2, high - 0.3), (wide, deep / 2 + 0.25, high))
    add("column", (0, 0, 0), (0.35, 0.35, high))
    at = rng.uniform(0.5, deep - 1.5)
    add("door", (0.01, at, 0), (0.01, at + 0.9, 2.05))
    add("window", (wide - 0.01, 0.8, 1.0), (wide - 0.01, deep - 0.8, 2.1))
    add("board", (0.8, deep - 0.02, 1.0), (wide - 0.8, deep - 0.02, 2.0))
    add("bookcase", (wide - 0.4, 0.2, 0), (wide - 0.05, 0.7, 2.0))
    for _ in range(int(rng.integers(1, 4))):
        x, y = rng.uniform(0.6, wide - 1.6), rng.uniform(0.6, deep - 1.2)
        add("table", (x, y, 0.7), (x + 1.0, y + 0.6, 0.74))
        for dx, dy in ((0.0, 0.0), (0.95, 0.0), (0.0, 0.55), (0.95, 0.55)):
            add("table", (x + dx, y + dy, 0), (x + dx + 0.05, y + dy + 0.05, 0.7))
        add("chair", (x + 0.3, y - 0.45, 0.42), (x + 0.7, y - 0.05, 0.46))
        add("chair", (x + 0.3, y - 0.45, 0.46), (x + 0.7, y - 0.41, 0.9))
        add("clutter", (x + 0.2, y + 0.2, 0.74), (x + 0.4, y + 0.35, 0.95))
    add("sofa", (0.1, deep - 1.0, 0), (1.7, deep - 0.25, 0.45))

    points, labels, colours = [], [], []
    for kind, low, top in boxes:
        piece = _box_surface(low, top, density, rng)
        points.append(piece)
        labels.append(np.full(len(piece), CLASSES.index(kind)))
        colours.append(np.clip(np.array(_COLOURS[kind]) + rng.normal(0, 0.04, (len(piece), 3)), 0, 1))
    xyz = np.concatenate(points) + rng.normal(0, 0.004, (sum(map(len, points)), 3))
    order = rng.permutation(len(xyz))
    xyz = xyz - xyz.min(0)
    rgb = np.round(np.concatenate(colours) * 255) / 255
    return Room(name, xyz[order], rgb[order], np.concatenate(labels).astype(np.int64)[order])


def make_shapes(count: int = 32, points: int = 2048, seed: int = 0) -> Shapes:
    """Tables, chairs and mugs made of boxes, with the part labels of ShapeNet-Part, in the unit sphere."""
    rng = np.random.default_rng(seed)
    makers = {15: _table_shape, 4: _chair_shape, 11: _mug_shape}  # by category
    kinds = rng.choice(list(makers), size=count)
    xyz = np.empty((count, points, 3), dtype=np.float32)
    label = np.empty((count, points), dtype=np.uint8)
    for s, kind in enumerate(kinds):
        boxes = makers[int(kind)](rng)
        areas = np.array([_area(low, top) for _, low, top in boxes])
        dense = 1.2 * points / areas.sum()
        parts = [(part, _box_surface(low, top, dense, rng)) for part, low, top in boxes]
        cloud = np.concatenate([p for _, p in parts])
        ids = np.concatenate([np.full(len(p), FIRST_PART[int(kind)] + part) for part, p in parts])
        chosen = rng.choice(len(cloud), points, replace=len(cloud) < points)
        xyz[s], label[s] = cloud[chosen], ids[chosen]
    names = np.array([f"{SYNSETS[k]}/made-{seed}-{s}" for s, k in enumerate(kinds)])
    flat = Shapes(xyz.reshape(-1, 3), label.reshape(-1), np.arange(count + 1) * points, kinds.astype(np.uint8), names)
    return flat.normalised()


def make_terrain(points: int = 20_000, seed: int = 0, origin: tuple[float, float, float] = _ORIGIN) -> Cloud:
    """An airborne scan: rolling ground, houses and trees, with ASPRS ``classification`` 2, 6 and 5."""
    rng = np.random.default_rng(seed)
    side = float(np.sqrt(points / 4.0))  # about four points per square metre
    xy = rng.uniform(0, side, (points, 2))
    waves = rng.uniform(0.02, 0.08, (3, 2)), rng.uniform(0, 6.28, 3), rng.uniform(0.5, 2.5, 3)
    ground = sum(a * np.sin(xy @ w + p) for w, p, a in zip(*waves, strict=True))
    height, kind = np.zeros(points), np.full(points, 2, dtype=np.uint8)
    for _ in range(max(1, int(side / 25))):
        corner, size = rng.uniform(0, side, 2), rng.uniform(6, 14, 2)
        inside = ((xy >= corner) & (xy <= corner + size)).all(1)
        height[inside], kind[inside] = rng.uniform(3, 8), 6
    for _ in range(max(2, int(side / 8))):
        centre, radius, top = rng.uniform(0, side, 2), rng.uniform(1.5, 3.5), rng.uniform(4, 12)
        near = ((xy - centre) ** 2).sum(1) < radius**2
        through = rng.random(points) < 0.25  # a quarter of the pulses reaches the ground
        crown = near & ~through & (kind == 2)
        height[crown], kind[crown] = top * rng.uniform(0.4, 1.0, int(crown.sum())), 5
    z = np.asarray(ground) + height + rng.normal(0, 0.05, points)
    xyz = np.round(np.column_stack([xy, z]) + np.array(origin), 3)
    intensity = (rng.integers(20, 200, points) + 40 * (kind == 2)).astype(np.uint16)
    return Cloud(xyz, {"intensity": intensity, "classification": kind})


def terrain_strips(points: int, seed: int = 0, density: float = 4.0, strip: int = 1 << 19) -> Iterator[Cloud]:
    """A square of rolling land with houses and trees, in strips, with ASPRS ``classification`` 2, 6 and 5.

    The land depends only on the seed and the position, so houses and hills continue from strip to strip.

    Args:
        points: Total number of points.
        density: Points per square metre.
        strip: Points per strip.
    """
    if points < 1 or density <= 0 or strip < 1:
        raise ValueError(f"Expected points, density and strip above 0 (got {points}, {density}, {strip})")
    side = float(np.sqrt(points / density))
    for start in range(0, points, strip):
        count = min(strip, points - start)
        rng = np.random.default_rng([seed, start])
        south, north = side * start / points, side * (start + count) / points
        xy = np.column_stack([rng.uniform(0, side, count), rng.uniform(south, north, count)])
        yield _scan(xy, seed, rng)


def write_terrain(path: str | Path, points: int, seed: int = 0, density: float = 4.0) -> None:
    """Write such a scan in the format of the suffix."""
    write_chunks(terrain_strips(points, seed, density), path, count=points)


def _scan(xy: NDArray[np.float64], seed: int, rng: np.random.Generator) -> Cloud:
    waves = np.random.default_rng(seed)
    ground = np.zeros(len(xy))
    for _ in range(4):
        length, angle, phase = waves.uniform(60, 400), *waves.uniform(0, 2 * np.pi, 2)
        along = xy @ np.array([np.cos(angle), np.sin(angle)])
        ground += 0.02 * length * np.sin(2 * np.pi * along / length + phase)
    height, kind = np.zeros(len(xy)), np.full(len(xy), 2, np.uint8)
    chance, wide, deep, high, shift = _cell_numbers(xy, _HOUSES, seed, 5)
    low = 1 + shift * 4
    inside = np.ones(len(xy), np.bool_)
    for axis, size in ((0, 8 + 10 * wide), (1, 8 + 10 * deep)):
        offset = xy[:, axis] % _HOUSES
        inside &= (offset >= low) & (offset <= low + size)
    house = inside & (chance < 0.3)
    height[house], kind[house] = 3 + 6 * high[house], 6
    chance, size, top, left, up = _cell_numbers(xy, _TREES, seed + 1, 5)
    radius = 1.2 + 2 * size
    centre = np.column_stack([radius + left * (_TREES - 2 * radius), radius + up * (_TREES - 2 * radius)])
    near = ((xy % _TREES - centre) ** 2).sum(1) < radius**2
    tree = near & (chance < 0.35) & ~house & (rng.random(len(xy)) > 0.25)  # a quarter of the pulses reaches the ground
    height[tree], kind[tree] = (4 + 10 * top[tree]) * rng.uniform(0.35, 1.0, int(tree.sum())), 5
    z = ground + height + rng.normal(0, 0.05, len(xy))
    xyz = np.round(np.column_stack([xy, z]) + np.array(_ORIGIN), 3)
    return Cloud(xyz, {"intensity": rng.integers(20, 240, len(xy)).astype(np.uint16), "classification": kind})


def _cell_numbers(xy: NDArray[np.float64], side: float, seed: int, count: int) -> list[NDArray[np.float64]]:
    """``count`` pseudo-random numbers in 0..1 for each point, a hash of its cell."""
    cell = np.floor(xy / side).astype(np.uint64)
    state = cell[:, 0] * np.uint64(0x9E3779B97F4A7C15) + cell[:, 1] * np.uint64(0xC2B2AE3D27D4EB4F)
    state += np.uint64(seed * 0x165667B19E3779F9 % (1 << 64))
    numbers = []
    for _ in range(count):  # splitmix64
        state = state + np.uint64(0x9E3779B97F4A7C15)
        mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        numbers.append(((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / float(1 << 53))
    return numbers


def _box_surface(
    low: NDArray[np.float64], top: NDArray[np.float64], density: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Random points on the faces of a box; a flat box has one face."""
    size = top - low
    pieces = []
    for axis in range(3):
        u, v = (a for a in range(3) if a != axis)
        area = size[u] * size[v]
        for side in (low[axis], top[axis]) if size[axis] > 0 else (low[axis],):
            piece = np.empty((rng.poisson(area * density), 3))
            piece[:, axis] = side
            piece[:, u] = rng.uniform(low[u], top[u], len(piece)) if size[u] > 0 else low[u]
            piece[:, v] = rng.uniform(low[v], top[v], len(piece)) if size[v] > 0 else low[v]
            pieces.append(piece)
    return np.concatenate(pieces)


def _area(low: NDArray[np.float64], top: NDArray[np.float64]) -> float:
    a, b, c = top - low
    return float(2 * (a * b + b * c + c * a))


_Boxes = list[tuple[int, NDArray[np.float64], NDArray[np.float64]]]


def _table_shape(rng: np.random.Generator) -> _Boxes:
    w, d, h = rng.uniform(0.6, 1.4), rng.uniform(0.4, 0.9), rng.uniform(0.4, 0.8)
    boxes: _Boxes = [(0, np.array([0, h, 0]), np.array([w, h + 0.06, d]))]
    for x in (0.0, w - 0.07):
        for z in (0.0, d - 0.07):
            boxes.append((1, np.array([x, 0, z]), np.array([x + 0.07, h, z + 0.07])))
    return boxes


def _chair_shape(rng: np.random.Generator) -> _Boxes:
    w, h, back = rng.uniform(0.4, 0.6), rng.uniform(0.35, 0.5), rng.uniform(0.4, 0.7)
    boxes: _Boxes = [
        (0, np.array([0, h + 0.05, 0]), np.array([w, h + back, 0.05])),
        (1, np.array([0, h, 0]), np.array([w, h + 0.05, w])),
    ]
    for x in (0.0, w - 0.05):
        for z in (0.0, w - 0.05):
            boxes.append((2, np.array([x, 0, z]), np.array([x + 0.05, h, z + 0.05])))
    if rng.random() < 0.5:
        for x in (-0.04, w):
            boxes.append((3, np.array([x, h + 0.2, 0]), np.array([x + 0.04, h + 0.25, w])))
    return boxes


def _mug_shape(rng: np.random.Generator) -> _Boxes:
    r, h = rng.uniform(0.25, 0.4), rng.uniform(0.5, 0.8)
    return [
        (1, np.array([0, 0, 0]), np.array([2 * r, h, 2 * r])),
        (0, np.array([2 * r, 0.2 * h, r - 0.04]), np.array([2 * r + 0.2, 0.8 * h, r + 0.04])),
    ]
