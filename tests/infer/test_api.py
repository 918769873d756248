"""`solve` takes solvers by name or as functions, and checks their options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fgnn
from fgnn import GraphicalModel, ModelBatch
from fgnn.infer import SOLVERS
from fgnn.infer.brute_force import solve_brute_force
from fgnn.infer.oom_retry import call_with_retry
from fgnn.infer.solution import Answer
from tests.infer.oracle import chain


def solve_by_unaries(
    batch: ModelBatch, *, time_limit: float | None = None, seed: int = 0, progress: Any = None, worst: bool = False
) -> Answer:
    return Answer.of(batch.unary.argmin(2) if worst else batch.unary.argmax(2))


def model() -> GraphicalModel:
    m = GraphicalModel([2, 2])
    m.add_unaries([0.0, 1.0, 2.0, 0.0])
    return m


def test_a_function_is_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    direct = fgnn.solve(model(), solve_by_unaries)
    assert (direct.method, direct.assignment.tolist()) == ("solve_by_unaries", [1, 0])
    monkeypatch.setitem(SOLVERS, "mine", solve_by_unaries)
    named = fgnn.solve(model(), method="mine", worst=True)
    assert (named.method, named.assignment.tolist()) == ("mine", [0, 1])


def test_a_method_named_by_its_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOLVERS, "mine", f"{__name__}:solve_by_unaries")
    assert fgnn.solve(model(), "mine").score == 3.0


def test_the_learned_method_is_known_to_fgnn_solve_only_by_name() -> None:
    assert fgnn.solve.__module__ == "fgnn.infer.api"
    assert SOLVERS["fgnn"] == "fgnn.models.map.learned:solve_fgnn"


@pytest.mark.parametrize(
    ("options", "place"),
    [({"best": True}, "'best'"), ({"worst": "yes"}, "worst"), ({"worst": None}, "worst")],
)
def test_options_are_checked_by_name_and_type(options: dict[str, Any], place: str) -> None:
    with pytest.raises(ValueError, match=place):
        fgnn.solve(model(), solve_by_unaries, **options)


def test_numbers_of_other_libraries_are_options() -> None:
    assert fgnn.solve(model(), "max-product", iterations=np.int64(5), damping=np.float32(0.5)).feasible
    assert fgnn.solve(model(), "brute-force", max_states=1e6).status == "optimal"


def test_options_with_a_row_per_model_are_halved_with_the_batch() -> None:
    batch = ModelBatch.stack([chain(seed, length=8, window=4) for seed in range(5)])
    start = torch.arange(5)[:, None].expand(5, 8)

    def solver(part: ModelBatch, *, start: torch.Tensor, starts: list[torch.Tensor], name: str, **_: Any) -> Answer:
        if len(part) > 1:
            raise MemoryError
        assert torch.equal(start, starts[0])
        return Answer.of(start, method=name)

    answer = call_with_retry(
        solver, batch, Answer.join, time_limit=None, progress=None, start=start, starts=[start], name="x"
    )
    assert torch.equal(answer.assignment, start)
    assert answer.method == "x"


def test_joined_answers_are_those_of_the_whole() -> None:
    batch = ModelBatch.stack([chain(seed, length=8, window=4) for seed in range(5)])
    whole = solve_brute_force(batch)
    joined = Answer.join([solve_brute_force(batch.select(slice(a, b))) for a, b in ((0, 2), (2, 5))])
    for name in ("assignment", "bound", "proved", "converged", "iterations", "timed_out"):
        assert torch.equal(getattr(joined, name), getattr(whole, name))
