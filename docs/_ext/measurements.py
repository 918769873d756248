"""Stored measurements as tables and charts for readers, and an index of the files they come from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from decoding_tables import DECODING
from generated import RESULTS, add_directives, folded, table
from sphinx.application import Sphinx

from fgnn.report import Table, lines

# By topic: the file's name without suffix, what it shows, and the page that has its figures.
ABOUT: dict[str, dict[str, tuple[str, str]]] = {
    "Learned MAP": {
        "table1": (
            "The paper's Table 1: every method on chains with windows of 8",
            "results.md#table-1-learned-map-on-chains",
        ),
        "table1_window9": (
            "The same with the windows of the authors' code",
            "results-chains.md#where-ours-differ-from-the-papers",
        ),
        "paper_differences": (
            "Networks with the choices of the authors' code",
            "results-chains.md#where-ours-differ-from-the-papers",
        ),
        "map_transfer": (
            "The deep network on lengths and windows it was not trained on",
            "results-chains.md#other-lengths-and-windows",
        ),
        "map_depth": ("The deep network's answer after each block", "results-chains.md#how-depth-and-data-help"),
        "map_learning": ("Agreement while training on fresh instances", "results-chains.md#how-depth-and-data-help"),
        "map_small_scale": (
            "Width, depth and aggregation at a small scale",
            "results-chains.md#how-depth-and-data-help",
        ),
        "map_grids": ("Every method on grids with budgets", "results.md#learned-map-on-grids"),
    },
    "Point clouds and molecules": {
        "shapes": ("ShapeNet-Part by network, protocol and category", "results.md#table-3-parts-of-shapes"),
        "lidar_aerial": (
            "Errors of ground and classes on 36 airborne scans",
            "results-points.md#airborne-scans-in-detail",
        ),
        "qm7": ("Atomisation energies of molecules, beside PyG's layers", "problems/molecules.md"),
    },
    "Search, marginals and decoding": {
        "guide": ("What a trained guide adds to the search", "solvers.md#search"),
        "batched_search": ("A thousand grids searched at once on a GPU, beside a CPU", "solvers.md#search"),
        "anytime": ("Scores over time on wide models, beside other solvers", "solvers.md#search"),
        "anytime-uai2012": ("The same on instances of UAI 2012", "solvers.md#search"),
        "marginals-pr": ("Partition functions of the UAI 2014 instances", "marginals.md#measurements"),
        "marginals-mar": ("Marginals of the UAI 2014 instances", "marginals.md#measurements"),
        "decoding-cpu": (
            "Decoders on one core, beside ldpc, relay-bp, PyMatching and Sionna",
            "decoding.md#beside-its-peers",
        ),
        "decoding-cuda": ("Decoders on a GPU", "decoding.md#beside-its-peers"),
    },
    "Speed": {
        "layer-cuda": ("One layer on a GPU, beside PyG and other forms", "speed.md#one-layer-on-a-gpu"),
        "layer-cpu": ("One layer on a CPU, beside the same peers", "speed.md#one-layer-on-a-cpu"),
        "step-cuda": ("A step of one's own loop on a GPU", "speed.md#a-step-of-ones-own-loop-on-a-gpu"),
        "step-cpu": ("A step of one's own loop on a CPU", "speed.md#a-step-of-ones-own-loop-on-a-cpu"),
        "knn-cuda": ("Nearest neighbours on a GPU, beside a k-d tree", "speed.md#nearest-neighbours-on-a-gpu"),
        "solvers-cuda": ("MAP solvers on batches on a GPU", "speed.md"),
        "solvers-cpu": ("MAP solvers on a CPU, beside toulbar2, HiGHS and PGMax", "speed.md"),
        "marginals-speed-cuda": ("Marginals of many models on a GPU", "marginals.md"),
        "marginals-speed-cpu": ("Marginals of many models on a CPU", "marginals.md"),
        "training-cuda": ("Training steps on fresh chains", "speed.md#training-on-fresh-chains"),
        "points-cuda": ("Training and labelling by point networks", "speed.md#point-networks"),
        "segment": ("Scans from file to file on a CPU", "speed.md#segmenting-a-scan-on-a-cpu"),
        "cold_start": ("Minutes from a cold shell to the first results", "getting-started.md"),
        "segment-cuda": ("Scans from file to file on a GPU", "speed.md#segmenting-a-scan-on-a-gpu"),
    },
    "Theory and guarantees": {
        "terms": (
            "Terms of Lemma 1 for the tables of real models",
            "theorem.md#lemma-1-a-factor-is-a-maximum-over-rank-1-terms",
        ),
        "proofs": ("Proofs of optimality checked in exact integers", "guarantees.md"),
        "proofs_search": ("Answers of the search checked in exact integers", "guarantees.md"),
        "probabilities": ("Claims about probabilities checked in exact integers", "guarantees.md"),
        "fuzz": ("Mutated inputs for every parser", "guarantees.md"),
        "faults": ("Faults injected and survived", "guarantees.md"),
        "load": ("Large models, long runs and many clients", "guarantees.md"),
        "sets": ("Tests by package versions and interpreter", "guarantees.md"),
    },
}
_OTHER = "Other"
# Commands for files that record none, or one that only ran on the machine that measured.
AGAIN = {
    "map_grids": "fgnn reproduce grids",
    "map_learning": "python -m tools.learning_curves RUNS",
    "paper_differences": "python -m tools.paper_differences",
    "qm7": "python -m tools.qm7 MOLECULES --epochs 10 --seeds 3",
    "batched_search": "python -m tools.batched_search",
    "guide": "python -m tools.guide_gain",
    "decoding-cpu": "fgnn bench decoding",
    "decoding-cuda": "fgnn bench decoding --device cuda",
    "layer-cuda": "fgnn bench layer --device cuda",
    "step-cuda": "fgnn bench step --device cuda",
    "knn-cuda": "fgnn bench knn --device cuda",
    "solvers-cuda": "fgnn bench solvers --device cuda",
    "segment-cuda": "fgnn bench segment --device cuda",
    "marginals-speed-cuda": "fgnn bench marginals --speed --device cuda",
}


# ---- the index ------------------------------------------------------------------------------------------------


def index_markdown(folder: Path = RESULTS) -> str:
    """Every stored file by topic: what it shows, where it was measured, by which command."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        return "No results are stored in this copy; the commands on this page measure them.\n"
    known = {stem for entries in ABOUT.values() for stem in entries}
    topics = {**ABOUT, _OTHER: {file.stem: ("", "") for file in files if file.stem not in known}}
    parts = []
    for topic, entries in topics.items():
        rows = [_index_row(folder / f"{stem}.json") for stem in entries if (folder / f"{stem}.json") in files]
        if rows:
            parts.append(f"**{topic}**\n\n{table(('shows', 'measured on', 'measure again', 'numbers'), rows)}")
    return "\n".join(parts)


def _index_row(file: Path) -> tuple[str, str, str, str]:
    payload = json.loads(file.read_text(encoding="utf-8"))
    payload = payload if isinstance(payload, Mapping) else {}
    known = {stem: about for entries in ABOUT.values() for stem, about in entries.items()}
    shows, page = known.get(file.stem, (_title(payload, file.stem), ""))
    recorded = payload.get("command") or payload.get("environment", {}).get("command") or ""
    command = AGAIN.get(file.stem, str(recorded))
    return (
        f"[{shows}]({page})" if page else shows,
        measured(payload),
        f"`{command}`" if command else "–",
        f"[JSON](../benchmarks/results/{file.name})",
    )


def _title(payload: Mapping[str, Any], stem: str) -> str:
    named = payload.get("what") or payload.get("about") or payload.get("benchmark") or stem.replace("_", " ")
    text = str(named).split(". ")[0].split("; ")[0].split(": ")[0]
    return text[0].upper() + text[1:]


def measured(payload: Mapping[str, Any]) -> str:
    """Device, date and commit, as far as the file has them."""
    head = payload.get("environment", {})
    device = str(head.get("device") or head.get("hardware") or payload.get("hardware") or payload.get("device") or "")
    if device == "cpu":
        device = str(head.get("cpu", "CPU"))
    facts = [
        device.replace("(R)", "").replace(" Processor", ""),
        str(head.get("date", ""))[:10],
        str(head.get("commit", "")),
    ]
    return ", ".join(fact for fact in facts if fact)


# ---- tables and charts ----------------------------------------------------------------------------------------


def stored(name: str, make: Callable[[dict[str, Any]], str]) -> Callable[[], str]:
    """A function that makes Markdown of a stored file, or says that it is missing."""

    def markdown() -> str:
        file = RESULTS / f"{name}.json"
        if not file.is_file():
            return f"No run is stored in this copy (`benchmarks/results/{name}.json`).\n"
        payload = json.loads(file.read_text(encoding="utf-8"))
        return f"{make(payload)}\n{_source(payload, file.name)}\n"

    return markdown


def _source(payload: Mapping[str, Any], name: str) -> str:
    facts = [fact for fact in (measured(payload), f"[{name}](../benchmarks/results/{name})") if fact]
    return f"({'; '.join(facts)})\n"


def transfer(payload: Mapping[str, Any]) -> str:
    """Agreement and optima by length and window, a column for each data set."""
    by_chain: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in payload["rows"]:
        by_chain.setdefault(row["chains"], {})[row["kind"]] = row
    kinds = (1, 2, 3)
    keys = ("raw, agreement %", "decoded, optimal %")
    head = ["chains", *(f"agreement %, Dataset{k}" for k in kinds), *(f"optimal %, Dataset{k}" for k in kinds)]
    rows = [[name, *(f"{row[k][key]:.1f}" for key in keys for k in kinds)] for name, row in by_chain.items()]
    return Table(head, rows).markdown()


def grids(payload: Mapping[str, Any]) -> str:
    """Small grids against the proved optimum, then the races on larger ones."""
    parts = []
    for title, rows in payload.items():
        if title == "environment":
            continue
        head = list(rows[0])
        cells = [[str(row.get(key, "–")) for key in head] for row in rows]
        parts.append(Table(head, cells, f"{title.replace(' x ', ' × ')}:").markdown())
    return "\n".join(parts)


def small_scale(payload: Mapping[str, Any]) -> str:
    """Variants of the deep network, with the setting above."""
    rows = [[run["network"], f"{run['agreement']:.1f}", f"{run['optimal']:.1f}"] for run in payload["runs"]]
    return Table(["network", "agreement %", "optimal %"], rows, payload["what"]).markdown()


def depth(payload: Mapping[str, Any]) -> str:
    """Agreement after each block."""
    names = [f"Dataset{k}" for k in (1, 2, 3)]
    series = {name: [(row["block"], row[f"{name}, agreement %"]) for row in payload["blocks"]] for name in names}
    return _chart(lines(series, "blocks", "agreement with the exact MAP, %"))


def learning(payload: Mapping[str, Any]) -> str:
    """Agreement against the instances seen."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in payload["runs"]:
        series.setdefault(row["run"], []).append((row["instances"], row["agreement %"]))
    return _chart(lines(series, "instances seen", "agreement with the exact MAP, %", log_x=True))


def aerial(payload: Mapping[str, Any]) -> str:
    """Total errors of ground, in percent, by method."""
    columns = {"": "", "isprs_": "15 ISPRS samples, ", "rest_": "21 other scans, "}
    head = ["", *(f"{name}{of}" for name in columns.values() for of in ("mean", "median"))]
    names = {"lidar-aerial": "`lidar-aerial`", "smrf": "SMRF", "pmf": "PMF"}
    summary = payload["summary"]
    rows = [
        [shown, *(f"{100 * summary[name][key + of]:.2f}" for key in columns for of in ("mean", "median"))]
        for name, shown in names.items()
    ]
    return Table(head, rows).markdown()


def aerial_scans(payload: Mapping[str, Any]) -> str:
    """Total error of ground and its parts on every scan."""
    methods = ("lidar-aerial", "smrf", "pmf")
    head = ["scan", "points", *(f"{name}, total" for name in methods), "lidar-aerial, ground missed", "wrongly ground"]
    rows = []
    for scan, results in payload["results"].items():
        ours = results["lidar-aerial"]
        errors = [*(results[m]["total"] for m in methods), ours["type_1"], ours["type_2"]]
        rows.append([scan, f"{ours['points']:,}", *(f"{100 * error:.1f}" for error in errors)])
    return folded("Errors by scan, in percent", Table(head, rows).markdown())


def aerial_classes(payload: Mapping[str, Any]) -> str:
    """IoU by class and fold, in percent."""
    iou = payload["iou"]
    classes = list(iou["all"])
    names = {"all": "all", "towns": "IGN towns"} | {f"fold-{k}": f"fold {k + 1}" for k in range(5)}
    rows = [[names[f], *(f"{100 * iou[f][c]:.0f}" if c in iou[f] else "–" for c in classes)] for f in names if f in iou]
    return folded("IoU by class, in percent", Table(["scans", *classes], rows).markdown())


def marginals(payload: Mapping[str, Any]) -> str:
    """Errors of one task, PR or MAR, over all instances and over those without an exact answer."""
    ((task, summary),) = ((name, one) for name, one in payload["summary"].items() if one)
    sets = {"all": "all", "not exact": "not solved exactly"}
    head = ["", *(f"{of} error, {shown}" for shown in sets.values() for of in ("mean", "median")), "no finite answer"]
    rows = [
        [
            {"auto": "`auto`", "LBP": "loopy belief propagation"}[method],
            *(f"{summary[f'{method}, {key}: {of} error']:.2g}" for key in sets for of in ("mean", "median")),
            str(summary[f"{method}, all: no finite answer"]),
        ]
        for method in ("auto", "LBP")
    ]
    measure = {"PR": "error of log10 Z", "MAR": "Hellinger distance"}[task]
    title = f"{task}: {summary['instances']} instances, {summary['exact']} solved exactly; {measure}"
    return Table(head, rows, title).markdown()


def anytime(payload: Mapping[str, Any]) -> str:
    """Mean gaps over time by family, and all scores."""
    summary = payload["summary"]
    methods = list(dict.fromkeys(m for row in summary["gap_area"].values() for m in row))
    gaps = [
        [family, *(f"{row[m]:.2g}" if m in row else "–" for m in methods)]
        for family, row in summary["gap_area"].items()
    ]
    scores = [
        [name, *("–" if row.get(m) is None else f"{row[m]:,.2f}" for m in methods)]
        for name, row in summary["scores"].items()
        if any(m in row for m in methods)
    ]
    every = folded("Scores by instance and time", Table(["instance", *methods], scores).markdown())
    return f"{Table(['family', *methods], gaps, 'Mean gap over time, in percent').markdown()}\n{every}"


def _chart(svg: str) -> str:
    return f"<figure class='chart'>{svg}</figure>\n"


TABLES: Mapping[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "fgnn-transfer": ("map_transfer", transfer),
    "fgnn-grids": ("map_grids", grids),
    "fgnn-small-scale": ("map_small_scale", small_scale),
    "fgnn-depth": ("map_depth", depth),
    "fgnn-learning": ("map_learning", learning),
    "fgnn-aerial": ("lidar_aerial", aerial),
    "fgnn-aerial-scans": ("lidar_aerial", aerial_scans),
    "fgnn-aerial-classes": ("lidar_aerial", aerial_classes),
    "fgnn-anytime": ("anytime", anytime),
    "fgnn-anytime-uai2012": ("anytime-uai2012", anytime),
    "fgnn-marginals-pr": ("marginals-pr", marginals),
    "fgnn-marginals-mar": ("marginals-mar", marginals),
    **DECODING,
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register ``{fgnn-measurements}`` and the tables and charts of single files."""
    makers: dict[str, Callable[[], str]] = {"fgnn-measurements": index_markdown}
    makers |= {name: stored(file, make) for name, (file, make) in TABLES.items()}
    return add_directives(app, makers)
