"""Writing files whole or not at all, and asking for them by names that people and files give."""

from __future__ import annotations

import glob
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # a system without POSIX locks: nothing is swept
    fcntl = None

_YOUNG_SECONDS = 60.0


@contextmanager
def atomic_write(path: str | Path, mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path`` that takes its place only when the block ends without an error.

    A reader sees the old file or the new one, never a part; an error or a kill leaves the old one as it was.
    """
    target = Path(path)
    if "b" not in mode:
        options.setdefault("encoding", "utf-8")
    _sweep(target)
    name = ""
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        with os.fdopen(handle, mode, **options) as file:
            _claim(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp makes the file private; give it the usual permissions
        os.replace(name, target)
    except BaseException as error:
        if name:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and (not name or error.filename in (None, name)):
            error.filename = str(target)  # a write that fails names no file, and the temporary one means nothing
        raise


def write_npy(file: IO[bytes], array: NDArray[Any]) -> None:
    """Write an array as NPY. `numpy.save` hands real files to C, which does not notice a disk that is full."""

    class Plain:
        write = staticmethod(file.write)

    np.save(Plain(), array, allow_pickle=False)


def check_folder(path: str | Path) -> Path:
    """Make a folder and see that files can be written there: before long work, not after it."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        error.filename = str(folder)
        raise


def _claim(handle: int) -> None:
    """Lock a file that is being written; the lock ends with the process, however that ends."""
    if fcntl is not None:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sweep(target: Path) -> None:
    """Remove what writers of ``target`` left behind that were killed: unfinished files that nobody holds."""
    if fcntl is None:
        return
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        with suppress(OSError):
            handle = os.open(left, os.O_RDWR)
            try:
                # a file this young may not have been locked yet
                if time.time() - os.fstat(handle).st_mtime > _YOUNG_SECONDS:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    left.unlink()
            finally:
                os.close(handle)


def is_file(path: str | Path) -> bool:
    """Whether there is such a file; a name that no file can have (too long, a NUL in it) is none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """Whether there is such a folder, as `is_file`."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def may_expand_to(size: int, free: int = 16 << 20) -> int:
    """The bytes that a compressed file of ``size`` bytes may stand for before it is taken for a bomb.

    What people compress seldom shrinks to less than a hundredth; ``free`` lets small files be as regular as they like.
    """
    return max(free, 256 * size)
