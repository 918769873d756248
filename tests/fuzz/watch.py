"""Run one case and measure its outcome, CPU time and peak memory."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    return attempt_all(read, [data])[0]


def attempt_all(read: Callable[[bytes], None], inputs: Sequence[bytes]) -> list[Case]:
    """The same for many inputs, with one measurement of memory; if they take too much, each is measured."""
    before = PEAK.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning would be a second line on the terminal
        warnings.simplefilter("ignore", DeprecationWarning)
        cases = [_attempt(read, data) for data in inputs]
    grown = max(0, PEAK.now() - before)
    if len(inputs) > 1 and grown > FREE_BYTES:
        return [attempt(read, data) for data in inputs]
    return [_with_memory(case, grown, len(data)) for case, data in zip(cases, inputs, strict=True)]


def _with_memory(case: Case, grown: int, size: int) -> Case:
    too_much = not case.fault and grown > FREE_BYTES + BYTES_PER_BYTE * size
    return replace(case, grown=grown, fault=f"took {grown} bytes for {size}" if too_much else case.fault)


def _attempt(read: Callable[[bytes], None], data: bytes) -> Case:
    start = time.process_time()
    parsed, fault = False, ""
    try:
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
    seconds = time.process_time() - start
    if not fault and seconds > MOST_SECONDS:
        fault = f"took {seconds:.1f} s"
    return Case(parsed, seconds, 0, fault)


def _line_fault(line: str) -> str:
    if not line.isprintable():
        return f"an error that is not one line of text: {line[:120]!r}"
    if len(line) > _LONGEST_LINE:
        return f"an error of {len(line)} characters"
    return ""
