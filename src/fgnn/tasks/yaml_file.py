"""Read untrusted YAML: plain values of bounded size and depth, or an error of one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fgnn.errors import InputError

MOST_BYTES = 1 << 18  # a hundred times a long recipe
_DEEPEST = 30
# Checked up front: the scanner is slow on thousands of open brackets.
_DEEP = re.compile(rf"(?:[\[{{]\s*){{{_DEEPEST + 1}}}")


def read_yaml(path: str | Path) -> Any:
    """Return the values of a YAML file: only mappings, lists, strings and numbers."""
    file = Path(path)
    try:
        with file.open("rb") as raw:
            data = raw.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(error.strerror or str(error), file=file) from error
    if len(data) > MOST_BYTES:
        raise InputError(f"Expected a file of at most {MOST_BYTES} bytes (got more)", file=file)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("not a text file", file=file) from error
    return parse_yaml(text, file=file)


def parse_yaml(text: str, *, file: str | Path | None = None, place: str = "") -> Any:
    """Return the values of a YAML text.

    Aliases are refused: a few nested lines of them expand beyond any memory.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            problem = "references (*name) are not allowed" if self.check_event(yaml.AliasEvent) else ""
            self.depth += 1
            if problem or self.depth > _DEEPEST:
                event: Any = self.peek_event()  # type: ignore[no-untyped-call]
                raise yaml.constructor.ConstructorError(None, None, problem or "nested too deeply", event.start_mark)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            """Refuse a key that is there twice; YAML readers differ on which one counts."""
            keys: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in keys:
                    problem = f"the key '{key.value[:100]}' is there twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                keys.add(str(key.value))
            return super().construct_mapping(node, deep)

    if _DEEP.search(text):
        raise InputError("not YAML: nested too deeply", file=file, place=place)
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}" if mark else place
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not understood"
        raise InputError(f"not YAML: {problem}", file=file, place=line) from error
    except RecursionError as error:
        raise InputError("not YAML: nested too deeply", file=file, place=place) from error
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        # invalid dates, numbers or bytes, such as 2001-99-99
        raise InputError(f"not YAML: {error}", file=file, place=place) from error
