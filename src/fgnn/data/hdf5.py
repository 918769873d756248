"""Arrays of numbers from HDF5 files, with nothing believed that a file says of its own sizes.

libhdf5 only says where in the file they lie, and does so in a process of its own, which a bad file can at worst end.
The values are read here, and what is compressed is expanded to no more than it may be.
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
from fgnn.files import may_expand_to

_WORKER = Path(__file__).with_name("_hdf5_worker.py")
_DEFLATE, _SHUFFLE = 1, 2  # the filters' numbers in the format


class Hdf5Reader:
    """Reads files one after another, for as long as it is open.

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
        """The arrays of these names.

        Args:
            file: The file.
            wanted: For each name the kinds of its dtype, as in ``numpy.dtype.kind``, and its shape: ``"S P 9"`` is an
                array of any S and P, which must be the same in all arrays, and 9. Further dimensions of length 1 are
                dropped.
        """
        try:
            with file.open("rb") as raw:
                size = file.stat().st_size
                answer = self._ask({"file": str(file.resolve()), "names": list(wanted)})
                if "refused" in answer:
                    raise InputError(answer["refused"], file=file)
                places: dict[str, dict[str, Any]] = answer["places"]
                shapes = _shapes(places, wanted, file)
                _check_sizes(places, size, file)
                return {name: _values(raw, places[name], size, file).reshape(shapes[name]) for name in wanted}
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror or error})", file=file) from error

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us; without us, its input ends and so does it
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
            self.__exit__()  # the next file has another
            return {"refused": f"cannot be read as HDF5 (libhdf5 ended with status {status})"}
        answer: dict[str, Any] = json.loads(line)
        return answer


def _shapes(
    places: Mapping[str, dict[str, Any]], wanted: Mapping[str, tuple[str, str]], file: Path
) -> dict[str, tuple[int, ...]]:
    """The shape of every array, or a refusal of those that do not fit."""
    lengths: dict[str, int] = {}
    shapes = {}
    for name, (kinds, pattern) in wanted.items():
        dims, shape, kind = pattern.split(), tuple(places[name]["shape"]), np.dtype(places[name]["dtype"])
        fits = len(shape) >= len(dims) and math.prod(shape[len(dims) :]) == 1 and 0 not in shape and kind.kind in kinds
        for dim, length in zip(dims, shape, strict=False):
            fits = fits and length == (int(dim) if dim.isdigit() else lengths.setdefault(dim, length))
        if not fits:
            told = ", ".join(f"{d} = {n}" for d, n in lengths.items())
            where = f" with {told}" if told else ""
            raise InputError(f"Expected {name!r} of shape ({pattern}){where} (got {kind} {shape})", file=file)
        shapes[name] = shape[: len(dims)]
    return shapes


def _check_sizes(places: Mapping[str, dict[str, Any]], size: int, file: Path) -> None:
    """Refuse arrays that take more memory, or more work, than a file of ``size`` bytes may ask for."""
    most = may_expand_to(size)
    for name, place in places.items():
        if set(place.get("filters", ())) - {_DEFLATE, _SHUFFLE}:
            raise InputError(f"Expected {name!r} plain or as gzip (got filters {place['filters']})", file=file)
    total = sum(
        np.dtype(place["dtype"]).itemsize
        * max(math.prod(place["shape"]), len(place.get("chunks", ())) * math.prod(place.get("chunk", ())))
        for place in places.values()
    )
    if total > most:
        raise InputError(f"expands to {total} bytes, more than the {most} allowed for it", file=file)


def _values(raw: IO[bytes], place: dict[str, Any], size: int, file: Path) -> NDArray[Any]:
    """The whole of an array."""
    shape, kind = tuple(place["shape"]), np.dtype(place["dtype"])
    if "values" in place:
        return np.frombuffer(base64.b64decode(place["values"]), kind)
    if "offset" in place:
        return np.frombuffer(_bytes(raw, place["offset"], math.prod(shape) * kind.itemsize, size, file), kind)
    chunk = tuple(place["chunk"])
    space = math.prod(chunk) * kind.itemsize
    values = np.empty(shape, kind)
    steps = itertools.product(*(range(0, length, step) for length, step in zip(shape, chunk, strict=True)))
    for begin, (offset, length, skipped) in zip(steps, place["chunks"], strict=True):
        filters = [f for k, f in enumerate(place["filters"]) if not skipped >> k & 1]
        plain = _plain(_bytes(raw, offset, length, size, file), filters, space, kind.itemsize)
        if len(plain) != space:
            raise InputError(f"Expected a chunk of {space} bytes at byte {offset} (got another size)", file=file)
        target = values[tuple(slice(b, b + c) for b, c in zip(begin, chunk, strict=True))]
        target[...] = np.frombuffer(plain, kind).reshape(chunk)[tuple(slice(0, n) for n in target.shape)]
    return values


def _bytes(raw: IO[bytes], offset: int, length: int, size: int, file: Path) -> bytes:
    if offset + length > size:
        raise InputError(f"Expected {length} bytes at byte {offset} (got the end of the file)", file=file)
    raw.seek(offset)
    return raw.read(length)


def _plain(data: bytes, filters: list[int], space: int, itemsize: int) -> bytes:
    """A chunk with its filters undone, last first; empty where it is cut short or expands beyond ``space``."""
    for kind in reversed(filters):
        if kind == _SHUFFLE:
            if len(data) != space:
                return b""
            data = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(itemsize, -1).T).tobytes()
        else:
            stream = zlib.decompressobj()
            try:
                data = stream.decompress(data, space + 1)
            except zlib.error:
                return b""
            if not stream.eof:
                return b""
    return data
