"""Every structured kind is its table: scores, messages in both semirings, auxiliary variables, files, methods."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fgnn
from fgnn.pgm import KINDS, Kind, ModelBatch
from fgnn.pgm.factors import AllDifferent, BudgetKind, Linear, Parity, Pattern, TableKind, automaton
from fgnn.pgm.lowering import lower
from fgnn.testing import check_factor

Case = tuple[Kind, tuple[int, ...], dict[str, Any]]


@st.composite
def factors(draw: st.DrawFn) -> Case:
    """A kind, the cardinalities of its variables, and the numbers of one factor."""
    name = draw(st.sampled_from(sorted(KINDS)))
    n = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if name == "parity":
        return Parity(), (2,) * n, {"value": np.array(rng.integers(2))}
    if name == "budget":
        low, high = np.sort(rng.integers(n + 1, size=2))
        return BudgetKind(), (2,) * n, {"at_least": np.array(low), "at_most": np.array(high)}
    n = max(n, 2) if name == "table" else n
    shape = tuple(rng.integers(1, 4, size=n).tolist())
    if name == "table":
        values = np.where(rng.random(shape) < 0.2, -np.inf, rng.normal(size=shape))
        return TableKind(), shape, {"values": values}
    if name == "all-different":
        return AllDifferent(), shape, {}
    if name == "linear":
        weights = rng.integers(-4, 5, size=(n, max(shape)))
        low, high = np.sort(rng.integers(-6, 7, size=2)).tolist()
        return Linear(tuple(map(tuple, weights.tolist())), low, high), shape, {}
    every = list(itertools.product(*map(range, shape)))
    chosen = rng.permutation(len(every))[: rng.integers(1, 5)]
    patterns = tuple(every[i] for i in chosen)
    scores = rng.normal(size=len(patterns))
    default = -np.inf if rng.random() < 0.3 else rng.normal()
    return Pattern(patterns), shape, {"scores": scores, "default": np.array(default)}


def by_definition(kind: Kind, shape: tuple[int, ...], numbers: dict[str, Any]) -> np.ndarray:
    """The table, entry by entry, from what the kinds are said to mean."""
    table = np.full(shape, -np.inf)
    for x in itertools.product(*map(range, shape)):
        if isinstance(kind, TableKind):
            table[x] = numbers["values"][x]
            continue
        if isinstance(kind, BudgetKind):
            allowed = numbers["at_least"] <= sum(x) <= numbers["at_most"]
        elif isinstance(kind, Parity):
            allowed = sum(x) % 2 == int(numbers["value"])
        elif isinstance(kind, AllDifferent):
            allowed = len(set(x)) == len(x)
        elif isinstance(kind, Linear):
            allowed = kind.at_least <= sum(w[s] for w, s in zip(kind.weights, x, strict=True)) <= kind.at_most
        else:
            assert isinstance(kind, Pattern)
            scores = dict(zip(kind.patterns, numbers["scores"].tolist(), strict=True))
            table[x] = scores.get(x, float(numbers["default"]))
            continue
        table[x] = 0.0 if allowed else -np.inf
    return table


def theta_of(kind: Kind, shape: tuple[int, ...], numbers: dict[str, Any]) -> torch.Tensor:
    """The potentials of one factor, shape (S, 1, 1)."""
    return kind.potentials(shape, {k: torch.as_tensor(v)[None, None] for k, v in numbers.items()}).permute(2, 1, 0)


@settings(max_examples=60, deadline=None)
@given(factors())
def test_a_factor_is_its_table(case: Case) -> None:
    kind, shape, numbers = case
    kind.check(shape, {k: v[None] for k, v in numbers.items()})
    assert np.array_equal(kind.as_table(shape, numbers), by_definition(kind, shape, numbers))
    assert type(kind).from_arrays(kind.arrays()) == kind


@settings(max_examples=80, deadline=None)
@given(factors(), st.booleans(), st.integers(0, 2**32 - 1))
def test_messages_are_sums_over_the_table(case: Case, total: bool, seed: int) -> None:
    kind, shape, numbers = case
    rng = np.random.default_rng(seed)
    nu = [torch.from_numpy(rng.normal(size=(k, 1, 2))) for k in shape]
    for message in nu:  # some states are impossible
        message[torch.from_numpy(rng.random(message.shape)) < 0.15] = -torch.inf
    sent = kind.messages(theta_of(kind, shape, numbers), nu, total=total)
    table = torch.from_numpy(by_definition(kind, shape, numbers))
    for b, axis in itertools.product(range(2), range(len(shape))):
        joint = table
        for a, message in enumerate(nu):
            if a != axis:
                joint = joint + message[:, 0, b].view(-1, *[1] * (len(shape) - a - 1))
        flat = joint.movedim(axis, 0).reshape(shape[axis], -1)
        expected = flat.logsumexp(1) if total else flat.amax(1)
        assert torch.allclose(sent[axis][:, 0, b], expected, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.booleans(), st.integers(0, 2**32 - 1))
def test_ratios_of_parity_are_those_of_its_messages(n: int, total: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    nu = torch.from_numpy(rng.normal(size=(n, 3, 4)) * 3)
    theta = (
        Parity().potentials((2,) * len(nu), {"value": torch.from_numpy(rng.integers(2, size=(4, 3)))}).permute(2, 1, 0)
    )
    full = automaton.AutomatonKind.messages(
        Parity(), theta, [torch.stack([torch.zeros_like(r), r]) for r in nu], total=total
    )
    expected = torch.stack([m[1] - m[0] for m in full])
    assert torch.allclose(Parity().ratios(theta, nu, total=total), expected, atol=1e-9)


def test_parity_keeps_its_precision_for_certain_bits() -> None:
    nu = torch.tensor([60.0, -50.0, 40.0, 700.0], dtype=torch.float64).view(4, 1, 1)
    theta = Parity().potentials((2,) * len(nu), {"value": torch.zeros(1, 1, dtype=torch.int64)}).permute(2, 1, 0)
    sums = Parity().ratios(theta, nu, total=True).flatten()
    # The others' smallest ratio counts, towards a one if they are most likely odd. A product of tanh saturates at 38.
    assert torch.allclose(sums, torch.tensor([-40.0, 40.0, -50.0, -40.0], dtype=torch.float64), atol=1e-3)


@settings(max_examples=40, deadline=None)
@given(factors())
def test_linear_constraints_allow_what_the_table_allows(case: Case) -> None:
    kind, shape, numbers = case
    assert kind.has("rows") == (kind.name in ("linear", "all-different"))
    if kind.has("rows"):
        table = by_definition(kind, shape, numbers)
        for x in np.ndindex(*shape):
            sums = [sum(w[x[a]] for a, w in zip(row.positions, row.weights, strict=True)) for row in kind.rows(shape)]
            kept = all(row.at_least <= total <= row.at_most for row, total in zip(kind.rows(shape), sums, strict=True))
            assert kept == (table[x] == 0.0)


@settings(max_examples=30, deadline=None)
@given(factors())
def test_small_factors_need_no_auxiliary_variables_in_a_local_search(case: Case) -> None:
    kind, shape, numbers = case
    model = fgnn.GraphicalModel(shape)
    model.add_factors(kind, [range(len(shape))], **{k: v[None] for k, v in numbers.items()})
    batch = lower(ModelBatch.stack([model]), local=True).batch
    cells = torch.from_numpy(np.indices(shape).reshape(len(shape), -1).T.copy())
    assert batch.num_variables == len(shape)
    assert np.array_equal(batch.score(cells[None])[0].numpy(), by_definition(kind, shape, numbers).reshape(-1))


@settings(max_examples=40, deadline=None)
@given(factors(), st.booleans())
def test_auxiliary_variables_extend_every_assignment_once(case: Case, chain: bool) -> None:
    kind, shape, numbers = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automaton, "_SMALL_TABLE", 0 if chain else 64)
        model = fgnn.GraphicalModel(shape)
        model.add_factors(kind, [range(len(shape))], **{k: v[None] for k, v in numbers.items()})
        batch = ModelBatch.stack([model])
        gadget = kind.gadget(shape)
        lowered = lower(batch)
        if chain:  # the structure may have been lowered before, without a chain
            batch.structure._derived.clear()
            lowered = lower(batch)
            batch.structure._derived.clear()
    table = by_definition(kind, shape, numbers)
    cells = torch.from_numpy(np.indices(shape).reshape(len(shape), -1).T.copy())
    whole = lowered.complete(cells)
    assert np.array_equal(lowered.batch.score(whole[None])[0].numpy(), table.reshape(-1))
    assert lowered.batch.num_variables == len(shape) + len(gadget.indicators) + len(gadget.cardinalities)
    count = float(fgnn.log_partition(lowered.batch, "exact").value[0])
    with np.errstate(divide="ignore"):
        assert math.isclose(count, np.log(np.exp(table).sum()), abs_tol=1e-9)


def linear(weights: list[int], low: int, high: int) -> Linear:
    return Linear(tuple((0, w) for w in weights), low, high)


TABLE = np.random.default_rng(3).normal(size=(3, 2, 3))
TABLE[0, 0, 0] = -np.inf
FACTORS: dict[str, Case] = {
    "table": (TableKind(), TABLE.shape, {"values": TABLE}),
    "budget": (BudgetKind(), (2,) * 7, {"at_least": 2, "at_most": 4}),
    "count": (linear([1] * 7, 2, 4), (2,) * 7, {}),
    "odd parity": (Parity(), (2,) * 7, {"value": 1}),
    "knapsack": (linear([3, 1, 4, 1, 5, 9, 2], 0, 11), (2,) * 7, {}),
    "at least": (linear([1, -2, 3, 1, 2, 1, 1], 4, 99), (2,) * 7, {}),
    "all different": (AllDifferent(), (4, 4, 4, 4), {}),
    "all different, of several sizes": (AllDifferent(), (2, 4, 3), {}),
    "Potts": (Pattern(((0,) * 4, (1,) * 4, (2,) * 4)), (3,) * 4, {"scores": [1.0, 2.0, 0.5], "default": -1.0}),
    "penalty": (
        Pattern(((0, 1, 0, 1, 1, 0, 1), (0, 1, 1, 1, 0, 0, 1))),
        (2,) * 7,
        {"scores": [-3, -np.inf], "default": 0.0},
    ),
}


@pytest.mark.parametrize("case", FACTORS.values(), ids=FACTORS)
def test_every_method_agrees_with_the_table(case: Case) -> None:
    kind, shape, numbers = case
    assert check_factor(kind, shape, trials=1, **numbers) in ([], ["toulbar2"])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(factors())
def test_every_method_agrees_with_the_table_of_any_factor(case: Case) -> None:
    kind, shape, numbers = case
    if len(shape) > 1:
        assert check_factor(kind, shape, trials=1, **numbers) in ([], ["toulbar2"])


def test_message_costs_are_those_promised() -> None:
    states = {n: sum(len(s) for s in automaton.automaton_steps(linear([1] * n, 2, 4), (2,) * n)) for n in (50, 100)}
    assert states[100] <= 5 * 100
    wide = linear([10**9, 7, 10**9], 8, 10**9 + 3)  # a wide range, but few partial sums
    assert sum(len(s) for s in automaton.automaton_steps(wide, (2,) * 3)) <= 5
    patterns = Pattern(tuple((s,) * 40 for s in range(6)))
    assert max(len(s) for s in automaton.automaton_steps(patterns, (6,) * 40)) == 7


def test_exactly_one_and_at_most_one_are_budgets() -> None:
    model = fgnn.GraphicalModel([2, 2, 2])
    model.add_exactly_one((0, 1))
    model.add_at_most_one((1, 2))
    assert [(b.scope, b.at_least, b.at_most) for b in model.budgets()] == [((0, 1), 1, 1), ((1, 2), 0, 1)]


BAD: dict[str, tuple[str, Any]] = {
    "parity of a variable of 3 states": ("binary", lambda m: m.add_parity((0, 3))),
    "parity of 2": ("got 2", lambda m: m.add_parity((0, 1), 2)),
    "no variables": ("empty", lambda m: m.add_parity(())),
    "twice the same": ("distinct", lambda m: m.add_all_different((0, 0))),
    "too few weights": ("2 variables", lambda m: m.add_linear((0, 1), [1], at_most=1)),
    "fractions": ("integer", lambda m: m.add_linear((0, 1), [0.5, 1], at_most=1)),
    "bounds": ("got 2 and 1", lambda m: m.add_linear((0, 1), [1, 1], at_least=2, at_most=1)),
    "huge weights": ("overflow", lambda m: m.add_linear((0, 1), [2**61, 2**61], at_most=1)),
    "a pattern too short": ("2 variables", lambda m: m.add_pattern((0, 1), [[0]], [1.0])),
    "a state too high": ("position 1", lambda m: m.add_pattern((0, 1), [[0, 2]], [1.0])),
    "patterns twice": ("distinct", lambda m: m.add_pattern((0, 1), [[0, 1], [0, 1]], [1.0, 2.0])),
    "scores": ("1 scores", lambda m: m.add_pattern((0, 1), [[0, 1]], [1.0, 2.0])),
    "NaN": ("NaN", lambda m: m.add_pattern((0, 1), [[0, 1]], [np.nan])),
    "numbers": ("value", lambda m: m.add_factors(Parity(), [(0, 1)])),
    "cardinalities": ("cardinalities", lambda m: m.add_factors(AllDifferent(), [(0, 1), (0, 3)])),
}


@pytest.mark.parametrize(("message", "add"), BAD.values(), ids=BAD)
def test_bad_factors_are_refused(message: str, add: Any) -> None:
    model = fgnn.GraphicalModel([2, 2, 2, 3])
    with pytest.raises(ValueError, match=message):
        add(model)
    assert model.num_structured == 0
