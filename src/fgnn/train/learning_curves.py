"""Agreement as layers and instances grow: `python -m fgnn.train.learning_curves sweep-*.tar --out curves.png`."""

from __future__ import annotations

import argparse
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.report.plots import lines


def curves(tars: Sequence[str | Path]) -> dict[str, list[tuple[float, float]]]:
    """By run: (instances seen, agreement in percent), smoothed over the last tenth of what was seen."""
    found: dict[str, list[tuple[float, float]]] = {}
    for path in tars:
        with tarfile.open(path) as tar:
            for member in tar.getmembers():
                if not member.name.endswith("/metrics.jsonl"):
                    continue
                name = member.name.split("/")[0]
                card = tar.extractfile(f"{name}/{name}.json")
                log = tar.extractfile(member)
                assert card is not None
                assert log is not None
                batch = json.load(card)["recipe"]["batch"]
                logged = [json.loads(line) for line in log.read().decode().splitlines()]
                found[name] = _smooth([(line["step"] * batch, 100 * line["agreement"]) for line in logged])
    if not found:
        raise InputError("Expected the logs of runs in the tar files (got none)", file=tars[0])
    return found


def _smooth(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    made = []
    for x, _ in points:
        near = [v for at, v in points if 0.9 * x <= at <= x]
        made.append((x, sum(near) / len(near)))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Plot agreement against instances seen.")
    parser.add_argument("tars", nargs="+")
    parser.add_argument("--out", default="curves.png")
    given = parser.parse_args()
    found = curves(given.tars)
    picture = lines(found, "instances seen", "agreement with the exact MAP, %", log_x=True, markers=False)
    if picture is None:
        raise SystemExit("matplotlib is needed here: pip install 'fgnn[viz]'")
    with atomic_write(given.out, "wb") as file:
        file.write(picture)
    for name, points in found.items():
        print(f"{name}: {points[-1][1]:.2f} % after {points[-1][0]:,.0f} instances")


if __name__ == "__main__":
    main()
