"""Three newcomers follow the first page and nothing else, each their own part of it, each in a folder of their own.

One has a model file, one has a scan, one builds networks. In the long form they begin with a fresh clone and an empty
environment, type what the page says, and are done within ten minutes, installation included.
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

# Follows a page in the current folder with whatever package this Python has, then tells where that package lies.
FOLLOW = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from pages import Session
session = Session(Path({page!r}))
session.run()
import fgnn
print(session.ran, fgnn.__file__)
"""

# What each then does with an input of their own: the page's commands, other files.
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
rows = [f"{random.uniform(0, 40):.2f},{random.uniform(0, 40):.2f},{random.uniform(0, 3):.2f}" for _ in range(2000)]
Path("own.csv").write_text("x,y,z\\n" + "\\n".join(rows) + "\\n")
sys.argv = ["fgnn", "segment", "own.csv", "--model", "runs/mine", "--out", "own.labelled.csv", "--html", "own.html"]
from fgnn.cli import main
try:
    main()
finally:
    head = Path("own.labelled.csv").read_text().splitlines()
    assert len(head) == 2001 and "label" in head[0] and "confidence" in head[0], head[0]
    assert "<svg" in Path("own.report.html").read_text()
""",
    "you-build-networks": """
import torch, fgnn
triples = torch.tensor([[0, 1, 2], [2, 3, 4]])
graph = fgnn.FactorGraph(5, {"triple": fgnn.FactorGroup(triples)})
net = fgnn.nn.build("FGNN(8) - FGNN(3)", variable_in=1, factor_in={"triple": 1}, edge_in={"triple": 3})
made = net(graph, torch.randn(5, 1), {"triple": torch.randn(2, 1)}, {"triple": torch.eye(3)})
made.sum().backward()
assert made.shape == (5, 3)
""",
}


def part(name: str) -> str:
    """What the page says to one of the users, from their heading to the next user's."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^\({name}\)=\n(.*?)(?=^\(you-[\w-]+\)=\n|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def follow(python: str | Path, name: str, folder: Path) -> tuple[float, str]:
    """Do what the page says, then the same with an own input; seconds, and where the package was found."""
    (folder / "page.md").write_text(part(name), encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FGNN", "COV"))}
    start = time.perf_counter()
    told = ""
    for program in (FOLLOW.format(tests=str(ROOT / "tests" / "docs"), page="page.md"), OWN[name]):
        done = subprocess.run(
            [str(python), "-c", program], cwd=folder, env=environment | {"NO_COLOR": "1"}, capture_output=True,
            text=True, check=False, timeout=60 * MINUTES,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
        told = told or done.stdout.strip().splitlines()[-1]
    return time.perf_counter() - start, told


@pytest.mark.parametrize("name", USERS)
def test_each_user_s_part_stands_alone(name: str, tmp_path: Path) -> None:
    seconds, told = follow(sys.executable, name, tmp_path)
    assert int(told.split()[0]) >= 2  # blocks and commands that ran
    assert seconds < 60 * MINUTES / 2
    print(f"{name}: {seconds:.0f} s")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A fresh clone, installed by the page's own commands; the seconds that took."""
    place = tmp_path_factory.mktemp("fresh") / "fgnn"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(place)], check=True)
    text = PAGE.read_text(encoding="utf-8")
    end = text.index("(you-have-a-model-file)=")
    typed = [
        command
        for block in blocks(PAGE)
        if block.kind == "console" and block.line < text[:end].count("\n")
        for command, _ in commands(block.body)
    ]
    assert any("pip install" in command for command in typed)
    start, before = time.perf_counter(), _processor()
    for command in typed:
        words = shlex.split(command)
        words[0] = sys.executable if words[0] == "python" else words[0]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
        if done.returncode and re.search(r"Could not find a version|Connection|resolve host", done.stderr):
            pytest.skip("no package index can be reached from here")
        assert done.returncode == 0, done.stderr[-2000:]
    seconds = time.perf_counter() - start
    print(
        f"installed in {seconds:.0f} s, {_processor() - before:.0f} s of processor time, load {os.getloadavg()[0]:.0f}"
    )
    return place, seconds


def _processor() -> float:
    """Seconds of processor time that ended children took: what a machine under load stretches out."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
@pytest.mark.timeout(3 * 60 * MINUTES)
@pytest.mark.parametrize("name", USERS)
def test_from_a_fresh_clone_in_under_ten_minutes(name: str, clone: tuple[Path, float], tmp_path: Path) -> None:
    place, install = clone
    before = _processor()
    seconds, told = follow(place / ".venv" / "bin" / "python", name, tmp_path)
    assert Path(told.split(maxsplit=1)[1]).is_relative_to(place / ".venv"), told
    print(f"{name}: done in {seconds:.0f} s, {_processor() - before:.0f} s of processor time")
    assert install + seconds < 60 * MINUTES
