"""Entwine point tiles (EPT): an octree of small files behind one ``ept.json``, read node by node.

Every point is in exactly one node, so the nodes in order are the whole cloud. The hierarchy comes in pages; one page
and one chunk of a node are in memory at a time. EPT is read but not written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fgnn.errors import InputError, need
from fgnn.files import check_input, read_text
from fgnn.points.cloud import AXES, CHUNK, Cloud, CloudHeader
from fgnn.points.formats import las

_MOST_JSON = 1 << 26  # bytes
_ROOT = "0-0-0-0"
# A node: its depth, then its place along x, y and z.
_NODE = re.compile(r"\d{1,2}(-\d{1,10}){3}")
_MOST_DIMENSIONS = 256
_KINDS = {"signed": "i", "unsigned": "u", "float": "f"}
_SIZES = {"signed": (1, 2, 4, 8), "unsigned": (1, 2, 4, 8), "float": (4, 8)}
_PAGE = -1  # instead of a count: the node is described on a page of its own


@dataclass(frozen=True)
class Dimension:
    """A column of the schema: value = stored * scale + offset."""

    name: str
    dtype: np.dtype[Any]
    scale: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True, eq=False)
class EptReader:
    """A folder of point tiles in chunks."""

    path: Path  # of ept.json
    header: CloudHeader
    binary: tuple[Dimension, ...]  # of uncompressed nodes; none for LAZ

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        count = 0
        for node, stated in nodes(self.path.parent):
            held = 0
            for part in self._node(node, stated, size):
                held += len(part)
                yield part
            if held != stated:
                raise InputError(f"Expected {stated} points in node {node} (got {held})", file=self.path)
            count += held
        if count != self.header.count:
            raise InputError(f"Expected {self.header.count} points in all nodes (got {count})", file=self.path)

    def _node(self, node: str, count: int, size: int) -> Iterator[Cloud]:
        data = self.path.parent / "ept-data"
        if self.binary:
            yield from self._records(data / f"{node}.bin", count, size)
            return
        file = data / f"{node}.laz"
        check_input(file)
        reader = las.open_reader(file)
        if dict(reader.header.fields) != dict(self.header.fields):
            raise InputError("Expected the fields of the first node", file=file)
        for part in reader.chunks(size):
            yield replace(part, header=self.header)

    def _records(self, file: Path, count: int, size: int) -> Iterator[Cloud]:
        row = np.dtype([(d.name, d.dtype) for d in self.binary])
        held = check_input(file)
        if held != count * row.itemsize:
            raise InputError(f"Expected {count * row.itemsize} bytes, {count} points (got {held})", file=file)
        by_name = {d.name: d for d in self.binary}
        with file.open("rb") as source:
            for start in range(0, count, size):
                rows = np.fromfile(source, row, min(size, count - start))
                columns = {name: _values(rows[name], by_name[name]) for name in by_name}
                xyz = np.stack([columns.pop(axis).astype(np.float64) for axis in AXES], axis=1)
                yield Cloud(xyz, columns, self.header)


def open_reader(path: Path) -> EptReader:
    """Read ``ept.json``, and of tiles in LAZ the header of the first node."""
    about = _mapping(path)
    kind, count = about.get("dataType"), about.get("points")
    if kind not in ("laszip", "binary"):
        raise InputError(f"Expected nodes in laszip or binary (got {str(kind)[:40]!r})", file=path, place="dataType")
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 1 << 48:
        raise InputError("Expected a number of points", file=path, place="points")
    if kind == "binary":
        dimensions = _schema(about.get("schema"), path)
        fields = {d.name: _stored_as(d) for d in dimensions if d.name not in AXES}
        return EptReader(path, CloudHeader(".laz", count, fields), dimensions)
    first = next((node for node, stated in nodes(path.parent) if stated), None)
    if first is None:
        raise InputError("Expected a node with points (got none)", file=path)
    file = path.parent / "ept-data" / f"{first}.laz"
    check_input(file)
    node = las.open_reader(file).header
    return EptReader(path, replace(node, count=count, keep={"las": _whole(node.keep["las"], about, path)}), ())


def nodes(folder: Path) -> Iterator[tuple[str, int]]:
    """The nodes of the octree with points, and how many each has; one page of the hierarchy is held for each level."""
    seen = {_ROOT}
    pages = [iter(_page(folder, _ROOT))]
    while pages:
        node, count = next(pages[-1], (None, 0))
        if node is None:
            pages.pop()
        elif count == _PAGE:
            if node in seen:
                raise InputError(f"Expected each page once (got {node} again)", file=folder / "ept-hierarchy")
            seen.add(node)
            pages.append(iter(_page(folder, node)))
        elif count:
            yield node, count


def _page(folder: Path, node: str) -> list[tuple[str, int]]:
    file = folder / "ept-hierarchy" / f"{node}.json"
    entries = _mapping(file)
    for key, count in entries.items():
        if not _NODE.fullmatch(key):
            raise InputError("Expected nodes D-X-Y-Z", file=file, place=key[:40])
        if not isinstance(count, int) or isinstance(count, bool) or count < _PAGE or count > 1 << 40:
            raise InputError("Expected a number of points, or -1", file=file, place=key)
    # a page names its own node with a count; the same entry on the page above is the reference
    return sorted(entries.items(), key=lambda entry: [int(n) for n in entry[0].split("-")])


def _mapping(file: Path) -> dict[str, Any]:
    check_input(file, _MOST_JSON)
    try:
        values = json.loads(read_text(file, _MOST_JSON))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"cannot be read as JSON ({error})", file=file) from error
    if not isinstance(values, dict):
        raise InputError("Expected a mapping", file=file)
    return values


def _schema(given: Any, path: Path) -> tuple[Dimension, ...]:
    if not isinstance(given, list) or not 3 <= len(given) <= _MOST_DIMENSIONS:
        raise InputError(f"Expected 3 to {_MOST_DIMENSIONS} dimensions", file=path, place="schema")
    dimensions = tuple(_dimension(entry, path, f"schema.{n}") for n, entry in enumerate(given))
    names = [d.name for d in dimensions]
    if len(set(names)) < len(names) or not set(AXES) <= set(names):
        raise InputError("Expected X, Y and Z, and no name twice", file=path, place="schema")
    return dimensions


def _dimension(entry: Any, path: Path, place: str) -> Dimension:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str) or not 0 < len(entry["name"]) <= 64:
        raise InputError("Expected a dimension with a name", file=path, place=place)
    kind, size = entry.get("type"), entry.get("size")
    if kind not in _KINDS or size not in _SIZES[kind]:
        raise InputError("Expected type signed, unsigned or float, and a size that it has", file=path, place=place)
    scale, offset = entry.get("scale", 1), entry.get("offset", 0)
    if not all(isinstance(v, int | float) and np.isfinite(v) for v in (scale, offset)) or not scale:
        raise InputError("Expected a finite scale and offset", file=path, place=place)
    # ReturnNumber -> return_number, as LAS files are read
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", entry["name"]).lower()
    return Dimension(name, np.dtype(f"<{_KINDS[kind]}{size}"), float(scale), float(offset))


def _stored_as(dimension: Dimension) -> np.dtype[Any]:
    plain = (dimension.scale, dimension.offset) == (1.0, 0.0)
    return dimension.dtype.newbyteorder("=") if plain else np.dtype(np.float64)


def _values(stored: np.ndarray, dimension: Dimension) -> np.ndarray:
    if (dimension.scale, dimension.offset) == (1.0, 0.0):
        return stored.astype(dimension.dtype.newbyteorder("="))
    return stored * dimension.scale + dimension.offset


def _whole(header: Any, about: Mapping[str, Any], path: Path) -> Any:
    """The header of a node, with the extent and the projection of the whole cloud."""
    bounds = about.get("boundsConforming", about.get("bounds"))
    if not isinstance(bounds, list) or len(bounds) != 6 or not all(isinstance(v, int | float) for v in bounds):
        raise InputError("Expected six numbers", file=path, place="bounds")
    whole = deepcopy(header)
    whole.mins, whole.maxs = np.array(bounds[:3], np.float64), np.array(bounds[3:], np.float64)
    srs = about.get("srs")
    wkt = srs.get("wkt") if isinstance(srs, Mapping) else None
    known = {getattr(record, "record_id", None) for record in whole.vlrs}
    if isinstance(wkt, str) and wkt and not known & {2112, 34735}:
        record = need("laspy").vlrs.known.WktCoordinateSystemVlr(wkt)
        whole.vlrs.append(record)
        whole.global_encoding.wkt = whole.version.minor >= 4
    return whole
