"""The corollary: k FGNN layers and a linear layer are k iterations of max-product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fgnn import GraphicalModel, ModelBatch
from fgnn import nn as layers
from fgnn.infer.max_product.solver import solve_max_product
from fgnn.theory import MaxProductNetwork, max_product_network
from tests.strategies import models, tree_models
from tests.theory.reference import max_product

VARIANTS = ("paper", "standard")


def assert_same_beliefs(net: MaxProductNetwork, model: GraphicalModel | None = None) -> None:
    """Equal to the equation at every iteration: -inf at the same states, and every other entry up to the rounding of
    its own sum, not of the largest entry."""
    model = net.model if model is None else model
    wanted, sizes = max_product(model, net.iterations, net.variant, net.normalise)
    for t, (after, reference, scale) in enumerate(zip(net.beliefs(model), wanted, sizes, strict=True)):
        for i, (mine, theirs, size) in enumerate(zip(after, reference, scale, strict=True)):
            finite = np.isfinite(theirs)
            assert np.array_equal(np.isfinite(mine.numpy()), finite), (t, i, mine, theirs)
            error = np.abs(mine.numpy()[finite] - theirs[finite])
            assert (error <= 1e-14 * size[finite]).all(), (t, i, mine, theirs, size)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=30)
@given(model=models(), normalise=st.booleans())
def test_beliefs_equal_the_equation_at_every_iteration(variant: str, model: GraphicalModel, normalise: bool) -> None:
    net = max_product_network(model, iterations=10, variant=variant, normalise=normalise)
    assert_same_beliefs(net)


def test_it_consists_of_fgnn_layers_and_a_linear_layer(loopy: GraphicalModel) -> None:
    net = max_product_network(loopy, iterations=3)
    assert len(net.layers) == 3
    assert all(isinstance(layer, layers.FGNNLayer) for layer in net.layers)
    assert {name for name, _ in net.named_children()} == {"layer", "readout"}
    assert type(net.readout) is nn.Linear
    allowed = (
        *(layers.FGNNLayer, layers.VariableToFactor, layers.FactorToVariable, layers.EdgeMessages),
        *(layers.Message, layers.TableMatrix, nn.Linear, nn.ModuleDict, nn.ModuleList),
    )
    inner = [m for m in net.layer.modules() if not isinstance(m, allowed)]
    assert {type(m).__name__ for m in inner} <= {"Output"}  # the identity: no bias, norm or activation
    assert all(not list(m.parameters()) and m.activation is None for m in inner)


@pytest.fixture
def loopy() -> GraphicalModel:
    """A loop of tables of arity 2 and 3, mixed cardinalities, a budget, -inf entries and an isolated variable."""
    rng = np.random.default_rng(3)
    model = GraphicalModel([2, 3, 2, 4, 2, 3])
    model.add_unaries(rng.normal(size=16))
    model.add_table((0, 1), rng.normal(size=(2, 3)))
    model.add_table((1, 2, 3), rng.normal(size=(3, 2, 4)))
    hard = rng.normal(size=(4, 2))
    hard[1:, 1] = -np.inf
    model.add_table((3, 0), hard)
    model.add_budget((0, 2, 4), at_most=1)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("terms", ["few", "single", "tables"])
@pytest.mark.parametrize("normalise", [True, False])
def test_a_model_with_everything(loopy: GraphicalModel, variant: str, terms: str, normalise: bool) -> None:
    net = max_product_network(loopy, iterations=5, variant=variant, terms=terms, normalise=normalise)
    assert_same_beliefs(net)


@pytest.mark.parametrize("variant", VARIANTS)
def test_overlapping_factors_of_four_variables_of_four_states(variant: str) -> None:
    rng = np.random.default_rng(0)
    model = GraphicalModel([4] * 6)
    model.add_unaries(rng.normal(size=24))
    model.add_unary(0, [0.0, -np.inf, 0.0, 0.0])
    for scope in ((0, 1, 2, 3), (5, 4, 3, 2)):
        table = rng.normal(size=(4, 4, 4, 4))
        table[rng.random(table.shape) < 0.3] = -np.inf
        model.add_table(scope, table)
    net = max_product_network(model, iterations=10, variant=variant)
    assert_same_beliefs(net)


def test_messages_are_the_summands_of_the_beliefs(loopy: GraphicalModel) -> None:
    net = max_product_network(loopy, iterations=4)
    assert net.scopes[-1] == (5,)  # the constant factor of the isolated variable
    for beliefs, messages in zip(net.beliefs(), net.messages(), strict=True):
        assert set(messages) == {(c, i) for c, scope in enumerate(net.scopes) for i in scope}
        for i, belief in enumerate(beliefs):
            total = torch.tensor(np.array(loopy.unary(i))) + sum(m for (_, j), m in messages.items() if j == i)
            torch.testing.assert_close(total, belief)
    hard = net.scopes.index((3, 0))
    assert net.messages()[0][hard, 3].isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_beliefs_grow_unless_normalised(loopy: GraphicalModel, variant: str) -> None:
    def largest(normalise: bool) -> float:
        last = torch.cat(max_product_network(loopy, 10, variant, normalise).beliefs()[-1])
        return float(last[last.isfinite()].abs().max())

    assert largest(normalise=True) < 100 < largest(normalise=False)


# ---- numbers of very different size ----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("low", [-1e9, -1e15, -1e60])
def test_a_very_low_entry_costs_the_others_nothing(variant: str, normalise: bool, low: float) -> None:
    rng = np.random.default_rng(7)
    model = GraphicalModel([3, 2, 3, 2])
    model.add_unaries(rng.normal(size=10))
    model.add_unary(0, [0.0, low, 0.0])
    table = rng.normal(size=(3, 2))
    table[2, 1] = low
    for scope, values in (((0, 1), table), ((2, 1), table[::-1]), ((2, 3), rng.normal(size=(3, 2)))):
        model.add_table(scope, values)
    model.add_table((3, 0), rng.normal(size=(2, 3)))
    for terms in ("few", "single", "tables"):
        assert_same_beliefs(max_product_network(model, 6, variant, normalise, terms))


@pytest.mark.parametrize("variant", VARIANTS)
def test_beliefs_that_leave_the_range_are_refused(variant: str) -> None:
    rng = np.random.default_rng(0)
    model = GraphicalModel([2] * 4)
    for scope in ((0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)):
        model.add_table(scope, rng.random((2, 2)))
    model.add_unary(0, [0.0, -np.inf])
    model.add_table((1, 2), [[-np.inf, -np.inf], [0.0, 0.0]])
    with pytest.raises(ValueError, match=r"messages below 1e\+90.*normalise=True.*after iteration \d+"):
        max_product_network(model, 2000, variant).beliefs()
    after = max_product_network(model, 400, variant, normalise=True).beliefs()
    assert all(b[b.isfinite()].abs().max() < 100 for b in after[-1])
    # -inf is still where it was: saturated numbers do not drift
    assert [b.isneginf().tolist() for b in after[-1]] == [b.isneginf().tolist() for b in after[20]]


@pytest.mark.parametrize("terms", ["few", "single", "tables"])
def test_potentials_beyond_the_range_are_refused(terms: str) -> None:
    for unary, table in ((1e250, 0.0), (0.0, -1e250)):
        model = GraphicalModel([2, 2])
        model.add_unary(0, [0.0, unary])
        model.add_table((0, 1), [[0.0, table], [1.0, 3.0]])
        with pytest.raises(ValueError, match=r"below 1e\+90 or -inf \(got 1e\+250\)"):
            max_product_network(model, 1, terms=terms).beliefs()


@pytest.mark.parametrize("variant", VARIANTS)
def test_with_the_old_factor_features_an_iteration_takes_two_layers(loopy: GraphicalModel, variant: str) -> None:
    """Alg. 1 as printed: FV reads g_c from before the layer."""
    net = max_product_network(loopy, iterations=3, variant=variant).requires_grad_(False)
    halves = (net.layer.variable_to_factor, net.layer.factor_to_variable)
    printed = layers.FGNNLayer.from_parts(*halves, schedule="parallel")
    f, gs = net.features(loopy)
    wanted = net.forward(f, gs)
    for layer in range(1, 7):
        f, gs = printed(net.graph, f, gs, net.edges)
        same = torch.equal(net._read(f), wanted[(layer - 1) // 2])
        assert same == (layer % 2 == 0), layer


# ---- from the tables -------------------------------------------------------------------------------------------


def test_from_tables_it_is_one_network_whose_input_is_the_potentials() -> None:
    """1 + k layers, Prop. 2's in front; the weights know the scopes only, so other tables, -inf included, are input."""

    def model(seed: int) -> GraphicalModel:
        rng = np.random.default_rng(seed)
        made = GraphicalModel([2, 3, 2])
        made.add_unaries(rng.normal(size=7))
        for scope, shape in (((0, 1), (2, 3)), ((1, 2), (3, 2)), ((2, 0), (2, 2))):
            values = rng.normal(size=shape) * 3
            values[rng.random(shape) < 0.2 * seed] = -np.inf
            made.add_table(scope, values)
        return made

    for variant in VARIANTS:
        net = max_product_network(model(0), iterations=4, variant=variant, terms="tables")
        assert len(net.layers) == 5
        assert all(isinstance(layer, layers.FGNNLayer) for layer in net.layers)
        assert {name for name, _ in net.named_children()} == {"decomposer", "layer", "readout"}
        other = model(1)
        f, gs = net.features(other)
        assert np.array_equal(f[0, 1], other.unary(1))
        tables = {t.scope: t.values for t in other.tables()}
        finite = np.isfinite(tables[1, 2])
        raw = next(iter(gs.values())) if len(gs) == 1 else gs["3x2:6"]
        assert np.array_equal(raw[0, 0].reshape(3, 2).numpy()[finite], tables[1, 2][finite])
        for seed in (0, 1, 2):
            assert_same_beliefs(net, model(seed))


def test_the_readout_is_linear_also_with_minus_infinity(loopy: GraphicalModel) -> None:
    loopy.add_unary(2, [0.0, -np.inf])
    net = max_product_network(loopy, iterations=3).requires_grad_(False)
    f = net._run(*net.features(loopy))[-1]
    numbers = f @ net.readout.weight.T
    shown = net.forward(*net.features(loopy))[-1]
    assert bool(shown.isneginf().any())
    assert torch.equal(shown.isneginf(), numbers < -1e95)
    assert torch.equal(shown[shown.isfinite()], numbers[shown.isfinite()])


def test_forbidden_states_stay_forbidden() -> None:
    model = GraphicalModel([2, 2, 2])
    model.add_unary(0, [0.0, -np.inf])
    model.add_table((0, 1), [[-np.inf, 1.0], [0.0, 0.0]])
    model.add_table((1, 2), [[0.0, 5.0], [2.0, -np.inf]])
    for variant in VARIANTS:
        net = max_product_network(model, iterations=4, variant=variant)
        assert_same_beliefs(net)
        after = net.beliefs()[-1]
        assert net.assignments()[-1].tolist() == [0, 1, 0]
        assert all(b.isneginf().sum() == 1 for b in after)


@settings(max_examples=30)
@given(tree_models())
def test_on_trees_the_standard_variant_reaches_the_exact_map(model: GraphicalModel) -> None:
    rounds = 2 * model.num_variables + 1
    last = max_product_network(model, rounds, "standard", normalise=True).beliefs()[-1]
    states = np.stack(np.meshgrid(*[np.arange(k) for k in model.cardinalities], indexing="ij"), -1)
    scores = model.score(states.reshape(-1, model.num_variables)).reshape(states.shape[:-1])
    assert [int(b.argmax()) for b in last] == list(np.unravel_index(scores.argmax(), scores.shape))
    # up to a constant, the belief of a state is its max-marginal
    for i, belief in enumerate(last):
        best = scores.max(axis=tuple(a for a in range(scores.ndim) if a != i))
        np.testing.assert_allclose(belief - belief.max(), best - best.max(), atol=1e-9)


# ---- the solver ------------------------------------------------------------------------------------------------


def chains(count: int, length: int = 30, window: int = 4, at_most: int = 2) -> ModelBatch:
    """Dataset1-like chains: unaries uniform on [0, 1], one pairwise table, a budget in every window."""
    rng = np.random.default_rng(11)
    starts = np.arange(length - window + 1)
    made = []
    for _ in range(count):
        model = GraphicalModel([2] * length)
        model.add_unaries(rng.random(2 * length))
        pairs = np.stack([np.arange(length - 1), np.arange(1, length)], 1)
        model.add_tables(pairs, np.broadcast_to(np.array([[0.0, 0.1], [0.2, 1.0]]), (length - 1, 2, 2)))
        model.add_budgets(starts[:, None] + np.arange(window), at_most)
        made.append(model)
    return ModelBatch.stack(made)


def first_best(beliefs: torch.Tensor) -> torch.Tensor:
    """The first state within 1e-9 of the best."""
    return (beliefs > beliefs.amax(-1, keepdim=True) - 1e-9).to(torch.uint8).argmax(-1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_on_chains_the_network_and_the_solver_agree_after_each_iteration(variant: str) -> None:
    batch = chains(50)
    net = max_product_network(batch.model(0), iterations=10, variant=variant, normalise=True)
    history, chosen = net.beliefs(batch), net.assignments(batch)
    for t, after in enumerate(history, start=1):
        solved = solve_max_product(batch, iterations=t, damping=0.0, variant=variant, tolerance=0.0, keep_beliefs=True)
        mine = torch.stack(after, 1)  # shape: (B, N, 2)
        mine = mine - mine.amax(2, keepdim=True)
        theirs = solved.info["beliefs"] - solved.info["beliefs"].amax(2, keepdim=True)
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
        assert torch.equal(chosen[t - 1], first_best(theirs)), t
        # The solver agrees unless states tie, when beliefs differ only by rounding.
        tied = mine.amin(2) > -1e-9
        assert torch.equal(mine.argmax(2)[~tied], solved.assignment[~tied]), t
        assert tied.double().mean() < 0.01, t


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=20)
@given(model=models(max_variables=5, max_tables=4))
def test_on_loopy_models_the_network_and_the_solver_have_the_same_beliefs(variant: str, model: GraphicalModel) -> None:
    history = max_product_network(model, iterations=10, variant=variant).beliefs()
    batch = ModelBatch.stack([model])
    for t in (1, 2, 5, 10):
        # negative tolerance: continue although messages have converged up to a constant
        options: dict[str, Any] = {
            "iterations": t,
            "damping": 0.0,
            "tolerance": -1.0,
            "normalise": False,
            "keep_beliefs": True,
        }
        theirs = solve_max_product(batch, variant=variant, **options).info["beliefs"][0]
        for i, mine in enumerate(history[t - 1]):
            finite = mine.isfinite()
            other = theirs[i, : len(mine)]
            assert torch.equal(other.isfinite(), finite)
            scale = float(mine[finite].abs().max()) if finite.any() else 1.0
            torch.testing.assert_close(mine[finite], other[finite], rtol=1e-9, atol=1e-9 * scale)


def test_one_network_serves_all_models_of_its_structure() -> None:
    batch = chains(3, length=9)
    net = max_product_network(batch.model(0), iterations=4, normalise=True)
    together = net.beliefs(batch)
    for b in range(3):
        alone = max_product_network(batch.model(b), iterations=4, normalise=True).beliefs()
        for t in range(4):
            for i in range(9):
                torch.testing.assert_close(together[t][i][b], alone[t][i], rtol=1e-12, atol=1e-12)


def test_tables_with_other_boxes_are_refused() -> None:
    def pair(values: list[list[float]]) -> GraphicalModel:
        model = GraphicalModel([2, 2])
        model.add_table((0, 1), values)
        return model

    net = max_product_network(pair([[0.0, 0.0], [0.0, 1.0]]), iterations=1)
    assert net.beliefs(pair([[0.5, 0.5], [0.5, 7.0]]))
    with pytest.raises(ValueError, match=r"Expected tables .* boxes"):
        net.beliefs(pair([[0.0, 1.0], [2.0, 3.0]]))
    with pytest.raises(ValueError, match=r"Expected tables .* boxes"):
        net.beliefs(pair([[0.0, -np.inf], [0.0, 3.0]]))
    with pytest.raises(ValueError, match="Expected models with the factors"):
        net.beliefs(GraphicalModel([2, 2]))
    assert_same_beliefs(net, pair([[0.0, 0.0], [0.0, 1.0]]).condition({0: 1}))


def test_models_with_other_scopes_or_budgets_are_refused() -> None:
    def model(scope: tuple[int, int], at_most: int) -> GraphicalModel:
        made = GraphicalModel([2, 2, 2])
        made.add_table(scope, [[0.0, 0.1], [0.2, 1.0]])
        made.add_budget((0, 1, 2), at_most=at_most)
        return made

    net = max_product_network(model((0, 1), 1), iterations=1)
    with pytest.raises(ValueError, match="models with the scopes"):
        net.beliefs(model((0, 2), 1))
    with pytest.raises(ValueError, match="models with the budgets"):
        net.beliefs(model((0, 1), 2))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gpu_gives_the_same_beliefs(variant: str) -> None:
    batch = chains(4, length=12)
    net = max_product_network(batch.model(0), iterations=5, variant=variant, normalise=True)
    here = net.beliefs(batch)
    there = net.to("cuda").beliefs(batch.to("cuda"))
    for mine, theirs in zip(here[-1], there[-1], strict=True):
        torch.testing.assert_close(mine, theirs.cpu(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "loopy"}, "variant paper or standard"),
        ({"terms": "none"}, r"terms among .* \(got 'none'\)"),
        ({"iterations": 0}, r"at least one iteration \(got 0\)"),
    ],
)
def test_invalid_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        max_product_network(GraphicalModel([2]), **({"iterations": 1} | options))
