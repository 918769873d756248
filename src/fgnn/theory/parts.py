"""Layers of `fgnn.nn` with given weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fgnn.nn import Message, TableMatrix


def message_of(layers: Sequence[tuple[Tensor, Tensor]], factor_in: int, *, final_relu: bool) -> Message:
    """M with these weights (out, in) and biases, a ReLU after each layer or after all but the last."""
    widths = [len(bias) for _, bias in layers]
    made = Message(
        factor_in,
        layers[0][0].shape[1] - factor_in,
        widths[-1],
        hidden=widths[:-1],
        final_activation="relu" if final_relu else "identity",
    ).double()
    (first, bias), *rest = layers
    with torch.no_grad():
        made.factor_weight.copy_(first[:, :factor_in])
        made.variable_weight.copy_(first[:, factor_in:])
        assert made.bias is not None
        made.bias.copy_(bias)
        for linear, (weight, shift) in zip(made.tail, rest, strict=True):
            assert isinstance(linear, nn.Linear)
            linear.weight.copy_(weight)
            linear.bias.copy_(shift)
    return made


def table_of(matrices: Tensor) -> TableMatrix:
    """Q with one given matrix for each edge type, from (T, m, n)."""
    made = TableMatrix(*matrices.shape).double()
    with torch.no_grad():
        made.weight.copy_(matrices)
    return made


def linear_of(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear layer with given weights (out, in)."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=torch.float64)
    with torch.no_grad():
        made.weight.copy_(weight)
        if bias is not None:
            made.bias.copy_(bias)
    return made
