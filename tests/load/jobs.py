"""Heavy jobs, each run in its own process to measure its peak memory: ``python -m tests.load.jobs NAME ...``.

Each prints one JSON object: the figures of the job, seconds, and the peak resident memory (total, and beyond the
imports).
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import fgnn
from fgnn import GraphicalModel, solve
from fgnn.data import ChainMAP


def grid(side: int) -> GraphicalModel:
    """A grid of side² binary variables: random pairs of neighbours, and budgets over patches of 2×3."""
    rng = np.random.default_rng(0)
    model = GraphicalModel(np.full(side * side, 2))
    model.add_unaries(rng.normal(size=2 * side * side))
    node = np.arange(side * side).reshape(side, side)
    for near, far in ((node[:, :-1], node[:, 1:]), (node[:-1], node[1:])):
        pairs = np.stack([near.ravel(), far.ravel()], 1)
        model.add_tables(pairs, rng.normal(size=(len(pairs), 2, 2)))
    corners = node[: side - 1 : 4, : side - 2 : 6].ravel()
    patch = np.array([0, 1, 2, side, side + 1, side + 2])
    model.add_budgets(corners[:, None] + patch, np.full(len(corners), 3))
    return model


def large(side: int, method: str) -> dict[str, Any]:
    """One model of side² variables by a message-passing method."""
    model = grid(side)
    built = _peak()
    options: dict[str, Any] = {"max-product": {"iterations": 50}, "ad3": {"iterations": 100}}[method]
    solution = solve(model, method, **options)
    # summation order limits the accuracy of the score
    assert solution.score == -np.inf or abs(model.score(solution.assignment) - solution.score) < 1e-6 * side * side
    if method == "ad3":
        assert solution.bound >= solution.score
    return {
        "variables": model.num_variables,
        "factors": model.num_tables + model.num_budgets,
        "iterations": solution.iterations,
        "status": solution.status,
        "score": solution.score if solution.feasible else None,
        "bound": solution.bound if np.isfinite(solution.bound) else None,
        "solve_seconds": round(solution.seconds, 1),
        "model_bytes": built,
    }


def many(count: int, method: str) -> dict[str, Any]:
    """Solve many small models in one call; compare a sample with single solves."""
    data = ChainMAP(kind=1, length=30, window=8)
    batch = data.sample(count, seed=0)
    options: dict[str, Any] = {} if method == "exact" else {"iterations": 100}
    solution = solve(batch, method, **options)
    best = data.labels(batch) if method != "exact" else None
    if best is not None:  # no method beats the exact score
        assert bool((solution.score <= batch.score(best) + 1e-6).all())
        assert bool((solution.bound >= batch.score(best) - 1e-6).all())
    else:
        assert set(solution.status) == {"optimal"}
    for b in range(0, count, max(1, count // 20)):
        alone = solve(batch.select(slice(b, b + 1)), method, **options)[0]
        if method == "ad3":  # float32: compare the bounds of the relaxation
            assert abs(alone.bound - float(solution.bound[b])) <= 2e-4 * max(1.0, abs(alone.bound))
        else:
            assert alone.assignment.tolist() == solution.assignment[b].tolist()
    return {
        "models": count,
        "solve_seconds": round(solution.seconds, 1),
        "models_per_second": round(count / solution.seconds),
        "feasible": int(solution.feasible.sum()),
    }


METHODS = ("auto", "exact", "max-product", "ad3", "lp", "toulbar2", "brute-force")


def soak(count: int) -> dict[str, Any]:
    """Solve many models in one process, one after the other, by all methods; memory must level off.

    Every structure is new, so that caches do not help, and show if they grow.
    """
    rng = np.random.default_rng(0)
    resident: list[int] = []
    done = 0
    for k in range(count):
        size = int(rng.integers(6, 12))
        model = GraphicalModel([2] * size)
        model.add_unaries(rng.normal(size=2 * size))
        for _ in range(size):
            i, j = rng.permutation(size)[:2].tolist()
            model.add_table((i, j), rng.normal(size=(2, 2)))
        model.add_budget(rng.permutation(size)[:5].tolist(), at_most=2)
        method = METHODS[k % len(METHODS)]
        options = {"ad3": {"iterations": 25}, "max-product": {"iterations": 30}}.get(method, {})
        solution = solve(model, method, **options)
        assert len(solution.assignment) == size
        done += 1
        if k % max(1, count // 50) == 0:
            gc.collect()
            resident.append(_resident())
    half = resident[len(resident) // 2 :]
    growth = max(half) - half[0]
    return {
        "solves": done,
        "resident_after_tenth": resident[len(resident) // 10],
        "resident_at_half": half[0],
        "resident_at_end": resident[-1],
        "growth_in_second_half": growth,
        "growth_per_solve": round(growth / max(1, done / 2), 1),
    }


def clients(count: int, requests: int) -> dict[str, Any]:
    """The playground with many concurrent clients and different requests, some of them invalid."""
    import http.client

    from fgnn.play import Playground
    from fgnn.play.examples import EXAMPLES
    from fgnn.play.model_json import model_to_json

    server = Playground()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    models = {name: model_to_json(EXAMPLES[name].make()) for name in ("paper", "chain", "grid")}
    truth = {name: solve(EXAMPLES[name].make(), "brute-force").score for name in models}
    failures: list[str] = []
    times: list[float] = []

    def ask(k: int) -> None:
        name = list(models)[k % len(models)]
        kind = k % 5
        body: dict[str, Any] = {"model": models[name], "method": ("exact", "auto")[k % 2], "seconds": 5.0}
        path, expected = "/api/solve", 200
        if kind == 3:
            path, body = "/api/network", {"model": models["grid"]}
        elif kind == 4:
            body, expected = {"model": {"cardinalities": [2, -1]}}, 400
        begin = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        connection.close()
        times.append(time.perf_counter() - begin)
        if reply.status != expected:
            failures.append(f"{path}: {reply.status} {answer}")
        elif kind < 3 and abs(answer["score"] - truth[name]) > 1e-9:
            failures.append(f"{name}: {answer['score']} for {truth[name]}")

    before = _resident()
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(ask, range(requests)))
    server.shutdown()
    server.server_close()
    assert not failures, failures[:5]
    ordered = sorted(times)
    return {
        "clients": count,
        "requests": requests,
        "requests_per_second": round(requests * count / sum(times), 1),
        "median_seconds": round(ordered[len(ordered) // 2], 3),
        "slowest_seconds": round(ordered[-1], 3),
        "resident_growth": _resident() - before,
    }


JOBS: dict[str, Callable[..., dict[str, Any]]] = {"large": large, "many": many, "soak": soak, "clients": clients}


def main(arguments: list[str]) -> None:
    solve(grid(4), "max-product")  # lazy imports count as imports
    empty = _peak()
    values = [int(a) if a.isdigit() else a for a in arguments[1:]]
    begin = time.perf_counter()
    figures = JOBS[arguments[0]](*values)
    peak = _peak()
    head = {"job": " ".join(arguments), "seconds": round(time.perf_counter() - begin, 1)}
    print(json.dumps(head | {"peak_bytes": peak, "above_import_bytes": peak - empty} | figures))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    assert fgnn.__version__
    main(sys.argv[1:])
