"""What the runs say: the score of every method at each time, gaps, wins and areas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

_EQUAL = 1e-6  # scores this close, relative to the best, are equal
_BEHIND = 1e-3  # a part may be ahead of the whole by this much
PARTS = ("tree moves alone", "annealing alone")
Records = Mapping[str, Mapping[str, Any]]


def summarise(runs: Records, known: Mapping[str, float], ours: Sequence[str]) -> dict[str, Any]:
    """Tables of all runs.

    Args:
        runs: The records, each with its instance, method and limit.
        known: The best known score of some instances.
        ours: The methods whose wins are counted.

    Returns:
        ``scores``: for each instance and limit the score of every method. ``gap_area``: for each family the mean gap of
        every method over the longest time, in percent of the largest score in size that any method had on the way.
        ``wins``: how often our methods are best or equal to the best peer, and never behind their parts. ``overruns``:
        the largest excess over a time limit.
    """
    every = [dict(r) for r in runs.values() if "error" not in r]
    instances = list(dict.fromkeys(r["instance"] for r in every))
    limits = sorted({r["limit"] for r in every})
    scores: dict[str, dict[str, float | None]] = {}
    areas: dict[str, dict[str, list[float]]] = {}
    for name in instances:
        mine = [r for r in every if r["instance"] == name]
        best = best_score(mine, known.get(name))
        scale = max((abs(s) for r in mine for _, s, _ in r["curve"] if s is not None), default=1.0)
        for limit in limits:
            scores[f"{name}, {limit:g} s"] = {m: score_at(rs, limit) for m, rs in by_method(mine).items()}
        for method, rs in by_method(mine).items():
            area = 100 * gap_area(steps(rs), best, max(limits), scale)
            areas.setdefault(name.split("/")[0], {}).setdefault(method, []).append(area)
    return {
        "scores": scores,
        "gap_area": {f: {m: fmean(values) for m, values in row.items()} for f, row in areas.items()},
        "wins": {method: _wins(method, scores, limits, ours) for method in ours},
        "overruns": _overruns(every),
    }


def by_method(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Records by method."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["method"], []).append(record)
    return groups


def score_at(records: Iterable[Mapping[str, Any]], limit: float) -> float | None:
    """The score of a method at a time: of the run with this limit or, without one, what its runs had found by then."""
    every = list(records)
    own = [r["score"] for r in every if r["limit"] == limit]
    by_then = [score for r in every for seconds, score, _ in r["curve"] if seconds <= limit]
    return max((score for score in own or by_then if score is not None), default=None)


def steps(records: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """The best score so far over time, from all runs of a method on an instance: (seconds, score), increasing."""
    points = sorted((t, s) for r in records for t, s, _ in r["curve"] if s is not None)
    best: list[tuple[float, float]] = []
    for t, s in points:
        if not best or s > best[-1][1]:
            best.append((t, s))
    return best


def best_score(records: Iterable[Mapping[str, Any]], known: float | None) -> float | None:
    """The best score of any method, or the best known one if that is better."""
    found = [r["score"] for r in records if r["score"] is not None]
    return max([*found, *([] if known is None else [known])], default=None)


def gap(score: float | None, best: float | None, scale: float = 1.0) -> float:
    """The shortfall relative to the best score or a larger ``scale``, between 0 and 1; 1 without a feasible answer."""
    if best is None:
        return 0.0
    return 1.0 if score is None else min(1.0, max(0.0, (best - score) / max(scale, abs(best))))


def gap_area(curve: Sequence[tuple[float, float]], best: float | None, end: float, scale: float = 1.0) -> float:
    """The mean gap from the start to ``end``; before the first answer it is 1."""
    total, at, current = 0.0, 0.0, 1.0 if best is not None else 0.0
    for t, score in curve:
        t = min(t, end)
        total += current * (t - at)
        at, current = t, gap(score, best, scale)
    return (total + current * max(0.0, end - at)) / end


def _wins(
    method: str, scores: Mapping[str, Mapping[str, float | None]], limits: Sequence[float], ours: Sequence[str]
) -> dict[str, Any]:
    row: dict[str, Any] = {}
    behind = 0
    for limit in limits:
        rows = [r for name, r in scores.items() if name.endswith(f", {limit:g} s") and method in r]
        peers = [max((s for m, s in r.items() if m not in ours and s is not None), default=None) for r in rows]
        best = [gap(r[method], peer) <= _EQUAL for r, peer in zip(rows, peers, strict=True)]
        row[f"best or equal, {limit:g} s"] = f"{sum(best)} of {len(best)}"
        behind += sum(gap(r[method], r.get(part)) > _BEHIND for r in rows for part in PARTS if r.get(part) is not None)
    return row | {"behind a part by more than 0.1 %": behind}


def _overruns(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {}
    for method, rs in by_method(records).items():
        rows[method] = {"most seconds over the limit": round(max(r["seconds"] - r["limit"] for r in rs), 3)}
    return rows
