"""M: the message network on the features of a factor and a variable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fgnn.nn.backends.linear import linear
from fgnn.nn.functional import Activation
from fgnn.nn.plain_modules import is_observed, linear_weights

_ACTIVATIONS: tuple[Activation, ...] = ("relu", "identity")


class Message(nn.Module):
    r"""An MLP on the concatenation, :math:`\mathcal{M}([g_c, f_i] \mid \Theta)`.

    Its first linear layer is a sum of a factor's and a variable's part,
    :math:`\Theta_1 [g_c, f_i] + \beta = (\Theta_g\, g_c + \beta) + \Theta_f f_i`, each computed once per node.

    Args:
        factor_in: Length of g_c; 0 where factors have no features.
        variable_in: Length of f_i; 0 where variables have none.
        out: n, the length of the message.
        hidden: Widths of the layers before the last; by default there are none: one linear layer and σ.
        activation: σ after every layer but the last, "relu" or "identity".
        final_activation: σ after the last layer; by default the same.
        bias: Whether the linear layers have a bias.
    """

    factor_weight: Tensor
    variable_weight: Tensor

    def __init__(
        self,
        factor_in: int,
        variable_in: int,
        out: int,
        *,
        hidden: Sequence[int] = (),
        activation: Activation = "relu",
        final_activation: Activation | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        final_activation = activation if final_activation is None else final_activation
        for name in (activation, final_activation):
            if name not in _ACTIVATIONS:
                raise ValueError(f"Expected an activation among {list(_ACTIVATIONS)} (got {name!r})")
        widths = [*hidden, out]
        if factor_in < 0 or variable_in < 0 or min(widths) < 1:
            raise ValueError(f"Expected positive widths (got {factor_in}, {variable_in}, {widths})")
        self.factor_in, self.variable_in, self.out = factor_in, variable_in, out
        self.activation, self.final_activation = activation, final_activation
        for part, length in (("factor_weight", factor_in), ("variable_weight", variable_in)):
            weight = torch.empty(widths[0], length)
            if length:
                self.register_parameter(part, nn.Parameter(weight))
            else:  # nothing to learn: DistributedDataParallel would wait for the gradient of a parameter
                self.register_buffer(part, weight)
        self.bias = nn.Parameter(torch.empty(widths[0])) if bias else None
        self.tail = nn.ModuleList(nn.Linear(i, o, bias=bias) for i, o in pairwise(widths))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the split layer like one ``nn.Linear`` on the concatenation."""
        bound = 1 / math.sqrt(max(self.factor_in + self.variable_in, 1))
        for tensor in (self.factor_weight, self.variable_weight, self.bias):
            if tensor is not None and tensor.numel():
                nn.init.uniform_(tensor, -bound, bound)
        for layer in self.tail:
            layer.reset_parameters()  # type: ignore[operator]

    @property
    def first_activation(self) -> Activation:
        """σ after the split layer."""
        return self.activation if len(self.tail) else self.final_activation

    def parts(self, g: Tensor | None, f: Tensor | None, factors: int, variables: int) -> tuple[Tensor, Tensor]:
        """The two parts of the first layer.

        Args:
            g: (..., C, factor_in); may be None where factor_in is 0.
            f: (..., N, variable_in); may be None where variable_in is 0.

        Returns:
            a (..., C, width), with the bias, and b (..., N, width).
        """
        self.check(g, f)
        a = self._part(g, self.factor_weight, self.bias, factors)
        return a, self._part(f, self.variable_weight, None, variables)

    def check(self, g: Tensor | None, f: Tensor | None) -> None:
        """Refuse features of another length."""
        for x, length in ((g, self.factor_in), (f, self.variable_in)):
            actual = "none" if x is None else x.shape[-1]
            if length and actual != length:
                raise ValueError(f"Expected features of length {length} (got {actual})")

    def _part(self, x: Tensor | None, weight: Tensor, bias: Tensor | None, count: int) -> Tensor:
        if x is None or weight.shape[1] == 0:
            row = weight.new_zeros(weight.shape[0]) if bias is None else bias
            return row.expand(count, -1)
        return linear(x, weight, bias)

    def per_edge(self, a: Tensor, b: Tensor, factor: Tensor, variable: Tensor) -> Tensor:
        """M on every edge, for an M of several layers.  # shape: (..., E, n)"""
        return self._rest(a.index_select(-2, factor) + b.index_select(-2, variable))

    def forward(self, g: Tensor, f: Tensor) -> Tensor:
        """M on matching rows of g and f.  # shape: (..., n)"""
        return self._rest(linear(g, self.factor_weight, self.bias) + linear(f, self.variable_weight))

    def _rest(self, h: Tensor) -> Tensor:
        """The rest of M, after the split layer's sum."""
        h = h.relu() if self.first_activation == "relu" else h
        for k, layer in enumerate(self.tail):
            relu = (self.activation if k + 1 < len(self.tail) else self.final_activation) == "relu"
            weights = linear_weights(layer)
            if weights is None:
                h = layer(h)
                h = h.relu() if relu else h
            else:
                h = linear(h, *weights, relu=relu)
        return h

    def extra_repr(self) -> str:
        widths = [self.factor_weight.shape[0], *(getattr(layer, "out_features", "?") for layer in self.tail)]
        return f"[{self.factor_in}, {self.variable_in}] -> {' -> '.join(map(str, widths))}, {self.final_activation}"


def in_parts(message: nn.Module) -> bool:
    """Whether M's first layer may be computed in two parts, once per node. Otherwise M is called: see `call_on_edges`.

    A hook on M, or a forward of its own, must see the features of both ends of an edge.
    """
    return isinstance(message, Message) and type(message).forward is Message.forward and not is_observed(message)


def call_on_edges(message: nn.Module, g: Tensor | None, f: Tensor | None, factor: Tensor, variable: Tensor) -> Tensor:
    """M called with a row of g and f for every edge; without features, with rows of length 0.  # shape: (..., E, n)"""
    if isinstance(message, Message):
        message.check(g, f)
        g, f = g if message.factor_in else None, f if message.variable_in else None
    some = next((x for x in (g, f) if x is not None), None)
    like = next(message.parameters()) if some is None else some
    ends = [
        like.new_zeros(index.shape[0], 0) if x is None else x.index_select(-2, index)
        for x, index in ((g, factor), (f, variable))
    ]
    result: Tensor = message(*ends)
    return result
