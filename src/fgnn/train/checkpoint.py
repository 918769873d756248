"""Checkpoints: everything a run needs to go on, in one file that is whole or not there.

Tensors (network, average, optimiser, generators) lie in safetensors; the rest (step, schedule, versions, best so far)
is JSON in the same file's header. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.weights.store import load_tensors, save_tensors

_FORMAT = "fgnn-checkpoint-1"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Named tensors and the plain values beside them."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any] = field(default_factory=dict)

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors under ``name/``, without that prefix."""
        prefix = f"{name}/"
        return {key[len(prefix) :]: t for key, t in self.tensors.items() if key.startswith(prefix)}


def save_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; the one before it stays until the new one is complete."""
    save_tensors(path, checkpoint.tensors, checkpoint.values, _FORMAT)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint on the CPU."""
    return Checkpoint(*load_tensors(path, _FORMAT, "a checkpoint"))


# ---- the state of a run as tensors ------------------------------------------------------------------------------


def optimiser_tensors(optimiser: torch.optim.Optimizer, network: nn.Module) -> dict[str, Tensor]:
    """Adam's state under the parameters' names: ``name/exp_avg``, ``name/step`` and so on."""
    return {
        f"{name}/{key}": torch.as_tensor(value)
        for name, parameter in network.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
    }


def load_optimiser(optimiser: torch.optim.Optimizer, network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put Adam's state back; each tensor goes to the device its parameter is on, except a step counter kept apart."""
    for name, parameter in network.named_parameters():
        prefix = f"{name}/"
        mine = {
            key[len(prefix) :]: t
            for key, t in tensors.items()
            if key.startswith(prefix) and "/" not in key[len(prefix) :]
        }
        if not mine:
            continue
        group = next(g for g in optimiser.param_groups if any(p is parameter for p in g["params"]))
        on_device = bool(group.get("fused") or group.get("capturable"))
        optimiser.state[parameter] = {
            key: t.to(parameter.device) if key != "step" or on_device else t for key, t in mine.items()
        }


def generator_tensors() -> dict[str, Tensor]:
    """The states of torch's own generators, which dropout and initialisation draw from."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{n}": state for n, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def load_generators(states: Mapping[str, Tensor]) -> None:
    """Put the generators' states back; those of devices this machine does not have are left."""
    torch.set_rng_state(states["cpu"])
    for n in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda{n}" in states:
            torch.cuda.set_rng_state(states[f"cuda{n}"], n)
