"""Compare the files of a data set with the published ones, by md5."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from fgnn.data.s3dis import md5
from fgnn.errors import InputError


@dataclass(frozen=True)
class Checked:
    """The status of one published file."""

    release: str
    name: str
    status: Literal["as published", "differs", "missing"]


def published() -> dict[str, dict[str, str]]:
    """The md5 of the published files, by release and name."""
    sums: dict[str, dict[str, str]] = json.loads((files("fgnn.data") / "published_md5.json").read_text("utf-8"))
    return sums


def check_release(folder: str | Path) -> list[Checked]:
    """Compare the files below a folder with those published under the same names; report what a release lacks.

    If a name occurs several times, the first in path order counts.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError("no such folder", file=root)
    present: dict[str, Path] = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        present.setdefault(path.name, path)
    checked = []
    for release, sums in published().items():
        if not sums.keys() & present.keys():
            continue
        for name, expected in sums.items():
            if name in present:
                same = md5(present[name]) == expected
                checked.append(Checked(release, name, "as published" if same else "differs"))
            elif release != "archives":  # nobody keeps every archive
                checked.append(Checked(release, name, "missing"))
    if not checked:
        raise InputError(f"Expected files of {', '.join(published())} (got none of their names)", file=root)
    return checked
