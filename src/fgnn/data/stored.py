"""Save and load a set of generated models and labels: ``models.safetensors`` and ``dataset.json`` in a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fgnn.errors import InputError
from fgnn.files import atomic_write, check_input, is_file, read_text
from fgnn.pgm import BudgetBatch, ModelBatch, TableBatch

if TYPE_CHECKING:
    from fgnn.data.generated import GeneratedModels

_Group = TypeVar("_Group", bound=TableBatch | BudgetBatch)
_FORMAT = 1
_MOST_DESCRIPTION = 1 << 20  # bytes
_COUNTS = ("count", "tables", "budgets")
_FIELDS = dict.fromkeys((*_COUNTS, "format", "seed"), int) | {"family": str, "shared": list, "parameters": dict}


@dataclass(frozen=True, eq=False)
class StoredModels:
    """A set of models of one family, with the optimum of each."""

    family: GeneratedModels  # such as a ChainMAP
    batch: ModelBatch
    labels: Tensor  # shape: (B, N), int64
    seed: int


def save_models(folder: str | Path, models: StoredModels) -> None:
    """Write a set. The description is written last, so a folder that has one is complete."""
    batch, labels = models.batch, models.labels
    if batch.structured:
        raise ValueError(f"Expected tables and budgets in a stored set (got {batch.structured[0].kind.name} factors)")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    tensors = {"cardinalities": batch.cardinalities, "unary": batch.unary, "constant": batch.constant, "labels": labels}
    groups: dict[str, TableBatch | BudgetBatch] = {f"tables.{g}": table for g, table in enumerate(batch.tables)}
    groups |= {f"budgets.{g}": budget for g, budget in enumerate(batch.budgets)}
    for name, group in groups.items():
        # numbers that all models share are written once, and expanded by `load_models`
        tensors |= {f"{name}.scopes": group.scopes} | {f"{name}.{n}": group.distinct(n) for n in group.names}
    written = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    about = {
        "format": _FORMAT,
        "family": type(models.family).__name__,
        "parameters": asdict(models.family),
        "count": len(batch),
        "seed": models.seed,
        "tables": len(batch.tables),
        "budgets": len(batch.budgets),
        "shared": [f"{name}.{n}" for name, group in groups.items() for n in sorted(group.shared)],
    }
    description = place / "dataset.json"
    with atomic_write(description) as last:
        json.dump(about, last, indent=2)
        last.flush()
        os.fsync(last.fileno())
        with atomic_write(place / "models.safetensors", "wb") as file:
            file.write(save_tensors(written))
            file.flush()
            os.fsync(file.fileno())
            description.unlink(missing_ok=True)  # both new files are on disk and only need to be renamed


def load_models(
    folder: str | Path, device: torch.device | str = "cpu", expected: type[GeneratedModels] | None = None
) -> StoredModels:
    """Read a saved set.

    Args:
        folder: Of the set.
        device: Of the tensors.
        expected: The family it must belong to; any of this package by default.

    Raises:
        InputError: The files are missing or damaged, or of another family.
    """
    place = Path(folder)
    about = _description(place / "dataset.json")
    families = {kind.__name__: kind for kind in ([expected] if expected is not None else _families())}
    if about["family"] not in families:
        message = f"expected a set of {' or '.join(families)} (got {about['family']})"
        raise InputError(message, file=place / "dataset.json")
    file = place / "models.safetensors"
    check_input(file)
    try:
        tensors = load_tensors(file.read_bytes())
    except Exception as error:  # safetensors raises its own error classes for damaged headers
        raise InputError(f"not a whole safetensors file ({error})", file=file) from None
    try:
        family = families[about["family"]](**about["parameters"])
        batch, labels = _assemble(tensors, about, device)
        _check(batch, labels, about["count"])
    except (ValueError, TypeError, RuntimeError, LookupError, OverflowError) as error:
        raise InputError(f"not a whole set of models ({error})", file=file) from error
    return StoredModels(family, batch, labels, about["seed"])


def _assemble(
    tensors: Mapping[str, Tensor], about: Mapping[str, Any], device: torch.device | str
) -> tuple[ModelBatch, Tensor]:
    count = about["count"]

    if any(not str(name).startswith(("tables.", "budgets.")) for name in about["shared"]):
        raise ValueError("Expected only numbers of factors to be shared")

    def get(name: str) -> Tensor:
        if name not in tensors:
            raise ValueError(f"Expected a tensor {name} (got none)")
        tensor = tensors[name].to(device)
        return tensor.expand(count, *tensor.shape[1:]) if name in about["shared"] else tensor

    def group(cls: type[_Group], name: str) -> _Group:
        shared = frozenset(n for n in cls.names if f"{name}.{n}" in about["shared"])
        return cls(*(get(f"{name}.{n}") for n in ("scopes", *cls.names)), shared=shared)

    factors: list[TableBatch | BudgetBatch] = [
        *(group(TableBatch, f"tables.{g}") for g in range(about["tables"])),
        *(group(BudgetBatch, f"budgets.{g}") for g in range(about["budgets"])),
    ]
    return ModelBatch.of(get("cardinalities"), get("unary"), factors, get("constant")), get("labels")


def _check(batch: ModelBatch, labels: Tensor, count: int) -> None:
    """Check shapes and types, which users of the tensors rely on."""
    cards, unary = batch.cardinalities, batch.unary
    if cards.dim() != 1 or cards.dtype != torch.int64 or unary.dim() != 3:
        raise ValueError("Expected cardinalities (N,) and unaries (B, N, K)")
    n = len(cards)
    widest = int(cards.max()) if n else 1
    if unary.shape != (count, n, widest) or (n and int(cards.min()) < 1) or batch.constant.shape != (count,):
        raise ValueError(f"Expected unaries of {count} models of {n} variables (got {tuple(unary.shape)})")
    if labels.shape != (count, n) or labels.dtype != torch.int64 or ((labels < 0) | (labels >= cards)).any():
        raise ValueError(f"Expected {count} models with labels (got {tuple(labels.shape)} labels)")
    # only numbers of factors may be shared, so the tensors above bound the number of models by the size of the file
    for tensor in (unary, batch.constant, *(t.distinct("values") for t in batch.tables)):
        if not tensor.is_floating_point() or tensor.isnan().any() or (tensor == torch.inf).any():
            raise ValueError("Expected log-potentials, numbers or -inf")
    for scopes in (*(t.scopes for t in batch.tables), *(u.scopes for u in batch.budgets)):
        if scopes.dim() != 2 or scopes.dtype != torch.int64 or ((scopes < 0) | (scopes >= n)).any():
            raise ValueError(f"Expected scopes of variables below {n}")
    for table in batch.tables:
        states = torch.tensor(table.values.shape[2:], device=cards.device)
        same = table.values.dim() == 2 + table.scopes.shape[1] and table.values.shape[:2] == (count, len(table.scopes))
        if not same or (cards[table.scopes] != states).any():
            raise ValueError("Expected a table for every scope")
    for budget in batch.budgets:
        for bound in (budget.at_least, budget.at_most):
            if bound.shape != (count, len(budget.scopes)) or bound.dtype != torch.int64:
                raise ValueError("Expected bounds for every budget")


def _description(file: Path) -> dict[str, Any]:
    if not is_file(file):
        raise InputError("no such file; expected the folder of a saved set", file=file)
    text = read_text(file, _MOST_DESCRIPTION)
    try:
        about = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a JSON file ({error})", file=file) from None
    if not isinstance(about, dict):
        raise InputError("not the description of a set of models", file=file)
    if about.get("format", _FORMAT) != _FORMAT:
        raise InputError(f"expected format {_FORMAT} (got {about['format']})", file=file)
    for key, kind in _FIELDS.items():
        if not isinstance(about.get(key), kind) or isinstance(about[key], bool):
            raise InputError("not the description of a set of models", file=file, place=key)
    for key in _COUNTS:
        if not 0 <= about[key] < 1 << 40:
            raise InputError(f"Expected a number of {key} (got {about[key]})", file=file, place=key)
    return about


def _families() -> list[type[GeneratedModels]]:
    from fgnn.data.chain import ChainMAP
    from fgnn.data.grid import GridMAP

    return [ChainMAP, GridMAP]
