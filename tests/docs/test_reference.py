"""Reference pages are complete: options, formats, recipe keys, commands, public names."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import fgnn
from fgnn.cli import COMMANDS, build_app
from fgnn.infer.api import SOLVERS, solver_named
from fgnn.pgm.io import READERS, WRITERS
from fgnn.points.cloud import FORMATS
from fgnn.tasks import recipe as recipes
from fgnn.tasks.data_settings import ScanData
from tests.docs.pages import DOCS, ROOT, all_pages, blocks

LINK = re.compile(r"(?<!\!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


# ---- solvers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SOLVERS)
def test_the_page_of_solvers_gives_every_option_with_its_default(method: str) -> None:
    section = re.search(rf"^### {method}\n\nOptions: (.*?)\.\n\n", text("solvers.md"), re.MULTILINE | re.DOTALL)
    assert section, f"no section for {method}"
    shown = re.findall(r"`([^`]+)`", section[1])
    parameters = inspect.signature(solver_named(method)).parameters.values()
    own = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("time_limit", "seed", "progress")]
    assert shown == [f"{p.name}={p.default!r}" for p in own]


def test_the_table_of_methods_has_a_line_for_each() -> None:
    lines = re.findall(r"^\| `([\w-]+)` \|.*\|.*\|.*\|.*\|$", text("solvers.md"), re.MULTILINE)
    assert set(SOLVERS) <= set(lines)


def test_the_fields_of_a_solution_are_all_explained() -> None:
    for field in dataclasses.fields(fgnn.Solution):
        assert f"`{field.name}`" in text("solvers.md"), field.name


# ---- formats --------------------------------------------------------------------------------------------------


def test_the_page_of_formats_has_every_suffix() -> None:
    page = text("formats.md")
    models = dict(re.findall(r"^\| `(\.\w+)` \|[^|]*\| yes \| (\w*)", page, re.MULTILINE))
    assert set(models) == set(READERS)
    assert {suffix for suffix, writes in models.items() if writes == "yes"} == set(WRITERS)
    clouds = page[page.index("## Clouds") :]
    rows = re.findall(r"^\| (`\..*?) \|", clouds, re.MULTILINE)
    assert {suffix for row in rows for suffix in re.findall(r"`(\.\w+)`", row)} == set(FORMATS)


# ---- recipes --------------------------------------------------------------------------------------------------


def test_the_page_of_training_has_every_key_of_a_recipe() -> None:
    page = text("training.md") + text("segmenting.md")
    for kind, prefix in ((recipes.Recipe, ""), (recipes.Data, "data.")):
        for field in dataclasses.fields(kind):
            assert f"`{prefix}{field.name}" in page or f"`{field.name}`" in page, f"{prefix}{field.name}"
    for field in dataclasses.fields(ScanData):
        assert f"`{field.name}`" in page, f"data.scans.{field.name}"


# ---- commands -------------------------------------------------------------------------------------------------


def shown_commands() -> list[tuple[str, str]]:
    """Every line of a block that calls the command, whether it is run or not."""
    calls = []
    for page in all_pages():
        for block in blocks(page):
            if block.kind not in ("console", "sh", "bash", "shell"):
                continue
            for line in block.body.replace("\\\n> ", "").replace("\\\n", " ").splitlines():
                command = line.removeprefix("$ ").strip()
                if command.startswith("fgnn ") or " -m fgnn " in command:
                    calls.append((page.name, "fgnn " + command.split("fgnn ", 1)[1]))
    return calls


def test_every_command_on_a_page_exists_with_its_options() -> None:
    root: Any = typer.main.get_command(build_app())
    checked = 0
    for page, line in shown_commands():
        words = shlex.split(line, comments=True)[1:]
        if words and words[0] == "slove":  # a deliberate typo
            continue
        command = root
        while words and hasattr(command, "commands") and not words[0].startswith("-"):
            assert words[0] in command.commands, f"{page}: {line}"
            command = command.commands[words.pop(0)]
        options = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}
        for word in words:
            if re.match(r"--?[a-z]", word):
                assert word.split("=")[0] in options, f"{page}: {line}: {word}"
        checked += 1
    assert checked > 20


def test_every_command_has_an_example_and_appears_on_its_page() -> None:
    generated = load_extension()
    page = generated.commands_markdown()
    for name in COMMANDS:
        section = re.search(rf"^## fgnn {name}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
        assert section, name
        assert "```sh\nfgnn " in section[1], f"fgnn {name} has no example in its help"


def test_the_exit_codes_on_the_page_are_those_of_the_command() -> None:
    import fgnn.cli

    page = set(re.findall(r"^\| (\d+) \|", text("command-line.md"), re.MULTILINE))
    assert page == set(re.findall(r"\b(\d+) (?:done|no|bad|out|interrupted|terminated)", fgnn.cli.__doc__ or ""))


# ---- results --------------------------------------------------------------------------------------------------


def load_extension() -> Any:
    import importlib.util

    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("docs_generated", DOCS / "_ext" / "generated.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_weights_has_every_card() -> None:
    from fgnn.weights import weight_names
    from fgnn.weights.cards import read_card

    table = load_extension().weights_markdown()
    for name in weight_names():
        card = read_card(name)
        (line,) = [row for row in table.splitlines() if row.startswith(f"| `{name}` |")]
        assert card["command"] in line
        assert f"{card['steps']:,} steps" in line
        if "agreement" in card["metrics"]:
            assert f"agreement {100 * card['metrics']['agreement']:.1f} %" in line


def test_pages_hold_no_measured_times_of_their_own() -> None:
    for name in ("results.md", "results-chains.md", "results-points.md", "solvers.md", "scaling.md"):
        prose = re.sub(r"^```.*?^```$", "", text(name), flags=re.MULTILINE | re.DOTALL)
        assert not re.findall(r"\d[\d.,]* (?:ms|µs|models/s|times faster|× faster)", prose), name


# ---- API and links --------------------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference() -> None:
    reference = "".join(p.read_text(encoding="utf-8") for p in (DOCS / "api").glob("*.md"))
    for name in fgnn.__all__:
        if inspect.ismodule(getattr(fgnn, name)) or name == "__version__":
            assert f"fgnn.{name}" in reference or name == "__version__", name
        else:
            assert re.search(rf"auto(class|function):: fgnn\.{name}\b", reference), name


def test_the_reference_of_layers_is_complete_and_opens_with_the_layer() -> None:
    page = text("api/nn.md")
    listed = re.findall(r"auto(?:class|function|exception):: fgnn\.nn\.(\w+)", page)
    assert listed[0] == "FGNNLayer"
    assert sorted(listed) == sorted(name for name in fgnn.nn.__all__ if not inspect.ismodule(getattr(fgnn.nn, name)))


def anchors(page: Path) -> set[str]:
    """The targets of links inside a page: headings as slugs, and named targets."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", prose, re.MULTILINE))


@pytest.mark.parametrize("page", all_pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_images_exist(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link, picture in LINK.findall(prose):
        target = link or picture
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), target
