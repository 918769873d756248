"""Three new users follow their part of the getting-started page, each in an empty folder.

One has a model file, one has a scan, one builds networks. The slow test starts with a fresh clone and an empty
environment and must finish within ten minutes, including the installation.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, blocks, commands

PAGE = DOCS / "getting-started.md"
USERS = ("you-have-a-model-file", "you-have-a-scan", "you-build-networks")
MINUTES = 10

# Follows a page in the current folder with the installed package, and says where that package is.
FOLLOW = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from pages import Session
session = Session(Path({page!r}))
session.run()
import fgnn
Path("followed.txt").write_text(f"{{session.ran}} {{fgnn.__file__}}")
"""

# Each user then repeats the page's commands on their own input.
OWN = {
    "you-have-a-model-file": """
from pathlib import Path
import random
random.seed(7)
table = " ".join(f"{random.random():.3f}" for _ in range(9))
Path("own.uai").write_text(f"MARKOV\\n4\\n3 3 3 3\\n3\\n2 0 1\\n2 1 2\\n2 2 3\\n" + f"9 {table}\\n" * 3)
import sys
sys.argv = ["fgnn", "solve", "own.uai", "--json"]
from fgnn.cli import main
main()
""",
    "you-have-a-scan": """
from pathlib import Path
import random, sys
random.seed(7)
rows = [f"{random.uniform(0, 40):.2f},{random.uniform(0, 40):.2f},{random.uniform(0, 3):.2f}" for _ in range(500)]
Path("own.csv").write_text("x,y,z\\n" + "\\n".join(rows) + "\\n")
sys.argv = ["fgnn", "segment", "own.csv", "--model", "runs/mine", "--out", "own.labelled.csv", "--html", "own.html"]
from fgnn.cli import main
try:
    main()
finally:
    head = Path("own.labelled.csv").read_text().splitlines()
    assert len(head) == 501 and "label" in head[0] and "confidence" in head[0], head[0]
    assert "<svg" in Path("own.report.html").read_text()
""",
    "you-build-networks": """
import torch, fgnn
triples = torch.tensor([[0, 1, 2], [2, 3, 4]])
graph = fgnn.FactorGraph(5, {"triple": fgnn.FactorGroup(triples)})
net = fgnn.nn.build("FGNN(8) - FGNN(3)", variable_in=1, factor_in={"triple": 1}, edge_in={"triple": 3})
scores = net(graph, torch.randn(5, 1), {"triple": torch.randn(2, 1)}, {"triple": torch.eye(3)})
scores.sum().backward()
assert scores.shape == (5, 3)
""",
}


def part(name: str) -> str:
    """The part of the page for one user, from their heading to the next user's."""
    text = PAGE.read_text(encoding="utf-8")
    section = re.search(rf"^\({name}\)=\n(.*?)(?=^\(you-[\w-]+\)=\n|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, name
    return section[1]


def follow(python: str | Path, name: str, folder: Path) -> tuple[float, int, str]:
    """Follow the page, then use the user's own input.

    Return the seconds, the number of blocks and commands of the page that ran, and the place of the package.
    """
    (folder / "page.md").write_text(part(name), encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FGNN", "COV"))}
    program = FOLLOW.format(tests=str(ROOT / "tests" / "docs"), page="page.md") + OWN[name]
    start = time.perf_counter()
    done = subprocess.run(
        [str(python), "-c", program], cwd=folder, env=environment | {"NO_COLOR": "1"}, capture_output=True,
        text=True, check=False, timeout=60 * MINUTES,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    ran, place = (folder / "followed.txt").read_text(encoding="utf-8").split(maxsplit=1)
    return time.perf_counter() - start, int(ran), place


@pytest.mark.parametrize("name", USERS)
def test_each_user_s_part_stands_alone(name: str, tmp_path: Path) -> None:
    seconds, ran, _ = follow(sys.executable, name, tmp_path)
    assert ran >= 2
    assert seconds < 60 * MINUTES / 2
    print(f"{name}: {seconds:.0f} s")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A fresh clone, installed with the page's commands, and the seconds this took."""
    place = tmp_path_factory.mktemp("fresh") / "fgnn"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(place)], check=True)
    text = PAGE.read_text(encoding="utf-8")
    end = text.index("(you-have-a-model-file)=")
    install_commands = [
        command
        for block in blocks(PAGE)
        if block.kind == "console" and block.line < text[:end].count("\n")
        for command, _ in commands(block.body)
    ]
    assert any("pip install" in command for command in install_commands)
    start, before = time.perf_counter(), _cpu_seconds()
    for command in install_commands:
        words = shlex.split(command)
        words[0] = sys.executable if words[0] == "python" else words[0]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
        if done.returncode and re.search(r"Could not find a version|Connection|resolve host", done.stderr):
            pytest.skip("no package index can be reached from here")
        assert done.returncode == 0, done.stderr[-2000:]
    seconds = time.perf_counter() - start
    print(f"installed in {seconds:.0f} s, {_cpu_seconds() - before:.0f} CPU seconds, load {os.getloadavg()[0]:.0f}")
    return place, seconds


def _cpu_seconds() -> float:
    """CPU seconds of finished child processes, which do not depend on the load of the machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
@pytest.mark.timeout(3 * 60 * MINUTES)
@pytest.mark.parametrize("name", USERS)
def test_from_a_fresh_clone_in_under_ten_minutes(name: str, clone: tuple[Path, float], tmp_path: Path) -> None:
    place, install = clone
    before = _cpu_seconds()
    seconds, _, package = follow(place / ".venv" / "bin" / "python", name, tmp_path)
    assert Path(package).is_relative_to(place / ".venv"), package
    print(f"{name}: done in {seconds:.0f} s, {_cpu_seconds() - before:.0f} CPU seconds")
    assert install + seconds < 60 * MINUTES
