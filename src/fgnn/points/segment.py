"""Label every point of a scan: tile, predict, vote, and write the scan again with its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.points.cloud import CHUNK, Cloud, HeldCloud, open_cloud, write_chunks
from fgnn.points.segment_clock import Clock
from fgnn.points.segment_pieces import Cut, Ground, Room, batches
from fgnn.points.tiles import OnChunk, Tile, TileStore

# Written for points that no network saw: those without finite coordinates.
UNLABELLED = 255

# (pieces, P, 3 + F) features -> (pieces, P, K) class probabilities
Predict = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Segmenter:
    """What a trained network needs to label scans.

    Args:
        predict: Maps (pieces, P, 3 + F) features to (pieces, P, K) class probabilities.
        classes: The K names.
        size: Side of a tile in the scan's units (metres).
        points: P, the points of a piece; tiles with more are cut into several, with fewer are filled with repeats.
        scale: Coordinates are divided by this.
        colour: Whether the network also reads colour (F = 3; zeros where the scan has none).
        heights: Windows of `heights_above`, whose columns come last among the features; none for no such columns.
        slopes: Slopes of `heights_above`.
        grow: How many times wider tiles may be where the scan is sparse.
        batch: Pieces per call of ``predict``.
        votes: How many tiles label each point: 4, 2 or 1; fewer are quicker and worse at the edges of tiles.
        threads: How many make features while ``predict`` works; their number changes nothing in the result.
        room: Gives the memory of a batch of features of some shape, where not any will do.
    """

    predict: Predict
    classes: Sequence[str]
    size: float
    points: int = 4096
    scale: float = 1.0
    colour: bool = False
    heights: Sequence[float] = ()
    slopes: Sequence[float] = ()
    grow: float = 1.0
    batch: int = 8
    seed: int = 0
    votes: int = 4
    threads: int = 1
    room: Room | None = None

    @property
    def cut(self) -> Cut:
        return Cut(self.points, self.scale, 3 if self.colour else 0, self.heights, self.slopes)


@dataclass(frozen=True, eq=False)
class Labelling:
    """Labels and confidences of the points of a cloud, and how many points each class got."""

    label: NDArray[np.uint8]  # shape: (N,)
    confidence: NDArray[np.float32]  # shape: (N,)
    counts: dict[str, int] = field(default_factory=dict)


def segment_cloud(cloud: Cloud, segmenter: Segmenter, report: OnChunk | None = None) -> Labelling:
    """Label a cloud held in memory."""
    label = np.full(len(cloud), UNLABELLED, np.uint8)
    confidence = np.zeros(len(cloud), np.float32)
    with _store(HeldCloud(cloud), segmenter, report) as store:
        votes, slots = _vote(store, segmenter, report, Clock()), store.slot_of()
        known = slots >= 0
        label[known], confidence[known] = _decide(votes[slots[known]])
    return Labelling(label, confidence, _tally(label, segmenter.classes))


def segment_file(
    path: str | Path,
    out: str | Path,
    segmenter: Segmenter,
    report: OnChunk | None = None,
    keep: int = 0,
    clock: Clock | None = None,
) -> tuple[dict[str, int], Cloud | None]:
    """Label a scan of any size in constant memory: the same file with fields ``label`` and ``confidence``.

    Args:
        keep: How many points to also return, drawn evenly, for the viewer.
        clock: Is told where the seconds go.

    Returns:
        Points per class, and the sample (with its fields ``label`` and ``confidence``) or None.
    """
    reader = open_cloud(path)
    clock = clock or Clock()
    tally = np.zeros(256, np.int64)
    kept: list[Cloud] = []
    with clock("reading"):
        made = _store(reader, segmenter, report)
    with made as store:
        step = max(1, -(-store.count // keep)) if keep else 0

        def labelled() -> Iterator[Cloud]:
            votes, slot_of, done = _vote(store, segmenter, report, clock), store.slot_of(), 0
            for cloud in reader.chunks(CHUNK):
                label = np.full(len(cloud), UNLABELLED, np.uint8)
                confidence = np.zeros(len(cloud), np.float32)
                slots = np.asarray(slot_of[done : done + len(cloud)])
                known = slots >= 0
                label[known], confidence[known] = _decide(np.asarray(votes[slots[known]]))
                done += len(cloud)
                store.release()
                np.add(tally, np.bincount(label, minlength=256), out=tally)
                fuller = cloud.with_fields(label=label, confidence=confidence)
                if step:
                    kept.append(_every(fuller, step))
                yield fuller

        if store.count:
            with clock("writing"):
                write_chunks(labelled(), out, count=store.count)
        else:
            empty = Cloud(np.zeros((0, 3)), {n: np.zeros(0, d) for n, d in reader.header.fields.items()}, reader.header)
            fields: dict[str, NDArray[Any]] = {"label": np.zeros(0, np.uint8), "confidence": np.zeros(0, np.float32)}
            write_chunks([empty.with_fields(**fields)], out, count=0)
    counts = {name: int(tally[c]) for c, name in enumerate(segmenter.classes)}
    if tally[UNLABELLED]:
        counts["unlabelled"] = int(tally[UNLABELLED])
    return counts, _joined(kept) if kept else None


def _store(reader: Any, segmenter: Segmenter, report: OnChunk | None) -> TileStore:
    extra = _colours if segmenter.colour else None
    return TileStore(
        reader, segmenter.size, extra=extra, extra_width=segmenter.cut.width, points=segmenter.points,
        grow=segmenter.grow, report=report,
    )  # fmt: skip


def _colours(cloud: Cloud) -> NDArray[np.float32]:
    rgb = cloud.rgb
    return rgb if rgb is not None else np.zeros((len(cloud), 3), np.float32)


def _vote(store: TileStore, segmenter: Segmenter, report: OnChunk | None, clock: Clock) -> NDArray[np.float32]:
    """Summed probabilities (slots, K) of every point, on disk."""
    votes: NDArray[np.float32] = np.asarray(store.new_map("votes", np.float32, len(segmenter.classes)))
    source = batches(
        store, segmenter.cut, segmenter.batch, segmenter.votes, segmenter.seed, segmenter.threads, segmenter.room
    )
    done = 0
    # votes are counted by one thread, batch after batch, while the network works on the next
    with closing(source), ThreadPoolExecutor(1, thread_name_prefix="fgnn-votes") as counter:
        counted: Future[None] | None = None
        while True:
            with clock("tiles"):
                batch = next(source, None)
            if batch is not None:
                with clock("network"):
                    probabilities = segmenter.predict(batch.features)
                    if np.may_share_memory(probabilities, batch.features):  # those are soon overwritten
                        probabilities = probabilities.copy()
            with clock("votes"):
                if counted is not None:
                    counted.result()
            if batch is None:
                return votes
            counted = counter.submit(_add, votes, batch.slots, probabilities)
            done += sum(map(len, batch.slots))
            if report is not None:
                report("labelling", min(done // segmenter.votes, store.valid), store.valid)


def _add(votes: NDArray[np.float32], slots: Sequence[NDArray[np.int64]], probabilities: NDArray[np.float32]) -> None:
    for piece, p in zip(slots, probabilities, strict=True):
        # a slot stands once among the points of a piece that are not repeats
        votes[piece] = np.take(votes, piece, axis=0) + p[: len(piece)]


def tile_features(
    tile: Tile, scale: float, heights: Sequence[float] = (), slopes: Sequence[float] = ()
) -> NDArray[np.float32]:
    """x and y about the tile's middle, z above its lowest point, over ``scale``; then the further features."""
    cut = Cut(len(tile.slots), scale, tile.extra.shape[1], heights, slopes)
    features = np.empty((len(tile.slots), cut.columns), np.float32)
    Ground.of(replace(tile, xyz=tile.xyz.copy()), cut).features(np.arange(len(features)), cut, features)
    return features


def _decide(votes: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    total = votes.sum(1)
    best = votes.argmax(1)
    share = votes[np.arange(len(votes)), best] / np.where(total > 0, total, 1)
    return best.astype(np.uint8), share.astype(np.float32)


def _tally(label: NDArray[np.uint8], classes: Sequence[str]) -> dict[str, int]:
    numbers = np.bincount(label, minlength=256)
    counts = {name: int(numbers[c]) for c, name in enumerate(classes)}
    return counts | ({"unlabelled": int(numbers[UNLABELLED])} if numbers[UNLABELLED] else {})


def _every(cloud: Cloud, step: int) -> Cloud:
    return Cloud(cloud.xyz[::step], {n: v[::step] for n, v in cloud.fields.items()}, cloud.header)


def _joined(parts: list[Cloud]) -> Cloud:
    fields = {n: np.concatenate([p.fields[n] for p in parts]) for n in parts[0].fields}
    return Cloud(np.concatenate([p.xyz for p in parts]), fields, parts[0].header)
