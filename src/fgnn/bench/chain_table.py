"""Every solver on the chain data, against the exact optimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fgnn.bench.common import number
from fgnn.data import ChainMAP
from fgnn.infer import SolutionBatch, solve


@dataclass(frozen=True)
class Method:
    """A solver with its options; a slow one sees the first ``most`` models only."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    most: int | None = None


METHODS: dict[str, Method] = {
    "exact": Method("exact"),
    "toulbar2": Method("toulbar2", most=50),
    "LP (HiGHS)": Method("lp", most=500),
    "AD3": Method("ad3", {"rounding": "argmax"}),
    "AD3, branch & bound": Method("ad3", {"branch_and_bound": True}, most=200),
    # Undamped messages end in a cycle of three; 100 iterations stop in the phase others have reported.
    "max-product, plain": Method("max-product", {"damping": 0.0, "iterations": 100}),
    "max-product, damped": Method("max-product", {"damping": 0.5}),
    "max-product, in turn": Method("max-product", {"schedule": "sequential", "order": "random", "damping": 0.1}),
}


@dataclass(frozen=True)
class Row:
    """One method on one kind of chain, in percent of variables or of models; ``note`` says why it has no numbers."""

    name: str
    kind: int
    models: int = 0
    agree: float | None = None
    optimal: float | None = None
    infeasible: float | None = None
    milliseconds: float | None = None
    note: str = ""


def chain_table(
    kinds: Sequence[int] = (1, 2, 3),
    count: int = 500,
    methods: Mapping[str, Method] | None = None,
    window: int = 8,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> list[Row]:
    """Solve the same models with every method and compare with the proved optimum.

    Args:
        kinds: Of the chain data.
        count: Models of each kind.
        methods: By the name they are shown under; those of `METHODS` by default.
        window: Variables under one budget.
        seed: Of the models.
        device: Where tensor methods run.
    """
    rows: list[Row] = []
    for kind in kinds:
        batch = ChainMAP(kind, window=window).sample(count, seed=seed, device=device, source="cpu")
        truth = solve(batch, "exact")
        if set(truth.status) != {"optimal"}:
            raise ValueError(f"Expected a proved optimum for every chain (got {sorted(set(truth.status))})")
        for name, method in (METHODS if methods is None else methods).items():
            some = batch if method.most is None else batch.select(slice(0, method.most))
            try:
                found = solve(some, method.method, seed=seed, **method.options)
            except ImportError as error:  # an extra that is not installed
                rows.append(Row(name, kind, note=str(error)))
                continue
            rows.append(compare(name, kind, found, truth))
    return rows


def compare(name: str, kind: int, found: SolutionBatch, truth: SolutionBatch) -> Row:
    """A method's answers beside the optimum of the same models (the first of them)."""
    models = len(found)
    best = truth.score[:models]
    reached = found.score >= best - 1e-6 * best.abs().clamp(min=1.0)
    return Row(
        name=name,
        kind=kind,
        models=models,
        agree=_percent(found.assignment == truth.assignment[:models]),
        optimal=_percent(reached),
        infeasible=_percent(~found.feasible),
        milliseconds=1000 * found.seconds / models,
    )


def _percent(hits: torch.Tensor) -> float:
    return 100 * hits.double().mean().item()


def print_table(rows: Sequence[Row], console: Any = None) -> None:
    """One line per method, the kinds side by side, within 80 columns."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    kinds = sorted({row.kind for row in rows})
    every = max((row.models for row in rows), default=0)
    table = Table(
        title="/".join(f"D{kind}" for kind in kinds) + f", {every} models each",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    table.add_column("method", no_wrap=True)
    for column, width in (("agree %", 14), ("wholly\noptimal %", 11), ("infea-\nsible %", 11), ("ms each", 14)):
        table.add_column(column, justify="right", min_width=width)
    fewer: list[str] = []
    left_out: list[str] = []
    for name in dict.fromkeys(row.name for row in rows):
        mine = [row for kind in kinds for row in rows if (row.name, row.kind) == (name, kind)]
        if mine[0].note:
            left_out.append(f"{name} left out: {mine[0].note}")
            continue
        if mine[0].models < every:
            fewer.append(f"{name} saw {mine[0].models}")
        table.add_row(
            name,
            "/".join("100" if row.agree == 100 else f"{row.agree:.1f}" for row in mine),
            "/".join(f"{row.optimal:.0f}" for row in mine),
            "/".join(f"{row.infeasible:.0f}" for row in mine),
            "/".join((number(row.milliseconds, 2) or "").removeprefix("0") for row in mine),  # .07/.06/.12
        )
    if fewer:
        table.caption, table.caption_justify = "of the models, " + ", ".join(fewer), "left"
    console.print(table)
    for line in left_out:
        console.print(line, markup=False)
