"""Agreement as layers and instances grow: `python -m tools.learning_curves sweep-*.tar --out curves.png`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.report.plots import lines
from tools.archive import read_archive


def curves(tars: Sequence[str | Path]) -> dict[str, list[tuple[float, float]]]:
    """By run: (instances seen, agreement in percent), smoothed over the last tenth of what was seen; a name met again
    has a number."""
    found: dict[str, list[tuple[float, float]]] = {}
    for path in tars:
        files = read_archive(path)
        for member, log in files.items():
            if not member.endswith("/metrics.jsonl"):
                continue
            name = member.split("/")[0]
            try:
                batch = float(json.loads(files[f"{name}/{name}.json"])["recipe"]["batch"])
                logged = [json.loads(line) for line in log.decode("utf-8").splitlines()]
                seen = [(float(line["step"]) * batch, 100 * float(line["agreement"])) for line in logged]
            except (ValueError, LookupError, TypeError, RecursionError, OverflowError) as error:
                raise InputError("Expected the card and the log of a run", file=path, place=member) from error
            again = sum(known.split(" #")[0] == name for known in found)
            found[f"{name} #{again + 1}" if again else name] = _smooth(seen)
    if not found:
        raise InputError("Expected the logs of runs in the tar files (got none)", file=tars[0])
    return found


def _smooth(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    made = []
    for x, _ in points:
        near = [v for at, v in points if 0.9 * x <= at <= x]
        made.append((x, sum(near) / len(near)))
    return made


def _few(points: list[tuple[float, float]], most: int = 12) -> list[tuple[float, float]]:
    """At most so many of the points, the last among them."""
    step = -(-len(points) // most)
    return points[::-1][::step][::-1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Plot agreement against instances seen.")
    parser.add_argument("tars", nargs="+")
    parser.add_argument("--out", default="curves.png")
    parser.add_argument("--only", nargs="*", default=[], help="names of runs; all by default")
    parser.add_argument("--json", help="also write the points here")
    given = parser.parse_args()
    found = {n: p for n, p in curves(given.tars).items() if not given.only or n.split(" #")[0] in given.only}
    picture = lines(found, "instances seen", "agreement with the exact MAP, %", log_x=True, markers=False)
    if picture is None:
        raise SystemExit("matplotlib is needed here: pip install 'fgnn[viz]'")
    with atomic_write(given.out, "wb") as file:
        file.write(picture)
    if given.json:
        with atomic_write(given.json) as file:
            rows = [
                {"run": n, "instances": x, "agreement %": round(y, 3)} for n, p in found.items() for x, y in _few(p)
            ]
            json.dump({"what": "agreement while training on fresh instances", "runs": rows}, file, indent=1)
    for name, points in found.items():
        print(f"{name}: {points[-1][1]:.2f} % after {points[-1][0]:,.0f} instances")


if __name__ == "__main__":
    main()
