"""Heavy jobs, each in a process of its own so that its peak memory is its own: ``python -m tests.load.jobs NAME ...``.

Each prints one JSON object: what was done, seconds, and the peak of resident memory (all, and above what importing
the package takes).
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
    """A loopy grid of side² binary variables: random pairs to the right and below, and budgets over patches of 2×3."""
    rng = np.random.default_rng(0)
    model = GraphicalModel(np.full(side * side, 2))
    model.add_unaries(rng.normal(size=2 * side * side))
    place = np.arange(side * side).reshape(side, side)
    for near, far in ((place[:, :-1], place[:, 1:]), (place[:-1], place[1:])):
        pairs = np.stack([near.ravel(), far.ravel()], 1)
        model.add_tables(pairs, rng.normal(size=(len(pairs), 2, 2)))
    corners = place[: side - 1 : 4, : side - 2 : 6].ravel()
    patch = np.array([0, 1, 2, side, side + 1, side + 2])
    model.add_budgets(corners[:, None] + patch, np.full(len(corners), 3))
    return model


def large(side: int, method: str) -> dict[str, Any]:
    """One model of side² variables by a message-passing method."""
    model = grid(side)
    built = _peak()
    options: dict[str, Any] = {"max-product": {"iterations": 50}, "ad3": {"iterations": 100}}[method]
    found = solve(model, method, **options)
    # a sum over so many entries in another order: the score is known to about this
    assert found.score == -np.inf or abs(model.score(found.assignment) - found.score) < 1e-6 * side * side
    if method == "ad3":
        assert found.bound >= found.score
    return {
        "variables": model.num_variables,
        "factors": model.num_tables + model.num_budgets,
        "iterations": found.iterations,
        "status": found.status,
        "score": found.score if found.feasible else None,
        "bound": found.bound if np.isfinite(found.bound) else None,
        "solve_seconds": round(found.seconds, 1),
        "model_bytes": built,
    }


def many(count: int, method: str) -> dict[str, Any]:
    """So many small models, all different, in one call; a sample is held against the same models one by one."""
    data = ChainMAP(kind=1, length=30, window=8)
    batch = data.sample(count, seed=0)
    options: dict[str, Any] = {} if method == "exact" else {"iterations": 100}
    found = solve(batch, method, **options)
    best = data.labels(batch) if method != "exact" else None
    if best is not None:  # nobody beats the exact answer
        assert bool((found.score <= batch.score(best) + 1e-6).all())
        assert bool((found.bound >= batch.score(best) - 1e-6).all())
    else:
        assert set(found.status) == {"optimal"}
    for b in range(0, count, max(1, count // 20)):
        alone = solve(batch.select(slice(b, b + 1)), method, **options)[0]
        if method == "ad3":  # rounds in float32: the bound is what the relaxation promises
            assert abs(alone.bound - float(found.bound[b])) <= 2e-4 * max(1.0, abs(alone.bound))
        else:
            assert alone.assignment.tolist() == found.assignment[b].tolist()
    return {
        "models": count,
        "solve_seconds": round(found.seconds, 1),
        "models_per_second": round(count / found.seconds),
        "feasible": int(found.feasible.sum()),
    }


METHODS = ("auto", "exact", "max-product", "ad3", "lp", "toulbar2", "brute-force")


def soak(count: int) -> dict[str, Any]:
    """One process solves so many models, one after the other, by all methods; memory must level off.

    Every structure is new, so that nothing can be had from a cache, and caches show if they grow.
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
        found = solve(model, method, **options)
        assert len(found.assignment) == size
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
    """The playground under so many clients at once, each asking for different things, some of them wrong."""
    import http.client

    from fgnn.play import Playground, api

    server = Playground()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    models = {name: api.example_model({"name": name}) for name in api.EXAMPLES}
    truth = {name: solve(api.EXAMPLES[name](), "brute-force").score for name in models}
    failures: list[str] = []
    times: list[float] = []

    def ask(k: int) -> None:
        name = list(models)[k % len(models)]
        kind = k % 5
        body: dict[str, Any] = {"model": models[name], "method": ("exact", "auto")[k % 2], "seconds": 5.0}
        path, wanted = "/api/solve", 200
        if kind == 3:
            path, body = "/api/steps", {"model": models[name], "iterations": 5}
        elif kind == 4:
            body, wanted = {"model": {"cardinalities": [2, -1]}}, 400
        begin = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        connection.close()
        times.append(time.perf_counter() - begin)
        if reply.status != wanted:
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
    solve(grid(4), "max-product")  # what is loaded on first use counts as loading
    empty = _peak()
    given = [int(a) if a.isdigit() else a for a in arguments[1:]]
    begin = time.perf_counter()
    told = JOBS[arguments[0]](*given)
    peak = _peak()
    head = {"job": " ".join(arguments), "seconds": round(time.perf_counter() - begin, 1)}
    print(json.dumps(head | {"peak_bytes": peak, "above_import_bytes": peak - empty} | told))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    assert fgnn.__version__
    main(sys.argv[1:])
