"""Layers of `fgnn.nn` with given weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fgnn.nn import Message, TableMatrix


def message_of(layers: Sequence[tuple[Tensor, Tensor]], factor_in: int, *, final_relu: bool) -> Message:
    """M with these weights (out, in) and biases, and a ReLU after each layer or after all but the last."""
    widths = [len(bias) for _, bias in layers]
    message = Message(
        factor_in,
        layers[0][0].shape[1] - factor_in,
        widths[-1],
        hidden=widths[:-1],
        final_activation="relu" if final_relu else "identity",
    ).double()
    (first, bias), *rest = layers
    with torch.no_grad():
        message.factor_weight.copy_(first[:, :factor_in])
        message.variable_weight.copy_(first[:, factor_in:])
        assert message.bias is not None
        message.bias.copy_(bias)
        for linear, (weight, shift) in zip(message.tail, rest, strict=True):
            assert isinstance(linear, nn.Linear)
            linear.weight.copy_(weight)
            linear.bias.copy_(shift)
    return message


def table_of(matrices: Tensor) -> TableMatrix:
    """Q with one given matrix per edge type, from (T, m, n)."""
    table = TableMatrix(*matrices.shape).double()
    with torch.no_grad():
        table.weight.copy_(matrices)
    return table


def linear_of(weight: Tensor) -> nn.Linear:
    """A linear layer with given weights (out, in) and no bias."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(weight)
    return linear
