"""The paper's notation builds both of its networks, prints itself back, and names mistakes by their place."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fgnn import FactorGraph, FactorGroup
from fgnn.errors import InputError
from fgnn.nn import NotationError, build
from fgnn.nn.notation import Item, parse, to_text

# Section 4.1 and 4.2, line breaks and all.
MAP_NETWORK = """FGNN(64) - Res[FC(64) - FGNN(64) - FC(64)] - MLP(128)
  - Res[FC(64) - FGNN(64) - FC(128)] - FC(256) - Res[FC(64) - FGNN(64) -
  FC(256)] - FC(128) - Res[FC(64) - FGNN(64) - FC(128)] - FC(64) -
  Res[FC(64) - FGNN(64) - FC(64)] - FGNN(2)"""
POINT_NETWORK = """Input  -
FGNN(64)  -  FC(128)  -  Res[FC(64) - FGNN(64) - FC(128)]  -
FC(256) - Res[FC(64) - FGNN(64) - FC(256)]  -  FC(512)  -
Res[FC(64) - FGNN(64) - FC(512)]  -  FC(512) -  GlobalPooling  -
FC(512) - Res[FC(64) - FGNN(64) - FC(512)] - FC(256) - DR(0.5) -
FC(256) - DR(0.5) - FC(128) - FC($N$)"""

CHAIN = FactorGraph(
    30,
    {
        "pair": FactorGroup(torch.arange(29)[:, None] + torch.arange(2)),
        "budget": FactorGroup(torch.arange(23)[:, None] + torch.arange(8)),
    },
)


def chain_network(**options: object):  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    return build(
        MAP_NETWORK, variable_in=2, factor_in={"pair": 4, "budget": 1}, edge_in={"pair": 2, "budget": 8}, **options
    )


def layer_parameters(f: int, gs: dict[str, int], ts: dict[str, int], out: int, inner: int, q: str) -> int:
    """By hand: M, Q and bias of both directions (sequential: FV reads factors of width ``inner``)."""

    def q_size(t: int, rows: int) -> int:
        if q == "table":
            return t * rows * inner
        if q == "basis":
            return (t * 32 + 32) + (32 * 16 + 16) + 16 * rows * inner
        return (t * 32 + 32) + 33 * rows * inner

    total = out  # FV's bias, one for all groups
    for name, g in gs.items():
        total += (g + f) * inner + inner + q_size(ts[name], inner) + inner
        total += (inner + f) * inner + inner + q_size(ts[name], out)
    return total


def test_parameters_counted_by_hand() -> None:
    ts = {"pair": 2, "budget": 8}
    for q in ("basis", "dense", "table"):
        layers = chain_network(q=q).layers
        first = layer_parameters(2, {"pair": 4, "budget": 1}, ts, 64, 64, q)
        last = layer_parameters(64, {"pair": 64, "budget": 64}, ts, 2, 64, q)
        assert sum(p.numel() for p in layers[0].parameters()) == first
        assert sum(p.numel() for p in layers[-1].parameters()) == last
        assert sum(p.numel() for p in layers[2].parameters()) == 3 * (64 * 128 + 128)


def squeeze(text: str) -> str:
    return re.sub(r"[\s$]+", "", text)


@pytest.mark.parametrize(("q", "parameters"), [("basis", 2_433_026), ("dense", 4_233_026), ("table", 1_238_594)])
def test_the_map_network(q: str, parameters: int) -> None:
    net = chain_network(q=q)
    assert net.num_parameters == parameters
    assert squeeze(net.notation) == squeeze(MAP_NETWORK)
    gs = {"pair": torch.randn(5, 29, 4), "budget": torch.randn(5, 23, 1)}
    out = net(CHAIN, torch.randn(5, 30, 2), gs, {"pair": torch.eye(2), "budget": torch.eye(8)})
    assert out.shape == (5, 30, 2)
    out.sum().backward()
    assert all(p.grad is not None for p in net.parameters()), "no parameter is idle"
    assert (out < 0).any(), "scores are not rectified"


@pytest.mark.parametrize("q", ["basis", "dense"])
def test_the_point_network(q: str) -> None:
    net = build(POINT_NETWORK, variable_in=9, factor_in={"knn": 9}, edge_in={"knn": 3}, num_classes=13, q=q)
    assert net.num_parameters == {"basis": 2_955_373, "dense": 3_646_413}[q]
    assert squeeze(net.notation) == squeeze(POINT_NETWORK)
    graph = FactorGraph(40, {"knn": FactorGroup((torch.arange(40)[:, None] + torch.arange(6)) % 40)})
    net.eval()
    out = net(graph, torch.randn(2, 40, 9), {"knn": torch.randn(2, 40, 9)}, {"knn": torch.randn(2, 40, 6, 3)})
    assert out.shape == (2, 40, 13)
    out.sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_a_parallel_network_has_no_idle_parameters_either() -> None:
    net = chain_network(schedule="parallel", norm="batch", aggregate="softmax(3)")
    gs = {"pair": torch.randn(3, 29, 4), "budget": torch.randn(3, 23, 1)}
    net(CHAIN, torch.randn(3, 30, 2), gs, {"pair": torch.eye(2), "budget": torch.eye(8)}).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_its_table_shows_layers_shapes_and_parameters() -> None:
    net = build(
        "Input - FGNN(8) - Res[FC(4) - FGNN(8)] - GlobalPooling - DR(.5) - FC(N)",
        variable_in=2, factor_in={"pair": 0}, edge_in={"pair": 3}, num_classes=5, q="table",
    )  # fmt: skip
    assert repr(net).split("\n") == [
        "Network, 1,245 parameters",
        "  Input          variables (N, 2)",
        "  FGNN(8)        variables (N, 8)   pair (C, 8)  512",
        "  Res[                                           648",
        "    FC(4)        variables (N, 4)   pair (C, 4)   72",
        "    FGNN(8)      variables (N, 8)                576",
        "  ]              variables (N, 8)",
        "  GlobalPooling  variables (N, 16)",
        "  DR(.5)         variables (N, 16)",
        "  FC(N)          variables (N, 5)                 85",
    ]
    assert net.backend == "torch"


def items(depth: int = 2) -> st.SearchStrategy[tuple[Item, ...]]:
    widths = st.builds(Item, st.sampled_from(["FGNN", "FC", "MLP"]), st.sampled_from(["1", "64", "N"]))
    plain = widths | st.builds(Item, st.just("DR"), st.sampled_from(["0.5", ".1"])) | st.just(Item("GlobalPooling"))
    inner = plain if depth == 0 else plain | st.builds(Item, st.just("Res"), st.none(), items(depth - 1))
    return st.lists(inner, min_size=1, max_size=4).map(tuple)


@given(items())
def test_what_is_printed_is_read_back(made: tuple[Item, ...]) -> None:
    text = to_text(made)
    assert to_text(parse(text)) == text
    assert to_text(parse(text.replace(" - ", "\n–").replace("[", " [ "))) == text


@pytest.mark.parametrize(
    ("notation", "line", "column", "message"),
    [
        ("FGNN(64) - FCC(3)", 1, 12, r"Expected a layer among .* \(got 'FCC'\)"),
        ("FGNN(64) -\n  FC[3]", 2, 5, r"Expected '\(' after FC \(got '\['\)"),
        ("FGNN(64", 1, 8, r"Expected '\)' after FGNN\(64 \(got the end\)"),
        ("Res[FC(64)  ", 1, 11, r"Expected '-' or '\]' to close Res \(got the end\)"),
        ("FGNN(64) - - FC(2)", 1, 12, r"Expected a layer among .* \(got '-'\)"),
        ("FGNN(64) FC(2)", 1, 10, r"Expected '-' or the end \(got 'FC'\)"),
        ("FC(0)", 1, 4, r"Expected a width from 1 to 16,384, or N, in FC \(got 0\)"),
        ("FC(2.5)", 1, 4, r"Expected a width from 1 to 16,384, or N, in FC \(got 2.5\)"),
        ("DR(1.5)", 1, 4, r"Expected a rate in \[0, 1\) in DR \(got 1.5\)"),
        ("FGNN(64) & FC(2)", 1, 10, r"Expected a layer, '-' or a bracket \(got '&'\)"),
        ("FGNN(64)]", 1, 9, r"Expected '-' or the end \(got '\]'\)"),
        ("FC(4) - Input", 1, 9, "Expected Input at the beginning only"),
        ("", 1, 1, r"Expected a layer among .* \(got the end\)"),
        ("FGNN(64) - Res[FC(3)]", 1, 12, r"Expected Res to end as wide as it begins, 64 for variables \(got 3\)"),
        ("Res[FC(2)] - FGNN(2)", 1, 1, r"Expected Res to end as wide as it begins, 4 for factors 'pair' \(got 2\)"),
    ],
)
def test_a_mistake_is_reported_with_its_place(notation: str, line: int, column: int, message: str) -> None:
    with pytest.raises(NotationError, match=message) as found:
        build(notation, variable_in=2, factor_in={"pair": 4})
    assert isinstance(found.value, InputError)
    assert (found.value.line, found.value.column) == (line, column)
    assert str(found.value).startswith(f"line {line}, column {column}: ")
    assert found.value.caret.split("\n")[1] == " " * (column - 1) + "^"


def test_n_stands_for_the_classes() -> None:
    with pytest.raises(ValueError, match="Expected num_classes, since the notation has N"):
        build("FGNN(4) - FC(N)", variable_in=2, factor_in={"pair": 4})
    with pytest.raises(ValueError, match="Expected N in the notation, since num_classes is 3"):
        build("FGNN(4) - FC(2)", variable_in=2, factor_in={"pair": 4}, num_classes=3)
