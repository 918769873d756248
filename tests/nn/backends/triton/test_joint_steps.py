"""Small steps of a pass that are done together: the same numbers, in fewer steps, in an order that holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fgnn.nn.backends.triton import joint_steps
from fgnn.nn.backends.triton.program import Program
from fgnn.nn.backends.triton.replay import Programs, replayed
from fgnn.nn.backends.triton.straight_line import CALL
from fgnn.runtime.triton_support import why_unavailable
from tests.nn.backends.triton.test_replay import _Product, product

Make = Callable[..., Sequence[Tensor | None]]
HAS_TRITON = why_unavailable(torch.device("cuda" if torch.cuda.is_available() else "cpu")) is None
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="for the GPU")),
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]),
]
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs a CUDA device or Triton's interpreter")
on_device = pytest.mark.parametrize("device", DEVICES)


def whole(shape: Sequence[int], seed: int, device: str) -> Tensor:
    """Small whole numbers, of which all sums and conversions are exact."""
    return torch.randint(-4, 5, tuple(shape), generator=torch.Generator().manual_seed(seed)).float().to(device)


def replay(make: Make, shapes: Sequence[Sequence[int]], device: str, times: int = 4) -> Program:
    """The program of a pass, whose results are those of plain calls."""
    programs: Programs = {}
    for seed in range(times):
        operands = [whole(shape, 10 * seed + k, device) for k, shape in enumerate(shapes)]
        wanted = make(*[x.clone() for x in operands])
        found, _ = replayed(programs, "key", operands, lambda: make(*operands))  # noqa: B023
        for one, other in zip(found, wanted, strict=True):
            assert (one is None) == (other is None)
            assert one is None or (other is not None and torch.equal(one, other) and one.dtype == other.dtype)
    (program,) = programs.values()
    assert isinstance(program, Program)
    return program


def calls(program: Program) -> list[str]:
    """The operations of torch that a program calls."""
    return [getattr(step[1], "__name__", str(step[1])) for step in program.steps if step[0] == CALL]


@on_device
def test_conversions_of_results_take_one_step(device: str) -> None:
    def make(x: Tensor, y: Tensor) -> list[Tensor | None]:
        one = (x * y).to(torch.bfloat16)
        two = (x + 1).to(torch.bfloat16)
        return [one, (y - x).to(torch.bfloat16), two]

    assert calls(replay(make, [(3, 4), (3, 4)], device)).count("_foreach_copy_") == 1


@on_device
def test_a_conversion_that_is_read_or_whose_operand_changes_does_not_wait(device: str) -> None:
    def make(x: Tensor, y: Tensor) -> list[Tensor | None]:
        z = x * y
        before = z.to(torch.bfloat16)
        z.add_(1)
        after = z.to(torch.bfloat16)
        return [before, after, (after * 2).to(torch.float32), before * 3]

    program = replay(make, [(5,), (5,)], device)
    assert calls(program).count("_foreach_copy_") == 0


@on_device
def test_zeros_that_launches_add_to_are_filled_together(device: str) -> None:
    kernel = _Product()

    def make(x: Tensor) -> list[Tensor | None]:
        found: list[Tensor | None] = []
        for k in range(3):
            total = torch.zeros_like(x) if k else x.new_zeros(x.shape)
            total.add_(product(kernel, x, x, float(k)))
            found.append(total)
        return found

    names = calls(replay(make, [(2, 3)], device))
    assert names.count("_foreach_zero_") == 1
    assert "zeros" not in names


@on_device
def test_what_waits_takes_little_memory(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_steps, "_MOST_BYTES", 3 * 2 * 4 * 100)

    def make(x: Tensor) -> list[Tensor | None]:
        return [(x + k).to(torch.bfloat16) for k in range(7)]

    names = calls(replay(make, [(100,)], device))
    assert names.count("_foreach_copy_") == 2  # three and three
    assert names.count("to") == 1


@needs_triton
@on_device
@pytest.mark.parametrize("count", [2, 8, 9])
def test_sums_of_shares_take_a_launch_for_eight(count: int, device: str) -> None:
    def make(*shares: Tensor) -> list[Tensor | None]:
        found: list[Tensor | None] = []
        for k, x in enumerate(shares):
            total = x.sum(0)
            found += [total.flatten()[:3], total] if k % 2 else [total]
        return found

    shapes = [(1, 5), (40, 7), (3, 64), (33, 2, 3), (2, 100), (5, 1), (6, 300), (500, 9), (2, 2)]
    program = replay(make, shapes[:count], device)
    assert calls(program).count("sum") == max(count - 8, 0)


@needs_triton
@on_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_that_meet_are_added_together(dtype: torch.dtype, device: str) -> None:
    def make(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor | None]:
        a, b, c = x.to(dtype) * 2, y.to(dtype) * 2, z.to(dtype) * 2
        first = [a + a, b + b, c + c]
        second = [first[0] + a, first[1] + b]
        return [*first, *second, second[0] + a[:1]]  # of another shape

    program = replay(make, [(3, 5), (4000,), (17, 2)], device)
    assert calls(program).count("add") == 1


@needs_triton
@on_device
def test_large_sums_and_sums_of_many_shares_stay_as_they_are(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_steps, "_MOST_ENTRIES", 10)

    def make(x: Tensor, y: Tensor) -> list[Tensor | None]:
        return [x.sum(0), (2 * x).sum(0), y + y, y + 1, (y * 2) + y]

    assert "add" in calls(program := replay(make, [(513, 4), (11,)], device))
    assert calls(program).count("sum") == 2


@needs_triton
@on_device
def test_what_is_not_aligned_stays_as_it_is(device: str) -> None:
    row = torch.arange(9.0, device=device)[1:]  # the same at every call

    def make(x: Tensor, y: Tensor) -> list[Tensor | None]:
        return [x + row, y + row, x + y]

    assert calls(replay(make, [(8,), (8,)], device)).count("add") == 3


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["cast", "back", "add", "sum", "zeros", "change", "launch"]), *[st.integers(0, 9)] * 2
        ),
        min_size=1,
        max_size=14,
    ),
    kept=st.sets(st.integers(0, 13), min_size=1, max_size=5),
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_order_of_steps_keeps_its_results(steps: list[tuple[str, int, int]], kept: set[int]) -> None:
    kernel = _Product()

    def make(x: Tensor, y: Tensor) -> list[Tensor | None]:
        full: list[Tensor] = [x, y]  # (4, 6)
        half: list[Tensor] = []
        found: list[Tensor] = []
        for what, i, j in steps:
            a, b = full[i % len(full)], full[j % len(full)]
            new: Any = None
            if what == "cast":
                half.append(a.clamp(-100, 100).to(torch.bfloat16))
                found.append(half[-1])
            elif what == "back" and half:
                new = half[i % len(half)].to(torch.float32)
            elif what == "add":
                new = (a + b).clamp(-1000, 1000)
            elif what == "sum":
                found.append(a.sum(0))
            elif what == "zeros":
                new = a.new_zeros(4, 6)
            elif what == "change" and a is not x and a is not y:
                a.add_(1)
            elif what == "launch":
                new = product(kernel, a.clamp(-9, 9), b.clamp(-9, 9))
            if new is not None:
                full.append(new)
                found.append(new)
        return [found[k % len(found)] if found else x + 1 for k in sorted(kept)]

    replay(make, [(4, 6), (4, 6)], "cuda" if torch.cuda.is_available() else "cpu", times=3)
