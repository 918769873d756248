"""Put trained weights into the package, with their cards: `python -m tools.ship PLACES --keep NAMES`.

PLACES are the tar files of `tools.sweep`, or the folder that `tools.train_shapes` wrote: weights named by ``--keep`` go
to the package, of the others the scores stay as records. With ``--name`` the place is one weights file or run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.models.points.segmenter import load_point_network
from fgnn.weights import load_weights, save_weights
from fgnn.weights.cards import parse_card, parse_weights, weights_folder
from tools.archive import read_archive

# What the record of a network on shapes says besides its scores.
_SHAPE_KEYS = ("steps", "epochs", "seconds", "finished", "parameters", "shapes_per_second")

_RECORD_KEYS = ("name", "task", "hardware", *_SHAPE_KEYS, "results", "command")


class _Package:
    """The folder of weights, with the records of networks whose weights are not kept."""

    def __init__(self, folder: str | Path | None, keep: Collection[str], command: str) -> None:
        self.folder, self.keep = Path(folder) if folder is not None else weights_folder(), keep
        self.extra = {"command": command} if command else {}
        self.shipped: list[str] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "records.json"
        text = self.path.read_text(encoding="utf-8") if self.path.is_file() else "{}"
        self.records: dict[str, Any] = json.loads(text)

    def save(self, name: str, tensors: Mapping[str, Tensor], card: Mapping[str, Any], bf16: bool = True) -> Path:
        path = self.folder / f"{name}.safetensors"
        save_weights(path, tensors, {**card, **self.extra}, bf16=bf16)
        self.records.pop(name, None)
        self.shipped.append(name)
        return path

    def record(self, name: str, card: Mapping[str, Any]) -> None:
        self.records[name] = {**card, **self.extra}

    def reduce(self, name: str) -> None:
        """Keep of packaged weights only the record."""
        weights = load_weights(self.folder / f"{name}.safetensors")
        self.records[name] = {key: weights.card[key] for key in _RECORD_KEYS if key in weights.card}
        for suffix in (".safetensors", ".json"):
            (self.folder / f"{name}{suffix}").unlink(missing_ok=True)

    def close(self, file: str | Path) -> list[str]:
        """Write the records and return the names shipped; all names to keep must be among them."""
        missing = sorted(set(self.keep) - set(self.shipped))
        if missing:
            raise InputError(f"Expected weights of {missing[0]} (got none)", file=file)
        with atomic_write(self.path) as handle:
            json.dump(self.records, handle, indent=1)
            handle.write("\n")
        return self.shipped


def ship_sweep(
    tars: Sequence[str | Path], keep: Collection[str], folder: str | Path | None = None, command: str = ""
) -> list[str]:
    """Ship weights and records of a sweep; return the names of the weights kept."""
    package = _Package(folder, keep, command)
    for tar in tars:
        files = read_archive(tar)
        for name, data in sorted(files.items()):
            if name.endswith(".safetensors"):
                weights = parse_weights(data, f"{tar}, {name}")
                if weights.name in keep:
                    package.save(weights.name, weights.tensors, weights.card)
                else:
                    package.record(weights.name, weights.card)
            elif _is_card(name) and name.removesuffix(".json") + ".safetensors" not in files:
                card = parse_card(data, f"{tar}, {name}")
                package.record(card.name, card)
    return package.close(tars[0])


def _is_card(name: str) -> bool:
    """Whether a member of a sweep's tar file is the card of a job, ``NAME/NAME.json``."""
    folder, _, file = name.rpartition("/")
    return bool(folder) and file == f"{folder}.json"


def ship_shapes(
    results: str | Path,
    keep: Collection[str],
    folder: str | Path | None = None,
    command: str = "",
    reduce: Collection[str] = (),
) -> list[str]:
    """Ship weights and records of networks on shapes; return the names of the weights kept.

    Args:
        reduce: Packaged weights of which only the records stay.
    """
    file = Path(results) / "shapes.json"
    summary, trained = _read_summary(file), _seconds(file.with_name("shapes-log.jsonl"))
    package = _Package(folder, keep, command)
    for name in reduce:
        package.reduce(name)
    for job in summary["jobs"]:
        if not job["scores"]:
            continue
        scores = {key: job[key] for key in _SHAPE_KEYS} | {"results": job["scores"]}
        scores["seconds"] = max(job["seconds"], trained.get(job["name"], 0.0))  # of all calls that continued it
        scores |= {"selected": job["selected"]} if job.get("selected") is not None else {}
        if job["name"] in keep:
            weights = load_weights(file.with_name(f"{job['name']}.safetensors"))
            load_point_network(weights)  # checks that the tensors fit the card
            package.save(job["name"], weights.tensors, {**weights.card, **scores})
        else:
            about = {"name": job["name"], "task": "points", "hardware": summary["hardware"]}
            package.record(job["name"], about | scores)
    return package.close(file)


def ship_file(
    file: str | Path, name: str, folder: str | Path | None = None, command: str = "", bf16: bool = True
) -> Path:
    """Ship the weights of one file or run under a name; they must fit their card."""
    weights = load_weights(file)
    if weights.card.get("task") == "points":
        load_point_network(weights)
    return _Package(folder, [name], command).save(name, weights.tensors, {**weights.card, "name": name}, bf16)


def _seconds(log: Path) -> dict[str, float]:
    """The seconds that each run of a log has trained in all."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    return {line["run"]: line["seconds"] for line in map(json.loads, lines) if "seconds" in line}


def _read_summary(file: Path) -> dict[str, Any]:
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
        complete = "hardware" in summary and all({*_SHAPE_KEYS, "name", "scores"} <= j.keys() for j in summary["jobs"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"Expected the results of tools.train_shapes ({type(error).__name__})", file=file) from error
    if not complete:
        raise InputError("Expected the results of tools.train_shapes (got other keys)", file=file)
    return dict(summary)


def main(
    places: Annotated[list[Path], typer.Argument(help="Tar files of a sweep, a folder of results, or weights.")],
    keep: Annotated[list[str] | None, typer.Option(help="Weights that go to the package.")] = None,
    name: Annotated[str | None, typer.Option(help="Ship one weights file or run under this name.")] = None,
    reduce: Annotated[list[str] | None, typer.Option(help="Packaged weights of which only records stay.")] = None,
    fp32: Annotated[bool, typer.Option("--fp32", help="With --name: keep float32.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Another folder than the package's.")] = None,
    command: Annotated[str, typer.Option(help="How the weights were made, for their cards.")] = "",
) -> None:
    """Put trained weights into the package."""
    if name is not None:
        if len(places) != 1:
            raise InputError(f"Expected one weights file or run with --name (got {len(places)})")
        path = ship_file(places[0], name, folder, command, bf16=not fp32)
        print(f"wrote {path}, {path.stat().st_size:,} bytes")
        return
    if places[0].is_dir():
        shipped = ship_shapes(places[0], keep or (), folder, command, reduce or ())
    else:
        shipped = ship_sweep(places, keep or (), folder, command)
    print("kept " + (", ".join(shipped) or "no weights"))


if __name__ == "__main__":
    typer.run(main)
