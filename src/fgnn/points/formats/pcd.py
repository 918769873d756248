"""PCD in its three encodings (ascii, binary, binary_compressed) through pypcd4."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fgnn.errors import InputError, need
from fgnn.files import atomic_write
from fgnn.points.cloud import CHUNK, Cloud, CloudHeader

_MAX_HEADER = 1 << 14


@dataclass(frozen=True, eq=False)
class PcdReader:
    """A PCD file; it is read whole, because its compressed form stores column after column."""

    path: Path
    header: CloudHeader

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        try:
            data = need("pypcd4").PointCloud.from_path(self.path).pc_data
        except (InputError, ImportError, OSError):
            raise
        except Exception as error:  # pypcd4 raises whatever its parts raise
            reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
            raise InputError(f"cannot be read as PCD ({reason})", file=self.path) from error
        if len(data) != self.header.count:
            raise InputError(f"ends after {len(data)} of {self.header.count} points", file=self.path)
        for at in range(0, len(data), size):
            rows = data[at : at + size]
            xyz = np.stack([rows[axis].astype(np.float64) for axis in "xyz"], axis=1)
            yield Cloud(xyz, {name: np.ascontiguousarray(rows[name]) for name in self.header.fields}, self.header)


def open_reader(path: Path) -> PcdReader:
    """Check the header of a PCD file by hand: sizes that the file cannot hold are not passed on."""
    with path.open("rb") as file:
        head = file.read(_MAX_HEADER)
    match = re.search(rb"^DATA[ \t]+(\S+)[ \t]*\r?\n", head, re.MULTILINE)
    if match is None:
        raise InputError("Expected a PCD header that ends with DATA", file=path)
    entries: dict[str, list[str]] = {}
    for line in head[: match.end()].decode("latin-1").splitlines():
        words = line.split()
        if words and not words[0].startswith("#"):
            entries[words[0].upper()] = words[1:]
    try:
        names, sizes, kinds = entries["FIELDS"], [int(s) for s in entries["SIZE"]], entries["TYPE"]
        counts = [int(c) for c in entries.get("COUNT", ["1"] * len(names))]
        count = int(entries["POINTS"][0])
        dtypes = [np.dtype(f"{k.lower()}{s}") for k, s in zip(kinds, sizes, strict=True)]
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise InputError("Expected FIELDS, SIZE, TYPE and POINTS that fit together", file=path) from error
    encoding = match.group(1).decode("latin-1")
    if encoding not in ("ascii", "binary", "binary_compressed"):
        raise InputError(f"Expected DATA ascii, binary or binary_compressed (got {encoding!r})", file=path)
    if not {"x", "y", "z"} <= set(names):
        raise InputError(f"Expected fields x, y and z (got {', '.join(names)})", file=path)
    if any(c != 1 for c in counts) or len(set(names)) != len(names) or len(dtypes) != len(names):
        raise InputError("Expected fields of one value each, each named once", file=path)
    size = path.stat().st_size - match.end()
    # LZF packs at most about 90 to 1; ascii takes two bytes a value
    least = {"ascii": 2 * len(names), "binary": sum(sizes), "binary_compressed": sum(sizes) / 100}[encoding] * count
    if count < 0 or least > size + 2:
        raise InputError(f"declares {count} points but has only {size} bytes for them", file=path)
    fields = {name: kind for name, kind in zip(names, dtypes, strict=True) if name not in "xyz"}
    coordinate = {name: kind for name, kind in zip(names, dtypes, strict=True) if name in "xyz"}
    keep: dict[str, Any] = {"encoding": encoding, "order": names, "coordinate": coordinate}
    return PcdReader(path, CloudHeader(".pcd", count, fields, keep))


def write(parts: Iterator[Cloud], path: Path, count: int) -> None:
    """Write PCD, binary unless the cloud came from another encoding."""
    pypcd4 = need("pypcd4")
    clouds = list(parts)
    first = clouds[0]
    keep = first.header.keep if first.header is not None and first.header.suffix == ".pcd" else {}
    order = [n for n in keep.get("order", "xyz") if n in "xyz" or n in first.fields]
    order += [n for n in first.fields if n not in order]
    columns, types = [], []
    for name in order:
        if name in "xyz":
            kind = keep.get("coordinate", {}).get(name, np.dtype(np.float64))
            columns.append(np.concatenate([c.xyz[:, "xyz".index(name)] for c in clouds]).astype(kind))
        else:
            column = np.concatenate([c.fields[name] for c in clouds])
            columns.append(column.astype(np.uint8) if column.dtype == np.bool_ else column)
        types.append(columns[-1].dtype.type)
    cloud = pypcd4.PointCloud.from_points(columns, tuple(order), tuple(types))
    encoding = pypcd4.Encoding(keep.get("encoding", "binary"))
    with atomic_write(path, "wb") as out:
        cloud.save(out, encoding=encoding)
