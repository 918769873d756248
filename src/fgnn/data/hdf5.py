"""Numeric arrays from untrusted HDF5 files.

libhdf5 only locates the arrays, in a subprocess that a bad file can at worst crash. The values are read here, with a
bound on how far compressed data may expand.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError, need
from fgnn.files import check_input, may_expand_to

_WORKER = Path(__file__).with_name("_hdf5_worker.py")
_DEFLATE, _SHUFFLE = 1, 2  # filter ids of the format


class Hdf5Reader:
    """Reads files with one subprocess, while it is open.

    Example:
        >>> with Hdf5Reader() as reader:  # doctest: +SKIP
        ...     arrays = reader.read(Path("a.h5"), {"data": ("f", "S P 9"), "label": ("iu", "S P")})
    """

    def __init__(self) -> None:
        need("h5py")
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def read(self, file: Path, wanted: Mapping[str, tuple[str, str]]) -> dict[str, NDArray[Any]]:
        """Read arrays by name.

        Args:
            wanted: For each name the allowed ``numpy.dtype.kind`` and the shape: in ``"S P 9"`` S and P may be any
                lengths, the same in all arrays. Further dimensions of length 1 are dropped.
        """
        size = check_input(file)
        try:
            with file.open("rb") as raw:
                answer = self._ask({"file": str(file.resolve()), "names": list(wanted)})
                if "refused" in answer:
                    raise InputError(answer["refused"], file=file)
                layouts: dict[str, dict[str, Any]] = answer["layouts"]
                shapes = _shapes(layouts, wanted, file)
                _check_sizes(layouts, size, file)
                return {name: _values(raw, layouts[name], size, file).reshape(shapes[name]) for name in wanted}
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror or error})", file=file) from error

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # no Ctrl-C for the child; it ends when its input does
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            status = self._child.wait()
            self.__exit__()  # the next file starts another
            return {"refused": f"cannot be read as HDF5 (libhdf5 ended with status {status})"}
        answer: dict[str, Any] = json.loads(line)
        return answer


def _shapes(
    layouts: Mapping[str, dict[str, Any]], wanted: Mapping[str, tuple[str, str]], file: Path
) -> dict[str, tuple[int, ...]]:
    """The shape of every array; raises `InputError` if one does not fit."""
    lengths: dict[str, int] = {}
    shapes = {}
    for name, (kinds, pattern) in wanted.items():
        dims, shape, kind = pattern.split(), tuple(layouts[name]["shape"]), np.dtype(layouts[name]["dtype"])
        fits = len(shape) >= len(dims) and math.prod(shape[len(dims) :]) == 1 and 0 not in shape and kind.kind in kinds
        for dim, length in zip(dims, shape, strict=False):
            fits = fits and length == (int(dim) if dim.isdigit() else lengths.setdefault(dim, length))
        if not fits:
            sizes = ", ".join(f"{d} = {n}" for d, n in lengths.items())
            condition = f" with {sizes}" if sizes else ""
            raise InputError(f"Expected {name!r} of shape ({pattern}){condition} (got {kind} {shape})", file=file)
        shapes[name] = shape[: len(dims)]
    return shapes


def _check_sizes(layouts: Mapping[str, dict[str, Any]], size: int, file: Path) -> None:
    """Reject arrays that expand to more memory than a file of ``size`` bytes may take."""
    most = may_expand_to(size)
    for name, layout in layouts.items():
        if set(layout.get("filters", ())) - {_DEFLATE, _SHUFFLE}:
            raise InputError(f"Expected {name!r} plain or as gzip (got filters {layout['filters']})", file=file)
    total = sum(
        np.dtype(layout["dtype"]).itemsize
        * max(math.prod(layout["shape"]), len(layout.get("chunks", ())) * math.prod(layout.get("chunk", ())))
        for layout in layouts.values()
    )
    if total > most:
        raise InputError(f"expands to {total} bytes, more than the {most} allowed for it", file=file)


def _values(raw: IO[bytes], layout: dict[str, Any], size: int, file: Path) -> NDArray[Any]:
    """All values of an array."""
    shape, kind = tuple(layout["shape"]), np.dtype(layout["dtype"])
    if "values" in layout:
        return np.frombuffer(base64.b64decode(layout["values"]), kind)
    if "offset" in layout:
        return np.frombuffer(_bytes(raw, layout["offset"], math.prod(shape) * kind.itemsize, size, file), kind)
    chunk = tuple(layout["chunk"])
    chunk_bytes = math.prod(chunk) * kind.itemsize
    values = np.empty(shape, kind)
    steps = itertools.product(*(range(0, length, step) for length, step in zip(shape, chunk, strict=True)))
    for begin, (offset, length, skipped) in zip(steps, layout["chunks"], strict=True):
        filters = [f for k, f in enumerate(layout["filters"]) if not skipped >> k & 1]
        plain = _decode(_bytes(raw, offset, length, size, file), filters, chunk_bytes, kind.itemsize)
        if len(plain) != chunk_bytes:
            raise InputError(f"Expected a chunk of {chunk_bytes} bytes at byte {offset} (got another size)", file=file)
        target = values[tuple(slice(b, b + c) for b, c in zip(begin, chunk, strict=True))]
        target[...] = np.frombuffer(plain, kind).reshape(chunk)[tuple(slice(0, n) for n in target.shape)]
    return values


def _bytes(raw: IO[bytes], offset: int, length: int, size: int, file: Path) -> bytes:
    if offset + length > size:
        raise InputError(f"Expected {length} bytes at byte {offset} (got the end of the file)", file=file)
    raw.seek(offset)
    return raw.read(length)


def _decode(data: bytes, filters: list[int], size: int, itemsize: int) -> bytes:
    """Undo the filters of a chunk, last first; empty if it is truncated or expands beyond ``size``."""
    for kind in reversed(filters):
        if kind == _SHUFFLE:
            if len(data) != size:
                return b""
            data = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(itemsize, -1).T).tobytes()
        else:
            stream = zlib.decompressobj()
            try:
                data = stream.decompress(data, size + 1)
            except zlib.error:
                return b""
            if not stream.eof:
                return b""
    return data
