"""Solutions as HTML, for notebooks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fgnn.drawing import draw
from fgnn.drawing.fragment import figure_and_facts
from fgnn.drawing.sketch import INLINE_NODES
from fgnn.pgm.sketch import num_nodes

if TYPE_CHECKING:
    from fgnn.infer.solution import Solution, SolutionBatch

_MOST_STATES = 60  # written out in a line


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
