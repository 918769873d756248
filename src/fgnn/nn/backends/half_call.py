"""What a call of a half-layer consists of: tensors, and everything that carries no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fgnn.graph import EdgeTypes, Incidence, Side
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.edge_terms import Terms
from fgnn.nn.backends.triton.replay import arithmetic

# How aggregates become results: as they are, each by itself, or all in one.
Ends = Literal["none", "each", "all"]


class Operands(NamedTuple):
    """What one group reads, or something for each of them, such as its gradient; None where absent.

    Attributes:
        a: g (..., C, d), or without ``factor_weight`` the part a of M: (..., C, n), or (..., E, n) with a row per edge.
        factor_weight, bias: Θ_g (n, d) and β (n,).
        b: The part b of M (..., N, n), if f and ``variable_weight`` are absent.
        variable_weight: Θ_f (n, d), which f is multiplied with.
        t: Features of edges, or without ``net`` coefficients φ.
        weight: W (T, m, n).
        net: Θ and β of each layer of φ.
    """

    a: Any
    factor_weight: Any
    bias: Any
    b: Any
    variable_weight: Any
    t: Any
    weight: Any
    net: tuple[Any, ...]


# A group's form is an integer, which an operator can take: bits 0 to 5 tell which operands are there, the next are
# options, and the rest is the number of tensors in ``net``.
_FEATURES, _PARAMETERS = (0, 3, 5), (1, 2, 4)
RELU, PER_EDGE, FUSED, CONSTANT, BY_POSITION, FUSED_NET, NET_IN_ONE = (1 << k for k in range(6, 13))
_NET = 13


def form_of(x: Operands, options: int) -> int:
    """Which operands a group has, and ``options``.

    RELU: σ of M; PER_EDGE: a has a row per edge; FUSED: parts of M by the kernel of the small linear layer. The others
    say how Q is computed, see :class:`Terms`.
    """
    first = (x.a is not None) | (x.factor_weight is not None) << 1 | (x.bias is not None) << 2
    second = (x.b is not None) | (x.variable_weight is not None) << 1 | (x.t is not None) << 2
    return options | first | second << 3 | len(x.net) << _NET


class GroupCall(NamedTuple):
    """One group's part of a call."""

    edges: Incidence
    types: EdgeTypes | None
    factors: int
    variables: int
    form: int

    def has(self, option: int) -> bool:
        """Whether the form has this option."""
        return bool(self.form & option)

    @property
    def terms(self) -> Terms:
        """How Q is computed."""
        fused = self.has(FUSED_NET) and not self.has(BY_POSITION)
        return Terms(self.has(CONSTANT), fused, self.has(NET_IN_ONE))


class HalfCall(NamedTuple):
    """The part of a call that carries no gradient.

    Attributes:
        has_f: Whether the first operand is f, which all groups read.
        batch: B; None if no input has a batch axis.
        relu: Whether ReLU is applied at the end.
        empty: For each result, True for destinations without edges (D,), or None.
        keep: None without gradients; else the dtype in which the winning edges of a maximum are kept.
        packed: Whether the few numbers kept for each position are one tensor; each takes its time to compile.
    """

    groups: tuple[GroupCall, ...]
    towards: Side
    aggregation: Aggregation
    has_f: bool
    batch: int | None
    ends: Ends
    relu: bool
    empty: tuple[Tensor | None, ...]
    dtype: torch.dtype
    backend: str
    keep: torch.dtype | None = None
    packed: bool = False

    def split(self, flat: Sequence[Any]) -> tuple[Any, list[Operands], list[Any]]:
        """f, the operands of each group, and the biases at the end."""
        rest = iter(flat)
        f = next(rest) if self.has_f else None
        features = [[next(rest) if group.form >> k & 1 else None for k in _FEATURES] for group in self.groups]
        groups = []
        for group, (a, b, t) in zip(self.groups, features, strict=True):
            theta_g, bias, theta_f = [next(rest) if group.form >> k & 1 else None for k in _PARAMETERS]
            weight, *net = [next(rest) for _ in range(1 + (group.form >> _NET))]
            groups.append(Operands(a, theta_g, bias, b, theta_f, t, weight, tuple(net)))
        return f, groups, list(rest)

    def join(self, f: Any, groups: Sequence[Operands], biases: Sequence[Any]) -> list[Any]:
        """The inverse of :meth:`split`."""
        return self.features(f, groups) + self.parameters(groups, biases)

    def features(self, f: Any, groups: Sequence[Operands]) -> list[Any]:
        """The operands that come first."""
        flat = [f] if self.has_f else []
        for group, x in zip(self.groups, groups, strict=True):
            flat += [x[k] for k in _FEATURES if group.form >> k & 1]
        return flat

    def parameters(self, groups: Sequence[Operands], biases: Sequence[Any]) -> list[Any]:
        """The operands that follow."""
        flat: list[Any] = []
        for group, x in zip(self.groups, groups, strict=True):
            flat += [x[k] for k in _PARAMETERS if group.form >> k & 1]
            flat += [x.weight, *x.net]
        return flat + list(biases)

    @property
    def key(self) -> tuple[Any, ...]:
        """What kernels depend on besides the tensors, without references to the edges."""
        edges = [(g.edges.handle, None if g.types is None else g.types.handle, g.form) for g in self.groups]
        masks = [None if mask is None else id(mask) for mask in self.empty]
        return (*edges, *self[1:7], *masks, *self[8:], *arithmetic())

    @property
    def programs(self) -> dict[Any, Any]:
        """Where passes keep what they did on these edges."""
        return self.groups[0].edges.derived("programs", dict)

    @property
    def winners(self) -> torch.dtype | None:
        """The dtype of the winning edges; None if they are not kept."""
        return self.keep if self.aggregation.kind == "max" else None

    @property
    def results(self) -> int:
        """The number of results."""
        return 1 if self.ends == "all" else len(self.groups)
