"""The API of the page: each call takes and returns plain JSON values."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fgnn.errors import InputError
from fgnn.pgm import GraphicalModel, Limits, read_model, write_model
from fgnn.play.model_json import as_object, model_from_json, model_to_json
from fgnn.play.steps import max_product_steps
from fgnn.solvers import solve
from fgnn.theory import max_product_network

METHODS = ("auto", "exact", "brute-force", "toulbar2", "lp", "ad3", "max-product", "fgnn")
MAX_SECONDS = 10.0
MAX_ITERATIONS = 50
# Stepping returns every message of every iteration: numbers in the reply, and edges times iterations (of Python code).
MAX_STEP_NUMBERS = 400_000
MAX_STEP_EDGES = 40_000
# Entries of the tables in an exported file, in which budgets are tables too.
MAX_EXPORT_ENTRIES = 400_000
# The bound on the numbers in the weights of the network; they are at most about half as many.
MAX_NETWORK_NUMBERS = 1 << 25
# Table entries that an imported file may imply without listing them.
_IMPORT = Limits(entries=1 << 18)
_SUFFIXES = (".uai", ".fg", ".bif", ".wcsp", ".cfn")


def solve_model(request: Any) -> dict[str, Any]:
    """``{model, method, seconds}`` → score, bound, status, assignment, seconds."""
    fields = as_object(request, "the request")
    method = fields.get("method", "auto")
    if method not in METHODS:
        raise InputError(f"Expected a method among {', '.join(METHODS)} (got {method!r:.40})")
    seconds = _number(fields, "seconds", 5.0, 0.1, MAX_SECONDS)
    model = _model(fields)
    solution = solve(model, method, time_limit=seconds)
    names = ("method", "status", "feasible", "score", "bound", "seconds", "iterations")
    return {name: getattr(solution, name) for name in names} | {"assignment": solution.assignment.tolist()}


def belief_steps(request: Any) -> dict[str, Any]:
    """``{model, iterations, damping, network}`` → messages and beliefs after every iteration.

    With ``network`` the beliefs come from the FGNN that runs max-product, layer by layer.
    """
    fields = as_object(request, "the request")
    model = _model(fields)
    iterations = int(_number(fields, "iterations", 10, 1, MAX_ITERATIONS))
    damping = _number(fields, "damping", 0.0, 0.0, 0.95)
    _check_steps(model, iterations)
    if not fields.get("network"):
        return {"steps": max_product_steps(model, iterations, damping), "layers": []}
    if damping:
        raise InputError("Expected damping 0 for the network, which runs undamped max-product")
    numbers = network_numbers(model)
    if numbers > MAX_NETWORK_NUMBERS:
        what = f"Expected a network of at most {MAX_NETWORK_NUMBERS} numbers (got up to {numbers:.3g})"
        raise InputError(f"{what}: it has a term for every entry of a table; step without the network")
    # unnormalised messages grow with every layer, tenfold on the chain, until rounding dominates
    network = max_product_network(model, iterations, normalise=True)
    steps = max_product_steps(model, iterations)
    gap = 0.0
    for step, beliefs in zip(steps[1:], network.beliefs(), strict=True):
        by_network = [b.tolist() for b in beliefs]
        gap = max(gap, *map(_difference, by_network, step["beliefs"]))
        step["beliefs"] = by_network
    widths = {name: int(g.shape[-1]) for name, g in network.features(model)[1].items()}
    return {"steps": steps, "layers": [f"FGNN layer {t + 1}" for t in range(iterations)], "widths": widths, "gap": gap}


def _check_steps(model: GraphicalModel, iterations: int) -> None:
    """Reject models whose messages are too many to compute and to draw."""
    cards = model.cardinalities.tolist()
    scopes = [t.scope for t in model.tables()] + [b.scope for b in model.budgets()]
    edges = iterations * sum(map(len, scopes))
    if edges > MAX_STEP_EDGES:
        what = f"Expected at most {MAX_STEP_EDGES} edges times iterations to step through (got {edges})"
        raise InputError(f"{what}; take fewer iterations")
    numbers = (iterations + 1) * (2 * sum(cards[i] for scope in scopes for i in scope) + sum(cards))
    if numbers > MAX_STEP_NUMBERS:
        what = f"Expected at most {MAX_STEP_NUMBERS} numbers in messages and beliefs (got {numbers})"
        raise InputError(f"{what}; take fewer iterations")


def network_numbers(model: GraphicalModel) -> float:
    """An upper bound on the numbers in the weights of `max_product_network`, from the sizes of the factors alone.

    A factor of arity A with Z terms compares A·Z numbers, with six units for each pair and layer, from features of a
    variable, which hold a slot for each of its factors.
    """
    cards = model.cardinalities.tolist()
    tables, budgets = list(model.tables()), list(model.budgets())
    degree = Counter(i for scope in (*(t.scope for t in tables), *(b.scope for b in budgets)) for i in scope)
    width = max(cards) * (2 + 3 * max(degree.values(), default=1))
    terms = [(len(t.scope), t.values.size) for t in tables]
    terms += [
        (len(b.scope), sum(math.comb(len(b.scope), j) for j in range(b.at_least, b.at_most + 1))) for b in budgets
    ]
    terms += [(1, 1)] * (len(cards) - len(degree))  # a variable without a factor gets a constant one
    units = [a * z + 4 * max(cards) + 8 for a, z in terms]
    return float(sum(64 * u**2 + 64 * u * width + 32 * width**2 for u in units))


def import_model(request: Any) -> dict[str, Any]:
    """``{name, text}`` of a model file → the model as JSON."""
    fields = as_object(request, "the request")
    name, text = fields.get("name"), fields.get("text")
    if not isinstance(name, str) or not isinstance(text, str):
        raise InputError("Expected the name and the text of a file")
    suffix = Path(name).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InputError(f"Expected a file in {' '.join(_SUFFIXES)} (got '{suffix[:12]}')")
    with tempfile.TemporaryDirectory(prefix="fgnn-play-") as folder:
        file = Path(folder) / f"model{suffix}"
        file.write_text(text, encoding="utf-8")
        try:
            return model_to_json(read_model(file, limits=_IMPORT))
        except InputError as error:
            raise InputError(str(error).replace(str(file), Path(name).name)) from error


def export_model(request: Any) -> dict[str, Any]:
    """``{model}`` → the text of a UAI file."""
    model = model_from_json(as_object(request, "the request").get("model"))
    entries = sum(t.values.size for t in model.tables()) + sum(2 ** min(len(b.scope), 64) for b in model.budgets())
    if entries > MAX_EXPORT_ENTRIES:
        what = f"Expected at most {MAX_EXPORT_ENTRIES} table entries in the file (got {entries})"
        raise InputError(f"{what}: UAI files hold a budget as a table")
    with tempfile.TemporaryDirectory(prefix="fgnn-play-") as folder:
        file = Path(folder) / "model.uai"
        write_model(model, file)
        return {"name": "model.uai", "text": file.read_text(encoding="utf-8")}


def example_model(request: Any) -> dict[str, Any]:
    """``{name}`` → one of the page's examples."""
    name = as_object(request, "the request").get("name")
    if not isinstance(name, str) or name not in EXAMPLES:
        raise InputError(f"Expected an example among {', '.join(EXAMPLES)} (got {name!r:.40})")
    return model_to_json(EXAMPLES[name]())


def _paper_example() -> GraphicalModel:
    """The factor graph of the paper's figure: f1 over three variables, f2 over the last."""
    model = GraphicalModel([2, 2, 2])
    model.add_table((0, 1, 2), np.random.default_rng(1).normal(size=(2, 2, 2)).round(1))
    model.add_unary(2, [0.0, 0.7])
    return model


def _chain() -> GraphicalModel:
    """A short chain like the paper's first data set, with windows of four."""
    model = GraphicalModel([2] * 10)
    model.add_unaries(np.random.default_rng(3).random(20).round(2))
    for i in range(9):
        model.add_table((i, i + 1), [[0, 0.1], [0.2, 1.0]])
    for i in range(7):
        model.add_budget(range(i, i + 4), at_most=2)
    return model


def _grid() -> GraphicalModel:
    """A 3 x 3 grid with attractive and repulsive pairs."""
    rng = np.random.default_rng(5)
    model = GraphicalModel([2] * 9)
    model.add_unaries(rng.normal(size=18).round(1))
    for r in range(3):
        for c in range(3):
            for other in ([3 * r + c + 1] if c < 2 else []) + ([3 * r + c + 3] if r < 2 else []):
                strength = round(float(rng.normal()), 1)
                model.add_table((3 * r + c, other), [[strength, 0], [0, strength]])
    return model


EXAMPLES = {"paper": _paper_example, "chain": _chain, "grid": _grid}


def _model(fields: dict[str, Any]) -> GraphicalModel:
    model = model_from_json(fields.get("model"))
    if not model.num_variables:
        raise InputError("Expected a model with at least one variable")
    return model


def _number(fields: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError(f"Expected {name} between {low:g} and {high:g} (got {value!r:.40})")
    return float(value)


def _difference(a: list[float], b: list[float]) -> float:
    """The largest difference of two beliefs; inf if only one forbids a state."""
    return max((0.0 if x == y else abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0)
