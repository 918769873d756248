"""Digests of the data that a run reads from files, so that a resumed run notices when they changed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from torch import Tensor

from fgnn.data.labelled import PointSet
from fgnn.tasks.model_folder import model_files
from fgnn.tasks.recipe import Recipe
from fgnn.tasks.scan_folder import scan_files


def data_digests(recipe: Recipe, task: Any) -> dict[str, str]:
    """Return a digest for each file of a folder, or for each set of clouds; none for generated data.

    Generated data depends on the recipe alone.
    """
    data = recipe.data
    if data.folder is not None:
        return {path.name: _of_file(path) for path in model_files(data.folder)}
    if data.scans is not None:
        root = Path(data.scans.root)
        files = [*scan_files(root, data.scans.classes), root / data.scans.classes]
        return {path.name: _of_file(path) for path in files}
    if data.samples is not None:
        return {Path(place).name: _of_file(Path(place)) for place in (data.samples.model, data.samples.file)}
    if data.codes is not None:
        return {Path(place).name: _of_file(Path(place)) for place in data.codes.files}
    if data.clouds:
        return {"training clouds": _of_clouds(task.loaded.train), "held-out clouds": _of_clouds(task.loaded.held_out)}
    return {}


def changes_in(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return what changed, in words."""
    return [
        f"{name} {'is new' if name not in before else 'is missing' if name not in now else 'changed'}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def _of_clouds(clouds: PointSet) -> str:
    digest = hashlib.blake2b()
    for tensor in (clouds.features, clouds.label, clouds.category):
        digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()[:32]


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().numpy().data
