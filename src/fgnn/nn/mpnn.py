"""Message passing on a plain graph: the paper's MPNN layer, and the general form with one's own M and U."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from fgnn.graph import FactorGroup, Incidence
from fgnn.nn.aggregate import Aggregation, finish, reduce_edges
from fgnn.nn.direction import VariableToFactor
from fgnn.nn.edge_features import EdgeFeatures, flatten_edges
from fgnn.nn.edge_matrix import EdgeMatrix, Form, make_edge_matrix
from fgnn.nn.functional import Activation
from fgnn.nn.message import Message
from fgnn.nn.norm import Norm


def adjacency(neighbours: FactorGroup | Incidence) -> Incidence:
    """Adjacency lists as edges: row i of ``neighbours`` lists N(i), node i being both factor i and variable i."""
    found = neighbours if isinstance(neighbours, Incidence) else Incidence.of(neighbours, neighbours.num_factors)
    if found.num_factors != found.num_variables:
        raise ValueError(
            f"Expected a list of neighbours for each of {found.num_variables} nodes (got {found.num_factors})"
        )
    return found


class MPNNLayer(nn.Module):
    r"""eq. (MPNN_spec):

    .. math:: \tilde f_i = \max_{j \in \mathcal{N}(i)} \mathcal{Q}(e_{ij})\, \mathcal{M}(f_i, f_j)

    It is the Variable-to-Factor half where each node i is also a factor whose scope is N(i).

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
        self._setup(VariableToFactor(message, matrix, aggregate=aggregate, bias=bias, norm=norm, activation=activation))

    @classmethod
    def from_parts(cls, message: Message, matrix: EdgeMatrix, **options: Any) -> MPNNLayer:
        """A layer with M and Q of one's own; M reads f_i as its factor's part and f_j as its variable's."""
        layer = cls.__new__(cls)
        layer._setup(VariableToFactor(message, matrix, **options))
        return layer

    def _setup(self, direction: VariableToFactor) -> None:
        nn.Module.__init__(self)
        self.direction = direction

    def forward(self, neighbours: FactorGroup | Incidence, f: Tensor, e: EdgeFeatures | None = None) -> Tensor:
        """New node features (B?, N, out) from f (B?, N, node_in) and e in the order of the lists of neighbours."""
        made: Tensor = self.direction(adjacency(neighbours), f, f, e)
        return made


class MessagePassing(nn.Module):
    r"""eq. (update), with the user's own networks:

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
        if e is not None:
            e, by_place = flatten_edges(e, incidence, int(e.shape[-1]))
            e = e[incidence.positions.index] if by_place else e
        sent = self.message(f.index_select(-2, incidence.factor), f.index_select(-2, incidence.variable), e)
        rows = sent.transpose(0, 1) if sent.dim() == 3 else sent
        total, _ = reduce_differentiable(rows, incidence, self.aggregation)
        total = total.transpose(0, 1) if sent.dim() == 3 else total
        degree = incidence.degree("factor") if self.aggregation.kind == "mean" else None
        got = finish(total, degree, incidence.empty_factors(), self.aggregation)
        return got if self.update is None else self.update(f, got)


def reduce_differentiable(rows: Tensor, incidence: Incidence, aggregation: Aggregation) -> tuple[Tensor, Tensor | None]:
    """``reduce_edges`` with the gradient of a maximum at its first edge (``max`` with indices, never ``amax``)."""
    return reduce_edges(rows, incidence, "factor", aggregation, arg=True)
