"""Frames of a rotating scanner as KITTI stores them: ``.bin`` with x, y, z and intensity as float32, nothing else.

Labels lie in a ``.label`` file of the same name, one uint32 per point: the class in the lower 16 bits, the instance in
the upper (SemanticKITTI). It is looked for beside the frame and in a folder ``labels`` beside the frame's own folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError
from fgnn.files import atomic_write, check_input
from fgnn.points.cloud import CHUNK, Cloud, CloudHeader
from fgnn.points.formats.records import RecordReader, records
from fgnn.points.formats.storable import check_values, refuse

_POINT = np.dtype([(name, "<f4") for name in ("x", "y", "z", "intensity")])
_LABELS = ("label", "instance")


@dataclass(frozen=True, eq=False)
class KittiReader(RecordReader):
    """A frame in chunks, with its labels if there are any."""

    labels: Path | None

    def records(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        return self.binary(file, size)

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        packed = None if self.labels is None else np.fromfile(self.labels, "<u4")
        at = 0
        for part in RecordReader.chunks(KittiReader(self.path, self._frame(), self.dtype, 0, None), size):
            fields = dict(part.fields)
            if packed is not None:
                here = packed[at : at + len(part)]
                fields |= {"label": (here & 0xFFFF).astype(np.uint16), "instance": (here >> 16).astype(np.uint16)}
            at += len(part)
            yield Cloud(part.xyz, fields, self.header)

    def _frame(self) -> CloudHeader:
        fields = {name: kind for name, kind in self.header.fields.items() if name not in _LABELS}
        return CloudHeader(".bin", self.header.count, fields)


def open_reader(path: Path) -> KittiReader:
    """Open a frame; the length of the file is the number of points."""
    size = path.stat().st_size
    if size % _POINT.itemsize:
        raise InputError(
            f"Expected points of {_POINT.itemsize} bytes, x, y, z and intensity (got {size} bytes)", file=path
        )
    count = size // _POINT.itemsize
    fields: dict[str, np.dtype[Any]] = {"intensity": np.dtype(np.float32)}
    beside = (path.with_suffix(".label"), path.parent.parent / "labels" / f"{path.stem}.label")
    labels = next((file for file in beside if file.is_file()), None)
    if labels is not None:
        check_input(labels)
        if labels.stat().st_size != 4 * count:
            raise InputError(f"Expected {count} labels of 4 bytes (got {labels.stat().st_size} bytes)", file=labels)
        fields |= dict.fromkeys(_LABELS, np.dtype(np.uint16))
    return KittiReader(path, CloudHeader(".bin", count, fields), _POINT, 0, labels)


def check(first: Cloud, part: Cloud, path: Path) -> None:
    """A frame holds intensity, and its label file classes and instances of 16 bits; no confidence."""
    for name, values in part.fields.items():
        if name in _LABELS:
            check_values(name, values, np.dtype(np.uint16), path)
        elif name == "intensity":
            check_values(name, values, np.dtype(np.float32), path)
        elif name != "confidence":
            raise refuse(name, "a frame has intensity, label and instance only", path)


def write(first: Cloud, parts: Iterable[Cloud], path: Path, count: int) -> None:
    """Write a frame and, if the cloud has them, its labels beside it; confidence has no place in either."""
    if "intensity" not in first.fields:
        parts = (part.with_fields(intensity=np.zeros(len(part), np.float32)) for part in parts)
    packed: list[NDArray[Any]] = []
    with atomic_write(path, "wb") as out:
        for part in parts:
            out.write(records(part, _POINT).tobytes())
            if any(name in part.fields for name in _LABELS):
                zeros = np.zeros(len(part), np.uint32)
                label, instance = (part.fields.get(name, zeros).astype(np.uint32) for name in _LABELS)
                packed.append(label | instance << 16)
    if packed:
        with atomic_write(path.with_suffix(".label"), "wb") as out:
            out.write(np.concatenate(packed).astype("<u4").tobytes())
