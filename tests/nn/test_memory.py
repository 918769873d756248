"""A layer at 4,096 points, k = 16, 64 -> 64, adds at most 120 MiB in every form of Q."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: the peak of a process never falls.
SCRIPT = """
import gc, resource, sys
import torch, fgnn

q, mode = sys.argv[1:]
torch.manual_seed(0)
k, d = 16, 64
layer = fgnn.nn.FGNNLayer(d, {"knn": d}, {"knn": 3}, d, q=q)

def inputs(n):
    scopes = (torch.arange(n)[:, None] + torch.randperm(n)[:k]) % n
    graph = fgnn.FactorGraph(n, {"knn": fgnn.FactorGroup(scopes)}).prepare()
    t = torch.randint(3, (n, k)) if q == "table" else torch.randn(n, k, 3)
    return graph, torch.randn(n, d), {"knn": torch.randn(n, d)}, {"knn": t}

def run(graph, f, gs, edges):
    with torch.set_grad_enabled(mode != "inference"):
        new, made = layer(graph, f, gs, edges)
    if mode == "backward":
        (new.sum() + made["knn"].sum()).backward()

def now():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

run(*inputs(64))  # what the first call loads does not count
big = inputs(4096)
gc.collect()
before = now()
run(*big)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / 2**20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("mode", ["inference", "forward", "backward"])
@pytest.mark.parametrize("q", ["dense", "basis", "table"])
def test_added_memory(q: str, mode: str) -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT, q, mode], capture_output=True, text=True, check=True)
    added = float(run.stdout)
    assert 4 < added <= 120, f"{added:.0f} MiB"
