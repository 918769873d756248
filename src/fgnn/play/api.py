"""The API of the page: each call takes and returns plain JSON values."""

from __future__ import annotations

import base64
import binascii
import tempfile
from pathlib import Path
from typing import Any

from fgnn.errors import InputError
from fgnn.pgm import GraphicalModel, Limits, read_model
from fgnn.play.compiled_network import compiled_network
from fgnn.play.model_json import as_object, model_from_json, model_to_json
from fgnn.play.page import make_page
from fgnn.solvers import solve

METHODS = ("auto", "exact", "brute-force", "toulbar2", "lp", "ad3", "max-product", "fgnn")
MAX_SECONDS = 10.0
# What a file of a few kilobytes may become: bytes of a compressed one, and table entries that it implies.
_IMPORT = Limits(decompressed=16 << 20, entries=1 << 18)
_SUFFIXES = (".uai", ".fgm", ".fg", ".bif", ".wcsp", ".cfn")
_COMPRESSIONS = (".gz", ".xz")


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


def model_network(request: Any) -> dict[str, Any]:
    """``{model}`` → the FGNN that runs max-product on the model: its layer, features and read-out."""
    return compiled_network(_model(as_object(request, "the request")))


def import_model(request: Any) -> dict[str, Any]:
    """``{name, base64}`` of a model file, which may be compressed → the model as JSON."""
    fields = as_object(request, "the request")
    name, text = fields.get("name"), fields.get("base64")
    if not isinstance(name, str) or not isinstance(text, str):
        raise InputError("Expected the name of a file and its bytes in base64")
    suffixes = [s.lower() for s in Path(name).suffixes[-2:]]
    suffix = "".join(suffixes if suffixes and suffixes[-1] in _COMPRESSIONS else suffixes[-1:])
    if suffix.removesuffix(".gz").removesuffix(".xz") not in _SUFFIXES:
        expected = f"Expected a file in {' '.join(_SUFFIXES)}, or one of them with .gz or .xz"
        raise InputError(f"{expected} (got '{suffix[:12]}')")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError("Expected the bytes of the file in base64") from error
    with tempfile.TemporaryDirectory(prefix="fgnn-play-") as folder:
        file = Path(folder) / f"model{suffix}"
        file.write_bytes(data)
        try:
            return model_to_json(read_model(file, limits=_IMPORT))
        except InputError as error:
            raise InputError(str(error).replace(str(file), Path(name).name)) from error


def page(request: Any) -> dict[str, Any]:
    """``{}`` → the page itself. A worker makes it, since it compiles the networks of some examples."""
    as_object(request, "the request")
    return {"html": make_page(server=True)}


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
