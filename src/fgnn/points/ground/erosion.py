"""Erosion of a raster by diamonds, in a compiled loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fgnn.runtime.jit import compiled


@compiled
def erode(surface: NDArray[np.float64], radius: int) -> NDArray[np.float64]:
    """The lowest value within ``radius`` steps along rows and columns; cells outside do not count."""
    rows, columns = surface.shape
    now, after = np.full((rows + 2, columns + 2), np.inf), np.full((rows + 2, columns + 2), np.inf)
    for i in range(rows):
        for j in range(columns):
            now[i + 1, j + 1] = surface[i, j]
    for _ in range(radius):
        for i in range(1, rows + 1):
            for j in range(1, columns + 1):
                beside = min(now[i, j - 1], now[i, j + 1])
                after[i, j] = min(now[i, j], min(beside, min(now[i - 1, j], now[i + 1, j])))
        now, after = after, now
    return now[1:-1, 1:-1].copy()
