"""Marginals and log Z on the instances of a UAI competition: `auto` beside plain loopy belief propagation."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from fgnn.bench.common import describe, number, show, write_result
from fgnn.bench.uai_references import Reference, mar_errors, pr_error, references
from fgnn.infer import log_partition, marginals
from fgnn.pgm.io import read_model
from fgnn.runtime.environment import environment
from fgnn.runtime.progress import ProgressBar

# Plain loopy belief propagation, the method to beat.
LBP: dict[str, Any] = {"method": "sum-product", "damping": 0.5, "iterations": 1000}
# An answer called exact that differs from its reference by more than this (log10 Z) disagrees with it.
_DISAGREES = 0.01


def run(
    data: Path,
    time_limit: float = 20.0,
    task: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    out: str | Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Answer every instance by `auto` and by loopy belief propagation, and compare with the references.

    Args:
        data: Folder or archive of .uai files with references .PR and .MAR.
        time_limit: Seconds for each answer.
        task: PR or MAR; both by default.
        device: Where to compute.
        seed: Of the methods.
        out: Where to write the JSON; see `write_result`.
        quiet: Whether to print nothing.
    """
    result: dict[str, Any] = {
        "benchmark": "marginals",
        "environment": environment(device),
        "time_limit": time_limit,
        "seed": seed,
    }
    with references(data) as found:
        todo = [r for r in found if task is None or r.task == task]
        bar = ProgressBar()
        rows: dict[str, dict[str, Any]] = {}
        for at, reference in enumerate(todo):
            bar.update(f"{at + 1} of {len(todo)}: {reference.task} {reference.name}")
            rows[f"{reference.task} {reference.name}"] = _compare(reference, time_limit, device, seed)
        bar.close()
    result["instances"] = rows
    result["summary"] = {t: summary([r for n, r in rows.items() if n.startswith(t)]) for t in ("PR", "MAR")}
    if not quiet:
        _print(result)
    name = "marginals" if task is None else f"marginals-{task.lower()}"
    return result | {"file": str(write_result(name, result, out))}


def _compare(reference: Reference, time_limit: float, device: str, seed: int) -> dict[str, Any]:
    model = read_model(reference.model, evidence=reference.evidence)
    common: dict[str, Any] = {"time_limit": time_limit, "device": device, "seed": seed}
    row: dict[str, Any] = {"variables": model.num_variables}
    for name, options in (("auto", {"method": "auto"}), ("LBP", LBP)):
        start = time.perf_counter()
        if reference.task == "PR":
            answer = log_partition(model, **options, **common)
            error = pr_error(answer.value, reference.log10_z())
            row[name] = {"exact": bool(answer.exact), "method": answer.method, "error": _finite(error)}
            row[name] |= {
                "log10 Z": _finite(answer.value / math.log(10)),
                "bound": _finite(answer.bound / math.log(10)),
            }
        else:
            beliefs = marginals(model, **options, **common)
            ours = [np.nan_to_num(p, nan=1.0 / len(p)) for p in beliefs.variables]
            hellinger, absolute = mar_errors(ours, reference.marginals())
            row[name] = {"exact": beliefs.exact, "method": beliefs.method, "error": hellinger, "absolute": absolute}
        row[name]["seconds"] = round(time.perf_counter() - start, 3)
    return row


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers of exact answers, and mean errors over all instances and over those that are not exact."""
    if not rows:
        return {}
    inexact = [r for r in rows if not r["auto"]["exact"]]
    out: dict[str, Any] = {
        "instances": len(rows),
        "exact": len(rows) - len(inexact),
        "exact, but not its reference": sum(
            1 for r in rows if r["auto"]["exact"] and (r["auto"]["error"] or 0) > _DISAGREES
        ),
        "slowest, s": max(r["auto"]["seconds"] for r in rows),
    }
    for name in ("auto", "LBP"):
        for label, part in (("all", rows), ("not exact", inexact)):
            errors = [r[name]["error"] for r in part]
            known = [e for e in errors if e is not None]
            out[f"{name}, {label}: mean error"] = mean(known) if known else None
            out[f"{name}, {label}: median error"] = float(np.median(known)) if known else None
            out[f"{name}, {label}: no finite answer"] = len(errors) - len(known)
    return out


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _print(result: Mapping[str, Any]) -> None:
    print(describe(result["environment"]))
    rows = [
        (
            name,
            r["variables"],
            "yes" if r["auto"]["exact"] else "no",
            r["auto"]["method"],
            f"{r['auto']['seconds']:.1f}",
            number(r["auto"]["error"]),
            number(r["LBP"]["error"]),
        )
        for name, r in result["instances"].items()
    ]
    columns = ("instance", "variables", "exact", "method", "s", "error", "error of LBP")
    show(f"UAI instances, {result['time_limit']:g} s each: |log10 Z| error for PR, Hellinger for MAR", columns, rows)
    for task, values in result["summary"].items():
        if values:
            show(task, ("", ""), [(k, number(v) if isinstance(v, float) else v) for k, v in values.items()])
