"""A folder of model files as training data: read, labelled, grouped by structure and split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fgnn.errors import InputError
from fgnn.models import NetworkConfig
from fgnn.names import as_file_name
from fgnn.pgm import GraphicalModel, ModelBatch
from fgnn.tasks.data_settings import Data
from fgnn.tasks.labelled_models import Examples
from fgnn.tasks.recipe import Recipe
from fgnn.tasks.seeds import seed_for
from fgnn.tasks.settings import Optimiser, Schedule

_LABEL_SECONDS = 10.0  # for each model whose optimum is not proved sooner


def folder_recipe(folder: str | Path) -> Recipe:
    """Return the recipe for a folder of model files."""
    return Recipe(
        name=as_file_name(Path(folder).resolve().name, "models"),
        data=Data(folder=str(folder), label_seconds=_LABEL_SECONDS),
        network=NetworkConfig(architecture="FGNN(64) - Res[FC(64) - FGNN(64) - FC(64)] - FGNN(N)", norm="layer"),
        optimiser=Optimiser(name="adamw", rate=2e-3, weight_decay=1e-4, clip=1.0),
        schedule=Schedule(name="cosine", warmup=20),
        batch=64,
        epochs=60,
        log_every=10,
        checkpoint_every=100,
    )


def model_files(folder: str | Path) -> list[Path]:
    """Return the model files of a folder, at least one."""
    paths = sorted(p for p in Path(folder).iterdir() if p.is_file() and not p.name.startswith("."))
    if not paths:
        raise InputError("Expected model files in this folder (got none)", file=folder)
    return paths


def read_folder(folder: str | Path, device: torch.device, seconds: float | None = None) -> list[Examples]:
    """Read all models of a folder, label them by `auto` and group them by structure.

    A label is the optimum or, where that is not proved within ``seconds``, the best assignment found. A model without a
    feasible one is refused.
    """
    import fgnn

    groups: dict[tuple[Any, ...], list[tuple[GraphicalModel, Path]]] = defaultdict(list)
    for path in model_files(folder):
        model = fgnn.read_model(path)
        key = (
            model.cardinalities.tobytes(),
            *(t.scopes.tobytes() for t in model.table_groups),
            *(u.scopes.tobytes() for u in model.budget_groups),
            *((f.kind, f.shape, f.scopes.tobytes()) for f in model.structured_groups),
        )
        groups[key].append((model, path))
    examples = []
    for members in groups.values():
        batch = ModelBatch.stack([m for m, _ in members], dtype=torch.float32)
        exact = ModelBatch.stack([m for m, _ in members])
        solved = fgnn.solve(exact, method="auto", time_limit=None if seconds is None else seconds * len(members))
        if not bool(solved.feasible.all()):
            at = int((~solved.feasible).nonzero()[0])
            raise InputError("Expected a model with a feasible assignment (found none)", file=members[at][1])
        examples.append(Examples(batch.to(device), solved.assignment.to(device)))
    return examples


def split(groups: Sequence[Examples], seed: int, share: float = 0.2) -> tuple[list[Examples], list[Examples]]:
    """Split into training and held-out examples; a structure with a single model is only trained on."""
    train, held_out = [], []
    for n, group in enumerate(groups):
        generator = torch.Generator().manual_seed(seed_for(seed, "split", n))
        order = torch.randperm(len(group), generator=generator).to(group.labels.device)
        count = round(share * len(group)) if len(group) > 1 else 0
        count = max(1, count) if len(group) >= 5 else count
        if count:
            held_out.append(group.select(order[:count]))
        train.append(group.select(order[count:]))
    return train, held_out or list(train)
