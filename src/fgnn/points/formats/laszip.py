"""Check the compression records of a LAZ file before the backend trusts them.

The backend allocates memory for the number of chunks and the size of points that the file declares, and aborts the
process if it cannot; so every declared size is first checked against the file.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import IO, Any

from fgnn.errors import InputError, need

_RECORD = struct.Struct("<HHBBHIIqqH")
_ITEM = struct.Struct("<HHH")
# Every chunk begins with an uncompressed point, and no point is smaller than this.
_LEAST_CHUNK = 20
# Items of a point by compressor: type -> size, None if it varies.
_ITEMS: dict[int, dict[int, int | None]] = {
    1: {0: None, 6: 20, 7: 8, 8: 6, 9: 29},  # point by point, in one run without a table (files of LAS 1.0)
    2: {0: None, 6: 20, 7: 8, 8: 6, 9: 29},  # point by point, in chunks
    3: {10: 30, 11: 6, 12: 8, 13: 29, 14: None},  # in layers
}
# Layers per item; an item of extra bytes has one per byte.
_LAYERS = {10: 9, 11: 1, 12: 2, 13: 1}
# The backend holds a whole chunk; writers use chunks of 50,000 points, or a single one.
_MOST_CHUNK_POINTS = 1 << 18
_VARIABLE = 0xFFFFFFFF


class _Refusal(Exception):
    """Why the file is rejected."""


def check_laszip(raw: IO[bytes], header: Any, path: Path) -> None:
    """Reject a LAZ file whose compression record, chunk table or layers contradict the file.

    Args:
        raw: The open file; its position is restored.
        header: laspy's header.
        path: For messages.
    """
    at = raw.tell()
    try:
        record = next((v.record_data for v in header.vlrs if type(v).__name__ == "LasZipVlr"), b"")
        most = max(_MOST_CHUNK_POINTS, int(header.point_count))
        layers, chunk = _check_record(record, header.point_format.size, most)
        if record[0] > 1:
            _check_chunks(raw, header, record, layers, chunk, most)
    except (_Refusal, struct.error) as error:
        what = str(error) if isinstance(error, _Refusal) else "it ends in the middle"
        raise InputError(f"cannot be read as LAS/LAZ ({what})", file=path) from error
    finally:
        raw.seek(at)


def _check_record(record: bytes, point_size: int, most: int) -> tuple[int, int]:
    """The number of layers per point (0 without layers) and the points per chunk."""
    if len(record) < _RECORD.size:
        raise _Refusal("no record of its compression")
    compressor, coder, _, _, _, _, chunk, _, _, count = _RECORD.unpack_from(record)
    items = _ITEMS.get(compressor)
    if items is None or coder != 0:
        raise _Refusal(f"compressed in an unknown way, {compressor} and {coder}")
    if not 1 <= count <= len(items):
        raise _Refusal(f"its compression record declares {count} items")
    total = layers = 0
    for n in range(count):
        kind, size, _ = _ITEM.unpack_from(record, _RECORD.size + n * _ITEM.size)
        if kind not in items or items[kind] not in (None, size):
            raise _Refusal(f"its compression record has an unknown item, {kind} of {size} bytes")
        total += size
        layers += _LAYERS.get(kind, size) if compressor == 3 else 0
    if total != point_size:
        raise _Refusal(f"points of {point_size} bytes compressed as {total}")
    if (chunk != _VARIABLE or compressor == 1) and not 1 <= chunk <= most:
        raise _Refusal(f"declares chunks of {chunk} points")
    return layers, chunk


def _check_chunks(raw: IO[bytes], header: Any, record: bytes, layers: int, chunk: int, most: int) -> None:
    """Check the chunk table against the file, and the layers of every chunk against the chunk."""
    begin, size = int(header.offset_to_point_data), raw.seek(0, os.SEEK_END)
    (table,) = struct.unpack("<q", _exactly(raw, begin, 8))
    if table == -1:  # streamed output: the offset of the table is at the end
        (table,) = struct.unpack("<q", _exactly(raw, size - 8, 8))
    if not begin + 8 <= table <= size - 8:
        raise _Refusal("its chunk table lies outside the file")
    _, chunks = struct.unpack("<II", _exactly(raw, table, 8))
    if chunks * _LEAST_CHUNK > table - begin:
        raise _Refusal(f"declares {chunks} chunks in {table - begin} bytes")
    if chunk != _VARIABLE and chunks * chunk < header.point_count:
        raise _Refusal(f"declares {header.point_count} points in {chunks} chunks of {chunk}")
    lazrs = need("lazrs")
    raw.seek(begin)
    try:
        listed = lazrs.read_chunk_table(raw, lazrs.LazVlr(record)) if chunks else []
    except lazrs.LazrsError as error:
        raise _Refusal("its chunk table cannot be read") from error
    at, point = begin + 8, header.point_format.size
    for points, length in listed:
        if at + length > table or points > most:
            raise _Refusal(f"declares a chunk of {points} points in {length} bytes")
        if layers:
            head = _exactly(raw, at + point, 4 + 4 * layers)
            layered, *sizes = struct.unpack(f"<{1 + layers}I", head)
            if layered > max(points, 1) or point + len(head) + sum(sizes) > length:
                raise _Refusal(f"declares {layered} points in layers of {sum(sizes)} bytes in a chunk of {length}")
        at += length


def _exactly(raw: IO[bytes], at: int, count: int) -> bytes:
    raw.seek(at)
    return raw.read(count)
