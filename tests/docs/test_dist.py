"""The wheel works without the repository: installed into an empty environment, used from another folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

OPTIONAL = (
    "pytoulbar2", "joblib", "h5py", "laspy", "trimesh", "pypcd4", "torch_geometric", "matplotlib", "plotly", "networkx",
    "numba", "tensorboard", "typer", "rich", "yaml",
)  # fmt: skip
MODEL = "MARKOV\n2\n2 2\n1\n2 0 1\n4  1.0 0.5  0.5 2.0\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this working tree, built offline from a copy so that no build folder is left behind."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "src", "pyproject.toml", "README.md", "LICENSE"],
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
