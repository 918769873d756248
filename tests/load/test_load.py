"""Small forms of the heavy jobs of `make load`: right answers, and memory in proportion to the input."""

from __future__ import annotations

import pytest

from tests.load.__main__ import JOBS, run_job


@pytest.mark.parametrize("method", ["max-product", "ad3"])
def test_memory_grows_with_a_large_model(method: str) -> None:
    """What a model of four times the variables takes is in proportion; the long form has 10^6 variables."""
    found = run_job(f"large 200 {method}")
    assert found["variables"] == 40_000
    # the bytes a variable with its two pair tables takes, of which the long form's allowance is made
    allowed = JOBS[f"large 1000 {method}"] / 1000**2
    assert found["above_import_bytes"] <= allowed * found["variables"]


@pytest.mark.parametrize("method", ["exact", "max-product", "ad3"])
def test_many_models_in_one_call(method: str) -> None:
    found = run_job(f"many {40 if method == 'ad3' else 400} {method}")
    assert found["feasible"] > 0
    assert found["above_import_bytes"] < 100 << 20


def test_solving_on_and_on_does_not_grow() -> None:
    found = run_job("soak 42")
    assert found["solves"] == 42
    assert found["growth_in_second_half"] < 8 << 20


def test_the_playground_serves_many_clients() -> None:
    found = run_job("clients 16 48")
    assert found["requests"] == 48
    assert found["resident_growth"] < 64 << 20
