"""Model files: `read_model` and `write_model`, by suffix.

| suffix | format | |
|---|---|---|
| ``.fgm`` | native format, lossless | read, write |
| ``.uai`` | UAI ``MARKOV`` and ``BAYES``, with evidence from ``.evid`` files | read, write |
| ``.fg`` | libDAI factor graphs | read |
| ``.bif`` | Bayesian networks in the interchange format | read |
| ``.wcsp``, ``.cfn`` | toulbar2's cost function networks | read |

Each may be compressed: ``a.uai.gz``, ``a.uai.xz``.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TypeVar, cast

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

_F = TypeVar("_F")


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
        limits: Resource limits for reading the file.

    Raises:
        InputError: The file is invalid; one line names the file, the place and the reason.
    """
    source = Path(path)
    reader = _by_suffix(READERS, source)
    try:
        model = reader(source, limits)
    except MemoryError:
        fail("needs more memory than is available", source)
    if evidence is None:
        return model
    if isinstance(evidence, Mapping):
        try:
            return model.condition(evidence)
        except ValueError as error:
            raise InputError(str(error), place="evidence") from error
    return model.condition(read_evidence(evidence, model.cardinalities, limits))


def write_model(model: GraphicalModel, path: str | Path) -> None:
    """Write a model file, by suffix: ``.fgm`` is lossless, ``.uai`` is for other programs.

    The write is atomic. In a ``.uai`` file a budget becomes a table of at most 2^16 entries, and scores are accurate
    to about 1e-12.

    Raises:
        InputError: The suffix is unknown, or the format cannot represent the model.
    """
    target = Path(path)
    writer = _by_suffix(WRITERS, target)
    try:
        with atomic_write(target, "wb") as file:
            kind = target.suffix.lower()
            if kind == ".gz":
                # no name or time in the header, so that equal models give equal files
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
        if out_of_disk(error):
            raise
        fail(error.strerror or str(error), target)


def _by_suffix(formats: Mapping[str, _F], path: Path) -> _F:
    suffix = path.suffix.lower()
    kind = Path(path.stem).suffix.lower() if suffix in COMPRESSIONS else suffix
    if kind not in formats:
        fail(f"Expected a suffix among {', '.join(formats)}, or one of them with .gz or .xz", path, "name")
    return formats[kind]
