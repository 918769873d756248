"""Model files: `read_model` and `write_model`, by suffix.

| suffix | what | |
|---|---|---|
| ``.fgm`` | our own, every number as it is | read, write |
| ``.uai`` | UAI ``MARKOV`` and ``BAYES``, with evidence from ``.evid`` files | read, write |
| ``.fg`` | libDAI factor graphs | read |
| ``.bif`` | Bayesian networks, interchange format | read |
| ``.wcsp``, ``.cfn`` | toulbar2's cost function networks | read |

Each may be compressed: ``a.uai.gz``, ``a.uai.xz``.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, cast

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.pgm.io.bif import read_bif
from fgnn.pgm.io.cfn import read_cfn
from fgnn.pgm.io.evidence import read_evidence
from fgnn.pgm.io.fg import read_fg
from fgnn.pgm.io.native import read_native, write_native
from fgnn.pgm.io.stream import COMPRESSIONS, Limits, fail
from fgnn.pgm.io.uai import read_uai
from fgnn.pgm.io.uai_write import write_uai
from fgnn.pgm.io.wcsp import read_wcsp
from fgnn.pgm.model import GraphicalModel
from fgnn.runtime.resource_errors import out_of_disk

__all__ = ["Limits", "read_evidence", "read_model", "write_model"]

READERS: dict[str, Callable[[Path, Limits | None], GraphicalModel]] = {
    ".fgm": read_native,
    ".uai": read_uai,
    ".fg": read_fg,
    ".bif": read_bif,
    ".wcsp": read_wcsp,
    ".cfn": read_cfn,
}
WRITERS: dict[str, Callable[[GraphicalModel, IO[bytes]], None]] = {
    ".fgm": write_native,
    ".uai": write_uai,
}


def read_model(
    path: str | Path,
    evidence: str | Path | Mapping[int, int] | None = None,
    *,
    limits: Limits | None = None,
) -> GraphicalModel:
    """Read a model file, by suffix.

    Args:
        path: A ``.fgm``, ``.uai``, ``.fg``, ``.bif``, ``.wcsp`` or ``.cfn`` file, plain or as ``.gz`` or ``.xz``.
        evidence: Observed states to condition on: a UAI evidence file, or a mapping from variable to state.
        limits: What the file may ask for before it is refused.

    Raises:
        InputError: The file cannot be used; one line says why, with the file and the place in it.
    """
    source = Path(path)
    reader = READERS.get(_format(source))
    if reader is None:
        fail(f"Expected a suffix among {', '.join(READERS)}, or one of them with .gz or .xz", source, "name")
    try:
        model = reader(source, limits)
    except MemoryError:
        fail("needs more memory than there is", source)
    if evidence is None:
        return model
    if isinstance(evidence, Mapping):
        try:
            return model.condition(evidence)
        except ValueError as error:
            raise InputError(str(error), place="evidence") from error
    return model.condition(read_evidence(evidence, model.cardinalities, limits))


def write_model(model: GraphicalModel, path: str | Path) -> None:
    """Write a model file, by suffix: ``.fgm`` keeps everything, ``.uai`` is for other programs.

    The file appears whole or not at all. In a ``.uai`` file a budget becomes a table, where it has at most 2^16
    entries; scores come back to about 1e-12.

    Raises:
        InputError: The suffix is not one of these, or the model has no place in the format.
    """
    target = Path(path)
    writer = WRITERS.get(_format(target))
    if writer is None:
        fail(f"Expected a suffix among {', '.join(WRITERS)}, or one of them with .gz or .xz", target, "name")
    try:
        with atomic_write(target, "wb") as file:
            kind = target.suffix.lower()
            if kind == ".gz":
                # no name and no time in the header: equal models give equal files
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                    writer(model, cast("IO[bytes]", packed))
            elif kind == ".xz":
                with lzma.LZMAFile(file, "wb") as packed:
                    writer(model, packed)
            else:
                writer(model, file)
    except InputError as error:
        raise InputError(str(error), file=target) from error
    except OSError as error:
        if out_of_disk(error):  # no fault of the name
            raise
        fail(error.strerror or str(error), target)


def _format(path: Path) -> str:
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSIONS else suffix
