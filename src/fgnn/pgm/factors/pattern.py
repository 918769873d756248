"""Patterns: a score for each of a few joint states, and a default for all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fgnn.pgm.factors.automaton import AutomatonKind, Steps
from fgnn.pgm.factors.kind import Array, Shape


@dataclass(frozen=True)
class Pattern(AutomatonKind):
    r"""``scores[p]`` if :math:`x_c` is pattern p, else ``default``: a table of which all but P entries are equal.

    The Pⁿ Potts model has the patterns "all variables in state s"; a default of ``-inf`` allows the patterns alone. The
    states of the automaton are the beginnings of patterns; all messages take O(n · P · cardinality).

    Attributes:
        patterns: Distinct joint states, (P, n).
    """

    patterns: tuple[tuple[int, ...], ...]
    name: ClassVar[str] = "pattern"
    numbers: ClassVar[Mapping[str, type]] = {"scores": float, "default": float}

    def check(self, shape: Shape, numbers: Mapping[str, Array]) -> None:
        patterns = np.array(self.patterns, dtype=np.int64)
        if patterns.ndim != 2 or not len(patterns) or patterns.shape[1] != len(shape):
            raise ValueError(f"Expected patterns over {len(shape)} variables (got shape {patterns.shape})")
        outside = (patterns < 0) | (patterns >= np.array(shape))
        if outside.any():
            p, a = (int(v) for v in np.argwhere(outside)[0])
            raise ValueError(
                f"Expected a state below {shape[a]} at position {a} of pattern {p} (got {self.patterns[p][a]})"
            )
        if len(set(self.patterns)) < len(patterns):
            raise ValueError("Expected distinct patterns (got one twice)")
        if numbers["scores"].shape[1:] != (len(patterns),):
            raise ValueError(f"Expected {len(patterns)} scores, one per pattern (got {numbers['scores'].shape[1:]})")
        if numbers["default"].ndim != 1:
            raise ValueError(f"Expected one default per factor (got shape {numbers['default'].shape})")

    def potentials(self, shape: Shape, numbers: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([numbers["scores"], numbers["default"][..., None]], -1)

    def steps(self, shape: Shape) -> Steps:
        patterns = np.array(self.patterns, dtype=np.int64)
        count, n = patterns.shape
        steps = []
        prefix = np.zeros(count, dtype=np.int64)  # of each pattern: the number of its first t states
        for t, k in enumerate(shape, start=1):
            following = np.arange(count)
            if t < n:
                following = np.unique(np.stack([prefix, patterns[:, t - 1]], 1), axis=0, return_inverse=True)[
                    1
                ].reshape(-1)
            none = int(following.max()) + 1
            step = np.full((int(prefix.max()) + 1 + (t > 1), k), none, dtype=np.int64)
            step[prefix, patterns[:, t - 1]] = following
            steps.append(step)
            prefix = following
        return tuple(steps)
