"""How to train, whatever the task: the settings that the engine reads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from fgnn.schema import plain

_LENGTHS = ("epochs", "steps", "seconds")


@dataclass(frozen=True)
class Optimiser:
    """Adam or AdamW; ``clip`` bounds the norm of the gradient."""

    name: Literal["adam", "adamw"] = "adam"
    rate: float = 3e-3
    beta2: float = 0.999
    weight_decay: float = 0.0
    clip: float | None = None


@dataclass(frozen=True)
class Schedule:
    """The learning rate: ``exponential`` (``factor`` per epoch), ``cosine`` (down to ``floor``) or ``constant``."""

    name: Literal["exponential", "cosine", "constant"] = "exponential"
    factor: float = 0.98
    warmup: int = 0
    floor: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The settings of a run that do not depend on its task.

    Set exactly one of ``epochs`` (finite data), ``steps`` and ``seconds``. Seconds become a number of steps early in
    the run, from its measured pace. ``batch`` is the global batch, ``ema`` the decay of an average of the weights,
    ``start_from`` the weights to begin with. The ``*_every`` intervals count steps; 0 validates only at the end.
    """

    name: str = "run"
    seed: int = 0
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    batch: int = 256
    epochs: int | None = None
    steps: int | None = None
    seconds: float | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    ema: float | None = None
    start_from: str | None = None
    log_every: int = 50
    checkpoint_every: int = 1000
    validate_every: int = 0

    def __post_init__(self) -> None:
        lengths = [name for name in _LENGTHS if getattr(self, name) is not None]
        if len(lengths) != 1:
            raise ValueError(f"Expected one of epochs, steps and seconds (got {', '.join(lengths) or 'none'})")
        for name in ("batch", "log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} of at least 1 (got {getattr(self, name)})")
        if self.checkpoint_every % self.log_every or self.validate_every % self.log_every:
            raise ValueError(
                f"Expected checkpoint_every and validate_every to be multiples of log_every, {self.log_every} "
                f"(got {self.checkpoint_every} and {self.validate_every})"
            )
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"Expected ema between 0 and 1 (got {self.ema})")

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy with other top-level settings; a new length replaces the old one."""
        if set(_LENGTHS) & changes.keys():
            changes = dict.fromkeys(_LENGTHS) | changes
        return replace(self, **changes)


def recipe_yaml(settings: TrainingSettings) -> str:
    """Return the YAML text that reads back to these settings."""
    import yaml

    text: str = yaml.safe_dump(plain(settings), sort_keys=False, allow_unicode=True)
    return text
