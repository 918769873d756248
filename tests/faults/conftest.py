"""One nursery and one set of undisturbed results for all tests of faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.nursery import Nursery
from tests.faults.scenarios import Reference


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="session")
def reference(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(nursery, tmp_path_factory.mktemp("undisturbed"))
