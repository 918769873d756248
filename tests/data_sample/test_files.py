"""Samples and graphs are loaded without pickled code, in a process that has done nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fgnn

GROUP = fgnn.FactorGroup([[0, 1], [0, 1, 2]])
GRAPH = fgnn.FactorGraph(3, {"pair": GROUP})


@pytest.mark.parametrize(
    ("name", "value"), [("FactorGroup", GROUP), ("FactorGraph", GRAPH), ("Data", fgnn.Data(GRAPH, y=1.5))]
)
def test_a_new_process_loads_what_it_names(name: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "value.pt"
    torch.save({"it": [value]}, path)
    code = f"import fgnn, torch; fgnn.{name}; print(torch.load({str(path)!r}, weights_only=True)['it'][0])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip().startswith(f"{name}(")
