"""Factors of any kind in `ad3`: which it asks, their maxima, and their projections by best joint states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.ad3.layout import KindLayout, edge_width, fold
from fgnn.pgm import Kind, ModelBatch
from fgnn.pgm.lowering import Keep
from fgnn.runtime.jit import Background

_ROUNDS = 10  # joint states that may join a set in one iteration
_ROOM = 8  # joint states that a set has room for at first
_LOADING = 0.2  # of the time limit, to wait for compiled loops
_FOREVER = float("inf")


def asked(batch: ModelBatch, time_limit: float | None) -> Keep:
    """Which kinds stay: those that bound a number of ones or project themselves. The others become tables and counters.

    Projections by best joint states are loops on a CPU, which compile for seconds the first time.
    """
    by_best = batch.device.type == "cpu" and any(f.kind.has("best") and f.form == "other" for f in batch.structured)
    by_best = by_best and LOOPS.wait(_FOREVER if time_limit is None else _LOADING * time_limit)

    def keep(kind: Kind, shape: tuple[int, ...]) -> bool:
        counter = kind.counter(shape)
        bounds_ones = counter is not None and counter.bounds_ones
        return bounds_ones or (kind.has("best") and (by_best or kind.has("project")))

    return keep


@dataclass(frozen=True, eq=False)
class KindNumbers:
    """The log-potentials that factors select from, and the states that their variables may take."""

    theta: Tensor  # shape: (C, S, B), float64
    live: Tensor  # shape: (C, n, K, B), float64: 0, or -inf for forbidden states and those beyond a variable's own


@dataclass(eq=False)
class ActiveSets:
    """The joint states of which the projections are means, see `active_set`."""

    atoms: Tensor  # shape: (C, A, n, B), int32
    weight: Tensor  # shape: (C, A, B), float64
    theta: Tensor  # shape: (C, A, B), float64
    count: Tensor  # shape: (C, B), int64
    value: Tensor  # shape: (C, B), float64, θ of the projections

    @classmethod
    def of(cls, f: KindLayout, models: int, device: torch.device) -> ActiveSets:
        room = 0 if f.kind.has("project") else _ROOM

        def new(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(*shape, models, dtype=dtype, device=device)

        atoms = new(f.count, room, len(f.shape), dtype=torch.int32)
        count = new(f.count, dtype=torch.int64)
        return cls(atoms, new(f.count, room), new(f.count, room), count, new(f.count))

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What the compiled loops read and write."""
        return tuple(t.numpy() for t in (self.atoms, self.weight, self.theta, self.count))

    def make_room(self) -> None:
        """Double the room if a set is full."""
        if bool((self.count == self.atoms.shape[1]).any()):
            self.atoms, self.weight, self.theta = (
                torch.cat([t, torch.zeros_like(t)], 1) for t in (self.atoms, self.weight, self.theta)
            )


def kind_maxima(f: KindLayout, y: KindNumbers, multipliers: Tensor) -> Tensor:
    """The largest value of each factor over its allowed joint states, (C, B), with multipliers (edges, B) of it."""
    nu = y.live.clone()
    at = 0
    for a, k in enumerate(f.shape):
        width = edge_width(k)
        rows = fold(multipliers[at : at + width * f.count], f.count, width)
        nu[:, a, k - width : k] += rows
        at += width * f.count
    return best_values(f, y, nu)


def best_values(f: KindLayout, y: KindNumbers, nu: Tensor) -> Tensor:
    """The largest values (C, B) of the factors with ν (C, n, K, B) added."""
    columns = nu.movedim(3, 1).flatten(0, 1)  # shape: (C·B, n, K)
    return f.kind.best(f.shape, _by_column(y.theta), columns)[0].view(f.count, -1)


def project_kind(f: KindLayout, y: KindNumbers, z: Tensor, pushed: Tensor, sets: ActiveSets, out: Tensor) -> None:
    """Into ``out`` (edges, B): the projection of z; of z plus the push of fixed variables if it has a closed form."""
    if f.kind.has("project"):
        q = f.kind.project(y.theta.transpose(0, 1), fold(pushed, len(f.shape), f.count))
        out.copy_(q.flatten(0, 1))
        return
    from fgnn.infer.ad3.active_set import improve, join

    theta, shape = _by_column(y.theta), torch.tensor(f.shape).numpy()
    columns = torch.arange(sets.count.numel())
    target, live = z.double().contiguous(), y.live.contiguous().numpy()
    q = target.clone()
    for turn in range(_ROUNDS + 1):
        nu, threshold = theta.new_empty(len(columns), *live.shape[1:3]), theta.new_empty(len(columns))
        to = nu.numpy(), threshold.numpy(), sets.value.numpy()
        improve(columns.numpy(), shape, target.numpy(), q.numpy(), live, sets.arrays(), *to)
        if turn == _ROUNDS:
            break
        best, x = f.kind.best(f.shape, theta[columns], nu)
        sets.make_room()
        joined = torch.zeros(len(columns), dtype=torch.bool)
        found = x.numpy(), best.numpy(), nu.numpy(), threshold.numpy()
        join(columns.numpy(), *found, sets.arrays(), joined.numpy())
        columns = columns[joined]
        if not len(columns):
            break
    out.copy_(q)


def _by_column(theta: Tensor) -> Tensor:
    """(C, S, B) to (C·B, S)."""
    return theta.transpose(1, 2).flatten(0, 1)


def _warm_up() -> None:
    from fgnn.pgm.factors import AllDifferent, Pattern

    for kind in (AllDifferent(), Pattern(((0, 0),))):
        f = KindLayout(0, kind, (2, 2), torch.tensor([[0, 1]]), slice(0, 2))
        y = KindNumbers(torch.zeros(1, 2, 1, dtype=torch.float64), torch.zeros(1, 2, 2, 1, dtype=torch.float64))
        z = torch.zeros(2, 1)
        project_kind(f, y, z, z, ActiveSets.of(f, 1, z.device), torch.empty_like(z))


LOOPS = Background(_warm_up)
