"""`fgnn solve`: find the best assignment of model files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fgnn.cli.advice import with_advice
from fgnn.cli.complete import complete_device, complete_solver, complete_solver_option
from fgnn.cli.options import method_options
from fgnn.errors import InputError, need
from fgnn.names import printable
from fgnn.runtime.progress import Stages, log_line
from fgnn.runtime.resource_errors import out_of_memory

if TYPE_CHECKING:
    from fgnn.infer import Progress, Solution
    from fgnn.report.solve_curve import SolveCurve


def solve(
    models: Annotated[list[Path], typer.Argument(help="Model files: .uai .fg .bif .wcsp .cfn .fgm, also .gz and .xz.")],
    method: Annotated[
        str,
        typer.Option(
            "--method",
            "-m",
            help="auto, brute-force, exact, toulbar2, lp, ad3, dual, max-product, search or fgnn.",
            autocompletion=complete_solver,
        ),
    ] = "auto",
    evidence: Annotated[
        Path | None, typer.Option("--evidence", "-e", help="Observed variables, a UAI .evid file; for one model only.")
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", "-t", help="Seconds per model; then the best so far is printed.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write score and bound against time: .png, .svg or .html; for one model only.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per model on standard output.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Models to solve in parallel, one process each.")] = 1,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda, for the methods that use tensors.", autocompletion=complete_device)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seeds the random choices of the method.")] = 0,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Bit-identical results in every run; slower on a GPU."),
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            help="An option of the method: -o damping=0.5. Repeatable.",
            autocompletion=complete_solver_option,
        ),
    ] = None,
) -> None:
    """Find the best assignment of each model file: maximum a posteriori (MAP) inference.

    Prints score (natural log), bound, status and the assignment. Exit 0: every model solved; 1: no feasible assignment
    found for some; 2: bad input; 3: out of memory.

    Example: fgnn solve grid.uai.xz --evidence grid.uai.evid --time-limit 20 --plot curve.html --json
    """
    from fgnn.report.solve_curve import check_curve_file
    from fgnn.solvers import SOLVERS

    for name, file in (("--evidence", evidence), ("--plot", plot)):
        if file is not None and len(models) > 1:
            raise InputError(f"Expected one model with {name} (got {len(models)})")
    if plot is not None:
        check_curve_file(plot)
    if jobs < 1:
        raise InputError(f"Expected --jobs of at least 1 (got {jobs})")
    options = method_options(option or [], method, SOLVERS)
    common = {"time_limit": time_limit, "device": device, "seed": seed, **options}
    if jobs == 1 or len(models) == 1:
        results = (
            _solve_one(path, evidence, method, common, live=True, repeat=deterministic, plot=plot) for path in models
        )
    else:
        joblib = need("joblib")
        results = joblib.Parallel(n_jobs=jobs, return_as="generator")(
            joblib.delayed(_solve_one)(path, None, method, common, live=False, repeat=deterministic) for path in models
        )
    worst = 0
    for path, outcome in zip(models, results, strict=True):
        worst = max(worst, _print_outcome(path, outcome, as_json, many=len(models) > 1))
    raise typer.Exit(worst)


class _OutOfMemory(str):
    """An error message that means exit code 3."""


def _solve_one(
    path: Path,
    evidence: Path | None,
    method: str,
    options: dict[str, Any],
    *,
    live: bool,
    repeat: bool = False,
    plot: Path | None = None,
) -> Solution | str:
    """Return the solution, or one line that says why there is none, so that the other files are still solved."""
    from fgnn import deterministic, read_model
    from fgnn import solve as solve_model
    from fgnn.report.solve_curve import SolveCurve, write_curve

    if repeat:  # here, because it applies to the current process
        deterministic()
    if path.is_dir():
        return f"{path}: Expected a model file (got a folder; name the files in it, as {path}/*.uai)"
    try:
        with Stages("solve", quiet=not live) as stage:
            stage(f"reading {path.name}")
            model = read_model(path, evidence=evidence)
            stage(f"{path.name}  {method}")
            curve = SolveCurve()
            show = partial(_show_progress, stage, curve, options["time_limit"])
            solution = solve_model(model, method, progress=show, **options)
        if plot is not None:
            curve.end(solution)
            write_curve(curve, solution, path.name, plot)
        return replace(solution, model=None)  # large, and a worker process would send it back
    except OSError as error:
        return f"{error.filename or path}: {error.strerror or error}"
    except (ValueError, ImportError) as error:
        first = str(error).splitlines()[0]
        named = str(path) in first or (evidence is not None and str(evidence) in first)
        return first if named else f"{path}: {first}"
    except (RuntimeError, MemoryError) as error:
        message = out_of_memory(error)
        if message is None:
            raise
        return _OutOfMemory(f"{path}: {message}")


def _print_outcome(path: Path, outcome: Solution | str, as_json: bool, many: bool) -> int:
    if isinstance(outcome, str):
        log_line(f"fgnn: {with_advice(outcome)}")
        return 3 if isinstance(outcome, _OutOfMemory) else 2
    if as_json:
        print(json.dumps({"file": str(path), **_as_dict(outcome)}), flush=True)
    else:
        if many:
            print(f"{printable(path)}:")
        print(f"status      {outcome.status}" + ("  (interrupted)" if outcome.info.get("interrupted") else ""))
        print(f"score       {outcome.score:.10g}  (log10 {outcome.score / math.log(10):.10g})")
        print(f"bound       {outcome.bound:.10g}")
        print(f"gap         {outcome.gap:.3g}")
        print(f"method      {outcome.method}")
        print(f"seconds     {outcome.seconds:.3f}")
        print("assignment  " + " ".join(map(str, outcome.assignment.tolist())), flush=True)
    return 0 if outcome.feasible else 1


def _as_dict(solution: Solution) -> dict[str, Any]:
    """Convert to JSON values; an infinite score or bound becomes null, because JSON has no infinity."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "status": solution.status,
        "feasible": solution.feasible,
        "score": finite(solution.score),
        "bound": finite(solution.bound),
        "gap": finite(solution.gap),
        "method": solution.method,
        "converged": solution.converged,
        "iterations": solution.iterations,
        "seconds": round(solution.seconds, 6),
        "interrupted": bool(solution.info.get("interrupted", False)),
        "assignment": solution.assignment.tolist(),
    }


def _show_progress(stage: Stages, curve: SolveCurve, limit: float | None, update: Progress) -> None:
    """Show the best score, the lowest bound and the gap between them so far."""
    curve.progress(update)
    best = f"score {curve.score:.8g}  bound {curve.bound:.8g}  gap {curve.gap:.3g}"
    left = None if limit is None else limit - curve.points[-1][0]
    stage.show(f"{update.method}  {best}  {update.note}".rstrip(), left)
