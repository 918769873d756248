"""The page as one text, with its scripts, style, examples and compiled networks inside: it also opens from a disk."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from fgnn.play.compiled_network import compiled_network
from fgnn.play.examples import EXAMPLES

# The examples whose compiled network the page has without a server.
COMPILED = ("grid", "loop", "paper", "tree")

_IMPORT = re.compile(r'^import \{ ([^}]+) \} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?:async )?(?:function\*?|const|class) ([\w$]+)", re.MULTILINE)


@cache
def make_page(*, server: bool) -> str:
    """The page; with ``server``, it may ask one for what it cannot compute."""
    page = _read("play.html").replace("/* play.css */", _read("play.css")).replace("/* play.js */", _bundle("main"))
    if server:
        page = page.replace("<html ", '<html data-server="yes" ', 1)
    examples = {name: example.as_json() for name, example in EXAMPLES.items()}
    networks = {
        name: {**compiled_network(EXAMPLES[name].make()), "model": examples[name]["model"]} for name in COMPILED
    }
    for element, data in (("examples", examples), ("networks", networks)):
        page = page.replace(f'id="{element}">{{}}<', f'id="{element}">{_inside_html(data)}<')
    return page


def _read(name: str) -> str:
    return (files("fgnn.play") / "pages" / name).read_text(encoding="utf-8")


def _bundle(main: str) -> str:
    """A module and all it imports as one script, each in a function of its own, in the order of the imports."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        text = _read(f"{name}.js")
        for _, other in _IMPORT.findall(text):
            if other not in done:
                add(other)
        exports = ", ".join(_EXPORT.findall(text))
        body = _IMPORT.sub(r"const { \1 } = modules.\2;", text)
        body = re.sub(r"^export ", "", body, flags=re.MULTILINE)
        done[name] = f"modules.{name} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();\n"

    add(main)
    return '"use strict";\nconst modules = {};\n' + "".join(done.values())


def _inside_html(value: Any) -> str:
    """JSON that cannot end the element it is in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
