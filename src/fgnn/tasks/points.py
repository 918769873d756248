"""Point clouds as a task: parts of shapes, blocks of rooms, labelled scans."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fgnn.data.labelled import IGNORE, Classes, PointSet, concat_sets
from fgnn.data.scan_copies import scan_versions
from fgnn.data.shapenet import CATEGORIES, PARTS
from fgnn.errors import InputError
from fgnn.models import PointNetwork
from fgnn.models.from_card import build_within
from fgnn.points import confusion, scene_score, shape_score
from fgnn.runtime.distributed import World
from fgnn.runtime.progress import log_line
from fgnn.schema import plain
from fgnn.tasks.recipe import Recipe
from fgnn.tasks.scan_folder import scan_files
from fgnn.tasks.seeds import EpochBatches, seed_for
from fgnn.tasks.shapes import load_shapes, part_mask, part_names
from fgnn.tasks.task import Loss
from fgnn.tasks.variation import vary

# Share of the pieces of scans that training shows without intensity, and without returns.
_MISSING = 0.3


@dataclass(frozen=True, eq=False)
class Loaded:
    """Training and held-out clouds, and the meaning of their labels."""

    train: PointSet
    held_out: PointSet
    classes: tuple[str, ...]
    categories: tuple[str, ...]
    parts: tuple[tuple[int, ...], ...]
    inputs: str  # for the card: how clouds become features
    either: tuple[tuple[int, ...], ...] = ()  # label len(classes) + n: one of the classes either[n]


class PointTask:
    """Train a `PointNetwork` on clouds that fit on the device.

    The best weights are those of the highest mIoU: over shapes where there are categories, else pooled over all points.
    """

    metric = "accuracy"

    def __init__(
        self,
        recipe: Recipe,
        world: World | None = None,
        device: torch.device | str = "cpu",
        loaded: Loaded | None = None,
    ) -> None:
        self.recipe, self.device, self.world = recipe, torch.device(device), world or World()
        self.loaded = loaded or load(recipe)
        self.train = self.loaded.train.to(self.device)
        self.held_out = self.loaded.held_out
        if len(self.train) < recipe.batch:
            raise InputError(f"Expected at least {recipe.batch} clouds, one batch (got {len(self.train)})")
        self._allowed = allowed_classes(self.loaded).to(self.device) if self.loaded.either else None
        self._indices = EpochBatches(len(self.train), recipe.batch, recipe.seed, "epoch", self.world, self.device)
        self.epoch_steps: int | None = self._indices.steps
        self.chosen_by = "instance_miou" if self.loaded.categories else "miou"
        torch.manual_seed(seed_for(recipe.seed, "network") % (1 << 32))
        self.network: nn.Module = build_within(
            lambda: PointNetwork(
                recipe.points, int(self.train.features.shape[2]), len(self.loaded.classes), len(self.loaded.categories)
            )
        )

    def batch(self, step: int) -> PointSet:
        clouds = self.train.select(self._indices(step))
        return self._augmented(clouds, step) if self.recipe.augment else clouds

    def _augmented(self, clouds: PointSet, step: int) -> PointSet:
        """`vary` shapes and rooms, rooms without mirroring; rotate scans about the vertical and scale them."""
        generator = torch.Generator(self.device).manual_seed(
            seed_for(self.recipe.seed, "augment", step, self.world.rank)
        )
        random = torch.rand(len(clouds), 7, generator=generator, device=self.device)
        if self.recipe.data.rooms is not None:
            random[:, 6] = 1.0  # a room has a floor
        if self.recipe.data.scans is None:
            how = self.recipe.variation
            shape = (*clouds.features.shape[:2], 3)
            noise = torch.randn(shape, generator=generator, device=self.device) if how.jitter else None
            return PointSet(vary(clouds.features, random, how, noise), clouds.label, clouds.category)
        features = clouds.features.clone()
        angle = 2 * torch.pi * random[:, 6]
        c, s = angle.cos()[:, None], angle.sin()[:, None]
        x, y = features[..., 0].clone(), features[..., 1].clone()
        features[..., 0], features[..., 1] = c * x - s * y, s * x + c * y
        cut = self.recipe.data.scans.cut()
        if cut.echoes:  # some scans have no intensity, some no returns
            drop = torch.rand(len(clouds), 1, 2, generator=generator, device=self.device) < _MISSING
            first = cut.echo_columns.start
            for n, columns in enumerate(((first, first + 4), (first + 1, first + 2, first + 3, first + 5))):
                for column in columns:
                    features[..., column] *= ~drop[..., n]
        if not self.recipe.data.scans.heights:  # height features are in metres and would have to be scaled too
            features[..., :3] = features[..., :3] * (0.9 + 0.2 * random[:, None, :1])
        return PointSet(features, clouds.label, clouds.category)

    def loss(self, network: nn.Module, batch: PointSet) -> Loss:
        """Return the mean cross-entropy over labelled points, plus the network's own terms."""
        scores, penalty = network(batch.features, batch.category)
        target = batch.label.long()
        loss = (
            functional.cross_entropy(
                scores.flatten(0, 1).float(), target.flatten(), ignore_index=IGNORE,
                label_smoothing=self.recipe.label_smoothing,
            )
            if self._allowed is None
            else partial_loss(scores.float(), target, self._allowed)
        )  # fmt: skip
        labelled = (target != IGNORE) & (target < len(self.loaded.classes))
        correct = ((scores.detach().argmax(-1) == target) & labelled).sum() / labelled.sum().clamp(min=1)
        return Loss(loss + penalty, correct)

    def validate(self, network: nn.Module) -> dict[str, float]:
        half = self.recipe.precision == "bf16" and self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            return evaluate_points(network, self.held_out, self.loaded)

    def card(self) -> dict[str, Any]:
        return {
            "task": "points",
            "network": plain(self.recipe.points),
            "classes": list(self.loaded.classes),
            "categories": list(self.loaded.categories),
            "parts": [list(parts) for parts in self.loaded.parts],
            "features": int(self.train.features.shape[2]),
            "inputs": self.loaded.inputs,
            "data": plain(self.recipe.data),
        }


def allowed_classes(loaded: Loaded) -> torch.Tensor:
    """For each label 0 where a class is possible, -inf elsewhere; the last row, IGNORE's, allows all."""
    kinds = len(loaded.classes)
    table = torch.full((kinds + len(loaded.either) + 1, kinds), -torch.inf)
    table[torch.arange(kinds), torch.arange(kinds)] = 0.0
    for row, possible in enumerate(loaded.either, start=kinds):
        table[row, list(possible)] = 0.0
    table[-1] = 0.0
    return table


def partial_loss(scores: torch.Tensor, target: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    r"""Mean of :math:`-\log \sum_{y \in Y} p(y)` over labelled points, Y the classes that a label allows.

    Without doubt about any label it is the cross-entropy.
    """
    possible = allowed[target.clamp(min=-1)]  # IGNORE, -1, takes the last row
    each = scores.logsumexp(-1) - (scores + possible).logsumexp(-1)
    labelled = target != IGNORE
    return (each * labelled).sum() / labelled.sum().clamp(min=1)


@torch.no_grad()
def evaluate_points(network: nn.Module, clouds: PointSet, loaded: Loaded, batch: int = 32) -> dict[str, float]:
    """Return the scores on held-out clouds; those of shapes choose among the parts of the shape's category."""
    device = next(network.parameters()).device
    counts = np.zeros((len(loaded.classes), len(loaded.classes)), np.int64)
    results, total, labelled = [], 0.0, 0
    for at in range(0, len(clouds), batch):
        part = clouds.select(torch.arange(at, min(at + batch, len(clouds)), device=clouds.label.device)).to(device)
        scores = network(part.features, part.category)[0].float()
        target = part.label.long()
        target = torch.where(target < len(loaded.classes), target, IGNORE)
        if count := int((target != IGNORE).sum()):
            mean = functional.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=IGNORE)
            total += count * float(mean)
            labelled += count
        if loaded.categories:
            scores = scores + part_mask(loaded.parts, len(loaded.classes), device)[part.category][:, None]
        guess, truth = scores.argmax(2).cpu().numpy(), target.cpu().numpy()
        if loaded.categories:
            kinds = part.category.cpu().tolist()
            results += [(kind, t, g) for kind, t, g in zip(kinds, truth, guess, strict=True)]
        else:
            counts += confusion(truth, guess, len(loaded.classes))
    loss = total / max(1, labelled)
    if loaded.categories:
        shapes = shape_score(results, loaded.categories, loaded.parts)
        return {
            "loss": loss,
            "instance_miou": shapes.instance,
            "class_miou": shapes.class_average,
            "accuracy": shapes.accuracy,
            **{f"iou {k}": v for k, v in shapes.category.items()},
        }
    scene = scene_score(counts)
    ious = {f"iou {name}": float(v) for name, v in zip(loaded.classes, scene.iou, strict=True)}
    return {"loss": loss, "miou": scene.mean_iou, "accuracy": scene.accuracy, **ious}


def load(recipe: Recipe) -> Loaded:
    """Load the clouds that a recipe names."""
    data = recipe.data
    if data.shapes is not None:
        train, held = load_shapes(data.shapes.root, data.shapes.splits, data.shapes.held_out, data.shapes.points)
        return Loaded(train, held, part_names(), CATEGORIES, PARTS, "shape: unit sphere")
    if data.rooms is not None:
        from fgnn.data import load_blocks
        from fgnn.data.s3dis import CLASSES

        blocks = load_blocks(data.rooms.root)
        folds = [blocks.fold(data.rooms.area, train=t) for t in (True, False)]
        train, held = (PointSet.of(blocks.features[fold], blocks.label[fold]) for fold in folds)
        return Loaded(train, held, CLASSES, (), (), "room: nine columns")
    if data.scans is not None:
        return load_scans(recipe)
    raise InputError("Expected data.shapes, data.rooms or data.scans for a point network")


def load_scans(recipe: Recipe) -> Loaded:
    """Load a folder of labelled scans; whole files are held out."""
    data = recipe.data.scans
    assert data is not None
    folder = Path(data.root)
    if not folder.is_dir():
        raise InputError("no such folder", file=folder)
    classes = Classes.read(folder / data.classes)
    files = scan_files(folder, data.classes)
    held_out = set(data.held_out) or {files[-1].name}
    unknown = held_out - {p.name for p in files}
    if unknown:
        raise InputError(f"Expected held_out to name files of the folder (got {sorted(unknown)[0]!r})", file=folder)
    training = [p for p in files if p.name not in held_out]
    if not training:
        raise InputError("Expected a scan to train on besides those held out", file=folder)
    cut, seed = data.cut(), recipe.seed
    held = [p for p in files if p.name in held_out]
    train = concat_sets(scan_versions(training, classes, data.field, cut, data.copies, data.stray, seed, data.sparsest))
    test = concat_sets(scan_versions(held, classes, data.field, cut, seed=seed))
    if not len(train) or not len(test):
        raise InputError(
            f"Expected labelled points to train on and to hold out in field {data.field!r}; {data.classes} maps values "
            "to classes, as 'ground: 2'",
            file=folder,
        )
    present = set(np.unique(train.label.numpy()).tolist())
    possible = present | {
        k for n, kinds in enumerate(classes.either, len(classes.names)) if n in present for k in kinds
    }
    for number, name in enumerate(classes.names):
        if number not in possible:
            log_line(f"no points of class {name!r} to train on: the network will never find it")
    return Loaded(train, test, classes.names, (), (), "scan: tile", classes.either)
