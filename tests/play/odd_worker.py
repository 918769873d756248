"""A worker whose calls sleep, hog memory, die or print, with a short time limit."""

from __future__ import annotations

import os
import time
from typing import Any

from fgnn.play import reply, worker


def _sleep(request: Any) -> str:
    time.sleep(60)
    return "awake"


def _spin(request: Any) -> int:
    return sum(range(10**12))


def _hog(request: Any) -> int:
    return len(b"x" * (2 << 30))


def _hog_torch(request: Any) -> int:
    import torch

    return torch.ones(1 << 28, dtype=torch.float64).numel()


def _die(request: Any) -> None:
    os.abort()


def _print(request: Any) -> float:
    print("a library says hello", flush=True)
    return float("nan")


reply.ROUTES.update({
    "/api/sleep": _sleep, "/api/spin": _spin, "/api/hog": _hog, "/api/hog-torch": _hog_torch, "/api/die": _die,
    "/api/print": _print, "/api/bug": lambda request: {}["bug"], "/api/long": lambda request: "x" * (40 << 20),
})  # fmt: skip
worker.SECONDS = 2

if __name__ == "__main__":
    worker.main()
