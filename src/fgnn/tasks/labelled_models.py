"""Labelled models to train on: endless, a fixed seeded set, or several sets of different structures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fgnn.infer.exact.max_marginals import Band, gaps
from fgnn.pgm import ModelBatch
from fgnn.runtime.distributed import World
from fgnn.tasks.seeds import EpochBatches, epoch_order, seed_for
from fgnn.tasks.tensor_tree import tensors_of

_AT_ONCE = 1 << 16  # instances drawn and labelled together on a GPU


class Labelled(Protocol):
    """A data set that samples models and labels them exactly on a device, such as `fgnn.data.ChainMAP`."""

    def sample(self, count: int, seed: int = 0, device: torch.device | str = "cpu") -> ModelBatch: ...

    def labels(self, batch: ModelBatch) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Examples:
    """Models, their exact MAP assignments and, for soft targets, the score gaps between states one and zero."""

    models: ModelBatch
    labels: Tensor  # shape: (B, N)
    gaps: Tensor | None = None  # shape: (B, N)

    def select(self, which: slice | Tensor) -> Examples:
        gaps = None if self.gaps is None else self.gaps[which]
        return Examples(self.models.select(which), self.labels[which], gaps)

    def __len__(self) -> int:
        return len(self.models)


class Source(Protocol):
    """Training batches by step."""

    epoch_steps: int | None

    def batch(self, step: int) -> Examples: ...


def draw(sets: Sequence[Labelled], count: int, seed: int, device: torch.device, world: World | None = None) -> Examples:
    """Draw ``count`` fresh instances, evenly from all sets; with ``world`` only this process's share.

    Sampling is cheap, labelling is not: all processes sample the same batch, and each labels its own share.
    """
    parts, labels = [], []
    for n, data in enumerate(sets):
        size = count // len(sets) + (n < count % len(sets))
        models = data.sample(size, seed=seed_for(seed, "set", n), device=device)
        if world is not None and world.size > 1:
            models = models.select(world.share(size))
        parts.append(models)
        labels.append(data.labels(models))
    return Examples(ModelBatch.concat(parts), torch.cat(labels))


class Endless:
    """Fresh instances at every step, sampled and labelled on the device.

    Args:
        sets: The data sets, mixed evenly; all of one structure.
        batch: Instances of a step, over all processes.
        seed: The seed of the run.
        with_gaps: Compute the gaps for soft targets.
    """

    epoch_steps: int | None = None

    def __init__(
        self,
        sets: Sequence[Labelled],
        batch: int,
        seed: int,
        world: World,
        device: torch.device,
        with_gaps: bool = False,
    ) -> None:
        self.sets, self.size, self.seed, self.world, self.device = sets, batch, seed, world, device
        self._with_gaps = with_gaps
        self._band: Band | None = None
        if batch % (len(sets) * world.size):
            raise ValueError(
                f"Expected a batch divisible by the {len(sets)} kinds and {world.size} processes (got {batch})"
            )

        # A GPU labels many batches in the time of one. Several processes draw batch by batch, since each needs its
        # share of every batch.
        ahead = device.type == "cuda" and world.size == 1
        self._together = max(1, _AT_ONCE // batch) if ahead else 1
        self._drawn: tuple[int, Examples] | None = None
        self._next: tuple[int, Examples, torch.cuda.Event] | None = None
        self._side = torch.cuda.Stream(device, priority=-1) if ahead else None

    def batch(self, step: int) -> Examples:
        block, place = divmod(step, self._together)
        if self._drawn is None or self._drawn[0] != block:
            self._drawn = (block, self._take(block))
        elif place == 1 and self._side is not None:
            self._draw_ahead(block + 1)
        drawn = self._drawn[1]
        if self._together == 1:
            return drawn
        # every k-th instance, so that a batch has its share of each kind
        return drawn.select(torch.arange(place, len(drawn), self._together, device=self.device))

    def _draw(self, block: int) -> Examples:
        seed = seed_for(self.seed, "train", block)
        examples = draw(self.sets, self._together * self.size, seed, self.device, self.world)
        if not self._with_gaps:
            return examples
        if self._band is None:
            self._band = Band.of(examples.models)  # only once, since it synchronises with the device
        return replace(examples, gaps=gaps(examples.models, self._band))

    def _take(self, block: int) -> Examples:
        """Return the block that was drawn ahead, once it is ready; else draw it."""
        ready, self._next = self._next, None
        if ready is None or ready[0] != block:
            return self._draw(block)
        current = torch.cuda.current_stream(self.device)
        current.wait_event(ready[2])
        for tensor in tensors_of(ready[1]):
            tensor.record_stream(current)  # the side stream must not reuse its memory before this stream is done
        return ready[1]

    def _draw_ahead(self, block: int) -> None:
        """Draw and label the next block on a side stream, beside the queued training steps."""
        assert self._side is not None
        with torch.cuda.stream(self._side):
            examples = self._draw(block)
            done = torch.cuda.Event()
            done.record(self._side)
        self._next = (block, examples, done)


class FixedSet:
    """A set of instances, visited in a new order every epoch.

    Args:
        examples: The set, the same in every process.
        batch: Instances of a step, over all processes.
        seed: The seed of the run.
    """

    def __init__(self, examples: Examples, batch: int, seed: int, world: World) -> None:
        if len(examples) < batch:
            raise ValueError(f"Expected at least a batch of {batch} instances (got {len(examples)})")
        self.examples = examples
        self._indices = EpochBatches(len(examples), batch, seed, "order", world, examples.labels.device)
        self.epoch_steps: int | None = self._indices.steps

    def batch(self, step: int) -> Examples:
        return self.examples.select(self._indices(step))


class Grouped:
    """Fixed sets of different structures: each step takes a batch of one set, in proportion to their sizes.

    Args:
        sets: The examples of each structure.
        batch: Instances of a step; a smaller set gives all it has.
        seed: The seed of the run.
    """

    def __init__(self, sets: Sequence[Examples], batch: int, seed: int) -> None:
        self.sources = [
            FixedSet(s, min(batch, len(s)), seed_for(seed, "group", n), World()) for n, s in enumerate(sets)
        ]
        self.seed = seed
        self._turns = [n for n, s in enumerate(self.sources) for _ in range(s.epoch_steps or 1)]
        self.epoch_steps: int | None = len(self._turns)
        self._order: tuple[int, list[tuple[int, int]]] | None = None

    def batch(self, step: int) -> Examples:
        epoch, place = divmod(step, len(self._turns))
        if self._order is None or self._order[0] != epoch:
            next_step = [epoch * (source.epoch_steps or 1) for source in self.sources]
            turns = []
            for i in epoch_order(len(self._turns), self.seed, "turns", epoch).tolist():
                group = self._turns[i]
                turns.append((group, next_step[group]))
                next_step[group] += 1
            self._order = (epoch, turns)
        group, inner = self._order[1][place]
        return self.sources[group].batch(inner)
