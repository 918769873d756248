"""The learning rate as a pure function of the step, so that a resumed run needs no scheduler's state."""

from __future__ import annotations

import math

from fgnn.tasks.recipe import Schedule


def rate_factor(schedule: Schedule, step: int, total: int | None, epoch_steps: int | None) -> float:
    """What the base rate is multiplied by at ``step`` (from 0).

    ``total`` is the run's number of steps, None while it is not known yet (the rate then stays at its peak);
    ``epoch_steps`` the number in an epoch, for the exponential schedule.
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
