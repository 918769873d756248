"""Padded incidence against a plain loop, and values kept with a frozen object."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fgnn.graph import PaddedIncidence, Structure, padded_width, slots_by_target


@given(st.lists(st.integers(0, 4), max_size=12))
def test_slots_sums_and_maxima_are_those_of_a_loop(targets: list[int]) -> None:
    index = torch.tensor(targets, dtype=torch.int64)
    by_target = [[s for s, t in enumerate(targets) if t == target] for target in range(5)]
    width = max(map(len, by_target))
    assert padded_width(index, 5) == width
    assert slots_by_target(index, 5).tolist() == [s + [len(targets)] * (width - len(s)) for s in by_target]
    values = torch.rand(2, len(targets), 3)
    incidence = PaddedIncidence.of(index, 5)
    sums, maxima = incidence.sum(values), incidence.max(values, -1.0)
    for target, slots in enumerate(by_target):
        assert torch.allclose(sums[:, target], values[:, slots].sum(1))
        assert torch.equal(maxima[:, target], values[:, slots].amax(1) if slots else torch.full((2, 3), -1.0))


def test_the_values_used_last_are_kept() -> None:
    structure = Structure(1, {})
    made: list[int] = []

    def value(key: int) -> int:
        return structure.recent("squares", key, lambda: made.append(key) or key**2, keep=2)  # type: ignore[func-returns-value]

    assert [value(k) for k in (3, 4, 3, 5, 3, 4)] == [9, 16, 9, 25, 9, 16]
    assert made == [3, 4, 5, 4]
