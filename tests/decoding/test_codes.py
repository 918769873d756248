"""Codes: matrices, ranks, encoders, and every kind of file."""

from __future__ import annotations

import lzma
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, save_npz

from fgnn.decoding import Code, read_code
from fgnn.decoding.gf2 import nullspace, pack, rank, reduce, unpack
from fgnn.errors import InputError

HAMMING = np.array([[1, 1, 0, 1, 1, 0, 0], [1, 0, 1, 1, 0, 1, 0], [0, 1, 1, 1, 0, 0, 1]], np.uint8)
ALIST = """7 3
3 4
2 2 2 3 1 1 1
4 4 4
1 2 0
1 3 0
2 3 0
1 2 3
1 0 0
2 0 0
3 0 0
1 2 4 5
1 3 4 6
2 3 4 7
"""

matrices = st.integers(0, 10_000).map(
    lambda seed: (lambda r: r.integers(0, 2, (r.integers(1, 9), r.integers(1, 90)), np.uint8))(
        np.random.default_rng(seed)
    )
)


@given(matrices)
@settings(max_examples=60, deadline=None)
def test_words_of_the_nullspace_are_all_words_with_syndrome_zero(h: np.ndarray) -> None:
    basis = nullspace(h)
    assert not (basis @ h.T % 2).any()
    assert len(basis) == h.shape[1] - rank(h)
    assert rank(basis) == len(basis) if len(basis) else True
    assert np.array_equal(unpack(pack(h), h.shape[1]), h)


def test_rank_agrees_with_elimination_in_floats_where_they_are_the_same() -> None:
    reduced, pivots = reduce(np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], np.uint8))
    assert pivots == [0, 1]  # the rows add up to zero modulo 2
    assert reduced.tolist() == [[1, 0, 1], [0, 1, 1]]


def test_a_code_keeps_its_matrix_and_encodes() -> None:
    code = Code.of(HAMMING)
    assert np.array_equal(code.matrix(), HAMMING)
    assert np.array_equal(Code.of(csr_matrix(HAMMING)).matrix(), HAMMING)
    assert (code.num_bits, code.num_checks, code.num_edges, code.dimension) == (7, 3, 12, 4)
    messages = np.array([[int(b) for b in f"{n:04b}"] for n in range(16)])
    words = code.encode(messages)
    assert len(np.unique(words, axis=0)) == 16
    assert not code.syndrome(words).any()
    errors = np.eye(7, dtype=np.uint8)
    assert np.array_equal(code.syndrome(errors), HAMMING.T)
    assert code.graph().num_variables == 7


@pytest.mark.parametrize(
    ("matrix", "message"),
    [([1, 0], "Expected a matrix"), ([[2, 0]], "zeros and ones")],
)
def test_other_matrices_are_refused(matrix: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Code.of(matrix)


def test_every_kind_of_file_gives_the_same_code(tmp_path: Path) -> None:
    (tmp_path / "a.alist").write_text(ALIST)
    (tmp_path / "a.alist.xz").write_bytes(lzma.compress(ALIST.encode()))
    short = "\n".join(" ".join(w for w in line.split() if w != "0") for line in ALIST.splitlines())
    (tmp_path / "96.3.963").write_text(short)
    np.save(tmp_path / "a.npy", HAMMING)
    np.savez(tmp_path / "b.npz", h=HAMMING)
    save_npz(tmp_path / "c.npz", csr_matrix(HAMMING))
    for name in ("a.alist", "a.alist.xz", "96.3.963", "a.npy", "b.npz", "c.npz"):
        assert np.array_equal(read_code(tmp_path / name).matrix(), HAMMING), name


def test_blocks_are_shifted_identities(tmp_path: Path) -> None:
    (tmp_path / "a.qc").write_text("2 1 3\n\n1 -1\n")
    want = np.zeros((3, 6), np.uint8)
    want[[0, 1, 2], [1, 2, 0]] = 1
    assert np.array_equal(read_code(tmp_path / "a.qc").matrix(), want)


def test_a_base_graph_takes_the_shifts_of_its_lifting_size(tmp_path: Path) -> None:
    rows = ["Row index;Column index;Set index;;;;;;;", ";;0;1;2;3;4;5;6;7", "0;0;5;7;0;0;0;0;0;0", ";2;1;1;1;1;1;1;1;1"]
    (tmp_path / "bg.csv").write_text("\n".join(rows))
    code = read_code(tmp_path / "bg.csv", lifting=6)  # 3 · 2, set 1: shifts 7 and 1
    assert (code.num_checks, code.num_bits, code.hidden) == (6, 18, 12)
    assert code.bits[:2].tolist() == [1, 13]
    with pytest.raises(InputError, match="Expected a lifting size of the standard"):
        read_code(tmp_path / "bg.csv", lifting=17)
    with pytest.raises(InputError, match="Expected a lifting size for a base graph"):
        read_code(tmp_path / "bg.csv")


BROKEN = {
    "empty": "",
    "words": "seven three\n",
    "weights": ALIST.replace("2 2 2 3 1 1 1", "2 2 2 3 1 1"),
    "range": ALIST.replace("1 2 3\n", "1 2 9\n"),
    "short": "\n".join(ALIST.splitlines()[:7]),
    "differ": ALIST.replace("2 3 4 7", "1 3 4 7"),
    "twice": ALIST.replace("1 2 3\n", "1 2 2\n"),
    "huge": "99999999999 99999999999\n1 1\n1\n1\n1\n1\n",
    "negative": ALIST.replace("2 2 2 3 1 1 1", "2 2 2 3 1 1 -1"),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_file_is_refused_in_one_line_that_names_it(text: str, tmp_path: Path) -> None:
    file = tmp_path / "code.alist"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_code(file)
    assert "code.alist" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200), st.sampled_from([".alist", ".qc", ".npy", ".npz", ".alist.gz"]))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str) -> None:
    file = tmp_path_factory.getbasetemp() / f"any{suffix}"
    file.write_bytes(data)
    with suppress(InputError):
        read_code(file)
