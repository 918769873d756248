"""Interrupted commands lose nothing and leave nothing half written: a few of each fault (`make faults`: hundreds)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from fgnn import ModelBatch, solve
from fgnn.files import atomic_write, check_folder
from fgnn.infer.max_product.solver import solve_max_product
from fgnn.infer.oom_retry import call_with_retry
from fgnn.infer.solution import Answer
from fgnn.runtime.resource_errors import out_of_disk, out_of_memory
from tests.faults.fork_server import ForkServer
from tests.faults.machine import (
    TIMED,
    dying_solver,
    hanging_solver,
    killed_request,
    little_memory,
    machine_scenarios,
    restarted_in_one_process,
)
from tests.faults.scenarios import STRIKES, Reference, Scenario, command_scenarios, writer_scenarios
from tests.faults.writers import WRITERS
from tests.infer.oracle import chain


def _named(scenarios: list[Scenario], fault: str, where: str) -> list[Scenario]:
    matching = [s for s in scenarios if fault in s.fault and where in s.where]
    assert matching
    return matching


# ---- commands ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [*STRIKES, "folder that cannot be written"])
def test_making_data(server: ForkServer, reference: Reference, tmp_path: Path, fault: str) -> None:
    (scenario,) = _named(command_scenarios(server, reference), fault, "fgnn data chain")
    for seed in range(2):
        scenario.strike(tmp_path / str(seed), random.Random(seed))


@pytest.mark.parametrize("fault", ["kill in the middle of a write", "full disk"])
def test_training(server: ForkServer, reference: Reference, tmp_path: Path, fault: str) -> None:
    (scenario,) = _named(command_scenarios(server, reference), fault, "fgnn train")
    scenario.strike(tmp_path / "run", random.Random(0))


@pytest.mark.parametrize("fault", ["SIGTERM", "full disk", "cannot be written"])
def test_segmenting(server: ForkServer, reference: Reference, tmp_path: Path, fault: str) -> None:
    (scenario,) = _named(command_scenarios(server, reference), fault, "fgnn segment")
    scenario.strike(tmp_path / "scan", random.Random(1))


def test_reproducing_into_a_folder_that_cannot_be_written(
    server: ForkServer, reference: Reference, tmp_path: Path
) -> None:
    (scenario,) = _named(command_scenarios(server, reference), "cannot be written", "fgnn reproduce")
    scenario.strike(tmp_path / "table", random.Random(0))


@pytest.mark.parametrize("fault", ["kill in the middle of a write", "kill between", "full disk"])
def test_every_writer(server: ForkServer, tmp_path: Path, fault: str) -> None:
    for k, scenario in enumerate(_named(writer_scenarios(server), fault, "")):
        scenario.strike(tmp_path / str(k), random.Random(k))


def test_out_of_memory_in_training(server: ForkServer, reference: Reference, tmp_path: Path) -> None:
    (scenario,) = _named(machine_scenarios(server, reference), "device out of memory", "fgnn train")
    scenario.strike(tmp_path / "run", random.Random(0))


def test_out_of_memory_in_a_solve(server: ForkServer, reference: Reference, tmp_path: Path) -> None:
    (scenario,) = _named(machine_scenarios(server, reference), "machine out of memory", "")
    for seed in range(2):
        scenario.strike(tmp_path / str(seed), random.Random(seed))


# ---- parts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["file cut short", "clock that jumps"])
def test_files_and_clocks(server: ForkServer, reference: Reference, tmp_path: Path, fault: str) -> None:
    scenarios = _named(machine_scenarios(server, reference), fault, "")
    assert len(scenarios) == len(TIMED) or len(scenarios) == len(WRITERS) - 3
    for k, scenario in enumerate(scenarios):
        scenario.strike(tmp_path / str(k), random.Random(k))


def test_no_time_limit_depends_on_the_wall_clock() -> None:
    """Only the age of a leftover file depends on it."""
    source = Path(solve.__code__.co_filename).parents[1]
    users = [f.name for f in source.rglob("*.py") if "time.time()" in f.read_text(encoding="utf-8")]
    assert users == ["files.py"]


@pytest.mark.parametrize("method", ["exact", "ad3", "max-product"])
def test_a_batch_too_large_for_the_device_is_halved(method: str) -> None:
    batch = ModelBatch.stack([chain(seed, length=10, window=4, at_most=2) for seed in range(11)])
    whole = solve(batch, method)
    with little_memory(3) as tried:
        halved = solve(batch, method)
    assert tried == [11, 5, 2, 3, 6, 3, 3]
    assert torch.equal(halved.assignment, whole.assignment)
    torch.testing.assert_close(halved.bound, whole.bound, rtol=1e-12, atol=0.0)  # sums round by the size of the batch
    assert halved.status == whole.status
    assert halved.method == whole.method
    with little_memory(0), pytest.raises(torch.OutOfMemoryError):
        solve(batch, method)


def test_information_per_model_survives_halving() -> None:
    batch = ModelBatch.stack([chain(seed, length=10, window=4, at_most=2) for seed in range(4)])
    whole = solve_max_product(batch, keep_beliefs=True)
    tried: list[int] = []

    def solver(some: ModelBatch, **options: object) -> Answer:
        tried.append(len(some))
        if len(some) > 1:
            raise MemoryError
        return solve_max_product(some, keep_beliefs=True)

    halved = call_with_retry(solver, batch, Answer.join, time_limit=None, progress=None)
    assert tried == [4, 2, 1, 1, 2, 1, 1]
    torch.testing.assert_close(halved.info["deltas"], whole.info["deltas"])
    torch.testing.assert_close(halved.info["beliefs"], whole.info["beliefs"])


def test_other_errors_are_not_mistaken_for_out_of_memory() -> None:
    assert out_of_memory(RuntimeError("shapes do not match")) is None
    assert out_of_memory(ValueError("out of memory")) is None
    assert out_of_memory(MemoryError()) == "out of memory"
    assert out_of_memory(ImportError("No module named 'h5py'")) is None
    unmapped = ImportError("a.so: failed to map segment from shared object")
    assert out_of_memory(unmapped) == "out of memory (a library could not be loaded)"
    allocator = RuntimeError(
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes."
    )
    assert out_of_memory(allocator) == "out of memory (you tried 8 bytes)"
    assert not out_of_disk(FileNotFoundError(2, "No such file"))


def test_hanging_and_dying_solvers(tmp_path: Path) -> None:
    pytest.importorskip("pytoulbar2")
    hanging_solver(tmp_path, random.Random(0))
    dying_solver(tmp_path, random.Random(0))


def test_a_worker_of_the_playground_is_replaced(tmp_path: Path) -> None:
    for seed in range(2):
        killed_request(tmp_path, random.Random(seed))


def test_a_process_restarted_by_torchrun_resumes(tmp_path: Path) -> None:
    restarted_in_one_process(tmp_path)


def test_a_temporary_file_is_removed_only_if_nobody_writes_it(tmp_path: Path) -> None:
    import os

    target = tmp_path / "x.json"
    left = tmp_path / ".x.json.abc.part"
    left.write_text("half", encoding="utf-8")
    young = tmp_path / ".x.json.def.part"
    young.write_text("half", encoding="utf-8")
    os.utime(left, (0, 0))
    with atomic_write(target) as outer:
        outer.write("outer")
        held = next(p for p in tmp_path.glob(".x.json.*.part") if p not in (left, young))
        os.utime(held, (0, 0))
        with atomic_write(target) as inner:
            inner.write("inner")
        assert held.exists()  # old, but still open
        assert target.read_text(encoding="utf-8") == "inner"
    assert target.read_text(encoding="utf-8") == "outer"
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == [young.name]


def test_a_folder_is_checked_before_the_work(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "a" / "b").is_dir()
    assert not list((tmp_path / "a" / "b").iterdir())
    with pytest.raises(OSError, match="/proc/nowhere"):
        check_folder("/proc/nowhere")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_worker_is_restarted(server: ForkServer, reference: Reference, tmp_path: Path) -> None:
    (scenario,) = _named(machine_scenarios(server, reference), "worker killed", "torchrun")
    scenario.strike(tmp_path / "two", random.Random(0))
