"""YAML as it comes from people's files: plain values within bounds, or one line that says what is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fgnn.errors import InputError

# A recipe has a few dozen lines; this is room for a hundred times as many.
MOST_BYTES = 1 << 18
_DEEPEST = 30
# Seen at once: the scanner takes long to open a thousand brackets.
_DEEP = re.compile(rf"(?:[\[{{]\s*){{{_DEEPEST + 1}}}")


def read_yaml(path: str | Path) -> Any:
    """The values in a YAML file: maps, lists, texts and numbers, nothing else."""
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
    """The values in a YAML text.

    References to an anchor are refused: merged into one another, a few lines of them stand for more than any memory.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            problem = "references (*name) are not used here" if self.check_event(yaml.AliasEvent) else ""
            self.depth += 1
            if problem or self.depth > _DEEPEST:
                event: Any = self.peek_event()  # type: ignore[no-untyped-call]
                raise yaml.constructor.ConstructorError(None, None, problem or "nested too deeply", event.start_mark)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

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
        # what looks like a date, a number or bytes and is none, such as 2001-99-99
        raise InputError(f"not YAML: {error}", file=file, place=place) from error
