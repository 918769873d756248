"""A network beyond its limit is refused before its memory is taken."""

from __future__ import annotations

import resource

import pytest
import torch
from torch import nn

from fgnn.runtime.tensor_limit import TensorLimit


def test_a_network_within_the_limit_is_built_as_always() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    torch.manual_seed(0)
    with TensorLimit(1000) as limit:
        limited = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), limited.parameters(), strict=True))
    assert limit.created >= sum(p.numel() for p in plain.parameters())


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(1 << 20, 1 << 20),
        lambda: torch.zeros(1 << 40),
        lambda: torch.full((1 << 20, 1 << 20), 1.0),
        lambda: torch.empty(size=(1 << 40,)),
        lambda: [nn.Linear(100, 100) for _ in range(10**6)],
    ],
)
def test_a_larger_one_is_refused_before_it_is_allocated(make: object) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"at most 1,000,000 numbers \(got [0-9,]+ or more\)"), TensorLimit(10**6):
        make()  # type: ignore[operator]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes
