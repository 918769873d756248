"""What the engine asks of a task: data, loss and validation."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn


class Loss(NamedTuple):
    """The mean loss of a batch, to be minimised, and the share of correct labels; both scalars on the device."""

    loss: Tensor
    correct: Tensor


class Task(Protocol):
    """A network, its data, its loss and its validation.

    ``metric`` names the share of correct labels in logs and pages: ``agreement`` with an exact answer, ``accuracy``
    over points. ``chosen_by`` names the held-out metric, larger is better, by which the best weights are chosen.

    The batch of a step must depend on the run's seed and the step alone, and each process takes its share of it. Then a
    resumed run needs only its step, and the number of processes changes nothing but rounding.
    """

    network: nn.Module
    metric: str
    chosen_by: str
    epoch_steps: int | None  # steps per epoch; None for endless data

    def batch(self, step: int) -> Any:
        """Return this process's share of the step's batch, on the device."""
        ...

    def loss(self, network: nn.Module, batch: Any) -> Loss:
        """Return the loss of a batch; called under autocast if the settings ask for bf16.

        On a GPU the call is captured in a CUDA graph (`fgnn.train.step.Step`): whatever changes from step to step must
        come in the tensors of the batch.
        """
        ...

    def validate(self, network: nn.Module) -> dict[str, float]:
        """Return held-out metrics, at least ``loss`` and ``chosen_by``; called on the first process only."""
        ...

    def card(self) -> dict[str, Any]:
        """Return what the card of the weights needs to rebuild and apply the network."""
        ...
