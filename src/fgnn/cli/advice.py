"""What to do next, said after what is wrong."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

_MISSING = ": no such file"
_FOLDER_LOOKED_AT = 10_000  # names; a larger folder is not searched for a near one


def with_advice(message: str) -> str:
    """A message of one line, with a way on where one is known."""
    if message.endswith(_MISSING):
        return message + _near(Path(message.removesuffix(_MISSING).rsplit(": ", 1)[-1]))
    if "torch sees no CUDA device" in message:
        return f"{message}; use --device cpu"
    return message


def did_you_mean(word: str, known: list[str]) -> str:
    """`` Did you mean 'solve'?`` for the nearest of the known words; empty where none is near."""
    close = get_close_matches(word, known, n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def _near(path: Path) -> str:
    """The file whose name comes nearest, or what is wrong with the folder."""
    folder = path.parent
    if not folder.is_dir():
        return f"; there is no folder {folder} either"
    names = []
    for entry in folder.iterdir():
        names.append(entry.name)
        if len(names) >= _FOLDER_LOOKED_AT:
            return ""
    close = get_close_matches(path.name, names, n=1)
    return f"; did you mean {folder / close[0]}?" if close else "; check the name and the folder you are in"
