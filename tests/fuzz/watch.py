"""Run one case and measure its outcome, CPU time and peak memory."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fgnn.errors import InputError

# CPU seconds, independent of other work on the machine.
MOST_SECONDS = 2.0
# Memory growth allowed for any input: buffers, caches, pages that the allocator keeps. Fuzzing uses small limits, so
# that no short input may imply more; see `fgnn.bounds` for the bounds per byte.
FREE_BYTES = 64_000_000
BYTES_PER_BYTE = 1000
_LONGEST_LINE = 500


@dataclass(frozen=True)
class Case:
    """The outcome of one input; ``fault`` is empty if all is well."""

    parsed: bool
    seconds: float
    grown: int
    fault: str = ""


class Peak:
    """The peak resident size since `start`, from the kernel; 0 if unknown."""

    def __init__(self) -> None:
        try:
            self._status = open("/proc/self/status", "rb", buffering=0)  # noqa: SIM115  # open for the process's life
            self._clear = open("/proc/self/clear_refs", "wb", buffering=0)  # noqa: SIM115
            self._clear.write(b"5")
            self.known = True
        except OSError:
            self.known = False

    def start(self) -> int:
        """Reset the peak and return the current size in bytes."""
        if not self.known:
            return 0
        self._clear.write(b"5")
        return self.now()

    def now(self) -> int:
        """The peak since `start`, in bytes."""
        if not self.known:
            return 0
        self._status.seek(0)
        text = self._status.read(4096)
        at = text.index(b"VmHWM:") + 6
        return 1024 * int(text[at : at + 20].split()[0])


PEAK = Peak()


def attempt(read: Callable[[bytes], None], data: bytes) -> Case:
    """Run a parser on an input: it may return, or reject it in one line; anything else is a fault."""
    before, start = PEAK.start(), time.process_time()
    parsed, fault = False, ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning would be a second line on the terminal
            warnings.simplefilter("ignore", DeprecationWarning)
            read(data)
        parsed = True
    except InputError as error:
        fault = _line_fault(str(error))
    except MemoryError as error:
        fault = f"MemoryError: {error}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        ours = [t for t in traceback.extract_tb(error.__traceback__) if "/fgnn/" in t.filename]
        near = f" from {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
        fault = f"{type(error).__name__} at {place}{near}: {str(error)[:120]}"
    seconds, grown = time.process_time() - start, max(0, PEAK.now() - before)
    if not fault and seconds > MOST_SECONDS:
        fault = f"took {seconds:.1f} s"
    if not fault and grown > FREE_BYTES + BYTES_PER_BYTE * len(data):
        fault = f"took {grown} bytes for {len(data)}"
    return Case(parsed, seconds, grown, fault)


def _line_fault(line: str) -> str:
    if not line.isprintable():
        return f"an error that is not one line of text: {line[:120]!r}"
    if len(line) > _LONGEST_LINE:
        return f"an error of {len(line)} characters"
    return ""
