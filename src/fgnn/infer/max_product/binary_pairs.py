"""Tables over two binary variables, whose messages are functions of a log-ratio."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.max_product.wiring import Group, Out

# Differences within a table up to the first, with incoming ratios clamped to the second: beyond it a message has
# reached its limit up to rounding, and no exponential overflows.
RANGE = {torch.float64: (100.0, 300.0), torch.float32: (20.0, 60.0)}


@dataclass(frozen=True, eq=False)
class PairClamp:
    r"""The messages of max-product.

    The message :math:`\max(\theta_{10}, \theta_{11} + \nu) - \max(\theta_{00}, \theta_{01} + \nu)` is
    :math:`\operatorname{clamp}(\sigma\nu + \gamma,\ l,\ u)`, with slope :math:`\sigma = 1` where equal states are
    preferred and -1 where unequal ones are. Tensors are (C, B or 1).
    """

    sign: Tensor
    shift: tuple[Tensor, Tensor]  # by the axis the message goes to, as are low and high
    low: tuple[Tensor, Tensor]
    high: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, theta: Tensor) -> PairClamp:
        """From tables (2, 2, C, B or 1) without ``-inf``."""
        t00, t01, t10, t11 = theta.flatten(0, 1).unbind(0)
        equal = t11 - t01 >= t10 - t00
        ends = ((t10 - t00, t11 - t01), (t01 - t00, t11 - t10))  # the messages for ν -> -inf and ν -> inf
        return cls(
            sign=2 * equal.to(theta.dtype) - 1,
            shift=(torch.where(equal, t11 - t00, t10 - t01), torch.where(equal, t11 - t00, t01 - t10)),
            low=(torch.minimum(*ends[0]), torch.minimum(*ends[1])),
            high=(torch.maximum(*ends[0]), torch.maximum(*ends[1])),
        )

    def send(self, group: Group, nu: Tensor, *, full: bool, normalise: bool, total: bool, out: Out = None) -> Tensor:
        """As other potentials, see `potentials`."""
        return self.ratios(nu, torch.empty_like(nu) if out is None else out)

    def ratios(self, nu: Tensor, out: Tensor) -> Tensor:
        """The messages (2, C, B) for incoming ratios (2, C, B), which ``out`` may overwrite."""
        first = nu[0].clone() if out.data_ptr() == nu.data_ptr() else nu[0]
        for shift, low, high, incoming, to in zip(
            self.shift, self.low, self.high, (nu[1], first), out.unbind(0), strict=True
        ):
            if self.sign.shape[-1] == nu.shape[-1]:
                torch.clamp(torch.addcmul(shift, self.sign, incoming, out=to), low, high, out=to)
            else:  # shared by the models: on a CPU only binary operations broadcast fast
                torch.mul(incoming, self.sign, out=to).add_(shift)
                torch.minimum(torch.maximum(to, low, out=to), high, out=to)
        return out


@dataclass(frozen=True, eq=False)
class PairSum:
    r"""The messages of sum-product, with one exponential and one logarithm each:

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
