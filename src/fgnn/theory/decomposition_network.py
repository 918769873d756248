"""Prop. 2: one FGNN layer that decomposes factors into rank-1 terms."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, FactorGroup
from fgnn.nn import FactorToVariable, FGNNLayer, VariableToFactor
from fgnn.theory.parts import message_of, table_of

_GROUP = "factor"


class DecompositionNetwork(nn.Module):
    r"""Prop. 2 (decomposition): from :math:`g_c = [\theta_c(x^0), \theta_c(x^1), \dots] \ge 1`, one FGNN layer computes

    .. math:: \theta_{ic}(x_i, z) = \begin{cases} \theta_c(x^z) / |s(c)| & x_i = x_i^z \\ -\sum_{z'} \theta_c(x^{z'})
              & \text{otherwise} \end{cases} \qquad \text{for all } i \in s(c)

    at every factor, with one term z per configuration, and keeps :math:`\theta_i` at every variable. M outputs g_c;
    the edge feature is the position, one-hot; the matrix Q of a position fills one slot of the new g_c. Its rows are

    - :math:`1/|s(c)|` in column z and 0 elsewhere, for a matching entry. (The paper prints "all other entries" of Q
      as negative, which would corrupt these rows.)
    - -1 everywhere, for an entry that does not match: the row gives less than :math:`-\max \theta_c`, since
      :math:`\theta_c \ge 1`.
    - -2 everywhere, in the slots of other positions. (Lemma lossless_agg writes 0, but the maximum with 0 would erase
      the negative entries.)

    The weights depend only on the shape, so one network decomposes every factor of that shape.
    ``decomposition_network`` is the same class.

    Example:
        >>> from fgnn.theory import maximum_of_terms
        >>> net = decomposition_network((2, 2))
        >>> table = torch.tensor([[1.0, 1.1], [1.2, 2.0]]).double()
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
        eye, keep = torch.eye(cells, dtype=torch.float64), torch.eye(states, dtype=torch.float64)
        take_g = torch.cat([eye, eye.new_zeros(cells, states)], 1)
        width = sum(self.shape) * cells
        take_f = torch.cat([eye.new_zeros(states, width), keep], 1)
        vf = VariableToFactor(
            message_of([(take_g, eye.new_zeros(cells))], cells, final_relu=False), table_of(self._matrices())
        )
        fv = FactorToVariable(
            {
                _GROUP: (
                    message_of([(take_f, eye.new_zeros(states))], width, final_relu=False),
                    table_of(keep.expand(len(self.shape), -1, -1)),
                )
            }
        )
        self.layer = FGNNLayer.from_parts({_GROUP: vf}, fv, schedule="sequential")

    def _matrices(self) -> Tensor:
        """Q of each position.  # shape: (A, Σ k_a · Z, Z)"""
        arity, cells = len(self.shape), prod(self.shape)
        configurations = torch.cartesian_prod(*(torch.arange(k) for k in self.shape)).reshape(cells, arity)
        per_position = []
        for a, k in enumerate(self.shape):
            matches = configurations[:, a] == torch.arange(k)[:, None]  # shape: (k, Z)
            share = torch.eye(cells, dtype=torch.float64).expand(k, -1, -1) / arity
            slot = torch.where(matches[..., None], share, -1.0).flatten(0, 1)  # shape: (k · Z, Z)
            blocks = [slot if b == a else slot.new_full((kb * cells, cells), -2.0) for b, kb in enumerate(self.shape)]
            per_position.append(torch.cat(blocks))
        return torch.stack(per_position)

    def forward(self, scopes: Tensor, unaries: Tensor, tables: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Decompose a batch of factors.

        Args:
            scopes: (C, A).
            unaries: θ_i, (N, K) with K the largest cardinality; a variable in no scope gets zeros.
            tables: θ_c >= 1, (C, k_1, ..., k_A); add a constant to smaller ones, which does not change the MAP
                assignment.

        Returns:
            The same unaries, and θ_ic by position, (C, k_a, Z).
        """
        if tuple(tables.shape[1:]) != self.shape:
            raise ValueError(f"Expected tables of shape {self.shape} (got {tuple(tables.shape[1:])})")
        if not bool((tables >= 1).all()):
            raise ValueError(f"Expected log-potentials of at least 1, as Prop. 2 does (got {float(tables.min()):g})")
        graph = FactorGraph(unaries.shape[0], {_GROUP: FactorGroup(scopes)})
        f, gs = self.layer(graph, unaries, {_GROUP: tables.flatten(1)}, {_GROUP: torch.arange(len(self.shape))})
        cells = prod(self.shape)
        slots = gs[_GROUP].split([k * cells for k in self.shape], dim=1)
        return f, tuple(slot.reshape(-1, k, cells) for slot, k in zip(slots, self.shape, strict=True))


decomposition_network = DecompositionNetwork
