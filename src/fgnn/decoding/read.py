"""Files of codes: `read_code`, by suffix.

| suffix | format |
|---|---|
| ``.alist`` | MacKay's lists of ones, padded with zeros or not |
| ``.qc`` | blocks of shifted identities: columns, rows, size of a block, then shifts, -1 for a block of zeros |
| ``.csv`` | 5G NR base graphs: row; column; eight shifts, one for each set of lifting sizes |
| ``.npy``, ``.npz`` | a matrix of zeros and ones; the only array of an archive, or SciPy's sparse form |

Text may be compressed: ``a.alist.xz``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.arrays import read_arrays
from fgnn.decoding.code import Code
from fgnn.errors import InputError
from fgnn.pgm.io.stream import COMPRESSIONS, ByteStream

# Edges of the largest code that is read; 5G's largest has 121,344.
MOST_EDGES = 1 << 22
MOST_NODES = 1 << 22
_MOST_BYTES = 256 << 20


def read_code(path: str | Path, *, lifting: int | None = None) -> Code:
    """Read a parity-check matrix, by suffix.

    Args:
        path: An ``.alist``, ``.qc``, ``.csv`` (5G NR base graph), ``.npy`` or ``.npz`` file.
        lifting: The size of a block, for base graphs only: 2 to 384, as in the standard.

    Raises:
        InputError: The file is invalid; one line names the file, the place and the reason.
    """
    file = Path(path)
    plain = file.with_suffix("") if file.suffix.lower() in COMPRESSIONS else file
    kind = plain.suffix.lower()
    if (kind == ".csv") != (lifting is not None):
        what = "Expected a lifting size for a base graph" if kind == ".csv" else "Only base graphs have a lifting size"
        raise InputError(what, file=file)
    try:
        if kind in (".npy", ".npz"):
            code = Code.of(_read_matrix(file))
        else:
            # MacKay's own alist files end in numbers, such as 96.3.963
            parse = _PARSERS.get(kind, _parse_alist)
            code = parse(_lines(file), lifting)
    except InputError as error:
        raise InputError(str(error), file=file) if error.file is None else error from None
    except (ValueError, IndexError) as error:
        raise InputError(str(error), file=file) from None
    return Code(code.num_bits, code.starts, code.bits, code.hidden, plain.stem)


def _lines(file: Path) -> list[str]:
    try:
        return ByteStream(file).whole().decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise InputError("Expected text (got other bytes)") from None


def _integers(line: str, number: int) -> list[int]:
    try:
        values = [int(word) for word in line.split()]
        if values and max(map(abs, values)) > MOST_EDGES:
            raise ValueError
        return values
    except ValueError:
        raise InputError(
            f"Expected integers up to {MOST_EDGES} (got {line.strip()!r:.60})", place=f"line {number + 1}"
        ) from None


def _shape(checks: int, bits: int, edges: int) -> tuple[int, int]:
    """Reject what is empty, or larger than any code in use."""
    if not (0 < checks <= MOST_NODES and 0 < bits <= MOST_NODES and 0 <= edges <= MOST_EDGES):
        raise InputError(
            f"Expected 1 to {MOST_NODES} checks and bits and at most {MOST_EDGES} ones "
            f"(got {checks} checks, {bits} bits, {edges} ones)"
        )
    return checks, bits


def _parse_alist(lines: list[str], lifting: int | None) -> Code:
    """Read the weights, then the checks of every bit; the bits of every check, if they follow, must agree."""
    rows = [(number, values) for number, line in enumerate(lines) if (values := _integers(line, number))]
    if len(rows) < 4 or len(rows[0][1]) != 2:
        raise InputError("Expected an alist file: numbers of bits and checks, largest weights, weights, lists")
    bits, checks = rows[0][1]
    weights, check_weights = rows[2][1], rows[3][1]
    if len(weights) != bits or len(check_weights) != checks:
        raise InputError(f"Expected {bits} and {checks} weights (got {len(weights)} and {len(check_weights)})")
    shape = _shape(checks, bits, sum(weights))
    # a bit or a check without any ones may have an empty line, which was dropped above
    lists = iter(rows[4:])
    columns = _take(lists, weights, checks, "bit")
    given = _take(lists, check_weights, bits, "check", optional=True)
    edges = np.array([(c, b) for b, column in enumerate(columns) for c in column], np.int64).reshape(-1, 2)
    code = Code.of_edges(edges[:, 0], edges[:, 1], shape)
    if given is not None:
        other = np.array([(c, b) for c, row in enumerate(given) for b in row], np.int64).reshape(-1, 2)
        same = Code.of_edges(other[:, 0], other[:, 1], shape)
        if not (np.array_equal(code.bits, same.bits) and np.array_equal(code.starts, same.starts)):
            raise InputError("the lists of the checks differ from the lists of the bits")
    return code


def _take(lists: Any, weights: list[int], most: int, what: str, optional: bool = False) -> Any:
    """One list for each weight: ``weight`` numbers from 1 to ``most``, then zeros."""
    taken: list[list[int]] = []
    for n, weight in enumerate(weights):
        if weight < 0:
            raise InputError(f"Expected weights of at least 0 (got {weight})", place=f"{what} {n + 1}")
        number, values = next(lists, (0, None)) if weight else (0, [])
        if values is None:
            if optional and n == 0:
                return None
            raise InputError(f"ends before the list of {what} {n + 1}")
        found = [value - 1 for value in values if value]
        if len(found) != weight or any(not 0 <= value < most for value in found):
            expected = f"Expected {weight} numbers from 1 to {most} for {what} {n + 1}"
            raise InputError(f"{expected} (got {values[:8]})", place=f"line {number + 1}")
        taken.append(found)
    return taken


def _expand(blocks: NDArray[np.int64], rows: int, columns: int, size: int) -> Code:
    """Replace every (row, column, shift) by an identity of ``size`` rows, shifted to the right."""
    _shape(rows * size, columns * size, len(blocks) * size)
    at = np.arange(size)
    checks = blocks[:, :1] * size + at
    bits = blocks[:, 1:2] * size + (at + blocks[:, 2:]) % size
    return Code.of_edges(checks.ravel(), bits.ravel(), (rows * size, columns * size))


_MOST_BLOCK = 1 << 16  # a short file must not imply a large matrix; published codes stay below 2^14


def _parse_qc(lines: list[str], lifting: int | None) -> Code:
    words = [value for number, line in enumerate(lines) for value in _integers(line, number)]
    if len(words) < 3 or min(words[:3]) < 1:
        raise InputError("Expected the numbers of columns and rows and the size of a block")
    columns, rows, size = words[:3]
    if size > _MOST_BLOCK:
        raise InputError(f"Expected blocks of at most {_MOST_BLOCK} rows (got {size})")
    if len(words) - 3 < rows * columns:
        raise InputError(f"Expected {rows * columns} shifts (got {len(words) - 3})")
    shifts = np.array(words[3 : 3 + rows * columns], np.int64).reshape(rows, columns)
    if shifts.min() < -1 or shifts.max() >= size:
        raise InputError(f"Expected shifts from -1 to {size - 1} (got {shifts.min()} to {shifts.max()})")
    row, column = (shifts >= 0).nonzero()
    return _expand(np.stack([row, column, shifts[row, column]], 1), rows, columns, size)


# TS 38.212, table 5.3.2-1: a lifting size is a · 2^j, and a selects the set of shifts.
_SETS = (2, 3, 5, 7, 9, 11, 13, 15)


def _set_of(lifting: int) -> int:
    odd = lifting
    while odd > 2 and odd % 2 == 0:
        odd //= 2
    sizes = odd if odd > 1 else 2
    if not (2 <= lifting <= 384 and sizes in _SETS):
        raise InputError(
            f"Expected a lifting size of the standard, a · 2^j up to 384 with a in {_SETS} (got {lifting})"
        )
    return _SETS.index(sizes)


def _parse_base_graph(lines: list[str], lifting: int | None) -> Code:
    """Read a base graph and lift it; the bits of its first two columns are never sent."""
    assert lifting is not None
    use, row = _set_of(lifting), 0
    blocks: list[tuple[int, int, int]] = []
    for number, line in enumerate(lines):
        words = [word.strip() for word in line.split(";")]
        if len(words) < 10 or not words[2].lstrip("-").isdigit() or not words[1].isdigit():
            if blocks and any(words):
                raise InputError("Expected row; column; eight shifts", place=f"line {number + 1}")
            continue  # the header
        values = _integers(" ".join([words[0] or str(row), words[1], words[2 + use]]), number)
        row = values[0]
        blocks.append((row, values[1], values[2]))
    if not blocks:
        raise InputError("Expected a base graph: row; column; eight shifts")
    table = np.array(blocks, np.int64)
    table[:, 2] %= lifting
    code = _expand(table, int(table[:, 0].max()) + 1, int(table[:, 1].max()) + 1, lifting)
    return Code(code.num_bits, code.starts, code.bits, hidden=2 * lifting)


def _read_matrix(file: Path) -> Any:
    arrays = read_arrays(file, _MOST_BYTES)
    if {"indices", "indptr", "shape", "data"} <= set(arrays):
        from scipy.sparse import csc_matrix, csr_matrix

        form = csc_matrix if bytes(arrays.get("format", np.array(b"csr")).item()) == b"csc" else csr_matrix
        rows, columns = (int(size) for size in arrays["shape"].ravel())
        shape = _shape(rows, columns, arrays["indices"].size)
        return form((arrays["data"], arrays["indices"], arrays["indptr"]), shape)
    if len(arrays) != 1:
        raise InputError(f"Expected an archive of one matrix (got {', '.join(arrays)[:80]})")
    return _checked(next(iter(arrays.values())))


def _checked(matrix: NDArray[Any]) -> NDArray[Any]:
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise InputError(f"Expected a matrix of numbers (got {matrix.dtype} of shape {matrix.shape})")
    return matrix


_PARSERS: dict[str, Callable[[list[str], int | None], Code]] = {".qc": _parse_qc, ".csv": _parse_base_graph}
