"""Q: a matrix for each edge feature, in four forms, none of which stores a matrix per edge."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fgnn.graph import EdgeTypes, Incidence, tracing
from fgnn.nn.backends.choice import choose_backend, working_dtype
from fgnn.nn.backends.half_call import BY_POSITION, CONSTANT, FUSED_NET, NET_IN_ONE
from fgnn.nn.backends.triton.edge_mlp import fits as net_fits
from fgnn.nn.backends.triton.linear import fits
from fgnn.nn.edge_features import EdgeFeatures, edge_types, flatten_edges
from fgnn.nn.edge_net import EdgeNet, net_weights
from fgnn.nn.functional import Coefficients
from fgnn.nn.plain_modules import is_plain

Form = Literal["dense", "basis", "table", "cosine"]


class EdgeMatrix(nn.Module, ABC):
    r"""Base of all forms: :math:`\mathcal{Q}(t) = \sum_\tau \varphi_\tau(t)\, W_\tau`, an m×n matrix.

    A form defines φ(t); ``weight`` is W (T, m, n). A call returns the input of ``aggregate_messages``: coefficients in
    edge order, and W. Where t depends on the position in the scope only, the sum is evaluated once per position.
    """

    def __init__(self, edge_in: int, rows: int, columns: int, terms: int) -> None:
        super().__init__()
        if min(edge_in, rows, columns, terms) < 1:
            raise ValueError(f"Expected positive sizes (got t {edge_in}, m {rows}, n {columns}, T {terms})")
        self.edge_in, self.rows, self.columns, self.terms = edge_in, rows, columns, terms
        self.weight = nn.Parameter(torch.empty(terms, rows, columns))

    @abstractmethod
    def coefficients(self, t: Tensor) -> Tensor:
        """φ(t).  # shape: (..., edge_in) -> (..., T)"""

    def matrix(self, t: Tensor) -> Tensor:
        """Q(t) itself, for inspection and tests; layers never build it.  # shape: (..., m, n)"""
        return torch.einsum("...t,tmn->...mn", self.coefficients(t), self.weight)

    def forward(self, t: EdgeFeatures | None, incidence: Incidence) -> tuple[Coefficients, Tensor]:
        """Coefficients and W for all edges.

        Args:
            t: Features (E, edge_in) or, where all factors have A edges, (C, A, edge_in), with B in front where samples
                have their own; or (A, edge_in), the same for every factor.
        """
        flat, by_position = self._flat(t, incidence)
        if by_position:
            by_place = self.coefficients(flat) @ self.weight.flatten(1)
            return incidence.positions, by_place.view(-1, self.rows, self.columns)
        return self.sum_of_terms(flat)

    def _flat(self, t: EdgeFeatures | None, incidence: Incidence) -> tuple[Tensor, bool]:
        if not isinstance(t, Tensor):
            raise ValueError(f"Expected edge features of length {self.edge_in} (got {type(t).__name__})")  # noqa: TRY004
        return flatten_edges(t, incidence, self.edge_in)

    def operands(
        self, t: EdgeFeatures | None, incidence: Incidence, kernels: bool
    ) -> tuple[EdgeTypes | None, tuple[Any, ...], int]:
        """What the operation on a half-layer reads: types of edges, operands and options.

        The operands are the last three of ``Operands``: coefficients and W; or t, W and the network that computes φ,
        by ``kernels`` where they fit.
        """
        return called_operands(self, t, incidence)

    def sum_of_terms(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients and matrices whose weighted sum is Q(t).  # shapes: (..., T), (T, m, n)"""
        return self.coefficients(t), self.weight

    def extra_repr(self) -> str:
        return f"t {self.edge_in} -> {self.terms} terms of ({self.rows}, {self.columns})"


class DenseMatrix(EdgeMatrix):
    r"""The paper's form, an MLP from t to the m·n entries of Q(t).

    Its last layer is linear, :math:`\mathrm{vec}\,\mathcal{Q}(t) = W u(t) + w_0` with u(t) the last hidden layer, so
    it is a sum of T = hidden + 1 fixed matrices with coefficients :math:`\varphi(t) = [u(t), 1]`.
    """

    def __init__(self, edge_in: int, rows: int, columns: int, *, hidden: Sequence[int] = (32,)) -> None:
        if not hidden:
            raise ValueError("Expected at least one hidden layer in a dense Q (got none)")
        super().__init__(edge_in, rows, columns, hidden[-1] + 1)
        self.net = EdgeNet([edge_in, *hidden])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Entries of Q of variance about 2 / n for t of unit variance."""
        self.net.reset_parameters()
        nn.init.normal_(self.weight, std=math.sqrt(2 / (self.columns * self.terms)))

    def coefficients(self, t: Tensor) -> Tensor:
        """[u(t), 1].  # shape: (..., T)"""
        u = self.net(t).relu()
        return torch.cat([u, u.new_ones((*u.shape[:-1], 1))], dim=-1)

    def operands(
        self, t: EdgeFeatures | None, incidence: Incidence, kernels: bool
    ) -> tuple[EdgeTypes | None, tuple[Any, ...], int]:
        """t, W and the network."""
        net = net_weights(self.net) if is_plain(self, DenseMatrix) else None
        if net is None:
            return super().operands(t, incidence, kernels)
        return _with_net(self, net, *self._flat(t, incidence), incidence, CONSTANT, kernels)


class BasisMatrix(EdgeMatrix):
    r"""A sum of T shared matrices with coefficients from a small network, :math:`\varphi: t \mapsto \mathbb{R}^T`."""

    def __init__(
        self, edge_in: int, rows: int, columns: int, *, bases: int = 16, hidden: Sequence[int] = (32,)
    ) -> None:
        super().__init__(edge_in, rows, columns, bases)
        self.net = EdgeNet([edge_in, *hidden, bases])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Entries of Q of variance about 2 / n for t of unit variance."""
        self.net.reset_parameters()
        nn.init.normal_(self.weight, std=math.sqrt(2 / (self.columns * self.terms)))

    def coefficients(self, t: Tensor) -> Tensor:
        """φ(t), linear in the last hidden layer.  # shape: (..., T)"""
        phi: Tensor = self.net(t)
        return phi

    def sum_of_terms(self, t: Tensor) -> tuple[Tensor, Tensor]:
        r"""φ(t) and W; without hidden layers, where :math:`\varphi(t) = A t + b`, the shortest sum:

        .. math:: \mathcal{Q}(t) = \sum_k t_k \Big(\sum_\tau A_{\tau k} W_\tau\Big) + \sum_\tau b_\tau W_\tau
        """
        net = net_weights(self.net)
        if net is None or not self._is_short(net, t):
            return super().sum_of_terms(t)
        linear = torch.cat([net[0], net[1].unsqueeze(1)], 1)  # shape: (T, edge_in + 1)
        weight = (linear.T @ self.weight.flatten(1)).view(-1, self.rows, self.columns)
        return torch.cat([t, t.new_ones((*t.shape[:-1], 1))], -1), weight

    def operands(
        self, t: EdgeFeatures | None, incidence: Incidence, kernels: bool
    ) -> tuple[EdgeTypes | None, tuple[Any, ...], int]:
        """t, W and the network, unless a shorter sum serves."""
        net = net_weights(self.net) if is_plain(self, BasisMatrix) else None
        if net is None:
            return super().operands(t, incidence, kernels)
        flat, by_position = self._flat(t, incidence)
        if not by_position and self._is_short(net, flat):
            return None, (*self.sum_of_terms(flat), ()), 0
        return _with_net(self, net, flat, by_position, incidence, 0, kernels)

    def _is_short(self, net: tuple[Tensor, ...], t: Tensor) -> bool:
        """Whether t itself has fewer entries than φ; the fused kernels read φ."""
        return len(net) == 2 and self.edge_in + 1 < self.terms and not self._on_kernels(t)

    def _on_kernels(self, t: Tensor) -> bool:
        return choose_backend(device=t.device, dtype=working_dtype(t)) == "triton"


class TableMatrix(EdgeMatrix):
    """One matrix for each of K edge types; t is a type, or one-hot.

    Types are integers (E,), (C, A) or, by position, (A,), which are read at every call; or ``EdgeTypes``, which are
    checked and sorted once. Compiled and exported code does not read values: there a one-hot with other values is not
    refused but weights the matrices.
    """

    def __init__(self, types: int, rows: int, columns: int) -> None:
        super().__init__(types, rows, columns, types)
        self.reads_types = True  # not where it stands for edges without features
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Entries of variance 2 / n."""
        nn.init.normal_(self.weight, std=math.sqrt(2 / self.columns))

    def coefficients(self, t: Tensor) -> Tensor:
        """t itself, one-hot.  # shape: (..., K)"""
        if t.dtype.is_floating_point:
            return t
        return nn.functional.one_hot(t.long(), self.terms).to(self.weight.dtype)

    def forward(self, t: EdgeFeatures | None, incidence: Incidence) -> tuple[Coefficients, Tensor]:
        """Types and W; for samples with types of their own, one-hot coefficients and W."""
        if tracing() and isinstance(t, Tensor):  # sorting and checking would read the types
            flat, by_position = flatten_edges(t, incidence, self.terms if t.dtype.is_floating_point else None)
            if by_position:
                at = flat.argmax(-1) if t.dtype.is_floating_point else flat.long()
                return incidence.positions, self.weight.index_select(0, at)
            return self.coefficients(flat), self.weight
        types = edge_types(t, incidence, self.terms)
        if isinstance(types, EdgeTypes):
            return types, self.weight
        if types.dim() == 1:  # by position
            return incidence.positions, self.weight.index_select(0, types)
        return self.coefficients(types), self.weight


class CosineMatrix(EdgeMatrix):
    r"""One matrix for each position a = 0, ..., A - 1 in a scope, from cosines of the position:

    .. math:: \mathcal{Q}(t_a) = \sum_{\tau=0}^{T-1} \cos\Big(\pi \tau\, \frac{a + \frac12}{A}\Big)\, W_\tau

    It reads no edge features and works for any arity. The cosines are smooth in the relative position, so it
    generalises to arities not trained on; they are orthogonal over a scope, so T = A terms distinguish all positions.

    Args:
        rows, columns: m and n.
        bases: T.
        fan: The typical number of edges that are summed; W is drawn so that the sum has unit scale.
    """

    def __init__(self, rows: int, columns: int, *, bases: int = 8, fan: int = 1) -> None:
        super().__init__(2, rows, columns, bases)
        self.fan = fan
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Entries of Q of variance about 2 / (n · fan)."""
        nn.init.normal_(self.weight, std=math.sqrt(2 / (self.columns * self.terms * self.fan)))

    def coefficients(self, t: Tensor) -> Tensor:
        """The cosines, of t = (a + ½, A).  # shape: (..., 2) -> (..., T)"""
        tau = torch.arange(self.terms, dtype=t.dtype, device=t.device)
        return torch.cos(torch.pi * tau * t[..., :1] / t[..., 1:])

    def cosines(self, incidence: Incidence, arity: int) -> Tensor:
        """φ at the positions of a scope of this arity, kept with the edges.  # shape: (A, T)"""
        like = self.weight

        def make() -> Tensor:
            a = torch.arange(arity, dtype=like.dtype, device=like.device)
            return self.coefficients(torch.stack([a + 0.5, torch.full_like(a, arity)], -1))

        return make() if tracing() else incidence.derived(("cosines", arity, self.terms, like.dtype), make)

    def at_positions(self, incidence: Incidence, arity: int) -> Tensor:
        """Q at the positions of a scope of this arity.  # shape: (A, m, n)"""
        return (self.cosines(incidence, arity) @ self.weight.flatten(1)).view(-1, self.rows, self.columns)

    def forward(self, t: EdgeFeatures | None, incidence: Incidence) -> tuple[Coefficients, Tensor]:
        """The positions and a matrix for each; for scopes of different arities the cosines of each edge, and W."""
        if t is not None:
            raise ValueError(f"Expected no edge features for q='cosine' (got {type(t).__name__})")
        if incidence.arity is not None:
            return incidence.positions, self.at_positions(incidence, max(1, incidence.arity))

        def by_edge() -> Tensor:
            group = incidence.group()
            factor, ptr = group.factor_index(), group.factor_ptr()
            place = torch.arange(incidence.num_edges, device=factor.device) - ptr[factor]
            t = torch.stack([place, ptr.diff()[factor]], -1).to(self.weight.dtype)  # ONNX stacks one dtype only
            return self.coefficients(torch.stack([t[:, 0] + 0.5, t[:, 1]], -1))

        if tracing():
            return by_edge(), self.weight
        return incidence.derived(("cosines", self.terms, self.weight.dtype), by_edge), self.weight


def make_edge_matrix(form: Form, edge_in: int, rows: int, columns: int, **options: Any) -> EdgeMatrix:
    """A Q of the named form; edges without features (``edge_in`` 0) share one matrix unless the form is "cosine"."""
    if form not in _FORMS:
        raise ValueError(f"Expected q among {list(_FORMS)} (got {form!r})")
    if form == "cosine":
        if edge_in:
            raise ValueError(f"Expected no edge features for q='cosine' (got edge_in {edge_in})")
        return CosineMatrix(rows, columns, **options)
    if edge_in == 0:
        shared = TableMatrix(1, rows, columns)
        shared.reads_types = False
        return shared
    return _FORMS[form](edge_in, rows, columns, **options)


_FORMS: dict[Form, Callable[..., EdgeMatrix]] = {
    "dense": DenseMatrix,
    "basis": BasisMatrix,
    "table": TableMatrix,
    "cosine": CosineMatrix,
}


def called_operands(
    matrix: nn.Module, t: EdgeFeatures | None, incidence: Incidence
) -> tuple[EdgeTypes | None, tuple[Any, ...], int]:
    """The operands of a Q that is called as a module; see :meth:`EdgeMatrix.operands`."""
    coefficients, weight = matrix(t, incidence)
    if isinstance(coefficients, EdgeTypes):
        return coefficients, (None, weight, ()), 0
    return None, (coefficients, weight, ()), 0


def _with_net(
    matrix: EdgeMatrix, net: tuple[Tensor, ...], t: Tensor, by_position: bool, incidence: Incidence, options: int,
    kernels: bool,
) -> tuple[EdgeTypes | None, tuple[Any, ...], int]:  # fmt: skip
    """See :meth:`EdgeMatrix.operands`."""
    for theta in net[::2]:  # torch.compile traces a loop faster than a generator
        kernels = kernels and fits(t, theta)
    if kernels:
        in_one = not options and len(net) == 4 and net_fits(t, net[0], net[2])
        options |= NET_IN_ONE if in_one else FUSED_NET
    if by_position:
        return incidence.positions, (t, matrix.weight, net), options | BY_POSITION
    return None, (t, matrix.weight, net), options
