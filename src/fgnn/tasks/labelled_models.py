"""Where labelled models come from: endless, a fixed seeded set, or a folder of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fgnn.infer.exact.max_marginals import Band, gaps
from fgnn.pgm import ModelBatch
from fgnn.runtime.distributed import World
from fgnn.tasks.seeds import seed_for
from fgnn.tasks.tensor_tree import tensors_of

# Instances drawn and labelled at once on a GPU.
_AT_ONCE = 1 << 16


class Labelled(Protocol):
    """A data set that is sampled and exactly labelled on a device, as `fgnn.data.ChainMAP` is."""

    def sample(self, count: int, seed: int = 0, device: torch.device | str = "cpu") -> ModelBatch: ...

    def labels(self, batch: ModelBatch) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Examples:
    """Models, their exact MAP assignments and, where they are asked for, by how much one beats zero."""

    models: ModelBatch
    labels: Tensor  # shape: (B, N)
    gaps: Tensor | None = None  # shape: (B, N)

    def select(self, which: slice | Tensor) -> Examples:
        apart = None if self.gaps is None else self.gaps[which]
        return Examples(self.models.select(which), self.labels[which], apart)

    def __len__(self) -> int:
        return len(self.models)


class Source(Protocol):
    """Training batches by step."""

    epoch_steps: int | None

    def batch(self, step: int) -> Examples: ...


def draw(
    sets: Sequence[Labelled],
    count: int,
    seed: int,
    device: torch.device,
    share: World | None = None,
) -> Examples:
    """``count`` fresh instances, evenly from all sets (of one structure); with ``share`` only that process's part.

    Sampling is cheap, labelling is not: all processes draw the same batch, and each labels its own share of it.
    """
    parts, labels = [], []
    for n, data in enumerate(sets):
        size = count // len(sets) + (n < count % len(sets))
        models = data.sample(size, seed=seed_for(seed, "set", n), device=device)
        if share is not None and share.size > 1:
            models = models.select(share.share(size))
        parts.append(models)
        labels.append(data.labels(models))
    return Examples(ModelBatch.concat(parts), torch.cat(labels))


class Endless:
    """Fresh instances at every step, drawn and labelled on the device.

    Args:
        sets: The data sets, mixed evenly; all of one structure.
        batch: Instances of a step, over all processes.
        seed: The run's.
        with_gaps: Whether examples have their gaps.
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

        # A GPU labels many batches in the time of one. Several processes draw batch by batch: each has to hold its
        # share of every batch.
        ahead = device.type == "cuda" and world.size == 1
        self._together = max(1, _AT_ONCE // batch) if ahead else 1
        self._drawn: tuple[int, Examples] | None = None
        self._next: tuple[int, Examples, torch.cuda.Event] | None = None
        self._side = torch.cuda.Stream(device, priority=-1) if ahead else None  # type: ignore[no-untyped-call]

    def batch(self, step: int) -> Examples:
        block, place = divmod(step, self._together)
        if self._drawn is None or self._drawn[0] != block:
            self._drawn = (block, self._take(block))
        elif place == 1 and self._side is not None:
            self._draw_ahead(block + 1)
        drawn = self._drawn[1]
        if self._together == 1:
            return drawn
        # every so-manieth instance, so that a batch has its share of each kind
        return drawn.select(torch.arange(place, len(drawn), self._together, device=self.device))

    def _draw(self, block: int) -> Examples:
        seed = seed_for(self.seed, "train", block)
        found = draw(self.sets, self._together * self.size, seed, self.device, self.world)
        if self._with_gaps and self._band is None:
            self._band = Band.of(found.models)  # once: the host would wait for the labels
        apart = gaps(found.models, self._band) if self._with_gaps else None
        return Examples(found.models, found.labels, apart)

    def _take(self, block: int) -> Examples:
        """A block that was drawn ahead, once it is there; else a new one."""
        ready, self._next = self._next, None
        if ready is None or ready[0] != block:
            return self._draw(block)
        here = torch.cuda.current_stream(self.device)
        here.wait_event(ready[2])
        for tensor in tensors_of(ready[1]):
            tensor.record_stream(
                here
            )  # its memory is the other stream's, and is not to be used again before this one's
        return ready[1]

    def _draw_ahead(self, block: int) -> None:
        """Draw and label the next block beside the training steps that the device has still to do."""
        assert self._side is not None
        with torch.cuda.stream(self._side):
            made = self._draw(block)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._side)
        self._next = (block, made, done)


class FixedSet:
    """A set of instances gone through in a new order every epoch; what does not fill a batch waits for the next.

    Args:
        examples: The set, the same in every process.
        batch: Instances of a step, over all processes.
        seed: The run's.
    """

    def __init__(self, examples: Examples, batch: int, seed: int, world: World) -> None:
        if len(examples) < batch:
            raise ValueError(f"Expected at least a batch of {batch} instances (got {len(examples)})")
        self.examples, self.size, self.seed, self.world = examples, batch, seed, world
        self.epoch_steps: int | None = len(examples) // batch
        self._order: tuple[int, Tensor] | None = None
        world.share(batch)  # a batch that cannot be shared out evenly is refused here

    def batch(self, step: int) -> Examples:
        assert self.epoch_steps is not None
        epoch, at = divmod(step, self.epoch_steps)
        if self._order is None or self._order[0] != epoch:
            generator = torch.Generator().manual_seed(seed_for(self.seed, "order", epoch))
            order = torch.randperm(len(self.examples), generator=generator)
            self._order = (epoch, order.to(self.examples.labels.device))
        which = self._order[1][at * self.size : (at + 1) * self.size]
        return self.examples.select(which[self.world.share(self.size)])


class Grouped:
    """Several fixed sets of different structures: every step takes a batch of one of them, by its share of the whole.

    Args:
        sets: The examples of each structure.
        batch: Instances of a step; a structure with fewer gives all it has.
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
        assert self.epoch_steps is not None
        epoch, at = divmod(step, self.epoch_steps)
        if self._order is None or self._order[0] != epoch:
            generator = torch.Generator().manual_seed(seed_for(self.seed, "turns", epoch))
            order = [self._turns[i] for i in torch.randperm(len(self._turns), generator=generator).tolist()]
            seen = [0] * len(self.sources)
            turns = []
            for n in order:
                turns.append((n, epoch * (self.sources[n].epoch_steps or 1) + seen[n]))
                seen[n] += 1
            self._order = (epoch, turns)
        group, inner = self._order[1][at]
        return self.sources[group].batch(inner)
