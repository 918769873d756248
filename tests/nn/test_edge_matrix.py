"""The forms of Q agree where they express the same function."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given

from fgnn import FactorGraph, FactorGroup
from fgnn.graph import EdgeTypes
from fgnn.nn import (
    BasisMatrix,
    CosineMatrix,
    DenseMatrix,
    EdgeMatrix,
    FGNNLayer,
    Message,
    TableMatrix,
    VariableToFactor,
    make_edge_matrix,
)
from tests.nn.graphs import graphs

GRAPH = FactorGraph(5, {"x": FactorGroup([[0, 1], [2, 3, 4], [1, 4]])})
INCIDENCE = GRAPH.incidence("x")
TYPES = torch.tensor([0, 1, 2, 2, 0, 1, 1])
ONE_HOT = torch.nn.functional.one_hot(TYPES, 3).double()


def layers() -> list[VariableToFactor]:
    """One M, and one function of one-hot features as table, basis and dense Q."""
    torch.manual_seed(0)
    message = Message(2, 2, 4)
    table = TableMatrix(3, 6, 4)
    basis = BasisMatrix(3, 6, 4, bases=3, hidden=())
    dense = DenseMatrix(3, 6, 4, hidden=(3,))
    with torch.no_grad():
        for net in (basis.net, dense.net):
            net[0].weight.copy_(torch.eye(3))
            net[0].bias.zero_()
        basis.weight.copy_(table.weight)
        dense.weight[:3] = table.weight
        dense.weight[3] = 0
    return [VariableToFactor(message, q).double() for q in (table, basis, dense)]


def test_they_agree_and_so_do_their_gradients() -> None:
    f, g = torch.randn(5, 2).double(), torch.randn(3, 2).double()
    results, gradients = [], []
    for layer, t in zip(layers(), (TYPES, ONE_HOT, ONE_HOT), strict=True):
        out = layer(INCIDENCE, f, g, t)
        (gradient,) = torch.autograd.grad(out.square().sum(), layer.edge_messages.matrix.weight)
        results.append(out)
        gradients.append(gradient[:3])
    for k in (1, 2):
        torch.testing.assert_close(results[k], results[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradients[k], gradients[0], rtol=1e-12, atol=1e-12)


def test_a_table_reads_types_one_hot_features_and_edge_types() -> None:
    table = layers()[0]
    f, g = torch.randn(5, 2).double(), torch.randn(3, 2).double()
    expected = table(INCIDENCE, f, g, TYPES)
    for t in (ONE_HOT, EdgeTypes(TYPES, 3), TYPES.int()):
        assert torch.equal(table(INCIDENCE, f, g, t), expected)


def test_edge_types_are_sorted_once_and_a_tensor_is_read_at_every_call() -> None:
    table = layers()[0].edge_messages.matrix
    sorted_types = EdgeTypes(TYPES, 3)
    assert table(sorted_types, INCIDENCE)[0] is sorted_types
    types = TYPES.clone()
    table(types, INCIDENCE)
    types[0] = 2
    assert table(types, INCIDENCE)[0].index[0] == 2


def test_one_hot_means_one_hot() -> None:
    table = layers()[0].edge_messages.matrix
    with pytest.raises(ValueError, match="one-hot, or integer types"):
        table(ONE_HOT * 0.5, INCIDENCE)
    with pytest.raises(ValueError, match=r"Expected edge types 0 to 2 \(got 3\)"):
        table(TYPES + 1, INCIDENCE)
    with pytest.raises(ValueError, match=r"3 types for 7 edges \(got 4 for 7\)"):
        table(EdgeTypes(TYPES, 4), INCIDENCE)


def test_edges_without_features_share_one_matrix() -> None:
    q = make_edge_matrix("dense", 0, 3, 2)
    types, weight = q(None, INCIDENCE)
    assert isinstance(types, EdgeTypes)
    assert weight.shape == (1, 3, 2)


@pytest.mark.parametrize("form", [DenseMatrix, BasisMatrix])
def test_a_matrix_of_new_parameters_keeps_the_scale_of_messages(form: type) -> None:
    torch.manual_seed(0)
    q = form(8, 64, 64)
    sizes = q.matrix(torch.randn(500, 8)).var()
    assert 0.3 < sizes * 64 / 2 < 3


def test_a_sum_over_places_keeps_the_scale_of_messages() -> None:
    torch.manual_seed(0)
    q = CosineMatrix(64, 64, bases=6, fan=8)
    incidence = FactorGraph(8, {"x": FactorGroup([list(range(8))])}).incidence("x")
    at = q.at_positions(incidence, 8)  # shape: (8, 64, 64)
    total = torch.einsum("amn,abn->bm", at, torch.randn(8, 500, 64))
    assert 0.3 < total.var() / 2 < 3


@pytest.mark.parametrize("arity", [1, 2, 5, 12])
def test_places_are_told_apart_by_orthogonal_cosines(arity: int) -> None:
    q = CosineMatrix(3, 2, bases=4).double()
    group = FactorGroup(torch.arange(2 * arity).reshape(2, arity))
    incidence = FactorGraph(2 * arity, {"x": group}).incidence("x")
    positions, weight = q(None, incidence)
    assert positions is incidence.positions
    for a in range(arity):
        cosines = [math.cos(math.pi * tau * (a + 0.5) / arity) for tau in range(4)]
        expected = sum(c * w for c, w in zip(cosines, q.weight, strict=True))
        torch.testing.assert_close(weight[a], expected)
    phi = CosineMatrix(3, 2, bases=arity).double().cosines(incidence, arity)
    gram = phi.T @ phi
    torch.testing.assert_close(gram, torch.diag(gram.diagonal()))


@given(graphs())
def test_a_cosine_q_equals_a_basis_of_the_same_cosines(graph: FactorGraph) -> None:
    """On any graph, ragged or not, with the cosines given as edge features."""
    sizes = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    cosine = FGNNLayer(2, sizes, out=4, q="cosine", aggregate="sum", q_options={"bases": 3}).double()
    basis = FGNNLayer(2, sizes, sizes, 4, q="basis", aggregate="sum", q_options={"bases": 3, "hidden": ()}).double()
    basis.load_state_dict(cosine.state_dict(), strict=False)
    edges = {}
    for name, group in graph.groups.items():
        rows = [
            [math.cos(math.pi * tau * (a + 0.5) / len(s)) for tau in range(3)]
            for s in group.lists()
            for a in range(len(s))
        ]
        edges[name] = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)
    for module in basis.modules():
        if isinstance(module, BasisMatrix):
            torch.nn.init.eye_(module.net[0].weight)
            torch.nn.init.zeros_(module.net[0].bias)
    f = torch.randn(graph.num_variables, 2).double()
    gs = {name: torch.randn(group.num_factors, 3).double() for name, group in graph.groups.items()}
    torch.testing.assert_close(cosine(graph, f, gs), basis(graph, f, gs, edges))


def test_a_cosine_q_reads_no_edge_features() -> None:
    with pytest.raises(ValueError, match="edge_in 2"):
        make_edge_matrix("cosine", 2, 3, 3)
    with pytest.raises(ValueError, match="Tensor"):
        CosineMatrix(3, 3)(ONE_HOT, INCIDENCE)


def test_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="Expected positive sizes"):
        BasisMatrix(2, 3, 0)
    with pytest.raises(ValueError, match="Expected at least one hidden layer"):
        DenseMatrix(2, 3, 3, hidden=())
    with pytest.raises(ValueError, match=r"Expected edge features of length 2 \(got NoneType\)"):
        BasisMatrix(2, 3, 3)(None, INCIDENCE)
    assert "t 2 -> 16 terms of (3, 4)" in repr(BasisMatrix(2, 3, 4))


def test_a_form_of_ones_own_says_how_phi_comes_from_t() -> None:
    class Lacking(EdgeMatrix):
        pass

    class Square(EdgeMatrix):
        def coefficients(self, t: torch.Tensor) -> torch.Tensor:
            return t.square()

    with pytest.raises(TypeError, match="coefficients"):
        Lacking(3, 2, 2, terms=3)
    q = Square(3, 2, 4, terms=3)
    torch.nn.init.ones_(q.weight)
    torch.testing.assert_close(q.matrix(torch.tensor([1.0, 2.0, 3.0])), torch.full((2, 4), 14.0))


@pytest.mark.parametrize("edge_in", [1, 3, 7])
def test_a_linear_phi_is_summed_over_the_fewest_terms(edge_in: int) -> None:
    """Q and all gradients are those of the sum over bases."""
    torch.manual_seed(0)
    q = BasisMatrix(edge_in, 3, 2, bases=6, hidden=()).double()
    t = torch.randn(5, edge_in, dtype=torch.float64, requires_grad=True)
    phi, weight = q.sum_of_terms(t)
    assert phi.shape[1] == min(edge_in + 1, 6)
    short, full = torch.einsum("et,tmn->emn", phi, weight), q.matrix(t)
    torch.testing.assert_close(short, full)
    inputs = [t, *q.parameters()]
    up = torch.randn_like(full)
    for one, other in zip(torch.autograd.grad(short, inputs, up), torch.autograd.grad(full, inputs, up), strict=True):
        torch.testing.assert_close(one, other)
