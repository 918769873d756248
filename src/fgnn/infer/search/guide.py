"""What a trained network believes of the states, as a guide of the search: where to start and what to free."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fgnn.infer.search.arrays import Arrays, Floats, Ints
from fgnn.infer.search.chance import State, uniform
from fgnn.runtime.jit import compiled

_FLOOR = 0.25  # weight of a variable in no doubt, relative to the mean doubt


def beliefs(scores: Tensor, cards: Ints) -> Floats:
    """Probabilities of all states, one variable after the other, from scores (N, K).  # shape: (sum of cards,)

    Variables without scores, such as auxiliary ones, are left open.
    """
    count, most = len(cards), int(cards.max(initial=1))
    table = np.zeros((count, most))
    given = scores.detach().double().cpu().numpy()[:count, :most]
    table[: given.shape[0], : given.shape[1]] = given
    table[np.arange(most) >= cards[:, None]] = -np.inf
    return torch.from_numpy(table).softmax(1).numpy()[np.arange(most) < cards[:, None]]


@compiled
def sample(m: Arrays, belief: Floats, x: Ints, rng: State) -> None:
    """Draw the state of every variable by its probability."""
    for i in range(len(x)):
        left = uniform(rng)
        s = 0
        while s < m.cards[i] - 1 and left >= belief[m.states[i] + s]:
            left -= belief[m.states[i] + s]
            s += 1
        x[i] = s


@compiled
def fill_doubt(m: Arrays, belief: Floats, x: Ints, doubt: Floats) -> None:
    """Set the running sums of weights: a variable weighs the more, the less is believed of its state in ``x``."""
    total = 0.0
    for i in range(len(x)):
        doubt[i] = 1.0 - belief[m.states[i] + x[i]] if m.cards[i] > 1 else 0.0
        total += doubt[i]
    floor = _FLOOR * total / max(1, len(x))
    total = 0.0
    for i in range(len(x)):
        total += doubt[i] + (floor if m.cards[i] > 1 else 0.0)
        doubt[i] = total
