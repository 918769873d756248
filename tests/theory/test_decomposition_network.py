"""Prop. 2: one FGNN layer that decomposes factors into rank-1 terms."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn.nn import FGNNLayer
from fgnn.theory import decomposition_network, maximum_of_terms


@settings(max_examples=25)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 99))
def test_the_terms_reconstruct_every_table_and_unaries_are_preserved(shape: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    arity, n = len(shape), len(shape) + 1
    scopes = torch.stack([torch.randperm(n, generator=generator)[:arity] for _ in range(4)])
    tables = 5 * torch.randn(4, *shape, dtype=torch.float64, generator=generator)  # the paper's θ ≥ 1 is not needed
    unaries = torch.randn(n, max(shape), dtype=torch.float64, generator=generator)
    f, terms = decomposition_network(shape)(scopes, unaries, tables)
    touched = scopes.unique()
    assert torch.equal(f[touched], unaries[touched])
    for c in range(4):
        torch.testing.assert_close(maximum_of_terms([t[c] for t in terms]), tables[c], rtol=1e-14, atol=0)


def test_the_entries_match_the_proof() -> None:
    table = torch.tensor([[1.0, 2.0, 4.0], [1.5, 3.0, 7.0]]).double()
    _, terms = decomposition_network((2, 3))(torch.tensor([[0, 1]]), torch.zeros(2, 3).double(), table[None])
    largest = table.max()
    for z, x in enumerate(product(range(2), range(3))):
        for a, theta in enumerate(terms):
            for state in range(theta.shape[1]):
                if state == x[a]:
                    assert theta[0, state, z] == table[x] / 2
                else:
                    assert theta[0, state, z] < -largest


def test_it_is_one_layer_whose_weights_depend_only_on_the_shape() -> None:
    net = decomposition_network((2, 2, 2))
    assert [type(child) for child in net.children()] == [FGNNLayer]
    twin = decomposition_network((2, 2, 2))
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))


def test_the_printed_matrix_is_wrong() -> None:
    """Negative "other entries" corrupt matching rows, and zeros in other slots erase negative entries."""
    net = decomposition_network((2, 2))
    vf = net.layer.variable_to_factor["factor"].edge_messages.matrix
    scope, unaries = torch.tensor([[0, 1]]), torch.zeros(2, 2).double()
    table = torch.tensor([[1.0, 2.0], [3.0, 5.0]]).double()
    right = vf.weight.detach().clone()
    for spoil in (
        lambda w: torch.where((w == 0) & (w.amax(-1, keepdim=True) > 0), -1.0, w),
        lambda w: torch.where(w == -2, 0.0, w),
    ):
        with torch.no_grad():
            vf.weight.copy_(spoil(right))
        _, terms = net(scope, unaries, table[None])
        assert not torch.allclose(maximum_of_terms([t[0] for t in terms]), table)


def test_invalid_shapes_are_refused() -> None:
    net = decomposition_network((2, 2))
    scope, unaries = torch.tensor([[0, 1]]), torch.zeros(2, 2).double()
    with pytest.raises(ValueError, match=r"finite log-potentials"):
        net(scope, unaries, torch.full((1, 2, 2), -torch.inf).double())
    with pytest.raises(ValueError, match=r"tables of shape \(2, 2\)"):
        net(scope, unaries, torch.ones(1, 2, 3).double())
    with pytest.raises(ValueError, match="over at least one variable"):
        decomposition_network(())
