"""Work in threads comes back in order, and only a few items are read ahead."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fgnn.points.ahead import in_order


def test_results_come_in_order_and_few_items_are_read_ahead() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for i in range(20):
            read.append(i)
            yield i

    def work(i: int) -> int:
        time.sleep(0.002 * (i % 3))
        return i * i

    with ThreadPoolExecutor(3) as pool:
        for i, result in enumerate(in_order(pool, work, items(), ahead=3)):
            assert result == i * i
            assert len(read) <= i + 1 + 3


def test_an_error_reaches_the_caller() -> None:
    with ThreadPoolExecutor(2) as pool, pytest.raises(ZeroDivisionError):
        list(in_order(pool, lambda i: 1 // i, [1, 0, 2], ahead=1))
