"""The paper's network on chains with the choices of its authors' code, each of which can be switched on by itself.

The authors' code differs from the text in more than the window. On Dataset1 it has no factors at all: a message-passing
network joins every variable to its neighbours. On Dataset3 both halves of a layer read the old features, edges of a
window carry no position, the chain is closed to a ring, and the layers between the blocks normalise each instance by
itself. `tools.paper_differences` measures what each of these is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fgnn.graph import EdgeTypes, FactorGraph, FactorGroup, Incidence
from fgnn.models.map.network import PAPER
from fgnn.nn import FC, MPNNLayer, Network, build
from fgnn.nn.norm import NodeBatchNorm
from fgnn.pgm import ModelBatch


@dataclass(frozen=True)
class Choices:
    """What the authors' code does on Dataset3 and ours does not.

    Args:
        parallel: Both halves of a layer read the old features, and the first layer is fully connected.
        no_positions: Edges of a window are all alike; with a maximum a factor cannot tell its variables apart.
        ring: The last variable and the first are neighbours, and windows run over the ends, without a limit.
        instance_norm: Layers between the blocks normalise each instance by itself.
        soft_maximum: Aggregate by logsumexp(3 x) / 3.
    """

    parallel: bool = False
    no_positions: bool = False
    ring: bool = False
    instance_norm: bool = False
    soft_maximum: bool = False


class FactorNetwork(nn.Module):
    """The paper's architecture on chains of kind 2 or 3, with some choices of the authors' code.

    Shapes:
        A `ModelBatch` of chains to scores (B, N, 2).
    """

    levels: Tensor

    def __init__(self, length: int, window: int, choices: Choices, device: torch.device) -> None:
        super().__init__()
        self.window, self.choices = window, choices
        self.register_buffer("levels", torch.arange(window + 1), persistent=False)
        at = torch.arange(length)
        starts = at if choices.ring else at[: length - window + 1]
        pairs = at if choices.ring else at[:-1]
        shift = -(window // 2) if choices.ring else 0  # the authors' windows are centred at their variable
        groups = {
            "pair": FactorGroup(torch.stack([pairs, (pairs + 1) % length], 1)),
            "window": FactorGroup((starts[:, None] + torch.arange(window) + shift) % length),
        }
        self.graph = FactorGraph(length, groups).to(device).prepare()
        self.edges = {name: self.graph.incidence(name).positions for name in groups}
        if choices.no_positions:
            self.edges["window"] = EdgeTypes(torch.zeros_like(self.edges["window"].index), 1).prepare()
        notation = PAPER.replace("FGNN(64)", "FC(64)", 1) if choices.parallel else PAPER
        self.body = build(
            notation,
            variable_in=2,
            factor_in={"pair": 4, "window": window + 1},
            edge_in={name: types.num_types for name, types in self.edges.items()},
            num_classes=2,
            q="table",
            aggregate="softmax(3)" if choices.soft_maximum else "max",
            schedule="parallel" if choices.parallel else "sequential",
            norm="batch",
        )
        if choices.instance_norm:
            normalise_instances(self.body)

    def forward(self, batch: ModelBatch) -> Tensor:
        dtype = next(self.parameters()).dtype
        tables = batch.tables[0].values.flatten(2).to(dtype)
        at_most = batch.budgets[0].at_most.expand(len(batch), -1)
        limits = (at_most[..., None] == self.levels).to(dtype)  # one-hot; `one_hot` would wait for the GPU
        if self.choices.ring:
            # the authors' feature of a window without a limit, which a limit of w - 1 shares
            free = (self.levels == self.window - 1).to(dtype)
            before, count = self.window // 2, self.graph.groups["window"].num_factors
            after = count - before - limits.shape[1]
            tables = torch.cat([tables, tables.new_zeros(len(tables), 1, 4)], 1)
            limits = torch.cat([free.expand(len(batch), before, -1), limits, free.expand(len(batch), after, -1)], 1)
        features = {"pair": tables, "window": limits}
        scores: Tensor = self.body(self.graph, batch.unary.to(dtype), features, self.edges)
        return scores.float()


class InstanceNorm(nn.Module):
    """Subtract the mean over the nodes of an instance and divide by their standard deviation, feature by feature."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise.  # shape: (B, N, d), kept"""
        y = x.float()
        y = y - y.mean(-2, keepdim=True)
        y = y * torch.rsqrt(y.square().mean(-2, keepdim=True) + 1e-5)
        return y.to(x.dtype)


def normalise_instances(network: Network) -> None:
    """Replace batch norm by instance norm in the fully connected layers between the blocks."""
    for layer in network.layers:
        if isinstance(layer, FC):
            for dense in (layer.variable, *layer.factor.values()):
                for name, part in dense.named_children():
                    if isinstance(part, NodeBatchNorm):
                        setattr(dense, name, InstanceNorm())


class NeighbourNetwork(nn.Module):
    """The network of the authors' code on Dataset1: message passing between neighbours on the chain, without factors.

    A variable reads ``neighbours // 2`` variables before it, one fewer after it, and the first variable of the chain.

    Shapes:
        A `ModelBatch` of chains to scores (B, N, 2).
    """

    def __init__(self, length: int, neighbours: int, device: torch.device) -> None:
        super().__init__()
        half = neighbours // 2
        offsets = [*range(-half, 0), *range(1, half)]
        lists = torch.zeros(length, neighbours, dtype=torch.int64)
        distance = torch.zeros_like(lists)
        for i in range(length):
            for place, offset in enumerate(offsets):
                lists[i, place] = min(max(i + offset, 0), length - 1)
                distance[i, place] = i - lists[i, place]
        self.lists = Incidence.of(FactorGroup(lists.to(device)), length).prepare()
        self.types = EdgeTypes(distance.to(device).flatten() + half, 2 * half + 1).prepare()
        self.first = _layer(2, 2 * half + 1)
        widths = [64, 128, 256, 128, 64]
        self.blocks = nn.ModuleList(_Block(width, 2 * half + 1) for width in widths)
        self.between = nn.ModuleList(_dense(a, b) for a, b in pairwise(widths))
        self.last = nn.Linear(64, 2)

    def forward(self, batch: ModelBatch) -> Tensor:
        f = self.first(self.lists, batch.unary.to(self.last.weight.dtype), self.types)
        for k, block in enumerate(self.blocks):
            f = block(self.lists, f, self.types)
            f = self.between[k](f) if k < len(self.between) else f
        scores: Tensor = self.last(f)
        return scores.float()


class _Block(nn.Module):
    """Res[FC(64) - layer(64) - FC(width)]."""

    def __init__(self, width: int, types: int) -> None:
        super().__init__()
        self.narrow, self.layer, self.widen = _dense(width, 64), _layer(64, types), _dense(64, width)

    def forward(self, lists: Incidence, f: Tensor, types: EdgeTypes) -> Tensor:
        change: Tensor = self.widen(self.layer(lists, self.narrow(f), types))
        return f + change


def _layer(width: int, types: int) -> MPNNLayer:
    return MPNNLayer(
        width, types, 64, q="table", bias=True, norm="batch", activation="relu", message_activation="identity"
    )


def _dense(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, out), NodeBatchNorm(out), nn.ReLU())
