"""The settings of a network on graphical models, as recipes and cards hold them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Annotated, Literal

from fgnn.nn.aggregate import Aggregation
from fgnn.nn.edge_matrix import Form
from fgnn.nn.notation import MOST_WIDTH
from fgnn.nn.notation import parse as parse_notation
from fgnn.schema import Between, check_fields, show

# The settings that each architecture reads; a notation reads those of the paper's network.
_READS: dict[str, tuple[str, ...]] = {
    "paper": ("aggregate", "q", "bases", "norm", "factor_size"),
    "deep": ("width", "blocks", "repeat", "bases", "supervise", "factor_size"),
    "pointnet": (),
    "dgcnn": (),
}
ARCHITECTURES = tuple(_READS)
_MOST_LAYERS = 1024


def check_architecture(text: str) -> None:
    """A rule: one of `ARCHITECTURES`, or a notation."""
    if "(" in text:
        parse_notation(text)
    elif text not in ARCHITECTURES:
        close = get_close_matches(text[:100], ARCHITECTURES, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise ValueError(
            f"Expected an architecture among {', '.join(ARCHITECTURES)} or a notation such as FGNN(64) - FGNN(2) "
            f"(got {show(text)}{hint})"
        )


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

    architecture: Annotated[str, check_architecture] = "paper"
    width: Annotated[int, Between(1, MOST_WIDTH)] = 64
    blocks: Annotated[int, Between(1, 512)] = 16
    repeat: Annotated[int, Between(1, 512)] = 1
    aggregate: Annotated[str, Aggregation.parse] = "max"
    q: Form = "basis"
    bases: Annotated[int, Between(1, 1024)] = 8
    norm: Literal["batch", "layer", "rms", "none"] = "none"
    supervise: Annotated[float, Between(0, 1000)] = 0.0
    factor_size: Annotated[int, Between(1, 1000)] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.blocks * self.repeat > _MOST_LAYERS:
            got = self.blocks * self.repeat
            raise ValueError(f"Expected at most {_MOST_LAYERS} layers, blocks times repeat (got {got})")
        for name in self.ignored:
            object.__setattr__(self, name, getattr(NetworkConfig, name))

    @property
    def ignored(self) -> frozenset[str]:
        """The settings that the architecture does not read."""
        read = {"architecture", *_READS.get(self.architecture, _READS["paper"])}
        if self.architecture != "deep" and self.q not in ("basis", "cosine"):
            read.discard("bases")
        return frozenset(f.name for f in fields(self)) - read
