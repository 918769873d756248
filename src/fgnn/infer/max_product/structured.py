"""The messages of structured factors, which their kind computes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fgnn.infer.max_product.messages import LIMIT
from fgnn.infer.max_product.wiring import Group, Out, filled
from fgnn.pgm import Kind, StructuredBatch


@dataclass(frozen=True, eq=False)
class StructuredPotentials:
    """The kind of a group of factors, and the log-potentials that they select from."""

    kind: Kind
    theta: Tensor  # shape: (S, C, B or 1)

    @classmethod
    def of(cls, factors: StructuredBatch, dtype: torch.dtype) -> StructuredPotentials:
        return cls(factors.kind, factors.potentials(dtype).permute(2, 1, 0).contiguous())

    def send(self, group: Group, nu: Tensor, *, full: bool, normalise: bool, total: bool, out: Out = None) -> Tensor:
        """The messages of the factors as value rows, (height, C, B) in and out."""
        return filled(out, self._messages(group, nu, normalise, total) if full else self._ratios(group, nu, total))

    def _ratios(self, group: Group, nu: Tensor, total: bool) -> Tensor:
        """Messages relative to state 0. They can diverge on loops and are clamped."""
        if max(group.states) == min(group.states) == 1:
            sent = self.kind.ratios(self.theta, nu, total=total)
        else:
            messages = self.kind.messages(self.theta, self._by_axis(group, nu, full=False), total=total)
            sent = torch.cat([m[1:] - m[:1] for m in messages])
        limit = LIMIT[nu.dtype]
        return sent.clamp(-limit, limit) if sent.requires_grad else sent.clamp_(-limit, limit)

    def _messages(self, group: Group, nu: Tensor, normalise: bool, total: bool) -> Tensor:
        """Messages of all states; ``normalise`` sets the best state of each to 0."""
        sent = self.kind.messages(self.theta, self._by_axis(group, nu, full=True), total=total)
        if not normalise:
            return torch.cat(sent)
        best = [m.amax(0) for m in sent]
        shifted = torch.cat([m - b.masked_fill(b == -torch.inf, 0.0) for m, b in zip(sent, best, strict=True)])
        return torch.where(shifted == -torch.inf, shifted, shifted.clamp(min=-LIMIT[nu.dtype]))

    def log_total(self, group: Group, nu: Tensor, *, full: bool) -> Tensor:
        """log Σ exp of the factor and its incoming messages over all joint states, shape (C, B)."""
        incoming = self._by_axis(group, nu, full=full)
        sent = self.kind.messages(self.theta, incoming, total=True)
        return (sent[0] + incoming[0]).logsumexp(0)

    def chosen(self, group: Group, nu: Tensor, *, full: bool) -> Tensor:
        """The probability of each log-potential, shape (B, C, S): the derivative of `log_total`."""
        with torch.enable_grad():
            theta = self.theta.detach().expand(-1, -1, nu.shape[2]).clone().requires_grad_()
            total = replace(self, theta=theta).log_total(group, nu.detach(), full=full).sum()
        if not total.requires_grad:  # a kind that only forbids or allows
            return torch.zeros_like(theta).permute(2, 1, 0).detach()
        (p,) = torch.autograd.grad(total, theta)
        return p.nan_to_num().permute(2, 1, 0)

    def _by_axis(self, group: Group, nu: Tensor, *, full: bool) -> list[Tensor]:
        """Incoming messages of all states, (k_a, C, B) by axis."""
        parts = torch.split(nu, list(group.states))
        return list(parts) if full else [torch.nn.functional.pad(p, (0, 0, 0, 0, 1, 0)) for p in parts]
