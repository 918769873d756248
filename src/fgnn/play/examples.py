"""The examples of the page and of its tour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from fgnn.pgm import GraphicalModel
from fgnn.play.model_json import model_to_json

_GAP = 92  # between variables that an example places itself


@dataclass(frozen=True)
class Example:
    """A model with a title; ``columns`` places its variables in rows of that many; the tour's are not ``listed``."""

    title: str
    make: Callable[[], GraphicalModel]
    columns: int | None = None
    listed: bool = True

    def as_json(self) -> dict[str, Any]:
        """The model, with places if the example has them."""
        model = model_to_json(self.make())
        if self.columns is not None:
            for i, variable in enumerate(model["variables"]):
                variable |= {"x": _GAP * (i % self.columns), "y": _GAP * (i // self.columns)}
        return {"title": self.title, "listed": self.listed, "model": model}


def _paper() -> GraphicalModel:
    """The factor graph of the paper's figure: f1 over three variables, f2 over the last."""
    model = GraphicalModel([2, 2, 2])
    model.add_table((0, 1, 2), np.random.default_rng(1).normal(size=(2, 2, 2)).round(1))
    model.add_unary(2, [0.0, 0.7])
    return model


def _chain() -> GraphicalModel:
    """A short chain like the paper's first data set, with windows of four."""
    model = GraphicalModel([2] * 10)
    model.add_unaries(np.random.default_rng(3).random(20).round(2))
    for i in range(9):
        model.add_table((i, i + 1), [[0, 0.1], [0.2, 1.0]])
    for i in range(7):
        model.add_budget(range(i, i + 4), at_most=2)
    return model


def _grid_pairs(rows: int, columns: int) -> list[tuple[int, int]]:
    at = np.arange(rows * columns).reshape(rows, columns)
    pairs = [*zip(at[:, :-1].flat, at[:, 1:].flat, strict=True), *zip(at[:-1].flat, at[1:].flat, strict=True)]
    return sorted((int(i), int(j)) for i, j in pairs)


def _grid() -> GraphicalModel:
    """A 3 x 3 grid with attractive and repulsive pairs."""
    rng = np.random.default_rng(5)
    model = GraphicalModel([2] * 9)
    model.add_unaries(rng.normal(size=18).round(1))
    for i, j in _grid_pairs(3, 3):
        theta = round(float(rng.normal()), 1)
        model.add_table((i, j), [[theta, 0], [0, theta]])
    return model


_PICTURE = """
............
.#########..
.#########..
.###........
.###........
.########...
.########...
.###........
.###........
.###........
.###........
............
"""


def _denoising() -> GraphicalModel:
    """A 12 x 12 picture in which one pixel in seven has flipped: a pixel believes its colour and its neighbours."""
    clean = np.array([[c == "#" for c in line] for line in _PICTURE.split()])
    noisy = clean ^ (np.random.default_rng(1).random(clean.shape) < 1 / 7)
    model = GraphicalModel([2] * clean.size)
    model.add_unaries(np.stack([~noisy, noisy], -1).astype(float).reshape(-1) * 1.1)
    for i, j in _grid_pairs(*clean.shape):
        model.add_table((i, j), [[0.6, 0], [0, 0.6]])
    return model


def _ldpc() -> GraphicalModel:
    """A low-density parity-check code of 20 bits: the word 0 was sent, and two bits arrive flipped.

    An array code: bit (a, b) is in check a·k + b (mod 5) of block k = 0, 1, so that checks meet in at most one bit.
    """
    size, blocks = 5, 4
    received = np.abs(np.random.default_rng(2).normal(1.6, 0.9, blocks * size)).round(1)
    received[[3, 12]] *= -1
    model = GraphicalModel([2] * (blocks * size))
    model.add_unaries(np.stack([received, np.zeros_like(received)], -1).reshape(-1))
    parity = np.where(np.indices((2,) * blocks).sum(0) % 2 == 0, 0.0, -np.inf)
    for k, check in product(range(2), range(size)):
        model.add_table([size * a + (check - a * k) % size for a in range(blocks)], parity)
    return model


def _sudoku() -> GraphicalModel:
    """A 4 x 4 Sudoku with six given cells: a table over every row, column and box forbids equal digits."""
    given = {0: 0, 3: 3, 6: 0, 9: 0, 12: 3, 14: 1}
    model = GraphicalModel([4] * 16)
    for cell, digit in given.items():
        model.add_unary(cell, np.where(np.arange(4) == digit, 0.0, -np.inf))
    at = np.arange(16).reshape(4, 4)
    states = np.indices((4,) * 4).reshape(4, -1)
    different = np.array([len(set(column)) == 4 for column in states.T]).reshape((4,) * 4)
    boxes = at.reshape(2, 2, 2, 2).swapaxes(1, 2).reshape(4, 4)
    for scope in (*at, *at.T, *boxes):
        model.add_table(scope.tolist(), np.where(different, 0.0, -np.inf))
    return model


def _tree() -> GraphicalModel:
    """Seven variables in a tree."""
    rng = np.random.default_rng(8)
    model = GraphicalModel([2] * 7)
    model.add_unaries(rng.normal(size=14).round(1))
    for child in range(1, 7):
        model.add_table(((child - 1) // 2, child), rng.normal(size=(2, 2)).round(1) * 2)
    return model


def _loop() -> GraphicalModel:
    """Four variables in a loop. Undamped max-product swings between two answers, damped it finds the optimum."""
    model = GraphicalModel([2] * 4)
    for i, theta in enumerate((-1.0, 0.6, 0.9, 0.7)):
        model.add_unary(i, [0.0, theta])
    for i, theta in enumerate((-1.5, -1.0, 1.9, 1.3)):
        model.add_table((i, (i + 1) % 4), [[theta, 0], [0, theta]])
    return model


def _budget() -> GraphicalModel:
    """A chain of six variables, at most two of which may be 1."""
    model = GraphicalModel([2] * 6)
    for i, theta in enumerate((0.9, 1.4, 0.3, -0.2, 1.1, 0.6)):
        model.add_unary(i, [0.0, theta])
    for i in range(5):
        model.add_table((i, i + 1), [[0.0, 0.1], [0.2, 0.5]])
    model.add_budget(range(6), at_most=2)
    return model


def _spin_glass() -> GraphicalModel:
    """A 5 x 5 spin glass with a budget on every patch of 2 x 3, like the models that the packaged network learned from.

    The network names the optimum, and max-product does not.
    """
    size, rng = 5, np.random.default_rng(20)
    model = GraphicalModel([2] * size**2)
    model.add_unaries(rng.normal(size=2 * size**2).round(1))
    for i, j in _grid_pairs(size, size):
        theta = round(float(rng.normal()), 1)
        model.add_table((i, j), [[theta, -theta], [-theta, theta]])
    at = np.arange(size**2).reshape(size, size)
    for row, column in product(range(size - 1), range(size - 2)):
        patch = at[row : row + 2, column : column + 3].reshape(-1).tolist()
        model.add_budget(patch, at_most=int(rng.integers(2, 5)))
    return model


EXAMPLES: dict[str, Example] = {
    "paper": Example("the paper's figure", _paper),
    "chain": Example("chain with budgets", _chain),
    "grid": Example("loopy grid", _grid),
    "denoising": Example("image denoising", _denoising),
    "ldpc": Example("LDPC code", _ldpc),
    "sudoku": Example("Sudoku", _sudoku, columns=4),
    "tree": Example("tree", _tree),
    "loop": Example("loop that oscillates", _loop),
    "budget": Example("one budget", _budget, listed=False),
    "spin-glass": Example("spin glass with budgets", _spin_glass),
}
