"""Learn the rules of Sudoku from solved grids, then solve puzzles with what was learned.

    python examples/learn_sudoku.py --grids 1000 --puzzles 1000

The learner knows that there are 81 cells with nine states each, and nothing else: not which cells form a row, a column
or a box, nor that digits differ. docs/problems/learning.md explains it.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

import fgnn

Grids = NDArray[np.int64]
PAIRS = list(itertools.combinations(range(81), 2))


def solved_grids(count: int, rng: np.random.Generator) -> Grids:
    """Random solved grids (count, 81), digits 0..8."""
    out = []
    for _ in range(count):
        grid = np.full((9, 9), -1)
        for box in (0, 3, 6):  # the boxes of the diagonal do not constrain each other
            grid[box : box + 3, box : box + 3] = rng.permutation(9).reshape(3, 3)
        solved = _fill(grid.ravel(), rng, limit=1)[1].reshape(9, 9)
        # Exchange rows and columns within and between bands, or the search would favour some grids.
        rows, columns = (np.concatenate([3 * b + rng.permutation(3) for b in rng.permutation(3)]) for _ in range(2))
        solved = solved[rows][:, columns]
        out.append((solved.T if rng.random() < 0.5 else solved).ravel())
    return np.stack(out)


def puzzles(solutions: Grids, rng: np.random.Generator) -> Grids:
    """Remove digits, -1, in random order while the solution stays unique."""
    out = solutions.copy()
    for grid in out:
        for cell in rng.permutation(81):
            digit, grid[cell] = grid[cell], -1
            if _fill(grid, rng, limit=2)[0] > 1:
                grid[cell] = digit
    return out


def _fill(grid: Grids, rng: np.random.Generator, limit: int) -> tuple[int, Grids]:
    """The number of solutions, counted up to ``limit``, and one of them. Only the data needs the rules."""
    import numba

    global _search
    if not hasattr(_search, "py_func"):
        _search = numba.njit(cache=True)(_search)
    return _search(grid.copy(), rng.permutation(9), limit)  # type: ignore[return-value]


def _search(grid, digits, limit):  # type: ignore[no-untyped-def]
    """Depth-first search over the cell with the fewest digits left."""
    used = np.zeros((27, 9), np.bool_)
    for i in range(81):
        if grid[i] >= 0:
            for unit in (i // 9, 9 + i % 9, 18 + i // 27 * 3 + i % 9 // 3):
                used[unit, grid[i]] = True
    stack, tried = np.empty(81, np.int64), np.empty(81, np.int64)
    found, depth, solution, descend = 0, 0, grid.copy(), True
    while True:
        if descend:
            best, fewest = -1, 10
            for i in range(81):
                if grid[i] < 0:
                    left = 0
                    for d in range(9):
                        taken = used[i // 9, d] or used[9 + i % 9, d] or used[18 + i // 27 * 3 + i % 9 // 3, d]
                        left += 0 if taken else 1
                    if left < fewest:
                        best, fewest = i, left
            if best < 0:
                found += 1
                solution[:] = grid
                if found >= limit:
                    return found, solution
            else:
                stack[depth], tried[depth] = best, 0
                depth += 1
        descend = False
        if depth == 0:
            return found, solution
        i = stack[depth - 1]
        row, column, box = i // 9, 9 + i % 9, 18 + i // 27 * 3 + i % 9 // 3
        if grid[i] >= 0:
            used[row, grid[i]] = used[column, grid[i]] = used[box, grid[i]] = False
            grid[i] = -1
        while tried[depth - 1] < 9:
            d = digits[tried[depth - 1]]
            tried[depth - 1] += 1
            if not (used[row, d] or used[column, d] or used[box, d]):
                grid[i] = d
                used[row, d] = used[column, d] = used[box, d] = True
                descend = True
                break
        if not descend:
            depth -= 1


def learn(grids: Grids, epochs: int, keep: float, seed: int) -> fgnn.nn.CRF:
    """A table for every pair of cells, by the pseudo-likelihood with dropped tables (E-PLL)."""
    template = fgnn.GraphicalModel([9] * 81)
    template.add_tables(PAIRS, np.zeros((len(PAIRS), 9, 9)))
    crf = fgnn.nn.CRF(template, learn="each")
    torch.manual_seed(seed)
    optimiser = torch.optim.Adam(crf.parameters(), lr=0.05)
    data, unary = torch.as_tensor(grids), torch.zeros(50, 81, 9)
    for _ in range(epochs):
        for rows in torch.randperm(len(data)).split(50):
            loss = -crf.pseudo_log_likelihood(data[rows], unary[: len(rows)], keep=keep).mean()
            optimiser.zero_grad()
            (loss + 1e-3 * crf.tables[0].abs().sum()).backward()
            optimiser.step()
    return crf


def rules(crf: fgnn.nn.CRF, grids: Grids) -> fgnn.GraphicalModel:
    """Forbid what scores low and occurs in no grid, in tables where this is no accident.

    A pair of states that is allowed may be missing from all grids by chance, but hardly three in one table.
    """
    tables = crf.tables[0].detach().numpy()  # shape: (C, 9, 9)
    tables = tables - np.median(tables, axis=(1, 2), keepdims=True)
    threshold = float(tables.min()) / 2
    for _ in range(50):  # halfway between the means of what lies below and above it
        threshold = (float(tables[tables < threshold].mean()) + float(tables[tables >= threshold].mean())) / 2
    first, second = np.array(PAIRS).T
    occurs = np.zeros(tables.shape, dtype=bool)
    for grid in grids:
        occurs[np.arange(len(PAIRS)), grid[first], grid[second]] = True
    forbidden = (tables < threshold) & ~occurs
    model = fgnn.GraphicalModel([9] * 81)
    for c in np.flatnonzero(forbidden.sum((1, 2)) >= 3):
        model.add_table(PAIRS[c], np.where(forbidden[c], -np.inf, 0.0))
    return model


def solve(model: fgnn.GraphicalModel, given: Grids) -> Grids:
    """The assignments (P, 81) under the learned rules that agree with the given digits: one batch, on all cores."""
    batch = fgnn.ModelBatch.stack([model]).repeat(len(given))
    digits = torch.as_tensor(given)[..., None]
    other = (digits >= 0) & (digits != torch.arange(9))
    batch = replace(batch, unary=batch.unary.masked_fill(other, -torch.inf))
    return fgnn.solve(batch, "toulbar2").assignment.numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grids", type=int, default=1000, help="solved grids to learn from")
    parser.add_argument("--puzzles", type=int, default=1000, help="fresh puzzles to solve")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--keep", type=float, default=0.6, help="share of the tables that a conditional sees")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="write the learned model to this file")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    grids = solved_grids(options.grids, rng)
    answers = solved_grids(options.puzzles, rng)
    questions = puzzles(answers, rng)
    start = time.perf_counter()
    model = rules(learn(grids, options.epochs, options.keep, options.seed), grids)
    pairs = sum(1 for _ in model.tables())
    print(f"learned {pairs} constraints between two cells (the game has 810) in {time.perf_counter() - start:.0f} s")
    if options.out:
        fgnn.write_model(model, options.out)
    start = time.perf_counter()
    right = int((solve(model, questions) == answers).all(1).sum())
    given = (questions >= 0).sum(1).mean()
    print(
        f"solved {right} of {len(answers)} fresh puzzles with {given:.1f} given digits on average "
        f"in {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
