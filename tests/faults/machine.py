"""Faults of the machine: out of memory, jumping clocks, workers that die or hang."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import pytest
import torch

import fgnn
from fgnn import GraphicalModel, ModelBatch, solve
from fgnn.errors import InputError
from fgnn.infer import api
from fgnn.play.examples import EXAMPLES
from fgnn.play.model_json import model_to_json
from fgnn.play.workers import Workers
from fgnn.tasks.recipe import recipe_yaml
from fgnn.train.run import run
from fgnn.weights import load_weights
from tests.faults.commands import COMMANDS
from tests.faults.fork_server import ROOT, ForkServer
from tests.faults.scenarios import Reference, Scenario
from tests.faults.writers import WRITERS
from tests.infer.oracle import chain
from tests.tasks.helpers import small_recipe
from tests.tensors import same_tensors


def machine_scenarios(server: ForkServer, reference: Reference) -> list[Scenario]:
    """All scenarios of this module."""
    scenarios = [
        Scenario("file cut short", "all that reads a file", _cut_short(name), 20)
        for name in WRITERS
        if not name.endswith((".html", ".xyz", ".uai"))  # a truncated text may still be valid
    ]
    scenarios += [
        Scenario("device out of memory, batch too large", f"solve, {method}", _too_many(method), 5)
        for method in ("exact", "max-product", "ad3")
    ]
    scenarios += [Scenario("clock that jumps", f"solve, {method}", _jumping_clock(method), 3) for method in TIMED]
    scenarios += [
        Scenario("device out of memory", "fgnn train", _exhausted_training(server, reference), 4),
        Scenario("machine out of memory", "fgnn solve", _exhausted_solve(server), 5),
        Scenario("solver that hangs", "solve, toulbar2", hanging_solver, 4),
        Scenario("solver that dies", "solve, toulbar2", dying_solver, 4),
        Scenario("SIGTERM during a search", "fgnn solve", _terminated_solve(server), 3),
        Scenario("worker killed", "torchrun, two processes", WorkerDeath(), 3),
        Scenario("worker killed", "fgnn play, a request", killed_request, 10),
    ]
    return scenarios


# ---- files ------------------------------------------------------------------------------------------------------


def _cut_short(name: str) -> Callable[[Path, random.Random], None]:
    def strike(folder: Path, rng: random.Random) -> None:
        write, read = WRITERS[name]
        folder.mkdir(parents=True)
        write(folder)
        file = folder / name
        whole = file.read_bytes()
        file.write_bytes(whole[: rng.randrange(len(whole))])
        with pytest.raises(InputError) as refused:
            read(folder)
        assert "\n" not in str(refused.value)
        assert file.name in str(refused.value)

    return strike


# ---- memory -----------------------------------------------------------------------------------------------------


@contextmanager
def little_memory(most: int) -> Iterator[list[int]]:
    """Simulate a device that holds at most ``most`` models; yields the batch sizes tried."""
    tried = list[int]()
    original = api.solver_named

    def solver_named(method: str) -> Callable[..., Any]:
        solver = original(method)

        @wraps(solver)
        def limited(batch: ModelBatch, **options: Any) -> Any:
            tried.append(len(batch))
            if len(batch) > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return solver(batch, **options)

        return limited

    with patch.object(api, "solver_named", solver_named):
        yield tried


def _too_many(method: str) -> Callable[[Path, random.Random], None]:
    def strike(folder: Path, rng: random.Random) -> None:
        count, most = rng.randrange(2, 30), rng.randrange(1, 8)
        batch = ModelBatch.stack([chain(seed, length=12, window=4, at_most=2) for seed in range(count)])
        whole = solve(batch, method)
        with little_memory(most) as tried:
            halved = solve(batch, method)
        assert count <= most or max(n for n in tried if n <= most) <= most
        assert torch.equal(halved.assignment, whole.assignment)
        assert torch.equal(halved.score, whole.score)
        assert halved.status == whole.status

    return strike


def _exhausted_training(server: ForkServer, reference: Reference) -> Callable[[Path, random.Random], None]:
    def strike(folder: Path, rng: random.Random) -> None:
        command = COMMANDS["fgnn train"]
        whole, _, _ = reference.of("fgnn train")
        command.prepare(folder)
        status = server.run(list(command.arguments), folder, {"kind": "device", "at": rng.randrange(1, 20)})
        stderr = (folder / "stderr").read_text(encoding="utf-8")
        assert status == 3, stderr
        assert stderr.splitlines()[-1].startswith("fgnn: out of memory on the device (CUDA out of memory"), stderr
        assert "Traceback" not in stderr
        # a start that failed before its first checkpoint leaves no folder that would block the next
        again = command.again if (folder / "run").exists() else command.arguments
        assert server.run(list(again), folder) == 0, (folder / "stderr").read_text(encoding="utf-8")
        for name in ("last", "best"):
            one, two = (load_weights(f / "run" / f"{name}.safetensors").tensors for f in (folder, whole))
            assert same_tensors(one, two)

    return strike


def _exhausted_solve(server: ForkServer) -> Callable[[Path, random.Random], None]:
    """Host memory runs out at some allocation: one line, no traceback."""

    def strike(folder: Path, rng: random.Random) -> None:
        folder.mkdir(parents=True)
        fgnn.write_model(hard_model(120), folder / "large.fgm")
        method = rng.choice(["max-product", "ad3", "exact"])
        fault = {"kind": "memory", "bytes": rng.randrange(1, 60) << 20}
        status = server.run(["solve", "large.fgm", "--method", method, "-t", "5"], folder, fault)
        stderr = (folder / "stderr").read_text(encoding="utf-8")
        assert "Traceback" not in stderr, stderr
        assert status in (0, 1, 2, 3), (status, stderr)
        assert status != 3 or "out of memory" in stderr.splitlines()[-1], stderr

    return strike


def _terminated_solve(server: ForkServer) -> Callable[[Path, random.Random], None]:
    """An interrupted search prints its best assignment so far."""

    def strike(folder: Path, rng: random.Random) -> None:
        folder.mkdir(parents=True)
        fgnn.write_model(hard_model(), folder / "hard.fgm")
        pid = server.start(["solve", "hard.fgm", "--method", "auto", "-t", "60", "--json"], folder)
        time.sleep(8.0 + 4.0 * rng.random())
        os.kill(pid, signal.SIGTERM)
        status = server.wait()
        stdout = (folder / "stdout").read_text(encoding="utf-8")
        assert status in (0, 1), (status, (folder / "stderr").read_text(encoding="utf-8"))
        assert '"interrupted": true' in stdout, stdout

    return strike


# ---- clocks -----------------------------------------------------------------------------------------------------

TIMED = ("exact", "toulbar2", "lp", "ad3", "max-product", "auto")


def _jumping_clock(method: str) -> Callable[[Path, random.Random], None]:
    """The wall clock jumps while a solve with a time limit runs."""

    def strike(folder: Path, rng: random.Random) -> None:
        original = time.time
        jump = rng.choice([-1.0, 1.0]) * 10 ** rng.uniform(1, 8)
        calls = 0

        def jumping() -> float:
            nonlocal calls
            calls += 1
            return original() + (jump if calls % 2 else 0.0)

        model = chain(rng.randrange(100), length=16, window=6, at_most=3)
        with patch("time.time", jumping):
            begin = time.monotonic()
            solution = solve(model, method, time_limit=60)
            assert time.monotonic() - begin < 60
        assert solution.status != "time-limit"
        if method in ("exact", "toulbar2", "auto"):
            assert solution.status == "optimal"

    return strike


# ---- workers ----------------------------------------------------------------------------------------------------


def hard_model(size: int = 26, seed: int = 0) -> GraphicalModel:
    """A grid with random signs that no search solves in seconds; larger than a pipe's buffer."""
    rng = np.random.default_rng(seed)
    model = GraphicalModel([4] * size * size)
    model.add_unaries(rng.normal(size=4 * size * size))
    node = np.arange(size * size).reshape(size, size)
    pairs = np.concatenate([
        np.stack([node[:, :-1].ravel(), node[:, 1:].ravel()], 1),
        np.stack([node[:-1].ravel(), node[1:].ravel()], 1),
    ])  # fmt: skip
    model.add_tables(pairs, rng.normal(size=(len(pairs), 4, 4)) * 2)
    return model


def _children() -> list[psutil.Process]:
    here = psutil.Process()
    return [c for c in here.children() if "toulbar2/worker" in " ".join(c.cmdline())]


def _while_searching(act: Callable[[psutil.Process], None], delay: float) -> threading.Thread:
    """Run ``act`` on toulbar2's worker ``delay`` seconds after it has started."""

    def wait_and_act() -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            workers = _children()
            if workers:
                time.sleep(delay)
                with suppress(psutil.NoSuchProcess):
                    act(workers[0])
                return
            time.sleep(0.01)

    thread = threading.Thread(target=wait_and_act, daemon=True)
    thread.start()
    return thread


def hanging_solver(folder: Path, rng: random.Random) -> None:
    """toulbar2's worker hangs: the time limit holds, and the best known assignment is returned."""
    model = hard_model()
    start = torch.zeros(1, model.num_variables, dtype=torch.int64)
    thread = _while_searching(psutil.Process.suspend, rng.random() * 0.8)
    begin = time.monotonic()
    solution = solve(model, "toulbar2", time_limit=2.0, start=start, search="hbfs")
    seconds = time.monotonic() - begin
    thread.join()
    assert seconds < 2.0 + 6.0, f"{seconds:.1f} s"  # the limit, half a second of grace, and slack for a busy machine
    assert solution.status == "time-limit"
    assert solution.score >= model.score([0] * model.num_variables)
    assert not [c for c in _children() if c.status() == psutil.STATUS_STOPPED]


def dying_solver(folder: Path, rng: random.Random) -> None:
    """toulbar2's worker is killed during the search: another continues from the best assignment."""
    model = hard_model()
    start = torch.zeros(1, model.num_variables, dtype=torch.int64)
    thread = _while_searching(psutil.Process.kill, rng.random())
    solution = solve(model, "toulbar2", time_limit=3.0, start=start)
    thread.join()
    assert solution.feasible
    assert solution.status == "time-limit"
    assert solution.score >= model.score([0] * model.num_variables)


def killed_request(folder: Path, rng: random.Random) -> None:
    """A worker of the playground dies during a request: one line, and the next request is answered."""
    workers = Workers(1)
    try:
        model = model_to_json(EXAMPLES["grid"].make())
        body = json.dumps({"model": model, "method": "ad3", "seconds": 5}).encode()
        assert workers.ask("/api/solve", body)[0] == 200
        (worker,) = (c for c in psutil.Process().children() if "fgnn.play.worker" in c.cmdline())
        timer = threading.Timer(0.05 * rng.random(), worker.kill)
        timer.start()
        code, reply = workers.ask("/api/solve", body)
        timer.join()
        assert code == 200 or (isinstance(reply, str) and reply.isprintable()), (code, reply)
        worker.wait(10)
        code, reply = workers.ask("/api/solve", body)
        assert code == 200, reply
        assert json.loads(reply)["status"] == "optimal"
    finally:
        workers.close()


class WorkerDeath:
    """One of two training processes is killed: torchrun restarts both, and they resume from the checkpoint."""

    steps = 60

    def __init__(self) -> None:
        self._whole: dict[str, torch.Tensor] | None = None

    def __call__(self, folder: Path, rng: random.Random) -> None:
        folder.mkdir(parents=True)
        recipe = small_recipe(steps=self.steps, checkpoint_every=5, validate_every=0, ema=None)
        (folder / "recipe.yaml").write_text(recipe_yaml(recipe), encoding="utf-8")
        if self._whole is None:
            self._whole = self._run(folder / "whole", folder / "recipe.yaml", None)
        killed = self._run(folder / "killed", folder / "recipe.yaml", rng)
        assert same_tensors(self._whole, killed)

    def _run(self, out: Path, recipe: Path, rng: random.Random | None) -> dict[str, torch.Tensor]:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "--max-restarts", "3", "--monitor-interval", "0.2", "-m", "fgnn", "train", str(recipe),
            "--out", str(out), "--device", "cpu",
        ]  # fmt: skip
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
        with open(out.with_suffix(".log"), "wb") as log:
            agent = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            try:
                if rng is not None:
                    self._kill_one(agent, out, rng)
                status = agent.wait(timeout=500)
            finally:
                for process in [*psutil.Process(agent.pid).children(), agent] if agent.poll() is None else []:
                    process.kill()
        log_text = out.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
        assert status == 0, log_text[-3000:]
        return dict(load_weights(out / "last.safetensors").tensors)

    def _kill_one(self, agent: subprocess.Popen[bytes], out: Path, rng: random.Random) -> None:
        metrics, end = out / "metrics.jsonl", time.monotonic() + 120
        lines = rng.randrange(1, 8)  # lines logged before the kill
        while time.monotonic() < end and agent.poll() is None:
            if metrics.is_file() and metrics.read_bytes().count(b"\n") >= lines:
                break
            time.sleep(0.02)
        workers = [p for p in psutil.Process(agent.pid).children() if "fgnn" in " ".join(p.cmdline())]
        assert workers, "no worker was found"
        rng.choice(workers).kill()


def restarted_in_one_process(folder: Path) -> None:
    """A process restarted by torchrun, simulated without torchrun: the command of a new run resumes."""
    recipe = small_recipe(steps=20, checkpoint_every=5, validate_every=0)
    _, whole = run(recipe, folder / "whole", device="cpu")
    run(recipe, folder / "again", device="cpu", time_budget=1e-9)
    with patch.dict(os.environ, {"TORCHELASTIC_RESTART_COUNT": "1"}):
        state, again = run(recipe, folder / "again", device="cpu")
    assert state.step == 20
    one, two = (load_weights(f.path / "last.safetensors").tensors for f in (whole, again))
    assert same_tensors(one, two)
