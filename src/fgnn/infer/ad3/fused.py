"""Blocks of iterations of `ad3` in one launch, for binary variables, pairs and counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.ad3.average import CHECK, HALVED, LESS, LONG, Average
from fgnn.infer.ad3.layout import Layout
from fgnn.infer.ad3.numbers import Fixed
from fgnn.infer.ad3.steps import RELAXATION, State, Terms
from fgnn.infer.kernel_tiles import MODELS, ROWS, index_rows, worth_fusing
from fgnn.runtime.triton_support import can_launch, power_of_two

_WIDEST = 64  # edges of a factor or of a variable that a tile holds
# Edges of counts that a program loads at once: more loads in flight, more registers.
_EDGES_AT_ONCE = 8


@dataclass(frozen=True, eq=False)
class Fused:
    """The structure as the kernel reads it; padded with -1."""

    pair_edge: Tensor  # shape: (pairs, 2), int32
    count_edge: Tensor  # shape: (counts, size), int32
    var_edge: Tensor  # shape: (V, degree), int32
    num_edges: int

    @classmethod
    def of(cls, layout: Layout, device: torch.device) -> Fused | None:
        """None if the kernel does not support the structure."""
        widest = max((c.size for c in layout.counts), default=1)
        if layout.tables or layout.kinds or layout.many or layout.padded is None or not layout.num_edges:
            return None
        if max(widest, layout.padded.shape[1]) > _WIDEST:
            return None
        every = torch.arange(layout.num_edges)
        ends = [torch.stack([every[x.first], every[x.second]], 1) for x in layout.pairs]
        scopes = [every[c.edges].reshape(-1, c.size) for c in layout.counts]
        edges = layout.padded.masked_fill(layout.padded == layout.num_edges, -1)
        return cls(
            index_rows(ends, 2, device),
            index_rows(scopes, power_of_two(widest), device),
            index_rows([edges], power_of_two(edges.shape[1]), device),
            layout.num_edges,
        )

    def worth(self, models: int) -> bool:
        """Whether the kernel is faster than separate operations."""
        return worth_fusing(len(self.pair_edge), len(self.count_edge), len(self.var_edge), models)

    def advance(self, terms: Terms, state: State, average: Average, done: int, steps: int, blocks: int) -> None:
        """The same as `average.advance`."""
        import triton

        from fgnn.infer.ad3.kernels import advance_kernel

        z = state.z = state.z.contiguous()
        models, unused = z.shape[1], z
        lengths = [len(t) for t in state.taus]
        tau = torch.cat([z.new_zeros(0, models), *(t[:, 0] for t in state.taus)])
        signed = any(x.sign is not None for x in terms.pairs)
        pairs = [
            _joined([getattr(x, name) for x in terms.pairs], z) for name in ("first", "second", "weight", "middle")
        ]
        signs = [torch.ones_like(x.weight) if x.sign is None else x.sign for x in terms.pairs]
        sign = _joined(signs, z) if signed else unused
        low, high = (_joined([getattr(x, name)[:, 0] for x in terms.counts], z) for name in ("low", "high"))
        fixed = Fixed(unused, unused, unused) if terms.fixed is None else terms.fixed
        advance_kernel[(triton.cdiv(models, MODELS),)](
            z, state.q, state.p, tau, average.z, average.count, average.then, average.before,
            torch.empty_like(z), torch.empty_like(z), torch.empty_like(tau),
            fixed.push, terms.unary, terms.share, fixed.lower, fixed.upper,
            *pairs, sign, self.pair_edge, low, high, self.count_edge, self.var_edge,
            models, self.num_edges, len(self.var_edge), len(self.pair_edge), len(self.count_edge),
            done, steps, blocks, CHECK, RELAXATION, HALVED, LESS, LONG,
            DEG=self.var_edge.shape[1], SIZE=self.count_edge.shape[1], ROWS=ROWS, BLOCK=MODELS,
            AT_ONCE=max(1, _EDGES_AT_ONCE // self.count_edge.shape[1]), SIGNED=signed, PUSHED=terms.fixed is not None,
            num_warps=1, num_stages=1,
        )  # fmt: skip
        state.taus = [t[:, None] for t in torch.split(tau, lengths)]


def fused_of(layout: Layout, device: torch.device) -> Fused | None:
    """The kernel for a structure, if it can run on the device and supports the structure."""
    return layout.derived("fused", lambda: Fused.of(layout, device)) if can_launch(device) else None


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    """Rows of several groups as one tensor, without a copy if there is one group."""
    if len(parts) == 1:
        return parts[0].contiguous()
    return torch.cat([like.new_zeros(0, like.shape[1]), *parts])
