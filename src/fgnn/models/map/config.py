"""The settings of a network on graphical models, as recipes and cards hold them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Literal

from fgnn.nn.edge_matrix import Form

# The settings that each architecture reads; a notation reads those of the paper's network.
_READS: dict[str, tuple[str, ...]] = {
    "paper": ("aggregate", "q", "bases", "norm", "factor_size"),
    "deep": ("width", "blocks", "repeat", "bases", "supervise", "factor_size"),
    "pointnet": (),
    "dgcnn": (),
}
ARCHITECTURES = tuple(_READS)


@dataclass(frozen=True)
class NetworkConfig:
    """A network on graphical models.

    Args:
        architecture: ``paper`` (section 4.1), ``deep`` (`fgnn.nn.ResidualNetwork`), ``pointnet`` and ``dgcnn``
            (baselines, which read unaries only), or the paper's notation, ``FGNN(64) - FC(64) - FGNN(2)``.
        width: For ``deep``: features of variables and factors between layers.
        blocks: For ``deep``: layers with parameters of their own.
        repeat: For ``deep``: how many times the stack of layers runs.
        aggregate: For ``paper`` and notations: ``max``, ``sum``, ``mean`` or ``softmax``, as in `fgnn.nn`.
        q: For ``paper`` and notations: ``basis``, ``dense``, ``table`` or ``cosine``.
        bases: The number of bases of Q; for ``deep``, and with ``q`` ``basis`` or ``cosine``.
        norm: For ``paper`` and notations: the normalisation between layers.
        supervise: For ``deep``: the weight of the loss of the inner read-outs.
        factor_size: The network's high-order factors cover this many variables (the ablation); None: as in the model.

    Settings that the architecture does not read (``ignored``) keep their defaults, and cards leave them out.
    """

    architecture: str = "paper"
    width: int = 64
    blocks: int = 16
    repeat: int = 1
    aggregate: str = "max"
    q: Form = "basis"
    bases: int = 8
    norm: Literal["batch", "layer", "rms", "none"] = "none"
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
        for name in self.ignored:
            object.__setattr__(self, name, getattr(NetworkConfig, name))

    @property
    def ignored(self) -> frozenset[str]:
        """The settings that the architecture does not read."""
        read = {"architecture", *_READS.get(self.architecture, _READS["paper"])}
        if self.architecture != "deep" and self.q not in ("basis", "cosine"):
            read.discard("bases")
        return frozenset(f.name for f in fields(self)) - read
