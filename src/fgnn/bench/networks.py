"""Layers and networks against their own plain torch backend: many small graphs, and the paper's point network."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.bench.measure import compare, half_precision, measure
from fgnn.nn import graphed, use_backend


def small_graphs(device: str, seed: int, repeats: int) -> dict[str, Any]:
    """A layer on 4,096 chain models of one structure, with windows of 8 and pairs, by form of Q."""
    import fgnn

    torch.manual_seed(seed)
    batch = 4096
    windows, pairs = [list(range(i, i + 8)) for i in range(23)], [[i, i + 1] for i in range(29)]
    groups = {"window": fgnn.FactorGroup(torch.tensor(windows)), "pair": fgnn.FactorGroup(torch.tensor(pairs))}
    graph = fgnn.FactorGraph(30, groups).to(device)
    rows = {}
    for q in ("table", "basis"):
        layer = fgnn.nn.FGNNLayer(
            variable_in=64, factor_in={"window": 64, "pair": 64}, edge_in={"window": 8, "pair": 2}, out=64, q=q
        ).to(device)
        gs = {name: torch.randn(batch, n, 64, device=device) for name, n in (("window", 23), ("pair", 29))}
        edges: dict[str, Any]  # the place: as a type, or one-hot
        if q == "table":
            edges = {name: graph.incidence(name).positions for name in groups}
        else:
            edges = {name: torch.eye(n, device=device) for name, n in (("window", 8), ("pair", 2))}
        f = torch.randn(batch, 30, 64, device=device)
        rows[q] = _against_plain(partial(_variables, layer, graph, gs, edges), layer, [f], [], repeats)
        with half_precision(f.device):
            fast = graphed(layer, graph, f.detach().clone().requires_grad_(), gs, edges)
        if fast.recorded:
            recorded = partial(_variables, fast, graph, gs, edges)
            rows[q]["ours, recorded"] = measure(recorded, [f], [], repeats, parameters=layer.parameters(), replay=False)
    return rows


def _variables(layer: Any, graph: Any, gs: Any, edges: Any, f: Tensor) -> Tensor:
    """The variables' output of a layer, as a function of their input alone."""
    out: Tensor = layer(graph, f, gs, edges)[0]
    return out


def point_network(device: str, seed: int, repeats: int) -> dict[str, Any]:
    """The paper's point network on 8 clouds of 4,096 points, including the neighbour search."""
    from fgnn.models.points.fgnn import PointFGNN

    torch.manual_seed(seed)
    network = PointFGNN(inputs=9, classes=13).to(device)
    x = torch.rand(8, 4096, 9, device=device)
    return _against_plain(network, network, [], [x], repeats)


def _against_plain(
    form: Any, module: nn.Module, inputs: list[Tensor], fixed: list[Tensor], repeats: int
) -> dict[str, Any]:
    """Both backends, and the ratios."""
    mine = measure(form, inputs, fixed, repeats, parameters=module.parameters())
    with use_backend("torch"):
        plain = measure(form, inputs, fixed, repeats, parameters=module.parameters())
    return {"ours": mine, "plain torch": plain, **compare(mine, plain)}
