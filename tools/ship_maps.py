"""From a sweep's tar files to the package: `python -m tools.ship_maps sweep-*.tar --keep deep-map-1 paper-map-1`.

Weights that are kept go to the package with their cards; of the others the results stay, as records. Weights of any
other run go there alone: `python -m tools.ship_maps run/last.safetensors --name lidar-ground`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.models.points.segmenter import load_point_network
from fgnn.weights.cards import load_weights, parse_weights, save_weights, weights_folder
from tools.archive import read_archive


def ship(
    tars: Sequence[str | Path], keep: Collection[str], folder: str | Path | None = None, commands: str = ""
) -> list[str]:
    """Put weights and records into the package's folder (or another); returns the names kept."""
    target = Path(folder) if folder is not None else weights_folder()
    target.mkdir(parents=True, exist_ok=True)
    path = target / "records.json"
    records: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    kept = []
    for tar in tars:
        for name, data in sorted(read_archive(tar).items()):
            if not name.endswith(".safetensors"):
                continue
            weights = parse_weights(data, f"{tar}, {name}")
            card = dict(weights.card) | ({"command": commands} if commands else {})
            if weights.name in keep:
                save_weights(target / f"{weights.name}.safetensors", weights.tensors, card, bf16=True)
                records.pop(weights.name, None)
                kept.append(weights.name)
            else:
                records[weights.name] = card
    missing = sorted(set(keep) - set(kept))
    if missing:
        raise InputError(f"Expected weights of {missing[0]} in the tar files (got none)", file=tars[0])
    with atomic_write(path) as file:
        json.dump(records, file, indent=1)
        file.write("\n")
    return kept


def ship_file(
    file: str | Path, name: str, folder: str | Path | None = None, command: str = "", bf16: bool = True
) -> Path:
    """Put the weights of one file or run into the package's folder under a name; they must fit their card."""
    weights = load_weights(file)
    if weights.card.get("task") == "points":
        load_point_network(weights)
    card = dict(weights.card) | {"name": name} | ({"command": command} if command else {})
    target = Path(folder) if folder is not None else weights_folder()
    target.mkdir(parents=True, exist_ok=True)
    save_weights(target / f"{name}.safetensors", weights.tensors, card, bf16=bf16)
    return target / f"{name}.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description="Put trained weights into the package.")
    parser.add_argument("tars", nargs="+", help="a sweep's tar files, or with --name one weights file or run")
    parser.add_argument("--keep", nargs="*", default=[])
    parser.add_argument("--name", help="what one weights file or run is called in the package")
    parser.add_argument("--fp32", action="store_true", help="with --name: keep float32")
    parser.add_argument("--folder")
    parser.add_argument("--command", default="", help="how the weights were made, for their cards")
    given = parser.parse_args()
    if given.name is not None:
        if len(given.tars) != 1:
            parser.error("Expected one file or run with --name")
        path = ship_file(given.tars[0], given.name, given.folder, given.command, bf16=not given.fp32)
        print(f"wrote {path}, {path.stat().st_size:,} bytes")
        return
    print("kept " + ", ".join(ship(given.tars, given.keep, given.folder, given.command)))


if __name__ == "__main__":
    main()
