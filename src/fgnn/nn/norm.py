"""Normalisation of node features over the last axis or over all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fgnn.graph import tracing
from fgnn.nn.backends.choice import choose_backend, working_dtype
from fgnn.nn.plain_modules import is_plain

Norm = Literal["batch", "layer", "rms"] | None


class RMSNorm(nn.Module):
    r"""Root-mean-square normalisation, :math:`y = s \odot x / \sqrt{\operatorname{mean}(x^2) + \epsilon}`, s learned.

    Computed in float32 or better. Under autocast the result has autocast's dtype, since matrix products read it.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis.  # shape: (..., d), kept"""
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * self.scale
        return y.to(working_dtype(x))

    def extra_repr(self) -> str:
        return f"{self.scale.numel()}, eps={self.eps}"


class NodeBatchNorm(nn.Module):
    """Batch normalisation of each feature over all nodes of all samples."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(
        self, x: Tensor, bias: Tensor | None = None, relu: bool = False, residual: Tensor | None = None
    ) -> Tensor:
        """σ(norm(x + bias)) + residual, where σ is ReLU or the identity.  # shape: (..., d), kept"""
        if self.fused(x):
            return batch_norms([self], [x], [bias], [residual], relu=relu)[0]
        rows = x.reshape(-1, x.shape[-1])
        if bias is not None:
            rows = rows + bias
        norm = self.norm
        if self.training and rows.shape[0] <= 1 and type(norm) is nn.BatchNorm1d and norm.running_mean is not None:
            # one row has no variance: use the running statistics
            rows = nn.functional.batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, False)
        else:
            rows = norm(rows)
        y = (rows.relu() if relu else rows).reshape(x.shape)
        return y if residual is None else y + residual

    def fused(self, x: Tensor) -> bool:
        """Whether features such as x are normalised by a fused kernel, which also adds bias and residual."""
        one_row = x.numel() <= x.shape[-1]
        if not (self.training and self.norm.training) or one_row or tracing() or not is_plain(self, NodeBatchNorm):
            return False
        if not is_plain(self.norm, nn.BatchNorm1d) or self.norm.momentum is None or self.norm.weight is None:
            return False
        return choose_backend(device=x.device, dtype=x.dtype) == "triton"


def batch_norms(
    norms: Sequence[NodeBatchNorm], xs: Sequence[Tensor], biases: Sequence[Tensor | None],
    residuals: Sequence[Tensor | None], *, relu: bool,
) -> list[Tensor]:  # fmt: skip
    """σ(norm(x + bias)) + residual of several kinds of nodes, all of which are ``fused``, in the same launches."""
    from fgnn.nn.backends.triton.batch_norm import Normalised, batch_norm_relu

    jobs, late = [], []
    for norm, x, bias, residual in zip(norms, xs, biases, residuals, strict=True):
        fits = residual is not None and residual.shape == x.shape and residual.dtype == x.dtype
        rows = x.reshape(-1, x.shape[-1])
        rest = residual.reshape(rows.shape) if residual is not None and fits else None
        jobs.append(Normalised(rows, norm.norm, bias, rest))
        late.append(None if fits else residual)
    ys = batch_norm_relu(jobs, relu=relu)
    shaped = [y.reshape(x.shape) for y, x in zip(ys, xs, strict=True)]
    return [y if residual is None else y + residual for y, residual in zip(shaped, late, strict=True)]


def make_norm(kind: Norm, width: int) -> nn.Module | None:
    """The normalisation ``kind`` of features of this width; None where ``kind`` is None."""
    if kind is None:
        return None
    if kind not in _NORMS:
        raise ValueError(f"Expected norm among {[*_NORMS, None]} (got {kind!r})")
    return _NORMS[kind](width)


_NORMS: dict[str, type[nn.Module]] = {"batch": NodeBatchNorm, "layer": nn.LayerNorm, "rms": RMSNorm}
