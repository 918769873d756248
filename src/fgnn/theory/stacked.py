"""M and Q of the super-nodes: both directions of an FGNN layer in one block matrix, eq. (stack_mp_nn)."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from fgnn.nn import EdgeMatrix, Message

# Added to a message by a closed gate: below any feature in single and double precision, without overflow.
_CLOSED = -1e30


class StackedMatrix(EdgeMatrix):
    r"""The block matrix of eq. (stack_mp_nn) with gates, a sum of fixed matrices like every other Q:

    .. math:: \begin{bmatrix} \mathcal{Q}(t_{h(i)i'}|\Phi_{VF}) & 0 & s\,(1 - \hat t_{h(i)i'}) \\
              0 & \mathcal{Q}(t_{h(i')i}|\Phi_{FV}) & s\,(1 - \hat t_{h(i')i}) \end{bmatrix}

    acting on :math:`[\mathcal{M}_{VF}, \mathcal{M}_{FV}, 1]`. An edge feature is :math:`[t_{h(i)i'}, t_{h(i')i}]`
    followed by one flag for each that says whether the edge is *missing*, :math:`1 - \hat t`.

    Under a maximum a gate must not multiply by 0, which could exceed negative features: a closed gate adds s = -1e30
    instead. Under a sum, 0 is the identity element and the gate multiplies. Without gates s = 0, and s can be learned.
    """

    def __init__(self, vf: EdgeMatrix, fv: EdgeMatrix, *, gated: bool, multiply: bool) -> None:
        rows, columns = vf.rows + fv.rows, vf.columns + fv.columns + 1
        super().__init__(vf.edge_in + fv.edge_in + 2, rows, columns, vf.terms + fv.terms + 2)
        self.vf, self.fv = deepcopy(vf), deepcopy(fv)
        # their W is copied into this one's; only their coefficients of t are used
        self.vf.weight.requires_grad_(False)
        self.fv.weight.requires_grad_(False)
        self.multiply = gated and multiply
        closed = _CLOSED if gated and not multiply else 0.0
        weight = torch.zeros_like(self.weight, dtype=vf.weight.dtype)
        with torch.no_grad():
            weight[: vf.terms, : vf.rows, : vf.columns] = vf.weight
            weight[vf.terms : -2, vf.rows :, vf.columns : -1] = fv.weight
            weight[-2, : vf.rows, -1] = closed
            weight[-1, vf.rows :, -1] = closed
        self.weight = nn.Parameter(weight)

    def coefficients(self, t: Tensor) -> Tensor:
        """[φ_VF(t_{h(i)i'}), φ_FV(t_{h(i')i}), missing, missing].  # shape: (..., T)"""
        at = self.vf.edge_in
        to_factor, to_variable = self.vf.coefficients(t[..., :at]), self.fv.coefficients(t[..., at:-2])
        missing = t[..., -2:]
        if self.multiply:
            to_factor = to_factor * (1 - missing[..., :1])
            to_variable = to_variable * (1 - missing[..., 1:])
        return torch.cat([to_factor, to_variable, missing], -1)


def stack_messages(vf: Message, fv: Message) -> Message:
    """[M_VF([g_i, f_j]), M_FV([g_j, f_i]), 1] as one M on the target [g_i, f_i] and the source [g_j, f_j]."""
    g, f = vf.factor_in, vf.variable_in
    widths = [a + b + 1 for a, b in zip(_widths(vf), _widths(fv), strict=True)]
    stacked = Message(
        g + f,
        g + f,
        widths[-1],
        hidden=widths[:-1],
        activation=vf.activation,
        final_activation=vf.final_activation,
    ).to(vf.factor_weight)
    with torch.no_grad():
        for tensor in stacked.parameters():
            tensor.zero_()
        rows = len(vf.factor_weight)
        stacked.factor_weight[:rows, :g] = vf.factor_weight
        stacked.variable_weight[:rows, g:] = vf.variable_weight
        stacked.factor_weight[rows:-1, g:] = fv.variable_weight
        stacked.variable_weight[rows:-1, :g] = fv.factor_weight
        assert stacked.bias is not None
        stacked.bias[-1] = 1.0
        for half, at in ((vf, slice(0, rows)), (fv, slice(rows, -1))):
            if half.bias is not None:
                stacked.bias[at] = half.bias
        for linear, one, two in zip(stacked.tail, vf.tail, fv.tail, strict=True):
            _stack_linear(linear, one, two)
    return stacked


def _stack_linear(linear: nn.Module, one: nn.Module, two: nn.Module) -> None:
    """Set ``linear`` to two linear layers in parallel that also pass the 1 on."""
    assert isinstance(linear, nn.Linear)
    assert isinstance(one, nn.Linear)
    assert isinstance(two, nn.Linear)
    out, width = one.weight.shape
    linear.weight[:out, :width] = one.weight
    linear.weight[out:-1, width:-1] = two.weight
    linear.weight[-1, -1] = 1.0
    for half, at in ((one, slice(0, out)), (two, slice(out, -1))):
        if half.bias is not None:
            linear.bias[at] = half.bias


def _widths(message: Message) -> list[int]:
    tail = [layer.out_features for layer in message.tail if isinstance(layer, nn.Linear)]
    return [len(message.factor_weight), *tail]
