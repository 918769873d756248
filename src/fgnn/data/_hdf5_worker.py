"""Subprocess that locates the arrays of HDF5 files: one JSON request per line of standard input.

A file of two kilobytes can make libhdf5 allocate all memory, so this process runs under limits of memory and time. It
returns layouts, not values: the parent reads those itself.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import h5py

MEMORY = 128 << 20  # bytes above the size of the process at its start
SECONDS = 10  # of CPU time per file
ENTRY = 8  # bytes: the least the index spends on a chunk
SMALL = 1 << 16  # bytes: the most an array inside the index may have, by the format


class Refused(Exception):
    """A valid HDF5 file with an array that is not accepted."""


def layouts(file: str, names: list[str]) -> dict[str, Any]:
    """The dtype, shape and location of each array."""
    size = os.stat(file).st_size
    with h5py.File(file, "r") as content:
        if content.userblock_size:
            raise Refused("Expected no user block")
        return {name: layout(content, name, size) for name in names}


def layout(content: h5py.File, name: str, size: int) -> dict[str, Any]:
    """One array, which must hold plain numbers and lie in this file."""
    if not isinstance(content.get(name, getlink=True), h5py.HardLink):
        raise Refused(f"Expected an array {name!r} in the file itself")
    array = content[name]
    if not isinstance(array, h5py.Dataset) or array.is_virtual or array.external:
        raise Refused(f"Expected an array {name!r} in the file itself")
    # a type of the same kind and size may still lay out its bits differently
    if array.dtype.kind not in "iuf" or h5py.h5t.py_create(array.dtype) != array.id.get_type():
        raise Refused(f"Expected plain numbers in {name!r} (got {array.dtype})")
    if array.shape is None:
        raise Refused(f"Expected values in {name!r}")
    result: dict[str, Any] = {"dtype": array.dtype.str, "shape": array.shape}
    if array.chunks is not None:
        created = array.id.get_create_plist()
        filters = [int(created.get_filter(k)[0]) for k in range(created.get_nfilters())]  # their ids, in order
        return result | {"chunk": array.chunks, "filters": filters, "chunks": chunks(array, size)}
    offset = array.id.get_offset()
    if offset is not None:
        return result | {"offset": offset}
    if array.id.get_create_plist().get_layout() != h5py.h5d.COMPACT or array.id.get_storage_size() > SMALL:
        raise Refused(f"Expected the values of {name!r} in the file")
    return result | {"values": base64.b64encode(array[()].tobytes()).decode("ascii")}


def chunks(array: h5py.Dataset, size: int) -> list[tuple[int, int, int]]:
    """Offset, size and mask of skipped filters of every chunk, in the order of `itertools.product`."""
    counts = [-(-length // step) for length, step in zip(array.shape, array.chunks, strict=True)]
    if math.prod(counts) * ENTRY > size:
        raise Refused(f"Expected chunks that a file of {size} bytes can hold (got {math.prod(counts)})")
    result = []
    for index in itertools.product(*map(range, counts)):
        info = array.id.get_chunk_info_by_coord(tuple(i * c for i, c in zip(index, array.chunks, strict=True)))
        if info.byte_offset is None:
            raise Refused(f"Expected all chunks of {array.name} in the file (got none at {index})")
        result.append((info.byte_offset, info.size, info.filter_mask))
    return result


def main() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        request = json.loads(line)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SECONDS, resource.RLIM_INFINITY))
        answer: dict[str, Any]
        try:
            answer = {"layouts": layouts(request["file"], request["names"])}
        except Refused as error:
            answer = {"refused": str(error)}
        except MemoryError:
            answer = {"refused": f"cannot be read as HDF5 (its index takes more than {MEMORY >> 20} MiB)"}
        except Exception as error:  # h5py raises many kinds on junk
            reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            answer = {"refused": f"cannot be read as HDF5 ({reason})"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
