"""The examples in docstrings run and print what they show."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import fgnn

SOURCE = Path(fgnn.__file__).parents[1]
FILES = [file for file in sorted(SOURCE.rglob("*.py")) if ">>> " in file.read_text(encoding="utf-8")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_examples(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module(".".join(file.relative_to(SOURCE).with_suffix("").parts))
    monkeypatch.chdir(tmp_path)  # some write files
    names = {"fgnn": fgnn, "torch": torch, "np": np}
    failed, _ = doctest.testmod(module, extraglobs=names, optionflags=doctest.ELLIPSIS)
    assert not failed  # what differs is on standard output
