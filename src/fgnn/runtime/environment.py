"""What a result depends on besides its settings: date, commit, hardware, versions and command."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return the environment of this process as plain values, for the head of a result."""
    from fgnn import __version__

    device = torch.device(device)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "fgnn": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "command": command(),
    }


def command() -> str:
    """Return the command line of this process, quoted for a shell, without paths that exist only on this machine."""
    program = Path(sys.argv[0])
    inside = program.with_suffix("").parts
    package = next((name for name in ("fgnn", "tools", "tests") if name in inside[:-1]), None)
    if program.name in ("fgnn", "__main__.py"):
        words = ["fgnn"]
    elif package is not None and program.suffix == ".py":  # python -m fgnn.bench.layer
        words = ["python", "-m", ".".join(inside[len(inside) - 1 - inside[::-1].index(package) :])]
    else:
        words = ["python", program.name]
    return shlex.join([*words, *map(_without_place, sys.argv[1:])])


def _without_place(word: str) -> str:
    """Shorten an absolute path, also as ``--out=/path``, to what is the same on another machine."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    path = Path(value)
    if path.is_absolute():
        value = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name
    return f"{option}{equals}{value}"


@cache
def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


@cache
def _commit() -> str:
    """Return the commit of the running source, with ``+`` if files differ from it.

    ``FGNN_COMMIT`` overrides it, for copies without a repository.
    """
    if "FGNN_COMMIT" in os.environ:
        return os.environ["FGNN_COMMIT"]
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():  # an installed package: a repository around it is another project's
        return "no repository"
    describe = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(describe, cwd=root, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "no repository"
    return done.stdout.strip()
