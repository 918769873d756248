"""Tensors and a JSON header in one safetensors file, the format of weights and checkpoints. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fgnn.errors import InputError
from fgnn.files import atomic_write, is_file

_MOST_HEADER = 16 << 20
# What reading a malformed file may raise.
_MALFORMED = (ValueError, LookupError, AttributeError, TypeError, RecursionError, OverflowError)


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any], kind: str) -> None:
    """Write tensors and plain values as one file of the given kind, atomically."""
    from safetensors.torch import save

    # clone: tensors that share memory (tied parameters) are each stored in full
    flat = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    data = save(flat, metadata={"format": kind, "values": json.dumps(values)})
    with atomic_write(path, "wb") as file:
        file.write(data)


def load_tensors(path: str | Path, kind: str, what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file of `save_tensors`, on the CPU; a truncated file or one of another kind is an `InputError`."""
    if not is_file(path):
        raise InputError(f"no such file; expected {what}", file=path)
    return parse_tensors(Path(path).read_bytes(), kind, what, path)


def read_values(path: str | Path, kind: str, what: str) -> dict[str, Any]:
    """Read the values of a file of `save_tensors` without its tensors."""
    with Path(path).open("rb") as file:
        return _values(file.read(_header_bytes(file.read(8))), kind, what, path)


def parse_tensors(data: bytes, kind: str, what: str, file: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Parse the bytes of a file into tensors and values; ``file`` names it in messages."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    values = _values(data[8 : 8 + _header_bytes(data[:8])], kind, what, file)
    try:
        tensors: dict[str, Tensor] = load(data)
    except (SafetensorError, *_MALFORMED) as error:
        raise _not(what, "a file that is cut short or of another kind", file) from error
    return tensors, values


def _header_bytes(start: bytes) -> int:
    """The length of the header, which its first eight bytes state; the JSON of a longer one is cut short."""
    return min(int.from_bytes(start, "little"), _MOST_HEADER)


def _values(header: bytes, kind: str, what: str, file: str | Path) -> dict[str, Any]:
    """The values in the JSON header of a safetensors file."""
    try:
        metadata = json.loads(header).get("__metadata__", {})
        actual, values = metadata.get("format"), json.loads(metadata.get("values", "null"))
    except _MALFORMED as error:
        raise _not(what, "a file that is cut short or of another kind", file) from error
    if actual != kind:
        raise _not(what, "a safetensors file of another kind", file)
    if not isinstance(values, dict):
        raise InputError(f"Expected {what} (got values that are not a mapping)", file=file, place="header")
    return values


def _not(what: str, got: str, file: str | Path) -> InputError:
    return InputError(f"Expected {what} (got {got})", file=file)
