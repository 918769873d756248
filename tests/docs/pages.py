"""Run the code blocks of a documentation page and compare their output with what the page shows.

- ``python`` blocks share one namespace. A ``text`` block after one is its expected output (``...`` matches anything).
  On the site every block that prints is followed by one; the README may omit it.
- ``console`` blocks hold commands after ``$``, each followed by its expected output or by nothing. Commands of the
  package run in this process; ``$ echo $?`` shows the exit code of the last one. Commands that need weights which are
  not packaged are skipped. Other programs must be listed in ``NOT_RUN``.
- ``yaml`` blocks whose first line is a comment with a file name are written to that file.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w./-]+\.ya?ml)\n")
NOT_RUN = ("git", "python", "pip", "make", "torchrun", "cat", "ls", "cd")
_CHECKER = doctest.OutputChecker()


def all_pages() -> list[Path]:
    """Every Markdown page of the site, and the README."""
    return [*sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts), ROOT / "README.md"]


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the line of the page on which the text begins."""

    kind: str
    body: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page that have a language, in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(b[1], b[2], text[: b.start(2)].count("\n") + 1) for b in BLOCK.finditer(text)]


def commands(body: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output shown below it."""
    pairs: list[tuple[str, str]] = []
    for line in body.splitlines(keepends=True):
        if line.startswith("$ "):
            pairs.append((line[2:].strip(), ""))
        elif line.startswith("> ") and pairs and pairs[-1][0].endswith("\\"):
            pairs[-1] = (pairs[-1][0][:-1] + line[2:].strip(), "")
        else:
            assert pairs, f"Expected a command after $ (got {line!r})"
            pairs[-1] = (pairs[-1][0], pairs[-1][1] + line)
    return pairs


def needs_weights(words: list[str]) -> bool:
    """Return whether a command names weights that neither the package nor the current folder has."""
    from fgnn.weights import weight_names

    named = [after for word, after in pairwise(words) if word in ("--model", "evaluate")]
    return any(name not in weight_names() and not Path(name).exists() for name in named)


class Session:
    """Runs the blocks of one page in the current folder."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.namespace: dict[str, object] = {"__name__": "page"}
        self.code = 0
        self.ran = 0

    def run(self) -> None:
        steps = blocks(self.page)
        for k, block in enumerate(steps):
            if block.kind == "python":
                shown = steps[k + 1].body if k + 1 < len(steps) and steps[k + 1].kind == "text" else ""
                printed = self.python(block)
                if shown or self.page.name != "README.md":
                    self._same(printed, shown, block.line)
            elif block.kind == "console":
                self._console(block)
            elif block.kind == "yaml" and (name := FILE_NAME.match(block.body)):
                Path(name[1]).write_text(block.body, encoding="utf-8")

    def python(self, block: Block) -> str:
        """Execute a block and return what it printed."""
        code = compile("\n" * (block.line - 1) + block.body, str(self.page), "exec", dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, self.namespace)
        self.ran += 1
        return printed.getvalue()

    def _console(self, block: Block) -> None:
        pairs = commands(block.body)
        for k, (command, shown) in enumerate(pairs):
            words = shlex.split(command, comments=True)
            if words == ["echo", "$?"]:
                self._same(f"{self.code}\n", shown, block.line)
            elif words[0] == "fgnn" and needs_weights(words):
                continue
            elif words[0] == "fgnn":
                printed = self.command(words)
                failure_shown = k + 1 < len(pairs) and pairs[k + 1][0] == "echo $?"
                assert self.code == 0 or failure_shown, (
                    f"{self.page.name}, line {block.line}: {command}: {self.code}\n{printed}"
                )
                if shown:
                    self._same(printed, shown, block.line)
            else:
                assert words[0].rsplit("/", 1)[-1] in NOT_RUN, f"{self.page.name}, line {block.line}: {command}"

    def command(self, words: list[str]) -> str:
        """Run a command of the package as the console script would; return its output on both streams."""
        from fgnn.cli import main

        printed, before = io.StringIO(), sys.argv
        sys.argv = words
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                main()
            self.code = 0
        except SystemExit as end:
            self.code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            sys.argv = before
        self.ran += 1
        return printed.getvalue()

    def _same(self, printed: str, shown: str, line: int) -> None:
        got, want = (re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE) for text in (printed, shown))
        if not _CHECKER.check_output(want, got, doctest.ELLIPSIS):
            raise AssertionError(f"{self.page.name}, line {line}: shown\n{want}\nprinted\n{got}")
