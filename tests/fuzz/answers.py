"""Harnesses of whole answers: marginals of a model with evidence, batches of samples, folders of tiles."""

from __future__ import annotations

import json
import math
import shutil
from typing import Any

import numpy as np

from fgnn.errors import InputError
from tests.fuzz.folder import folder

_MODEL_SUFFIXES = (".bif", ".uai", ".fg")
_TILE_SUFFIXES = (".ply", ".las", ".xyz", ".npy")
_ENTRIES, _STATES = 1 << 12, 1 << 10


def marginals(data: bytes) -> None:
    """A model file and its evidence: probabilities, log Z and M-best agree with a sum over all assignments.

    The first byte selects the format; a byte 0 separates the model from the evidence.
    """
    from fgnn import marginals, read_model
    from fgnn.infer import best_assignments
    from fgnn.pgm import Limits

    suffix = _MODEL_SUFFIXES[data[0] % len(_MODEL_SUFFIXES)] if data else ".uai"
    text, _, observed = data[1:].partition(b"\0")
    path, evidence = folder() / f"answers{suffix}", folder() / "answers.evid"
    path.write_bytes(text)
    evidence.write_bytes(observed)
    model = read_model(path, evidence=evidence if observed else None, limits=Limits(entries=_ENTRIES))
    if math.prod(model.cardinalities.tolist()) > _STATES or model.num_variables > 40:
        raise InputError("larger than a sum over all assignments allows")
    try:
        exact, all_states = marginals(model, "exact"), marginals(model, "brute-force")
    except ValueError as error:  # as `fgnn marginals` reports it
        raise InputError(str(error)) from error
    assert exact.status == all_states.status, f"{exact.status} instead of {all_states.status}"
    if exact.status == "infeasible":
        assert not len(best_assignments(model, 1)[0]), "an assignment of an impossible model"
        return
    for p, q in zip(exact.variables, all_states.variables, strict=True):
        assert (p >= 0).all(), "a negative probability"
        assert abs(p.sum() - 1) < 1e-9, "probabilities that do not add up to one"
        assert exact.status != "exact" or np.allclose(p, q, atol=2e-6), f"{p} instead of {q}"
    found, scores = best_assignments(model, 3)
    assert len({tuple(x) for x in found.tolist()}) == len(found), "an assignment twice"
    assert (np.diff(scores) <= 0).all(), "assignments out of order"


def samples(data: bytes) -> None:
    """Descriptions of `fgnn.Data` samples in JSON: collated and split they are the same, or refused in one line."""
    import torch

    from fgnn import Data, FactorGraph, FactorGroup, collate

    try:
        described = json.loads(data)
        parts = [_sample(torch, Data, FactorGraph, FactorGroup, d) for d in described[:6]]
        batch = collate(parts)
    except (ValueError, RecursionError) as error:
        raise InputError(str(error).splitlines()[0][:200] if str(error) else "no samples") from error
    except (TypeError, KeyError, AttributeError) as error:
        if not _malformed(data):
            raise
        raise InputError("no descriptions of samples") from error
    back = batch.unbatch()
    assert len(back) == len(parts), f"{len(back)} samples of {len(parts)}"
    for one, other in zip(parts, back, strict=True):
        assert one.graph.num_variables == other.graph.num_variables, "another graph"
        assert (one.f is None) == (other.f is None), "features lost"
        assert one.f is None or torch.equal(one.f, other.f), "features of another sample"


def _sample(torch: Any, data: Any, graph: Any, group: Any, described: dict[str, Any]) -> Any:
    variables = described["variables"]
    if not isinstance(variables, int) or not 0 <= variables <= 64:
        raise ValueError("no number of variables")
    groups = {str(name): group(scopes) for name, scopes in described["groups"].items()}
    values = {key: {str(n): _tensor(torch, s) for n, s in described.get(key, {}).items()} for key in ("gs", "edges")}
    f = described.get("f")
    y = described.get("y")
    return data(
        graph(variables, groups),
        None if f is None else _tensor(torch, f),
        values["gs"],
        values["edges"],
        None if y is None else _tensor(torch, y),
    )


def _tensor(torch: Any, shape: Any) -> Any:
    """Distinct numbers of a small shape."""
    if not isinstance(shape, list) or len(shape) > 4 or not all(type(n) is int and 0 <= n <= 64 for n in shape):
        raise ValueError("no shape")
    if math.prod(shape) > 4096:
        raise ValueError("too many numbers")
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)


def _malformed(data: bytes) -> bool:
    """Whether a description is not even a list of objects with integers and lists where they belong."""
    described = json.loads(data)
    if not isinstance(described, list) or not all(isinstance(d, dict) for d in described):
        return True
    return any(
        not isinstance(d.get("variables"), int)
        or not isinstance(d.get("groups"), dict)
        or not all(_is_scopes(s) for s in d["groups"].values())
        or not all(isinstance(d.get(key, {}), dict) for key in ("gs", "edges"))
        for d in described
    )


def _is_scopes(scopes: Any) -> bool:
    rows = isinstance(scopes, list) and all(isinstance(row, list) for row in scopes)
    return rows and all(type(i) is int for row in scopes for i in row)


def tiles(data: bytes) -> None:
    """A folder of two tiles, one of any name and content: both are read with their borders, or one line names a file.

    The first byte selects the format; a byte 0 separates the name from the content.
    """
    from fgnn.points.border import WithBorder
    from fgnn.points.cloud import open_cloud
    from fgnn.points.survey import label_survey

    name, _, content = data[1:].partition(b"\0")
    suffix = _TILE_SUFFIXES[data[0] % len(_TILE_SUFFIXES)] if data else ".xyz"
    text = name.decode("utf-8", "surrogateescape").replace("/", "_")[:40]
    scans, out = folder() / "tiles", folder() / "tiles-out"
    for place in (scans, out):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
    (scans / "fixed.xyz").write_text("0 0 0\n1 1 0\n2 0 1\n", encoding="utf-8")
    try:
        (scans / f"{text}{suffix}").write_bytes(content)
    except (OSError, ValueError) as error:
        raise InputError("no file name") from error

    def label(scan: Any, around: Any, target: Any) -> dict[str, int]:
        count = sum(len(part) for part in WithBorder(open_cloud(scan), around, 1.0).chunks())
        target.write_text(str(count), encoding="utf-8")
        return {"points": count}

    try:
        for result in label_survey(scans, out, label):
            assert result.out.parent == out, "a file outside the folder"
    except InputError as error:
        if str(scans) not in str(error):
            raise AssertionError(f"an error that names no file: {str(error)[:100]}") from error
        raise
    finally:
        for place in (scans, out):
            shutil.rmtree(place, ignore_errors=True)
