"""Models without a possible assignment: every method says so, and none passes NaN off as an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fgnn import GraphicalModel, ModelBatch, log_partition, marginals, write_model
from fgnn.infer.probability import METHODS, Beliefs
from tests.cli.command import fgnn

NEVER = -np.inf


def forbidden_table() -> GraphicalModel:
    model = GraphicalModel([2, 3])
    model.add_table((0, 1), np.full((2, 3), NEVER))
    return model


def forbidden_variable() -> GraphicalModel:
    model = GraphicalModel([2, 2])
    model.add_unary(0, [NEVER, NEVER])
    return model


def ends_that_differ() -> GraphicalModel:
    """A chain of equalities whose ends are observed in different states: the contradiction travels five steps."""
    model = GraphicalModel([2] * 6)
    for i in range(5):
        model.add_table((i, i + 1), np.where(np.eye(2) > 0, 0.0, NEVER))
    model.add_unary(0, [0.0, NEVER])
    model.add_unary(5, [NEVER, 0.0])
    return model


def crowded_budget() -> GraphicalModel:
    model = GraphicalModel([2, 2, 2])
    for i in range(3):
        model.add_unary(i, [NEVER, 0.0])
    model.add_budget((0, 1, 2), at_most=2)
    return model


def too_few_states() -> GraphicalModel:
    model = GraphicalModel([2, 2, 2])
    model.add_all_different((0, 1, 2))
    return model


def no_constant() -> GraphicalModel:
    model = GraphicalModel([2, 2])
    model.constant = NEVER
    return model


MODELS = [forbidden_table, forbidden_variable, ends_that_differ, crowded_budget, too_few_states, no_constant]


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("make", MODELS)
def test_every_method_says_infeasible(make: Callable[[], GraphicalModel], method: str) -> None:
    answer, log_z = marginals(make(), method), log_partition(make(), method)
    assert (answer.status, answer.log_partition, answer.bound) == ("infeasible", NEVER, NEVER)
    assert all(np.isnan(p).all() for p in answer.variables)
    assert (log_z.value, log_z.bound, log_z.exact) == (NEVER, NEVER, True)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("schedule", ["flooding", "sequential", "residual"])
def test_messages_cut_short_have_a_status_that_fits_their_numbers(
    make: Callable[[], GraphicalModel], schedule: str
) -> None:
    """A factor may contradict its messages before they empty a variable."""
    for iterations in range(6):
        answer = marginals(make(), "sum-product", iterations=iterations, schedule=schedule)
        empty = all(np.isnan(p).all() for p in answer.variables)
        assert (answer.status == "infeasible") == (answer.log_partition == NEVER) == empty
        assert empty or not any(np.isnan(p).any() for p in answer.variables)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_impossible_evidence_is_infeasible_in_its_row_alone(method: str) -> None:
    model = GraphicalModel([2, 2])
    model.add_table((0, 1), [[0.0, NEVER], [NEVER, 0.5]])
    answers = marginals(model, method, evidence=np.array([[0, 1], [-1, 1], [1, 0]]))
    assert answers.status == ["infeasible", "exact", "infeasible"]
    assert answers.log_partition.tolist() == [NEVER, pytest.approx(0.5), NEVER]
    torch.testing.assert_close(answers.variables[0][1], torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert bool(answers.variables[0][[0, 2]].isnan().all())


def test_a_bound_of_minus_infinity_is_a_proof() -> None:
    def loose(batch: ModelBatch, **_: object) -> Beliefs:
        ones = torch.ones_like(batch.constant)
        return Beliefs.of(torch.ones_like(batch.unary), ones, bound=-torch.inf * ones, timed_out=True)

    answer = marginals(GraphicalModel([2]), loose)
    assert (answer.status, answer.log_partition) == ("infeasible", NEVER)


@pytest.mark.parametrize("method", ["brute-force", "exact", "mini-bucket"])
def test_no_answer_in_time_is_not_called_infeasible(method: str) -> None:
    answer = marginals(GraphicalModel([2] * 3), method, time_limit=1e-9)
    assert answer.status == "time-limit"
    assert np.isnan(answer.log_partition)
    assert all(np.isnan(p).all() for p in answer.variables)


def test_the_command_exits_with_1_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(ends_that_differ(), tmp_path / "m.uai")
    for method in METHODS:
        code, out, err = fgnn(capsys, "marginals", tmp_path / "m.uai", "-m", method)
        assert (code, out) == (1, "")
        assert len(err.splitlines()) == 1
        assert "-inf" in err
        code, out, _ = fgnn(capsys, "marginals", tmp_path / "m.uai", "-m", method, "--json")
        assert code == 1
        assert json.loads(out)["status"] == "infeasible"
