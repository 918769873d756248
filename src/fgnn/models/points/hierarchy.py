"""A hierarchical point FGNN: FGNN layers on ever fewer points, and a decoder that interpolates back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fgnn.models.points.blocks import Dense, take, tile
from fgnn.models.points.fgnn import neighbours, one_hot
from fgnn.models.points.hierarchy_blocks import EPS, Block, Down, Level, Mixing, Up, interpolation
from fgnn.points.sampling import farthest_points


@dataclass(frozen=True)
class Stages:
    """The sizes of a hierarchy, from the finest stage to the coarsest.

    Args:
        samples: Points of every stage but the first, which has all points.
        widths: Length of a point's features.
        inner: Length inside the FGNN layers.
        depths: Blocks.
    """

    samples: tuple[int, ...] = (512, 192, 64)
    widths: tuple[int, ...] = (96, 192, 320, 512)
    inner: tuple[int, ...] = (32, 64, 128, 128)
    depths: tuple[int, ...] = (1, 2, 2, 1)

    def __post_init__(self) -> None:
        if not len(self.widths) == len(self.inner) == len(self.depths) == len(self.samples) + 1:
            raise ValueError(
                f"Expected widths, inner and depths for each of the {len(self.samples) + 1} stages "
                f"(got {len(self.widths)}, {len(self.inner)} and {len(self.depths)})"
            )
        if list(self.samples) != sorted(self.samples, reverse=True):
            raise ValueError(f"Expected samples from many points to few (got {list(self.samples)})")


class HierarchicalFGNN(nn.Module):
    r"""Scores for every point, from FGNN layers on ever fewer points.

    A stage has a factor for each of its points, over the point and its k nearest neighbours, with edge features
    :math:`t_{ci} = (x_c - x_i) / u`, u the stage's unit of length. Stages are joined by the factor graph too: the
    factors of points chosen by farthest point sampling become the points of the next stage. The decoder interpolates
    from three points, and joins the category and the pooled features of the coarsest stage.

    Args:
        inputs: Features of a point, of which the first three are its coordinates.
        classes: Number of classes.
        categories: Object categories, given with each cloud; 0 for none.
        stages: Points, widths and depths.
        k: Neighbours of a point, excluding itself. A factor of 16 or 32 points is the fastest.
        bases: Bases of Q.
        reach: Unit of length of the first stage; a stage with a quarter of the points has twice that.
        head: Length of a point's features in the decoder.
        drop_path: Rate at which the last block is dropped in training; it rises linearly from the first.
        dropout: Rate before the scores.

    Shapes:
        (B, P, inputs), and category (B,) where there are any, to (B, P, classes); P at least ``stages.samples[0]``.
    """

    def __init__(
        self,
        inputs: int = 3,
        classes: int = 50,
        categories: int = 16,
        stages: Stages = Stages(),
        *,
        k: int = 15,
        bases: int = 8,
        reach: float = 0.05,
        head: int = 192,
        drop_path: float = 0.1,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        if inputs < 3:
            raise ValueError(f"Expected three coordinates or more (got {inputs} columns)")
        if not reach > 0:
            raise ValueError(f"Expected reach > 0 (got {reach})")
        if stages.samples and stages.samples[-1] <= k:
            raise ValueError(f"Expected more than {k} points in the last stage (got {stages.samples[-1]})")
        self.inputs, self.categories, self.stages, self.k, self.reach = inputs, categories, stages, k, reach
        widths, inner = stages.widths, stages.inner
        self.embed = nn.ModuleList([Mixing(inputs + categories, inner[0], bases), Dense(inner[0], widths[0], eps=EPS)])
        rates = iter(torch.linspace(0, drop_path, max(1, sum(stages.depths))).tolist())
        self.blocks = nn.ModuleList(
            nn.ModuleList(Block(width, b, bases, next(rates)) for _ in range(depth))
            for width, b, depth in zip(widths, inner, stages.depths, strict=True)
        )
        self.downs = nn.ModuleList(
            Down(a, b, out, bases) for (a, out), b in zip(pairwise(widths), inner[1:], strict=True)
        )
        self.top = Dense(widths[-1], head, eps=EPS)
        self.ups = nn.ModuleList(Up(width, head, pointwise=s > 0) for s, width in enumerate(widths[:-1]))
        self.whole = Dense(2 * widths[-1], head, eps=EPS)
        self.kind = nn.Linear(head + categories, head)
        self.head = nn.Sequential(Dense(head, head, eps=EPS), nn.Dropout(dropout), nn.Linear(head, classes))

    @property
    def notation(self) -> str:
        """The encoder in the paper's notation, where Down(n) continues on n sampled points."""
        widths, inner = self.stages.widths, self.stages.inner
        parts = [f"FGNN({inner[0]}) - FC({widths[0]})"]
        for s, blocks in enumerate(self.blocks):
            if s:
                parts.append(f"Down({self.stages.samples[s - 1]}) - FC({widths[s]})")
            assert isinstance(blocks, nn.ModuleList)
            parts += [str(block.notation) for block in blocks]
        return " - ".join(parts)

    def forward(self, x: Tensor, category: Tensor | None = None) -> Tensor:
        self._check(x, category)
        points, samples = x.shape[1], self.stages.samples
        kinds = None if category is None else one_hot(category, self.categories, x.dtype)
        chosen = self._sample(x[..., :3]) if samples else None
        level = self._level(x[..., :3], points)
        f = x if kinds is None or not self.categories else torch.cat([x, tile(kinds, points)], 2)
        f = self.embed[1](self.embed[0](f, level))
        skips: list[tuple[Tensor, Tensor]] = []
        for s, blocks in enumerate(self.blocks):
            for block in blocks.children():
                f = block(f, level)
            if s < len(samples):
                assert chosen is not None
                skips.append((f, level.xyz))
                f = self.downs[s](f, level, chosen[:, : samples[s]])
                xyz = take(level.xyz, chosen[:, : samples[s], None])[:, :, 0]
                level = self._level(xyz, points)
                chosen = torch.arange(samples[s], device=x.device).expand(x.shape[0], -1)  # prefixes are samples
        whole = self.whole(torch.cat([f.amax(1), f.mean(1)], 1))
        more = self.kind(whole if kinds is None or not self.categories else torch.cat([whole, kinds.to(whole)], 1))
        return self._decode(self.top(f), level.xyz, skips, more)

    def _decode(self, y: Tensor, xyz: Tensor, skips: Sequence[tuple[Tensor, Tensor]], more: Tensor) -> Tensor:
        """Scores from the coarsest stage, the features and places of the finer ones, and what is known of the whole."""
        for s in reversed(range(len(skips))):
            f, finer = skips[s]
            y = self.ups[s](y, f, interpolation(finer, xyz, y.dtype), more if s == 0 else None)
            xyz = finer
        if not skips:
            y = y + more[:, None]
        scores: Tensor = self.head(y)
        return scores

    def _sample(self, xyz: Tensor) -> Tensor:
        """The points of all coarser stages; in training from a random first point, which varies the stages."""
        start = torch.randint(xyz.shape[1], (xyz.shape[0],), device=xyz.device) if self.training else None
        return farthest_points(xyz, self.stages.samples[0], start)

    def _level(self, xyz: Tensor, points: int) -> Level:
        xyz = xyz.float()
        return Level(xyz, neighbours(xyz, self.k), self.reach * math.sqrt(points / xyz.shape[1]))

    def _check(self, x: Tensor, category: Tensor | None) -> None:
        if x.dim() != 3 or x.shape[2] != self.inputs:
            raise ValueError(f"Expected points of shape (B, P, {self.inputs}) (got {tuple(x.shape)})")
        if self.categories and category is None:
            raise ValueError(f"Expected a category below {self.categories} for each cloud (got none)")
        if self.stages.samples and x.shape[1] < self.stages.samples[0]:
            raise ValueError(f"Expected at least {self.stages.samples[0]} points in a cloud (got {x.shape[1]})")
