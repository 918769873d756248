"""Read tar files of runs into memory; only plain ones, which cannot expand or name places on disk."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath

from fgnn.errors import InputError

_MOST_MEMBERS = 10_000


def read_archive(path: str | Path) -> dict[str, bytes]:
    """Return the files of a tar file by name.

    Compressed archives, links, devices, sparse members, absolute names and names with ``..`` are refused, so the result
    is no larger than the tar file.
    """
    files: dict[str, bytes] = {}
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
                if len(data) != member.size:
                    raise InputError(f"Expected {member.size} bytes (got {len(data)})", file=path, place=member.name)
                if len(files) >= _MOST_MEMBERS:
                    raise InputError(f"Expected at most {_MOST_MEMBERS} files (got more)", file=path)
                files[str(name)] = data
    except OSError as error:
        raise InputError(error.strerror or str(error), file=path) from error
    except InputError:
        raise
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"cannot be read as a tar file ({error})", file=path) from error
    return files
