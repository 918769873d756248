"""What every backend reads of a call, and which backend serves it: fused Triton kernels or plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.graph import EdgeTypes, Incidence, Side
from fgnn.nn.aggregate import Aggregation
from fgnn.runtime.triton_support import why_unavailable

BACKENDS = ("torch", "triton")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAX = Aggregation()
_forced: str | None = None


@dataclass(frozen=True, eq=False)
class EdgeCall:
    """The part of an ``aggregate_messages`` call that carries no gradient.

    Attributes:
        relu: Whether σ is ReLU; the identity otherwise.
        types: The type of each edge, which selects its matrix; None if coefficients φ are given.
        batch: B; None if no input has a batch axis.
    """

    incidence: Incidence
    towards: Side
    relu: bool
    aggregation: Aggregation
    types: EdgeTypes | None
    batch: int | None


def working_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which x is computed with: autocast's if enabled, else its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class no_autocast:
    """Switch autocast off inside the block, for a tenth of what ``torch.autocast`` takes in Python."""

    def __init__(self, device: torch.device) -> None:
        self.kind = device.type

    def __enter__(self) -> None:
        self.before = torch.is_autocast_enabled(self.kind)
        torch.set_autocast_enabled(self.kind, False)

    def __exit__(self, *_: object) -> None:
        torch.set_autocast_enabled(self.kind, self.before)


def choose_backend(*, device: torch.device, dtype: torch.dtype, aggregation: Aggregation = _MAX) -> str:
    """The backend for such inputs: "triton" on a GPU whose kernels support them, else "torch"."""
    if _forced == "torch" or (_forced is None and device.type != "cuda"):
        return "torch"
    why = why_unsupported(device, dtype, aggregation)
    if why is not None and _forced == "triton":
        raise ValueError(f"Expected inputs that the Triton kernels support (got: {why})")
    return "triton" if why is None else "torch"


def why_unsupported(device: torch.device, dtype: torch.dtype, aggregation: Aggregation = _MAX) -> str | None:
    """Why the Triton kernels do not support such inputs; None if they do."""
    if dtype not in _DTYPES:
        return f"no kernels for {dtype}"
    if aggregation.kind == "softmax":
        return "no kernels for softmax"
    return why_unavailable(device)


def forced_backend() -> str | None:
    """The backend that :func:`use_backend` set; None if it is chosen automatically."""
    return _forced


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Force a backend inside the block; None chooses automatically."""
    global _forced
    if name is not None and name not in BACKENDS:
        raise ValueError(f"Expected a backend among {list(BACKENDS)} (got {name!r})")
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before
