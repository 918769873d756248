"""Writing UAI ``MARKOV`` files: potentials are ``exp`` of log-potentials, in full precision."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError
from fgnn.pgm.model import GraphicalModel

MOST_ENTRIES = 1 << 16
# Between these, exp is a normal number and keeps full precision.
_LOWEST, _HIGHEST = -700.0, 700.0
_MOST_COPIES = 16
_MOST_CONSTANTS = 64


def write_uai(model: GraphicalModel, file: IO[bytes]) -> None:
    """Write a model to an open binary file.

    A table whose ``exp`` would overflow or underflow is shifted by its maximum, which becomes a factor without
    variables. A table whose range exceeds float64 is split into several equal factors.
    """
    scopes: list[tuple[int, ...]] = []
    plans: list[tuple[float, int]] = []  # shift and number of copies of each factor
    constant = model.constant
    for name, scope, theta in _factors(model):
        shift, copies = _plan(theta, name)
        constant += shift
        plans.append((shift, copies))
        scopes += [scope] * copies
    extra = _constants(constant)
    lines = [
        "MARKOV",
        str(model.num_variables),
        " ".join(map(str, model.cardinalities.tolist())),
        str(len(scopes) + len(extra)),
        *(" ".join(map(str, (len(scope), *scope))) for scope in scopes),
        *("0" for _ in extra),
    ]
    file.write(("\n".join(lines) + "\n").encode())
    for (_, _, theta), (shift, copies) in zip(_factors(model), plans, strict=True):
        text = _table(np.exp((theta - shift) / copies))
        for _ in range(copies):
            file.write(text)
    for value in extra:
        file.write(_table(np.array(math.exp(value))))


def _factors(model: GraphicalModel) -> Iterator[tuple[str, tuple[int, ...], NDArray[np.float64]]]:
    """All factors as tables, with a name for error messages; zero unaries are omitted."""
    yield from ((f"unary {i}", (i,), model.unary(i)) for i in range(model.num_variables) if model.unary(i).any())
    yield from ((f"table {c}", table.scope, table.values) for c, table in enumerate(model.tables()))
    for c, budget in enumerate(model.budgets()):
        size = len(budget.scope)
        if 1 << size > MOST_ENTRIES:
            what = f"budget {c}: Expected a budget over at most 16 variables in a .uai file"
            raise InputError(f"{what} (got {size}); write a .fgm file instead, which keeps budgets")
        ones = np.indices((2,) * size).sum(0)
        allowed = (ones >= budget.at_least) & (ones <= budget.at_most)
        yield f"budget {c}", budget.scope, np.where(allowed, 0.0, -np.inf)
    for c, factor in enumerate(model.structured()):
        name, size = f"{factor.kind.name} {c}", math.prod(factor.shape)
        if size > MOST_ENTRIES:
            what = f"{name}: Expected a factor of at most {MOST_ENTRIES:,} joint states in a .uai file"
            raise InputError(f"{what} (got {size:,}); write a .fgm file instead, which keeps it")
        yield name, factor.scope, factor.as_table()


def _plan(theta: NDArray[np.float64], name: str) -> tuple[float, int]:
    """The shift and the number of copies that keep ``exp`` in range."""
    finite = theta[np.isfinite(theta)]
    if not finite.size:
        return 0.0, 1
    low, high = float(finite.min()), float(finite.max())
    if low >= _LOWEST and high <= _HIGHEST:
        return 0.0, 1
    copies = max(1, math.ceil((high - low) / -_LOWEST))
    if copies > _MOST_COPIES:
        what = f"{name}: Expected log-potentials within {-_LOWEST * _MOST_COPIES:g} of each other in a .uai file"
        raise InputError(f"{what} (got {low:g} and {high:g}); write a .fgm file instead, which keeps them")
    return high, copies


def _constants(constant: float) -> list[float]:
    """The constant in equal parts, each in range of ``exp``."""
    if constant == 0.0:
        return []
    if constant == -math.inf:
        return [constant]
    count = max(1, math.ceil(abs(constant) / _HIGHEST))
    if count > _MOST_CONSTANTS:
        what = f"constant: Expected a constant within {_HIGHEST * _MOST_CONSTANTS:g} of 0 in a .uai file"
        raise InputError(f"{what} (got {constant:g}); write a .fgm file instead, which keeps it")
    return [constant / count] * count


def _table(potentials: NDArray[np.float64]) -> bytes:
    flat = potentials.reshape(-1).tolist()
    return f"\n{len(flat)}\n{' '.join(map(repr, flat))}\n".encode()
