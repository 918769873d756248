"""The paper's tables on the page of results: built from stored runs, cards and records while the site is built."""

from __future__ import annotations

import json
from typing import Any

from generated import RESULTS, add_directives
from sphinx.application import Sphinx

from fgnn.report import Table, percent
from fgnn.reproduce import table1, table3
from fgnn.reproduce.experiment import missing_epochs, records
from fgnn.weights.cards import read_card

# The networks of benchmarks/map_layers.yaml.
LAYERS = {
    "layers-max": "the paper's layer: max aggregation, batch norm, ReLU",
    "layers-sum": "the same with sum aggregation",
    "layers-residual": "the packaged network's layer: sum aggregation, RMS norm, SiLU, residual updates",
}


def table1_markdown() -> str:
    """Table 1: every method on windows of 8, and the phases of undamped max-product."""
    return _table1("table1.json")


def window9_markdown() -> str:
    """Table 1 with the window of the authors' code."""
    return _table1("table1_window9.json")


def _table1(name: str) -> str:
    file = RESULTS / name
    if not file.is_file():
        return f"No run is stored in this copy (`benchmarks/results/{name}`).\n"
    here = json.loads(file.read_text(encoding="utf-8"))["environment"]
    cells = table1.stored_cells(file)
    tables = [table1.agreement_table(cells, table1.KINDS), table1.stops_table(cells, table1.KINDS)]
    ran = f"`{here['command']}`, commit {here['commit']}, {here['cpu']}. \\* recorded when it was trained.\n"
    return "\n".join([*(table.markdown() for table in tables), ran])


def ablation_markdown() -> str:
    """The paper's ablation, from the cards and records of the three networks."""
    from fgnn.reproduce.paper import ABLATION

    names = {4: "ablation-4", 6: "ablation-6", 8: "paper-map-1"}
    known: dict[str, Any] = records() | {"paper-map-1": read_card("paper-map-1")}
    rows = []
    for size, name in names.items():
        quality = known[name]["results"]["kind 1"]["raw"]
        ours, theirs = 100 * quality["agreement"], ABLATION[size]
        rows.append([f"{size} variables", f"{ours:.1f}", f"{theirs:.1f}", f"{ours - theirs:+.1f}"])
    return Table(["factors of the network cover", "agreement %", "paper", "difference"], rows).markdown()


def layers_markdown() -> str:
    """Deep networks of the same depth on the same data, by their layer."""
    rows = []
    for name, about in LAYERS.items():
        record = records().get(name)
        if record is None:
            continue
        quality = record["results"]["kind 1"]["raw"]
        steps = record["recipe"]["steps"]
        note = missing_epochs(record) or ("" if record["steps"] >= steps else f", {record['steps']} of {steps} steps")
        rows.append(
            [about + note, *(percent(quality[key]) for key in ("agreement", "optimal", "feasible")),
             f"{record['instances_seen']:,}", f"{3600 * record['hours']:.0f}"]
        )  # fmt: skip
    if not rows:
        return "No run is recorded in this copy; `sh benchmarks/train_map.sh layers OUT` trains them.\n"
    return Table(["16 layers of width 64", "agreement %", "optimal %", "feasible %", "instances", "s"], rows).markdown()


def differences_markdown() -> str:
    """Networks with the choices of the authors' code, from `tools.paper_differences`."""
    file = RESULTS / "paper_differences.json"
    if not file.is_file():
        return "No run is stored in this copy; `python -m tools.paper_differences` trains them.\n"
    rows = []
    for runs in json.loads(file.read_text(encoding="utf-8")).values():
        for row in runs.values():
            quality, epochs = row["quality"], row["steps"] * row["batch"] / row["instances"]
            rows.append(
                [f"Dataset{row['kind']}: {row['about']}", percent(quality["agreement"], quality["deviation"]),
                 percent(quality["optimal"]), f"{row['steps']:,} of {row['batch']:,}", f"{epochs:.1f}",
                 row["environment"]["device"]]
            )  # fmt: skip
    head = ["network, windows of 9", "agreement %", "optimal %", "steps of instances", "epochs", "on"]
    return Table(head, rows).markdown()


def table3_markdown() -> str:
    """The means of Table 3, from cards and records."""
    full = table3.main_table(table3.recorded_rows())
    return Table(full.heading[:3], [row[:3] for row in full.rows], full.caption).markdown()


def categories_markdown() -> str:
    """Table 3 by category, and the differences to the paper's."""
    rows = table3.recorded_rows()
    return "\n".join(table(rows).markdown() for table in (table3.main_table, table3.difference_table))


def shape_protocols_markdown() -> str:
    """The same weights by every protocol."""
    return table3.protocol_table(table3.recorded_rows()).markdown()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives of the paper's tables."""
    return add_directives(
        app,
        {
            "fgnn-table1": table1_markdown,
            "fgnn-table1-window9": window9_markdown,
            "fgnn-ablation": ablation_markdown,
            "fgnn-layers": layers_markdown,
            "fgnn-differences": differences_markdown,
            "fgnn-table3": table3_markdown,
            "fgnn-table3-categories": categories_markdown,
            "fgnn-shape-protocols": shape_protocols_markdown,
        },
    )
