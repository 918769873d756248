"""The site builds offline and without warnings: every reference resolves, every docstring renders."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT


def build(out: Path, builder: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_nb")
    pytest.importorskip("furo")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder, str(DOCS), str(out)]
    # An unreachable proxy: any download during the build fails.
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment = os.environ | proxies | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=280)


def test_every_page_parses_and_every_reference_resolves(tmp_path: Path) -> None:
    """Everything but the writing of HTML, which takes as long again."""
    done = build(tmp_path, "dummy")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = build(tmp_path, "html")
    assert done.returncode == 0, done.stderr
    notebook = (tmp_path / "notebooks" / "solve.html").read_text(encoding="utf-8")
    assert "brute-force  optimal" in notebook
    assert "<img" in notebook
    commands = (tmp_path / "command-line.html").read_text(encoding="utf-8")
    assert "fgnn solve" in commands
    assert "--time-limit" in commands
    assert (tmp_path / "api" / "nn.html").stat().st_size > 50_000
    for page in tmp_path.rglob("*.html"):
        assert not re.findall(r"""(?:src|srcset)=["']https?:|<link[^>]*https?:""", page.read_text(encoding="utf-8")), (
            page
        )


def test_formulas_become_mathml(monkeypatch: pytest.MonkeyPatch) -> None:
    math = pytest.importorskip("docutils.utils.math")
    monkeypatch.syspath_prepend(DOCS / "_ext")
    from mathml import to_mathml

    assert "<msub>" in to_mathml(r"\theta_c")
    assert "<mtable" in to_mathml(r"a &= b \\ c &= d", block=True)
    for accented in (r"\hat x_c", r"\hat{x}_c", r"\tilde g_c", r"\tilde\theta_i", r"\hat{\theta}_{i'}"):
        assert "munder" not in to_mathml(accented), accented
    assert "[" in to_mathml(r"\Big[ x \Big]")
    assert to_mathml(r"\Big\| x \Big\|^2").count("‖") == 2
    for wrong in (r"\unheardof{x}", r"a &= b"):
        with pytest.raises(math.MathError):
            to_mathml(wrong, block=True)


def test_every_formula_of_a_page_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docutils.utils.math")
    monkeypatch.syspath_prepend(DOCS / "_ext")
    from mathml import to_mathml

    shown = 0
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"^```.*?^```$|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for block, inline in re.findall(r"\$\$(.+?)\$\$|(?<![\\$])\$([^$\n]+?)\$(?!\$)", text, re.DOTALL):
            to_mathml(block or inline, block=bool(block))
            shown += 1
    assert shown > 100


def test_every_formula_of_a_docstring_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docutils.utils.math")
    monkeypatch.syspath_prepend(DOCS / "_ext")
    from mathml import to_mathml

    shown = 0
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for block in re.findall(r"\.\. math::(.*?)(?:\n\n(?=\S)|\Z)", ast.get_docstring(node) or "", re.DOTALL):
                    to_mathml(block, block=True)
                    shown += 1
    assert shown > 30
