"""Potentials learned from samples as a task: a model file and assignments in, a model file out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fgnn.arrays import read_arrays
from fgnn.errors import InputError
from fgnn.files import read_text
from fgnn.nn import CRF
from fgnn.pgm import GraphicalModel
from fgnn.pgm.conditionals import conditionals
from fgnn.pgm.io import read_model, write_model
from fgnn.runtime.distributed import World
from fgnn.schema import plain
from fgnn.tasks.data_settings import SampleData
from fgnn.tasks.recipe import Recipe
from fgnn.tasks.seeds import EpochBatches, seed_for
from fgnn.tasks.task import Loss

_MOST_BYTES = 1 << 30  # of a file of samples


class FreePotentials(nn.Module):
    """A CRF whose unary scores are parameters too."""

    def __init__(self, template: GraphicalModel, data: SampleData) -> None:
        super().__init__()
        self.crf = CRF(template, learn=data.learn)
        largest = int(max(template.cardinalities, default=1))
        self.unary = nn.Parameter(torch.zeros(template.num_variables, largest), requires_grad=data.unaries)

    def scores(self, count: int) -> Tensor:
        """The unary scores, (count, N, K)."""
        return self.unary.expand(count, -1, -1)

    def model(self) -> GraphicalModel:
        """The template with all that was learned."""
        model = self.crf.template()
        unary = self.unary.detach().cpu().double().numpy()
        for i, k in enumerate(model.cardinalities.tolist()):
            model.add_unary(i, unary[i, :k])
        return model


class CRFTask:
    """Learn the potentials of a model file from samples of its variables.

    Args:
        recipe: Names the model, the samples and the loss.
        world: This process among those that train together.
        device: The device of data and network.
    """

    metric = "accuracy"
    chosen_by = "likelihood"

    def __init__(self, recipe: Recipe, world: World | None = None, device: torch.device | str = "cpu") -> None:
        data = recipe.data.samples
        assert data is not None
        self.recipe, self.data, self.device = recipe, data, torch.device(device)
        template = read_model(data.model)
        samples = read_samples(data.file, template)
        order = np.random.default_rng(seed_for(recipe.seed, "split")).permutation(len(samples))
        held_out = max(1, len(samples) // 10)
        self.held_out = torch.as_tensor(samples[order[:held_out]], device=self.device)
        self.train = torch.as_tensor(samples[order[held_out:]], device=self.device)
        size = min(recipe.batch, len(self.train))
        self.rows = EpochBatches(len(self.train), size, recipe.seed, "samples", world or World(), self.device)
        self.epoch_steps: int | None = self.rows.steps
        self.network: nn.Module = FreePotentials(template, data)

    def batch(self, step: int) -> Tensor:
        return self.train[self.rows(step)]

    def loss(self, network: nn.Module, batch: Tensor) -> Loss:
        """The mean negative log-likelihood per variable, exact or by conditionals, and the accuracy of conditionals."""
        return Loss(-self._log_likelihood(network, batch, self.data.keep), _accuracy(network, batch))

    @torch.no_grad()
    def validate(self, network: nn.Module) -> dict[str, float]:
        value = float(self._log_likelihood(network, self.held_out, 1.0))
        # A metric to be maximised: the geometric mean of the probability of a variable's state.
        accuracy = float(_accuracy(network, self.held_out))
        return {"loss": -value, "likelihood": float(np.exp(value)), "accuracy": accuracy}

    def card(self) -> dict[str, Any]:
        return {"task": "crf", "data": plain(self.recipe.data)}

    def write(self, network: nn.Module, path: Path) -> None:
        """Write the learned model."""
        write_model(_free(network).model(), path)

    def _log_likelihood(self, network: nn.Module, x: Tensor, keep: float) -> Tensor:
        free = _free(network)
        unary = free.scores(len(x))
        if self.data.loss == "likelihood":
            total = free.crf.log_prob(x, unary)
        else:
            total = free.crf.pseudo_log_likelihood(x, unary, keep=keep)
        return total.mean() / max(1, x.shape[1])


def _integers(text: str, place: Path) -> NDArray[np.int64]:
    try:
        return np.loadtxt(text.replace(",", " ").splitlines(), dtype=np.int64, ndmin=2)
    except (ValueError, OverflowError) as error:
        raise InputError("Expected samples as integers, one assignment a line, or a .npy array", file=place) from error


def read_samples(path: str | Path, template: GraphicalModel) -> NDArray[np.int64]:
    """Assignments (S, N) from a .npy file or a text of integers with one sample a line, commas or blanks between."""
    place = Path(path)
    if place.suffix == ".npy":
        (values,) = read_arrays(place, _MOST_BYTES).values()
    else:
        values = _integers(read_text(place, _MOST_BYTES), place)
    if values.ndim != 2 or not np.issubdtype(values.dtype, np.integer) or values.shape[1] != template.num_variables:
        raise InputError(
            f"Expected integer samples of {template.num_variables} variables "
            f"(got {values.dtype} of shape {values.shape})",
            file=place,
        )
    wrong = np.argwhere((values < 0) | (values >= template.cardinalities))
    if len(wrong):
        row, i = wrong[0].tolist()
        raise InputError(
            f"Expected a state below {int(template.cardinalities[i])} of variable {i} (got {int(values[row, i])})",
            file=place,
            place=f"sample {row}",
        )
    if len(values) < 2:
        raise InputError(f"Expected at least 2 samples (got {len(values)})", file=place)
    return np.asarray(values, dtype=np.int64)


def _free(network: nn.Module) -> FreePotentials:
    inner = getattr(network, "module", network)
    assert isinstance(inner, FreePotentials)
    return inner


@torch.no_grad()
def _accuracy(network: nn.Module, x: Tensor) -> Tensor:
    """How often the most probable state of a variable given all others is the sample's."""
    free = _free(network)
    models = free.crf.models(free.scores(len(x)))
    return (conditionals(models, x).argmax(2) == x).float().mean()
