"""Classical ground filters: functions from points (N, 3) to a mask of ground points (N,)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from fgnn.points.ground.csf import csf
from fgnn.points.ground.pmf import pmf
from fgnn.points.ground.smrf import smrf

GroundFilter = Callable[[NDArray[np.float64]], NDArray[np.bool_]]

# By the names they are known by.
GROUND_FILTERS: Mapping[str, GroundFilter] = {"smrf": smrf, "pmf": pmf, "csf": csf}

__all__ = ["GROUND_FILTERS", "GroundFilter", "csf", "pmf", "smrf"]
