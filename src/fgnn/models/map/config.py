"""What a network is, as plain values that recipes and cards hold."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from fgnn.nn.edge_matrix import Form

ARCHITECTURES = ("paper", "deep", "pointnet", "dgcnn")


@dataclass(frozen=True)
class NetworkConfig:
    """A network on graphical models.

    Args:
        architecture: ``paper`` (section 4.1), ``deep`` (residual blocks), ``pointnet`` and ``dgcnn`` (baselines, which
            see the variables alone), or the paper's notation itself, ``FGNN(64) - FC(64) - FGNN(2)``.
        width: Features of a variable and of a factor between the blocks of ``deep``.
        blocks: How many different blocks ``deep`` has.
        repeat: How many times ``deep`` runs through them: weights shared across layers.
        aggregate: ``max``, ``sum``, ``mean`` or ``softmax``, as in `fgnn.nn`.
        q: ``basis``, ``dense`` or ``table``.
        bases: How many bases Q has.
        norm: The normalisation between layers.
        supervise: For ``deep``: the weight of the loss of the inner read-outs.
        factor_size: High-order factors of the network cover this many variables (the ablation); None: as the model.
    """

    architecture: str = "paper"
    width: int = 64
    blocks: int = 16
    repeat: int = 1
    aggregate: str = "max"
    q: Form = "basis"
    bases: int = 8
    norm: Literal["batch", "layer", "none"] = "none"
    supervise: float = 0.0
    factor_size: int | None = None

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES and "(" not in self.architecture:
            close = get_close_matches(self.architecture, ARCHITECTURES, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise ValueError(
                f"Expected an architecture among {', '.join(ARCHITECTURES)} or a notation such as FGNN(64) - FGNN(2) "
                f"(got {self.architecture!r}{hint})"
            )
        for name in ("width", "blocks", "repeat", "bases"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} of at least 1 (got {getattr(self, name)})")
