"""Operations on numbers alone are done once, unless their results may change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fgnn.nn.backends.triton import constants
from fgnn.nn.backends.triton.constants import fold_constants
from fgnn.nn.backends.triton.program import Program
from fgnn.nn.backends.triton.tape import Tape
from tests.nn.backends.triton.test_joint_steps import Make, calls, whole
from tests.nn.backends.triton.test_replay import _Product, product


def folded(make: Make) -> Program:
    """The program of a pass over one tensor; each of its calls gives what a plain call does."""
    x = whole((2, 3), 0, "cpu")
    with Tape([x]) as tape:
        results = make(x)
    fold_constants(tape, [y for y in results if y is not None])
    program = Program(tape, results)
    for seed in range(1, 4):
        x = whole((2, 3), seed, "cpu")
        found, wanted = program([x]), make(x)
        assert found is not None
        for one, other in zip(found, wanted, strict=True):
            assert other is not None
            assert torch.equal(one, other)
            one.add_(1)  # a caller may
    return program


def test_ranges_and_what_follows_from_them_are_computed_once() -> None:
    def make(x: Tensor) -> list[Tensor | None]:
        columns = torch.arange(3)
        table = torch.stack([columns, columns * 2 + 1], 0)
        return [x * table, x[:, columns.flip(0)]]

    assert calls(folded(make)) == ["mul", "index.Tensor"]


@pytest.mark.parametrize("what", ["is a result", "changes", "is launched on", "is random", "is large"])
def test_what_may_differ_is_not_folded(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = _Product()
    if what == "is large":
        monkeypatch.setattr(constants, "_MOST_BYTES", 11)

    def make(x: Tensor) -> list[Tensor | None]:
        row = torch.rand(3).round() * 0 if what == "is random" else torch.arange(3.0)
        if what == "is a result":
            return [x + row, row]
        if what == "changes":
            row.add_(2)
        if what == "is launched on":
            return [product(kernel, x[0].clone(), row)]
        return [x + row]

    assert {"arange.default", "rand.default"} & {*calls(folded(make))}
