"""Inputs that a network cannot read are named: the tensor, the group, and what would fit."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from fgnn import Data, FactorGraph, FactorGroup
from fgnn.graph import EdgeTypes
from fgnn.nn import FGNNLayer, ResidualNetwork, build

GRAPH = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]])})
F, GS, EDGES = torch.ones(3, 1), {"pair": torch.ones(2, 2)}, {"pair": torch.eye(2)}
SIZES: dict[str, Any] = {"variable_in": 1, "factor_in": {"pair": 2}, "edge_in": {"pair": 2}}


def modules() -> dict[str, nn.Module]:
    return {
        "network": build("FGNN(4) - FGNN(2)", **SIZES),
        "FC first": build("FC(4) - FGNN(2)", **SIZES),
        "Input and FC first": build("Input - FC(4) - FGNN(2)", **SIZES),
        "Res first": build("Res[DR(0.2)] - FGNN(2)", **SIZES),
        "DR first": build("DR(0.2) - FC(4) - FGNN(2)", **SIZES),
        "GlobalPooling first": build("GlobalPooling - FGNN(2)", **SIZES),
        "layer": FGNNLayer(1, {"pair": 2}, {"pair": 2}, 4),
        "residual": ResidualNetwork(1, {"pair": 2}, width=4, layers=1),
    }


@pytest.mark.parametrize("kind", modules())
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((Data(GRAPH, F, GS, EDGES),), "FactorGraph as graph (got Data); call it with *data.inputs"),
        ((GRAPH, F, GS["pair"]), "gs as a dict by group (got tensor of shape (2, 2))"),
        ((GRAPH, F.double(), GS, EDGES), "f in the layer's torch.float32 (got torch.float64)"),
        ((GRAPH, F.long(), GS, EDGES), "f in floating point (got torch.int64)"),
        ((GRAPH, torch.ones(3, 4), GS, EDGES), "f of shape (3, 1) or (B, 3, 1), the features of the variables"),
        ((GRAPH, F, {"pair": torch.ones(2, 3)}, EDGES), "gs['pair'] of shape (2, 2) or (B, 2, 2), the"),
        ((GRAPH, F), "gs['pair'] of shape (2, 2) or (B, 2, 2), the features of the factors of group 'pair' (got none)"),
        ((GRAPH, torch.ones(2, 3, 1), {"pair": torch.ones(4, 2, 2)}, EDGES), "in all features (got f of 2, gs['pair']"),
        ((GRAPH, F.to("meta"), GS, EDGES), "f on cpu, where the graph is (got meta); graph.to(device), or data.to"),
        ((GRAPH, F, {"pair": GS["pair"].to("meta")}, EDGES), "gs['pair'] on cpu, where the graph is (got meta)"),
        ((GRAPH.to("meta"), F, GS, EDGES), "f on meta, where the graph is (got cpu)"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_are_named(kind: str, args: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        modules()[kind](*args)


@pytest.mark.parametrize("q", ["basis", "dense"])
@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (torch.eye(2).double(), "edges['pair'] in the layer's torch.float32 (got torch.float64)"),
        (torch.eye(2).long(), "edges['pair'] in floating point (got torch.int64); use .float()"),
        (torch.eye(2, device="meta"), "edges['pair'] on cpu, where the graph is (got meta)"),
        (torch.ones(3, 4, 2), "samples in all features (got f of 2, edges['pair'] of 3)"),
    ],
)
def test_edge_features_that_do_not_fit_are_named(q: Any, edges: torch.Tensor, message: str) -> None:
    layer = FGNNLayer(1, {"pair": 2}, {"pair": 2}, 4, q=q)
    with pytest.raises(ValueError, match=re.escape(message)):
        layer(GRAPH, torch.ones(2, 3, 1), GS, {"pair": edges})


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (None, "edges['pair'], types 0 to 1 (got none)"),
        ([0, 1], "edges['pair'] as a tensor or EdgeTypes (got list)"),
        (torch.ones(5, 2), "edges['pair'] of shape (C, A, 2) or (E, 2)"),
        (torch.zeros(5).long(), "edges['pair'] of shape (C, A) or (E)"),
        (torch.tensor([0, 2]), "edge types 0 to 1 (got 2) in edges['pair']"),
        (torch.tensor([0, 1, 0, -1]), "edge types 0 to 1 (got -1) in edges['pair']"),
        (torch.ones(2, 2), "edges['pair'] one-hot, or integer types"),
        (EdgeTypes(torch.tensor([0, 1, 2]), 3), "edges['pair'] of 2 types for 4 edges (got 3 for 3)"),
    ],
)
def test_edge_types_that_do_not_fit_are_named(edges: Any, message: str) -> None:
    layer = FGNNLayer(1, {"pair": 2}, {"pair": 2}, 4, q="table")
    with pytest.raises(ValueError, match=re.escape(message)):
        layer(GRAPH, F, GS, {} if edges is None else {"pair": edges})


ONE = FactorGraph(2, {"pair": FactorGroup([[0, 1]])})


def test_an_integer_one_hot_is_not_read_as_types_of_other_axes() -> None:
    layer = FGNNLayer(1, {"pair": 2}, {"pair": 2}, 4, q="table")
    f, gs, one_hot = torch.ones(2, 1), {"pair": torch.ones(1, 2)}, torch.eye(2).long()
    expected = "edges['pair'] as integer types or as a floating-point one-hot (got int64 of shape (2, 2), which"
    with pytest.raises(ValueError, match=re.escape(expected)):
        layer(ONE, f, gs, {"pair": one_hot})
    assert layer(ONE, f, gs, {"pair": one_hot.float()})[0].shape == (2, 4)
    assert layer(ONE, f, gs, {"pair": torch.tensor([[0, 1], [0, 0]])})[0].shape == (2, 2, 4)  # types of two samples
    with pytest.raises(ValueError, match=r"edges\['pair'\] of shape .* \(got \(1, 2, 2, 2\)\).*use \.float\(\)"):
        FGNNLayer(1, {"pair": 2}, {"pair": 2}, 4, q="table")(GRAPH, F, GS, {"pair": torch.zeros(1, 2, 2, 2).long()})


def test_types_of_scopes_may_look_like_a_one_hot_unless_it_is_that_of_the_positions() -> None:
    graph = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]])})
    layer = FGNNLayer(1, {"pair": 0}, {"pair": 2}, 4, q="table")
    f, types = torch.ones(3, 1), torch.tensor([[0, 1], [0, 1]])
    by_scope, _ = layer(graph, f, {}, {"pair": types})
    torch.testing.assert_close(by_scope, layer(graph, f, {}, {"pair": torch.arange(2)})[0])
    with pytest.raises(ValueError, match="floating-point one-hot"):
        layer(graph, f, {}, {"pair": torch.eye(2).long()})


def test_features_by_position_have_no_axis_for_samples() -> None:
    layer = FGNNLayer(1, {"pair": 2}, {"pair": 2}, 4)
    with pytest.raises(
        ValueError, match=re.escape("with B in front, or (A, 2) without B, for all factors and samples alike, where")
    ):
        layer(GRAPH, F, GS, {"pair": torch.ones(3, 2, 2)})


@pytest.mark.parametrize("options", [{}, {"q": "table"}, {"q": "cosine"}])
def test_edge_features_of_a_layer_without_them_are_named(options: Any) -> None:
    expected = "no edge features for group 'pair', whose edge_in is 0 (got edges['pair'], tensor of shape (4, 1))"
    layer = FGNNLayer(1, {"pair": 2}, {}, 4, **options)
    layer(GRAPH, F, GS)
    with pytest.raises(ValueError, match=re.escape(expected)):
        layer(GRAPH, F, GS, {"pair": torch.ones(4, 1)})


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (torch.zeros(4).long(), torch.tensor([0, 0, 0, 5]), "edge types 0 to 1 (got 5) in edges['pair']"),
        (torch.eye(2), torch.ones(2, 2), "edges['pair'] one-hot, or integer types"),
        (EdgeTypes(torch.zeros(4).long(), 2), EdgeTypes(torch.zeros(3).long(), 3), "edges['pair'] of 2 types for 4"),
    ],
)
def test_wrong_types_are_named_after_a_call_that_fits_too(good: Any, bad: Any, message: str) -> None:
    layer = FGNNLayer(1, {"pair": 2}, {"pair": 2}, 4, q="table")
    for _ in range(2):
        layer(GRAPH, F, GS, {"pair": good})
        with pytest.raises(ValueError, match=re.escape(message)):
            layer(GRAPH, F, GS, {"pair": bad})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"variable_in": "1"}, "variable_in as an integer of at least 0 (got '1')"),
        ({"variable_in": -1}, "variable_in as an integer of at least 0 (got -1)"),
        ({"factor_in": ["pair"]}, "factor_in as a dict by group (got list)"),
        ({"factor_in": {"pair": GS["pair"]}}, "factor_in['pair'] as an integer of at least 0 (got tensor"),
        ({"edge_in": {"pair": 1.5}}, "edge_in['pair'] as an integer of at least 0 (got 1.5)"),
        ({"edge_in": {"ring": 1}}, "groups ['pair'] only (got ['ring'])"),
        ({"width": 0}, "width as an integer of at least 1 (got 0)"),
        ({"hidden": 3}, "hidden as a list of widths (got int)"),
        ({"hidden": (4, 0)}, "every width in hidden as an integer of at least 1 (got 0)"),
        ({"num_classes": "3"}, "num_classes as an integer of at least 1 (got '3')"),
        ({"aggregate": 3}, "aggregation among ['max', 'sum', 'mean', 'softmax'] (got 3)"),
        ({"norm": "bn"}, "norm among ['batch', 'layer', 'rms', None] (got 'bn')"),
    ],
)  # fmt: skip
def test_arguments_of_build_are_named(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build("FGNN(2)", **SIZES | sizes)


@pytest.mark.parametrize("first", ["FC(4)", "DR(0.2)", "GlobalPooling", "Input - FC(4)", "Res[DR(0.2)]"])
def test_networks_on_variables_without_features_begin_with_fgnn(first: str) -> None:
    with pytest.raises(ValueError, match=r"column \d+: Expected FGNN first .* variable_in 0 \(got "):
        build(f"{first} - FGNN(2)", **SIZES | {"variable_in": 0})
    net = build("Input - FGNN(4) - FC(2)", **SIZES | {"variable_in": 0})
    assert net(GRAPH, None, GS, EDGES).shape == (3, 2)


def test_notation_is_text() -> None:
    with pytest.raises(ValueError, match=r"notation as text \(got list\)"):
        build(["FGNN(2)"], **SIZES)


@pytest.mark.parametrize(("name", "value"), [("out", "2"), ("width", -1), ("layers", 0), ("bases", 0)])
def test_arguments_of_a_residual_network_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} as an integer of at least 1"):
        ResidualNetwork(1, {"pair": 2}, **{name: value})


def test_features_on_the_meta_device_are_named_after_a_call_that_fits() -> None:
    layer = FGNNLayer(1, {"pair": 2}, {}, 4)
    layer(GRAPH, F, GS)
    with pytest.raises(ValueError, match="f on cpu, where the graph is \\(got meta\\)"):
        layer(GRAPH, F.to("meta"), GS)
    with pytest.raises(ValueError, match="graph on a device that holds its scopes"):
        layer.to("meta")(GRAPH.to("meta"), F.to("meta"), {"pair": GS["pair"].to("meta")})


@pytest.mark.parametrize("q", ["table", "basis", "cosine"])
@pytest.mark.parametrize("aggregate", ["max", "sum", "mean"])
def test_layers_do_not_read_the_default_device(q: Any, aggregate: str) -> None:
    edges = {} if q == "cosine" else {"pair": torch.tensor([[0, 1], [1, 1]])}
    edges = {name: torch.eye(2)[t] for name, t in edges.items()}
    graph = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]])})  # nothing is derived from it yet
    layer = FGNNLayer(1, {"pair": 2}, {} if q == "cosine" else {"pair": 2}, 4, q=q, aggregate=aggregate)
    expected = layer(GRAPH, F, GS, edges)[0]
    torch.set_default_device("meta")
    try:
        found = layer(graph, F, GS, edges)[0]
        found.sum().backward()
    finally:
        torch.set_default_device(None)
    torch.testing.assert_close(found, expected)


@pytest.mark.gpu
def test_a_graph_left_on_the_cpu_is_named_after_a_call_that_fits() -> None:
    data = Data(GRAPH, F, GS, EDGES)
    for module in modules().values():
        module(*data.inputs)
        moved = data.to("cuda")
        module.cuda()
        module(*moved.inputs)
        with pytest.raises(ValueError, match=r"f on cpu, where the graph is \(got cuda:0\)"):
            module(GRAPH, *moved.inputs[1:])
