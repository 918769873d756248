"""The command line as a whole: help, colours, completion, exit codes and `info`."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fgnn.cli import build_app
from tests.cli.test_wrong_uses import command

COLOUR = re.compile(r"\x1b\[[\d;]*[39][0-7]")  # bold and dim are none


def fgnn(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "FGNN_DEBUG", "TERM")}
    command = [sys.executable, "-m", "fgnn", *words]
    return subprocess.run(command, capture_output=True, text=True, env=kept | environment, check=False, timeout=120)


def every_command() -> list[str]:
    """All commands, such as ``solve`` and ``bench layer``."""
    root: Any = typer.main.get_command(build_app())
    names = []
    for name, one in root.commands.items():
        inner = getattr(one, "commands", None)
        names += [f"{name} {k}" for k in inner] if inner else [name]
    return names


@pytest.mark.parametrize("words", every_command())
def test_the_help_of_every_command_has_an_example_of_it(words: str) -> None:
    shown = CliRunner().invoke(build_app(), [*words.split(), "--help"], env={"NO_COLOR": "1", "COLUMNS": "200"})
    assert shown.exit_code == 0
    text = " ".join(shown.output.split())
    assert re.search(rf"Examples?: .*fgnn {words}\b", text), text
    assert re.search(r"--\w", text)


def shows_progress(source: str) -> bool:
    return re.search(r"\b(Stages|ProgressBar)\(", source) is not None


@pytest.mark.parametrize("words", sorted({*every_command()} - {"info", "sample", "play", "bench page"}))
def test_every_long_job_shows_progress(words: str) -> None:
    """In the command, or in the benchmarks and the training that it calls."""
    command: Any = typer.main.get_command(build_app())
    for word in words.split():
        command = command.commands[word]
    own = inspect.getsource(command.callback)
    called = re.findall(r"\bfgnn\.(?:bench\.[\w.]+|train\.run)\b", own)
    source = own if words.startswith("bench ") else inspect.getsource(inspect.getmodule(command.callback))
    assert shows_progress(source) or (
        called and all(shows_progress(inspect.getsource(import_module(m))) for m in called)
    )


def test_help_breaks_its_lines_where_the_terminal_ends() -> None:
    for words in (["solve"], ["bench", "solvers"]):
        wide = CliRunner().invoke(build_app(), [*words, "--help"], env={"NO_COLOR": "1", "COLUMNS": "300"}).output
        prose = [line for line in wide.splitlines() if line.strip() and line[0] not in "╭│╰"]
        assert all(line.rstrip().endswith(".") or line.lstrip().startswith(("Usage", "Example")) for line in prose)


def test_colours_are_left_out_where_asked() -> None:
    coloured = fgnn("--help", FORCE_COLOR="1", TERM="xterm-256color")
    assert COLOUR.search(coloured.stdout)
    plain = fgnn("--help", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color")
    assert plain.returncode == 0
    assert not COLOUR.search(plain.stdout)


def test_tables_obey_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from fgnn.bench.common import show

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    show("title", ("a", "b"), [("x", 1)])
    assert not COLOUR.search(capsys.readouterr().out)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_the_commands(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"COMP_WORDS": "fgnn so", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "fgnn so"}
    for name, value in (words | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_FGNN_COMPLETE", f"complete_{shell}")
    _, out, _ = command("")
    assert "solve" in out
    assert "train" not in out


def test_completion_can_be_installed(tmp_path: Path) -> None:
    put = fgnn("--install-completion", "bash", HOME=str(tmp_path), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert put.returncode == 0, put.stderr
    (script,) = (p for p in tmp_path.rglob("*") if p.is_file() and "complete -o default" in p.read_text())
    assert "_fgnn_completion fgnn" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()


def test_an_interrupted_command_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fgnn.cli.info.gather", interrupted)
    assert command("info") == (130, "", "fgnn: interrupted\n")


def test_the_version_is_printed() -> None:
    import fgnn as package

    assert command("--version") == (0, f"fgnn {package.__version__}\n", "")


def test_info_prints_what_a_bug_report_needs() -> None:
    code, out, _ = command("info --json")
    assert code == 0
    facts = json.loads(out)
    assert {"fgnn", "python", "platform", "cuda", "layer backend", "methods", "weights", "packages"} <= facts.keys()
    assert "exact" in facts["methods"]
    assert "deep-map-joint" in facts["weights"]
    assert facts["packages"]["torch"].startswith("2.")
    assert "weights" in command("info")[1]


@pytest.mark.parametrize("given", [None, "infinity"])
def test_waiting_threads_soon_sleep_unless_the_user_decides(given: str | None) -> None:
    program = (
        "import os, sys\n"
        "from fgnn import cli\n"
        "assert 'torch' not in sys.modules\n"
        "cli.build_app = lambda: lambda **_: print(os.environ['GOMP_SPINCOUNT'])\n"
        "cli.main()\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    env |= {} if given is None else {"GOMP_SPINCOUNT": given}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{given or '1000'}\n"
