"""Learned MAP as a task: exactly labelled models, drawn or read, and cross-entropy over their states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.data import ChainMAP, GridMAP
from fgnn.errors import InputError
from fgnn.infer.exact.max_marginals import gaps
from fgnn.models import Family, MAPNetwork
from fgnn.models.from_card import build_within
from fgnn.models.map.featurise import constant_groups
from fgnn.models.map.learned import score
from fgnn.pgm import ModelBatch
from fgnn.runtime.devices import memory_bytes
from fgnn.runtime.distributed import World
from fgnn.schema import plain
from fgnn.tasks.data_settings import Data
from fgnn.tasks.labelled_models import Endless, Examples, FixedSet, Grouped, Labelled, Source, draw
from fgnn.tasks.metrics import Quality
from fgnn.tasks.model_folder import read_folder, split
from fgnn.tasks.recipe import Recipe, Soft
from fgnn.tasks.seeds import seed_for
from fgnn.tasks.task import Loss
from fgnn.tasks.tensor_tree import tensors_of

_CHUNK = 4096  # instances drawn and labelled at once


class MAPTask:
    """Train a `MAPNetwork` on chains, grids or a folder of model files.

    Args:
        recipe: Names the data and the network.
        world: This process among those that train together.
        device: The device of data and network.
    """

    metric = chosen_by = "agreement"

    def __init__(self, recipe: Recipe, world: World | None = None, device: torch.device | str = "cpu") -> None:
        self.recipe, self.device = recipe, torch.device(device)
        world = world or World()
        self.held_out: list[Examples]
        if recipe.data.folder is not None:
            groups = read_folder(recipe.data.folder, self.device, recipe.data.label_seconds)
            train, self.held_out = split(groups, recipe.seed)
            self.source: Source = Grouped(train, recipe.batch, recipe.seed)
            family = union([Family.of(e.models) for e in train])
        else:
            sets = data_sets(recipe.data)
            self.held_out, self._sets = [], sets
            example = ModelBatch.concat([s.sample(8, seed=n, device=self.device) for n, s in enumerate(sets)])
            check_memory(recipe, example)
            fixed = () if recipe.network.architecture == "deep" else tuple(sorted(constant_groups(example)))
            self.source = make_source(recipe, sets, world, self.device)
            family = Family.of(example, fixed=fixed, any_size=recipe.network.architecture == "deep", name=recipe.name)
        self.epoch_steps = self.source.epoch_steps
        torch.manual_seed(seed_for(recipe.seed, "network") % (1 << 32))
        self.network: nn.Module = build_within(lambda: MAPNetwork(recipe.network, family))
        self.family = family

    def batch(self, step: int) -> Examples:
        return self.source.batch(step)

    def loss(self, network: nn.Module, batch: Examples) -> Loss:
        """Return the mean cross-entropy over all variables, with that of inner read-outs if there are any."""
        scores = network(batch.models)
        return map_loss(scores, batch.labels, self.recipe.network.supervise, gaps=batch.gaps, soft=self.recipe.soft)

    def validate(self, network: nn.Module) -> dict[str, float]:
        if not self.held_out:
            self.held_out = [draw_many(self._sets, self.recipe.validation, self.recipe.seed, "validation", self.device)]
        return validate(network, self.held_out)

    def card(self) -> dict[str, Any]:
        return {
            "task": "map",
            "network": plain(self.recipe.network),
            "family": plain(self.family),
            "data": plain(self.recipe.data),
        }


def check_memory(recipe: Recipe, example: ModelBatch) -> None:
    """Refuse instances that cannot fit: their numbers alone, of a batch or a fixed set, exceed the device's memory."""
    each = sum(t.numel() for t in tensors_of(example)) / len(example)
    counts = {"batch": recipe.batch, "data.instances": recipe.data.instances or 0, "validation": recipe.validation}
    place = max(counts, key=lambda name: counts[name])
    needed, memory = int(4 * each * counts[place]), memory_bytes(example.device)
    if needed > memory:
        raise InputError(
            f"Expected instances that fit into memory, {memory >> 20:,} MiB (got {counts[place]:,} that take "
            f"{needed >> 20:,} MiB)",
            place=place,
        )


def map_loss(
    scores: Tensor, labels: Tensor, supervise: float = 0.0, *, gaps: Tensor | None = None, soft: Soft | None = None
) -> Loss:
    """Return the cross-entropy of scores and their agreement with the labels.

    Args:
        scores: (B, N, K), or (R, B, N, K) for R read-outs, the last of which is the answer.
        labels: (B, N).
        supervise: Weight of the inner read-outs.
        gaps: (B, N), for ``soft``.
        soft: Use soft targets, made from labels and gaps.
    """
    final = scores if scores.dim() == 3 else scores[-1]
    target = labels if soft is None else soft_targets(labels, gaps, soft)
    loss = _cross_entropy(final, target)
    if scores.dim() == 4 and scores.shape[0] > 1 and supervise > 0:
        inner = torch.stack([_cross_entropy(s, target) for s in scores[:-1]]).mean()
        loss = loss + supervise * inner
    agreement = (final.detach().argmax(-1) == labels).float().mean()
    return Loss(loss, agreement)


def soft_targets(labels: Tensor, gaps: Tensor | None, soft: Soft) -> Tensor:
    """Return the target probabilities of `Soft`.  # shape: (B, N, 2)"""
    if gaps is None:
        raise ValueError("Expected gaps for soft targets (got none)")
    one = labels.float().lerp((gaps / soft.temperature).sigmoid(), soft.weight)
    return torch.stack([1 - one, one], -1)


def _cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy with labels (B, N) or probabilities (B, N, K)."""
    return nn.functional.cross_entropy(scores.flatten(0, 1).float(), target.flatten(0, 1))


@torch.no_grad()
def validate(network: nn.Module, held_out: Sequence[Examples]) -> dict[str, float]:
    """Return loss, agreement, optimality and feasibility of the raw answers, averaged over instances."""
    total: dict[str, float] = defaultdict(float)
    count = sum(len(e) for e in held_out)
    for examples in held_out:
        scores = score(network, examples.models)
        quality = Quality.of(examples.models, scores.argmax(2), examples.labels)
        share = len(examples) / count
        total["loss"] += share * float(_cross_entropy(scores, examples.labels))
        for name in ("agreement", "optimal", "feasible"):
            total[name] += share * getattr(quality, name)
    return dict(total)


def data_sets(data: Data) -> list[Labelled]:
    """Return the generators that a recipe names."""
    if data.chain is not None:
        c = data.chain
        return [ChainMAP(kind=k, length=c.length, window=c.window, budget=c.budget) for k in c.kinds]
    assert data.grid is not None
    g = data.grid
    return [GridMAP(height=g.height, width=g.width, patch=(g.patch[0], g.patch[1]))]


def draw_many(sets: Sequence[Labelled], count: int, seed: int, purpose: str, device: torch.device) -> Examples:
    """Draw a labelled set for one purpose, in chunks that bound the memory of labelling."""
    parts = []
    for n, at in enumerate(range(0, count, _CHUNK)):
        parts.append(draw(sets, min(_CHUNK, count - at), seed_for(seed, purpose, n), device))
    return Examples(ModelBatch.concat([p.models for p in parts]), torch.cat([p.labels for p in parts]))


def make_source(recipe: Recipe, sets: Sequence[Labelled], world: World, device: torch.device) -> Source:
    """Return endless data, or a fixed set if the recipe gives a number of instances."""
    if recipe.data.instances is None:
        return Endless(sets, recipe.batch, recipe.seed, world, device, recipe.soft is not None)
    examples = draw_many(sets, recipe.data.instances, recipe.seed, "fixed set", device)
    if recipe.soft is not None:
        examples = replace(examples, gaps=gaps(examples.models))
    return FixedSet(examples, recipe.batch, recipe.seed, world)


def union(families: Sequence[Family]) -> Family:
    """Return the smallest family that contains all of them."""
    first = families[0]
    if any(f.states != first.states for f in families):
        raise ValueError(
            f"Expected models of one family (got variables of {sorted({f.states for f in families})} states)"
        )
    return replace(
        first,
        tables=tuple(sorted({t for f in families for t in f.tables})),
        budgets=tuple(sorted({b for f in families for b in f.budgets})),
        finite=all(f.finite for f in families),
    )
