"""Tensors of the same time never overlap, and those of different times share memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fgnn.nn.backends.triton.memory_plan import Lifetime, aligned, plan

LIVES = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 20), st.integers(0, 10)), max_size=20)


@given(LIVES)
def test_no_two_tensors_of_the_same_time_overlap(lives: list[tuple[int, int, int]]) -> None:
    tensors = [Lifetime(k, size, first, first + more) for k, (size, first, more) in enumerate(lives)]
    begins, size = plan(tensors)
    for x in tensors:
        assert begins[x.name] % 256 == 0
        assert begins[x.name] + x.size <= size
        for y in tensors:
            together = x.name != y.name and x.first <= y.last and y.first <= x.last
            apart = begins[x.name] + x.size <= begins[y.name] or begins[y.name] + y.size <= begins[x.name]
            assert apart or not together or not min(x.size, y.size)


@given(LIVES)
def test_the_memory_lies_between_the_most_at_a_time_and_all(lives: list[tuple[int, int, int]]) -> None:
    tensors = [Lifetime(k, size, first, first + more) for k, (size, first, more) in enumerate(lives)]
    _, size = plan(tensors)
    at_once = [sum(aligned(x.size) for x in tensors if x.first <= t <= x.last) for t in range(31)]
    assert max(at_once) <= size <= sum(aligned(x.size) for x in tensors)


def test_a_chain_of_equal_tensors_takes_two() -> None:
    begins, size = plan([Lifetime(k, 100, k, k + 1) for k in range(6)])
    assert [begins[k] for k in range(6)] == [0, 256, 0, 256, 0, 256]
    assert size == 512
