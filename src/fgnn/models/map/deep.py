"""A deep FGNN: many residual blocks of sum aggregation, made to be trained fast in bf16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fgnn.graph import FactorGraph

MOST_BASES = 16


@dataclass(frozen=True, eq=False)
class Wiring:
    """One group's edges: slot s = c·A + a joins factor c to the variable at place a of its scope."""

    kind: str  # which parameters: the group's name, less the size where any size shares them
    arity: int
    factors: int
    scopes: Tensor  # shape: (C·A,), the variable of each slot
    slots: Tensor  # shape: (N, D), the slots of each variable, padded with 0
    real: Tensor  # shape: (N, D, 1), 0 where padded
    order: Tensor  # shape: (C·A,), where each slot stands among the N·D
    places: Tensor  # shape: (A, MOST_BASES), features of the places in a scope


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
    where = torch.empty_like(flat)
    where[order] = flat[order] * width + within
    kind = "budget" if budget else name
    return Wiring(kind, arity, count, flat, slots, real, where, place_features(arity, device))


def place_features(arity: int, device: torch.device) -> Tensor:
    """Cosines over the scope, cos(πτ(a + ½)/A) for τ = 0, 1, ...: smooth in the relative place, so that scopes of other
    sizes than those seen make sense, and orthogonal, so that as many as there are places tell all of them apart."""
    a = torch.arange(arity, dtype=torch.float32, device=device)[:, None]
    tau = torch.arange(MOST_BASES, dtype=torch.float32, device=device)
    return torch.cos(torch.pi * tau * (a + 0.5) / max(1, arity))


class _Collect(torch.autograd.Function):
    """Features of each slot's variable, (B, N, d) to (B, C·A, d). Its adjoint is a gather and a sum, without atomics,
    which are slow on a GPU and add in no fixed order."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, scopes: Tensor, slots: Tensor, real: Tensor) -> Tensor:
        ctx.save_for_backward(scopes, slots, real)
        return f.index_select(1, scopes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        scopes, slots, real = ctx.saved_tensors
        if grad.device.type == "cpu":
            out = grad.new_zeros(grad.shape[0], slots.shape[0], grad.shape[2])
            return out.index_add_(1, scopes, grad), None, None, None
        picked = grad.index_select(1, slots.reshape(-1)).view(grad.shape[0], *slots.shape, grad.shape[2])
        return (picked * real.to(grad.dtype)).sum(2), None, None, None


class _Arrange(torch.autograd.Function):
    """Slots by variable, (B, C·A, d) to (B, N·D, d); since each slot has one place there, its adjoint is a gather."""

    @staticmethod
    def forward(ctx: Any, messages: Tensor, slots: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return messages.index_select(1, slots.reshape(-1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        return grad.index_select(1, order), None, None


def collect(f: Tensor, w: Wiring) -> Tensor:
    """Features of each slot's variable, (B, N, d) to (B, C·A, d)."""
    found: Tensor = _Collect.apply(f, w.scopes, w.slots, w.real)  # type: ignore[no-untyped-call]
    return found


def arrange(messages: Tensor, w: Wiring) -> Tensor:
    """Each variable's slots, (B, C·A, d) to (B, N, D, d); padded places hold what ``w.real`` must mask."""
    found: Tensor = _Arrange.apply(messages, w.slots, w.order)  # type: ignore[no-untyped-call]
    return found.view(messages.shape[0], *w.slots.shape, messages.shape[2])


class PlaceMatrix(nn.Module):
    r"""Q of every place, :math:`Q(t_a) = \sum_\tau \varphi_\tau(a)\, W_\tau`, computed once for all factors.

    Args:
        rows, columns: Of each matrix, m and n.
        bases: How many W there are, and cosines φ.
        fan: How many places are added up, typically; the first weights are drawn so that their sum is of unit size.
    """

    def __init__(self, rows: int, columns: int, bases: int, fan: int = 1) -> None:
        super().__init__()
        if bases > MOST_BASES:
            raise ValueError(f"Expected at most {MOST_BASES} bases (got {bases})")
        self.weight = nn.Parameter(torch.randn(bases, rows, columns) * (2 / (columns * bases * fan)) ** 0.5)

    def forward(self, places: Tensor) -> Tensor:
        """(A, MOST_BASES) to (A, m, n)."""
        bases, rows, columns = self.weight.shape
        return (places[:, :bases] @ self.weight.flatten(1)).view(-1, rows, columns)


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
            self.outer.weight.mul_(0.5)  # many blocks add up

    def forward(self, x: Tensor, normed: Tensor, incoming: Tensor | float) -> Tensor:
        out: Tensor = x + self.outer(nn.functional.silu(self.inner(normed) + incoming))
        return out


class DeepBlock(nn.Module):
    r"""A residual FGNN layer (Alg. 1, sequential) with sum aggregation, on normalised f and g:

    .. math::
        g_c &\leftarrow g_c + V \sigma\big(U g_c + \sum_{i: (c,i)} Q(t_{ci} \mid \Phi_{VF}) f_i\big) \\
        f_i &\leftarrow f_i + V' \sigma\big(U' f_i +
            W \sum_{c: (c,i)} \mathrm{ReLU}(Q(t_{ci} \mid \Phi_{FV}) g_c + P f_i)\big)

    Sums count, which is what a budget asks for. Towards factors messages are linear, so that the sum over a scope is
    one matrix product of inner length A·n; towards variables each message sees both ends, as M([g_c, f_i]) does, and
    the additions, the ReLU and the sum are one pass over the edges.

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
        fan = {k: 8 if k == "budget" else k.count("x") + 1 for k in kinds}
        self.vf = nn.ModuleDict({k: PlaceMatrix(2 * width, width, count[k], fan[k]) for k in kinds})
        self.fv = nn.ModuleDict({k: PlaceMatrix(width, width, count[k]) for k in kinds})
        self.own = nn.ModuleDict({k: nn.Linear(width, width) for k in kinds})
        self.arrive = nn.ModuleDict({k: nn.Linear(width, 2 * width, bias=False) for k in kinds})
        self.update_g = nn.ModuleDict({k: Update(width, 2 * width) for k in kinds})
        self.update_f = Update(width, 2 * width)

    def forward(self, f: Tensor, gs: list[Tensor], wiring: Sequence[Wiring]) -> tuple[Tensor, list[Tensor]]:
        """f (B, N, d) and one (B, C, d) per group, to the same."""
        b, d = f.shape[0], self.width
        normed = self.norm_f(f)
        made = []
        for g, w in zip(gs, wiring, strict=True):
            q = self.vf[w.kind](w.places)  # shape: (A, 2d, d)
            seen = collect(normed, w).view(b, w.factors, w.arity * d)
            incoming = nn.functional.linear(seen, q.permute(1, 0, 2).reshape(2 * d, w.arity * d))
            made.append(self.update_g[w.kind](g, self.norm_g[w.kind](g), incoming))
        normed = self.norm_f2(f)
        total: Tensor | float = 0.0
        for g, w in zip(made, wiring, strict=True):
            q = self.fv[w.kind](w.places)
            sent = nn.functional.linear(self.norm_g2[w.kind](g), q.reshape(w.arity * d, d))
            at_variable = arrange(sent.view(b, w.factors * w.arity, d), w) + self.own[w.kind](normed)[:, :, None]
            total = total + self.arrive[w.kind]((at_variable.relu() * w.real.to(sent.dtype)).sum(2))
        return self.update_f(f, normed, total), made


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
                    found.append(self.read(f))
        return found

    def read(self, f: Tensor) -> Tensor:
        """The scores that features of variables stand for.  # shape: (B, N, states)"""
        with torch.autocast(f.device.type, enabled=False):
            scores: Tensor = self.readout(self.norm(f))
        return scores

    def compile_blocks(self) -> None:
        """Compile the block; one compilation serves all of them, since they differ in their numbers alone."""
        for block in self.blocks:
            block.compile(dynamic=False)
