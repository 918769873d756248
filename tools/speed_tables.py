"""The speed tables of the README, made from the files in ``benchmarks/results``; run as a module it rewrites them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fgnn.bench.common import RESULTS, number
from fgnn.files import atomic_write

BEGIN = "<!-- speed: made by `python -m tools.speed_tables` from benchmarks/results -->"
END = "<!-- end of speed -->"


def speed_markdown(folder: str | Path = RESULTS) -> str:
    """A paragraph and a table for each kept result; nothing where there is no file."""
    parts = []
    for name, make in _PARTS.items():
        file = Path(folder) / f"{name}.json"
        if file.is_file():
            result = json.loads(file.read_text(encoding="utf-8"))
            parts.append(f"{make(result)}\n\n{_where(result['environment'], file)}\n")
    return "\n".join(parts)


def rewrite(page: str | Path, folder: str | Path = RESULTS) -> bool:
    """Put the tables between a page's marks; whether anything changed."""
    text = Path(page).read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ValueError(f"Expected the marks {BEGIN!r} and {END!r} in {page} (got none)")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    made = f"{before}{BEGIN}\n{speed_markdown(folder)}{END}{after}"
    if made == text:
        return False
    with atomic_write(page) as handle:
        handle.write(made)
    return True


def _layer(result: dict[str, Any]) -> str:
    cuda = result["environment"]["device"] != "cpu"
    size = result["size"]
    about = (
        f"**One layer**, {size['edges']:,} edges, 64 to 64, 16 bases, {'bfloat16' if cuda else 'float32'}; milliseconds"
        + (" of the device alone (of a call in brackets)" if cuda else "")
        + ", and MiB on top of what was held."
    )
    rows = []
    for name, row in result["forms"].items():
        ratio = result["ratios"].get(name)
        rows.append(
            (
                name, _time(row, "forward", cuda), _times(ratio, "forward"), _time(row, "both", cuda),
                _times(ratio, "forward + backward"), _mib(row["both_bytes"]),
            )
        )  # fmt: skip
    head = ("form", "forward", "× ours", "forward + backward", "× ours", "MiB")
    told = [about, "", *_table(head, rows)]
    networks = [
        *((f"a layer on 4,096 chain models, Q by {q}", row) for q, row in result.get("small graphs", {}).items()),
        *(
            [("the paper's point network, 8 × 4,096 points", result["point network"])]
            if "point network" in result
            else []
        ),
    ]
    if networks:
        cells = [
            (
                title,
                _time(row["ours"], "both", cuda),
                _time(row["plain torch"], "both", cuda),
                number(row["forward + backward"]),
            )
            for title, row in networks
        ]
        told += ["", *_table(("forward + backward", "ours", "plain torch", "×"), cells)]
    return "\n".join(told)


def _knn(result: dict[str, Any]) -> str:
    about = "**Nearest neighbours**, k = 16, milliseconds; every answer is checked against a tree in float64."
    sizes = [key for key, rows in result.items() if isinstance(rows, dict) and "ours" in rows]
    ways = list(dict.fromkeys(way for size in sizes for way in result[size]))
    rows = [(way, *(number(result[size].get(way, {}).get("ms")) or "" for size in sizes)) for way in ways]
    return "\n".join([about, "", *_table(("way", *(f"{size} points" for size in sizes)), rows)])


def _solvers(result: dict[str, Any]) -> str:
    about = "**MAP solvers** on chain models, microseconds a model in one call (peers: one model after the other)."
    rows = [
        (name, number(1000 * row["ms_per_model"]), number(row.get("models_per_second")) or "")
        for name, row in result["methods"].items()
    ]
    return "\n".join([about, "", *_table(("method", "µs a model", "models a second"), rows)])


def _points(result: dict[str, Any]) -> str:
    clouds, points = result["clouds"], result["points"]
    about = (
        f"**Point networks**, batches of {clouds} clouds of {points:,} points, {result['precision']}: a training step "
        "(forward, backward, clipping, AdamW), and labelling."
    )
    rows = [
        (
            name, f"{row['parameters']:,}", number(row["step_ms"]), number(1e3 * clouds / row["step_ms"]),
            number(1e3 * clouds / row["use_ms"]), _mib(row["step_bytes"]),
        )
        for name, row in result["networks"].items()
    ]  # fmt: skip
    head = ("network", "parameters", "ms a step", "clouds a second", "labelled a second", "MiB")
    return "\n".join([about, "", *_table(head, rows)])


def _training(result: dict[str, Any]) -> str:
    about = "**Training on fresh chains**, drawing and exact labelling included."
    rows = [
        (row["recipe"], f"{row['batch']:,}", row["precision"], number(row["step_ms"]), number(row["per_second"]))
        for row in result["recipes"]
    ]
    return "\n".join([about, "", *_table(("recipe", "batch", "", "ms a step", "instances a second"), rows)])


def _segment(result: dict[str, Any]) -> str:
    about = f"**`fgnn segment --model {result['setting']['model']}`**, generated scans, file to file."
    rows = [
        (
            f"{row['points']:,}", row["votes"], number(row["seconds"]), number(row["points_per_second"]),
            number(row["peak_bytes"] / 1e6),
        )
        for row in result["rows"]
    ]  # fmt: skip
    return "\n".join([about, "", *_table(("points", "votes", "seconds", "points a second", "peak MB"), rows)])


_PARTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "layer-cuda": _layer,
    "layer-cpu": _layer,
    "knn-cuda": _knn,
    "knn-cpu": _knn,
    "solvers-cuda": _solvers,
    "solvers-cpu": _solvers,
    "training-cuda": _training,
    "points-cuda": _points,
    "segment-cuda": _segment,
    "segment": _segment,
}


def _where(head: dict[str, Any], file: Path) -> str:
    machine = head["device"] if head["device"] != "cpu" else f"{head['cpu']}, {head['threads']} threads"
    return (
        f"({machine}, torch {head['torch']}, {str(head['date'])[:10]}, commit {head['commit']}, load {head['load']}; "
        f"`{file.name}`)"
    )


def _time(row: dict[str, Any], what: str, cuda: bool) -> str:
    called = number(row[f"{what}_called_ms"])
    if not cuda or not row[f"{what}_replayed"]:
        return f"{called} called" if cuda else f"{called}"
    return f"{number(row[f'{what}_ms'])} ({called})"


def _times(ratio: dict[str, Any] | None, what: str) -> str:
    return "" if ratio is None else number(ratio[what]) or ""


def _mib(size: int | None) -> str:
    return "" if size is None else number(size / 2**20) or ""


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in cells) + " |" for cells in lines]


if __name__ == "__main__":
    changed = rewrite(sys.argv[1] if len(sys.argv) > 1 else "README.md")
    print("rewritten" if changed else "nothing to change")
