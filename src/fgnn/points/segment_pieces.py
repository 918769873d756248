"""Batches of pieces of tiles for a network, made by threads while the network works on the one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fgnn.points.heights import Relief, height_columns
from fgnn.points.tiles import Spot, Tile, TileStore

# Batches in the making besides the one that is being labelled.
_AHEAD = 2

Room = Callable[[tuple[int, ...]], NDArray[np.float32]]


@dataclass(frozen=True)
class Cut:
    """How tiles become features, as `fgnn.points.segment.Segmenter` has it."""

    points: int
    scale: float
    width: int  # further features of a point, e.g. colour
    heights: Sequence[float]
    slopes: Sequence[float]

    @property
    def columns(self) -> int:
        return 3 + self.width + height_columns(self.heights, self.slopes)


@dataclass(frozen=True, eq=False)
class Batch:
    """Features (pieces, P, 3 + F) and, of each piece, the slots of its points that are not repeats."""

    features: NDArray[np.float32]
    slots: list[NDArray[np.int64]]


@dataclass(eq=False)
class _Begun:
    room: NDArray[np.float32]
    slots: list[Future[NDArray[np.int64]]] = field(default_factory=list)

    def finish(self) -> Batch:
        return Batch(self.room[: len(self.slots)], [job.result() for job in self.slots])


@dataclass(frozen=True, eq=False)
class Ground:
    """A tile with what its features are measured from, ready to give those of any of its points."""

    tile: Tile
    floor: np.float32
    relief: Relief | None

    @staticmethod
    def of(tile: Tile, cut: Cut) -> Ground:
        floor = np.ascontiguousarray(tile.xyz[:, 2]).min()
        tile.xyz[:, 2] -= floor
        return Ground(tile, floor, Relief.of(tile.xyz, cut.heights, cut.slopes) if cut.heights else None)

    def features(self, chosen: NDArray[np.int64], cut: Cut, out: NDArray[np.float32]) -> None:
        """x and y about the tile's middle, z above its lowest point, over ``scale``; then the further features."""
        xyz = np.take(self.tile.xyz, chosen, axis=0)
        np.divide(xyz, np.float32(cut.scale), out=out[:, :3])
        if cut.width:
            out[:, 3 : 3 + cut.width] = np.take(self.tile.extra, chosen, axis=0)
        if self.relief is not None:
            self.relief.heights(xyz, out=out[:, 3 + cut.width :])


def batches(
    store: TileStore, cut: Cut, size: int, votes: int, seed: int, threads: int = 1, room: Room | None = None
) -> Generator[Batch, None, None]:
    """Each tile's points shuffled and cut into pieces of P, a few repeated to fill the last; ``size`` pieces a batch.

    A batch is valid until the next one is asked for: its memory is used again.

    Args:
        threads: How many make features; their number changes nothing in the result.
        room: Gives the memory of a batch, e.g. such as a GPU reads from directly.
    """
    rng = np.random.default_rng(seed)
    shape = (size, cut.points, cut.columns)
    free = deque(room(shape) if room is not None else np.empty(shape, np.float32) for _ in range(1 + _AHEAD))
    begun: deque[_Begun] = deque([_Begun(free.popleft())])
    pool = ThreadPoolExecutor(threads, thread_name_prefix="fgnn-tiles")
    try:
        for spot in store.spots(votes):
            order = rng.permutation(len(spot))  # here, in the order of tiles: the numbers are the same for any threads
            ground = pool.submit(_prepared, store, spot, cut)
            for at in range(0, len(order), cut.points):
                if len(begun[-1].slots) == size:
                    if not free:
                        done = begun.popleft()
                        yield done.finish()
                        free.append(done.room)
                    begun.append(_Begun(free.popleft()))
                last, chosen = begun[-1], order[at : at + cut.points]
                lacking = cut.points - len(chosen)
                repeats = rng.choice(len(chosen), lacking) if lacking else chosen[:0]
                target = last.room[len(last.slots)]
                last.slots.append(pool.submit(_filled, ground, spot, chosen, repeats, cut, target))
        for done in begun:
            if done.slots:
                yield done.finish()
    finally:
        pool.shutdown(cancel_futures=True)


def _prepared(store: TileStore, spot: Spot, cut: Cut) -> Ground:
    return Ground.of(store.load(spot), cut)


def _filled(
    ground: Future[Ground], spot: Spot, chosen: NDArray[np.int64], repeats: NDArray[np.int64], cut: Cut,
    target: NDArray[np.float32],
) -> NDArray[np.int64]:  # fmt: skip
    """Write the features of a piece; returns the slots of its points."""
    # threads take jobs in their order, so the tile this waits for is made or being made
    ground.result().features(chosen, cut, target[: len(chosen)])
    if len(repeats):
        target[len(chosen) :] = target[repeats]
    return spot.slots(chosen)
