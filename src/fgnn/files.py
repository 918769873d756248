"""Write files atomically; check paths that users or other files name before they are opened."""

from __future__ import annotations

import glob
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from types import ModuleType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # no POSIX locks: leftover files are not removed
    fcntl = None

_YOUNG_SECONDS = 60.0
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


@contextmanager
def atomic_write(path: str | Path, mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path`` that replaces it when the block ends without an error.

    Readers see the old file or the new one, never a part; after an error or a kill the old one is unchanged.
    """
    target = Path(path)
    if "b" not in mode:
        options.setdefault("encoding", "utf-8")
    _sweep(target)
    name = ""
    try:
        handle, name = _create_part(target)
        with os.fdopen(handle, mode, **options) as file:
            _claim(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException as error:
        if name:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and (not name or error.filename in (None, name)):
            error.filename = str(target)  # users know the target, not the temporary file
        raise


def _create_part(target: Path) -> tuple[int, str]:
    """Create a temporary file beside ``target`` with the permissions that the system gives to new files.

    Not `tempfile.mkstemp`: its files are private, and the umask cannot be read without setting it for all threads.
    """
    while True:
        name = target.parent / f".{target.name}.{secrets.token_hex(4)}.part"
        with suppress(FileExistsError):
            return os.open(name, _NEW_FILE, 0o666), str(name)


def write_npy(file: IO[bytes], array: NDArray[Any]) -> None:
    """Write an array as NPY. On real files `numpy.save` writes in C, which does not report a full disk."""

    class Plain:
        write = staticmethod(file.write)

    np.save(Plain(), array, allow_pickle=False)


def check_folder(path: str | Path) -> Path:
    """Create a folder and check that files can be written there, before long work rather than after it."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        error.filename = str(folder)
        raise


def _claim(handle: int) -> None:
    """Lock a file that is being written; the lock ends with the process."""
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sweep(target: Path) -> None:
    """Remove the unlocked temporary files of killed writers of ``target``."""
    if fcntl is None:
        return
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        with suppress(OSError):
            handle = os.open(left, os.O_RDWR)
            try:
                # a younger file may not be locked yet
                if time.time() - os.fstat(handle).st_mtime > _YOUNG_SECONDS:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    left.unlink()
            finally:
                os.close(handle)


def check_input(path: str | Path, most: int | None = None) -> int:
    """Return the size of a file to read; reject anything but a regular file of at most ``most`` bytes.

    Opening a pipe would block, and reading a device might never end.
    """
    file = Path(path)
    try:
        status = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("no such file", file=file) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(getattr(error, "strerror", None) or str(error), file=file) from error
    if S_ISDIR(status.st_mode):
        raise InputError("Expected a file (got a folder)", file=file)
    if not S_ISREG(status.st_mode):
        raise InputError("Expected a file (got a pipe, a socket or a device)", file=file)
    if most is not None and status.st_size > most:
        raise InputError(f"Expected a file of at most {most} bytes (got {status.st_size})", file=file)
    return status.st_size


def read_input(path: str | Path, most: int) -> bytes:
    """Read a whole file of at most ``most`` bytes; see `check_input`."""
    check_input(path, most)
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)  # files of the kernel declare a size of 0
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", file=path) from error
    if len(data) > most:
        raise InputError(f"Expected a file of at most {most} bytes (got more)", file=path)
    return data


def read_text(path: str | Path, most: int) -> str:
    """Read a whole UTF-8 file of at most ``most`` bytes; see `check_input`."""
    try:
        return read_input(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("Expected UTF-8 text (got other bytes)", file=path) from error


def same_file(a: str | Path, b: str | Path) -> bool:
    """Whether two paths name one file, through links as well, or would if it existed."""
    try:
        return os.path.samefile(a, b)
    except OSError:
        return os.path.realpath(a) == os.path.realpath(b)


def is_file(path: str | Path) -> bool:
    """Whether the file exists; False for names that no file can have (too long, or with a NUL)."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """Whether the folder exists, see `is_file`."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def may_expand_to(size: int, free: int = 16 << 20) -> int:
    """Return how many bytes a compressed file of ``size`` bytes may expand to; more is refused as a zip bomb.

    Real data seldom compress more than a hundredfold; ``free`` bytes are always allowed, for small regular files.
    """
    return max(free, 256 * size)
