"""The learning rate as a pure function of the step: a resumed run needs no scheduler state."""

from __future__ import annotations

import math

from fgnn.tasks.settings import Schedule


def rate_factor(schedule: Schedule, step: int, total: int | None, epoch_steps: int | None) -> float:
    """Return the factor of the base rate at ``step`` (from 0).

    Args:
        total: Steps of the run; while it is unknown (None) a cosine stays at its peak.
        epoch_steps: Steps per epoch, for the exponential schedule.
    """
    warm = min(1.0, (step + 1) / schedule.warmup) if schedule.warmup else 1.0
    if schedule.name == "constant" or (schedule.name == "cosine" and total is None):
        return warm
    if schedule.name == "exponential":
        if epoch_steps is None:
            raise ValueError("Expected a number of steps per epoch for an exponential schedule (got none)")
        return warm * schedule.factor ** (step // epoch_steps)
    assert total is not None
    span = max(1, total - schedule.warmup)
    done = min(1.0, max(0.0, (step - schedule.warmup) / span))
    return warm * (schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * done)))
