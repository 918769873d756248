"""Fuzzing every parser: whatever the bytes, a model or one line comes out, soon."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fgnn import read_model
from fgnn.errors import InputError
from fgnn.pgm import Limits
from tests.pgm.io.samples import BIF, CFN, EVID, GOOD, UAI, WCSP

ALL = b"3000 " + b" ".join(b"%d" % i for i in range(3000))

# Small limits keep a lucky mutation from building a large model, so that time tells of hangs only.
LIMITS = Limits(decompressed=1 << 20, entries=1 << 16)
SUFFIXES = sorted({name.removeprefix("good") for name in GOOD})
# what number, word or mark may stand wherever another stood
WORDS = [
    *(b"0", b"1", b"-1", b"2", b"3", b"1000000000000", b"9" * 30, b"0.5", b"-0.5", b"1e999", b"nan", b"inf", b"-inf"),
    *(b"", b" ", b"\n", b"#", b"//", b"/*", b'"', b"{", b"}", b"[", b"]", b"(", b")", b";", b",", b"|", b"\xff", b"\0"),
    *(
        b"1e-999",
        b"+1",
        b"1_0",
        b"0x1",
        b"1.",
        b".",
        b"-",
        b"e",
        b"salldiff",
        b"max",
        b"knapsack",
        b"default",
        b"table",
    ),
]


def attempt(folder: Path, suffix: str, data: bytes) -> None:
    path = folder / f"fuzz{suffix}"
    path.write_bytes(data)
    start = time.perf_counter()
    try:
        model = read_model(path, limits=LIMITS)
    except InputError as error:
        line = str(error)
        assert line.startswith(str(path))
        assert line.isprintable()
    else:
        # what is read can be used
        assert not model.num_variables or model.score([0] * model.num_variables) < float("inf")
    assert time.perf_counter() - start < 10  # generous: other work shares the machine


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """The data with a few places cut, doubled, or replaced by another word."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 6)))
        kind = draw(st.sampled_from(["word", "cut", "copy", "byte", "move"]))
        if kind == "word":
            data = data[:at] + draw(st.sampled_from(WORDS)) + data[end:]
        elif kind == "cut":
            data = data[:at] + data[end:]
        elif kind == "copy":
            data = data[:end] + data[at:end] * draw(st.integers(1, 50)) + data[end:]
        elif kind == "byte":
            data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
        else:
            data = data[:at] + data[end:] + data[at:end]
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.binary(max_size=400))
def test_any_bytes(folder: Path, suffix: str, data: bytes) -> None:
    attempt(folder, suffix, data)


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.data())
@settings(max_examples=80)
def test_a_good_file_mutated(folder: Path, suffix: str, data: st.DataObject) -> None:
    attempt(folder, suffix, data.draw(mutated(GOOD[f"good{suffix}"])))


@given(data=st.one_of(st.binary(max_size=60), mutated(EVID)))
@example(data=b"1 " * 9)
def test_evidence(folder: Path, data: bytes) -> None:
    (folder / "fuzz.uai").write_bytes(UAI)
    path = folder / "fuzz.evid"
    path.write_bytes(data)
    try:
        read_model(folder / "fuzz.uai", evidence=path, limits=LIMITS)
    except InputError as error:
        line = str(error)
        assert line.startswith(str(path))
        assert line.isprintable()


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        # comments without an end, each of which could be searched to the end of the file
        (".bif", b"/*" * 200_000),
        (".bif", BIF + b'"' * 100_001),
        (".cfn", b"//" * 200_000),
        (".cfn", b"{" * 200_000),
        (".cfn", CFN[:-4] + b"f: {scope: [" + b"a " * 50_000),
        # thousands of variables in one scope, whose product of cardinalities is a number of many digits
        (".wcsp", b"t 3000 2 1 9\n" + b"2 " * 3000 + b"\n" + ALL + b" 0 0\n"),
        (".wcsp", b"t 3000 1 1 9\n" + b"1 " * 3000 + b"\n" + ALL + b" 0 0\n"),
        # all pairs of thousands of variables
        (".wcsp", b"t 3000 1 1 9\n" + b"1 " * 3000 + b"\n" + ALL + b" -1 salldiff var 9\n"),
        (".wcsp", WCSP.replace(b"10\n", b"9223372036854775807\n", 1)),
        (".fg", b"#" * 200_000),
        (".fg", b"1\n\n31\n" + b" ".join(b"%d" % i for i in range(31)) + b"\n" + b"1 " * 31 + b"\n1\n0 1\n"),
        (".uai", b"MARKOV 31 " + b"1 " * 31 + b"1 31 " + b" ".join(b"%d" % i for i in range(31)) + b" 1 0.5"),
        (".uai", b"MARKOV 1 2 100000 " + b"0 " * 100_000 + b"1 1 " * 100_000),
        (".uai", b"BAYES 0 0"),
        (".uai", b"MARKOV 0 1 0 1 0"),
    ],
)  # fmt: skip
def test_findings(folder: Path, suffix: str, data: bytes) -> None:
    """Files that are slow or wrong to read in a careless parser."""
    attempt(folder, suffix, data)
