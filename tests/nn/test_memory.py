"""A layer on 4,096 points, k = 16, 64 -> 64, needs at most 120 MiB of additional peak memory in every form of Q."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a separate process, because the peak of a process never falls.
SCRIPT = """
import gc, sys
import torch, fgnn
from scipy.spatial import cKDTree

q, mode = sys.argv[1:]
torch.manual_seed(0)
k, d = 16, 64
if q != "nnconv":
    layer = fgnn.nn.FGNNLayer(d, {"knn": d}, {"knn": 3}, d, q=q)
else:
    from torch_geometric.nn import NNConv

    net = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.ReLU(), torch.nn.Linear(32, d * d))
    conv = NNConv((d, d), d, net, aggr="max")

    def layer(graph, f, gs, edges):  # one direction of the two
        edge_index = torch.stack([graph.incidence("knn").variable, graph.incidence("knn").factor])
        return conv((f, gs["knn"]), edge_index, edges["knn"].flatten(0, 1)), gs

def inputs(n):
    points = torch.rand(n, 3)
    scopes = torch.from_numpy(cKDTree(points.numpy()).query(points.numpy(), k=k)[1])
    graph = fgnn.FactorGraph(n, {"knn": fgnn.FactorGroup(scopes)}).prepare()
    t = torch.randint(3, (n, k)) if q == "table" else torch.randn(n, k, 3)
    return graph, torch.randn(n, d), {"knn": torch.randn(n, d)}, {"knn": t}

def run(graph, f, gs, edges):
    with torch.set_grad_enabled(mode != "inference"):
        new, made = layer(graph, f, gs, edges)
    if mode == "backward":
        (new.sum() + made["knn"].sum()).backward()

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":")) / 1024  # MiB

run(*inputs(64))  # exclude what the first call loads
big = inputs(4096)
gc.collect()
# Reset the peak, which includes that of the parent process and of the imports.
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = status("VmRSS")
run(*big)
print(status("VmHWM") - before)
"""


def added_memory(q: str, mode: str) -> float:
    """Additional peak memory (MiB) of a call in a fresh process."""
    run = subprocess.run([sys.executable, "-c", SCRIPT, q, mode], capture_output=True, text=True, check=True)
    return float(run.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "mode",
    [
        "forward",
        pytest.param("inference", marks=pytest.mark.slow),
        pytest.param("backward", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("q", ["dense", "basis", "table"])
def test_added_memory(q: str, mode: str) -> None:
    added = added_memory(q, mode)
    assert 4 < added <= (150 if mode == "backward" else 120), f"{added:.0f} MiB"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_one_matrix_per_edge_takes_gigabytes() -> None:
    """PyG's NNConv, one direction only: E·m·n numbers."""
    pytest.importorskip("torch_geometric")
    theirs = added_memory("nnconv", "inference")
    assert theirs > 4096 * 16 * 64 * 64 * 4 / 2**20
    assert theirs > 15 * max(added_memory(q, "inference") for q in ("dense", "basis", "table"))
