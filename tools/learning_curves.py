"""Agreement as layers and instances grow: `python -m tools.learning_curves sweep-*.tar --out curves.svg`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.report import lines
from fgnn.report.charts import standalone
from tools.archive import read_archive


def curves(tars: Sequence[str | Path]) -> dict[str, list[tuple[float, float]]]:
    """Return points (instances seen, agreement in percent) by run, smoothed over the last tenth of the instances.

    Repeated names are numbered.
    """
    runs: dict[str, list[tuple[float, float]]] = {}
    for path in tars:
        files = read_archive(path)
        for member, log in files.items():
            if not member.endswith("/metrics.jsonl"):
                continue
            name = member.split("/")[0]
            try:
                batch = float(json.loads(files[f"{name}/{name}.json"])["recipe"]["batch"])
                logged = [json.loads(line) for line in log.decode("utf-8").splitlines()]
                points = [(float(line["step"]) * batch, 100 * float(line["agreement"])) for line in logged]
            except (ValueError, LookupError, TypeError, RecursionError, OverflowError) as error:
                raise InputError("Expected the card and the log of a run", file=path, place=member) from error
            again = sum(other.split(" #")[0] == name for other in runs)
            runs[f"{name} #{again + 1}" if again else name] = _smooth(points)
    if not runs:
        raise InputError("Expected the logs of runs in the tar files (got none)", file=tars[0])
    return runs


def _smooth(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    smooth = []
    for x, _ in points:
        near = [y for at, y in points if 0.9 * x <= at <= x]
        smooth.append((x, sum(near) / len(near)))
    return smooth


def _thin(points: list[tuple[float, float]], most: int = 12) -> list[tuple[float, float]]:
    """Return at most ``most`` evenly spaced points, the last among them."""
    step = -(-len(points) // most)
    return points[::-1][::step][::-1]


def main(
    tars: Annotated[list[Path], typer.Argument(help="Tar files of a sweep.")],
    out: Annotated[Path, typer.Option(help="The SVG file.")] = Path("curves.svg"),
    only: Annotated[list[str] | None, typer.Option(help="Names of runs; all by default.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the points here.")] = None,
) -> None:
    """Plot agreement against instances seen."""
    runs = {n: p for n, p in curves(tars).items() if not only or n.split(" #")[0] in only}
    picture = lines(runs, "instances seen", "agreement with the exact MAP, %", log_x=True, markers=False)
    with atomic_write(out) as file:
        file.write(standalone(picture))
    if json_file is not None:
        with atomic_write(json_file) as file:
            rows = [
                {"run": n, "instances": x, "agreement %": round(y, 3)} for n, p in runs.items() for x, y in _thin(p)
            ]
            json.dump({"what": "agreement while training on fresh instances", "runs": rows}, file, indent=1)
    for name, points in runs.items():
        print(f"{name}: {points[-1][1]:.2f} % after {points[-1][0]:,.0f} instances")


if __name__ == "__main__":
    typer.run(main)
