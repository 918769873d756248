"""Parts of pages that are made from the package as it is: commands, recipes, weights, and measured results."""

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
    """Every command with what it does, an example, its arguments and its options, as its ``--help`` says."""
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
            default = "needed" if parameter.required else _default(parameter.default)
        rows.append((f"`{names}`", _cell(getattr(parameter, "help", "") or ""), default))
    return "\n".join(lines) + "\n" + _table(("argument or option", "meaning", "default"), rows)


def _split_help(text: str) -> tuple[str, list[str]]:
    """What comes before ``Example:``, and the commands after it."""
    text = text.replace("\x0c", "")
    for word in ("Examples:", "Example:"):
        about, found, rest = text.partition(word)
        if found:
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
    """The packaged recipes, each with the comment its file begins with."""
    from fgnn.tasks.recipe import find_recipe, recipe_names

    rows = []
    for name in recipe_names():
        first = find_recipe(name).read_text(encoding="utf-8").splitlines()[0]
        rows.append((f"`{name}`", _cell(first.lstrip("# "))))
    return _table(("recipe", "what it trains"), rows)


def weights_markdown() -> str:
    """The packaged weights and what their cards say: data, held-out metrics, cost and command."""
    from fgnn.weights import weight_names
    from fgnn.weights.cards import read_card

    cards = {name: read_card(name) for name in weight_names()}
    if not cards:
        return "This version comes without weights.\n"
    rows = {
        f"`{name}`": {"data": _data(card.get("data", {})), **flatten(card.get("metrics") or {})}
        | {key: card[key] for key in ("steps", "hours", "hardware") if key in card}
        for name, card in cards.items()
    }
    commands = [f"- `{name}`: `{card['command']}`" for name, card in cards.items() if card.get("command")]
    return records(rows).markdown() + ("\nMade by:\n\n" + "\n".join(commands) + "\n" if commands else "")


def _data(data: Mapping[str, Any]) -> str:
    """Which family, with its settings; paths are left out."""
    told = []
    for kind, settings in data.items():
        if isinstance(settings, Mapping):
            named = ", ".join(f"{k} {number(v)}" for k, v in settings.items() if k != "root")
            told.append(f"{kind} ({named})")
        elif isinstance(settings, int):
            told.append(f"{settings:,} {kind}")
    return ", ".join(told)


# ---- results --------------------------------------------------------------------------------------------------


def results_markdown(folder: Path = RESULTS) -> str:
    """Every stored result with where and when it was measured; nothing is said that no file says."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    parts = []
    for file in files:
        payload = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(payload, dict):
            payload = {"results": payload}
        head = payload.pop("environment", {})
        payload.pop("file", None)
        parts.append(f"### {file.stem}\n\n{_environment(head)}\n{_tables(payload)}")
    return "\n".join(parts) or "No results are stored in this copy; the commands on this page make them.\n"


def _environment(head: Mapping[str, Any]) -> str:
    told = [f"{key} {value}" for key, value in head.items() if not isinstance(value, Mapping | list) and value != ""]
    return ("Measured with: " + ", ".join(told) + ".\n") if told else ""


def _tables(payload: Mapping[str, Any]) -> str:
    """Every table of a result, under its heading."""
    parts = []
    for path, table in sections(payload):
        parts += [f"#### {', '.join(path)}\n"] if path else []
        parts.append(table.markdown().replace("<", "&lt;"))
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


# ---- directives -----------------------------------------------------------------------------------------------


def _directive(make: Callable[[], str]) -> type[SphinxDirective]:
    class Generated(SphinxDirective):
        def run(self) -> list[nodes.Node]:
            for file in RESULTS.glob("*.json") if RESULTS.is_dir() else ():
                self.env.note_dependency(str(file))
            return self.parse_text_to_nodes(make(), allow_section_headings=True)

    return Generated


def setup(app: Sphinx) -> dict[str, Any]:
    """Register ``{fgnn-commands}``, ``{fgnn-recipes}``, ``{fgnn-weights}`` and ``{fgnn-results}``."""
    for name, make in (
        ("fgnn-commands", commands_markdown),
        ("fgnn-recipes", recipes_markdown),
        ("fgnn-weights", weights_markdown),
        ("fgnn-results", results_markdown),
    ):
        app.add_directive(name, _directive(make))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
