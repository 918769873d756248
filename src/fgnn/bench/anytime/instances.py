"""The named instances: generated ones with fixed seeds, and files of the UAI competitions."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, partial
from math import log
from pathlib import Path
from typing import Protocol

from fgnn.bench.anytime import families
from fgnn.errors import InputError
from fgnn.pgm import GraphicalModel
from fgnn.pgm.io import read_model


class Make(Protocol):
    """Builds a model."""

    def __call__(self) -> GraphicalModel: ...


@dataclass(frozen=True)
class Instance:
    """A model by name; the part before the first slash is its family."""

    name: str
    make: Make
    best_known: float | None = None  # natural log

    @property
    def family(self) -> str:
        return self.name.split("/")[0]


@dataclass(frozen=True)
class _Member:
    """A model in an archive, with its evidence if it has any."""

    archive: str
    name: str

    def __call__(self) -> GraphicalModel:
        with tempfile.TemporaryDirectory() as folder, tarfile.open(self.archive) as archive:
            files = []
            for suffix in ("", ".evid"):
                place = Path(folder) / f"model.uai{suffix}"
                try:
                    member = archive.extractfile(self.name + suffix)
                except KeyError:
                    continue
                if member is not None:
                    place.write_bytes(member.read())
                    files.append(place)
            return read_model(files[0], evidence=files[1] if len(files) > 1 else None)


def data_folder(given: str | Path | None = None) -> Path:
    """The folder of benchmark data: as given, else ``FGNN_DATA``, else ``shared/data`` beside the working folder."""
    return Path(given or os.environ.get("FGNN_DATA") or Path("..") / "shared" / "data")


def instances(only: Sequence[str] = (), data: str | Path | None = None) -> list[Instance]:
    """The instances whose names match one of the patterns ``only`` (all by default), in a fixed order."""
    every = [*_generated(), *_files(data_folder(data))]
    chosen = [i for i in every if not only or any(fnmatch(i.name, pattern) for pattern in only)]
    if not chosen:
        named = ", ".join(dict.fromkeys(i.family for i in every))
        raise InputError(f"Expected --only to match an instance of {named} (got {', '.join(only)})")
    return chosen


def _generated() -> Iterator[Instance]:
    for name, make in (("glass", families.glass), ("potts", families.potts)):
        for side, seeds in ((50, (0, 1)), (100, (0,)), (200, (0,))):
            for seed in seeds:
                yield Instance(f"{name}/{side}x{side}-s{seed}", partial(make, side, seed))
    for nodes, degree in ((500, 3), (1000, 3), (500, 4), (500, 6)):
        yield Instance(f"graph/{nodes}n{degree}d-s0", partial(families.graph_glass, nodes, degree, 0))
    for seed in range(3):
        yield Instance(f"colouring/250n5c-s{seed}", partial(families.colouring, 250, seed))
    for seed in range(3):
        yield Instance(f"sat/500v2125c-s{seed}", partial(families.random_sat, 500, 2125, seed))
    for residues, seed in ((60, 0), (120, 1), (240, 2)):
        yield Instance(f"protein/{residues}r-s{seed}", partial(families.protein_like, residues, seed))
    for side, count in ((20, 20), (50, 3), (100, 2)):
        for seed in range(count):
            yield Instance(f"budgets/{side}x{side}-s{seed}", partial(families.with_budgets, side, seed))


def _files(folder: Path) -> Iterator[Instance]:
    """Nothing where the folder is missing: the generated instances need no data."""
    scores = _best_known(folder / "map_benchmarks" / "uai2012_pe_scores.tsv")
    archives = (
        ("uai2012", folder / "map_benchmarks" / "uai2012_pe.tar.xz", ""),
        ("uai2014", folder / "marginals" / "uai2014_mar_pr.tar.xz", "/PR/"),
    )
    for family, archive, part in archives:
        for member in _members(archive) if archive.is_file() else ():
            if part in member:
                stem = member.split(part)[-1] if part else "/".join(member.split("/")[-2:])
                name = stem.removesuffix(".uai")
                known = scores.get(name) if family == "uai2012" else None
                yield Instance(f"{family}/{name}", _Member(str(archive), member), known)


@cache
def _members(archive: Path) -> tuple[str, ...]:
    with tarfile.open(archive) as files:
        return tuple(sorted(name for name in files.getnames() if name.endswith(".uai")))


def _best_known(table: Path) -> dict[str, float]:
    """The best known score of each instance in natural log, from a table in log10."""
    if not table.is_file():
        return {}
    head, *rows = (line.split("\t") for line in table.read_text().splitlines() if line.strip())
    name, score = head.index("instance"), head.index("best_log10")
    return {row[name]: float(row[score]) * log(10) for row in rows}
