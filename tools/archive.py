"""Tar files of runs, read into memory: only plain ones, so that nothing expands and no name is a place on disk."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath

from fgnn.errors import InputError

_MOST_MEMBERS = 10_000


def read_archive(path: str | Path) -> dict[str, bytes]:
    """The files of a tar file by name.

    Compressed archives, links, devices, sparse members, absolute names and names with ``..`` are refused; what is left
    is no larger than the tar file itself.
    """
    found: dict[str, bytes] = {}
    try:
        # "r:" opens plain tar files only
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts:
                    raise InputError("Expected names inside the archive", file=path, place=member.name)
                if member.isdir():
                    continue
                if not member.isreg() or member.sparse is not None:
                    raise InputError("Expected plain files and folders", file=path, place=member.name)
                content = tar.extractfile(member)
                data = content.read() if content is not None else b""
                if len(data) != member.size or len(found) >= _MOST_MEMBERS:
                    what = f"Expected {member.size} bytes (got {len(data)})"
                    many = f"Expected at most {_MOST_MEMBERS} files (got more)"
                    raise InputError(what if len(data) != member.size else many, file=path, place=member.name)
                found[str(name)] = data
    except OSError as error:
        raise InputError(error.strerror or str(error), file=path) from error
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot be read as a tar file ({error})", file=path) from error
    return found
