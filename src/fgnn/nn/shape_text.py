"""Shapes in messages, which code that ``torch.compile`` traces must be able to write too."""

from __future__ import annotations

from torch import Tensor


def shape_text(x: Tensor | None) -> str:
    """The shape of a tensor, such as "(4, 3)"; "none" without one."""
    if x is None:
        return "none"
    # While sizes are symbols, a tuple shows their names, and f-strings take only what has gone through int.
    return f"({', '.join([f'{int(n)}' for n in x.shape])}{',' * (x.dim() == 1)})"
