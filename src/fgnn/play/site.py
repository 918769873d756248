"""The playground as files that need no server: `fgnn play --export`."""

from __future__ import annotations

import base64
from functools import cache
from importlib.resources import files
from pathlib import Path

from fgnn.errors import InputError
from fgnn.files import atomic_write

# The packaged weights that the page runs itself.
WEIGHTS = "deep-grid"


@cache
def weights_script() -> bytes:
    """The weights of the network as a script: it also loads from a disk, where a page may fetch nothing."""
    data = (files("fgnn") / "weights" / f"{WEIGHTS}.safetensors").read_bytes()
    return b'globalThis.fgnnWeights = "' + base64.b64encode(data) + b'";\n'


def export_site(folder: str | Path) -> list[Path]:
    """Write the page into a folder, as ``index.html`` and ``weights.js``, and return their paths.

    Raises:
        InputError: The folder cannot be written.
    """
    from fgnn.play.page import make_page

    target = Path(folder)
    contents = {"index.html": make_page(server=False).encode(), "weights.js": weights_script()}
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            with atomic_write(target / name, "wb") as file:
                file.write(content)
    except OSError as error:
        raise InputError(error.strerror or str(error), file=target) from error
    return [target / name for name in contents]
