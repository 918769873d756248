"""A folder for the files of this process, in memory if possible."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

_KEEP: list[Any] = []


@cache
def folder() -> Path:
    """The folder; it is removed with the process."""
    memory = Path("/dev/shm")
    temporary = tempfile.TemporaryDirectory(prefix="fgnn-fuzz-", dir=memory if os.access(memory, os.W_OK) else None)
    _KEEP.append(temporary)
    return Path(temporary.name)
