"""`fgnn marginals`: probabilities and log Z of a model file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fgnn.cli.complete import complete_device, complete_marginals_method, complete_marginals_option
from fgnn.cli.options import method_options
from fgnn.errors import InputError
from fgnn.runtime.progress import Stages, log_line

if TYPE_CHECKING:
    from fgnn.infer import Marginals


def marginals(
    model: Annotated[Path, typer.Argument(help="A model file: .uai .fg .bif .wcsp .cfn .fgm, also .gz and .xz.")],
    method: Annotated[
        str,
        typer.Option(
            "--method",
            "-m",
            help="auto, brute-force, exact, mini-bucket, sum-product or trw.",
            autocompletion=complete_marginals_method,
        ),
    ] = "auto",
    evidence: Annotated[
        Path | None, typer.Option("--evidence", "-e", help="Observed variables, a UAI .evid file.")
    ] = None,
    pr: Annotated[bool, typer.Option("--pr", help="Print log10 Z only, in UAI's PR format.")] = False,
    time_limit: Annotated[float | None, typer.Option("--time-limit", "-t", help="Seconds.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", autocompletion=complete_device)] = None,
    seed: Annotated[int, typer.Option(help="Seeds the random choices of the method.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            help="An option of the method: -o damping=0.5. Repeatable.",
            autocompletion=complete_marginals_option,
        ),
    ] = None,
) -> None:
    """Compute the probability of every state of every variable, and log Z.

    Prints UAI's MAR format, or its PR format (log10 Z) with --pr; a line on standard error says whether the answer is
    exact. Exit 0: done; 1: the model or the evidence is impossible, or the time limit was reached first; 2: bad input.

    Example: fgnn marginals grid.uai --evidence grid.uai.evid --time-limit 20
    """
    from fgnn import marginals as compute
    from fgnn import read_model
    from fgnn.infer.probability.api import METHODS

    try:
        with Stages("marginals") as stage:
            stage(f"reading {model.name}")
            read = read_model(model, evidence=evidence)
            stage.show(method)
            answer = compute(
                read,
                method,
                time_limit=time_limit,
                device=device,
                seed=seed,
                progress=lambda update: stage.show(f"{update.method}  {update.note}".rstrip()),
                **method_options(option or [], method, METHODS, reserved=("tables",)),
            )
    except ValueError as error:
        first = str(error).splitlines()[0]
        raise InputError(first if str(model) in first else f"{model}: {first}") from None
    log10 = answer.log_partition / math.log(10)
    if as_json:
        print(json.dumps({"file": str(model), **_as_dict(answer)}))
    elif answer.status == "infeasible":
        log_line(f"fgnn: {model}: no assignment is possible (log Z is -inf)")
    elif math.isnan(log10):
        log_line(f"fgnn: {model}: no answer within the time limit")
    else:
        above = f" (at most {answer.bound:.10g})" if not answer.exact and math.isfinite(answer.bound) else ""
        log_line(f"{answer.status}  log Z {answer.log_partition:.10g}{above}  {answer.method}  {answer.seconds:.2f} s")
        print(_pr(log10) if pr else _mar(answer))
    raise typer.Exit(0 if math.isfinite(log10) else 1)


def _pr(log10: float) -> str:
    return f"PR\n{log10:.12g}"


def _mar(answer: Marginals) -> str:
    """UAI's MAR format: the number of variables, then for each its number of states and their probabilities."""
    parts = [str(len(answer.variables))]
    for p in answer.variables:
        parts += [str(len(p)), *(f"{value:.9g}" for value in p)]
    return "MAR\n" + " ".join(parts)


def _as_dict(answer: Marginals) -> dict[str, Any]:
    """Convert to JSON values; what is not finite becomes null, because JSON has neither infinity nor NaN."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "status": answer.status,
        "log_partition": finite(answer.log_partition),
        "log10_partition": finite(answer.log_partition / math.log(10)),
        "bound": finite(answer.bound),
        "method": answer.method,
        "converged": answer.converged,
        "iterations": answer.iterations,
        "seconds": round(answer.seconds, 6),
        "marginals": [[finite(float(v)) for v in p] for p in answer.variables],
    }
