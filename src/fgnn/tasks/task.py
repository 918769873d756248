"""What the loop asks of whatever is trained: a graphical-model solver, a point-cloud network."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn


class Loss(NamedTuple):
    """A batch's mean loss, to be minimised, and the share of labels met; both scalars on the device."""

    loss: Tensor
    agreement: Tensor


class Task(Protocol):
    """Data, loss and validation of one kind of problem.

    The global batch of a step is a function of the run's seed and the step alone, and every process takes its share
    of it: the number of processes changes nothing but rounding, and a resumed run needs no more than its step.
    """

    network: nn.Module
    epoch_steps: int | None  # steps in an epoch, None where data is endless

    def batch(self, step: int) -> Any:
        """This process's share of the step's batch, on the device."""
        ...

    def loss(self, network: nn.Module, batch: Any) -> Loss:
        """The loss of a batch; called under autocast where the recipe asks for it.

        On a GPU it is recorded and replayed (`fgnn.train.step.Step`): what changes with the step must come in the
        batch's tensors.
        """
        ...

    def validate(self, network: nn.Module) -> dict[str, float]:
        """Metrics on held-out data; ``agreement`` and ``loss`` at least. Called on the first process alone."""
        ...

    def card(self) -> dict[str, Any]:
        """What a weights' card must hold to build and apply the network again."""
        ...
