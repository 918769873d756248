"""`import fgnn` brings what it needs and nothing more, and little time beyond torch's."""

from __future__ import annotations

import json
import subprocess
import sys

from fgnn.errors import _EXTRAS

# the command line's own packages too: a program that only imports the library does not pay for them
OPTIONAL = {*_EXTRAS, "triton", "typer", "rich", "yaml", "scipy.optimize", "scipy.spatial", "IPython", "PIL"}

PROGRAM = """
import json, sys, time
import torch
before = time.process_time()
import fgnn
spent = time.process_time() - before
print(json.dumps({"spent": spent, "modules": sorted(sys.modules)}))
"""


def test_no_optional_package_is_imported_and_hardly_any_time_is_spent() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    facts = json.loads(told.stdout)
    assert OPTIONAL.isdisjoint(facts["modules"])
    assert facts["spent"] < 0.5  # of the processor; torch's own import takes the rest of what a person waits for
