"""Small runs for the tests of training."""

from __future__ import annotations

from typing import Any

from fgnn.models.map.config import NetworkConfig
from fgnn.tasks.data_settings import ChainData, Data
from fgnn.tasks.recipe import Optimiser, Recipe, Schedule

CHAIN = ChainData((1,), length=8, window=4, budget=2)


def small_recipe(**changes: Any) -> Recipe:
    """Return a recipe of about a second that uses every feature of the loop."""
    settings: dict[str, Any] = {
        "name": "small",
        "seed": 3,
        "data": Data(chain=CHAIN),
        "network": NetworkConfig("deep", width=8, blocks=2, bases=2),
        "optimiser": Optimiser("adamw", 3e-3, beta2=0.99, weight_decay=0.01, clip=1.0),
        "schedule": Schedule("cosine", warmup=5),
        "batch": 16,
        "steps": 40,
        "ema": 0.9,
        "log_every": 5,
        "checkpoint_every": 10,
        "validate_every": 20,
        "validation": 64,
    }
    return Recipe(**(settings | changes))
