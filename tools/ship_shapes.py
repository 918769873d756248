"""From the results of `tools.train_shapes` to the package: `python -m tools.ship_shapes OUT --keep shapes-fgnn`.

Weights that are kept go to the package with their cards; of the other networks the scores stay, as records.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.models.points.segmenter import load_point_network
from fgnn.weights import load_weights, save_weights
from fgnn.weights.cards import weights_folder

# What of a job is told with its scores.
_TOLD = ("steps", "epochs", "seconds", "finished", "parameters", "shapes_per_second")


def ship_shapes(
    results: str | Path, keep: Collection[str], folder: str | Path | None = None, command: str = ""
) -> list[str]:
    """Put weights and records into the package's folder (or another); returns the names kept."""
    source, target = Path(results), Path(folder) if folder is not None else weights_folder()
    summary = _summary(source / "shapes.json")
    target.mkdir(parents=True, exist_ok=True)
    path = target / "records.json"
    records: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    kept = []
    for job in summary["jobs"]:
        if not job["scores"]:
            continue
        name = job["name"]
        told = {key: job[key] for key in _TOLD} | {"results": job["scores"]}
        if name not in keep:
            common = {"name": name, "task": "points", "hardware": summary["hardware"]}
            records[name] = common | told | ({"command": command} if command else {})
            continue
        weights = load_weights(source / f"{name}.safetensors")
        load_point_network(weights)  # its tensors fit its card
        card = dict(weights.card) | told | ({"command": command} if command else {})
        save_weights(target / f"{name}.safetensors", weights.tensors, card, bf16=True)
        records.pop(name, None)
        kept.append(name)
    missing = sorted(set(keep) - set(kept))
    if missing:
        raise InputError(f"Expected scores of {missing[0]} among the jobs (got none)", file=source / "shapes.json")
    with atomic_write(path) as file:
        json.dump(records, file, indent=1)
        file.write("\n")
    return kept


def _summary(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        jobs = [dict(job) for job in found["jobs"]]
        known = all({*_TOLD, "name", "scores"} <= job.keys() for job in jobs) and "hardware" in found
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"Expected the results of tools.train_shapes ({type(error).__name__})", file=file) from error
    if not known:
        raise InputError("Expected the results of tools.train_shapes (got other keys)", file=file)
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Put networks on shapes into the package.")
    parser.add_argument("results", help="the folder that tools.train_shapes wrote its results to")
    parser.add_argument("--keep", nargs="*", default=[])
    parser.add_argument("--folder")
    parser.add_argument("--command", default="", help="how the weights were made, for their cards")
    given = parser.parse_args()
    kept = ship_shapes(given.results, given.keep, given.folder, given.command)
    print("kept " + (", ".join(kept) or "no weights"))


if __name__ == "__main__":
    main()
