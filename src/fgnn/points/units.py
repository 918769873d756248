"""The unit of a scan's horizontal coordinates, from its projection or, for degrees, from its extent."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from fgnn.errors import InputError
from fgnn.points.cloud import CHUNK, Cloud, CloudReader
from fgnn.points.formats.geotiff import projection_tags

# Metres per unit.
UNITS = {"m": 1.0, "ft": 0.3048, "us-ft": 1200 / 3937}
# GeoTIFF codes of linear units; key 3076 states the unit of a projected system.
_LINEAR = {9001: "m", 9002: "ft", 9003: "us-ft"}
_UNIT_KEY, _MODEL_KEY, _GEOGRAPHIC = 3076, 1024, 2
_KEYS = 34735
_WKT = 2112
# In WKT the unit of the horizontal system comes before a vertical one.
_WKT_UNIT = re.compile(r'(?:LENGTHUNIT|UNIT)\["([^"]*)"\s*,\s*([0-9.eE+-]+)')


def unit_of(reader: CloudReader) -> str:
    """``m``, ``ft``, ``us-ft`` or ``degrees``, as the file states it; ``m`` where it states nothing."""
    keys = _keys(reader.header.keep)
    if keys.get(_MODEL_KEY) == _GEOGRAPHIC:
        return "degrees"
    if keys.get(_UNIT_KEY) in _LINEAR:
        return _LINEAR[keys[_UNIT_KEY]]
    wkt = _wkt(reader.header.keep)
    if wkt.startswith(("GEOGCS", "GEOGCRS")):
        return "degrees"
    for name, factor in _WKT_UNIT.findall(wkt):
        if "foot" in name.lower() or "feet" in name.lower():
            return "us-ft" if "us" in name.lower() or abs(float(factor) - UNITS["us-ft"]) < 1e-8 else "ft"
    return "m"


def refuse_degrees(reader: CloudReader) -> None:
    """Refuse longitude and latitude: distances in degrees mean nothing to a network or a filter."""
    degrees = unit_of(reader) == "degrees"
    header = reader.header.keep.get("las")
    if not degrees and header is not None and header.point_count > 1:
        low, high = np.array(header.mins), np.array(header.maxs)
        # a survey in degrees: within the globe, less than a degree wide, and far higher than it is wide
        globe = bool((np.abs([low[:2], high[:2]]) <= (180, 90)).all())
        wide, tall = float((high - low)[:2].max()), float((high - low)[2])
        degrees = globe and 0 < wide < 1 and tall > 100 * wide
    if degrees:
        raise InputError(
            "Expected projected coordinates (got degrees of longitude and latitude); reproject the scan, e.g. to UTM"
        )


class InMetres:
    """A scan whose coordinates are multiplied to metres as it is read."""

    def __init__(self, reader: CloudReader, factor: float) -> None:
        self.header, self._reader, self._factor = reader.header, reader, factor

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        for part in self._reader.chunks(size):
            yield Cloud(part.xyz * self._factor, part.fields, part.header)


def _keys(keep: Any) -> dict[int, int]:
    """The GeoTIFF keys of a LAS file that hold a number themselves."""
    data = projection_tags(keep).get(_KEYS, b"")
    numbers = struct.unpack(f"<{len(data) // 2}H", data[: len(data) // 2 * 2])
    entries = (numbers[k : k + 4] for k in range(4, len(numbers) - 3, 4))
    return {key: value for key, place, _, value in entries if place == 0}


def _wkt(keep: Any) -> str:
    header = keep.get("las")
    records = [] if header is None else [*header.vlrs, *(getattr(header, "evlrs", None) or [])]
    texts = [r.record_data_bytes() for r in records if r.record_id == _WKT]
    return texts[0].decode("utf-8", "replace").strip("\0 \n") if texts else ""
