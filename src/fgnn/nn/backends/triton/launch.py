"""What the launches of both kernel families share: operands, plan, result buffers and sums by node."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fgnn.nn.backends.triton.tile_sizes import Tile, block, cdiv, dtype_of, precision_of
from fgnn.runtime.kernel_launch import constants, launch

JOBS = 4  # groups of a launch
_SUM_COLUMNS = 64


class Operands(NamedTuple):
    """The inputs that may need gradients."""

    dst: Tensor | None  # shape: (B, D, n)
    src: Tensor  # shape: (B, S, n)
    coef: Tensor | None  # φ (E, T) or (B, E, T), or types (E,)
    weight: Tensor  # shape: (T, m, n)

    def gradients(self, wants: Sequence[bool]) -> list[Any]:
        """Buffers for the gradients at dst and src, empty if they are not wanted, and at φ, then None."""
        d_dst, d_src = (
            self.src.new_empty(0) if operand is None or not wanted else torch.empty_like(operand)
            for operand, wanted in ((self.dst, wants[0]), (self.src, wants[1]))
        )
        return [d_dst, d_src, None if self.coef is None or not wants[2] else torch.empty_like(self.coef)]

    def zeros(self, wants: Sequence[bool]) -> list[Any]:
        """The gradients of a call without edges; at W as one share of a sum."""
        grads = [None if g is None else g.zero_() for g in self.gradients(wants)]
        return [*grads, self.weight.new_zeros((1, *self.weight.shape), dtype=torch.float32)]

    def source_buffer(self, edges: int, wanted: bool) -> Tensor:
        """Float32 sums for the gradient at src: by source with atomics, by edge if results must be deterministic."""
        batch, sources, n = self.src.shape
        if not wanted:
            return self.src.new_empty(0, dtype=torch.float32)
        if atomic():
            return self.src.new_zeros((batch, sources, n), dtype=torch.float32)
        return self.src.new_empty((batch, edges, n), dtype=torch.float32)


class Sizes(NamedTuple):
    """D, A (0 if destinations differ), the largest degree; for rows also W and R."""

    destinations: int
    arity: int
    longest: int
    width: int = 0
    rows: int = 0


class Plan(NamedTuple):
    """One call without its operands: kernel family, index tensors (listed by each family), sizes and options."""

    family: str  # "rows" or "typed"
    tensors: Sequence[Tensor]
    sizes: Sizes
    relu: bool
    maximum: bool

    def options(self, x: Operands, tile: Tile, **more: Any) -> dict[str, Any]:
        """Compile-time options of all kernels, and those of one: the same dict for equal options."""
        dtype = x.src.dtype
        arity = self.sizes.arity if more.pop("by_arity", True) else None
        return _options(
            x.src.shape[2], x.weight.shape[1], arity, tile, self.relu, x.dst is not None, self.maximum, dtype,
            precision_of(dtype), **more,
        )  # fmt: skip

    def outputs(self, x: Operands, places: torch.dtype | None, longest: int) -> tuple[Tensor, Tensor]:
        """Buffers for the result (B, D, m) and, for a maximum, the place of the edge that attained it."""
        shape = (x.src.shape[0], self.sizes.destinations, x.weight.shape[1])
        dtype = places or (torch.uint8 if longest <= 256 else torch.int32)
        return x.src.new_empty(shape), x.src.new_empty(shape if self.maximum else (0,), dtype=dtype)


@cache
def _options(
    n: int, m: int, arity: int | None, tile: Tile, relu: bool, has_dst: bool, maximum: bool, dtype: torch.dtype,
    precision: str, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    return {
        "N": n,
        "M": m,
        **({} if arity is None else {"A": arity}),
        "BN": tile.inner,
        "BM": tile.columns,
        "RELU": relu,
        "HAS_DST": has_dst,
        "MAX": maximum,
        "CT": dtype_of(dtype),
        "PREC": precision,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
        **more,
    }


def in_turn(kinds: Sequence[Hashable]) -> Iterator[slice]:
    """Groups that one launch serves: up to four in a row, of the same kind. None is of no kind."""
    start = 0
    for k in range(1, len(kinds) + 1):
        if k == len(kinds) or k - start == JOBS or kinds[k] is None or kinds[k] != kinds[start]:
            yield slice(start, k)
            start = k


def four(args: Sequence[Any]) -> list[Any]:
    """The arguments of as many groups as a launch can serve: None for those that are absent."""
    return [*args, *[None] * (JOBS - len(args))]


def atomic() -> bool:
    """Whether kernels may add atomically, in an order that changes from run to run."""
    return not torch.are_deterministic_algorithms_enabled()


def source_gradient(buffer: Tensor, source: Tensor, d_src: Tensor) -> Tensor:
    """The gradient at src from a `source_buffer` after the kernel has filled it, in float32 if that is the buffer."""
    if atomic() or not d_src.numel():
        return buffer  # the kernel that reads it rounds it
    counts = torch.bincount(source, minlength=d_src.shape[1])
    segment_sum(buffer, torch.argsort(source, stable=True), torch.cat([counts.new_zeros(1), counts.cumsum(0)]), d_src)
    return d_src


def segment_sum(values: Tensor, order: Tensor | None, ptr: Tensor, out: Tensor) -> None:
    """Sum entries (B, L, n) by node into (B, V, n)."""
    from fgnn.nn.backends.triton.edge_row_kernels import segment_sum as kernel

    batch, nodes, n = out.shape
    columns = block(n, _SUM_COLUMNS)
    args = [values, order, ptr, out, values.shape[1], nodes, batch * nodes]
    options = constants(N=n, BD=4, BN=columns, HAS_ORDER=order is not None)
    launch(kernel, (cdiv(batch * nodes, 4), cdiv(n, columns)), args, options)
