"""The wheel works without the repository: installed into an empty environment, used from another folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fgnn.errors import _EXTRAS
from tests.docs.pages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXTRAS = set(_EXTRAS)
OPTIONAL = (*sorted(EXTRAS), "numba", "typer", "rich", "yaml")
MODEL = "MARKOV\n2\n2 2\n1\n2 0 1\n4  1.0 0.5  0.5 2.0\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this working tree, built offline from a copy so that no build folder is left behind."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "src", "setup.py", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "--no-build-isolation", "--no-index", "-q",
         "-w", str(out)],
        check=True, cwd=out,
    )  # fmt: skip
    (file,) = out.glob("fgnn-*.whl")
    return file


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; torch and the other dependencies come from the current one."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=True)
    install = [environment / "bin" / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)]
    start = time.perf_counter()
    subprocess.run(install, check=True, cwd=environment)
    print(f"wheel {wheel.stat().st_size / 1e6:.2f} MB, installed in {time.perf_counter() - start:.1f} s")
    # A plain path: .pth files in that folder, such as our editable install, are not followed.
    site = next(environment.glob("lib/python*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return environment


def call(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FGNN", "COV"))}
    command = [str(home / "bin" / words[0]), *words[1:]]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_the_wheel_holds_all_files_the_package_reads(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [p for p in (ROOT / "src" / "fgnn").rglob("*") if p.suffix in (".yaml", ".html", ".safetensors", ".json")]
    assert len(files) > 10
    for path in [*files, ROOT / "src" / "fgnn" / "py.typed"]:
        assert path.relative_to(ROOT / "src").as_posix() in names, path.name
    assert not [n for n in names if n.startswith(("tests", "docs", "examples"))]


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


def test_the_page_of_the_package_has_an_author_urls_and_no_dead_link(wheel: Path) -> None:
    head = metadata(wheel)
    assert head["Author"] == "the fgnn authors"
    assert head.get_all("Project-URL")
    assert head["Description-Content-Type"].startswith("text/markdown")
    page = head.get_payload()
    assert isinstance(page, str)
    assert "## Solve a model" in page
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    assert not [t for t in targets if not t.startswith(("https://", "#"))]


def test_twine_accepts_the_wheel(wheel: Path) -> None:
    pytest.importorskip("twine")
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", str(wheel)], check=True)


def core_packages(wheel: Path) -> set[Path]:
    """Files and folders of the packages that the core needs, and of what those need."""
    todo: list[str] = metadata(wheel).get_all("Requires-Dist") or []
    places: dict[str, set[Path]] = {}
    while todo:
        need = Requirement(todo.pop())
        if need.name in places or (need.marker is not None and not need.marker.evaluate({"extra": ""})):
            continue
        package = distribution(need.name)
        tops = {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}
        places[need.name] = {Path(str(package.locate_file(top))) for top in tops}
        todo += package.requires or ()
    return set().union(*places.values())


@pytest.fixture
def core(home: Path, wheel: Path) -> Iterator[Path]:
    """The environment without the packages of the extras."""
    (borrowed,) = home.glob("lib/python*/site-packages/borrowed.pth")
    everything = borrowed.read_text()
    links = home / "core-packages"
    links.mkdir()
    for place in core_packages(wheel):
        (links / place.name).symlink_to(place)
    borrowed.write_text(f"{links}\n")
    yield home
    borrowed.write_text(everything)


def test_the_core_alone_does_every_core_job(core: Path) -> None:
    assert call(core, "python", "-c", "import matplotlib").returncode == 1
    jobs = (
        "sample model", "solve grid.uai --time-limit 20", "marginals grid.uai --time-limit 20 --pr",
        "sample scan", "segment scan.ply --out labelled.ply --html scan.html --device cpu",
        "sample code", "decode code.alist --snr 3 --shots 100",
        "sample recipe", "train recipe.yaml --device cpu --time-budget 5",
        "evaluate deep-map-joint --count 20 --kind 1",
        "data chain --count 5 --out chains", "info", "demo --quick --count 20",
    )  # fmt: skip
    for job in jobs:
        done = call(core, "fgnn", *job.split())
        assert done.returncode == 0, f"fgnn {job}: {done.stderr}"
    draw = "import fgnn; fgnn.draw(fgnn.read_model('tiny.uai')).save('a.svg')"
    (core / "tiny.uai").write_text(MODEL)
    assert call(core, "python", "-c", draw).returncode == 0
    image = call(core, "python", "-c", draw.replace("a.svg", "a.png"))
    assert image.stderr.splitlines()[-1].endswith("matplotlib is needed here: pip install 'fgnn[viz]'")


def test_the_command_works_outside_the_repository(home: Path) -> None:
    done = call(home, "fgnn", "--help")
    assert done.returncode == 0, done.stderr
    assert "solve" in done.stdout
    (home / "tiny.uai").write_text(MODEL)
    done = call(home, "fgnn", "solve", "tiny.uai", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["status"] == "optimal"
    assert answer["assignment"] == [1, 1]


def test_the_installed_package_finds_its_own_files(home: Path) -> None:
    program = """
import fgnn, json
from fgnn.tasks.recipe import read_recipe, recipe_names
from fgnn.weights import weight_names, load_weights
[read_recipe(name) for name in recipe_names()]
[load_weights(name) for name in weight_names()]
from importlib.resources import files
pages = [p for p in ("play/pages/play.html", "report/pages/viewer.html") if (files("fgnn") / p).is_file()]
print(json.dumps({"file": fgnn.__file__, "recipes": recipe_names(), "pages": pages}))
"""
    done = call(home, "python", "-c", program)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert Path(facts["file"]).is_relative_to(home)
    assert "tiny" in facts["recipes"]
    assert len(facts["pages"]) == 2


def test_importing_brings_no_optional_package(home: Path) -> None:
    program = (
        "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); import fgnn; "
        "c = time.perf_counter(); import sys; "
        f"print([m for m in {OPTIONAL!r} if m in sys.modules], f'torch {{b - a:.2f}} s, fgnn {{c - b:.2f}} s')"
    )
    done = call(home, "python", "-c", program)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert done.stdout.startswith("[] ")
