"""Weights and data never execute code: no module unpickles, evaluates or extracts, and traps in files stay inert."""

from __future__ import annotations

import ast
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fgnn.data.s3dis import load_room
from fgnn.data.stored import load_models
from fgnn.errors import InputError
from fgnn.nn.backends.triton.straight_line import CALL, Memory, Whole, straight_line
from fgnn.nn.backends.triton.tape import Place
from fgnn.pgm import read_model
from fgnn.points.cloud import read_cloud
from fgnn.tasks.recipe import read_recipe
from fgnn.train.checkpoint import load_checkpoint
from fgnn.weights import load_weights

SOURCE = Path(__file__).resolve().parents[2] / "src" / "fgnn"
# Calls that execute the content of a file, or extract archives to the paths they name.
FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load",
    "joblib.load",
    "marshal.load", "marshal.loads", "shelve.open", "dill.load", "yaml.unsafe_load", "yaml.full_load", "os.system",
    "torch.jit.load", "torch.package.PackageImporter", "extractall", "extract", "np.fromregex", "cloudpickle.load",
}  # fmt: skip
# Writes the steps of a replay as a function: numbers and names of its own, see `test_text_in_a_step_stays_text`.
WRITES = {"nn/backends/triton/straight_line.py": ["compile", "exec"]}
# Harmless methods of the same name.
METHODS = {"eval", "compile", "exec", "extract"}


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            parts: list[str] = []
            at: ast.expr = node.func
            while isinstance(at, ast.Attribute):
                parts.insert(0, at.attr)
                at = at.value
            parts.insert(0, at.id if isinstance(at, ast.Name) else "?")
            names.append((".".join(parts), node))
    return names


def wrong(text: str) -> list[str]:
    """The forbidden calls and imports in a module."""
    tree, problems = ast.parse(text), []
    for name, node in calls(tree):
        last = name.rsplit(".", 1)[-1]
        if name in FORBIDDEN or (last in FORBIDDEN and last not in METHODS and "." in name):
            problems.append(f"line {node.lineno}: {name}")
        if name in ("np.load", "numpy.load"):
            keywords = {k.arg: k.value for k in node.keywords}
            safe = keywords.get("allow_pickle")
            if not (isinstance(safe, ast.Constant) and safe.value is False):
                problems.append(f"line {node.lineno}: {name} without allow_pickle=False")
        if name == "yaml.load" and not (len(node.args) == 2 and isinstance(node.args[1], ast.Name)):
            problems.append(f"line {node.lineno}: yaml.load without an explicit loader")
        if any(k.arg == "shell" for k in node.keywords):
            problems.append(f"line {node.lineno}: a shell")
        if any(k.arg == "allow_pickle" and getattr(k.value, "value", True) for k in node.keywords):
            problems.append(f"line {node.lineno}: allow_pickle")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] + [getattr(node, "module", None) or ""]
            problems += [
                f"line {node.lineno}: imports {n}" for n in names if n.split(".")[0] in ("pickle", "marshal", "dill")
            ]
    return problems


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_module_executes_the_content_of_a_file(path: Path) -> None:
    allowed = WRITES.get(str(path.relative_to(SOURCE)), [])
    problems = [problem.split(": ")[1] for problem in wrong(path.read_text(encoding="utf-8"))]
    assert sorted(problems) == allowed


def test_text_in_a_step_stays_text(tmp_path: Path) -> None:
    """Whatever a step holds is a literal or an object under a number, never a line."""
    mark = tmp_path / "went-off"
    text = f"'); __import__('os').mkdir('{mark}') #\n    __import__('os').mkdir('{mark}')\n\"\"\""
    seen: list[object] = []

    def call(x: torch.Tensor, *given: object, **options: object) -> torch.Tensor:
        seen.extend([*given, *options.values()])
        return x.clone()

    class Name(str):
        __slots__ = ()

        def __repr__(self) -> str:
            return text

    place = Place(0, 0, (2,), (1,), torch.float32)
    given = [text, Name("x"), [text]]
    steps = [(CALL, call, [place, *given], {"option": text}, [1])]
    memory = Memory(torch.device("cpu"), [0], [None, None, None, None], [torch.float32, None, None, None], [0, 0])
    x = torch.ones(2)
    (found,) = straight_line(steps, memory, [Whole(1)], [])([x], None, lambda: None) or []
    assert torch.equal(found, x)
    assert seen == [*given, text]
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    [
        "torch.load('a')", "import pickle", "np.load(p)", "np.load(p, allow_pickle=True)", "eval(x)",
        "yaml.load(text)", "tar.extractall(p)", "subprocess.run(x, shell=True)", "from pickle import loads",
        "exec(code)",
    ],
)  # fmt: skip
def test_the_search_finds_forbidden_calls(text: str) -> None:
    assert wrong(text)


# ---- traps ------------------------------------------------------------------------------------------------------


class Trap:
    """An object whose unpickling leaves a trace."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return (os.mkdir, (str(self.mark),))


def _npy(trap: Trap) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([trap], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def _npz(trap: Trap) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("xyz.npy", _npy(trap))
    return buffer.getvalue()


def _pt(trap: Trap) -> bytes:
    buffer = io.BytesIO()
    torch.save({"w": trap}, buffer)
    return buffer.getvalue()


def _yaml(trap: Trap) -> bytes:
    return f"data: !!python/object/apply:os.mkdir ['{trap.mark}']\nsteps: 1\n".encode()


def _folder(path: Path) -> object:
    (path.parent / "dataset.json").write_bytes(path.read_bytes())
    return load_models(path.parent)


TRAPS: list[tuple[str, Callable[[Trap], bytes], Callable[[Path], object]]] = [
    ("a.npy", _npy, read_cloud),
    ("a.npz", _npz, read_cloud),
    ("a.npy", _npy, load_room),
    ("a.pt", _pt, load_weights),
    ("a.safetensors", _pt, load_weights),
    ("a.safetensors", pickle.dumps, load_weights),
    ("last.ckpt", _pt, load_checkpoint),
    ("a.fgm", pickle.dumps, read_model),
    ("a.fgm", _pt, read_model),
    ("recipe.yaml", _yaml, read_recipe),
    ("models.safetensors", pickle.dumps, _folder),
]


@pytest.mark.parametrize(("name", "make", "read"), TRAPS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_trap_is_refused_and_not_triggered(
    tmp_path: Path, name: str, make: Callable[[Trap], bytes], read: Callable[[Path], object]
) -> None:
    mark = tmp_path / "went-off"
    (tmp_path / name).write_bytes(make(Trap(mark)))
    with pytest.raises(InputError) as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert not mark.exists()


def test_the_trap_works_when_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "went-off"
    with pytest.raises(pickle.UnpicklingError):
        torch.load(io.BytesIO(_pt(Trap(mark))), weights_only=True)
    assert not mark.exists()
    np.load(io.BytesIO(_npy(Trap(mark))), allow_pickle=True)
    assert mark.is_dir()
