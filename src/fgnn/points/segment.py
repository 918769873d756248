"""Label every point of a scan in three steps: read it into tiles on disk, label the tiles, write the scan again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError
from fgnn.points.ahead import in_order
from fgnn.points.border import WithBorder
from fgnn.points.cloud import (
    CHUNK,
    Cloud,
    CloudReader,
    HeldCloud,
    check_writable,
    open_cloud,
)
from fgnn.points.ground import GroundFilter
from fgnn.points.ground_fusion import GroundFusion, fuse
from fgnn.points.ground_surface import Tolerance
from fgnn.points.segment_output import CheckedReader, LabelFields, Output, ground_heights, write_labelled
from fgnn.points.segment_pieces import Allocate, Cut, batches, extra_values
from fgnn.points.spread import spread
from fgnn.points.tiles import OnChunk, Spot, TileStore
from fgnn.points.units import InMetres

# Label of points without finite coordinates, which the network never sees.
UNLABELLED = 255

# What the caller waits for: file to tiles, features of the next batch, the network, summing votes, file again.
STAGES = ("reading", "tiles", "network", "votes", "writing")

# (pieces, P, 3 + F) features -> (pieces, P, K) class probabilities
Predict = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Segmenter:
    """A network and how scans are cut for it.

    Args:
        predict: Maps (pieces, P, 3 + F) features to (pieces, P, K) class probabilities.
        classes: The K class names.
        size: Side of a tile in the scan's units (metres).
        points: P, points per piece; larger tiles are split into several pieces, smaller ones padded with repeats.
        scale: Coordinates are divided by this.
        colour: Whether the network also reads colour (F = 3; zeros if the scan has none).
        heights: Windows of `heights_above`, whose columns are the last features; empty for no such columns.
        slopes: Slopes of `heights_above`.
        grow: Largest factor by which tiles widen in sparse scans.
        thin: If positive, the network labels the lowest point of each voxel of this side, and the other points follow
            (see `fgnn.points.spread`).
        shapes: Numbers of neighbours whose shape is a feature (see `fgnn.points.neighbourhood`).
        echoes: Whether the network also reads intensity and returns (see `fgnn.points.echoes`).
        batch: Pieces per call of ``predict``.
        fusion: How ground is decided on together with a classical filter; needs classes of which one is ground.
        codes: ASPRS code of each class, for the field ``classification``; none leaves it alone.
        votes: Tiles that label each point: 4, 2 or 1; fewer are faster but less accurate at tile edges.
        threads: Threads that compute features while ``predict`` runs; their number does not change the result.
        room: Allocates the feature array of a batch from its shape, e.g. in pinned memory.
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
    thin: float = 0.0
    shapes: Sequence[int] = ()
    echoes: bool = False
    fusion: GroundFusion | None = None
    codes: Sequence[int] = ()
    batch: int = 8
    seed: int = 0
    votes: int = 4
    threads: int = 1
    room: Allocate | None = None

    @property
    def cut(self) -> Cut:
        return Cut.of(self)


@dataclass(frozen=True, eq=False)
class GroundRule:
    """A classical ground filter, applied to overlapping tiles; each labels the points of its central half.

    Args:
        rule: Maps points (P, 3) to a mask of ground points.
        size: Side of a tile in the scan's units, several times the filter's largest window.
    """

    rule: GroundFilter
    size: float = 256.0
    classes: Sequence[str] = ("ground", "other")
    codes: Sequence[int] = (2, 1)

    @property
    def cut(self) -> Cut:
        return Cut(self.size)


@dataclass(frozen=True, eq=False)
class Labelling:
    """Label and confidence of every point of a cloud, and the number of points per class."""

    label: NDArray[np.uint8]  # shape: (N,)
    confidence: NDArray[np.float32]  # shape: (N,)
    counts: dict[str, int] = field(default_factory=dict)


class Clock:
    """Wall-clock seconds of each stage, as the caller waits for them; work done in threads meanwhile is not counted."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start


def segment_cloud(
    cloud: Cloud,
    segmenter: Segmenter | GroundRule,
    report: OnChunk | None = None,
    votes: NDArray[np.float32] | None = None,
) -> Labelling:
    """Label a cloud held in memory.

    Args:
        votes: What `network_votes` gave for each point, (N, K), to use instead of running the network again.
    """
    with _read(HeldCloud(cloud), segmenter, report) as store:
        given = None if votes is None else votes[np.asarray(store.place)]
        labelling = _label(store, segmenter, report, Clock(), votes=given)
        return replace(labelling, label=np.array(labelling.label), confidence=np.array(labelling.confidence))


@contextmanager
def network_votes(cloud: Cloud, segmenter: Segmenter) -> Iterator[tuple[TileStore, NDArray[np.float32]]]:
    """The tiles of a cloud and what the network says of its points, (slots, K), before anything is made of it."""
    with _read(HeldCloud(cloud), segmenter, None) as store:
        yield store, _vote(store, segmenter, None, Clock())


def segment_file(
    path: str | Path,
    out: str | Path,
    segmenter: Segmenter | GroundRule,
    report: OnChunk | None = None,
    keep: int = 0,
    clock: Clock | None = None,
    output: Output = Output(),  # noqa: B008 (frozen)
    around: Sequence[str | Path] = (),
) -> tuple[dict[str, int], Cloud | None]:
    """Label a scan of any size in constant memory: the same file with fields ``label`` and ``confidence``.

    Args:
        keep: Number of points to return as well, evenly spaced in the file, for the viewer.
        clock: Measures the time of each stage.
        output: What else to write.
        around: Neighbouring scans, read as context near the border but not labelled in the output.

    Returns:
        Points per class, and the sample (with its fields ``label`` and ``confidence``) or None.
    """
    check_writable(out)
    if (output.above_ground or output.dtm) and "ground" not in segmenter.classes:
        raise InputError(f"Expected a class ground for heights (got {', '.join(segmenter.classes)})")
    reader, clock = open_cloud(path), clock or Clock()
    codes = np.asarray(segmenter.codes if output.classification else (), np.uint8)
    blank = LabelFields(np.zeros(CHUNK, np.uint8), np.zeros(CHUNK, np.float32), codes)
    if output.above_ground:
        blank = replace(blank, above_ground=np.zeros(CHUNK, np.float32))
    inner = CheckedReader(reader, blank, out)
    source: CloudReader = WithBorder(inner, around, 2 * segmenter.size / output.unit) if around else inner
    if output.unit != 1:
        source = InMetres(source, output.unit)
    with clock("reading"):
        store = _read(source, segmenter, report)
    count = inner.count
    with store:
        labelling = _label(store, segmenter, report, clock, count)
        fields = LabelFields(labelling.label, labelling.confidence, codes)
        with clock("writing"):
            if output.above_ground or output.dtm:
                ground = list(segmenter.classes).index("ground")
                heights = ground_heights(reader, store, lambda point: labelling.label[point] == ground, output)
                fields = replace(fields, above_ground=heights)
            sample = write_labelled(reader, store, count, fields, out, keep)
    return labelling.counts, sample


def _read(reader: CloudReader, segmenter: Segmenter | GroundRule, report: OnChunk | None) -> TileStore:
    """The points of a scan, sorted into tiles on disk."""
    cut = segmenter.cut
    extra = partial(extra_values, cut=cut) if cut.width else None
    return TileStore(
        reader, segmenter.size, extra=extra, extra_width=cut.width,
        points=cut.points, grow=cut.grow, report=report,
    )  # fmt: skip


def _label(
    store: TileStore,
    segmenter: Segmenter | GroundRule,
    report: OnChunk | None,
    clock: Clock,
    own: int | None = None,
    votes: NDArray[np.float32] | None = None,
) -> Labelling:
    """Labels and confidences in the order of the file, on disk beside the store; of ``own`` points counts by class."""
    own = store.count if own is None else own
    if isinstance(segmenter, GroundRule):
        with clock("network"):
            votes = _apply(store, segmenter, report)
    elif votes is None:
        votes = _vote(store, segmenter, report, clock)
    fusion = None if isinstance(segmenter, GroundRule) else segmenter.fusion
    with clock("votes"):
        threads = _threads()  # the network is done
        if fusion is not None:
            fuse(store, votes, segmenter.classes, fusion, threads)
        if segmenter.cut.thin:
            ground = list(segmenter.classes).index("ground") if "ground" in segmenter.classes else None
            spread(store, votes, ground, Tolerance() if fusion is None else fusion.tolerance, threads)
    label = store.new_map("label", np.uint8, (store.count,), fill=UNLABELLED)
    confidence = store.new_map("confidence", np.float32, (store.count,))
    tally = np.zeros(len(segmenter.classes), np.int64)
    with clock("votes"):
        for start in range(0, store.valid, CHUNK):
            summed = np.asarray(votes[start : start + CHUNK])  # shape: (n, K)
            point = np.asarray(store.place[start : start + CHUNK])
            total, best = summed.sum(1), summed.argmax(1)
            store.write(label, point, best)
            store.write(confidence, point, summed[np.arange(len(best)), best] / np.where(total > 0, total, 1))
            tally += np.bincount(best[point < own], minlength=len(tally))
            store.release()
    counts = dict(zip(segmenter.classes, tally.tolist(), strict=True))
    if int(tally.sum()) < own:
        counts["unlabelled"] = own - int(tally.sum())
    return Labelling(label, confidence, counts)


def _vote(store: TileStore, segmenter: Segmenter, report: OnChunk | None, clock: Clock) -> NDArray[np.float32]:
    """Class probabilities of each point summed over its tiles, on disk.  # shape: (slots, K)"""
    votes: NDArray[np.float32] = np.asarray(store.new_map("votes", np.float32, (store.valid, len(segmenter.classes))))
    source = batches(
        store, segmenter.cut, segmenter.batch, segmenter.votes, segmenter.seed, segmenter.threads, segmenter.room
    )
    done = 0
    # one thread adds the votes of a batch while the network works on the next
    with closing(source), ThreadPoolExecutor(1, thread_name_prefix="fgnn-votes") as adder:
        pending: Future[None] | None = None
        while True:
            with clock("tiles"):
                batch = next(source, None)
            if batch is not None:
                with clock("network"):
                    probabilities = segmenter.predict(batch.features)
                    if np.may_share_memory(probabilities, batch.features):  # the features are soon overwritten
                        probabilities = probabilities.copy()
            with clock("votes"):
                if pending is not None:
                    pending.result()
            if batch is None:
                return votes
            pending = adder.submit(_add, votes, batch.slots, probabilities)
            done += sum(int((slots >= 0).sum()) for slots in batch.slots)
            if report is not None:
                report("labelling", min(done // segmenter.votes, store.valid), store.valid)


def _threads() -> int:
    """As many as torch may use, up to 8: each holds a block of the scan."""
    import torch

    return min(8, torch.get_num_threads())


def _apply(store: TileStore, segmenter: GroundRule, report: OnChunk | None) -> NDArray[np.float32]:
    """One vote for each point, by the tile whose central half it is in.  # shape: (slots, 2)"""
    votes: NDArray[np.float32] = np.asarray(store.new_map("votes", np.float32, (store.valid, 2)))
    reach, done, threads = store.half / 2, 0, _threads()

    def apply(spot: Spot) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        tile = store.load(spot)
        wanted = np.flatnonzero((np.abs(tile.xyz[:, :2]) <= reach).all(1))
        if not len(wanted):
            return tile.slots[:0], np.zeros(0, np.bool_)
        return tile.slots[wanted], segmenter.rule(tile.xyz.astype(np.float64))[wanted]

    with ThreadPoolExecutor(threads, thread_name_prefix="fgnn-filter") as pool:
        for slots, ground in in_order(pool, apply, store.spots(), threads):
            votes[slots] = np.stack([ground, ~ground], axis=1)
            done += len(slots)
            if report is not None:
                report("labelling", min(done, store.valid), store.valid)
    return votes


def _add(votes: NDArray[np.float32], slots: Sequence[NDArray[np.int64]], probabilities: NDArray[np.float32]) -> None:
    for piece, p in zip(slots, probabilities, strict=True):
        real = piece >= 0
        own = piece[real]  # without the padding, no slot occurs twice in a piece
        votes[own] = np.take(votes, own, axis=0) + p[real]
