"""Tables of the promises page, made from the stored results and from the bounds that the package states."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def bounds_markdown() -> str:
    """What each reader may take."""
    from fgnn.memory_bounds import BOUNDS

    rows = [
        (b.what, f"{b.free / 1e6:.0f} MB", f"{b.per_byte:g}", "of what it expands to" if b.expands else "")
        for b in BOUNDS.values()
    ]
    return _table(("reads", "for any input", "bytes for each byte", ""), rows)


def fuzz_markdown(folder: Path = RESULTS) -> str:
    """Cases, findings, and the worst of each parser."""
    found = _load(folder / "fuzz.json")
    if found is None:
        return _absent("make fuzz")
    total = found["total"]
    rows = [
        (
            name,
            f"{row['cases']:,}",
            f"{row['guided_cases']:,}",
            str(row["findings"]),
            f"{row['worst_seconds']:.3f}",
            f"{row['worst_bytes'] / 1e6:.1f}",
        )
        for name, row in found["parsers"].items()
    ]
    last = ("all", f"{total['cases']:,}", f"{total['guided_cases']:,}", str(total["findings"]))
    rows.append((*last, f"{total['worst_seconds']:.3f}", f"{total['worst_bytes'] / 1e6:.1f}"))
    head = ("parser", "inputs", "of them guided", "findings", "worst seconds", "worst megabytes")
    made = f"{_told(found)}\n\n{_table(head, rows)}"
    if "files" in found:
        files = [
            (
                name,
                _number(row.get("bytes_per_byte")),
                f"{row['refused']} of {row['hostile']}" if row["hostile"] else "–",
                _number(row.get("hostile_megabytes")),
                _number(row.get("hostile_seconds")),
            )
            for name, row in found["files"].items()
        ]
        head = ("reader", "bytes per byte, valid", "hostile files refused", "their megabytes", "their seconds")
        made += f"\nLarge and hostile files, each in a process of its own:\n\n{_table(head, files)}"
    return made


def faults_markdown(folder: Path = RESULTS) -> str:
    """Faults injected and survived."""
    found = _load(folder / "faults.json")
    if found is None:
        return _absent("make faults")
    rows = [
        (r["fault"], r["where"], str(r["injected"]), str(r["survived"]), str(len(r["lost"]))) for r in found["rows"]
    ]
    total = found["total"]
    rows.append(("all", "", str(total["injected"]), str(total["survived"]), str(total["injected"] - total["survived"])))
    return f"{_told(found)}\n\n{_table(('fault', 'where', 'injected', 'survived', 'lost'), rows)}"


def load_markdown(folder: Path = RESULTS) -> str:
    """Loads held, as the rows of their file."""
    found = _load(folder / "load.json")
    if found is None:
        return _absent("make load")
    columns = list(dict.fromkeys(key for row in found["rows"] for key, value in row.items() if _short(value)))
    rows = [[_number(row.get(column)) for column in columns] for row in found["rows"]]
    return f"{_told(found)}\n\n{_table([c.replace('_', ' ') for c in columns], rows)}"


def sets_markdown(folder: Path = RESULTS) -> str:
    """Sets of packages and interpreters, and what the tests gave with each."""
    found = _load(folder / "sets.json")
    if found is None:
        return _absent("make oldest newest pythons")
    packages = ("python", "torch", "numpy", "scipy", "h5py")
    rows = [
        (
            row["set"],
            *(row[package] for package in packages),
            *(f"{row[count]:,}" for count in ("passed", "failed", "skipped")),
            f"{row['date'][:10]}, {row['commit']}",
        )
        for row in found["rows"].values()
    ]
    head = ("set", *packages, "tests passed", "failed", "skipped", "on")
    return f"Made by `{found['command']}`.\n\n{_table(head, rows)}"


def _load(path: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found


def _absent(command: str) -> str:
    return f"No figures are stored in this copy; `{command}` makes them.\n"


def _told(found: Mapping[str, Any]) -> str:
    head = found.get("environment", {})
    told = ", ".join(
        f"{key} {head[key]}" for key in ("date", "commit", "python", "torch", "cores", "load") if key in head
    )
    return f"Made by `{found['command']}`; {told}."


def _short(value: Any) -> bool:
    return not isinstance(value, Mapping | list)


def _number(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return (
        "\n".join("| " + " | ".join(c.replace("|", "\\|").replace("<", "&lt;") for c in row) + " |" for row in cells)
        + "\n"
    )


def _directive(make: Callable[[], str]) -> type[SphinxDirective]:
    class Promise(SphinxDirective):
        def run(self) -> list[nodes.Node]:
            for file in RESULTS.glob("*.json") if RESULTS.is_dir() else ():
                self.env.note_dependency(str(file))
            return self.parse_text_to_nodes(make())

    return Promise


def setup(app: Sphinx) -> dict[str, Any]:
    """Register ``{fgnn-bounds}``, ``{fgnn-fuzz}``, ``{fgnn-faults}``, ``{fgnn-load}`` and ``{fgnn-sets}``."""
    for name, make in (
        ("fgnn-bounds", bounds_markdown),
        ("fgnn-fuzz", fuzz_markdown),
        ("fgnn-faults", faults_markdown),
        ("fgnn-load", load_markdown),
        ("fgnn-sets", sets_markdown),
    ):
        app.add_directive(name, _directive(make))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
