"""Generated families of wide models: spin glasses, Potts grids, colourings, 3-SAT, protein-like packings, budgets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fgnn.data import GridMAP
from fgnn.pgm import GraphicalModel

_CLASH = 20.0  # lost by two side chains that overlap


def glass(side: int, seed: int) -> GraphicalModel:
    """A spin glass on a square grid: couplings N(0, 1) and fields N(0, 0.3²) on spins of ±1."""
    rng = np.random.default_rng([seed, side, 1])
    pairs = grid_pairs(side)
    return ising(pairs, 0.3 * rng.normal(size=side**2), rng.normal(size=len(pairs)))


def graph_glass(nodes: int, degree: int, seed: int) -> GraphicalModel:
    """The same on a random graph in which nearly all nodes have this degree."""
    rng = np.random.default_rng([seed, nodes, 6, degree])
    pairs = random_graph(nodes, degree, rng)
    return ising(pairs, 0.3 * rng.normal(size=nodes), rng.normal(size=len(pairs)))


def ferromagnet(side: int, seed: int) -> GraphicalModel:
    """Equal couplings of 1 on a grid in a random field N(0, 1.5²): neighbours agree, the field pulls."""
    rng = np.random.default_rng([seed, side, 7])
    pairs = grid_pairs(side)
    return ising(pairs, 1.5 * rng.normal(size=side**2), np.ones(len(pairs)))


def random_graph(nodes: int, degree: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The pairs of a random graph: stubs of the nodes matched at random, loops and repeats dropped."""
    stubs = rng.permutation(np.repeat(np.arange(nodes), degree))
    pairs = np.sort(stubs[: len(stubs) // 2 * 2].reshape(-1, 2), 1)
    return np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)


def ising(pairs: NDArray[np.int64], field: NDArray[np.float64], coupling: NDArray[np.float64]) -> GraphicalModel:
    """Spins of ±1 with a field each and a coupling for every pair."""
    model = GraphicalModel([2] * len(field))
    model.add_unaries(np.stack([-field, field], 1).ravel())
    model.add_tables(pairs, coupling[:, None, None] * np.array([[1.0, -1.0], [-1.0, 1.0]]))
    return model


def potts(side: int, seed: int, labels: int = 5) -> GraphicalModel:
    """A Potts grid: unaries N(0, 1), and neighbours of equal label gain 0.5."""
    rng = np.random.default_rng([seed, side, 2])
    model = GraphicalModel([labels] * side**2)
    model.add_unaries(rng.normal(size=labels * side**2))
    pairs = grid_pairs(side)
    model.add_tables(pairs, np.broadcast_to(0.5 * np.eye(labels), (len(pairs), labels, labels)).copy())
    return model


def colouring(nodes: int, seed: int, colours: int = 5, degree: float = 13.0) -> GraphicalModel:
    """A random graph of average degree 13, where proper colourings with 5 colours end; a conflict loses 1."""
    rng = np.random.default_rng([seed, nodes, 3])
    first, second = np.triu_indices(nodes, 1)
    chosen = rng.choice(len(first), round(degree * nodes / 2), replace=False)
    pairs = np.stack([first[chosen], second[chosen]], 1)
    model = GraphicalModel([colours] * nodes)
    model.add_tables(pairs, np.broadcast_to(-np.eye(colours), (len(pairs), colours, colours)).copy())
    return model


def random_sat(variables: int, clauses: int, seed: int) -> GraphicalModel:
    """Random 3-SAT: each violated clause loses 1."""
    rng = np.random.default_rng([seed, variables, 4])
    scopes = np.stack([np.sort(rng.choice(variables, 3, replace=False)) for _ in range(clauses)])
    values = np.zeros((clauses, 2, 2, 2))
    wrong = rng.integers(0, 2, (clauses, 3))  # the one combination of states that violates the clause
    values[np.arange(clauses), wrong[:, 0], wrong[:, 1], wrong[:, 2]] = -1.0
    model = GraphicalModel([2] * variables)
    model.add_tables(scopes, values)
    return model


def protein_like(residues: int, seed: int) -> GraphicalModel:
    """Side chains in a packed ball: 2 to 30 rotamers each, pairs within reach, and clashes that lose 20."""
    rng = np.random.default_rng([seed, residues, 5])
    place = rng.normal(size=(residues, 3))
    place *= (rng.random(residues) ** (1 / 3) * 2.2 * residues ** (1 / 3) / np.linalg.norm(place, axis=1))[:, None]
    rotamers = rng.choice([2, 3, 5, 9, 15, 30], residues)
    tips = [place[i] + 2.0 * _directions(rng, int(k)) for i, k in enumerate(rotamers)]
    model = GraphicalModel(rotamers)
    model.add_unaries(np.concatenate([-rng.exponential(1.5, int(k)) for k in rotamers]))
    for i in range(residues):
        for j in range(i + 1, residues):
            if np.linalg.norm(place[i] - place[j]) < 5.0:
                distance = np.linalg.norm(tips[i][:, None] - tips[j][None], axis=2)
                contact = 2.0 * np.exp(-((distance - 2.0) ** 2))
                model.add_table((i, j), np.where(distance < 1.0, -_CLASH, contact))
    return model


def with_budgets(side: int, seed: int) -> GraphicalModel:
    """The grid family of the learned solver: a spin glass with a budget on every 2 x 3 patch."""
    return GridMAP(side, side).sample(1, seed=seed).model(0)


def grid_pairs(side: int) -> NDArray[np.int64]:
    """The pairs of neighbours of a square grid, across and down.  # shape: (pairs, 2)"""
    place = np.arange(side**2).reshape(side, side)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], 1)
    down = np.stack([place[:-1].ravel(), place[1:].ravel()], 1)
    return np.concatenate([across, down])


def _directions(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    points = rng.normal(size=(count, 3))
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True))
