"""Solutions and marginals as HTML, for notebooks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fgnn.drawing import draw
from fgnn.drawing.fragment import figure_and_facts, grid
from fgnn.drawing.sketch import INLINE_NODES
from fgnn.pgm.sketch import num_nodes

if TYPE_CHECKING:
    from fgnn.infer.probability.result import Marginals
    from fgnn.infer.solution import Solution, SolutionBatch

_MOST_STATES = 60  # written out in a line
_MOST_ROWS, _MOST_COLUMNS = 12, 8  # of a table of probabilities


def solution_html(solution: Solution) -> str:
    """Status, score, bound and assignment, and a drawing of a small model."""
    states = solution.assignment.tolist()
    cut = ", …" if len(states) > _MOST_STATES else ""
    facts = [
        ("score", f"{solution.score:.6g}"),
        ("bound", f"{solution.bound:.6g}"),
        ("gap", f"{solution.gap:.3g}"),
        ("method", solution.method),
        ("time", f"{solution.seconds:.3g} s, {solution.iterations:,} iterations"),
        ("assignment", ", ".join(map(str, states[:_MOST_STATES])) + cut),
    ]
    small = solution.model is not None and 0 < num_nodes(solution.model) <= INLINE_NODES
    return figure_and_facts(f"Solution: {solution.status}", facts, draw(solution)._repr_html_() if small else "")


def batch_html(solutions: SolutionBatch) -> str:
    """The number of answers of each status, and the range of their scores."""
    facts: list[tuple[str, str]] = [(status, f"{count:,}") for status, count in Counter(solutions.status).items()]
    if len(solutions):
        score = solutions.score.double().cpu()
        facts.append(("score", f"{score.min():.6g} to {score.max():.6g}, mean {score.mean():.6g}"))
    facts += [("method", solutions.method), ("time", f"{solutions.seconds:.3g} s")]
    return figure_and_facts(f"SolutionBatch of {len(solutions):,} models", facts)


def marginals_html(answer: Marginals) -> str:
    """log Z, and the probabilities of the first variables."""
    shown = answer.variables[:_MOST_ROWS]
    states = min(max(map(len, shown), default=0), _MOST_COLUMNS)
    rows = [
        (str(i), *(f"{p[k]:.4f}" if k < len(p) else "" for k in range(states)), "…" if len(p) > states else "")
        for i, p in enumerate(shown)
    ]
    above = f" (at most {answer.bound:.8g})" if not answer.exact else ""
    title = f"Marginals: {answer.status}, log Z = {answer.log_partition:.8g}{above}, by {answer.method}"
    more = len(answer.variables) - len(shown)
    heading = ("variable", *(f"p({k})" for k in range(states)), "")
    return grid(title, heading, rows, f"and {more:,} more variables" if more else "")
