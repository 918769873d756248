r"""The projection of `ad3` onto the convex hull of a factor's joint states, by the best joint state alone.

As Martins et al. (2015), an active set of joint states x^j with weights w minimises

.. math:: \tfrac12 \Big\| \sum_j w_j v(x^j) - z \Big\|^2 - \sum_j w_j \theta(x^j)

over the simplex, where v(x) has the rows of x: x_i itself for binary variables, an indicator of every state for others.
Where that is solved, the best joint state by :math:`\theta(x) + (z - q) \cdot v(x)` either is no better than those in
the set, and q is the projection, or joins it. Sets are kept from one iteration to the next, so few changes are needed.

Joint states of column p are those of factor c in model b, with p = c · B + b.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fgnn.runtime.jit import compiled

_RIDGE = 1e-9  # keeps the systems regular where joint states are affinely dependent
_BETTER = 1e-9  # a joint state joins if it is better by more than this
_NEGATIVE = -1e-12


@compiled
def _common(x: Any, y: Any, shape: Any) -> Any:  # pragma: no cover (compiled)
    """v(x) · v(y)."""
    total = 0.0
    for a in range(len(shape)):
        if x[a] == y[a] and (shape[a] > 2 or (shape[a] == 2 and x[a] == 1)):
            total += 1.0
    return total


@compiled
def _solved(gram: Any, target: Any, m: Any) -> Any:  # pragma: no cover (compiled)
    """Weights (m,) and the threshold τ of min ½ w G w - t w with Σ w = 1, in one array (m + 1,).

    Gaussian elimination of the conditions of optimality, G w + τ = t and Σ w = 1.
    """
    size = m + 1
    system = np.zeros((size, size + 1))
    for i in range(m):
        for j in range(m):
            system[i, j] = gram[i, j]
        system[i, i] += _RIDGE
        system[i, m] = system[m, i] = 1.0
        system[i, size] = target[i]
    system[m, size] = 1.0
    for i in range(size):
        pivot = i
        for r in range(i + 1, size):
            if abs(system[r, i]) > abs(system[pivot, i]):
                pivot = r
        for j in range(i, size + 1):
            system[i, j], system[pivot, j] = system[pivot, j], system[i, j]
        for r in range(i + 1, size):
            share = system[r, i] / system[i, i]
            for j in range(i, size + 1):
                system[r, j] -= share * system[i, j]
    solution = np.zeros(size)
    for i in range(size - 1, -1, -1):
        rest = system[i, size]
        for j in range(i + 1, size):
            rest -= system[i, j] * solution[j]
        solution[i] = rest / system[i, i]
    return solution


@compiled
def _read(column: Any, shape: Any, z: Any, sets: Any, gram: Any, target: Any) -> None:  # pragma: no cover (compiled)
    """The products v(x^i) · v(x^j), and v(x^i) · z + θ(x^i), of one set."""
    c, b = column
    atoms, _, theta, count = sets
    for i in range(count[c, b]):
        target[i] = theta[c, i, b]
        row = 0
        for a in range(len(shape)):
            width = shape[a] if shape[a] > 2 else shape[a] - 1
            s = atoms[c, i, a, b]
            if width > 1:
                target[i] += z[row + c * width + s, b]
            elif width == 1 and s == 1:
                target[i] += z[row + c, b]
            row += width * len(atoms)
        for j in range(i + 1):
            gram[i, j] = gram[j, i] = _common(atoms[c, i, :, b], atoms[c, j, :, b], shape)


@compiled
def _weigh(column: Any, sets: Any, gram: Any, target: Any, value: Any) -> Any:  # pragma: no cover (compiled)
    """Give one set its best weights, and return their τ. A joint state whose weight becomes 0 on the way leaves."""
    c, b = column
    atoms, weight, theta, count = sets
    m, tau = count[c, b], -np.inf
    w = weight[c, :, b].copy()
    while m > 0:
        best = _solved(gram, target, m)
        step, leaves = 1.0, -1
        for i in range(m):
            if best[i] < _NEGATIVE and (leaves < 0 or w[i] < step * (w[i] - best[i])):
                step, leaves = w[i] / (w[i] - best[i]), i
        for i in range(m):
            w[i] += step * (best[i] - w[i])
        tau = best[m]
        if leaves < 0:
            break
        m -= 1  # the last joint state takes the place of the one that leaves
        w[leaves], target[leaves], theta[c, leaves, b] = w[m], target[m], theta[c, m, b]
        atoms[c, leaves, :, b] = atoms[c, m, :, b]
        gram[leaves, :m] = gram[m, :m]
        gram[:m, leaves] = gram[:m, m]
        gram[leaves, leaves] = gram[m, m]
    count[c, b] = m
    total = np.maximum(w[:m], 0.0).sum()
    value[c, b] = 0.0
    for i in range(m):
        weight[c, i, b] = max(w[i], 0.0) / total
        value[c, b] += weight[c, i, b] * theta[c, i, b]
    return tau


@compiled
def improve(
    columns: Any, shape: Any, z: Any, q: Any, live: Any, sets: Any, nu: Any, threshold: Any, value: Any
) -> None:  # pragma: no cover (compiled)
    """Give the sets of some columns their best weights; joint states of weight 0 leave.

    Args:
        columns: Which, (P,).
        shape: Cardinalities, (n,).
        z: The targets, (edges, B), axis by axis.
        q: Into (edges, B): the means of the sets, where they are not empty.
        live: Shape (C, n, K, B), 0 or -inf.
        sets: The joint states (C, A, n, B), their weights and their θ (C, A, B), and how many there are (C, B).
        nu: Into (P, n, K): z - q, -inf for forbidden states.
        threshold: Into (P,): τ, the value of all joint states of the set by ν.
        value: Into (C, B): Σ w θ.
    """
    atoms, weight, _, count = sets
    factors, room, n, models = atoms.shape
    gram, target = np.zeros((room, room)), np.zeros(room)
    for p in range(len(columns)):
        c, b = columns[p] // models, columns[p] % models
        _read((c, b), shape, z, sets, gram, target)
        threshold[p] = _weigh((c, b), sets, gram, target, value)
        nu[p] = live[c, :, :, b]
        row = 0
        for a in range(n):
            width = shape[a] if shape[a] > 2 else shape[a] - 1
            for s in range(width):
                state = s if width > 1 else 1
                at = row + c * width + s
                mean = 0.0
                for i in range(count[c, b]):
                    mean += weight[c, i, b] if atoms[c, i, a, b] == state else 0.0
                if count[c, b] > 0:
                    q[at, b] = mean
                nu[p, a, state] += z[at, b] - mean
            row += width * factors


@compiled
def join(
    columns: Any, x: Any, best: Any, nu: Any, threshold: Any, sets: Any, joined: Any
) -> None:  # pragma: no cover (compiled)
    """Add joint states (P, n) of value ``best`` (P,) to the sets that they improve; ``joined`` (P,) says which."""
    atoms, weight, theta, count = sets
    n, models = atoms.shape[2], atoms.shape[3]
    for p in range(len(columns)):
        c, b = columns[p] // models, columns[p] % models
        m = count[c, b]
        joined[p] = best[p] > -np.inf and (m == 0 or best[p] > threshold[p] + _BETTER * (1.0 + abs(threshold[p])))
        for i in range(m):
            same = True
            for a in range(n):
                same = same and atoms[c, i, a, b] == x[p, a]
            joined[p] = joined[p] and not same
        if not joined[p]:
            continue
        theta[c, m, b] = best[p]
        for a in range(n):
            atoms[c, m, a, b] = x[p, a]
            theta[c, m, b] -= nu[p, a, x[p, a]]
        weight[c, m, b] = 1.0 if m == 0 else 0.0
        count[c, b] = m + 1
