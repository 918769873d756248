"""Q at the positions of a scope, for several groups: one launch forward and two backward for up to four of them.

As separate operations it takes sixteen launches for each group, on matrices of a few rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fgnn.nn.backends.triton.late_sum import LateSum
from fgnn.nn.backends.triton.launch import JOBS, in_turn
from fgnn.nn.backends.triton.tile_sizes import block, cdiv
from fgnn.runtime.float32 import allows_tf32
from fgnn.runtime.kernel_launch import launch

_WIDEST = 64
_COLUMNS = 128  # of W, in a program
_SHARES = 32  # that a program loads at once


class Positions(NamedTuple):
    """What Q at the positions of one group is made of: t (A, d), the network of φ (four tensors), and W (T, m, n)."""

    t: Tensor
    net: Sequence[Tensor]
    weight: Tensor

    @property
    def kind(self) -> Hashable:
        """What groups of one launch have in common."""
        return self.weight.shape, self.weight.dtype, self.net[0].shape[0]


def fits(t: Tensor) -> bool:
    """Whether the kernels support so many positions; ``edge_mlp.fits`` is assumed."""
    return 0 < t.shape[0] <= _WIDEST


def forward(groups: Sequence[Positions], dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """φ (A, T) in the dtype of W, and Q (A, m, n) in ``dtype``, of each group; not differentiable."""
    found: list[tuple[Tensor, Tensor]] = []
    for part in in_turn([group.kind for group in groups]):
        found += _forward(groups[part], dtype)
    return found


def backward(
    groups: Sequence[Positions], phis: Sequence[Tensor], d_qs: Sequence[Tensor], others: Sequence[LateSum] = ()
) -> list[list[Tensor]]:
    """Gradients at W and at the four tensors of each network, from shares (splits, A, m, n) of those at Q.

    A launch takes along one of the other sums.
    """
    found: list[list[Tensor]] = []
    rest = iter(others)
    for part in in_turn([group.kind for group in groups]):
        found += _backward(groups[part], phis[part], d_qs[part], next(rest, None))
    return found


def _forward(groups: Sequence[Positions], dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    from fgnn.nn.backends.triton.position_kernels import positions_forward

    terms, m, n = groups[0].weight.shape
    found, args = [], []
    for t, net, weight in groups:
        phi = weight.new_empty((t.shape[0], terms))
        q = weight.new_empty((t.shape[0], m, n), dtype=dtype)
        args += [t.contiguous(), *[p.contiguous() for p in net], weight.contiguous(), phi, q, t.shape[0]]
        found.append((phi, q))
    args += [*[None] * 8, 0] * (JOBS - len(groups))
    options, _, _ = _options(*_sizes(groups))
    launch(positions_forward, (cdiv(m * n, _COLUMNS), len(groups)), [*args, terms, m * n], options)
    return found


def _backward(
    groups: Sequence[Positions], phis: Sequence[Tensor], d_qs: Sequence[Tensor], other: LateSum | None
) -> list[list[Tensor]]:
    from fgnn.nn.backends.triton.position_kernels import networks_backward, positions_backward

    terms, m, n = groups[0].weight.shape
    blocks, count = cdiv(m * n, _COLUMNS), len(groups)
    sizes = [p.numel() for _, net, weight in groups for p in (weight, *net)]
    sizes += [blocks * group.t.shape[0] * terms for group in groups]
    # One piece of memory for all results, and for the shares of the gradients at φ.
    pieces = d_qs[0].new_empty(sum(sizes), dtype=torch.float32).split(sizes)
    found = []
    first: list[Any] = []
    second: list[Any] = []
    for k, ((t, net, weight), phi, d_q) in enumerate(zip(groups, phis, d_qs, strict=True)):
        d_weight, *d_net = pieces[5 * k : 5 * k + 5]
        d_phi, positions = pieces[5 * count + k], t.shape[0]
        first += [d_q, d_q.shape[0], weight.contiguous(), phi, d_weight, d_phi, positions]
        second += [t.contiguous(), *[p.contiguous() for p in net[:3]], d_phi, *d_net, positions]
        found.append([x.view(p.shape).to(p.dtype) for x, p in zip((d_weight, *d_net), (weight, *net), strict=True)])
    first += [None, 0, None, None, None, None, 0] * (JOBS - count)
    second += [*[None] * 9, 0] * (JOBS - count)
    _, product, network = _options(*_sizes(groups))
    launch(positions_backward, (blocks, count), [*first, terms, m * n], product)
    last: list[Any] = [None, 0, 0, None]
    if other is not None:
        splits, width = other.shares.shape[0], other.shares[0].numel()
        last = [other.shares, splits, width, other.reserve()]
    launch(networks_backward, (count + cdiv(last[2], _COLUMNS),), [*second, blocks, terms, *last], network)
    return found


def _sizes(groups: Sequence[Positions]) -> tuple[tuple[int, ...], int, int, int, str]:
    lengths = tuple([group.t.shape[1] for group in groups])
    most = max([group.t.shape[0] for group in groups])
    return lengths, most, groups[0].net[0].shape[0], groups[0].weight.shape[0], "tf32" if allows_tf32() else "tf32x3"


@cache
def _options(
    lengths: tuple[int, ...], most: int, hidden: int, terms: int, precision: str
) -> tuple[dict[str, Any], ...]:
    """The compile-time arguments of the three kernels."""
    blocks = {"BA": block(most, _WIDEST), "BT": block(terms, _WIDEST), "PREC": precision, "num_warps": 4}
    padded = (*lengths, *[0] * (JOBS - len(lengths)))
    widths = {f"D{j}": d for j, d in enumerate(padded)}
    network = {**widths, **blocks, "H": hidden, "BD": block(max(lengths), _WIDEST), "BC": _COLUMNS}
    sums = {"G": len(lengths), "BS": _SHARES, "BC": _COLUMNS}
    return network, {**sums, "BT": blocks["BT"], "num_warps": 4}, {**network, **sums}
