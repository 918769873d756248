"""How many rank-1 terms the tables of model files need: `python -m tools.term_counts MODELS --out terms.json`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

import fgnn
from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.runtime.environment import environment
from fgnn.theory.decompose import decompositions

SUFFIXES = (".uai", ".fg", ".bif", ".wcsp", ".cfn")


def count_terms(model: fgnn.GraphicalModel, largest: int) -> dict[str, int]:
    """Tables of two or more variables, their finite configurations and the terms of `decompose`.

    Then the maxima of two numbers in one iteration of the max-product network, with a term for each configuration and
    with the terms that need the fewest.

    Args:
        model: The model.
        largest: Tables with more entries than this are counted as left out.
    """
    names = ("tables", "configurations", "terms", "additive", "comparisons_single", "comparisons", "left_out")
    count: Counter[str] = Counter(dict.fromkeys(names, 0))
    known: dict[bytes, dict[str, int]] = {}
    for group in model.table_groups:
        if group.scopes.shape[1] < 2:
            continue
        for table in group.values:
            if table.size > largest:
                count["left_out"] += 1
                continue
            key = repr(table.shape).encode() + table.tobytes()
            if key not in known:
                known[key] = _count(table)
            count.update(known[key])
    return dict(count)


def _count(table: NDArray[np.float64]) -> dict[str, int]:
    single, *others = decompositions(table)
    terms = min(d.num_terms for d in others)
    return {
        "tables": 1,
        "configurations": single.num_terms,
        "terms": terms,
        "additive": int(terms == 1),
        "comparisons_single": sum(single.comparisons),
        "comparisons": min(sum(d.comparisons) for d in (single, *others)),
    }


def main(
    models: Annotated[Path, typer.Argument(help="A folder of model files.")],
    out: Annotated[Path | None, typer.Option(help="The JSON file.")] = None,
    largest: Annotated[int, typer.Option(help="Leave out tables with more entries.")] = 1024,
    tables: Annotated[int, typer.Option(help="Leave out models with more tables.")] = 2000,
) -> None:
    """Count the terms of every model in a folder and its subfolders."""
    files = sorted(p for p in models.rglob("*") if p.name.removesuffix(".gz").removesuffix(".xz").endswith(SUFFIXES))
    families: dict[str, Counter[str]] = {}
    for path in files:
        try:
            model = fgnn.read_model(path)
        except InputError as error:
            typer.echo(f"{error}: left out", err=True)
            continue
        if sum(len(group.scopes) for group in model.table_groups) > tables:
            continue
        row = count_terms(model, largest)
        if row["tables"]:
            for family in (path.relative_to(models).parts[0], "all"):
                families.setdefault(family, Counter()).update(row, models=1)
            typer.echo(f"{path.name}: {row['terms']:,} terms for {row['configurations']:,} configurations")
    payload = {
        "command": f"python -m tools.term_counts MODELS --largest {largest} --tables {tables}",
        "environment": environment(),
        "families": {name: dict(count) for name, count in families.items()},
    }
    if out is not None:
        with atomic_write(out) as file:
            json.dump(payload, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    typer.run(main)
