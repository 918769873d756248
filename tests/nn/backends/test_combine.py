"""The end of a half-layer in one pass gives what the plain operations give, with the same gradients."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from fgnn.nn.aggregate import Aggregation, combine_groups, finish
from fgnn.nn.backends import combine as combined
from fgnn.nn.backends.triton.combine import End

TRITON = find_spec("triton") is not None and (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1")
DEVICES = [
    pytest.param(("cpu", False), id="torch"),
    pytest.param(
        ("cuda", True),
        id="triton",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
    pytest.param(
        ("cpu", True), id="interpreted", marks=pytest.mark.skipif(not TRITON, reason="needs Triton's interpreter")
    ),
]


def plain(parts: list[Tensor], bias: Tensor | None, empty: Tensor | None, kind: str, relu: bool) -> Tensor:
    how = Aggregation(kind)  # type: ignore[arg-type]
    x = finish(combine_groups(parts, how), None, empty, how)
    x = x if bias is None else x + bias
    x = x.relu() if relu else x
    return x if empty is None else x.masked_fill(empty.unsqueeze(-1), 0.0)


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["max", "sum"])
@pytest.mark.parametrize(("groups", "m"), [(1, 5), (2, 64), (4, 130)])
@pytest.mark.parametrize(
    "after", [(True, True, False), (False, False, True), (True, False, True), (False, True, False)]
)
def test_values_and_gradients(
    where: tuple[str, bool], dtype: torch.dtype, kind: str, groups: int, m: int, after: tuple[bool, bool, bool]
) -> None:
    (device, fused), (has_bias, relu, has_empty) = where, after
    rng = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        """Small multiples of a quarter: exact in every dtype, and with many ties, where the earlier group wins."""
        return torch.randint(-8, 9, shape, generator=rng) / 4

    parts = [draw(3, 7, m).to(dtype) for _ in range(groups)]
    bias = draw(m) if has_bias else None
    empty = torch.tensor([False, True, False, False, True, False, False]) if has_empty else None
    up = draw(3, 7, m).to(dtype)
    wide = [x.double().requires_grad_() for x in parts]
    wide_bias = None if bias is None else bias.double().requires_grad_()
    wanted = plain(wide, wide_bias, empty, kind, relu)
    leaves = [*wide, *([] if wide_bias is None else [wide_bias])]
    gradients = torch.autograd.grad(wanted, leaves, up.double())
    here = [x.to(device) for x in parts]
    moved = (None if x is None else x.to(device) for x in (bias, empty))
    ((y, which),) = combined.forward([End(here, *moved)], kind == "max", relu, fused)
    (d_parts,), sums = combined.backward([up.to(device)], [which], groups, has_bias, kind == "max", fused)
    found = [*d_parts, *(late.value()[0] for late in sums)]
    assert torch.equal(y.double().cpu(), wanted)
    for one, other in zip(found, gradients, strict=True):
        assert torch.equal(one.double().cpu(), other)


@pytest.mark.parametrize("where", DEVICES)
def test_nan_propagates(where: tuple[str, bool]) -> None:
    device, fused = where
    parts = [torch.tensor([[1.0, torch.nan, 2.0]], device=device), torch.tensor([[torch.nan, 1.0, 3.0]], device=device)]
    ((y, which),) = combined.forward([End(parts, None, None)], True, True, fused)
    assert y.isnan().tolist() == [[True, True, False]]
    assert which.tolist() == [[1, 0, 1]]


@pytest.mark.parametrize("where", DEVICES)
def test_results_of_several_groups_are_those_of_each(where: tuple[str, bool]) -> None:
    device, fused = where
    rng = torch.Generator().manual_seed(0)
    parts = [torch.randn(3, rows, 5, generator=rng).to(device) for rows in (1, 2000, 4, 7, 30)]
    biases = [torch.randn(5, generator=rng).to(device) for _ in parts]
    empties = [None, None, torch.arange(4, device=device) > 1, torch.arange(7, device=device) > 1, None]
    ends = [End([x], bias, empty) for x, bias, empty in zip(parts, biases, empties, strict=True)]
    together = combined.forward(ends, True, True, fused)
    ups = [torch.randn(y.shape, generator=rng).to(device) for y, _ in together]
    whiches = [which for _, which in together]
    gradients, sums = combined.backward(ups, whiches, 1, True, True, fused)
    d_biases = torch.cat([late.value() for late in sums])
    for k, end in enumerate(ends):
        ((y, which),) = combined.forward([end], True, True, False)
        assert torch.equal(together[k][0], y)
        assert torch.equal(whiches[k], which)
        (alone,), (late,) = combined.backward([ups[k]], [which], 1, True, True, False)
        assert torch.equal(gradients[k][0], alone[0])
        torch.testing.assert_close(d_biases[k], late.value()[0])
