"""Harnesses of what users type or send rather than store: options, names of fields, units of numbers, HTTP requests."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fgnn.errors import InputError
from tests.fuzz.folder import folder

_SUFFIXES = (".ply", ".las", ".laz", ".pcd", ".xyz", ".csv", ".npy", ".npz")
_KINDS = ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
_METHODS = ("brute-force", "exact", "max-product", "auto")


def names(data: bytes) -> None:
    """A scan with a field of any name in any format: the field is the same after writing and reading, or refused.

    The first two bytes select the format and the type, a byte 255 separates names.
    """
    from fgnn.points.cloud import Cloud, read_cloud, write_cloud

    if len(data) < 2:
        raise InputError("no format")
    suffix, kind = _SUFFIXES[data[0] % len(_SUFFIXES)], np.dtype(_KINDS[data[1] % len(_KINDS)])
    words = dict.fromkeys(word.decode("utf-8", "surrogateescape") for word in data[2:].split(b"\xff")[:4])
    fields = {word: (np.arange(3) % 2).astype(kind) for word in words}
    path = folder() / f"names{suffix}"
    path.unlink(missing_ok=True)
    try:
        write_cloud(Cloud(np.arange(9.0).reshape(3, 3), fields), path)
    except InputError:
        assert not path.exists(), "a refused scan was written"
        raise
    back = read_cloud(path)
    assert np.array_equal(back.xyz, np.arange(9.0).reshape(3, 3)), "the coordinates changed"
    for name, values in fields.items():
        assert np.array_equal(back.fields[name], values), f"{name!r} changed"


def units(data: bytes) -> None:
    """Two binary variables and their table in any unit, with any constant: methods agree, and no proof is false.

    The first byte selects the method; then come the exponent of the unit, the constant and the eight numbers.
    """
    from fgnn import GraphicalModel, solve

    try:
        numbers = [float(word) for word in data[1:].decode("ascii").split()]
    except (ValueError, UnicodeDecodeError):
        raise InputError("no numbers") from None
    if len(numbers) != 10 or not all(math.isfinite(n) for n in numbers) or abs(numbers[0]) > 200:
        raise InputError("other numbers")
    unit, constant, *values = 10.0 ** round(numbers[0]), *numbers[1:]
    values = [value * unit for value in values]
    if max(map(abs, values)) > 1e299 or abs(constant) > 1e299:
        raise InputError("beyond float64")
    model = GraphicalModel([2, 2])
    model.add_unaries(np.array(values[:4]))
    model.add_table((0, 1), np.array(values[4:]).reshape(2, 2))
    model.constant = constant
    scores = [model.score([i, j]) for i in (0, 1) for j in (0, 1)]
    solution = solve(model, _METHODS[data[0] % len(_METHODS)])
    assert solution.score == model.score(solution.assignment), "another score than that of the assignment"
    if solution.status == "optimal":
        slack = 8 * np.finfo(float).eps * (max(map(abs, scores)) + sum(map(abs, values)))
        assert solution.score >= max(scores) - slack, f"a false proof: {solution.score} of {max(scores)}"
    assert not math.isnan(float(solution.bound)), "a bound that is no number"


def options(data: bytes, command: str = "solve") -> None:
    """The words after ``fgnn solve MODEL``: solved, or refused with exit code 2 and one line."""
    import sys
    from unittest import mock

    from fgnn.cli import main

    words = data.decode("utf-8", "replace").split()[:12]
    if any(word.startswith(("-j", "--jo", "--help", "-h", "--install", "--show")) or "/" in word for word in words):
        raise InputError("not this one")  # it starts processes, or shows help
    out, err, app = io.StringIO(), io.StringIO(), _app()
    code: Any = None
    with (
        mock.patch.object(sys, "argv", ["fgnn", command, str(_model()), "-t", "0.2", *words]),
        mock.patch("fgnn.cli._stop_on_sigterm"),
        mock.patch("fgnn.cli.build_app", return_value=app),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    assert code in (0, 1, 2), f"exit code {code}"
    assert "Traceback" not in err.getvalue()
    if code == 2:
        lines = err.getvalue().splitlines()
        assert lines, "no line on standard error"
        assert len(lines) <= len(words) + 1, "more lines than models"
        assert all(line.startswith("fgnn: ") for line in lines), f"other lines on standard error: {lines[0]}"
        raise InputError(lines[0])


@cache
def _app() -> Any:
    from fgnn.cli import build_app

    return build_app()


@cache
def _model() -> Path:
    path = folder() / "options.uai"
    path.write_text("MARKOV\n2\n2 2\n1\n2 0 1\n4  1.0 0.5  0.5 2.0\n", encoding="utf-8")
    return path


class _Workers:
    """Replies at once, so that only the server itself is tested."""

    def ask(self, path: str, body: bytes, cancelled: Callable[[], bool]) -> tuple[int, bytes]:
        return 200, b"{}"


class _Server:
    server_port, workers = 8473, _Workers()

    def page(self) -> tuple[int, bytes]:
        return 200, b"<!doctype html>"


def http(data: bytes) -> None:
    """The bytes a client sends: every reply is HTTP with a known status, and only this page is served."""
    from fgnn.play.server import _Handler

    class Handler(_Handler):
        def setup(self) -> None:
            self.rfile, self.wfile = io.BytesIO(data), io.BytesIO()

        def finish(self) -> None:
            replies.append(self.wfile.getvalue())

    replies: list[bytes] = []
    Handler(None, ("127.0.0.1", 1), _Server())  # type: ignore[arg-type]
    reply = replies[0]
    if reply and not reply.startswith(b"HTTP/1."):
        assert reply.startswith(b"<!DOCTYPE") or b"\r\n" not in reply[:9], reply[:40]  # HTTP/0.9 has no header
    status = reply.split(b" ", 2)[1] if reply.startswith(b"HTTP/1.") else b"400"
    assert status.isdigit(), reply[:40]
    assert status in (b"100", b"200", b"400", b"403", b"404", b"411", b"413", b"414", b"415", b"431", b"501", b"505"), (
        status
    )
    if status != b"200":
        raise InputError("refused")
    assert b"Content-Security-Policy" in reply
