"""One case at a time under watch: what came of it, how long it took, and how much memory it needed at its peak."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fgnn.errors import InputError

# Seconds of processor time, which other work on the machine does not change; a person waits no longer for a refusal.
MOST_SECONDS = 2.0
# What a process may grow by in any case, however short the input: blocks, caches, pages the allocator keeps.
# Fuzzing runs with small limits, so that no short input can rightly imply more; by the byte, see `fgnn.memory_bounds`.
FREE_BYTES = 64_000_000
BYTES_PER_BYTE = 1000
_LONGEST_LINE = 500


@dataclass(frozen=True)
class Case:
    """The outcome of one input; ``fault`` says what is wrong with it, or nothing."""

    parsed: bool
    seconds: float
    grown: int
    fault: str = ""


class Peak:
    """The largest resident size since it was last asked, from the kernel; always 0 where it cannot be known."""

    def __init__(self) -> None:
        try:
            self._status = open("/proc/self/status", "rb", buffering=0)  # noqa: SIM115  # open for the process's life
            self._clear = open("/proc/self/clear_refs", "wb", buffering=0)  # noqa: SIM115
            self._clear.write(b"5")
            self.known = True
        except OSError:
            self.known = False

    def start(self) -> int:
        """Forget the peak so far; the size now, in bytes."""
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
    """Run a parser on an input: it may return, or refuse it in one line; anything else is a fault."""
    before, start = PEAK.start(), time.process_time()
    parsed, fault = False, ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning would be a second line on a person's terminal
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
        return f"a refusal that is not one line of text: {line[:120]!r}"
    if len(line) > _LONGEST_LINE:
        return f"a refusal of {len(line)} characters"
    return ""
