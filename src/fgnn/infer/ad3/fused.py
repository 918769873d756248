"""Blocks of iterations of `ad3` in one launch, where variables are binary and factors are pairs and budgets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fgnn.infer.ad3.average import CHECK, HALVED, LESS, LONG, Average
from fgnn.infer.ad3.layout import Layout
from fgnn.infer.ad3.steps import RELAXATION, State, Terms
from fgnn.runtime.triton_support import can_launch, power_of_two

_WIDEST = 64  # edges of a factor or of a variable that a tile holds
_BLOCK = 32  # models of a program: a row of them is one line of the cache
_ROWS = 8  # rows of a tile where any number would do
# Budgets that a program takes at once, by their edges: more loads under way together, and more registers.
_EDGES_AT_ONCE = 8
# A program goes through its models' factors one after another: where there are many, only many models keep the GPU
# busy, and else separate operations over all factors do.
_MOST_FACTORS, _MANY_MODELS = 1000, 8192


@dataclass(frozen=True, eq=False)
class Fused:
    """The structure as the kernel reads it; places that are not there are -1."""

    layout: Layout
    pair_edge: Tensor  # shape: (pairs, 2), int32
    budget_edge: Tensor  # shape: (budgets, size), int32
    var_edge: Tensor  # shape: (V, degree), int32

    @classmethod
    def of(cls, layout: Layout, device: torch.device) -> Fused | None:
        """None where the kernel does not serve the structure."""
        widest = max((b.size for b in layout.budgets), default=1)
        if layout.tables or layout.many or layout.padded is None or not layout.num_edges:
            return None
        if max(widest, layout.padded.shape[1]) > _WIDEST:
            return None
        ends = [torch.stack([torch.arange(*x.first), torch.arange(*x.second)], 1) for x in layout.pairs]
        size = power_of_two(widest)
        scopes = [_padded(torch.arange(*b.edges).reshape(-1, b.size), size) for b in layout.budgets]
        own = layout.padded.cpu()
        own = _padded(own.masked_fill(own == layout.num_edges, -1), power_of_two(own.shape[1]))

        def put(parts: list[Tensor], width: int) -> Tensor:
            whole = torch.cat([torch.zeros(0, width, dtype=torch.int64), *parts])
            return whole.to(device=device, dtype=torch.int32).contiguous()

        return cls(layout, put(ends, 2), put(scopes, size), put([own], own.shape[1]))

    def worth(self, models: int) -> bool:
        """Whether one launch is quicker than separate operations."""
        tiles = len(self.pair_edge) // _ROWS + len(self.budget_edge) + len(self.var_edge)
        return tiles <= _MOST_FACTORS or models >= _MANY_MODELS

    def advance(self, terms: Terms, state: State, average: Average, done: int, steps: int, blocks: int) -> None:
        """The same as `average.advance`."""
        import triton

        from fgnn.infer.ad3.kernels import advance_kernel

        z = state.z = state.z.contiguous()
        models, unused = z.shape[1], z
        counts = [len(t) for t in state.taus]
        tau = torch.cat([z.new_zeros(0, models), *(t[:, 0] for t in state.taus)])
        signed = any(x.sign is not None for x in terms.pairs)
        pairs = [
            _joined([getattr(x, name) for x in terms.pairs], z) for name in ("first", "second", "weight", "middle")
        ]
        signs = [torch.ones_like(x.weight) if x.sign is None else x.sign for x in terms.pairs]
        sign = _joined(signs, z) if signed else unused
        low, high = (_joined([getattr(x, name)[:, 0] for x in terms.budgets], z) for name in ("low", "high"))
        pushed = terms.push is not None and terms.lower is not None and terms.upper is not None
        limits = [x if x is not None and pushed else unused for x in (terms.push, terms.lower, terms.upper)]
        advance_kernel[(triton.cdiv(models, _BLOCK),)](
            z, state.q, state.p, tau, average.z, average.count, average.then, average.before,
            torch.empty_like(z), torch.empty_like(z), torch.empty_like(tau),
            limits[0], terms.unary, terms.share, limits[1], limits[2],
            *pairs, sign, self.pair_edge, low, high, self.budget_edge, self.var_edge,
            models, self.layout.num_edges, self.layout.num_rows, len(self.pair_edge), len(self.budget_edge),
            done, steps, blocks, CHECK, RELAXATION, HALVED, LESS, LONG,
            DEG=self.var_edge.shape[1], SIZE=self.budget_edge.shape[1], ROWS=_ROWS, BLOCK=_BLOCK,
            AT_ONCE=max(1, _EDGES_AT_ONCE // self.budget_edge.shape[1]), SIGNED=signed, PUSHED=pushed,
            num_warps=1, num_stages=1,
        )  # fmt: skip
        state.taus = [t[:, None] for t in torch.split(tau, counts)]


@lru_cache(maxsize=8)
def fused_of(layout: Layout, device: torch.device) -> Fused | None:
    """The kernel for a structure on a GPU, where it serves and Triton is there."""
    return Fused.of(layout, device) if can_launch(device) else None


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    if len(parts) == 1:
        return parts[0].contiguous()
    return torch.cat([like.new_zeros(0, like.shape[1]), *parts])


def _padded(places: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(places, (0, width - places.shape[1]), value=-1)
