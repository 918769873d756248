"""Names that come from users or files: which of them may become a path, and how any of them is shown.

A name is text that someone else chose: of a recipe, a class, a field, a file. It may hold anything, so nothing is
written to a path, a header or a terminal before it went through this file.
"""

from __future__ import annotations

LONGEST = 100  # characters; with a suffix still below the 255 bytes of most file systems
# Separators, and what Windows forbids: a run folder must survive a copy to any machine.
_FORBIDDEN = '/\\:*?"<>|'
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}


def printable(text: object) -> str:
    """Return text that is safe on a terminal and in one line: control characters and line ends are escaped."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def why_no_file_name(name: str) -> str | None:
    """Return why a name cannot be the name of a file or folder on every system, or None if it can.

    A name that passes is one component of a path: joined to a folder, it stays inside that folder.
    """
    if not name:
        return "some text"
    if len(name) > LONGEST or len(name.encode("utf-8", "surrogatepass")) > 2 * LONGEST:
        return f"at most {LONGEST} characters"
    if not name.isprintable():
        return "printable characters"
    if any(c in _FORBIDDEN for c in name):
        return f"none of {' '.join(_FORBIDDEN)}"
    if name[0] in ".-" or name[0].isspace():
        return "no dot, dash or space at the beginning"
    if name[-1] == "." or name[-1].isspace():
        return "no dot or space at the end"
    if name.split(".")[0].strip().lower() in _DEVICES:
        return "no reserved name of a device"
    return None


def check_file_name(name: str) -> str:
    """Return the name, or raise a ValueError that says why it cannot be a file name."""
    why = why_no_file_name(name)
    if why is not None:
        shown = name if len(name) <= LONGEST else name[:LONGEST] + "..."
        raise ValueError(f"Expected a name that can be a file name: {why} (got {shown!r})")
    return name


def as_file_name(text: str, otherwise: str) -> str:
    """Return a file name made from any text, such as the name of a folder: forbidden characters become dashes.

    ``otherwise`` is the name for a text of which nothing is left.
    """
    kept = "".join(c if c.isprintable() and c not in _FORBIDDEN else "-" for c in text)
    kept = kept[: LONGEST // 2].lstrip(".- ").rstrip(". ")
    return kept if why_no_file_name(kept) is None else otherwise
