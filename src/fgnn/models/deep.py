"""A deep FGNN: many residual blocks of sum aggregation, made to be trained fast in bf16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fgnn.graph import FactorGraph


@dataclass(frozen=True, eq=False)
class Wiring:
    """One group's edges: slot s = c·A + a joins factor c to the variable at place a of its scope."""

    kind: str  # which parameters: the group's name, less the size where any size shares them
    arity: int
    factors: int
    scopes: Tensor  # shape: (C·A,), the variable of each slot
    slots: Tensor  # shape: (N, D), the slots of each variable, padded with 0
    real: Tensor  # shape: (N, D, 1), 0 where padded
    places: Tensor  # shape: (A, PLACE), features of the places in a scope


PLACE = 6


def wire(graph: FactorGraph, name: str, budget: bool) -> Wiring:
    """Index tensors of a group of one arity; budgets of any size share parameters, tables those of their shape."""
    scopes = graph.groups[name].scopes
    if graph.groups[name].arity is None:
        raise ValueError(f"Expected factors of one arity in group {name!r} (got a ragged group)")
    count, arity = scopes.shape
    flat, n, device = scopes.reshape(-1), graph.num_variables, scopes.device
    order = torch.argsort(flat, stable=True)
    degree = torch.bincount(flat, minlength=n)
    width = int(degree.max()) if flat.numel() else 0
    within = torch.arange(flat.numel(), device=device) - (degree.cumsum(0) - degree)[flat[order]]
    slots = torch.zeros(n, width, dtype=torch.int64, device=device)
    real = torch.zeros(n, width, 1, device=device)
    slots[flat[order], within] = order
    real[flat[order], within] = 1.0
    return Wiring("budget" if budget else name, arity, count, flat, slots, real, place_features(arity, device))


def place_features(arity: int, device: torch.device) -> Tensor:
    """Features t of the places 0..A-1: smooth in place and size, so that other sizes than those seen make sense."""
    a = torch.arange(arity, dtype=torch.float32, device=device)
    last = max(1, arity - 1)
    size = torch.full_like(a, arity / 8)
    return torch.stack([torch.ones_like(a), a / last, a / 8, (last - a) / 8, (2 * a / last - 1) ** 2, size], 1)


class _Collect(torch.autograd.Function):
    """Features of each slot's variable, (B, N, d) to (B, S, d); the adjoint of `_Spread`, so neither needs atomics."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, scopes: Tensor, slots: Tensor, real: Tensor) -> Tensor:
        ctx.save_for_backward(scopes, slots, real)
        return f.index_select(1, scopes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        scopes, slots, real = ctx.saved_tensors
        return _sum_slots(grad, scopes, slots, real), None, None, None


class _Spread(torch.autograd.Function):
    """The sum over each variable's slots, (B, S, d) to (B, N, d)."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, scopes: Tensor, slots: Tensor, real: Tensor) -> Tensor:
        ctx.save_for_backward(scopes)
        return _sum_slots(messages, scopes, slots, real)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (scopes,) = ctx.saved_tensors
        return grad.index_select(1, scopes), None, None, None


def collect(f: Tensor, w: Wiring) -> Tensor:
    """Features of each slot's variable, (B, N, d) to (B, C·A, d)."""
    found: Tensor = _Collect.apply(f, w.scopes, w.slots, w.real)  # type: ignore[no-untyped-call]
    return found


def spread(messages: Tensor, w: Wiring) -> Tensor:
    """The sum of each variable's slots, (B, C·A, d) to (B, N, d)."""
    found: Tensor = _Spread.apply(messages, w.scopes, w.slots, w.real)  # type: ignore[no-untyped-call]
    return found


def _sum_slots(messages: Tensor, scopes: Tensor, slots: Tensor, real: Tensor) -> Tensor:
    if messages.device.type == "cpu":
        out = messages.new_zeros(messages.shape[0], slots.shape[0], messages.shape[2])
        return out.index_add_(1, scopes, messages)
    # on a GPU adding with atomics is slow and of no fixed order: gather each variable's slots instead
    picked = messages.index_select(1, slots.reshape(-1)).view(messages.shape[0], *slots.shape, messages.shape[2])
    return (picked * real.to(messages.dtype)).sum(2)


class PlaceMatrix(nn.Module):
    r"""Q of every place, :math:`Q(t_a) = \sum_\tau \varphi_\tau(t_a) W_\tau`, computed once for all factors.

    Args:
        rows, columns: Of each matrix, m and n.
        bases: How many W there are.
    """

    def __init__(self, rows: int, columns: int, bases: int) -> None:
        super().__init__()
        self.coefficients = nn.Sequential(nn.Linear(PLACE, 32), nn.SiLU(), nn.Linear(32, bases))
        self.weight = nn.Parameter(torch.randn(bases, rows, columns) / (columns * bases) ** 0.5)

    def forward(self, places: Tensor) -> Tensor:
        """(A, PLACE) to (A, m, n)."""
        phi = self.coefficients(places.to(self.weight.dtype))
        return torch.einsum("at,tmn->amn", phi.to(self.weight.dtype), self.weight)


class RMSNorm(nn.Module):
    """x / rms(x) times a learned scale; the result in the type that matrix products run in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        kind = x.device.type
        return y.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else y


class Update(nn.Module):
    """x + V σ(U·norm(x) + incoming messages + b): the residual update of a node."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, width)
        nn.init.zeros_(self.outer.bias)
        with torch.no_grad():
            self.outer.weight.mul_(0.3)  # many blocks add up

    def forward(self, x: Tensor, normed: Tensor, incoming: Tensor) -> Tensor:
        out: Tensor = x + self.outer(nn.functional.silu(self.inner(normed) + incoming))
        return out


class DeepBlock(nn.Module):
    r"""A residual FGNN layer (Alg. 1, sequential) with linear messages and sum aggregation:

    .. math::
        g_c &\leftarrow g_c + V \sigma\big(U g_c + \textstyle\sum_{i: (c,i)} Q(t_{ci} \mid \Phi_{VF}) f_i\big) \\
        f_i &\leftarrow f_i + V' \sigma\big(U' f_i + \textstyle\sum_{c: (c,i)} Q(t_{ci} \mid \Phi_{FV}) g_c\big)

    on normalised f and g. Sums count, which is what a budget asks for; and with linear messages the sum over a scope is
    one matrix product of inner length A·n, with nothing but the gathered features kept per edge.

    Args:
        width: Features of variables and factors.
        kinds: The kinds of factor, each with its own parameters.
        bases: Matrices that each Q is made of.
    """

    def __init__(self, width: int, kinds: Sequence[str], bases: int) -> None:
        super().__init__()
        self.width = width
        self.norm_f, self.norm_f2 = RMSNorm(width), RMSNorm(width)
        self.norm_g = nn.ModuleDict({k: RMSNorm(width) for k in kinds})
        self.norm_g2 = nn.ModuleDict({k: RMSNorm(width) for k in kinds})
        # a table has few places, and as many matrices are enough for it
        count = {k: bases if k == "budget" else min(bases, k.count("x") + 1) for k in kinds}
        self.vf = nn.ModuleDict({k: PlaceMatrix(width, width, count[k]) for k in kinds})
        self.fv = nn.ModuleDict({k: PlaceMatrix(width, width, count[k]) for k in kinds})
        self.update_g = nn.ModuleDict({k: Update(width, width) for k in kinds})
        self.update_f = Update(width, 2 * width)
        self.widen = nn.Linear(width, 2 * width, bias=False)

    def forward(self, f: Tensor, gs: list[Tensor], wiring: Sequence[Wiring]) -> tuple[Tensor, list[Tensor]]:
        """f (B, N, d) and one (B, C, d) per group, to the same."""
        b, d = f.shape[0], self.width
        normed = self.norm_f(f)
        made = []
        for g, w in zip(gs, wiring, strict=True):
            q = self.vf[w.kind](w.places)  # shape: (A, m, n)
            seen = collect(normed, w).view(b, w.factors, w.arity * d)
            incoming = nn.functional.linear(seen, q.permute(1, 0, 2).reshape(d, w.arity * d))
            made.append(self.update_g[w.kind](g, self.norm_g[w.kind](g), incoming))
        total = None
        for g, w in zip(made, wiring, strict=True):
            q = self.fv[w.kind](w.places)
            sent = nn.functional.linear(self.norm_g2[w.kind](g), q.reshape(w.arity * d, d))
            arrived = spread(sent.view(b, w.factors * w.arity, d), w)
            total = arrived if total is None else total + arrived
        normed = self.norm_f2(f)
        incoming = normed if total is None else self.widen(total)
        return self.update_f(f, normed, incoming), made


def _embedding(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width))


class DeepNetwork(nn.Module):
    """Residual FGNN blocks between an embedding and a read-out.

    Args:
        variable_in: Length of a variable's features.
        factor_in: Length of a factor's features, by kind.
        states: Scores per variable.
        width, blocks, bases: The size.
        repeat: How many times the blocks are run through.
        supervise: Whether training also returns the read-outs after every fourth block.
    """

    def __init__(
        self,
        variable_in: int,
        factor_in: Mapping[str, int],
        states: int,
        *,
        width: int = 64,
        blocks: int = 16,
        bases: int = 8,
        repeat: int = 1,
        supervise: bool = False,
    ) -> None:
        super().__init__()
        kinds = list(factor_in)
        self.embed_f = _embedding(variable_in, width)
        self.embed_g = nn.ModuleDict({k: _embedding(n, width) for k, n in factor_in.items()})
        self.blocks = nn.ModuleList(DeepBlock(width, kinds, bases) for _ in range(blocks))
        self.repeat = repeat
        self.norm = RMSNorm(width)
        self.readout = nn.Linear(width, states)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)
        self.supervise = supervise

    def forward(self, wiring: Sequence[Wiring], variables: Tensor, factors: Sequence[Tensor]) -> list[Tensor]:
        """Scores (B, N, states): the last entry is the answer, those before it inner read-outs (in training)."""
        # The stream between the blocks stays in float32, and so does what makes and reads it: answers that differ by a
        # thousandth would be one in bf16.
        with torch.autocast(variables.device.type, enabled=False):
            f = self.embed_f(variables)
            gs = [self.embed_g[w.kind](g) for g, w in zip(factors, wiring, strict=True)]
        found, at = [], 0
        for _ in range(self.repeat):
            for block in self.blocks:
                f, gs = block(f, gs, wiring)
                at += 1
                last = at == self.repeat * len(self.blocks)
                if last or (self.training and self.supervise and at % 4 == 0):
                    found.append(self._read(f))
        return found

    def _read(self, f: Tensor) -> Tensor:
        with torch.autocast(f.device.type, enabled=False):
            scores: Tensor = self.readout(self.norm(f))
        return scores

    def compile_blocks(self) -> None:
        """Compile the block; one compilation serves all of them, since they differ in their numbers alone."""
        for block in self.blocks:
            block.compile(dynamic=False)
