"""Message passing on a plain graph: the paper's MPNN layer, and the general form with a custom M and U."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGroup, Incidence, TracedIncidence, tracing
from fgnn.nn.aggregate import Aggregation, finish
from fgnn.nn.backends.torch.reduce import reduce_edges
from fgnn.nn.backends.torch.traced import reduce_segments
from fgnn.nn.direction import VariableToFactor
from fgnn.nn.edge_features import EdgeFeatures, flatten_edges
from fgnn.nn.edge_matrix import EdgeMatrix, Form, make_edge_matrix
from fgnn.nn.functional import Activation
from fgnn.nn.inputs import check_features, kind_of
from fgnn.nn.message import Message
from fgnn.nn.norm import Norm

# The edges of each group, made once: index tensors are kept with them.
_edges: WeakKeyDictionary[FactorGroup, Incidence] = WeakKeyDictionary()


def adjacency(neighbours: object) -> Incidence:
    """Adjacency lists as edges: row i of ``neighbours`` lists N(i), node i being both factor i and variable i."""
    if isinstance(neighbours, Incidence):
        edges = neighbours
    elif not isinstance(neighbours, FactorGroup):
        order = "the arguments are (neighbours, f, e)"
        raise ValueError(f"Expected neighbours as a FactorGroup (got {kind_of(neighbours)}); {order}")  # noqa: TRY004
    elif tracing():
        edges = TracedIncidence.of(neighbours, neighbours.num_factors)
    else:
        found = _edges.get(neighbours)
        edges = _listed(neighbours) if found is None else found
        _edges[neighbours] = edges
    if edges.num_factors != edges.num_variables:
        raise ValueError(
            f"Expected a list of neighbours for each of {edges.num_variables} nodes (got {edges.num_factors})"
        )
    return edges


def _listed(neighbours: FactorGroup) -> Incidence:
    flat, count = neighbours.scopes.reshape(-1), neighbours.num_factors
    if flat.device.type == "cpu":  # reading from a GPU would wait for it
        wrong = ((flat < 0) | (flat >= count)).nonzero().flatten().tolist()
        if wrong:
            node = int(neighbours.factor_index()[wrong[0]])
            raise ValueError(
                f"Expected neighbours 0 to {count - 1} (got {int(flat[wrong[0]])} in the list of node {node})"
            )
    return Incidence.of(neighbours, count)


def _places(edges: Incidence) -> Tensor:
    """The place of each edge in its list, of lists of equal length."""
    if not tracing():
        return edges.positions.index
    return torch.arange(edges.num_edges, device=edges.variable.device) % max(edges.arity or 0, 1)


class MPNNLayer(nn.Module):
    r"""eq. (MPNN_spec):

    .. math:: \tilde f_i = \max_{j \in \mathcal{N}(i)} \mathcal{Q}(e_{ij})\, \mathcal{M}(f_i, f_j)

    It is the Variable-to-Factor half of an FGNN layer in which each node i is also a factor with scope N(i).

    Args:
        node_in: Length of f_i.
        edge_in: Length of e_ij; for ``q="table"`` the number of types; 0 for none.
        out: m.
        q, aggregate, width, hidden, message_activation, bias, norm, activation, q_options: As in ``FGNNLayer``.
    """

    def __init__(
        self,
        node_in: int,
        edge_in: int,
        out: int,
        *,
        q: Form = "basis",
        aggregate: str | Aggregation = "max",
        width: int | None = None,
        hidden: Sequence[int] = (),
        message_activation: Activation = "relu",
        bias: bool = False,
        norm: Norm = None,
        activation: str | None = None,
        q_options: dict[str, Any] | None = None,
    ) -> None:
        n = width or out
        message = Message(node_in, node_in, n, hidden=hidden, activation=message_activation)
        matrix = make_edge_matrix(q, edge_in, out, n, **(q_options or {}))
        super().__init__()
        self.direction = VariableToFactor(
            message, matrix, aggregate=aggregate, bias=bias, norm=norm, activation=activation
        )

    @classmethod
    def from_parts(cls, message: Message, matrix: EdgeMatrix, **options: Any) -> MPNNLayer:
        """A layer with a custom M and Q; M reads f_i as its factor's part and f_j as its variable's."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.direction = VariableToFactor(message, matrix, **options)
        return layer

    def forward(self, neighbours: FactorGroup | Incidence, f: Tensor, e: EdgeFeatures | None = None) -> Tensor:
        """New node features (B?, N, out) from f (B?, N, node_in) and e in the order of the lists of neighbours."""
        edges, message = adjacency(neighbours), getattr(self.direction.edge_messages, "message", None)
        if isinstance(message, Message):
            check_features("f", "nodes", f, edges.num_factors, message.variable_in, message.factor_weight.dtype)
        new_f: Tensor = self.direction(edges, f, f, e)
        return new_f


class MessagePassing(nn.Module):
    r"""eq. (update), with custom networks:

    .. math:: m_i = \operatorname{agg}_{j \in \mathcal{N}(i)} \mathcal{M}(f_i, f_j, e_{ij}), \qquad
              \tilde f_i = \mathcal{U}(f_i, m_i)

    Args:
        message: M, called once with all edges: (B?, E, d), (B?, E, d), and (B?, E, t) or None -> (B?, E, m).
        update: U, called once with all nodes: (B?, N, d), (B?, N, m) -> (B?, N, ...); by default m_i itself.
        aggregate: "sum" as printed, or "max", "mean", "softmax(γ)".
    """

    def __init__(
        self,
        message: Callable[[Tensor, Tensor, Tensor | None], Tensor],
        update: Callable[[Tensor, Tensor], Tensor] | None = None,
        *,
        aggregate: str | Aggregation = "sum",
    ) -> None:
        super().__init__()
        self.message = message
        self.update = update
        self.aggregation = Aggregation.parse(aggregate)

    def forward(self, neighbours: FactorGroup | Incidence, f: Tensor, e: Tensor | None = None) -> Tensor:
        """New node features, from f (B?, N, d) and edge features e in the order of the lists of neighbours."""
        incidence = adjacency(neighbours)
        check_features("f", "nodes", f, incidence.num_factors, f.shape[-1], f.dtype)
        if e is not None:
            e, by_place = flatten_edges(e, incidence, int(e.shape[-1]))
            e = e.index_select(-2, _places(incidence)) if by_place else e
        messages = self.message(f.index_select(-2, incidence.factor), f.index_select(-2, incidence.variable), e)
        degree = incidence.degree("factor") if self.aggregation.kind == "mean" else None
        m = finish(self._total(messages, incidence), degree, incidence.empty_factors(), self.aggregation)
        return m if self.update is None else self.update(f, m)

    def _total(self, messages: Tensor, incidence: Incidence) -> Tensor:
        """The aggregate at each node, the identity element without edges; the gradient of a maximum is its first's."""
        if tracing():  # blocks by degree would read the scopes
            exact = messages.to(torch.promote_types(messages.dtype, torch.float32))
            total = reduce_segments(exact, incidence.factor, incidence.num_factors, self.aggregation)
            return total.to(messages.dtype)
        total, _ = reduce_edges(messages.movedim(-2, 0), incidence, "factor", self.aggregation, arg=True)
        return total.movedim(0, -2)
