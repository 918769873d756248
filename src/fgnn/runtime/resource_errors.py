"""Classify out-of-memory and out-of-disk errors."""

from __future__ import annotations

import errno

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def out_of_memory(error: BaseException) -> str | None:
    """Describe an out-of-memory error of a device or the host in one line; None for any other error."""
    text = str(error)
    if isinstance(error, MemoryError):
        return "out of memory" + (f" ({text.splitlines()[0]})" if text else "")
    if isinstance(error, RuntimeError):
        # torch has an exception class for devices, none for the CPU
        if type(error).__name__ == "OutOfMemoryError" or "CUDA out of memory" in text:
            return f"out of memory on the device ({text.split('. ')[0].splitlines()[0]})" if text else "out of memory"
        if "can't allocate memory" in text or "not enough memory" in text:
            return "out of memory (" + text[text.find("you tried") :].splitlines()[0].rstrip(".") + ")"
    # a lazily loaded library may be what no longer fits
    if isinstance(error, ImportError) and ("failed to map segment" in text or "annot allocate memory" in text):
        return "out of memory (a library could not be loaded)"
    return None


def out_of_disk(error: BaseException) -> bool:
    """True if a write failed because the disk is full or broken, or a quota or limit is reached."""
    return isinstance(error, OSError) and error.errno in _DISK
