"""Whether files of a data set are the published ones, by their md5."""

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
    """One published file: as published, different, or not there."""

    release: str
    name: str
    status: Literal["as published", "differs", "missing"]


def published() -> dict[str, dict[str, str]]:
    """The md5 of the published files, by release and name."""
    found: dict[str, dict[str, str]] = json.loads((files("fgnn.data") / "published_md5.json").read_text("utf-8"))
    return found


def check_release(folder: str | Path) -> list[Checked]:
    """Compare a folder's files with those published under the same names; of a release met in part, what is missing.

    Names may recur in folders below; the first in name order is taken.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError("no such folder", file=root)
    there: dict[str, Path] = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        there.setdefault(path.name, path)
    made = []
    for release, sums in published().items():
        if not sums.keys() & there.keys():
            continue
        for name, expected in sums.items():
            if name not in there:
                if release != "archives":  # nobody keeps every archive
                    made.append(Checked(release, name, "missing"))
                continue
            made.append(Checked(release, name, "as published" if md5(there[name]) == expected else "differs"))
    if not made:
        raise InputError(f"Expected files of {', '.join(published())} (got none of their names)", file=root)
    return made
