"""Detector error models: independent errors, the detectors and observables each one flips.

`.dem` files are read here; `.stim` circuits need the package ``stim``, which also samples them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fgnn.decoding.basis import one_basis
from fgnn.decoding.code import Bits, Code
from fgnn.decoding.problem import Problem
from fgnn.errors import InputError, need
from fgnn.pgm.io.stream import COMPRESSIONS, ByteStream

# Errors, detectors and instructions that a file may imply by repetition. The gross code's 12 rounds have 8,784 errors.
MOST_ERRORS = 1 << 20
MOST_DETECTORS = 1 << 20

_INSTRUCTION = re.compile(r"\s*([a-z_]+)(?:\[[^\]]*\])?(?:\(([^)]*)\))?((?:\s+\S+)*)\s*$", re.IGNORECASE)


def read_circuit(path: str | Path, *, all_detectors: bool = False, most_errors: int = MOST_ERRORS) -> Problem:
    """Read a ``.stim`` circuit or a ``.dem`` detector error model as a decoding problem.

    Detectors are checks, errors are bits. Errors with the same detectors and observables become one. In a circuit of a
    CSS code only the basis that the observables depend on is kept, unless ``all_detectors`` is set: ten times fewer
    errors, at the price of the correlation between the two. ``most_errors`` limits what a short file may imply by
    repetition.

    Raises:
        InputError: The file is invalid; one line names the file, the place and the reason.
    """
    file = Path(path)
    kind = (file.with_suffix("") if file.suffix.lower() in COMPRESSIONS else file).suffix.lower()
    if kind not in (".stim", ".dem"):
        raise InputError("Expected a .stim or .dem file", file=file)
    text = _text(file)
    try:
        if kind == ".stim":
            circuit = parse_circuit(text)
            if circuit.num_detectors > MOST_DETECTORS:
                raise InputError(f"Expected at most {MOST_DETECTORS} detectors (got {circuit.num_detectors})")
            text = str(circuit.detector_error_model(approximate_disjoint_errors=True))
        problem = parse_dem(text, most_errors)
        return problem if all_detectors else one_basis(problem)
    except InputError as error:
        raise InputError(str(error), file=file) if error.file is None else error from None
    except ValueError as error:  # stim's errors have many lines
        raise InputError(str(error).splitlines()[0] if str(error) else "is invalid", file=file) from None


def sample_circuit(path: str | Path, shots: int, seed: int = 0) -> tuple[Bits, Bits]:
    """Sample a circuit: the detectors and the observables of every shot.  # shape: (B, checks), (B, observables)"""
    sampler = parse_circuit(_text(Path(path))).compile_detector_sampler(seed=seed)
    detectors, observables = sampler.sample(shots, separate_observables=True)
    return detectors.astype(np.uint8), observables.astype(np.uint8)


def _text(file: Path) -> str:
    try:
        return ByteStream(file).whole().decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("Expected text (got other bytes)", file=file) from None


def parse_circuit(text: str) -> Any:
    """Parse the text of a circuit with stim."""
    stim = need("stim")
    return stim.Circuit(text)


@dataclass
class _Errors:
    """Errors while a model is read; detectors are numbered from ``offset``."""

    most: int
    probability: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = field(default_factory=dict)
    offset: int = 0
    detectors: int = 0
    observables: int = 0
    steps: int = 0

    def add(self, p: float, targets: list[str], line: int) -> None:
        seen: set[tuple[str, int]] = set()
        for target in targets:
            if target == "^":
                continue
            seen ^= {self._target(target, line)}  # a symptom that occurs twice cancels
        checks = tuple(sorted(n for kind, n in seen if kind == "D"))
        flips = tuple(sorted(n for kind, n in seen if kind == "L"))
        before = self.probability.get((checks, flips), 0.0)
        # either of two errors with one symptom, but not both
        self.probability[checks, flips] = before * (1 - p) + p * (1 - before)

    def _target(self, word: str, line: int) -> tuple[str, int]:
        kind, digits = word[:1].upper(), word[1:]
        if kind not in "DL" or not digits.isdigit() or len(digits) > 12:
            raise InputError(f"Expected targets like D5 or L0 (got {word!r:.40})", place=f"line {line}")
        number = int(digits) + (self.offset if kind == "D" else 0)
        if number >= MOST_DETECTORS:
            raise InputError(f"Expected numbers below {MOST_DETECTORS} (got {word})", place=f"line {line}")
        if kind == "D":
            self.detectors = max(self.detectors, number + 1)
        else:
            self.observables = max(self.observables, number + 1)
        return kind, number


def parse_dem(text: str, most_errors: int = MOST_ERRORS) -> Problem:
    """Parse a detector error model of at most ``most_errors`` instructions, repeated ones included."""
    lines = [(n + 1, line.split("#")[0].strip()) for n, line in enumerate(text.splitlines())]
    found = _Errors(most_errors)
    end = _block([(n, line) for n, line in lines if line], 0, found, depth=0)
    if end is not None:
        raise InputError("Expected no closing brace here", place=f"line {end}")
    # errors without detectors cannot be seen; decoding never chooses them
    keys = [key for key in found.probability if key[0] and found.probability[key] > 0]
    if not keys:
        raise InputError("Expected at least one error that flips a detector")
    p = np.array([found.probability[key] for key in keys])
    if p.max() >= 1:
        raise InputError("Expected error probabilities below 1")
    code = Code.of_columns([key[0] for key in keys], found.detectors)
    observables = Code.of_columns([key[1] for key in keys], found.observables)
    return Problem(code, np.log1p(-p) - np.log(p), observables)


def _block(lines: list[tuple[int, str]], at: int, found: _Errors, depth: int) -> int | None:
    """Read instructions to the end of a block; return the line of the brace that closes it, if one does."""
    while at < len(lines):
        number, line = lines[at]
        found.steps += 1
        if found.steps > found.most:
            raise InputError(f"Expected at most {found.most} instructions", place=f"line {number}")
        if line == "}":
            return number
        if line.lower().startswith("repeat"):
            at = _repeat(lines, at, found, depth)
            continue
        _instruction(line, number, found)
        at += 1
    return None


def _repeat(lines: list[tuple[int, str]], at: int, found: _Errors, depth: int) -> int:
    """Read a repeated block as often as it says; return where the text continues."""
    number, line = lines[at]
    match = re.fullmatch(r"repeat(?:\[[^\]]*\])?\s+(\d{1,12})\s*\{", line, re.IGNORECASE)
    if match is None or depth > 20:
        raise InputError("Expected 'repeat N {', nested at most 20 deep", place=f"line {number}")
    end, level = at + 1, 1
    while end < len(lines) and level:
        level += lines[end][1].endswith("{") - (lines[end][1] == "}")
        end += 1
    if level:
        raise InputError("Expected a closing brace", place=f"line {number}")
    body = lines[at + 1 : end - 1]
    for _ in range(int(match[1])):
        if not body:
            break
        _block(body, 0, found, depth + 1)
    return end


def _instruction(line: str, number: int, found: _Errors) -> None:
    match = _INSTRUCTION.match(line)
    name = match[1].lower() if match else ""
    assert match is None or match[3] is not None
    targets = match[3].split() if match else []
    if name == "error":
        p = _number(match[2] if match else None, number)
        if not 0 <= p <= 1:
            raise InputError(f"Expected a probability from 0 to 1 (got {p})", place=f"line {number}")
        found.add(p, targets, number)
    elif name == "shift_detectors":
        if len(targets) != 1 or not targets[0].isdigit() or len(targets[0]) > 12:
            raise InputError("Expected the number of detectors to shift by", place=f"line {number}")
        found.offset += int(targets[0])
        if found.offset > MOST_DETECTORS:
            raise InputError(f"Expected at most {MOST_DETECTORS} detectors", place=f"line {number}")
    elif name in ("detector", "logical_observable"):
        for target in targets:
            found._target(target, number)
    else:
        raise InputError(f"Expected error, detector, logical_observable or shift_detectors (got {line!r:.40})",
                         place=f"line {number}")  # fmt: skip


def _number(text: str | None, line: int) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise InputError(f"Expected a probability (got {text!r:.40})", place=f"line {line}") from None
