"""Write a grid of heights as GeoTIFF: one band of float32, deflated, with the projection of the scan where it is known.

TIFF 6.0 and the GeoTIFF tags are all that is needed, so there is no dependency on GDAL.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.files import atomic_write

# TIFF types and their sizes in bytes.
_ASCII, _SHORT, _LONG, _DOUBLE = 2, 3, 4, 12
_SIZES = {_ASCII: 1, _SHORT: 2, _LONG: 4, _DOUBLE: 8}
_KEYS, _DOUBLES, _TEXTS = 34735, 34736, 34737
_EPSG = re.compile(r'(?:AUTHORITY\["EPSG","|ID\["EPSG",)(\d+)')
_ROWS_PER_STRIP = 64
_LARGEST = (1 << 32) - 1


def write_geotiff(
    path: str | Path, heights: NDArray[np.float32], west: float, north: float, cell: float,
    projection: Mapping[int, bytes] | None = None,
) -> None:  # fmt: skip
    """Write a grid whose first row is the northernmost; NaN means no data.

    Args:
        west, north: The outer corner of the first cell.
        cell: Side of a cell.
        projection: GeoTIFF tags, from `projection_tags`.
    """
    rows, columns = heights.shape
    with atomic_write(path, "wb") as out:
        out.write(struct.pack("<2sHI", b"II", 42, 0))
        offsets, counts = [], []
        for start in range(0, rows, _ROWS_PER_STRIP):
            strip = zlib.compress(np.ascontiguousarray(heights[start : start + _ROWS_PER_STRIP], "<f4").tobytes(), 6)
            offsets.append(out.tell())
            counts.append(len(strip))
            out.write(strip)
            if out.tell() > _LARGEST - (1 << 20):
                raise ValueError("Expected a terrain model below 4 GiB; use a larger cell")
        tags: dict[int, tuple[int, bytes]] = {
            256: (_LONG, struct.pack("<I", columns)),
            257: (_LONG, struct.pack("<I", rows)),
            258: (_SHORT, struct.pack("<H", 32)),
            259: (_SHORT, struct.pack("<H", 8)),  # deflate
            262: (_SHORT, struct.pack("<H", 1)),
            273: (_LONG, struct.pack(f"<{len(offsets)}I", *offsets)),
            277: (_SHORT, struct.pack("<H", 1)),
            278: (_LONG, struct.pack("<I", _ROWS_PER_STRIP)),
            279: (_LONG, struct.pack(f"<{len(counts)}I", *counts)),
            339: (_SHORT, struct.pack("<H", 3)),  # floating point
            33550: (_DOUBLE, struct.pack("<3d", cell, cell, 0.0)),
            33922: (_DOUBLE, struct.pack("<6d", 0, 0, 0, west, north, 0)),
            42113: (_ASCII, b"nan\0"),
        }
        types = {_KEYS: _SHORT, _DOUBLES: _DOUBLE, _TEXTS: _ASCII}
        tags |= {tag: (types[tag], value) for tag, value in (projection or {}).items() if value}
        _write_directory(out, tags)


def _write_directory(out: Any, tags: Mapping[int, tuple[int, bytes]]) -> None:
    """Append the values that do not fit their entry, then the directory, and point the header to it."""
    entries = []
    for tag, (kind, value) in sorted(tags.items()):
        count = len(value) // _SIZES[kind]
        if len(value) > 4:
            out.write(b"\0" * (out.tell() % 2))
            place = out.tell()
            out.write(value)
            value = struct.pack("<I", place)
        entries.append(struct.pack("<HHI", tag, kind, count) + value.ljust(4, b"\0"))
    out.write(b"\0" * (out.tell() % 2))
    place = out.tell()
    out.write(struct.pack("<H", len(entries)) + b"".join(entries) + struct.pack("<I", 0))
    out.seek(4)
    out.write(struct.pack("<I", place))


def projection_tags(keep: Mapping[str, Any]) -> dict[int, bytes]:
    """GeoTIFF tags of the projection that a LAS file states, by its records or by the EPSG code of its WKT.

    Args:
        keep: What the header of a cloud keeps of its file.
    """
    header = keep.get("las")
    records = [] if header is None else [*header.vlrs, *(getattr(header, "evlrs", None) or [])]
    found = {r.record_id: r.record_data_bytes() for r in records if r.user_id.strip("\0") == "LASF_Projection"}
    tags = {tag: found[tag] for tag in (_KEYS, _DOUBLES, _TEXTS) if tag in found}
    codes = _EPSG.findall(found.get(2112, b"").decode("utf-8", "replace"))
    if _KEYS not in tags and codes:
        # model type: projected; raster type: pixel is area; the code of the projected system, stated last in WKT
        keys = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, int(codes[-1]) & 0xFFFF)
        tags = {_KEYS: struct.pack(f"<{len(keys)}H", *keys)}
    return tags
