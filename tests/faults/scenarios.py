"""Faults, each struck at a random place; a scenario fails by assertion where anything is lost or half done."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fgnn.weights import load_weights
from fgnn.weights.store import same_tensors
from tests.faults.commands import COMMANDS, Command
from tests.faults.nursery import Nursery
from tests.faults.writers import WRITERS


@dataclass(frozen=True)
class Scenario:
    """One kind of fault in one place.

    Args:
        strike: Does it once, in an empty folder, at a place drawn from the generator.
        often: How many times the long form does it.
    """

    fault: str
    where: str
    strike: Callable[[Path, random.Random], None]
    often: int


class Reference:
    """What a command gives when nothing happens to it, made once."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self.nursery, self.folder = nursery, folder
        self._known: dict[str, tuple[Path, float, int]] = {}

    def of(self, name: str) -> tuple[Path, float, int]:
        """The folder of an undisturbed run, its seconds, and the bytes of its largest file."""
        if name not in self._known:
            command, folder = COMMANDS[name], self.folder / name.replace(" ", "-")
            command.prepare(folder)
            begin = time.monotonic()
            assert self.nursery.run(list(command.arguments), folder) == 0, (folder / "stderr").read_text()
            seconds = time.monotonic() - begin
            command.check(folder)
            largest = max((folder / output).stat().st_size for output in command.outputs)
            self._known[name] = (folder, seconds, largest)
        return self._known[name]


def command_scenarios(nursery: Nursery, reference: Reference) -> list[Scenario]:
    """Kills and full disks in every command that writes."""
    often = {"fgnn data chain": 25, "fgnn segment": 6, "fgnn reproduce": 2, "fgnn train": 4}
    made = []
    for name, times in often.items():
        for fault, strike in STRIKES.items():

            def run(folder: Path, rng: random.Random, name: str = name, strike: Strike = strike) -> None:
                _struck(nursery, reference, name, folder, rng, strike)

            made.append(Scenario(fault, name, run, times))
        made.append(Scenario("folder that cannot be written", name, _unwritable(nursery, name), 2))
    return made


# ---- the strikes: each runs the command once under its fault and returns how it ended -----------------------------

Strike = Callable[[Nursery, list[str], Path, random.Random, float, int], int]


def _kill_in_a_write(n: Nursery, arguments: list[str], at: Path, rng: random.Random, seconds: float, size: int) -> int:
    return n.run(arguments, at, {"kind": "limit", "bytes": rng.randrange(size), "die": True})


def _kill_between(n: Nursery, arguments: list[str], at: Path, rng: random.Random, seconds: float, size: int) -> int:
    return n.run(arguments, at, {"kind": "event", "at": rng.randrange(1, 16), "die": True})


def _full_disk(n: Nursery, arguments: list[str], at: Path, rng: random.Random, seconds: float, size: int) -> int:
    fault: dict[str, Any] = {"kind": "limit", "bytes": _room(rng, size), "die": False}
    if rng.random() < 0.3:
        fault = {"kind": "event", "at": rng.randrange(1, 12), "die": False}
    return n.run(arguments, at, fault)


def _room(rng: random.Random, size: int) -> int:
    """Less than the largest file, but enough for a message, which goes to a file too."""
    return rng.randrange(min(500, size - 1), size)


def _signalled(number: signal.Signals) -> Strike:
    def strike(n: Nursery, arguments: list[str], at: Path, rng: random.Random, seconds: float, size: int) -> int:
        pid = n.start(arguments, at)
        # the later part of a run is where files are written
        time.sleep(seconds * (0.1 + 0.9 * rng.random()))
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return n.wait()

    return strike


STRIKES: dict[str, Strike] = {
    "kill -9 at a random moment": _signalled(signal.SIGKILL),
    "kill in the middle of a write": _kill_in_a_write,
    "kill between two file operations": _kill_between,
    "SIGTERM at a random moment": _signalled(signal.SIGTERM),
    "full disk": _full_disk,
}


def _struck(
    nursery: Nursery, reference: Reference, name: str, folder: Path, rng: random.Random, strike: Strike
) -> None:
    command = COMMANDS[name]
    whole, seconds, size = reference.of(name)
    command.prepare(folder)
    old: dict[str, bytes] = {}
    if not command.again and rng.random() < 0.5:  # an older result is there, which the fault must not spoil
        for output in command.outputs:
            (folder / output).parent.mkdir(parents=True, exist_ok=True)
            (folder / output).write_bytes((whole / output).read_bytes())
        old = {output: (folder / output).read_bytes() for output in command.outputs}
    status = strike(nursery, list(command.arguments), folder, rng, seconds, size)
    told = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
    assert status in (0, 2, 3, 143, -signal.SIGKILL, -signal.SIGXFSZ, -signal.SIGTERM), (status, told)
    assert "Traceback" not in told, told
    if status == 3:  # a full disk: one line that names a file
        assert any(words in told for words in ("No space left", "File too large", "cannot be written")), told
    _whole_or_absent(command, folder, old)
    if status >= 0:
        assert not list(folder.rglob("*.part")), "unfinished files were left"

    # and the work can be finished
    for part in folder.rglob("*.part"):
        os.utime(part, (0, 0))  # as if some time had passed
    arguments = command.arguments
    if command.again and (folder / "run" / "config.yaml").is_file():
        arguments = command.again
    assert nursery.run(list(arguments), folder) == 0, (folder / "stderr").read_text(encoding="utf-8")
    command.check(folder)
    _equal(command, folder, whole)
    assert not [p for p in folder.rglob("*.part") if p.name.split(".")[1] in _names(command)]


def _names(command: Command) -> set[str]:
    return {Path(output).name.split(".")[0] for output in command.outputs}


def _whole_or_absent(command: Command, folder: Path, old: dict[str, bytes]) -> None:
    """No output is half written: each is the old one, a whole new one, or not there."""
    for output in command.outputs:
        file = folder / output
        if not file.exists():
            # of several files that belong together the description goes first and comes back last
            assert output not in old or output.endswith("dataset.json"), f"{output} was lost"
            continue
        data = file.read_bytes()
        if output in old and data == old[output]:
            continue
        if output.endswith(".json"):
            assert data.rstrip().endswith(b"}"), output
        elif output.endswith(".html"):
            assert data.rstrip().endswith(b"</html>"), output
        elif output.endswith(".safetensors"):
            size = 8 + int.from_bytes(data[:8], "little")
            assert len(data) > size, output
        else:
            assert data, output


def _equal(command: Command, folder: Path, whole: Path) -> None:
    """Finished after a fault, the result is that of a run without one."""
    for output in command.outputs:
        one, two = folder / output, whole / output
        if output.startswith("run/"):
            assert same_tensors(load_weights(one).tensors, load_weights(two).tensors), output
        elif "table1" not in output:  # which holds times
            assert one.read_bytes() == two.read_bytes(), output


def writer_scenarios(nursery: Nursery) -> list[Scenario]:
    """Kills and full disks in everything that writes a file, at any byte of it and between any two operations."""
    made = []
    for fault in ("kill in the middle of a write", "kill between two file operations", "full disk"):
        for name in WRITERS:

            def run(folder: Path, rng: random.Random, name: str = name, strike: Strike = STRIKES[fault]) -> None:
                _struck_writer(nursery, name, folder, rng, strike)

            made.append(Scenario(fault, "all that writes a file", run, 25))
    return made


def _struck_writer(nursery: Nursery, name: str, folder: Path, rng: random.Random, strike: Strike) -> None:
    _, read = WRITERS[name]
    folder.mkdir(parents=True)
    file = folder / name
    assert nursery.run(["write", name], folder) == 0, (folder / "stderr").read_text(encoding="utf-8")
    whole = file.read_bytes()
    if rng.random() < 0.5:
        file.unlink()
    status = strike(nursery, ["write", name], folder, rng, 0.0, len(whole))
    told = (folder / "stderr").read_text(encoding="utf-8")
    assert status in (0, 3, -signal.SIGKILL, -signal.SIGXFSZ), (status, told)
    if status == 3:
        assert told.count("\n") == 1, told
        beside = ("dataset.json", "weights.json", "all_files.txt", "room_filelist.txt")
        assert any(written in told for written in (file.name, *beside)), told
    if file.exists():
        assert len(file.read_bytes()) == len(whole), f"{name} is half written"
    if status >= 0:
        assert not list(folder.rglob("*.part")), "unfinished files were left"
    for part in folder.rglob("*.part"):
        os.utime(part, (0, 0))
    assert nursery.run(["write", name], folder) == 0
    read(folder)
    assert not list(folder.rglob("*.part")), "what a killed writer left was not swept"


def _unwritable(nursery: Nursery, name: str) -> Callable[[Path, random.Random], None]:
    """The folder to write to is on a file system that takes no files: one line, at once, and before the work."""

    def strike(folder: Path, rng: random.Random) -> None:
        command = COMMANDS[name]
        command.prepare(folder)
        arguments = list(command.arguments)
        place = arguments.index("--out") + 1
        arguments[place] = f"/proc/{arguments[place]}"  # for root too nothing can be written there
        assert nursery.run(arguments, folder) == 2
        told = (folder / "stderr").read_text(encoding="utf-8")
        assert told.count("\n") == 1, told
        assert "/proc" in told, told
        assert "instances" not in told, "it began to work"

    return strike
