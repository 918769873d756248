"""Prop. 2: one FGNN layer that decomposes factors into rank-1 terms."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, FactorGroup
from fgnn.nn import FactorToVariable, FGNNLayer, Message, VariableToFactor
from fgnn.theory.layout import FactorKind, VariableLayout
from fgnn.theory.parts import message_of, table_of

_GROUP = "factor"


class DecompositionNetwork(nn.Module):
    r"""Prop. 2 (decomposition): from :math:`g_c = [\theta_c(x^0), \theta_c(x^1), \dots]`, one FGNN layer computes

    .. math:: \theta_{ic}(x_i, z) = \begin{cases} \theta_c(x^z) / |s(c)| & x_i = x_i^z \\
              -1 - \sum_{z'} |\theta_c(x^{z'})| & \text{otherwise} \end{cases} \qquad \text{for all } i \in s(c)

    at every factor, with one term z per configuration, and keeps :math:`\theta_i` at every variable. M outputs
    :math:`[\mathrm{relu}(g_c), \mathrm{relu}(-g_c), 1]`; the edge feature is the position, one-hot; the matrix Q of a
    position fills one slot of the new g_c. Its rows are

    - :math:`\pm 1/|s(c)|` in the columns of z and 0 elsewhere, for a matching entry. (The paper prints "all other
      entries" of Q as negative, which would corrupt these rows.)
    - -1 everywhere, for an entry that does not match: the row gives less than :math:`-\max \theta_c`.
    - -2 everywhere, in the slots of other positions. (Lemma lossless_agg writes 0, but the maximum with 0 would erase
      the negative entries.)

    The paper assumes :math:`\theta_c \ge 1`, and M outputs :math:`g_c` alone; the two parts and the 1 make the layer
    right for any table. The weights depend only on the shape, so one network decomposes every factor of that shape.
    ``decomposition_network`` is the same class.

    Example:
        >>> from fgnn.theory import maximum_of_terms
        >>> net = decomposition_network((2, 2))
        >>> table = torch.tensor([[-1.0, 1.1], [1.2, 2.0]]).double()
        >>> _, terms = net(torch.tensor([[0, 1]]), torch.zeros(2, 2).double(), table[None])
        >>> torch.allclose(maximum_of_terms([theta[0] for theta in terms]), table)
        True
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        if not shape or min(shape) < 1:
            raise ValueError(f"Expected the shape of a table over at least one variable (got {tuple(shape)})")
        self.shape = tuple(int(k) for k in shape)
        cells, states = prod(self.shape), max(self.shape)
        keep = torch.eye(states, dtype=torch.float64)
        vf = VariableToFactor(_signed_entries(cells, states), table_of(_matrices(self.shape)))
        fv = FactorToVariable(
            {
                _GROUP: (
                    _take_variable(sum(self.shape) * cells, states),
                    table_of(keep.expand(len(self.shape), -1, -1)),
                )
            }
        )
        self.layer = FGNNLayer.from_parts({_GROUP: vf}, fv, schedule="sequential")

    def forward(self, scopes: Tensor, unaries: Tensor, tables: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Decompose a batch of factors.

        Args:
            scopes: (C, A).
            unaries: θ_i, (N, K) with K the largest cardinality; a variable in no scope gets zeros.
            tables: θ_c, finite, (C, k_1, ..., k_A).

        Returns:
            The same unaries, and θ_ic by position, (C, k_a, Z).
        """
        if tuple(tables.shape[1:]) != self.shape:
            raise ValueError(f"Expected tables of shape {self.shape} (got {tuple(tables.shape[1:])})")
        if not bool(tables.isfinite().all()):
            raise ValueError("Expected finite log-potentials (got -inf, +inf or NaN)")
        graph = FactorGraph(unaries.shape[0], {_GROUP: FactorGroup(scopes)})
        f, gs = self.layer(graph, unaries, {_GROUP: tables.flatten(1)}, {_GROUP: torch.arange(len(self.shape))})
        cells = prod(self.shape)
        slots = gs[_GROUP].split([k * cells for k in self.shape], dim=1)
        return f, tuple(slot.reshape(-1, k, cells) for slot, k in zip(slots, self.shape, strict=True))


decomposition_network = DecompositionNetwork


def first_layer(kinds: Sequence[FactorKind], layout: VariableLayout) -> FGNNLayer:
    """Prop. 2's layer in front of max-product: from the potentials to the features of `MaxProductNetwork`.

    Every kind has one term per configuration. A factor's tensors θ_ic become the offsets of its terms; the values of
    the terms and all slots are 0, since no position writes to them.
    """
    vf, fv = {}, {}
    keep = torch.eye(layout.width, layout.states, dtype=torch.float64)
    for kind in kinds:
        cells, types = prod(kind.shape), len(kind.edge_types)
        starts = [sum(kind.shape[:a]) * cells for a in range(kind.arity)]
        target = torch.tensor(list(kind.offsets.values()))
        source = torch.tensor([starts[a] + x * cells + z for a, z, x in kind.offsets])
        by_position = _matrices(kind.shape)
        matrices = by_position.new_zeros(types, kind.width, by_position.shape[-1])
        for t, (a, _) in enumerate(kind.edge_types):
            matrices[t, target] = by_position[a, source]
        vf[kind.name] = VariableToFactor(_signed_entries(cells, layout.states), table_of(matrices))
        fv[kind.name] = (_take_variable(kind.width, layout.states), table_of(keep.expand(types, -1, -1)))
    return FGNNLayer.from_parts(vf, FactorToVariable(fv), schedule="sequential")


def _signed_entries(cells: int, states: int) -> Message:
    """M of VF: [relu(g_c), relu(-g_c), 1]."""
    eye = torch.eye(cells, dtype=torch.float64)
    weight = torch.cat([eye, -eye, eye.new_zeros(1, cells)])
    bias = torch.tensor([0.0] * (2 * cells) + [1.0], dtype=torch.float64)
    return message_of([(torch.cat([weight, eye.new_zeros(2 * cells + 1, states)], 1), bias)], cells, final_relu=True)


def _take_variable(width: int, states: int) -> Message:
    """M of FV: the first entries of f_i."""
    take = torch.cat([torch.zeros(states, width), torch.eye(states)], 1).double()
    return message_of([(take, take.new_zeros(states))], width, final_relu=False)


def _matrices(shape: tuple[int, ...]) -> Tensor:
    """Q of each position; rows by position, state and term.  # shape: (A, Σ k_a · Z, 2Z + 1)"""
    arity, cells = len(shape), prod(shape)
    configurations = torch.cartesian_prod(*(torch.arange(k) for k in shape)).reshape(cells, arity)
    eye = torch.eye(cells, dtype=torch.float64) / arity
    share = torch.cat([eye, -eye, eye.new_zeros(cells, 1)], 1)  # shape: (Z, 2Z + 1)
    per_position = []
    for a, k in enumerate(shape):
        matches = configurations[:, a] == torch.arange(k)[:, None]  # shape: (k, Z)
        slot = torch.where(matches[..., None], share.expand(k, -1, -1), -1.0).flatten(0, 1)  # shape: (k · Z, 2Z + 1)
        blocks = [slot if b == a else slot.new_full((kb * cells, 2 * cells + 1), -2.0) for b, kb in enumerate(shape)]
        per_position.append(torch.cat(blocks))
    return torch.stack(per_position)
