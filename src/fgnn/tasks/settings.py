"""How to train, whatever the task: the settings that the engine reads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from fgnn.schema import Between, FileName, PathText, Share, check_fields, plain

LENGTHS = ("epochs", "steps", "seconds")
# Far beyond any real run: more is a mistake in the file, and would train for ever.
MOST_STEPS = 10**8
_MONTH = 31 * 86_400.0
Interval = Annotated[int, Between(1, 10**5)]


@dataclass(frozen=True)
class Optimiser:
    """Adam or AdamW; ``clip`` bounds the norm of the gradient."""

    name: Literal["adam", "adamw"] = "adam"
    rate: Annotated[float, Between(0, 1e30, above=True)] = 3e-3
    beta2: Annotated[float, Between(0, 1, below=True)] = 0.999
    weight_decay: Annotated[float, Between(0, 1e3)] = 0.0
    clip: Annotated[float, Between(0, 1e30, above=True)] | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Schedule:
    """The learning rate: ``exponential`` (``factor`` per epoch), ``cosine`` (down to ``floor``) or ``constant``."""

    name: Literal["exponential", "cosine", "constant"] = "exponential"
    factor: Annotated[float, Between(0, 1, above=True)] = 0.98
    warmup: Annotated[int, Between(0, MOST_STEPS)] = 0
    floor: Share = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The settings of a run that do not depend on its task.

    Set exactly one of ``epochs`` (finite data), ``steps`` and ``seconds``. Seconds become a number of steps early in
    the run, from its measured pace. ``batch`` is the global batch, ``ema`` the decay of an average of the weights,
    ``start_from`` the weights to begin with. The ``*_every`` intervals count steps; 0 validates only at the end.
    """

    name: FileName = "run"
    seed: Annotated[int, Between(0, 2**63 - 1)] = 0
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    batch: Annotated[int, Between(1, 1 << 18)] = 256
    epochs: Annotated[int, Between(1, 10**6)] | None = None
    steps: Annotated[int, Between(1, MOST_STEPS)] | None = None
    seconds: Annotated[float, Between(0, _MONTH, above=True)] | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    ema: Annotated[float, Between(0, 1, above=True, below=True)] | None = None
    start_from: PathText | None = None
    log_every: Interval = 50
    checkpoint_every: Annotated[int, Between(1, MOST_STEPS)] = 1000
    validate_every: Annotated[int, Between(0, MOST_STEPS)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) != 1:
            raise ValueError(f"Expected one of epochs, steps and seconds (got {', '.join(lengths) or 'none'})")
        if self.checkpoint_every % self.log_every or self.validate_every % self.log_every:
            raise ValueError(
                f"Expected checkpoint_every and validate_every to be multiples of log_every, {self.log_every} "
                f"(got {self.checkpoint_every} and {self.validate_every})"
            )

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy with other top-level settings; a new length replaces the old one."""
        if set(LENGTHS) & changes.keys():
            changes = dict.fromkeys(LENGTHS) | changes
        return replace(self, **changes)


def recipe_yaml(settings: TrainingSettings) -> str:
    """Return the YAML text that reads back to these settings."""
    import yaml

    text: str = yaml.safe_dump(plain(settings), sort_keys=False, allow_unicode=True)
    return text
