"""Normalisation of node features, whatever stands before the feature axis."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

Norm = Literal["batch", "layer"] | None


class NodeBatchNorm(nn.Module):
    """Batch normalisation of each feature over all nodes of all samples."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., d), kept."""
        rows = x.reshape(-1, x.shape[-1])
        # one row has no spread to normalise by; the running statistics stand in
        if self.training and rows.shape[0] <= 1:
            norm = self.norm
            fixed = nn.functional.batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, False)
            return fixed.reshape(x.shape)
        made: Tensor = self.norm(rows)
        return made.reshape(x.shape)


def make_norm(kind: Norm, width: int) -> nn.Module | None:
    """The named normalisation of features of this width; None for none."""
    if kind is None:
        return None
    if kind not in _NORMS:
        raise ValueError(f"Expected norm among {[*_NORMS, None]} (got {kind!r})")
    return _NORMS[kind](width)


_NORMS: dict[str, type[nn.Module]] = {"batch": NodeBatchNorm, "layer": nn.LayerNorm}
