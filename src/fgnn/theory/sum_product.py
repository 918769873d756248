"""Sum-product belief propagation as a factor graph neural network with log-sum-exp aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fgnn.graph import EdgeTypes, FactorGraph, FactorGroup
from fgnn.nn import FactorToVariable, FGNNLayer, Message, TableMatrix, VariableToFactor
from fgnn.pgm import GraphicalModel
from fgnn.theory.budget import split_budget
from fgnn.theory.layout import EDGE, FORBIDDEN, LIMIT, store
from fgnn.theory.parts import linear_of, message_of, table_of
from fgnn.theory.relu import ONE, ZERO, ReluNetwork, Wire, total
from fgnn.theory.updates import Variant, check_network

_DIGITS = 1e6  # beliefs below this give marginals to nine digits


class _Term(NamedTuple):
    """A constant on a box: its value and, by position, the variable, the slot of its factor there, and the side."""

    value: float
    positions: Sequence[tuple[int, int, tuple[int, ...]]]


class _Edge(NamedTuple):
    """What Q depends on: the position in the term, the slot at the state, and what only one edge may write."""

    position: int
    slot: int
    first: bool  # whether it writes the value of its term, as the first edge of each term does
    used: int | None  # the number of slots in use, for the edge of a constant factor: it writes the unary and the rest


class SumProductNetwork(nn.Module):
    r"""k iterations of sum-product as k FGNN layers with log-sum-exp aggregation and a linear layer:

    .. math::
        b_{c \to i}(z) &= v_z + \sum_{i' \in s(c),\, i' \ne i} \log \sum_{x_{i'} \in S_{i'}^z} e^{b_{i'}(x_{i'})} \\
        b_i(x_i) &= \theta_i(x_i) + \sum_{c \ni i} \log \sum_{z: x_i \in S_i^z} e^{b_{c \to i}(z)}

    The construction of `MaxProductNetwork` with sums for maxima: a factor is a sum over disjoint terms,
    :math:`e^{\theta_c} = \sum_z \prod_i e^{\theta_{ic}}`, and every neighbour writes into its own slot. The network
    lives on the graph whose variable nodes are the states :math:`(i, x_i)` and whose factor nodes are the terms
    :math:`(c, z)`, so that the aggregation of the layer is the sum over states and over terms:

    - VF: M adds up the belief of a state, and Q writes it into the term's slot for the variable. The states of a side
      share a slot, which the aggregation sums.
    - FV: M adds the slots of the other variables and the value, and Q writes them into the state's slot for the factor.
      The terms of a factor share a slot, which the aggregation sums.

    Where max-product writes 0 into other slots, Q writes :math:`-10^{100}`, the neutral element of log-sum-exp. -inf is
    stored the same way. Tables have one term per finite configuration, budgets disjoint boxes.

    ``sum_product_network`` is the same class.

    Args:
        model: Any model.
        iterations: k, the number of FGNN layers.
        variant: ``standard`` excludes the receiving factor's own message from the belief, as textbook sum-product does;
            ``paper`` sums full beliefs, as eq. (max_product) prints it.

    Example:
        >>> m = GraphicalModel([2, 2])
        >>> m.add_unary(0, [0.0, 0.5])
        >>> m.add_table((0, 1), [[0.0, 0.1], [0.2, 1.0]])
        >>> sum_product_network(m, iterations=2).marginals()[-1][1]
        tensor([0.3504, 0.6496], dtype=torch.float64)
    """

    def __init__(self, model: GraphicalModel, iterations: int = 5, variant: Variant = "standard") -> None:
        super().__init__()
        check_network(model, iterations, variant)
        self.model, self.iterations, self.variant = model, iterations, variant
        terms, degree = _terms(model)
        self.slots = max(degree)
        first = np.concatenate([[0], np.cumsum(model.cardinalities)])  # the first state node of each variable
        groups, vf, fv = {}, {}, {}
        self.edges: dict[str, EdgeTypes] = {}
        features: dict[str, Tensor] = {}
        for arity in sorted({len(term.positions) for term in terms}):
            name, members = f"terms of {arity}", [term for term in terms if len(term.positions) == arity]
            nodes, edges, offsets = _edges(members, first, degree)
            groups[name] = FactorGroup.ragged(torch.tensor(nodes), torch.tensor(offsets))
            types = list(dict.fromkeys(edges))
            number = {edge: t for t, edge in enumerate(types)}
            self.edges[name] = EdgeTypes(torch.tensor([number[edge] for edge in edges]), len(types))
            features[name] = torch.tensor([[term.value] for term in members], dtype=torch.float64)
            vf[name] = VariableToFactor(*_towards_term(types, arity, self.slots, variant), aggregate="softmax(1)")
            fv[name] = _towards_state(types, arity, self.slots)
        self.graph = FactorGraph(int(first[-1]), groups)
        self.layer = FGNNLayer.from_parts(vf, FactorToVariable(fv, aggregate="softmax(1)"), schedule="sequential")
        self.readout = linear_of(torch.ones(1, 1 + self.slots, dtype=torch.float64))
        self._values = features

    @property
    def layers(self) -> list[FGNNLayer]:
        """The k FGNN layers, in order; they share their weights."""
        return [self.layer] * self.iterations

    def features(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The input features: unaries (states, 1 + slots) and values by group (terms, 1 + arity), with messages 0."""
        theta = torch.tensor(np.asarray(self.model.unaries), dtype=torch.float64)[:, None]
        finite = torch.cat([theta.masked_fill(theta == -torch.inf, 0.0), *self._values.values()])
        if not bool(finite.abs().max() < LIMIT):
            raise ValueError(f"Expected log-potentials below {LIMIT:g} or -inf (got {float(finite.abs().max()):.3g})")
        f = nn.functional.pad(theta.masked_fill(theta == -torch.inf, -FORBIDDEN), (0, self.slots))
        arity = {name: int(name.split()[-1]) for name in self._values}
        return f, {name: nn.functional.pad(v, (0, arity[name])) for name, v in self._values.items()}

    def forward(self, f: Tensor, gs: dict[str, Tensor]) -> Tensor:
        """The beliefs after every iteration, (k, number of states): -inf if forbidden."""
        history = []
        for t in range(self.iterations):
            f, gs = self.layer(self.graph, f, gs, self.edges)
            largest = float(f.detach().masked_fill(f < -FORBIDDEN / 2, 0.0).abs().max())
            if not largest < LIMIT:
                raise ValueError(
                    f"Expected messages below {LIMIT:g}, the range of the network: use fewer iterations "
                    f"(got {largest:.3g} after iteration {t + 1})"
                )
            history.append(self.readout(f)[:, 0])
        beliefs = torch.stack(history)
        return beliefs.masked_fill(beliefs < -EDGE, -torch.inf)

    @torch.no_grad()
    def beliefs(self) -> list[list[Tensor]]:
        """The log-beliefs b_i: entry [t][i] after iteration t + 1, shape (cardinality of i,).

        They are not normalised. On graphs with several cycles they grow exponentially with the iterations.
        """
        cards = self.model.cardinalities.tolist()
        return [list(after.split(cards)) for after in self.forward(*self.features())]

    def marginals(self) -> list[list[Tensor]]:
        """The beliefs as probabilities, exp(b_i) normalised; NaN for a variable without a possible state.

        Raises:
            ValueError: Beliefs have grown so large that their differences have fewer than nine digits.
        """
        history = self.beliefs()
        for t, after in enumerate(history):
            largest = max(float(b.masked_fill(b == -torch.inf, 0.0).abs().max()) for b in after)
            if largest > _DIGITS:
                raise ValueError(
                    f"Expected beliefs below {_DIGITS:g} for accurate marginals: use fewer iterations "
                    f"(got {largest:.3g} after iteration {t + 1})"
                )
        return [[b.softmax(0) for b in after] for after in history]

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}, variant={self.variant}"


sum_product_network = SumProductNetwork


def _terms(model: GraphicalModel) -> tuple[list[_Term], list[int]]:
    """Disjoint terms of all factors, and the number of slots of each variable.

    Slot 0 of every variable belongs to a constant factor, so that every state has an edge.
    """
    model = model.expanded()
    cards = model.cardinalities.tolist()
    terms = [_Term(0.0, [(i, 0, (x,))]) for i, k in enumerate(cards) for x in range(k)]
    degree = [1] * len(cards)

    def next_slots(scope: list[int]) -> list[int]:
        for i in scope:
            degree[i] += 1
        return [degree[i] - 1 for i in scope]

    for tables in model.table_groups:
        for scope, table in zip(tables.scopes.tolist(), tables.values, strict=True):
            slots = next_slots(scope)
            for cell in np.argwhere(np.isfinite(table)).tolist():
                places = [(i, slot, (x,)) for i, slot, x in zip(scope, slots, cell, strict=True)]
                terms.append(_Term(float(table[tuple(cell)]), places))
    for budgets in model.budget_groups:
        bounds = zip(budgets.scopes.tolist(), budgets.at_least.tolist(), budgets.at_most.tolist(), strict=True)
        for scope, low, high in bounds:
            slots = next_slots(scope)
            for box in split_budget(len(scope), low, high):
                terms.append(_Term(0.0, list(zip(scope, slots, box, strict=True))))
    return terms, degree


def _edges(terms: list[_Term], first: NDArray[np.int64], degree: list[int]) -> tuple[list[int], list[_Edge], list[int]]:
    """The state node and the type of every edge, term by term, and where each term begins."""
    nodes: list[int] = []
    edges: list[_Edge] = []
    offsets = [0]
    for term in terms:
        for a, (i, slot, side) in enumerate(term.positions):
            nodes += [int(first[i]) + x for x in side]
            edges += [_Edge(a, slot, a == 0 and x == side[0], None if slot else degree[i]) for x in side]
        offsets.append(len(nodes))
    return nodes, edges, offsets


def _towards_term(types: list[_Edge], arity: int, slots: int, variant: Variant) -> tuple[Message, TableMatrix]:
    """M adds up the belief of a state, for the standard variant without each slot in turn; Q selects."""
    net = ReluNetwork(1 + arity + 1 + slots)
    f = net.inputs[1 + arity :]
    excluded = sorted({edge.slot for edge in types}) if variant == "standard" else [None]
    beliefs = {d: store(net, total(wire for at, wire in enumerate(f) if at - 1 != d)) for d in excluded}
    value, one = net.carry(net.inputs[0]), net.unit(ONE)
    net.advance()
    shut = -FORBIDDEN * one

    def rows(edge: _Edge) -> list[Wire]:
        up, down = beliefs[edge.slot if variant == "standard" else None]
        slot = [up - down if a == edge.position else shut for a in range(arity)]
        return [value if edge.first else shut, *slot]

    return _parts(net, 1 + arity, [rows(edge) for edge in types])


def _towards_state(types: list[_Edge], arity: int, slots: int) -> tuple[Message, TableMatrix]:
    """M adds the value and the slots of the other positions; Q writes the sum into the slot of the factor."""
    net = ReluNetwork(1 + arity + 1 + slots)
    value, marginals = net.inputs[0], net.inputs[1 : 1 + arity]
    sums = [store(net, value + total(w for b, w in enumerate(marginals) if b != a)) for a in range(arity)]
    theta, one = net.carry(net.inputs[1 + arity]), net.unit(ONE)
    net.advance()
    shut = -FORBIDDEN * one

    def rows(edge: _Edge) -> list[Wire]:
        used = slots if edge.used is None else edge.used
        wires = [shut if edge.used is None else theta, *[shut] * used, *[ZERO] * (slots - used)]
        up, down = sums[edge.position]
        wires[1 + edge.slot] = up - down
        return wires

    return _parts(net, 1 + arity, [rows(edge) for edge in types])


def _parts(net: ReluNetwork, factor_in: int, rows: list[list[Wire]]) -> tuple[Message, TableMatrix]:
    matrices = torch.stack([net.matrix(wires)[0] for wires in rows])
    return message_of(net.layers, factor_in, final_relu=True), table_of(matrices)
