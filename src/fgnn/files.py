"""Writing files whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_write(path: str | Path, mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path`` that takes its place only when the block ends without an error.

    A reader sees the old file or the new one, never a part; an error or a kill leaves the old one as it was.
    """
    target = Path(path)
    if "b" not in mode:
        options.setdefault("encoding", "utf-8")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, mode, **options) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp makes the file private; give it the usual permissions
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
