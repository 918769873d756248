"""The best joint state of automata, by Viterbi's algorithm, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from fgnn.runtime.jit import compiled


@compiled
def best_paths(
    following: Any, begin: Any, sizes: Any, shape: Any, theta: Any, nu: Any, value: Any, x: Any
) -> None:  # pragma: no cover (compiled)
    """Into ``value`` (P,) and ``x`` (P, n): the largest θ[q_n] + Σ ν_t(x_t) of P automata, and where it is.

    Args:
        following: The transitions of all positions, flat.
        begin: Where those of each position begin, (n,).
        sizes: States before each position, and after the last, (n + 1,).
        shape: Cardinalities, (n,).
        theta: Shape (P, S).
        nu: Shape (P, n, K).
        value: Is -inf where everything is forbidden; ``x`` is then unchanged.
        x: See above.
    """
    n = len(shape)
    most = sizes.max()
    alpha = np.empty((n + 1, most))
    back = np.empty((n, most), np.int64)
    for c in range(len(nu)):
        alpha[0, 0] = 0.0
        for t in range(n):
            k, at = shape[t], begin[t]
            alpha[t + 1, : sizes[t + 1]] = -np.inf
            for state in range(sizes[t]):
                before = alpha[t, state]
                if before == -np.inf:
                    continue
                for s in range(k):
                    after = following[at + state * k + s]
                    if after >= 0 and before + nu[c, t, s] > alpha[t + 1, after]:
                        alpha[t + 1, after] = before + nu[c, t, s]
                        back[t, after] = state * k + s
        best, state = -np.inf, -1
        for last in range(sizes[n]):
            if alpha[n, last] + theta[c, last] > best:
                best, state = alpha[n, last] + theta[c, last], last
        value[c] = best
        if state >= 0:
            for t in range(n - 1, -1, -1):
                x[c, t] = back[t, state] % shape[t]
                state = back[t, state] // shape[t]
