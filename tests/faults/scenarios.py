"""Faults at random points; a scenario fails an assertion if data is lost or half written."""

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
from tests.faults.commands import COMMANDS, Command
from tests.faults.fork_server import ForkServer
from tests.faults.writers import WRITERS
from tests.tensors import same_tensors


@dataclass(frozen=True)
class Scenario:
    """One kind of fault in one command or part.

    Args:
        strike: Injects the fault once, in an empty folder, at a random point.
        often: The number of times in the long form.
    """

    fault: str
    where: str
    strike: Callable[[Path, random.Random], None]
    often: int


class Reference:
    """The results of commands without faults, computed once."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self._runs: dict[str, tuple[Path, float, int]] = {}

    def of(self, name: str) -> tuple[Path, float, int]:
        """The folder of a run without faults, its seconds, and the size of its largest file."""
        if name not in self._runs:
            command, folder = COMMANDS[name], self.folder / name.replace(" ", "-")
            command.prepare(folder)
            begin = time.monotonic()
            assert self.server.run(list(command.arguments), folder) == 0, (folder / "stderr").read_text()
            seconds = time.monotonic() - begin
            command.check(folder)
            largest = max((folder / output).stat().st_size for output in command.outputs)
            self._runs[name] = (folder, seconds, largest)
        return self._runs[name]


def command_scenarios(server: ForkServer, reference: Reference) -> list[Scenario]:
    """Kills and full disks in every command that writes."""
    often = {"fgnn data chain": 25, "fgnn segment": 6, "fgnn reproduce": 2, "fgnn train": 4}
    scenarios = []
    for name, times in often.items():
        for fault, strike in STRIKES.items():

            def run(folder: Path, rng: random.Random, name: str = name, strike: Strike = strike) -> None:
                _struck(server, reference, name, folder, rng, strike)

            scenarios.append(Scenario(fault, name, run, times))
        scenarios.append(Scenario("folder that cannot be written", name, _unwritable(server, name), 2))
    return scenarios


# ---- the strikes: each runs the command once under its fault and returns the exit status ---------------------------

Strike = Callable[[ForkServer, list[str], Path, random.Random, float, int], int]


def _kill_in_write(n: ForkServer, arguments: list[str], at: Path, rng: random.Random, seconds: float, size: int) -> int:
    return n.run(arguments, at, {"kind": "limit", "bytes": rng.randrange(size), "die": True})


def _kill_between(n: ForkServer, arguments: list[str], at: Path, rng: random.Random, seconds: float, size: int) -> int:
    return n.run(arguments, at, {"kind": "event", "at": rng.randrange(1, 16), "die": True})


def _full_disk(n: ForkServer, arguments: list[str], at: Path, rng: random.Random, seconds: float, size: int) -> int:
    fault: dict[str, Any] = {"kind": "limit", "bytes": _room(rng, size), "die": False}
    if rng.random() < 0.3:
        fault = {"kind": "event", "at": rng.randrange(1, 12), "die": False}
    return n.run(arguments, at, fault)


def _room(rng: random.Random, size: int) -> int:
    """Less than the largest file, but enough for the message, which is also written to a file."""
    return rng.randrange(min(500, size - 1), size)


def _signalled(number: signal.Signals) -> Strike:
    def strike(n: ForkServer, arguments: list[str], at: Path, rng: random.Random, seconds: float, size: int) -> int:
        pid = n.start(arguments, at)
        # files are written in the later part of a run
        time.sleep(seconds * (0.1 + 0.9 * rng.random()))
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return n.wait()

    return strike


STRIKES: dict[str, Strike] = {
    "kill -9 at a random moment": _signalled(signal.SIGKILL),
    "kill in the middle of a write": _kill_in_write,
    "kill between two file operations": _kill_between,
    "SIGTERM at a random moment": _signalled(signal.SIGTERM),
    "full disk": _full_disk,
}


def _struck(
    server: ForkServer, reference: Reference, name: str, folder: Path, rng: random.Random, strike: Strike
) -> None:
    command = COMMANDS[name]
    whole, seconds, size = reference.of(name)
    command.prepare(folder)
    old: dict[str, bytes] = {}
    if not command.again and rng.random() < 0.5:  # an older result exists, which the fault must not damage
        for output in command.outputs:
            (folder / output).parent.mkdir(parents=True, exist_ok=True)
            (folder / output).write_bytes((whole / output).read_bytes())
        old = {output: (folder / output).read_bytes() for output in command.outputs}
    status = strike(server, list(command.arguments), folder, rng, seconds, size)
    stderr = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
    assert status in (0, 2, 3, 143, -signal.SIGKILL, -signal.SIGXFSZ, -signal.SIGTERM), (status, stderr)
    assert "Traceback" not in stderr, stderr
    if status == 3:  # a full disk: one line that names a file
        assert any(words in stderr for words in ("No space left", "File too large", "cannot be written")), stderr
    _whole_or_absent(command, folder, old)
    if status >= 0:
        assert not list(folder.rglob("*.part")), "unfinished files were left"

    # the command can be finished
    for part in folder.rglob("*.part"):
        os.utime(part, (0, 0))  # make them old
    arguments = command.arguments
    if command.again and (folder / "run" / "config.yaml").is_file():
        arguments = command.again
    assert server.run(list(arguments), folder) == 0, (folder / "stderr").read_text(encoding="utf-8")
    command.check(folder)
    _equal(command, folder, whole)
    assert not [p for p in folder.rglob("*.part") if p.name.split(".")[1] in _names(command)]


def _names(command: Command) -> set[str]:
    return {Path(output).name.split(".")[0] for output in command.outputs}


def _whole_or_absent(command: Command, folder: Path, old: dict[str, bytes]) -> None:
    """No output is half written: each is the old file, a complete new one, or absent."""
    for output in command.outputs:
        file = folder / output
        if not file.exists():
            # of a set of files, the description is removed first and written last
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
    """After a fault and a second run, the result equals that of a run without faults."""
    for output in command.outputs:
        one, two = folder / output, whole / output
        if output.startswith("run/"):
            assert same_tensors(load_weights(one).tensors, load_weights(two).tensors), output
        elif "table1" not in output and not output.endswith(".report.html"):  # they contain times
            assert one.read_bytes() == two.read_bytes(), output


def writer_scenarios(server: ForkServer) -> list[Scenario]:
    """Kills and full disks in everything that writes a file, at any byte and between any two operations."""
    scenarios = []
    for fault in ("kill in the middle of a write", "kill between two file operations", "full disk"):
        for name in WRITERS:

            def run(folder: Path, rng: random.Random, name: str = name, strike: Strike = STRIKES[fault]) -> None:
                _struck_writer(server, name, folder, rng, strike)

            scenarios.append(Scenario(fault, "all that writes a file", run, 25))
    return scenarios


def _struck_writer(server: ForkServer, name: str, folder: Path, rng: random.Random, strike: Strike) -> None:
    _, read = WRITERS[name]
    folder.mkdir(parents=True)
    file = folder / name
    assert server.run(["write", name], folder) == 0, (folder / "stderr").read_text(encoding="utf-8")
    whole = file.read_bytes()
    if rng.random() < 0.5:
        file.unlink()
    status = strike(server, ["write", name], folder, rng, 0.0, len(whole))
    stderr = (folder / "stderr").read_text(encoding="utf-8")
    assert status in (0, 3, -signal.SIGKILL, -signal.SIGXFSZ), (status, stderr)
    if status == 3:
        assert stderr.count("\n") == 1, stderr
        beside = ("dataset.json", "weights.json", "all_files.txt", "room_filelist.txt")
        assert any(written in stderr for written in (file.name, *beside)), stderr
    if file.exists():
        assert len(file.read_bytes()) == len(whole), f"{name} is half written"
    if status >= 0:
        assert not list(folder.rglob("*.part")), "unfinished files were left"
    for part in folder.rglob("*.part"):
        os.utime(part, (0, 0))
    assert server.run(["write", name], folder) == 0
    read(folder)
    assert not list(folder.rglob("*.part")), "temporary files of a killed writer were not removed"


def _unwritable(server: ForkServer, name: str) -> Callable[[Path, random.Random], None]:
    """The output folder is not writable: the command fails in one line, before any work."""

    def strike(folder: Path, rng: random.Random) -> None:
        command = COMMANDS[name]
        command.prepare(folder)
        arguments = list(command.arguments)
        at = arguments.index("--out") + 1
        arguments[at] = f"/proc/{arguments[at]}"  # not writable, even for root
        assert server.run(arguments, folder) == 2
        stderr = (folder / "stderr").read_text(encoding="utf-8")
        assert stderr.count("\n") == 1, stderr
        assert "/proc" in stderr, stderr
        assert "instances" not in stderr, "it started to work"

    return strike
