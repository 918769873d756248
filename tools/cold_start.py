"""Minutes from nothing to a first result, by the README's own lines: `python -m tools.cold_start --out FILE`.

From a fresh clone and from a wheel, each in an empty environment and an empty folder. What is timed is what a reader
pastes: the installation once, then the quick demo, a model, a scan and a network. Times include downloads, so they
depend on the package index and the network; CPU seconds depend less on other work of the machine.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fgnn.files import atomic_write
from fgnn.runtime.environment import environment

ROOT = Path(__file__).resolve().parents[1]
DEMO = "fgnn demo --quick"  # in the text of the README
# A heading of the README's and the commands below it that belong to this user.
USERS = {"model": "# fgnn", "scan": "## Segment a scan", "network": "## Build a network"}


def section(readme: str, heading: str) -> str:
    """The part of a page below a heading, to the next one."""
    return readme[readme.index(f"{heading}\n") + len(heading) :].split("\n## ")[0]


def lines(readme: str, heading: str) -> list[str]:
    """The commands of the fenced blocks below a heading, without prompts and outputs."""
    commands = []
    for kind, body in re.findall(r"^```(sh|console)\n(.*?)^```$", section(readme, heading), re.MULTILINE | re.DOTALL):
        shown = body.splitlines()
        commands += [line.removeprefix("$ ") for line in shown if kind == "sh" or line.startswith("$ ")]
    return commands


def programs(readme: str, heading: str) -> list[str]:
    """The Python blocks below a heading."""
    return re.findall(r"^```python\n(.*?)^```$", section(readme, heading), re.MULTILINE | re.DOTALL)


def steps(readme: str) -> tuple[str, dict[str, list[list[str]]]]:
    """The install line, and what each user runs: shell lines, or Python programs."""
    install, *model = lines(readme, USERS["model"])
    if f"`{DEMO}`" not in readme:
        raise SystemExit(f"Expected the README to name {DEMO}")
    users = {"demo": [["sh", "-ec", DEMO]], "model": [["sh", "-ec", line] for line in model]}
    users["scan"] = [["sh", "-ec", line] for line in lines(readme, USERS["scan"])]
    users["network"] = [["python", "-c", program] for program in programs(readme, USERS["network"])]
    return install, users


def measure(place: Path, install: str, users: dict[str, list[list[str]]]) -> dict[str, dict[str, float]]:
    """Wall and CPU seconds of the installation and of each user, in an environment of its own under ``place``."""
    seconds = {"install": timed([[sys.executable, "-m", "venv", ".venv"], ["sh", "-ec", install]], place)}
    for name, commands in users.items():
        folder = place / f"user-{name}"
        folder.mkdir()
        seconds[name] = timed(commands, folder, place)
    return seconds


def timed(commands: Sequence[Sequence[str]], folder: Path, place: Path | None = None) -> dict[str, float]:
    """Wall and CPU seconds of commands with the environment of ``place`` first on the path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FGNN", "COV", "OMP"))}
    path = f"{(place or folder) / '.venv' / 'bin'}{os.pathsep}{kept.get('PATH', '')}"
    environ = kept | {"PATH": path, "PIP_NO_CACHE_DIR": "1"}
    start, before = time.perf_counter(), _cpu_seconds()
    for command in commands:
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(
                f"{' '.join(command)[:200]}: exit {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}"
            )
    return {"wall": time.perf_counter() - start, "cpu": _cpu_seconds() - before}


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def clone(place: Path) -> None:
    """A clone of this repository."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(place)], check=True)


def wheel(place: Path) -> str:
    """A folder with the wheel and the constraints alone; returns the wheel's path in it."""
    with tempfile.TemporaryDirectory() as source:
        clone(Path(source) / "fgnn")
        build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(place)]
        subprocess.run([*build, f"{source}/fgnn"], check=True)
        constraints = Path(source) / "fgnn" / "constraints" / "cpu.txt"
        (place / "constraints").mkdir()
        (place / "constraints" / "cpu.txt").write_text(constraints.read_text(encoding="utf-8"), encoding="utf-8")
    return f"./{next(place.glob('*.whl')).name}"


def _minutes(seconds: dict[str, float]) -> str:
    return f"{seconds['wall'] / 60:.1f} min ({seconds['cpu'] / 60:.1f} min of CPU)"


def main(
    out: Annotated[Path | None, typer.Option(help="Write the seconds as JSON.")] = None,
    only: Annotated[str, typer.Option(help="clone, wheel or both.")] = "both",
) -> None:
    """Install and use the package as the README says, and print the minutes."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    install, users = steps(readme)
    result: dict[str, Any] = {
        "what": "seconds from nothing to a first result, by the README's lines",
        "command": "python -m tools.cold_start --out FILE",
        "environment": environment(),
        "seconds": {},
    }
    for source in ("clone", "wheel") if only == "both" else (only,):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "place"
            place.mkdir()
            line = install
            if source == "clone":
                clone(place)
            else:
                line = install.replace("'.[", f"'{wheel(place)}[")
            seconds = measure(place, line, users)
        result["seconds"][source] = seconds
        ready = seconds["install"]
        print(f"{source}: installed in {_minutes(ready)}", flush=True)
        for name in users:
            total = {key: ready[key] + seconds[name][key] for key in ready}
            alone = seconds[name]["wall"]
            print(f"{source}: first {name} after {_minutes(total)}, {alone:.0f} s of it its own", flush=True)
    if out is not None:
        with atomic_write(out) as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    typer.run(main)
