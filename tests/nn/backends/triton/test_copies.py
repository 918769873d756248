"""Copies of what launches fill: they fill the copy itself, where nothing tells the difference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.nn.backends.triton.test_joint_steps import calls, replay
from tests.nn.backends.triton.test_replay import _Product, product


def in_one(
    kernel: _Product, x: Tensor, after: Callable[[Tensor, Tensor], object] = lambda one, part: None
) -> list[Tensor | None]:
    """Two products as bytes of one tensor, and something done after the copy."""
    one = x.new_empty(512, dtype=torch.uint8)
    parts = [product(kernel, x, x), product(kernel, x, x, 3.0)]
    for k, part in enumerate(parts):
        one.view(torch.float32)[64 * k : 64 * k + x.numel()].view(x.shape).copy_(part)
    done = after(one, parts[0])
    rest = one.view(torch.float32)
    rest[x.numel() : 64].zero_()
    rest[64 + x.numel() :].zero_()
    return [one, done if isinstance(done, Tensor) else None]


def test_products_are_stored_where_they_would_be_copied() -> None:
    kernel = _Product()
    assert "copy_.default" not in calls(replay(lambda x: in_one(kernel, x), [(5, 4)], "cpu"))


@pytest.mark.parametrize(
    ("after", "left"),
    [
        (lambda one, part: part.add_(1), 2),  # a copied tensor changes later
        (lambda one, part: part, 2),  # or is a result of its own
        (lambda one, part: one.view(torch.float32)[:3].add_(1), 0),
    ],
    ids=["changes", "is a result", "the copy changes"],
)
def test_copies_that_tell_the_difference_stay(after: Callable[[Tensor, Tensor], object], left: int) -> None:
    kernel = _Product()
    assert calls(replay(lambda x: in_one(kernel, x, after), [(5, 4)], "cpu")).count("copy_.default") == left


def test_a_copy_over_another_stays() -> None:
    kernel = _Product()

    def make(x: Tensor) -> list[Tensor | None]:
        one = torch.empty_like(x)
        one.copy_(product(kernel, x, x))
        one.copy_(product(kernel, x, x, 2.0))
        return [one]

    assert calls(replay(make, [(6,)], "cpu")).count("copy_.default") == 1
