"""Files of 100 MB are read quickly and in little more memory than their arrays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

# Run in a separate process to measure its peak memory.
MEASURE = """
import json, resource, sys, time
import fgnn

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before, start = peak(), time.process_time()
model = fgnn.read_model(sys.argv[1])
seconds, extra = time.process_time() - start, peak() - before
arrays = sum(g.scopes.nbytes + g.values.nbytes for g in model.table_groups) + model.unaries.nbytes
print(json.dumps({"seconds": seconds, "extra": extra, "arrays": arrays, "tables": model.num_tables}))
"""


def write_pairs(path: Path, count: int) -> None:
    """Pairs of binary variables, four numbers of twelve digits each."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 19_999, size=count)
    with path.open("w") as file:
        file.write(f"MARKOV\n20000\n{' '.join(['2'] * 20_000)}\n{count}\n")
        for part in np.array_split(first, 100):
            file.write("".join(f"2 {i} {i + 1}\n" for i in part.tolist()))
        for part in np.array_split(first, 100):
            rows = rng.random((len(part), 4)).tolist()
            file.write("".join(f"4\n {a:.12g} {b:.12g} {c:.12g} {d:.12g}\n" for a, b, c, d in rows))


def write_wide(path: Path, variables: int) -> None:
    """Two tables over many binary variables."""
    rng = np.random.default_rng(0)
    scope = " ".join(map(str, range(variables)))
    with path.open("w") as file:
        file.write(f"MARKOV\n{variables}\n{' '.join(['2'] * variables)}\n2\n{variables} {scope}\n{variables} {scope}\n")
        for _ in range(2):
            file.write(f"{1 << variables}\n")
            for _ in range(64):
                file.write(" ".join(f"{p:.10g}" for p in rng.random((1 << variables) // 64).tolist()) + "\n")


def write_mixed(path: Path, count: int) -> None:
    """Tables of one to three variables of two or three states, in random order."""
    rng = np.random.default_rng(0)
    cards = rng.integers(2, 4, size=20_000)
    places = zip(rng.integers(0, 1000, size=count).tolist(), rng.integers(1, 4, size=count).tolist(), strict=True)
    scopes = [rng.permutation(20)[:k] + 20 * i for i, k in places]
    with path.open("w") as file:
        file.write(f"MARKOV\n20000\n{' '.join(map(str, cards.tolist()))}\n{count}\n")
        for scope in scopes:
            file.write(" ".join(map(str, (len(scope), *scope))) + "\n")
        for scope in scopes:
            size = int(cards[scope].prod())
            file.write(f"{size}\n{' '.join(map(repr, rng.random(size).tolist()))}\n")


@pytest.mark.parametrize(
    ("write", "size", "megabytes"), [(write_pairs, 1_320_000, 95), (write_wide, 22, 95), (write_mixed, 560_000, 95)]
)
def test_a_large_file_is_read_quickly_in_little_memory(
    tmp_path: Path, write: Callable[[Path, int], object], size: int, megabytes: int
) -> None:
    path = tmp_path / "large.uai"
    write(path, size)
    length = path.stat().st_size
    assert length > megabytes * 1e6
    run = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    cost = json.loads(run.stdout)
    rate = length / cost["seconds"] / 1e6
    ratio = cost["extra"] / cost["arrays"]
    speed = f"{length / 1e6:.0f} MB in {cost['seconds']:.1f} s of CPU time, {rate:.1f} MB/s"
    room = f"{cost['extra'] / 1e6:.0f} MB at most, {ratio:.2f} times the arrays' {cost['arrays'] / 1e6:.0f} MB"
    print(f"\n{write.__name__}: {speed}; {room}")
    assert ratio < 2.5
    assert rate > 5  # twice that on an idle machine
