"""One training per folder: a lock that ends with the process that holds it, however it ends."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType

from fgnn.errors import InputError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # no POSIX locks: the file itself is the lock
    fcntl = None

_TAKEN = (errno.EAGAIN, errno.EACCES)  # other errors mean that the file system has no locks
_NAME = "run.lock"
# A link is not followed: the folder may come from someone else, and its target would be overwritten.
_OPEN = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; create the folder, and remove it again if the block leaves it empty.

    The lock is the kernel's, on a file that names its holder, also over NFS. On a file system without locks the file
    itself is the lock, and one whose process on this machine is gone does not count.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        release = _by_kernel(folder / _NAME) or _by_existence(folder / _NAME)
        try:
            yield
        finally:
            release()
    finally:
        for path in created:
            with suppress(OSError):  # what the block wrote stays
                path.rmdir()


def _by_kernel(path: Path) -> Callable[[], None] | None:
    """Lock the file and return how to release it; None if the file system has no locks."""
    while fcntl is not None:
        handle = os.open(path, _OPEN, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno not in _TAKEN:
                path.unlink(missing_ok=True)
                return None
            raise _refusal(path) from error
        with suppress(OSError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                os.ftruncate(handle, 0)
                os.write(handle, _holder().encode())
                return partial(_release, path, handle)
        os.close(handle)  # removed by its holder between open and lock: try again
    return None


def _by_existence(path: Path) -> Callable[[], None]:
    """Create the file and return how to remove it; a file left by a dead process of this machine is replaced."""
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError as error:
            pid, _, machine = _read(path).partition(" on ")
            if machine != socket.gethostname() or not pid.isdigit() or _alive(int(pid)):
                raise _refusal(path) from error
            path.unlink(missing_ok=True)
            continue
        with os.fdopen(handle, "w") as file:
            file.write(_holder())
        return partial(path.unlink, missing_ok=True)


def _release(path: Path, handle: int) -> None:
    path.unlink(missing_ok=True)
    os.close(handle)


def _holder() -> str:
    return f"{os.getpid()} on {socket.gethostname()}"


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(200).strip()
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OverflowError:
        return False
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def _refusal(path: Path) -> InputError:
    holder = _read(path)
    who = f"process {holder}" if holder else "another process"
    return InputError(f"{who} is training in this folder; wait for it to end, or use another --out", file=path.parent)
