"""Small valid files of each format, from which broken files are derived."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
from collections.abc import Callable

import numpy as np

from fgnn import GraphicalModel
from fgnn.pgm.io.native import write_native

UAI = b"""MARKOV
3
2 3 2
4
1 0
2 0 1
3 2 1 0
0

2
 0.5 1.5
6
 1 2 3 4 5 6
12
 1 2 3 4 5 6 7 8 9 10 11 12
1
 0.25
"""

FG = b"""# two factors
2

2
0 1
2 3
6
0 1
1 2
2 3
3 4
4 5
5 6

1
1
3
2
0 0.5
2 1.5
"""

BIF = b"""network test { property "made by hand // here"; }
// rain and its consequence
variable Rain { type discrete [ 2 ] { yes, no }; property x = 1; }
variable Wet { type discrete [ 3 ] { dry, damp, soaked }; }
probability ( Rain ) { table 0.2, 0.8; }
probability ( Wet | Rain ) {
  (yes) 0.1, 0.3, 0.6;
  (no) 0.9, 0.1, 0.0;
}
"""

WCSP = b"""test 3 3 5 10
2 3 2
2 0 1 1 2
0 2 4
1 0 10
1 2 0 1
1 3
0 2 0
3 0 1 2 0 1
1 1 1 7
-1 0 0 1
1 5
"""

CFN = b"""{ problem: {name: test, mustbe: <10.0},
  variables: {a: [x y] "b": 3 c: ["p", "q"]},
  functions: {
    f1: {scope: [a b], costs: [1, 2, 3, 4, 5, 6]}
    {scope: [c], defaultcost: 0.5, costs: [q 2.5]}
    # a comment
    shared: {scope: ["a", "c"], costs: "later"}
    later: {scope: [c a] costs [0 1 2 12]}
    count: {scope: [a c] type: knapsack params: {capacity: 1 weights: [1 1]}}
  }
}
"""

EVID = b"2 0 1 1 2\n"


def native() -> bytes:
    """A native file with tables of two shapes, -inf and a budget."""
    model = GraphicalModel([2, 3, 2])
    model.add_unary(0, [0.5, -np.inf])
    model.add_table((0, 1), np.arange(6.0).reshape(2, 3))
    model.add_table((2, 0), [[0.0, 1.0], [2.0, -np.inf]])
    model.add_table((0, 1), -np.arange(6.0).reshape(2, 3))
    model.add_budget((0, 2), at_most=1)
    model.constant = -0.125
    buffer = io.BytesIO()
    write_native(model, buffer)
    return buffer.getvalue()


def structured() -> bytes:
    """A native file with a factor of every structured kind."""
    model = GraphicalModel([2, 2, 3, 3])
    model.add_parity((0, 1), 1)
    model.add_linear((0, 1, 2), [1, 2, -1], at_most=2)
    model.add_parity((1, 0))
    model.add_all_different((2, 3))
    model.add_pattern((0, 3), [[0, 1], [1, 2]], [0.5, -np.inf], default=-1.0)
    buffer = io.BytesIO()
    write_native(model, buffer)
    return buffer.getvalue()


GOOD: dict[str, bytes] = {
    "good.uai": UAI,
    "good.fg": FG,
    "good.bif": BIF,
    "good.wcsp": WCSP,
    "good.cfn": CFN,
    "good.fgm": native(),
    "structured.fgm": structured(),
    "good.uai.gz": gzip.compress(UAI, mtime=0),
    "good.uai.xz": lzma.compress(UAI),
    "good.fgm.xz": lzma.compress(native()),
}


def swap(data: bytes, old: bytes, new: bytes) -> bytes:
    """Replace the only occurrence of ``old``."""
    assert data.count(old) == 1, (old, data.count(old))
    return data.replace(old, new)


def header(edit: Callable[[bytes], bytes]) -> bytes:
    """A native file with an edited JSON header of the right length."""
    data = native()
    (length,) = struct.unpack("<Q", data[:8])
    text = edit(data[8 : 8 + length])
    return struct.pack("<Q", len(text)) + text + data[8 + length :]
