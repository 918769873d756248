"""Every parser on mutated inputs: parsed, or refused in one line, quickly and in little memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn.errors import InputError
from tests.fuzz import one, seeds
from tests.fuzz.harnesses import HARNESSES, regressions
from tests.fuzz.watch import attempt

pytest.importorskip("laspy")
pytest.importorskip("lzf")


@pytest.mark.parametrize("name", HARNESSES)
def test_the_seeds_are_valid(name: str) -> None:
    for data in seeds.seeds(name):
        if name != "tar" or not data.startswith(b"\x1f\x8b"):
            HARNESSES[name].read(data)


@pytest.mark.parametrize("name", HARNESSES)
@given(draw=st.integers(0, 2**32 - 1), which=st.integers(0, 9))
@settings(max_examples=40)
def test_a_mutated_input_is_parsed_or_refused(name: str, draw: int, which: int) -> None:
    harness = HARNESSES[name]
    data = harness.mutated(harness.seeds[which % len(harness.seeds)], random.Random(draw))
    assert attempt(harness.read, data).fault == "", data


@pytest.mark.parametrize("name", HARNESSES)
@given(data=st.binary(max_size=200))
@settings(max_examples=15)
def test_any_bytes_are_parsed_or_refused(name: str, data: bytes) -> None:
    assert attempt(HARNESSES[name].read, data).fault == ""


@pytest.mark.parametrize(
    "path", [p for n in HARNESSES for p in regressions(n)], ids=lambda p: f"{p.parent.name}-{p.name}"
)
def test_past_findings_stay_fixed(path: Path) -> None:
    assert attempt(HARNESSES[path.parent.name].read, path.read_bytes()).fault == ""


def test_the_search_counts_what_it_finds(tmp_path: Path) -> None:
    """A parser that fails on one word is detected, and its input stored."""

    def broken(data: bytes) -> None:
        if b"nan" in data:
            raise KeyError("nan")
        raise InputError("no", file="a")

    tally = one.Tally("broken", tmp_path, "mutation")
    for data in (b"1 2", b"1 nan", b"nan"):
        tally.add(data, attempt(broken, data))
    assert (tally.numbers["cases"], tally.numbers["refused"], tally.numbers["findings"]) == (3, 1, 2)
    assert [p.read_bytes() for p in (tmp_path / "findings" / "broken").iterdir()] == [b"1 nan"]


def test_a_refusal_of_two_lines_a_warning_and_a_hog_are_faults() -> None:
    import warnings

    def two_lines(data: bytes) -> None:
        error = InputError("x")
        error.args = ("one\ntwo",)
        raise error

    def warns(data: bytes) -> None:
        warnings.warn("careful", RuntimeWarning, stacklevel=1)

    def hog(data: bytes) -> None:
        bytearray(b"x" * (80 << 20))

    assert "not one line" in attempt(two_lines, b"").fault
    assert "RuntimeWarning" in attempt(warns, b"").fault
    from tests.fuzz.watch import PEAK

    assert not PEAK.known or "bytes for 0" in attempt(hog, b"").fault
