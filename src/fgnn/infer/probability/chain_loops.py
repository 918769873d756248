"""The passes of `chain` on the CPU: compiled loops, threads side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.threads import shares
from fgnn.runtime.jit import compiled

Result = TypeVar("Result")


def forward(unary: Tensor, values: Tensor, order: Tensor, dtype: torch.dtype, keep: bool) -> tuple[Tensor, Tensor]:
    """log Z without the constant (B,), and the forward messages (B, N, k) if ``keep``."""
    models, n, k = unary.shape
    log_z = torch.empty(models, dtype=torch.float64)
    messages = torch.empty((models, n, k) if keep else (0, 0, 0), dtype=torch.float64)
    arrays = _arrays(unary, values, order)

    def work(part: slice) -> None:
        _forward(part.start, part.stop, *arrays, keep, messages.numpy(), log_z.numpy())

    _each(work, unary)
    return log_z, messages


def backward(unary: Tensor, values: Tensor, order: Tensor, messages: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of ``(weight * log_z).sum()`` for the unaries and for the tables, those of all models if shared."""
    d_unary = torch.empty(unary.shape, dtype=torch.float64)
    own = len(values) == len(unary)
    d_values = np.zeros(values.shape if own else 0, dtype=values.detach().numpy().dtype)
    arrays = _arrays(unary, values, order)

    def work(part: slice) -> NDArray[np.float64]:
        # Each thread sums up its own models' shares of a shared table.
        target = d_values if own else np.zeros(values.shape)
        _backward(part.start, part.stop, *arrays, messages.numpy(), weight.numpy(), d_unary.numpy(), target)
        return target

    targets = _each(work, unary)
    return d_unary, torch.from_numpy(d_values if own else sum(targets[1:], targets[0]))


def _arrays(unary: Tensor, values: Tensor, order: Tensor) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    rows = order if len(order) else torch.arange(values.shape[1])
    return unary.detach().double().numpy(), values.detach().numpy(), rows.numpy()


def _each(work: Callable[[slice], Result], unary: Tensor) -> list[Result]:
    """Call the function for the models of each thread."""
    models, n, k = unary.shape
    parts = shares(models, n * k * k, unary.device)
    if len(parts) == 1:
        return [work(parts[0])]
    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(work, parts))


@compiled
def _forward(
    start: Any, stop: Any, unary: Any, values: Any, order: Any, keep: Any, messages: Any, log_z: Any
) -> None:  # pragma: no cover (compiled)
    _, n, k = unary.shape
    alpha, top, total = np.empty(k), np.empty(k), np.empty(k)
    for b in range(start, stop):
        tables = values[b if len(values) > 1 else 0]
        scale = 0.0
        alpha[:] = unary[b, 0]
        for t in range(n - 1):
            # Only the differences matter to what follows, and they are exact where the scale is taken out.
            largest = alpha.max()
            if largest > -np.inf:
                alpha -= largest
                scale += largest
            if keep:
                messages[b, t] = alpha
            table = tables[order[t]]
            top[:] = -np.inf
            for i in range(k):
                for j in range(k):
                    x = alpha[i] + table[i, j]
                    top[j] = x if x > top[j] else top[j]
            for j in range(k):
                total[j] = 0.0
                top[j] = top[j] if top[j] > -np.inf else 0.0
            for i in range(k):
                for j in range(k):
                    total[j] += math.exp(alpha[i] + table[i, j] - top[j])
            for j in range(k):
                alpha[j] = unary[b, t + 1, j] + top[j] + np.log(total[j])
        if keep:
            messages[b, n - 1] = alpha
        largest = alpha.max()
        log_z[b] = largest if largest == -np.inf else scale + largest + np.log(np.exp(alpha - largest).sum())


@compiled
def _backward(
    start: Any, stop: Any, unary: Any, values: Any, order: Any, messages: Any, weight: Any, d_unary: Any, d_values: Any
) -> None:  # pragma: no cover (compiled)
    _, n, k = unary.shape
    beta, right, shares, top = np.empty(k), np.empty(k), np.empty((k, k)), np.empty(k)
    for b in range(start, stop):
        at = b if len(values) > 1 else 0
        beta[:] = 0.0
        for t in range(n - 1, -1, -1):
            if t < n - 1:
                table = values[at, order[t]]
                for i in range(k):
                    top[i] = -np.inf
                    for j in range(k):
                        shares[i, j] = table[i, j] + right[j]
                        top[i] = shares[i, j] if shares[i, j] > top[i] else top[i]
                    top[i] = top[i] if top[i] > -np.inf else 0.0
                    total = 0.0
                    for j in range(k):
                        shares[i, j] = math.exp(shares[i, j] - top[i])
                        total += shares[i, j]
                    beta[i] = top[i] + np.log(total)
                    for j in range(k):
                        shares[i, j] /= total if total > 0 else 1.0
            largest = -np.inf
            for i in range(k):
                top[i] = messages[b, t, i] + beta[i]
                largest = top[i] if top[i] > largest else largest
            total = 0.0
            for i in range(k):
                top[i] = math.exp(top[i] - largest) if largest > -np.inf else 0.0
                total += top[i]
            for i in range(k):
                p = weight[b] * top[i] / total if total > 0 else 0.0
                d_unary[b, t, i] = p
                if t < n - 1:
                    for j in range(k):
                        d_values[at, order[t], i, j] += p * shares[i, j]
            largest = beta.max()
            for i in range(k):
                beta[i] -= largest if largest > -np.inf else 0.0
                right[i] = unary[b, t, i] + beta[i]
