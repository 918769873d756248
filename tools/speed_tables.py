"""Speed tables of docs/speed.md and the README, made from the files in ``benchmarks/results``.

``python -m tools.speed_tables`` rewrites both pages between their markers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fgnn.bench.common import RESULTS, number
from fgnn.files import atomic_write
from fgnn.weights import weight_names

BEGIN = "<!-- speed: made by `python -m tools.speed_tables` from benchmarks/results -->"
END = "<!-- end of speed -->"
_FORMS = {
    "ours, recorded": "ours, CUDA graph",
    "authors": "the authors' form",
    "authors, compiled": "the authors' form, compiled",
}


def speed_markdown(folder: str | Path = RESULTS) -> str:
    """A heading, a sentence and a table for each stored result."""
    parts = []
    for name, (title, make) in _PARTS.items():
        if result := _load(folder, name):
            parts.append(f"## {title}\n\n{make(result)}\n\n{_where(result['environment'], name)}\n")
    return "\n".join(parts)


def summary_markdown(folder: str | Path = RESULTS) -> str:
    """One table: ours against the best-known peer of each stored result."""
    rows: list[tuple[str, str, str, str]] = []
    for name, form, where in (
        ("layer-cuda", "ours", "H200"),
        ("layer-cuda", "ours, recorded", "H200, as a CUDA graph"),
        ("layer-cpu", "ours", "2 CPU cores"),
    ):
        if (result := _load(folder, name)) and form in result["forms"]:
            ours, peer = (result["forms"][form]["both_called_ms"] for form in (form, "NNConv"))
            what = f"one layer, {result['size']['edges']:,} edges, forward + backward, {where}"
            rows.append((what, f"{number(ours)} ms", f"PyG `NNConv`, {number(peer)} ms", number(peer / ours) or ""))
    if result := _load(folder, "knn-cuda"):
        ours, peer = (result["1 x 1,000,000, cube"][way] for way in ("ours", "SciPy's tree"))
        what = "exact 16 nearest neighbours of a million points, H200"
        rows.append(
            (
                what,
                f"{number(ours['ms'])} ms",
                f"SciPy's k-d tree on the CPU, {number(peer['ms'])} ms",
                _times(peer, "x ours"),
            )
        )
    if result := _load(folder, "solvers-cpu"):
        ours, peer = (1000 * result["methods"][method]["ms_per_model"] for method in ("exact", "toulbar2"))
        what = "exact MAP of a chain model, ours in a batch, 2 CPU cores"
        rows.append((what, f"{number(ours)} µs", f"toulbar2, {number(peer)} µs", number(peer / ours) or ""))
    return "\n".join(_table(("", "ours", "peer", "×"), rows)) + "\n"


def rewrite(page: str | Path, tables: str) -> bool:
    """Put ``tables`` between a page's markers; return whether the page changed."""
    text = Path(page).read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ValueError(f"Expected the markers {BEGIN!r} and {END!r} in {page} (got none)")
    before, rest = text.split(BEGIN, 1)
    new = f"{before}{BEGIN}\n{tables}{END}{rest.split(END, 1)[1]}"
    if new == text:
        return False
    with atomic_write(page) as handle:
        handle.write(new)
    return True


def _layer(result: dict[str, Any]) -> str:
    cuda = result["environment"]["device"] != "cpu"
    about = (
        f"{result['size']['edges']:,} edges, 64 to 64 channels, 16 bases, {'bfloat16' if cuda else 'float32'}. "
        + ("GPU time in ms, wall time of a call in parentheses" if cuda else "Times in ms")
        + "; additional peak memory in MiB, forward + backward."
    )
    rows = []
    for name, row in result["forms"].items():
        ratio = result["ratios"].get(name)
        forward, both = _time(row, "forward", cuda), _time(row, "both", cuda)
        ratios = _times(ratio, "forward"), _times(ratio, "forward + backward")
        rows.append((_FORMS.get(name, name), forward, ratios[0], both, ratios[1], _mib(row["both_bytes"])))
    head = ("form", "forward", "× ours", "forward + backward", "× ours", "MiB")
    lines = [about, "", *_table(head, rows)]
    networks = {f"one layer on 4,096 chain models, Q by {q}": row for q, row in result.get("small graphs", {}).items()}
    if "point network" in result:
        networks["the paper's point network, 8 × 4,096 points"] = result["point network"]
    if networks:
        cells = [
            (
                title,
                *(_time(row[form], "both", cuda) for form in ("ours", "plain torch")),
                _times(row, "forward + backward"),
            )
            for title, row in networks.items()
        ]
        lines += ["", *_table(("forward + backward", "ours", "plain torch", "×"), cells)]
    return "\n".join(lines)


def _knn(result: dict[str, Any]) -> str:
    about = "k = 16, times in ms. Every answer is checked against a k-d tree in float64."
    sizes = [key for key, rows in result.items() if isinstance(rows, dict) and "ours" in rows]
    methods = list(dict.fromkeys(method for size in sizes for method in result[size]))
    rows = [(method, *(number(result[size].get(method, {}).get("ms")) or "" for size in sizes)) for method in methods]
    return "\n".join([about, "", *_table(("method", *(f"{size} points" for size in sizes)), rows)])


def _solvers(result: dict[str, Any]) -> str:
    about = "Chain models. Our methods solve all models in one call; the peers solve one model after another."
    rows = [
        (name, number(1000 * row["ms_per_model"]), number(row.get("models_per_second")) or "")
        for name, row in result["methods"].items()
    ]
    return "\n".join([about, "", *_table(("method", "µs per model", "models per second"), rows)])


def _points(result: dict[str, Any]) -> str:
    clouds, points = result["clouds"], result["points"]
    about = (
        f"Batches of {clouds} clouds of {points:,} points, {result['precision']}. A training step is forward, "
        "backward, gradient clipping and AdamW; the last column is its additional peak memory."
    )
    rows = [
        (
            name, f"{row['parameters']:,}", number(row["step_ms"]), number(1e3 * clouds / row["step_ms"]),
            number(1e3 * clouds / row["use_ms"]), _mib(row["step_bytes"]),
        )
        for name, row in result["networks"].items()
    ]  # fmt: skip
    head = ("network", "parameters", "ms per step", "clouds trained per second", "clouds labelled per second", "MiB")
    return "\n".join([about, "", *_table(head, rows)])


def _training(result: dict[str, Any]) -> str:
    about = "Each step draws fresh chains and labels them exactly; both are included in the times."
    rows = [
        (row["recipe"], f"{row['batch']:,}", row["precision"], number(row["step_ms"]), number(row["per_second"]))
        for row in result["recipes"]
    ]
    head = ("recipe", "batch", "precision", "ms per step", "instances per second")
    return "\n".join([about, "", *_table(head, rows)])


def _step(result: dict[str, Any]) -> str:
    about = (
        "Forward, loss, backward and Adam of the paper's networks in a plain loop: bf16 autocast on a GPU, float32 on "
        "a CPU. *Recorded* is `fgnn.nn.record(network)`, *one thread* "
        "`torch.autograd.set_multithreading_enabled(False)`. A step as called includes the wait for its end; in a loop "
        "only the last one is waited for."
    )
    keys = ("called_ms", "loop_ms", "device_ms", "launches")
    rows = [(name, *(number(row.get(key)) or "–" for key in keys)) for name, row in result["steps"].items()]
    text = [about, "", *_table(("step", "ms as called", "in a loop", "ms on the device", "launches"), rows)]
    if start := result.get("compile"):
        text += ["", f"`torch.compile` starts in {number(start['start_s'])} s and makes {start['graphs']} graph."]
    return "\n".join(text)


def _segment(result: dict[str, Any]) -> str:
    model = result["setting"]["model"]
    old = "" if model in weight_names() else ", weights of an earlier version that is no longer in the package"
    about = f"`fgnn segment --model {model}` on generated scans, from file to file{old}."
    rows = [
        (
            f"{row['points']:,}", row["votes"], number(row["seconds"]), number(row["points_per_second"]),
            number(row["peak_bytes"] / 1e6),
        )
        for row in result["rows"]
    ]  # fmt: skip
    head = ("points", "votes", "seconds", "points per second", "peak memory (MB)")
    return "\n".join([about, "", *_table(head, rows)])


_PARTS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "layer-cuda": ("One layer on a GPU", _layer),
    "layer-cpu": ("One layer on a CPU", _layer),
    "knn-cuda": ("Nearest neighbours on a GPU", _knn),
    "knn-cpu": ("Nearest neighbours on a CPU", _knn),
    "solvers-cuda": ("MAP solvers on a GPU", _solvers),
    "solvers-cpu": ("MAP solvers on a CPU", _solvers),
    "step-cuda": ("A step of one's own loop on a GPU", _step),
    "step-cpu": ("A step of one's own loop on a CPU", _step),
    "training-cuda": ("Training on fresh chains", _training),
    "points-cuda": ("Point networks", _points),
    "segment-cuda": ("Segmenting a scan on a GPU", _segment),
    "segment": ("Segmenting a scan on a CPU", _segment),
}


def _load(folder: str | Path, name: str) -> dict[str, Any] | None:
    file = Path(folder) / f"{name}.json"
    result: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return result


def _where(head: dict[str, Any], name: str) -> str:
    machine = head["device"] if head["device"] != "cpu" else f"{head['cpu']}, {head['threads']} threads"
    date, commit = str(head["date"])[:10], head["commit"]
    return f"({machine}, torch {head['torch']}, {date}, commit {commit}, load {head['load']}; `{name}.json`)"


def _time(row: dict[str, Any], what: str, cuda: bool) -> str:
    wall = number(row[f"{what}_called_ms"])
    if not cuda:
        return wall or ""
    return f"{number(row[f'{what}_ms']) if row[f'{what}_replayed'] else '–'} ({wall})"


def _times(ratio: dict[str, Any] | None, what: str) -> str:
    return "" if ratio is None else number(ratio[what]) or ""


def _mib(size: int | None) -> str:
    return "" if size is None else number(size / 2**20) or ""


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in cells) + " |" for cells in lines]


if __name__ == "__main__":
    for page, tables in (("docs/speed.md", speed_markdown()), ("README.md", summary_markdown())):
        print(f"{page}: {'rewritten' if rewrite(page, tables) else 'up to date'}")
