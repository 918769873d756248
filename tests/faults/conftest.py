"""One fork server and one set of reference results for all tests of faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fork_server import ForkServer
from tests.faults.scenarios import Reference


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    started = ForkServer()
    yield started
    started.close()


@pytest.fixture(scope="session")
def reference(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(server, tmp_path_factory.mktemp("reference"))
