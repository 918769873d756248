"""Random numbers in compiled loops: a generator whose state the caller owns, so that a seed fixes every choice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fgnn.runtime.jit import compiled

State = NDArray[np.uint64]  # shape: (1,)


def generator(*seed: int) -> State:
    """The state of a generator."""
    return np.random.SeedSequence(seed).generate_state(1, np.uint64) | np.uint64(1)


@compiled
def uniform(state: State) -> float:
    """A number in [0, 1): xorshift64*."""
    s = state[0]
    s ^= s >> np.uint64(12)
    s ^= s << np.uint64(25)
    s ^= s >> np.uint64(27)
    state[0] = s
    return float((s * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
def below(state: State, count: int) -> int:
    """A whole number in [0, count)."""
    return int(uniform(state) * count)
