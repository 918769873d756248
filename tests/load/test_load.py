"""Small forms of the heavy jobs of `make load`: correct answers, and memory proportional to the input."""

from __future__ import annotations

import pytest

from tests.load.__main__ import JOBS, run_job


@pytest.mark.parametrize("method", ["max-product", "ad3"])
def test_memory_grows_with_a_large_model(method: str) -> None:
    """Memory is proportional to the number of variables; the long form has 10^6."""
    figures = run_job(f"large 200 {method}")
    assert figures["variables"] == 40_000
    # bytes per variable with its two pair tables, from the limit of the long form
    allowed = JOBS[f"large 1000 {method}"] / 1000**2
    assert figures["above_import_bytes"] <= allowed * figures["variables"]


@pytest.mark.parametrize("method", ["exact", "max-product", "ad3"])
def test_many_models_in_one_call(method: str) -> None:
    figures = run_job(f"many {40 if method == 'ad3' else 400} {method}")
    assert figures["feasible"] > 0
    assert figures["above_import_bytes"] < 100 << 20


def test_memory_does_not_grow_over_many_solves() -> None:
    figures = run_job("soak 42")
    assert figures["solves"] == 42
    assert figures["growth_in_second_half"] < 8 << 20


def test_the_playground_serves_many_clients() -> None:
    figures = run_job("clients 16 48")
    assert figures["requests"] == 48
    assert figures["resident_growth"] < 64 << 20
