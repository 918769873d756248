"""Label a folder of tiles of one survey, each with the points of its neighbours near its border."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from fgnn.errors import InputError
from fgnn.points.cloud import FORMATS

# file, its neighbours and the file to write -> points per class
LabelTile = Callable[[Path, Sequence[Path], Path], dict[str, int]]


@dataclass(frozen=True)
class TileResult:
    """A labelled tile, and its points per class; None where an earlier run had written it."""

    scan: Path
    out: Path
    counts: dict[str, int] | None


def survey_files(folder: Path, out: Path) -> list[tuple[Path, Path]]:
    """The scans of a folder in order of their names, each with the file to write in the folder ``out``."""
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in FORMATS and p.is_file())
    if not files:
        raise InputError("Expected scans in the folder (got none)", file=folder)
    suffix = {".e57": ".ply"}  # E57 cannot be written
    return [(p, out / f"{p.stem}{suffix.get(p.suffix.lower(), p.suffix)}") for p in files]


def label_survey(folder: Path, out: Path, label_tile: LabelTile, jobs: int = 1) -> Iterator[TileResult]:
    """Label the tiles that are not in ``out`` yet, ``jobs`` at a time; yields them as they are done.

    Files are written whole or not at all, so a run that was stopped continues where it was.

    Args:
        label_tile: Labels one tile; for ``jobs`` above 1 it must be picklable.
    """
    tiles = survey_files(folder, out)
    everything = [scan for scan, _ in tiles]
    missing = []
    for scan, target in tiles:
        if target.exists():
            yield TileResult(scan, target, None)
        else:
            missing.append((scan, [p for p in everything if p != scan], target))
    if jobs == 1 or len(missing) < 2:
        for scan, around, target in missing:
            yield TileResult(scan, target, label_tile(scan, around, target))
        return
    # spawn: CUDA and OpenMP do not survive a fork
    with ProcessPoolExecutor(min(jobs, len(missing)), mp_context=get_context("spawn")) as pool:
        pending = {pool.submit(label_tile, *tile): tile for tile in missing}
        try:
            for job in as_completed(pending):
                scan, _, target = pending[job]
                yield TileResult(scan, target, job.result())
        finally:
            pool.shutdown(cancel_futures=True)
