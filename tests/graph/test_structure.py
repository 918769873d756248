"""A structure has an identity: equal content is one object, and what is compiled from it is made once."""

from __future__ import annotations

import gc

import pytest
import torch

from fgnn.data import ChainMAP
from fgnn.graph import FactorGraph, FactorGroup, Hints, Structure
from fgnn.infer import solve
from fgnn.pgm import GraphicalModel, ModelBatch, TableBatch


def pairs(*scopes: tuple[int, int]) -> Structure:
    return Structure(4, {"pair": FactorGroup(torch.tensor(scopes))}, torch.full((4,), 2))


def test_equal_content_is_one_object() -> None:
    first, second = pairs((0, 1), (1, 2)).interned(), pairs((0, 1), (1, 2)).interned()
    assert first is second


@pytest.mark.parametrize(
    "other",
    [
        pairs((0, 1), (2, 1)),
        pairs((0, 1)),
        Structure(5, pairs((0, 1), (1, 2)).groups, torch.full((5,), 2)),
        Structure(4, pairs((0, 1), (1, 2)).groups, torch.tensor([2, 2, 2, 3])),
        Structure(4, {"edge": pairs((0, 1), (1, 2)).groups["pair"]}, torch.full((4,), 2)),
        Structure(4, {"pair": FactorGroup([[0, 1], [1, 2]])}),
        Structure(4, {"pair": FactorGroup.ragged(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 4]))}),
    ],
    ids=["scope", "fewer", "variables", "states", "name", "no-states", "ragged"],
)
def test_other_content_is_another_object(other: Structure) -> None:
    mine = pairs((0, 1), (1, 2))
    assert mine.key != other.key
    assert mine.interned() is not other.interned()


def test_what_is_derived_is_made_once_and_dropped_with_the_structure() -> None:
    calls = []
    structure = pairs((0, 1))

    class Compiled:
        pass

    def make() -> Compiled:
        calls.append(1)
        return Compiled()

    assert structure.derived("plan", make) is structure.derived("plan", make)
    assert calls == [1]
    assert structure.incidence("pair") is structure.incidence("pair")
    del structure
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o).__name__ == "Compiled"]


def test_batches_of_equal_models_share_their_structure() -> None:
    def model(weight: float) -> GraphicalModel:
        m = GraphicalModel([2, 2, 2])
        m.add_table((0, 1), [[0, weight], [0, 0]])
        m.add_budget((0, 1, 2), at_most=1)
        return m

    first, second = ModelBatch.stack([model(1.0)]), ModelBatch.stack([model(2.0), model(3.0)])
    assert first.structure is second.structure
    assert first.tables[0].scopes is first.structure.groups["table0"].scopes
    assert ModelBatch.concat([first, second]).structure is first.structure
    chain = ChainMAP(1, length=9, window=3)
    assert chain.sample(2).structure is chain.sample(5, seed=1).select(slice(0, 2)).structure
    rebuilt = ModelBatch.of(first.cardinalities.clone(), first.unary, first.factors, first.constant)
    assert rebuilt.structure is first.structure


def test_a_plan_is_built_once_for_a_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    from fgnn.infer.exact import solver

    built = []
    plain = solver.build_plan
    monkeypatch.setattr(solver, "build_plan", lambda *a, **k: built.append(1) or plain(*a, **k))
    chain = ChainMAP(1, length=11, window=3, budget=2)
    for seed in range(3):
        solve(chain.sample(2, seed=seed), "exact")
    assert len(built) == 1


def test_shared_numbers_are_said_to_be_shared() -> None:
    batch = ChainMAP(1, length=9, window=3).sample(4)
    table = batch.tables[0]
    assert table.shared == {"values"}
    assert table.distinct("values").shape[0] == 1
    for part in (batch.select(slice(1, 3)), batch.select(torch.tensor([3, 0])), batch.to(dtype=torch.float64)):
        assert part.tables[0].shared == {"values"}
        assert torch.equal(part.tables[0].values[0].float(), table.values[0])
    own = ChainMAP(2, length=9, window=3).sample(4).tables[0]
    assert not own.shared
    assert own.distinct("values").shape[0] == 4
    with pytest.raises(ValueError, match="values expanded"):
        TableBatch(own.scopes, own.values, shared=frozenset({"values"}))


def test_hints_answer_what_would_have_to_be_counted() -> None:
    scopes = torch.tensor([[0, 1], [1, 2]])
    graph = FactorGraph(3, {"pair": FactorGroup(scopes)}, hints={"pair": Hints(max_degree=2, covers_all=True)})
    assert graph.isolated() is None
    assert not graph.incidence("pair").has_empty("variable")
    assert "degree" not in graph.structure._derived
    assert graph.incidence("pair").hints.max_degree == 2
