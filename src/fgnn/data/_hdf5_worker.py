"""Says where the arrays of HDF5 files lie, in a process of its own: one JSON line for each on standard input.

A file of two kilobytes can make libhdf5 take all the memory there is, so this process may have little of it, and little
time. It reads no values: the other side does that by the places it is told.
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

MEMORY = 128 << 20  # bytes above what the process has when it starts
SECONDS = 10  # of processor time for a file
ENTRY = 8  # bytes, the least that the index of a file spends on a chunk
SMALL = 1 << 16  # bytes that an array inside the index itself may have, by the format


class Refused(Exception):
    """The file is HDF5, but not such as is wanted."""


def places(file: str, names: list[str]) -> dict[str, Any]:
    """For every array its dtype, shape and place."""
    size = os.stat(file).st_size
    with h5py.File(file, "r") as content:  # 'r': a read-only disk is fine
        if content.userblock_size:
            raise Refused("Expected no user block")
        return {name: place(content, name, size) for name in names}


def place(content: h5py.File, name: str, size: int) -> dict[str, Any]:
    """One array, which must hold plain numbers and lie in this file and nowhere else."""
    if not isinstance(content.get(name, getlink=True), h5py.HardLink):
        raise Refused(f"Expected an array {name!r} in the file itself")
    found = content[name]
    if not isinstance(found, h5py.Dataset) or found.is_virtual or found.external:
        raise Refused(f"Expected an array {name!r} in the file itself")
    # a type of the same kind and size may still place its bits elsewhere
    if found.dtype.kind not in "iuf" or h5py.h5t.py_create(found.dtype) != found.id.get_type():
        raise Refused(f"Expected plain numbers in {name!r} (got {found.dtype})")
    if found.shape is None:
        raise Refused(f"Expected values in {name!r}")
    told: dict[str, Any] = {"dtype": found.dtype.str, "shape": found.shape}
    if found.chunks is not None:
        return told | {"chunk": found.chunks, "filters": filters(found), "chunks": chunks(found, size)}
    offset = found.id.get_offset()
    if offset is not None:
        return told | {"offset": offset}
    if found.id.get_create_plist().get_layout() != h5py.h5d.COMPACT or found.id.get_storage_size() > SMALL:
        raise Refused(f"Expected the values of {name!r} in the file")
    return told | {"values": base64.b64encode(found[()].tobytes()).decode("ascii")}


def filters(found: h5py.Dataset) -> list[int]:
    """The numbers of the filters that the chunks went through, in order."""
    made = found.id.get_create_plist()
    return [int(made.get_filter(k)[0]) for k in range(made.get_nfilters())]


def chunks(found: h5py.Dataset, size: int) -> list[tuple[int, int, int]]:
    """Offset, bytes and skipped filters of every chunk, in the order of `itertools.product`."""
    counts = [-(-length // step) for length, step in zip(found.shape, found.chunks, strict=True)]
    if math.prod(counts) * ENTRY > size:
        raise Refused(f"Expected chunks that a file of {size} bytes can hold (got {math.prod(counts)})")
    told = []
    for index in itertools.product(*map(range, counts)):
        info = found.id.get_chunk_info_by_coord(tuple(i * c for i, c in zip(index, found.chunks, strict=True)))
        if info.byte_offset is None:
            raise Refused(f"Expected all chunks of {found.name} in the file (got none at {index})")
        told.append((info.byte_offset, info.size, info.filter_mask))
    return told


def main() -> None:
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        asked = json.loads(line)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SECONDS, resource.RLIM_INFINITY))
        answer: dict[str, Any]
        try:
            answer = {"places": places(asked["file"], asked["names"])}
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
