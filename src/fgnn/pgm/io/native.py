"""The native model file (``.fgm``): a lossless safetensors file.

It stores the groups of a `GraphicalModel` with the insertion order of their factors, so that a model reads back
equal, including budgets, structured factors and ``-inf``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError
from fgnn.pgm.factors import KINDS, BudgetKind, Kind, TableKind
from fgnn.pgm.io.numbers import shown
from fgnn.pgm.io.stream import ByteStream, Limits, fail
from fgnn.pgm.model import GraphicalModel

FORMAT = "fgnn-model"
VERSION = 1

Array = NDArray[Any]
_PLURALS: dict[type[Kind], str] = {TableKind: "tables", BudgetKind: "budgets"}  # names of groups; of others, the kind's
# The parts of a file, each with an insertion order of its own: kinds by the names of their groups.
_PARTS = {name: {name: kind} for kind, name in _PLURALS.items()} | {"structured factors": KINDS}
_KINDS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


def write_native(model: GraphicalModel, file: IO[bytes]) -> None:
    """Write a model to an open binary file."""
    from safetensors.numpy import save

    arrays: dict[str, Array] = {
        "cardinalities": model.cardinalities,
        "unary": model.unaries,
        "constant": np.array([model.constant]),
    }
    for groups in (model.table_groups, model.budget_groups, model.structured_groups):
        for g, group in enumerate(groups):
            parts = {"scopes": group.scopes, **group.numbers, "index": group.index}
            parts |= {f"kind.{name}": array for name, array in group.kind.arrays().items()}
            prefix = f"{_PLURALS.get(type(group.kind), group.kind.name)}.{g}"
            arrays |= {f"{prefix}.{name}": array for name, array in parts.items()}
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # a single entry: safetensors writes several in random order, and equal models should give equal files
    file.write(save(contiguous, metadata={FORMAT: str(VERSION)}))


def read_native(path: Path, limits: Limits | None = None) -> GraphicalModel:
    """Read a model written by `write_native`."""
    arrays = _load(path, limits)
    place = "array cardinalities"
    try:
        cards = _take(arrays, "cardinalities", np.int64, 1)
        states = _take(arrays, "unary", np.float64, 1)
        if len(cards) and (cards.min() < 1 or int(cards.astype(np.float64).sum()) != len(states)):
            raise ValueError(f"Expected positive cardinalities that sum to {len(states)}")
        model = GraphicalModel(cards)
        place = "array unary"
        model.add_unaries(states)
        place = "array constant"
        model.add_table((), _take(arrays, "constant", np.float64, 1))
        for place in _PARTS:
            _in_order(model, _groups(arrays, _PARTS[place]))
    except (ValueError, IndexError) as error:
        fail(str(error), path, place)
    if arrays:
        fail(f"Expected the arrays of a model (got {shown(min(arrays))} as well)", path, "arrays")
    return model


def _load(path: Path, limits: Limits | None) -> dict[str, Array]:
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import load

    source = ByteStream(path, limits)
    try:
        if source.compressed:
            data = bytes(source.whole())
            arrays: dict[str, Array] = load(data)
            _read_header(BytesIO(data), path)
            return arrays
        # safetensors checks the header; NumPy reads the arrays, since safetensors panics when memory runs out
        with safe_open(str(path), framework="np"), path.open("rb") as file:
            header, start = _read_header(file, path), file.tell()
        arrays = {}
        for name, entry in header.items():
            shape, offset = entry["shape"], start + entry["data_offsets"][0]
            arrays[name] = np.fromfile(path, _KINDS[entry["dtype"]], math.prod(shape), offset=offset).reshape(shape)
        return arrays
    except InputError:
        raise
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        fail(f"is not a whole fgnn model file ({reason[:120]})", path, "header")


def _read_header(file: IO[bytes], path: Path) -> dict[str, Any]:
    """The entries of a valid safetensors header (eight bytes of length, then JSON), after a check of the metadata."""
    header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    version = header.pop("__metadata__", {}).get(FORMAT)
    if version is None:
        fail("Expected a model written by fgnn (got another safetensors file)", path, "header")
    if version != str(VERSION):
        fail(f"Expected version {VERSION} of the format (got {shown(str(version))})", path, "header")
    return header


def _take(arrays: dict[str, Array], name: str, dtype: type, dims: int | None = None) -> Array:
    """Pop an array and check its type."""
    if name not in arrays:
        raise ValueError(f"Expected an array {name} (got none)")
    array = arrays.pop(name)
    if array.dtype != dtype:
        raise ValueError(f"Expected {name} as {np.dtype(dtype)} (got {array.dtype})")
    if dims is not None and array.ndim != dims:
        raise ValueError(f"Expected {name} with {dims} axes (got {array.ndim})")
    return array


def _groups(arrays: dict[str, Array], kinds: Mapping[str, type[Kind]]) -> list[tuple[Kind, dict[str, Array]]]:
    """The groups that are named after these kinds, each with its scopes, its numbers and its index."""
    groups: list[tuple[Kind, dict[str, Array]]] = []
    while named := [name for name in kinds if f"{name}.{len(groups)}.scopes" in arrays]:
        kind, prefix = kinds[named[0]], f"{named[0]}.{len(groups)}"
        own = {f.name: _take(arrays, f"{prefix}.kind.{f.name}", np.int64) for f in fields(kind)}
        types = {"scopes": int, **kind.numbers, "index": int}
        group = {n: _take(arrays, f"{prefix}.{n}", np.int64 if t is int else np.float64) for n, t in types.items()}
        if len({array.shape[:1] for array in group.values()}) != 1 or group["index"].ndim != 1:
            raise ValueError(f"Expected arrays of one length in group {len(groups)}")
        groups.append((kind.from_arrays(own), group))
    return groups


def _in_order(model: GraphicalModel, groups: list[tuple[Kind, dict[str, Array]]]) -> None:
    """Add the factors of all groups in insertion order, a run of one group at a time."""
    if not groups:
        return
    indices = [group.pop("index") for _, group in groups]
    index = np.concatenate(indices)
    owner = np.repeat(np.arange(len(groups)), [len(own) for own in indices])
    row = np.concatenate([np.arange(len(own)) for own in indices])
    if not np.array_equal(np.sort(index), np.arange(len(index))):
        raise ValueError(f"Expected an index of 0..{len(index) - 1}, each once")
    order = np.argsort(index)
    owner, row = owner[order], row[order]
    breaks = np.flatnonzero((owner[1:] != owner[:-1]) | (row[1:] != row[:-1] + 1)) + 1
    edges = [0, *breaks.tolist(), len(index)] if len(index) else []
    for first, stop in pairwise(edges):
        kind, group = groups[int(owner[first])]
        rows = slice(int(row[first]), int(row[stop - 1]) + 1)
        model.add_factors(kind, **{name: array[rows] for name, array in group.items()})
