"""Files that a careless parser reads slowly or wrongly; `tests.fuzz` mutates files of every format."""

from __future__ import annotations

import pytest

from tests.fuzz.harnesses import HARNESSES
from tests.fuzz.watch import attempt
from tests.pgm.io.samples import BIF, CFN, WCSP

ALL = b"3000 " + b" ".join(b"%d" % i for i in range(3000))


@pytest.mark.parametrize(
    ("parser", "data"),
    [
        # unterminated comments, each of which could be searched to the end of the file
        ("bif", b"/*" * 200_000),
        ("bif", BIF + b'"' * 100_001),
        ("cfn", b"//" * 200_000),
        ("cfn", b"{" * 200_000),
        ("cfn", CFN[:-4] + b"f: {scope: [" + b"a " * 50_000),
        # a scope of thousands of variables, whose table size has many digits
        ("wcsp", b"t 3000 2 1 9\n" + b"2 " * 3000 + b"\n" + ALL + b" 0 0\n"),
        ("wcsp", b"t 3000 1 1 9\n" + b"1 " * 3000 + b"\n" + ALL + b" 0 0\n"),
        # all pairs of thousands of variables
        ("wcsp", b"t 3000 1 1 9\n" + b"1 " * 3000 + b"\n" + ALL + b" -1 salldiff var 9\n"),
        ("wcsp", WCSP.replace(b"10\n", b"9223372036854775807\n", 1)),
        ("fg", b"#" * 200_000),
        ("fg", b"1\n\n31\n" + b" ".join(b"%d" % i for i in range(31)) + b"\n" + b"1 " * 31 + b"\n1\n0 1\n"),
        ("uai", b"MARKOV 31 " + b"1 " * 31 + b"1 31 " + b" ".join(b"%d" % i for i in range(31)) + b" 1 0.5"),
        ("uai", b"MARKOV 1 2 100000 " + b"0 " * 100_000 + b"1 1 " * 100_000),
        ("uai", b"BAYES 0 0"),
        ("evidence", b"1 " * 9),
        ("uai", b"MARKOV 0 1 0 1 0"),
    ],
)  # fmt: skip
def test_a_pathological_file_is_read_or_refused(parser: str, data: bytes) -> None:
    assert attempt(HARNESSES[parser].read, data).fault == ""
