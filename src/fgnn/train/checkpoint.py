"""Checkpoints: everything a run needs to continue, in one file.

Tensors (network, average, optimiser, generators) are stored as safetensors; step, settings and environment are JSON in
its header. Nothing is unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from fgnn.errors import InputError
from fgnn.runtime.environment import environment
from fgnn.schema import Between, Extended, Number, parse
from fgnn.tasks import TrainingSettings, plain
from fgnn.tasks.settings import MOST_STEPS
from fgnn.weights.store import load_tensors, read_values, save_tensors

_FORMAT = "fgnn-checkpoint-1"


@dataclass
class State:
    """The progress of a run. ``total`` is None until the number of steps is known; ``signal`` stopped it, if not 0."""

    step: Annotated[int, Between(0, MOST_STEPS)] = 0
    total: Annotated[int, Between(0, MOST_STEPS)] | None = None
    seconds: Annotated[float, Between(0, 1e10)] = 0.0
    best: Extended = -math.inf
    metrics: dict[str, Number] | None = None
    signal: Annotated[int, Between(0, 255)] = 0

    @property
    def finished(self) -> bool:
        return self.total is not None and self.step >= self.total


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Named tensors and plain values."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any] = field(default_factory=dict)

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors under ``name/``, without that prefix."""
        prefix = f"{name}/"
        return {key[len(prefix) :]: t for key, t in self.tensors.items() if key.startswith(prefix)}


def save_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; the previous one stays until the new one is complete."""
    save_tensors(path, checkpoint.tensors, checkpoint.values, _FORMAT)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint, on the CPU."""
    return Checkpoint(*load_tensors(path, _FORMAT, "a checkpoint"))


def save_state(
    path: Path,
    settings: TrainingSettings,
    network: nn.Module,
    average: nn.Module | None,
    optimiser: torch.optim.Optimizer,
    state: State,
) -> None:
    """Write everything a run needs to continue."""
    parts: dict[str, dict[str, Tensor]] = {
        "network": network.state_dict(),
        "average": average.state_dict() if average is not None else {},
        "optimiser": optimiser_tensors(optimiser, network),
        "generator": generator_tensors(),
    }
    tensors = {f"{part}/{name}": t for part, named in parts.items() for name, t in named.items()}
    values = {
        "state": vars(state),
        "recipe": plain(settings),
        "environment": environment(next(network.parameters()).device),
    }
    save_checkpoint(path, Checkpoint(tensors, values))


def restore(
    path: Path, network: nn.Module, average: nn.Module | None, optimiser: torch.optim.Optimizer
) -> State | None:
    """Load a run's tensors and generators in place and return its state.

    Returns None for a run that was killed before its first checkpoint.
    """
    if not path.exists():
        return None
    checkpoint = load_checkpoint(path)
    state = parse(State, checkpoint.values.get("state"), file=path, place="state")
    try:
        network.load_state_dict(checkpoint.part("network"))
        if average is not None:
            average.load_state_dict(checkpoint.part("average"))
        load_optimiser(optimiser, network, checkpoint.part("optimiser"))
    except (RuntimeError, ValueError) as error:
        raise InputError("Expected a checkpoint of this run (got one of another network)", file=path) from error
    try:
        load_generators(checkpoint.part("generator"))
    except (RuntimeError, KeyError, TypeError) as error:
        raise InputError("Expected the states of torch's generators (got something else)", file=path) from error
    return state


def checkpoint_settings(path: Path) -> Mapping[str, Any] | None:
    """Return the settings that a run was trained with up to its checkpoint, unchecked; None if it has none."""
    return read_values(path, _FORMAT, "a checkpoint").get("recipe", {}) if path.is_file() else None


def optimiser_tensors(optimiser: torch.optim.Optimizer, network: nn.Module) -> dict[str, Tensor]:
    """Return Adam's state by parameter name: ``name/exp_avg``, ``name/step`` and so on."""
    return {
        f"{name}/{key}": torch.as_tensor(value)
        for name, parameter in network.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
    }


def load_optimiser(optimiser: torch.optim.Optimizer, network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load Adam's state onto the devices of the parameters; a step counter stays on the CPU unless fused."""
    groups = {p: group for group in optimiser.param_groups for p in group["params"]}
    for name, parameter in network.named_parameters():
        entries = {key.rpartition("/")[2]: t for key, t in tensors.items() if key.rpartition("/")[0] == name}
        wrong = [key for key, t in entries.items() if key != "step" and t.shape != parameter.shape]
        if wrong:
            raise ValueError(f"Expected the shape of {name} (got that of {wrong[0]})")
        if entries:
            on_device = bool(groups[parameter].get("fused") or groups[parameter].get("capturable"))
            optimiser.state[parameter] = {
                key: t.to(parameter.device) if key != "step" or on_device else t for key, t in entries.items()
            }


def generator_tensors() -> dict[str, Tensor]:
    """Return the states of torch's global generators, which dropout and initialisation use."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{n}": state for n, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def load_generators(states: Mapping[str, Tensor]) -> None:
    """Restore the generators of the devices this machine has."""
    torch.set_rng_state(states["cpu"])
    for n in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda{n}" in states:
            torch.cuda.set_rng_state(states[f"cuda{n}"], n)
