"""Rooms labelled and scored by the three test protocols of S3DIS; counts are pooled before dividing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.data import Room
from fgnn.data.s3dis import CLASSES
from fgnn.models import PointNetwork
from fgnn.points import confusion
from fgnn.points.blocks import POINTS, Block, count_votes, covering_blocks, overlapping_blocks, sampled_blocks
from fgnn.runtime.progress import Log

Protocol = Literal["pn-sampled", "all-points", "voted"]
PROTOCOLS: tuple[Protocol, ...] = ("pn-sampled", "all-points", "voted")
VOTES = 3  # passes of the voted protocol, each over all its blocks

Label = Callable[[NDArray[np.float32]], NDArray[np.int64]]


def labeller(network: PointNetwork, half: bool = False) -> Label:
    """Return a function from blocks (B, P, 9) to the class of each point (B, P), on the network's device."""
    device = next(network.parameters()).device

    @torch.no_grad()
    def label(features: NDArray[np.float32]) -> NDArray[np.int64]:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            scores = network(torch.from_numpy(features).to(device))[0]
        classes: NDArray[np.int64] = scores.float().argmax(-1).cpu().numpy()
        return classes

    network.eval()
    return label


def score_rooms(
    label: Label,
    rooms: Iterable[Room],
    protocol: Protocol,
    *,
    seed: int = 0,
    points: int = POINTS,
    batch: int = 8,
    log: Log = lambda text: None,
) -> NDArray[np.int64]:
    """Return the confusion matrix over all rooms, true classes in rows.

    - ``pn-sampled``: 4,096 points drawn from each block, repeats counted, as in most published numbers.
    - ``all-points``: the same blocks, every point once.
    - ``voted``: several passes over overlapping blocks; each point takes the majority class.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"Expected a protocol among {', '.join(PROTOCOLS)} (got {protocol!r})")
    counts = np.zeros((len(CLASSES), len(CLASSES)), np.int64)
    for room in rooms:
        log(f"{room.name}: {len(room.label):,} points")
        counts += _ROOMS[protocol](label, room, seed, points, batch)
    return counts


def _sampled(label: Label, room: Room, seed: int, points: int, batch: int) -> NDArray[np.int64]:
    counts = np.zeros((len(CLASSES), len(CLASSES)), np.int64)
    blocks = sampled_blocks(room.xyz, room.rgb, room.label, 1.0, seed=seed, points=points)
    for group, guess in _labelled(label, blocks, batch):
        counts += confusion(np.stack([b.label for b in group]), guess, len(CLASSES))
    return counts


def _covering(label: Label, room: Room, seed: int, points: int, batch: int) -> NDArray[np.int64]:
    classes = np.full(len(room.label), -1, np.int64)
    blocks = covering_blocks(room.xyz, room.rgb, room.label, seed=seed, points=points)
    for group, guess in _labelled(label, blocks, batch):
        for block, row in zip(group, guess, strict=True):
            classes[block.index[::-1]] = row[::-1]  # padding is at the end: the first entry of a point counts
    return _counted(room, classes)


def _voted(label: Label, room: Room, seed: int, points: int, batch: int) -> NDArray[np.int64]:
    votes = np.zeros((len(room.label), len(CLASSES)), np.int64)
    for turn in range(VOTES):
        blocks = overlapping_blocks(room.xyz, room.rgb, room.label, seed=seed + turn, points=points)
        for group, guess in _labelled(label, blocks, batch):
            index = np.concatenate([b.index for b in group])
            votes = count_votes(votes, index, guess.reshape(-1))
    return _counted(room, np.where(votes.any(1), votes.argmax(1), -1))


def _counted(room: Room, classes: NDArray[np.int64]) -> NDArray[np.int64]:
    if (classes < 0).any():
        raise AssertionError(f"{int((classes < 0).sum())} points of {room.name} were never labelled")
    return confusion(room.label, classes, len(CLASSES))


def _labelled(label: Label, blocks: Iterator[Block], batch: int) -> Iterator[tuple[list[Block], NDArray[np.int64]]]:
    """Yield groups of ``batch`` blocks with the classes of their points."""
    while group := list(islice(blocks, batch)):
        yield group, label(np.stack([b.features for b in group]))


_ROOMS: dict[Protocol, Callable[[Label, Room, int, int, int], NDArray[np.int64]]] = {
    "pn-sampled": _sampled,
    "all-points": _covering,
    "voted": _voted,
}
