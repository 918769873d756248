"""The child process of `toulbar2`: reads models of the same structure from stdin and solves one after the other.

It is run by its path and imports neither fgnn nor torch nor numpy, so it starts in a few hundredths of a second.
toulbar2 may print, abort or hang: its output goes to stderr, where the parent reads solutions as they improve; the
answers, one JSON line each, go to stdout.

Every message is a JSON line followed by the int64 and float64 values whose numbers it states.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from array import array
from itertools import product
from math import inf, prod
from typing import Any, BinaryIO


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # C++ writes to descriptor 1, not to sys.stdout
    signal.signal(signal.SIGVTALRM, signal.SIG_IGN)  # until toulbar2 handles it as a request to stop
    requests = sys.stdin.buffer
    _die_with_parent()
    import pytoulbar2

    structure: dict[str, Any] = {}
    while line := requests.readline():
        request = json.loads(line)
        ints, floats = _values("q", request["ints"], requests), _values("d", request["floats"], requests)
        if request["do"] == "structure":
            structure = _structure(request, ints)
        else:
            try:
                answer = _solve(pytoulbar2, structure, request, ints, floats)
            except pytoulbar2.pytoulbar2.tb2.Contradiction:  # found while building: no cost is below the top
                answer = {"x": None, "lower": request["top"], "nodes": 0, "limited": False}
            except Exception as error:  # the parent handles it
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer | {"id": request["id"]}) + "\n")


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies: a search may run for ever."""
    if sys.platform == "linux":
        import ctypes

        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _values(kind: str, count: int, source: BinaryIO) -> Any:
    values = array(kind)
    data = source.read(8 * count)
    if len(data) != 8 * count:
        sys.exit(1)  # the parent is gone
    values.frombytes(data)
    return values


def _structure(request: dict[str, Any], ints: Any) -> dict[str, Any]:
    """Split the integers into cardinalities and the scopes of tables and sums."""
    at = request["variables"]
    cards = ints[:at].tolist()
    tables, sums = [], []
    for count, shape in request["tables"]:
        for _ in range(count):
            tables.append((ints[at : at + len(shape)].tolist(), shape))
            at += len(shape)
    for count, weights in request["sums"]:
        least, most = sum(map(min, weights)), sum(map(max, weights))
        texts = _knapsack(weights, 1), _knapsack(weights, -1)
        for _ in range(count):
            sums.append((ints[at : at + len(weights)].tolist(), least, most, texts))
            at += len(weights)
    return {"cards": cards, "tables": tables, "sums": sums}


def _knapsack(weights: list[list[int]], sign: int) -> str:
    """Weights as toulbar2 reads them: "2 0 0 1 3" is a variable of two values, 0 of weight 0 and 1 of weight 3."""
    values = (" ".join(f"{s} {sign * w}" for s, w in enumerate(of_states)) for of_states in weights)
    return " ".join(f"{len(of_states)} {value}" for of_states, value in zip(weights, values, strict=True))


def _solve(
    pytoulbar2: Any, structure: dict[str, Any], request: dict[str, Any], ints: Any, floats: Any
) -> dict[str, Any]:
    """Build the cost function network and minimise it; return the solution, the lower bound and whether time ran out.

    ``floats`` holds the integer costs of all unaries and then of all tables, inf for forbidden; ``ints`` the lower and
    the upper limits of the sums and then the start, if any. Only costs below ``top`` are searched for.
    """
    settings = dict(request["settings"])
    network = pytoulbar2.CFN(vac=settings.pop("vac", 0), vns=settings.pop("vns", None), seed=request["seed"], verbose=0)
    order = settings.pop("order", None)
    if order is not None:
        network.Option.setVarOrder(order)
    for name, value in settings.items():
        if not hasattr(network.Option, name):
            raise AttributeError(f"toulbar2 has no setting {name}")
        setattr(network.Option, name, value)
    wcsp = network.CFN.wcsp
    cards = structure["cards"]
    for i, k in enumerate(cards):
        wcsp.makeEnumeratedVariable(f"x{i}", 0, k - 1)
    at = 0
    for i, k in enumerate(cards):
        network.AddFunction([i], floats[at : at + k].tolist())
        at += k
    for scope, shape in structure["tables"]:
        size = prod(shape)
        costs = floats[at : at + size].tolist()
        at += size
        if len(scope) <= 3:
            network.AddFunction(scope, costs)
        else:
            _add_table(wcsp, scope, shape, costs, request["forbidden"])
    count = len(structure["sums"])
    for c, (scope, least, most, (plus, minus)) in enumerate(structure["sums"]):
        # the total weight must reach the first number
        if ints[c] > least:
            wcsp.postKnapsackConstraint(scope, f"{ints[c]} {plus}", kp=True)
        if ints[count + c] < most:
            wcsp.postKnapsackConstraint(scope, f"{-ints[count + c]} {minus}", kp=True)
    network.CFN.timer(request["seconds"])  # also handles SIGVTALRM as a request to stop
    # Without a finite top, sums of forbidden costs overflow and toulbar2 aborts.
    wcsp.updateUb(request["top"])
    for i, state in enumerate(ints[2 * count :]):
        wcsp.setBestValue(i, state)
    solution = network.Solve(showSolutions=1)
    lower = network.GetDDualBound()
    network.CFN.timerStop()
    return {
        "x": None if solution is None else list(solution[0]),
        "lower": lower,
        "nodes": network.GetNbNodes(),
        "limited": bool(network.Option.limited),
    }


def _add_table(wcsp: Any, scope: list[int], shape: list[int], costs: list[float], forbidden: int) -> None:
    """Add a table of four or more variables by its tuples of positive cost."""
    entries = [(states, cost) for states, cost in zip(product(*map(range, shape)), costs, strict=True) if cost > 0]
    index = wcsp.postNaryConstraintBegin(scope, 0, len(entries))
    for states, cost in entries:
        wcsp.postNaryConstraintTuple(index, list(states), forbidden if cost == inf else int(cost))
    wcsp.postNaryConstraintEnd(index)


if __name__ == "__main__":
    main()
