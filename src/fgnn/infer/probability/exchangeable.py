r"""Exact sums over complete bipartite models whose tables are all equal, at any width, by counting.

Models that ground one logical rule over all pairs of objects have this form. A table depends on the variables of one
side, which are binary, only through the number of ones among them, so with :math:`n = |S|`

.. math::
    Z = \sum_{a=0}^{n} e_a \prod_{j \in T} \sum_t \exp\big[\theta_j(t) + (n - a)\,\theta(0, t) + a\,\theta(1, t)\big],
    \qquad e_a = \sum_{x_S : \sum x = a} \exp \sum_{i \in S} \theta_i(x_i).

Variables that occur in a single table, such as the relation R(x, y) of a rule about two objects, are summed out first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.probability.result import Beliefs
from fgnn.pgm import ModelBatch

# Stands for -inf in a table: times a count of 0 it is 0.
_NEVER = -1e30
# Tables whose entries differ by at most this are equal.
_EQUAL = 1e-12
# Below this width of the smaller side elimination is as good.
_SMALL_SIDE = 8


@dataclass(frozen=True, eq=False)
class Bipartite:
    """The axes of the only group of tables: the two sides, and the variables that occur in one table each."""

    ones: int  # the axis of the counted side
    others: int
    leaf: int | None


def bipartite(batch: ModelBatch) -> Bipartite | None:
    """The form of a structure; None if it is another one."""
    return batch.structure.derived("complete bipartite", lambda: _find(batch))


def _find(batch: ModelBatch) -> Bipartite | None:
    if len(batch.tables) != 1 or len(batch.factors) != 1:
        return None
    scopes = batch.tables[0].scopes.cpu()  # shape: (C, A)
    degree = torch.bincount(scopes.flatten(), minlength=batch.num_variables)
    columns = [scopes[:, a] for a in range(scopes.shape[1])]
    leaves = [a for a, column in enumerate(columns) if bool((degree[column] == 1).all())]
    sides = [a for a in range(len(columns)) if a not in leaves]
    if len(sides) != 2 or len(leaves) > 1:
        return None
    first, second = (torch.unique(columns[a]) for a in sides)
    pairs = len(torch.unique(scopes[:, sides], dim=0))
    complete = pairs == len(scopes) == len(first) * len(second)
    if not complete or bool(torch.isin(first, second).any()) or min(len(first), len(second)) < _SMALL_SIDE:
        return None
    binary = [a for a in sides if batch.tables[0].shape[a] == 2]
    if not binary:
        return None
    ones = min(binary, key=lambda a: len(set(columns[a].tolist())))
    return Bipartite(ones, next(a for a in sides if a != ones), leaves[0] if leaves else None)


def marginals_exchangeable(batch: ModelBatch) -> Beliefs | None:
    """Marginals of variables and log Z; None if the models do not have this form."""
    form = bipartite(batch)
    if form is None or not len(batch):
        return None
    unary = batch.unary.detach().double().masked_fill(~batch.state_mask, -torch.inf)  # shape: (B, N, K)
    table, given_ends = _pair_table(batch, form, unary)
    if table is None:
        return None
    group = batch.tables[0]
    ones, others = (torch.unique(group.scopes[:, a]) for a in (form.ones, form.others))
    n, states = len(ones), group.shape[form.others]
    log_e, without = _counts(unary[:, ones])
    count = torch.arange(n + 1, dtype=torch.float64, device=unary.device)
    pull = (n - count)[:, None] * table[:, None, 0] + count[:, None] * table[:, None, 1]  # shape: (B or 1, n + 1, k)
    joint = pull[:, None] + unary[:, others, None, :states]  # shape: (B, T, n + 1, k)
    per_other = joint.logsumexp(3)
    log_p = log_e + per_other.sum(1)  # of the count, shape: (B, n + 1)
    rest = torch.ones(batch.num_variables, dtype=torch.bool, device=unary.device)
    rest[group.scopes.flatten()] = False
    log_z = log_p.logsumexp(1)
    out = (unary - _finite(unary.logsumexp(2, keepdim=True))).exp()  # right for variables without a table
    p_count = (log_p - _finite(log_z[:, None])).exp()
    p_one = (unary[:, ones, 1:2] + without - _finite(log_e[:, None])).exp()  # p(x_i = 1 | count), shape: (B, n, n + 1)
    p_other = (joint - _finite(per_other[..., None])).exp()  # p(x_j | count)
    sides = torch.stack([1 - p_one, p_one], 2)  # shape: (B, n, 2, n + 1)
    out[:, ones, :2] = torch.einsum("biac,bc->bia", sides, p_count)
    out[:, others, :states] = torch.einsum("bjck,bc->bjk", p_other, p_count)
    if form.leaf is not None:
        p_pair = torch.einsum("biac,bjck,bc->bijak", sides, p_other, p_count)
        row = torch.searchsorted(ones, group.scopes[:, form.ones].contiguous())
        column = torch.searchsorted(others, group.scopes[:, form.others].contiguous())
        out[:, group.scopes[:, form.leaf], : group.shape[form.leaf]] = torch.einsum(
            "bcak,bcakr->bcr", p_pair[:, row, column], given_ends.expand(len(batch), *given_ends.shape[1:])
        )
    total = batch.constant.detach().double() + unary[:, rest].logsumexp(2).sum(1) + log_z
    return Beliefs.of(out.masked_fill(~batch.state_mask, 0.0), total, exact=True, method="exact")


def _pair_table(batch: ModelBatch, form: Bipartite, unary: Tensor) -> tuple[Tensor | None, Tensor]:
    """The table of a pair (B or 1, 2, k), None if pairs differ, and p(leaf | pair) of each table (B, C, 2, k, r)."""
    group = batch.tables[0]
    values = group.distinct("values").detach().double()
    axes = [form.ones, form.others] + ([] if form.leaf is None else [form.leaf])
    table = values.permute(0, 1, *(2 + a for a in axes))  # shape: (B or 1, C, 2, k[, r])
    given_ends = table
    if form.leaf is not None:
        joint = table + unary[:, group.scopes[:, form.leaf], None, None, : group.shape[form.leaf]]
        table = joint.logsumexp(4)
        given_ends = (joint - _finite(table)[..., None]).exp()
    table = table.clamp_min(_NEVER)  # times a count of 0 it is 0
    equal = not bool(((table - table[:, :1]).abs() > _EQUAL * table.abs().clamp_min(1.0)).any())
    return (table[:, 0] if equal else None), given_ends


def _counts(unary: Tensor) -> tuple[Tensor, Tensor]:
    """log e_a of binary variables (B, n + 1), and log e_(a-1) of all but each one (B, n, n + 1)."""
    n = unary.shape[1]
    start = torch.full((len(unary), n + 1), -torch.inf, dtype=unary.dtype, device=unary.device)
    start[:, 0] = 0.0

    def add(log_e: Tensor, i: int) -> Tensor:
        ahead = torch.nn.functional.pad(log_e[:, :-1], (1, 0), value=-torch.inf)
        return torch.logaddexp(log_e + unary[:, i, :1], ahead + unary[:, i, 1:2])

    before, after = [start], [start]
    for i in range(n):
        before.append(add(before[-1], i))
        after.append(add(after[-1], n - 1 - i))
    index = torch.arange(n + 1, device=unary.device)
    split = index[:, None] - 1 - index  # the count of the others, a - 1, less that of the variables before i
    without = []
    for i in range(n):
        later = after[n - 1 - i][:, split.clamp_min(0)].masked_fill(split < 0, -torch.inf)  # shape: (B, n + 1, n + 1)
        without.append((before[i][:, None] + later).logsumexp(2))
    return before[-1], torch.stack(without, 1)


def _finite(values: Tensor) -> Tensor:
    """A reference to subtract: where it replaces -inf, the exponential of a difference is zero and not NaN."""
    return values.clamp_min(torch.finfo(values.dtype).min)
