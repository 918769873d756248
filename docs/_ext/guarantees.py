"""Tables of the guarantees page, read from the stored results and from the bounds that the package states."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generated import RESULTS, add_directives, folded, table
from sphinx.application import Sphinx


def bounds_markdown() -> str:
    """The memory bound of each reader; see `fgnn.bounds` for the time."""
    from fgnn.bounds import BOUNDS

    rows = [
        (b.what, f"{b.free / 1e6:.0f} MB", f"{b.per_byte:g}", "expanded size" if b.expands else "file size")
        for b in BOUNDS.values()
    ]
    return table(("reads", "constant", "bytes per byte", "of the"), rows)


def fuzz_markdown(folder: Path = RESULTS) -> str:
    """Inputs, findings and the worst case of each parser."""
    result = _load(folder / "fuzz.json")
    if result is None:
        return _absent("make fuzz")
    rows = [
        (
            name,
            f"{row['cases']:,}",
            f"{row['guided_cases']:,}",
            str(row["findings"]),
            f"{row['worst_seconds']:.3f}",
            f"{row['worst_bytes'] / 1e6:.1f}",
        )
        for name, row in [*result["parsers"].items(), ("all", result["total"])]
    ]
    head = ("parser", "inputs", "of them guided", "findings", "worst CPU seconds", "worst megabytes")
    text = f"{_source(result)}\n\n{table(head, rows[-1:])}\n{folded('Every parser', table(head, rows[:-1]))}"
    if "files" in result:
        files = [
            (
                name,
                _number(row.get("bytes_per_byte")),
                f"{row['refused']} of {row['hostile']}" if row["hostile"] else "–",
                _number(row.get("hostile_megabytes")),
                _number(row.get("hostile_seconds")),
            )
            for name, row in result["files"].items()
        ]
        head = ("reader", "bytes per byte, valid", "hostile files rejected", "their megabytes", "their seconds")
        text += f"\n{folded('Large and hostile files, each in its own process', table(head, files))}"
    return text


def faults_markdown(folder: Path = RESULTS) -> str:
    """Faults injected and survived."""
    result = _load(folder / "faults.json")
    if result is None:
        return _absent("make faults")
    rows = [
        (r["fault"], r["where"], str(r["injected"]), str(r["survived"]), str(len(r["lost"]))) for r in result["rows"]
    ]
    total = result["total"]
    rows.append(("all", "", str(total["injected"]), str(total["survived"]), str(total["injected"] - total["survived"])))
    return f"{_source(result)}\n\n{table(('fault', 'where', 'injected', 'survived', 'lost'), rows)}"


def load_markdown(folder: Path = RESULTS) -> str:
    """Load tests, one row each."""
    result = _load(folder / "load.json")
    if result is None:
        return _absent("make load")
    columns = list(
        dict.fromkeys(k for row in result["rows"] for k, v in row.items() if not isinstance(v, Mapping | list))
    )
    rows = [[_number(row.get(column)) for column in columns] for row in result["rows"]]
    return f"{_source(result)}\n\n{table([c.replace('_', ' ') for c in columns], rows)}"


def proofs_markdown(folder: Path = RESULTS) -> str:
    """Proofs checked in exact integers, by method."""
    result = _load(folder / "proofs.json")
    if result is None:
        return _absent("make proofs")
    names = ("answers", "optimal", "proved infeasible")
    rows = [(method, *(f"{tally[name]:,}" for name in names)) for method, tally in result["methods"].items()]
    rows.append(("all", *(f"{sum(tally[name] for tally in result['methods'].values()):,}" for name in names)))
    text = f"{result['models']:,} models in {result['seconds']:,.0f} s; {len(result['faults'])} false claims."
    return f"{_source(result)} {text}\n\n{table(('method', *names), rows)}"


def probabilities_markdown(folder: Path = RESULTS) -> str:
    """Claims about probabilities checked against integer scores, by claim."""
    result = _load(folder / "probabilities.json")
    if result is None:
        return _absent("make proofs")
    rows = [(claim, f"{count:,}") for claim, count in result["claims"].items()]
    text = f"{result['models']:,} models in {result['seconds']:,.0f} s; {len(result['faults'])} false claims."
    return f"{_source(result)} {text}\n\n{table(('claim', 'checked'), rows)}"


def sets_markdown(folder: Path = RESULTS) -> str:
    """Test outcomes for each set of packages and interpreter."""
    result = _load(folder / "sets.json")
    if result is None:
        return _absent("make oldest newest pythons")
    packages = ("python", "torch", "numpy", "scipy", "h5py")
    rows = [
        (
            row["set"],
            *(row[package] for package in packages),
            *(f"{row[count]:,}" for count in ("passed", "failed", "skipped")),
            f"{row['date'][:10]}, {row['commit']}",
        )
        for row in result["rows"].values()
    ]
    head = ("set", *packages, "tests passed", "failed", "skipped", "on")
    return f"Measured by `{result['command']}`.\n\n{table(head, rows)}"


def _load(path: Path) -> dict[str, Any] | None:
    result: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return result


def _absent(command: str) -> str:
    return f"No figures are stored in this copy; `{command}` measures them.\n"


def _source(result: Mapping[str, Any]) -> str:
    head = result.get("environment", {})
    keys = ("date", "commit", "python", "torch", "cores", "load")
    return f"Measured by `{result['command']}`; {', '.join(f'{key} {head[key]}' for key in keys if key in head)}."


def _number(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register ``{fgnn-bounds}``, ``{fgnn-fuzz}``, ``{fgnn-faults}``, ``{fgnn-load}``, ``{fgnn-proofs}``
    and ``{fgnn-sets}``."""
    return add_directives(
        app,
        {
            "fgnn-bounds": bounds_markdown,
            "fgnn-fuzz": fuzz_markdown,
            "fgnn-faults": faults_markdown,
            "fgnn-load": load_markdown,
            "fgnn-proofs": proofs_markdown,
            "fgnn-probabilities": probabilities_markdown,
            "fgnn-sets": sets_markdown,
        },
    )
