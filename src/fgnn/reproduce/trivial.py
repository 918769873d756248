"""Answers that hardly look at the model: what any network has to beat."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from fgnn.reproduce.experiment import Cell, Setting, fresh_set
from fgnn.tasks import Quality
from fgnn.tasks.labelled_models import Examples

ZEROS, ONES = "every variable 0", "every variable 1"
UNARIES = "own unary terms alone"
_FITTED_ON = 10_000  # instances that the threshold is fitted on, with another seed than those it is tested on


def trivial_cells(setting: Setting, kind: int, examples: Examples) -> list[Cell]:
    """Return the two constant answers, and the best answer from a variable's own unary terms."""
    labels = examples.labels
    answers = {
        ZEROS: torch.zeros_like(labels),
        ONES: torch.ones_like(labels),
        UNARIES: (_differences(examples) > best_threshold(setting, kind)).to(labels),
    }
    cells = []
    for name, answer in answers.items():
        start = time.perf_counter()
        quality = Quality.of(examples.models, answer, labels)
        cells.append(Cell(name, kind, quality, 1e3 * (time.perf_counter() - start) / len(examples)))
    return cells


def best_threshold(setting: Setting, kind: int) -> float:
    """Return the t for which x_i = [θ_i(1) − θ_i(0) > t] agrees best with the optimum, on instances of its own."""
    count = min(_FITTED_ON, 10 * setting.instances)
    examples = fresh_set(Setting(setting.window, count, seed=setting.seed + 1, device=setting.device), kind)
    difference, order = _differences(examples).flatten().sort()
    ones = examples.labels.flatten()[order].double()
    # cut n sends the n smallest differences to 0 and the others to 1
    hits = torch.zeros(len(ones) + 1, dtype=torch.float64, device=ones.device)
    hits[1:] = (1 - 2 * ones).cumsum(0)
    cut = int(hits.argmax())
    return -torch.inf if cut == 0 else float(difference[cut - 1])


def _differences(examples: Examples) -> Tensor:
    """θ_i(1) − θ_i(0).  # shape: (B, N)"""
    return examples.models.unary[..., 1] - examples.models.unary[..., 0]
