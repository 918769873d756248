"""Message passing on plain graphs: eq. (MPNN_spec) and eq. (update)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fgnn import FactorGroup
from fgnn.nn import MessagePassing, MPNNLayer
from fgnn.nn.mpnn import adjacency
from tests.nn.oracle import edge_matrix, message

NEIGHBOURS = FactorGroup([[1, 2], [0], [0, 1, 3], [], [4, 0]])
EDGES = [(i, j) for i, row in enumerate(NEIGHBOURS.lists()) for j in row]


@pytest.mark.parametrize("q", ["dense", "basis", "table"])
def test_mpnn_equals_a_loop(q: str) -> None:
    torch.manual_seed(0)
    layer = MPNNLayer(3, 2, 4, q=q).double()
    f = torch.randn(2, 5, 3).double()
    e = torch.randint(2, (8,)) if q == "table" else torch.randn(8, 2).double()
    found = layer(NEIGHBOURS, f, e)
    parts = layer.direction.edge_messages
    for b in range(2):
        for i in range(5):
            sent = [
                edge_matrix(parts.matrix, e[k]) @ message(parts.message, f[b, i], f[b, j])
                for k, (at, j) in enumerate(EDGES)
                if at == i
            ]
            expected = torch.stack(sent).amax(0) if sent else torch.zeros(4).double()
            torch.testing.assert_close(found[b, i], expected, rtol=1e-12, atol=1e-12)


def test_every_node_needs_a_list_of_neighbours() -> None:
    from fgnn.graph import Incidence

    with pytest.raises(ValueError, match="Expected a list of neighbours for each of 6 nodes"):
        MPNNLayer(3, 2, 4)(Incidence.of(NEIGHBOURS, 6), torch.randn(6, 3), torch.randn(8, 2))


@pytest.mark.parametrize("aggregate", ["sum", "max", "mean", "softmax(2)"])
@pytest.mark.parametrize("batch", [None, 3])
def test_general_message_passing_with_networks_of_ones_own(aggregate: str, batch: int | None) -> None:
    torch.manual_seed(0)
    m, u = nn.Linear(8, 4).double(), nn.Linear(7, 2).double()

    def sent(f_i: torch.Tensor, f_j: torch.Tensor, e: torch.Tensor | None) -> torch.Tensor:
        assert e is not None
        e = e.expand(*f_i.shape[:-1], -1)
        return torch.tanh(m(torch.cat([f_i, f_j, e], -1)))

    layer = MessagePassing(sent, lambda f, got: u(torch.cat([f, got], -1)), aggregate=aggregate)
    lead = () if batch is None else (batch,)
    f, e = torch.randn(*lead, 5, 3).double(), torch.randn(8, 2).double()
    found = layer(NEIGHBOURS, f, e)
    for i in range(5):
        got = [sent(f[..., i, :], f[..., j, :], e[k]) for k, (at, j) in enumerate(EDGES) if at == i]
        if not got:
            total = torch.zeros(*lead, 4).double()
        elif aggregate == "max":
            total = torch.stack(got).amax(0)
        elif aggregate == "softmax(2)":
            total = (2 * torch.stack(got)).logsumexp(0) / 2
        else:
            total = torch.stack(got).sum(0) if aggregate == "sum" else torch.stack(got).mean(0)
        expected = u(torch.cat([f[..., i, :], total], -1))
        torch.testing.assert_close(found[..., i, :], expected, rtol=1e-12, atol=1e-12)


def test_messages_themselves_are_the_default_update_and_ties_go_to_the_first() -> None:
    layer = MessagePassing(lambda f_i, f_j, e: f_j, aggregate="max")
    f = torch.ones(5, 2, requires_grad=True)
    layer(NEIGHBOURS, f)[2].sum().backward()
    assert f.grad is not None
    assert f.grad[0].tolist() == [1.0, 1.0]
    assert f.grad[1:].abs().sum() == 0


def test_edge_features_may_come_by_place() -> None:
    ring = FactorGroup([[1, 4], [2, 0], [3, 1], [4, 2], [0, 3]])
    layer = MessagePassing(lambda f_i, f_j, e: f_j * e, aggregate="sum")
    f = torch.randn(5, 1)
    by_place = torch.tensor([[1.0], [10.0]])
    found = layer(ring, f, by_place)
    torch.testing.assert_close(found[0], f[1] + 10 * f[4])


@pytest.mark.parametrize(
    ("lists", "f", "message"),
    [
        ([[1, 2], [0, 2], [0, 1]], torch.randn(4, 3), r"f of shape \(3, 3\) or \(B, 3, 3\), .*nodes \(got \(4, 3\)\)"),
        ([[1, 2], [0, 2], [0, 1]], torch.randn(3, 5), r"f of shape \(3, 3\).*\(got \(3, 5\)\)"),
        ([[1, 2], [0, 2], [0, 1]], torch.randn(3, 3).double(), r"float32 \(got torch.float64\)"),
        ([[1, 2], [0, 3], [0, 1]], torch.randn(3, 3), r"neighbours 0 to 2 \(got 3 in the list of node 1\)"),
    ],
)
def test_inputs_that_do_not_fit_are_named(lists: list[list[int]], f: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MPNNLayer(3, 0, 4)(FactorGroup(lists), f)


def test_arguments_of_another_kind_are_named() -> None:
    with pytest.raises(ValueError, match=r"FactorGroup \(got tensor of shape \(3, 3\)\); the arguments are"):
        MPNNLayer(3, 0, 4)(torch.randn(3, 3), FactorGroup([[1], [2], [0]]))


def test_the_edges_of_a_group_are_made_once() -> None:
    group = FactorGroup([[1], [2], [0]])
    assert adjacency(group) is adjacency(group)


def test_compiled_and_exported_layers_give_the_same() -> None:
    """In one graph, and with the lists of neighbours as an input."""
    torch.manual_seed(0)
    f, e = torch.randn(5, 3), torch.randn(8, 2)
    layers = [MPNNLayer(3, 2, 4, hidden=(5,), aggregate="mean", norm="batch", bias=True).eval()]
    layers += [MessagePassing(lambda a, b, e: b * e[..., :1], aggregate=how) for how in ("sum", "max", "softmax(2)")]
    for layer in layers:
        torch._dynamo.reset()
        fast = torch.compile(layer, backend="eager", fullgraph=True, dynamic=True)
        torch.testing.assert_close(fast(NEIGHBOURS, f, e), layer(NEIGHBOURS, f, e))
        program = torch.export.export(layer, (NEIGHBOURS, f, e)).module()
        other = FactorGroup([[4], [3, 0], [1, 0], [2, 1, 0], []])
        torch.testing.assert_close(program(other, f, e), layer(other, f, e))


def test_compiled_layers_give_the_same_gradients_of_ties() -> None:
    layer = MessagePassing(lambda f_i, f_j, e: f_j, aggregate="max")
    torch._dynamo.reset()
    f = torch.ones(5, 2, requires_grad=True)
    torch.compile(layer, backend="aot_eager", fullgraph=True)(NEIGHBOURS, f)[2].sum().backward()
    assert f.grad is not None
    assert f.grad[0].tolist() == [1.0, 1.0]
    assert f.grad[1:].abs().sum() == 0


def test_compiled_layers_read_features_by_place() -> None:
    ring = FactorGroup([[1, 4], [2, 0], [3, 1], [4, 2], [0, 3]])
    layer, f = MessagePassing(lambda f_i, f_j, e: f_j * e, aggregate="sum"), torch.randn(5, 1)
    torch._dynamo.reset()
    fast = torch.compile(layer, backend="eager", fullgraph=True)
    e = torch.tensor([[1.0], [10.0]])
    torch.testing.assert_close(fast(ring, f, e), layer(ring, f, e))
