"""A fixed set of generated models with their labels, in a folder: ``models.safetensors`` and ``dataset.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.pgm import ModelBatch
from fgnn.pgm.batch import BudgetBatch, TableBatch

_FORMAT = 1


@dataclass(frozen=True, eq=False)
class StoredModels:
    """A set of models of one family, with the optimum of each."""

    family: Any  # the ChainMAP or GridMAP that drew them
    batch: ModelBatch
    labels: Tensor  # shape: (B, N), int64
    seed: int


def save_models(
    folder: str | Path, family: str, parameters: Mapping[str, Any], batch: ModelBatch, labels: Tensor, seed: int
) -> StoredModels:
    """Write a set. The description comes last, so a folder that has one is whole."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    tensors = {"cardinalities": batch.cardinalities, "unary": batch.unary, "constant": batch.constant, "labels": labels}
    for g, table in enumerate(batch.tables):
        tensors |= {f"tables.{g}.scopes": table.scopes, f"tables.{g}.values": table.values}
    for g, budget in enumerate(batch.budgets):
        names = ("scopes", "at_least", "at_most")
        tensors |= {f"budgets.{g}.{name}": getattr(budget, name) for name in names}
    # what all models share is written once, and given back expanded
    shared = [name for name, t in tensors.items() if t.dim() > 1 and t.shape[0] > 1 and t.stride(0) == 0]
    written = {name: (t[:1] if name in shared else t).cpu().contiguous() for name, t in tensors.items()}
    about = {
        "format": _FORMAT,
        "family": family,
        "parameters": dict(parameters),
        "count": len(batch),
        "seed": seed,
        "tables": len(batch.tables),
        "budgets": len(batch.budgets),
        "shared": shared,
    }
    (place / "dataset.json").unlink(missing_ok=True)
    with atomic_write(place / "models.safetensors", "wb") as file:
        file.write(save_tensors(written))
    with atomic_write(place / "dataset.json") as file:
        json.dump(about, file, indent=2)
    return load_models(place)


def load_models(folder: str | Path, device: torch.device | str = "cpu", expected: str | None = None) -> StoredModels:
    """Read a set that was saved, or say in one line why it cannot be.

    Args:
        folder: Where `save` wrote it.
        device: Where the tensors shall lie.
        expected: The family it must be of; any by default.
    """
    place = Path(folder)
    about = _description(place / "dataset.json")
    if expected is not None and about["family"] != expected:
        raise InputError(f"expected a set of {expected} (got {about['family']})", file=place / "dataset.json")
    file = place / "models.safetensors"
    try:
        tensors = load_tensors(file.read_bytes())
    except FileNotFoundError:
        raise InputError("no such file", file=file) from None
    except Exception as error:  # safetensors has an error class of its own for every broken header
        raise InputError(f"not a whole safetensors file ({error})", file=file) from None
    count = about["count"]

    def get(name: str) -> Tensor:
        if name not in tensors:
            raise InputError(f"no tensor {name!r}", file=file)
        tensor = tensors[name].to(device)
        return tensor.expand(count, *tensor.shape[1:]) if name in about["shared"] else tensor

    batch = ModelBatch(
        cardinalities=get("cardinalities"),
        unary=get("unary"),
        tables=tuple(TableBatch(get(f"tables.{g}.scopes"), get(f"tables.{g}.values")) for g in range(about["tables"])),
        budgets=tuple(
            BudgetBatch(get(f"budgets.{g}.scopes"), get(f"budgets.{g}.at_least"), get(f"budgets.{g}.at_most"))
            for g in range(about["budgets"])
        ),
        constant=get("constant"),
    )
    labels = get("labels")
    if len(batch) != count or labels.shape != (count, batch.num_variables):
        raise InputError(f"expected {count} models with labels (got {tuple(labels.shape)} labels)", file=file)
    return StoredModels(_families()[about["family"]](**about["parameters"]), batch, labels, about["seed"])


def _description(file: Path) -> dict[str, Any]:
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file; expected the folder of a saved set", file=file) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not a JSON file ({error})", file=file) from None
    keys = {"format", "family", "parameters", "count", "seed", "tables", "budgets", "shared"}
    if not isinstance(about, dict) or not keys <= about.keys():
        raise InputError("not the description of a set of models", file=file)
    if about["format"] != _FORMAT:
        raise InputError(f"expected format {_FORMAT} (got {about['format']})", file=file)
    if about["family"] not in _families():
        raise InputError(f"expected a family among {', '.join(_families())} (got {about['family']})", file=file)
    return about


def _families() -> dict[str, Callable[..., Any]]:
    from fgnn.data.chain import ChainMAP
    from fgnn.data.grid import GridMAP

    return {"ChainMAP": ChainMAP, "GridMAP": GridMAP}
