"""The long description of the package: the README, whose links also work on a package index.

There, links to files of the repository are dead. They become links into the repository that `project.urls` names;
without one, links become text and pictures are left out. All else is in pyproject.toml.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|mailto:|#)([^)\s]+)\)")


def long_description(readme: str, repository: str | None, version: str) -> str:
    """The README for readers who do not have the repository."""

    def elsewhere(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if repository is None:
            return "" if picture else text
        kind = "raw" if picture else "blob"
        return f"{picture}[{text}]({repository.rstrip('/')}/{kind}/v{version}/{target})"

    text = _LINK.sub(elsewhere, readme)
    return re.sub(r"<!--.*?-->\n", "", text, flags=re.DOTALL)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = long_description(
        (ROOT / "README.md").read_text(encoding="utf-8"), project["urls"].get("Repository"), project["version"]
    )
    setup(long_description=page, long_description_content_type="text/markdown")
