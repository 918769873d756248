"""The shipped checks accept what is right and catch what is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fgnn import FactorGraph, FactorGroup, ModelBatch
from fgnn.infer.brute_force import solve_brute_force
from fgnn.infer.solution import Answer
from fgnn.nn import FGNNLayer, build
from fgnn.testing import assert_permutation_equivariant, check_layer, check_solver
from tests.nn.graphs import features, graphs

# ---- solvers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "exact"), [("brute-force", True), ("exact", True), ("lp", False), ("ad3", False), ("max-product", False)]
)
def test_our_solvers_pass(method: str, exact: bool) -> None:
    check_solver(method, exact=exact)


@pytest.mark.parametrize("method", ["toulbar2", "auto"])
def test_our_solvers_with_toulbar2_pass(method: str) -> None:
    pytest.importorskip("pytoulbar2")
    check_solver(method, exact=True)


def test_options_and_restrictions_are_passed_on() -> None:
    check_solver("max-product", budgets=False, forbidden=False, trials=2, iterations=3, damping=0.1)
    with pytest.raises(TypeError, match="sweeps"):
        check_solver("max-product", trials=1, sweeps=3)


def _with(**changes: Any) -> Any:
    """Brute force with a part of its answer replaced."""

    def solver(batch: ModelBatch, **options: Any) -> Answer:
        answer = solve_brute_force(batch)
        return replace(answer, **{name: change(answer) for name, change in changes.items()})

    return solver


def _overwrite(batch: ModelBatch, **options: Any) -> Answer:
    answer = solve_brute_force(batch)
    batch.unary[:, :, 0] += 1.0
    return answer


def _guess(batch: ModelBatch, **options: Any) -> Answer:
    """Random states, whatever the seed."""
    draw = torch.rand(len(batch), batch.num_variables)
    return Answer.of((draw * batch.cardinalities).long())


WRONG_SOLVERS: dict[str, tuple[Any, str]] = {
    "bound": (_with(bound=lambda a: a.bound - 1e-3), "bounds of at least the optimum"),
    "proof": (_with(assignment=lambda a: torch.zeros_like(a.assignment)), "optimal assignment where proved"),
    "range": (_with(assignment=lambda a: a.assignment + 1), "states below the cardinalities"),
    "shape": (_with(assignment=lambda a: a.assignment[:, None]), "assignment of shape"),
    "type": (_with(bound=lambda a: a.bound.float()), "bound of shape"),
    "unproved": (_with(proved=lambda a: torch.zeros_like(a.proved)), "the proved optimum"),
    "overwrites": (_overwrite, "unchanged models"),
}


@pytest.mark.parametrize("name", WRONG_SOLVERS)
def test_a_wrong_solver_is_caught(name: str) -> None:
    solver, problem = WRONG_SOLVERS[name]
    with pytest.raises(AssertionError, match=problem):
        check_solver(solver, exact=True)


def test_a_solver_that_ignores_the_seed_is_caught() -> None:
    with pytest.raises(AssertionError, match="the same answer for the same seed"):
        check_solver(_guess)


# ---- layers -----------------------------------------------------------------------------------------------------

WIDTHS = {"pair": 3, "any": 2}


@pytest.mark.parametrize("q", ["dense", "basis", "table"])
@pytest.mark.parametrize("aggregate", ["max", "mean"])
def test_our_layers_pass(q: Any, aggregate: str) -> None:
    torch.manual_seed(0)
    layer = FGNNLayer(2, WIDTHS, WIDTHS, 4, q=q, aggregate=aggregate, bias=True, activation="relu")
    check_layer(layer, variable_in=2, factor_in=WIDTHS, edge_in=WIDTHS, edge_types=q == "table")


def test_our_layers_without_edge_features_pass() -> None:
    torch.manual_seed(0)
    layer = FGNNLayer(2, {"pair": 0}, out=4, schedule="parallel", variables_only=True)
    check_layer(layer, variable_in=2, factor_in={"pair": 0})


class _Changed(FGNNLayer):
    """A layer with something after it."""

    def __init__(self, change: Any) -> None:
        super().__init__(2, WIDTHS, WIDTHS, 2, q_options={"bases": 2, "hidden": (2,)})
        self.change = change

    def forward(self, *args: Any) -> tuple[Tensor, dict[str, Tensor]]:
        f, gs = super().forward(*args)
        return self.change(f), gs


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * grad


def _own_reference(layer: nn.Module, *args: Any) -> Any:
    return layer(*args)


@pytest.mark.parametrize(
    ("change", "reference", "problem"),
    [
        (lambda f: 1.001 * f, None, "differs from the reference"),
        (_WrongGradient.apply, None, "Gradients differ"),
        (lambda f: f - f.mean(-2, keepdim=True), _own_reference, "Joined graphs differ"),
        (lambda f: f - f.mean(0) if f.dim() == 3 else f, None, "A batch of samples differs"),
        (lambda f: f * torch.arange(f.shape[-2])[:, None], _own_reference, "Joined graphs differ"),
    ],
)
def test_a_wrong_layer_is_caught(change: Any, reference: Any, problem: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=problem):
        check_layer(_Changed(change), variable_in=2, factor_in=WIDTHS, edge_in=WIDTHS, reference=reference)


@given(
    graph=graphs(),
    seed=st.integers(0, 2**16),
    q=st.sampled_from(["dense", "basis", "table"]),
    aggregate=st.sampled_from(["max", "sum", "mean", "softmax"]),
    schedule=st.sampled_from(["sequential", "parallel"]),
)
def test_layers_are_equivariant(graph: FactorGraph, seed: int, q: str, aggregate: str, schedule: str) -> None:
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(seed)
    layer = FGNNLayer(2, widths, widths, 4, q=q, aggregate=aggregate, schedule=schedule).double()
    f, gs, edges = features(graph, 2, widths, widths, types=q == "table", seed=seed)
    assert_permutation_equivariant(layer, graph, f, gs, edges, seed=seed, rtol=1e-10, atol=1e-10)


def test_networks_are_equivariant() -> None:
    graph = FactorGraph(6, {"pair": FactorGroup([[0, 1], [1, 2], [3, 5]]), "any": FactorGroup([[0, 1, 2], [4]])})
    widths = {"pair": 3, "any": 2}
    net = build(
        "FGNN(8) - Res[FC(8) - FGNN(8)] - GlobalPooling - FC(2)", variable_in=2, factor_in=widths, edge_in=widths
    )
    f, gs, edges = features(graph, 2, widths, widths, batch=3, dtype=torch.float32)
    assert_permutation_equivariant(net, graph, f, gs, edges, atol=1e-5, rtol=1e-4)


class _ByNumber(nn.Module):
    """A layer that reads the index of a variable."""

    def forward(self, graph: FactorGraph, f: torch.Tensor, gs: object, edges: object) -> torch.Tensor:
        return f * torch.arange(f.shape[-2]).unsqueeze(-1)


class _FirstOfScope(nn.Module):
    """A layer that reads the first variable of each scope."""

    def forward(self, graph: FactorGraph, f: torch.Tensor, gs: object, edges: object) -> tuple[torch.Tensor, dict]:
        return f, {name: f[group.scopes[:, 0]] for name, group in graph.groups.items()}


class _ByFactorNumber(nn.Module):
    """A layer that reads the index of a factor."""

    def forward(self, graph: FactorGraph, f: torch.Tensor, gs: object, edges: object) -> tuple[torch.Tensor, dict]:
        return f, {name: torch.arange(group.num_factors).unsqueeze(1) for name, group in graph.groups.items()}


@pytest.mark.parametrize(
    ("layer", "what"), [(_ByNumber(), "variables"), (_FirstOfScope(), "edges"), (_ByFactorNumber(), "factors")]
)
def test_a_layer_that_depends_on_an_order_is_caught(layer: nn.Module, what: str) -> None:
    graph = FactorGraph(6, {"pair": FactorGroup([[0, 1], [1, 2], [3, 5], [4, 0]])})
    f = torch.arange(12.0).reshape(6, 2)
    with pytest.raises(AssertionError, match=f"depends on the order of {what}"):
        assert_permutation_equivariant(layer, graph, f, seed=1)
