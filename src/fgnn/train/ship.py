"""From a sweep's tar files to the package: `python -m fgnn.train.ship sweep-*.tar --keep deep-map-1 paper-map-1`.

Weights that are kept go to the package with their cards; of the others the results stay, as records.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.weights.cards import load_weights, save_weights, weights_folder


def ship(
    tars: Sequence[str | Path], keep: Collection[str], folder: str | Path | None = None, commands: str = ""
) -> list[str]:
    """Put weights and records into the package's folder (or another); returns the names kept."""
    target = Path(folder) if folder is not None else weights_folder()
    target.mkdir(parents=True, exist_ok=True)
    path = target / "records.json"
    records: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    kept = []
    with tempfile.TemporaryDirectory() as place:
        for name in tars:
            with tarfile.open(name) as tar:
                tar.extractall(place, filter="data")
        for found in sorted(Path(place).glob("*/*.safetensors")):
            weights = load_weights(found)
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Put a sweep's weights into the package.")
    parser.add_argument("tars", nargs="+")
    parser.add_argument("--keep", nargs="*", default=[])
    parser.add_argument("--folder")
    parser.add_argument("--command", default="", help="how the weights were made, for their cards")
    given = parser.parse_args()
    print("kept " + ", ".join(ship(given.tars, given.keep, given.folder, given.command)))


if __name__ == "__main__":
    main()
