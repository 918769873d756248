"""The sum-product messages of binary pairs, with one exponential and one logarithm each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.max_product.wiring import Group, Out

# Differences within a table up to the first, with incoming ratios clamped to the second: beyond it a message has
# reached its limit up to rounding, and no exponential overflows.
RANGE = {torch.float64: (100.0, 300.0), torch.float32: (20.0, 60.0)}


@dataclass(frozen=True, eq=False)
class PairSum:
    r"""Tables over two binary variables as functions of a log-ratio:

    .. math:: m(\nu) = \log\frac{e^{\theta_{10}} + e^{\theta_{11} + \nu}}{e^{\theta_{00}} + e^{\theta_{01} + \nu}}
        = \gamma + \log\frac{1 + \alpha e^\nu}{1 + \beta e^\nu}.

    Tensors are (C, B or 1); tuples go by the axis the message is sent to.
    """

    theta: Tensor  # shape: (2, 2, C, B or 1)
    gamma: tuple[Tensor, Tensor]
    alpha: tuple[Tensor, Tensor]
    beta: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, theta: Tensor) -> PairSum | None:
        """From tables (2, 2, C, B or 1) without ``-inf``; None if their entries differ too much."""
        t00, t01, t10, t11 = theta.flatten(0, 1).unbind(0)
        low, high = theta.flatten(0, 1).aminmax(dim=0)
        if theta.dtype not in RANGE or bool((high - low > RANGE[theta.dtype][0]).any()):
            return None
        return cls(
            theta,
            gamma=(t10 - t00, t01 - t00),
            alpha=((t11 - t10).exp(), (t11 - t01).exp()),
            beta=((t01 - t00).exp(), (t10 - t00).exp()),
        )

    def send(self, group: Group, nu: Tensor, *, full: bool, normalise: bool, total: bool, out: Out = None) -> Tensor:
        """As other potentials, see `potentials`."""
        return self.ratios(nu, torch.empty_like(nu) if out is None else out)

    def ratios(self, nu: Tensor, out: Tensor) -> Tensor:
        """The messages (2, C, B) for incoming ratios (2, C, B), which ``out`` may overwrite."""
        limit = RANGE[nu.dtype][1]
        power = nu.clamp(-limit, limit).exp_()
        for axis, to in enumerate(out.unbind(0)):
            incoming = power[1 - axis]
            torch.mul(incoming, self.alpha[axis], out=to).add_(1.0)
            to.div_(torch.addcmul(torch.ones((), dtype=nu.dtype, device=nu.device), incoming, self.beta[axis]))
            to.log_().add_(self.gamma[axis])
        return out
