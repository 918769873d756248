"""Parts of pages generated from the package: commands, recipes and weights."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fgnn.report.records import number

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
        lines += ["```sh", *(_wrapped(line) for line in example), "```", ""]
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


def _wrapped(command: str) -> str:
    """A command in lines of at most 88 columns, each but the last ending in a backslash."""
    lines = textwrap.wrap(command, 86, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(lines)


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
    """The packaged weights: data, held-out metrics, cost and command, from their cards."""
    from fgnn.weights import weight_names
    from fgnn.weights.cards import read_card

    cards = {name: read_card(name) for name in weight_names()}
    if not cards:
        return "This version has no packaged weights.\n"
    rows = [
        (
            f"`{name}`",
            _data(card.get("data", {})),
            _metrics(card.get("metrics") or {}),
            f"{card['steps']:,} steps, {60 * card['hours']:.1f} min, {card['hardware']}",
            f"`{card['command']}`" if card.get("command") else "",
        )
        for name, card in cards.items()
    ]
    return table(("weights", "trained on", "held out", "training", "command"), rows)


def _data(data: Mapping[str, Any]) -> str:
    """The data families and their sizes; the settings of scans are in the recipe."""
    families = []
    for kind, settings in data.items():
        if isinstance(settings, int):
            families.append(f"{settings:,} {kind}")
        elif isinstance(settings, Mapping) and kind != "scans":
            named = ", ".join(f"{k} {number(v)}" for k, v in settings.items() if k != "root")
            families.append(f"{kind}: {named}")
        else:
            families.append(f"labelled {kind}")
    return "; ".join(families)


def _metrics(metrics: Mapping[str, float]) -> str:
    """Shares in percent; the loss is left out, since it has no unit."""
    names = (name.replace("_", " ").replace("iou", "IoU") for name in metrics)
    shown = zip(names, metrics.values(), strict=True)
    return ", ".join(f"{name} {100 * value:.1f} %" for name, value in shown if name != "loss")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def folded(summary: str, text: str) -> str:
    """Markdown that a reader unfolds."""
    return f"<details><summary>{summary}</summary>\n\n{text}\n</details>\n"


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
    """Register ``{fgnn-commands}``, ``{fgnn-recipes}`` and ``{fgnn-weights}``."""
    return add_directives(
        app,
        {
            "fgnn-commands": commands_markdown,
            "fgnn-recipes": recipes_markdown,
            "fgnn-weights": weights_markdown,
        },
    )
