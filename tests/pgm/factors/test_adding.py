"""A kind is added as the page on extending says: a file in `pgm/factors`, and a line that imports it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fgnn

SOURCE = Path(fgnn.__file__).parent
PAGE = SOURCE.parents[1] / "docs" / "extending.md"
PROGRAM = """
import sys
import numpy as np
import fgnn
from fgnn.pgm.factors.changes import Changes

model = fgnn.GraphicalModel([3] * 12)
model.add_unaries(np.random.default_rng(0).normal(size=36))
model.add_factors(Changes(2), [range(12)])
fgnn.write_model(model, sys.argv[1])
again = fgnn.read_model(sys.argv[1])
assert again == model
exact, messages = fgnn.solve(again, "exact"), fgnn.solve(again, "max-product")
assert exact.status == "optimal" and abs(exact.score - messages.score) < 1e-9
print((np.diff(exact.assignment) != 0).sum())
"""


def copy_with_links(source: Path, target: Path, real: Path) -> None:
    """A folder in which all but the files of ``real``, a folder inside it, are links."""
    target.mkdir()
    for item in source.iterdir():
        if item == real:
            shutil.copytree(item, target / item.name)
        elif item in real.parents:
            copy_with_links(item, target / item.name, real)
        else:
            (target / item.name).symlink_to(item)


def test_a_kind_is_one_file_and_one_line(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(from dataclasses.*?)\n\nKINDS\[", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    copy_with_links(SOURCE, tmp_path / "fgnn", SOURCE / "pgm" / "factors")
    folder = tmp_path / "fgnn" / "pgm" / "factors"
    own = code.replace(
        "from fgnn.pgm import KINDS, AutomatonKind", "from fgnn.pgm.factors.automaton import AutomatonKind"
    )
    (folder / "changes.py").write_text("import torch\n" + own, encoding="utf-8")
    start = (folder / "__init__.py").read_text(encoding="utf-8")
    start = start.replace("\n\n# The kinds", "\nfrom fgnn.pgm.factors.changes import Changes\n\n# The kinds")
    (folder / "__init__.py").write_text(start, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "model.fgm")],
        capture_output=True, text=True, timeout=120, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "2"
