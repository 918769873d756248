"""Parts of pages generated from the package: commands, recipes, weights and stored results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fgnn.report.records import flatten, number, records, sections

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


# ---- commands -------------------------------------------------------------------------------------------------


def commands_markdown() -> str:
    """Every command with its help text, an example, its arguments and its options."""
    import typer

    from fgnn.cli import build_app

    root: Any = typer.main.get_command(build_app())
    return "\n".join(_command(f"fgnn {name}", command) for name, command in root.commands.items())


def _command(name: str, command: Any, level: int = 2) -> str:
    about, example = _split_help(command.help or "")
    lines = [f"{'#' * level} {name}", "", about, ""]
    inner = getattr(command, "commands", None)
    if inner:
        return "\n".join(lines) + "\n" + "\n".join(_command(f"{name} {k}", c, level + 1) for k, c in inner.items())
    if example:
        lines += ["```sh", *example, "```", ""]
    rows = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            names = str(parameter.name).upper()
            default = "" if parameter.required else _default(parameter.default)
        else:
            names = ", ".join([*parameter.opts, *parameter.secondary_opts])
            default = "required" if parameter.required else _default(parameter.default)
        rows.append((f"`{names}`", getattr(parameter, "help", "") or "", default))
    return "\n".join(lines) + "\n" + table(("argument or option", "meaning", "default"), rows)


def _split_help(text: str) -> tuple[str, list[str]]:
    """Split a help text into the part before ``Example:`` and the commands after it."""
    text = text.replace("\x0c", "")
    for word in ("Examples:", "Example:"):
        about, separator, rest = text.partition(word)
        if separator:
            examples = [part.strip() for part in " ".join(rest.split()).split("; ")]
            return about.strip(), [e.rstrip(".") for e in examples]
    return text.strip(), []


def _default(value: Any) -> str:
    if value is None or value is False or value == [] or callable(value) or type(value).__name__ == "Sentinel":
        return ""
    shown = " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return f"`{shown}`"


# ---- recipes and weights --------------------------------------------------------------------------------------


def recipes_markdown() -> str:
    """The packaged recipes, each with the first comment of its file."""
    from fgnn.tasks.recipe import find_recipe, recipe_names

    rows = []
    for name in recipe_names():
        first = find_recipe(name).read_text(encoding="utf-8").splitlines()[0]
        rows.append((f"`{name}`", first.lstrip("# ")))
    return table(("recipe", "trains"), rows)


def weights_markdown() -> str:
    """The packaged weights and their cards: data, held-out metrics, cost and command."""
    from fgnn.weights import weight_names
    from fgnn.weights.cards import read_card

    cards = {name: read_card(name) for name in weight_names()}
    if not cards:
        return "This version has no packaged weights.\n"
    rows = {
        f"`{name}`": {"data": _data(card.get("data", {})), **flatten(card.get("metrics") or {})}
        | {key: card[key] for key in ("steps", "hours", "hardware") if key in card}
        for name, card in cards.items()
    }
    commands = [f"- `{name}`: `{card['command']}`" for name, card in cards.items() if card.get("command")]
    return records(rows).markdown() + ("\nCommands:\n\n" + "\n".join(commands) + "\n" if commands else "")


def _data(data: Mapping[str, Any]) -> str:
    """The data families and their settings, without paths."""
    families = []
    for kind, settings in data.items():
        if isinstance(settings, Mapping):
            named = ", ".join(f"{k} {number(v)}" for k, v in settings.items() if k != "root")
            families.append(f"{kind} ({named})")
        elif isinstance(settings, int):
            families.append(f"{settings:,} {kind}")
    return ", ".join(families)


# ---- results --------------------------------------------------------------------------------------------------


def results_markdown(folder: Path = RESULTS) -> str:
    """Every stored result with its environment."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    parts = []
    for file in files:
        payload = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(payload, dict):
            payload = {"results": payload}
        if "experiment" in payload or file.stem == "paper_differences":  # these have a directive of their own
            continue
        head = payload.pop("environment", {})
        payload.pop("file", None)
        parts.append(f"### {file.stem}\n\n{_environment(head)}\n{_tables(payload)}")
    return "\n".join(parts) or "No results are stored in this copy; the commands on this page measure them.\n"


def _environment(head: Mapping[str, Any]) -> str:
    facts = [f"{key} {value}" for key, value in head.items() if not isinstance(value, Mapping | list) and value != ""]
    return f"Environment: {', '.join(facts)}.\n" if facts else ""


def _tables(payload: Mapping[str, Any]) -> str:
    """Every table of a result, under its heading."""
    parts = []
    for path, rows in sections(payload):
        parts += [f"#### {', '.join(path)}\n"] if path else []
        parts.append(rows.markdown().replace("<", "&lt;"))
    return "\n".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


# ---- directives -----------------------------------------------------------------------------------------------


def add_directives(app: Sphinx, makers: Mapping[str, Callable[[], str]]) -> dict[str, Any]:
    """Register directives that insert the Markdown their functions return; return the extension's metadata."""
    for name, make in makers.items():
        app.add_directive(name, _directive(make))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _directive(make: Callable[[], str]) -> type[SphinxDirective]:
    class Generated(SphinxDirective):
        def run(self) -> list[nodes.Node]:
            for file in RESULTS.glob("*.json") if RESULTS.is_dir() else ():
                self.env.note_dependency(str(file))
            return self.parse_text_to_nodes(make(), allow_section_headings=True)

    return Generated


def setup(app: Sphinx) -> dict[str, Any]:
    """Register ``{fgnn-commands}``, ``{fgnn-recipes}``, ``{fgnn-weights}`` and ``{fgnn-results}``."""
    return add_directives(
        app,
        {
            "fgnn-commands": commands_markdown,
            "fgnn-recipes": recipes_markdown,
            "fgnn-weights": weights_markdown,
            "fgnn-results": results_markdown,
        },
    )
