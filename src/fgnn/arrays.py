"""Read NumPy files that may be broken or hostile: no pickled objects, and no array larger than its file."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fgnn.errors import InputError, reason
from fgnn.files import check_input, may_expand_to, read_input

_MOST_ARRAYS = 4096
# zipfile limits the output of the others only after a whole block
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)


def read_arrays(path: Path, most: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` archive, or the only one of an ``.npy`` file of at most ``most`` bytes."""
    try:
        if path.suffix.lower() == ".npy":
            return {"": _parse_npy(read_input(path, most))}
        check_input(path, most)
        return load_npz(path)
    except InputError:
        raise
    except Exception as error:  # NumPy and zipfile raise many kinds on junk
        raise InputError(f"cannot be read as {path.suffix} ({reason(error, 'not an array')})", file=path) from error


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an archive; what expands too far, or declares more than it holds, is refused before it is read."""
    most = may_expand_to(check_input(path))
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        if total > most:
            raise InputError(f"expands to {total} bytes, more than the {most} allowed for it", file=path)
        if len(members) > _MOST_ARRAYS:
            raise InputError(f"Expected at most {_MOST_ARRAYS} arrays (got {len(members)})", file=path)
        if any(member.compress_type not in _METHODS for member in members):
            raise InputError("Expected arrays stored, deflated or as LZMA", file=path)
        return {member.filename.removesuffix(".npy"): _parse_npy(archive.read(member)) for member in members}


def _parse_npy(data: bytes) -> NDArray[Any]:
    """The array of an NPY file, without a copy."""
    file = io.BytesIO(data)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(npy.read_magic(file))
    if read_header is None:
        raise ValueError("an unknown version of NPY")
    shape, fortran, dtype = read_header(file)
    count, rest = math.prod(shape), len(data) - file.tell()
    if count * dtype.itemsize != rest:
        raise ValueError(f"an array that declares {count * dtype.itemsize} bytes but has {rest}")
    flat = np.frombuffer(data, dtype, count, file.tell()) if rest else np.empty(0, dtype)
    return flat.reshape(shape[::-1]).transpose() if fortran else flat.reshape(shape)
