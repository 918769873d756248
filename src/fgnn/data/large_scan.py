"""A generated airborne scan of any size, strip by strip in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.points.cloud import Cloud, write_chunks

_HOUSES, _TREES = 25.0, 8.0  # metres: side of the cells with at most one house or tree
_ORIGIN = np.array([512_000.0, 5_403_000.0, 200.0])


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
    xyz = np.round(np.column_stack([xy, z]) + _ORIGIN, 3)
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
