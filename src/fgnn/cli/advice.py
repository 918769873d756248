"""Suggest what to do after an error message."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

_MISSING = ": no such file"
_MAX_NAMES = 10_000  # larger folders are not searched for similar names


def with_advice(message: str) -> str:
    """Return a one-line message with a suggestion appended where there is one."""
    if message.endswith(_MISSING):
        return message + _similar_file(Path(message.removesuffix(_MISSING).rsplit(": ", 1)[-1]))
    if "torch sees no CUDA device" in message:
        return f"{message}; use --device cpu"
    return message


def did_you_mean(word: str, known: list[str]) -> str:
    """Return `` Did you mean 'solve'?`` for the most similar known word, or an empty string."""
    close = get_close_matches(word, known, n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def _similar_file(path: Path) -> str:
    """Name the file with the most similar name, or say what is wrong with the folder."""
    folder = path.parent
    if not folder.is_dir():
        return f"; the folder {folder} does not exist either"
    names = []
    for entry in folder.iterdir():
        names.append(entry.name)
        if len(names) >= _MAX_NAMES:
            return ""
    close = get_close_matches(path.name, names, n=1)
    return f"; did you mean {folder / close[0]}?" if close else "; check the name and the current folder"
