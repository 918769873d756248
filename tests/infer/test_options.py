"""Options from the command line: typed by the solvers' signatures, refused in one line, completed by the shell."""

from __future__ import annotations

import contextlib
import io
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
import torch

from fgnn.cli import main
from fgnn.cli.complete import complete_solver, complete_solver_option
from fgnn.infer.methods import choices, fits, named, option_kinds, parse_options
from fgnn.schema import Between
from fgnn.solvers import SOLVERS

TEXTS = (
    "", "abc", "high", "None", "true", "-1", "0", "1", "2.5", "1e3", "1e999", "nan", "-inf", "10" * 20, "[]", "{}",
    '{"a": 1}', "[1, 2]", "\x1b[2J", "../../x", "float64", "best", "x" * 5000,
)  # fmt: skip


def cases() -> list[tuple[str, str, str]]:
    """Every option of every solver with every text, and options that no solver has."""
    known = {method: option_kinds(named(method, SOLVERS)) or {} for method in SOLVERS}
    listed = [(method, name, text) for method, kinds in known.items() for name in kinds for text in TEXTS]
    return listed + [(method, name, "1") for method in SOLVERS for name in ("", "no", "seed", "time_limit", "progress")]


def check(method: str, name: str, text: str, model: Path) -> None:
    """Solve with one option: an answer, or one line and exit code 2."""
    words = ["fgnn", "solve", str(model), "-m", method, "-t", "2", "-o", f"{name}={text}"]
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, words
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
            main()
    finally:
        sys.argv = before
    assert end.value.code in (0, 1, 2), words
    if end.value.code == 2:
        assert err.getvalue().startswith("fgnn: "), words
        assert err.getvalue().count("\n") == 1, (words, err.getvalue())
        assert err.getvalue().rstrip("\n").isprintable(), words


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FGNN_DEBUG", raising=False)
    (tmp_path / "tiny.uai").write_text("MARKOV\n2\n2 2\n1\n2 0 1\n4  1.0 0.5  0.5 2.0\n")
    return tmp_path / "tiny.uai"


def test_a_mistyped_option_is_refused_in_one_line(model: Path) -> None:
    for case in random.Random(0).sample([c for c in cases() if c[1] != "jobs"], 60):
        check(*case, model)


@pytest.mark.slow
@pytest.mark.parametrize("method", SOLVERS)
def test_every_option_with_every_text(model: Path, method: str) -> None:
    assert len(cases()) > 700
    for case in cases():
        if case[0] == method:
            check(*case, model)


def read(text: str, kind: Any) -> Any:
    def method(*, option: Any) -> None: ...

    method.__annotations__["option"] = kind
    return parse_options("m", method, {"option": text})["option"]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1e3", int, 1000), ("7", int | None, 7), ("none", int | None, None), ("0.5", float, 0.5), ("2", float, 2.0),
        ("inf", float, float("inf")), ("True", bool, True), ("false", bool, False),
        ("best", Literal["best", "last"], "best"), ("float32", torch.dtype, torch.float32),
        ("deep-grid", str | Path | None, "deep-grid"), ('{"a": 1}', dict, {"a": 1}),
    ],
)  # fmt: skip
def test_a_text_becomes_the_declared_type(text: str, kind: Any, value: Any) -> None:
    assert read(text, kind) == value
    assert type(read(text, kind)) is type(value)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("high", float, r"option of m to be float \(got 'high'\)"),
        ("nan", float, r"\(got 'nan'\)"),
        ("2.5", int, r"to be int \(got '2.5'\)"),
        ("1e999", int, "to be int"),
        ("5", bool, r"to be bool \(got '5'\)"),
        ("worst", Literal["best", "last"], r"to be best or last \(got 'worst'\)"),
        ("float65", torch.dtype, "dtype"),
        ("[1]", dict, "dict"),
        ("3", torch.Tensor, "Tensor"),
        ("5", Annotated[int, Between(0, 4)], r"option of m: Expected at least 0 and at most 4 \(got 5\)"),
    ],
)
def test_another_text_is_refused(text: str, kind: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(text, kind)


def test_values_from_python_fit_by_the_same_rules() -> None:
    assert fits(True, bool)
    assert fits(3.0, int)
    assert not fits(7, bool)
    assert not fits("best", Literal["a"])
    assert not fits(float("nan"), float)


def test_methods_options_and_choices_are_completed() -> None:
    assert complete_solver("max") == ["max-product"]
    context = SimpleNamespace(params={"method": "max-product"})
    assert "damping=" in complete_solver_option(context, "da")
    assert complete_solver_option(context, "schedule=f") == ["schedule=flooding"]
    assert complete_solver_option(context, "normalise=") == ["normalise=true", "normalise=false"]
    assert choices(int | None) == ["none"]
