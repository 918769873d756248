"""Observed variables: forbid every state but the observed one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.pgm import ModelBatch

Evidence = Mapping[int, int] | NDArray[np.int64] | Tensor | None


def with_evidence(batch: ModelBatch, evidence: Evidence) -> ModelBatch:
    """The batch given observations.

    Args:
        batch: Models of one structure.
        evidence: ``{variable: state}`` for all models, or a matrix (E, N) of states, -1 for what is not observed. A
            matrix has a row per model; for a batch of one model it may have any number of rows, and the result has
            that many models, which share their tables.
    """
    n = batch.num_variables
    if isinstance(evidence, Mapping):
        states = torch.full((1, n), -1, dtype=torch.int64)
        for variable, state in evidence.items():
            if not 0 <= int(variable) < n:
                raise ValueError(f"Expected a variable below {n} in the evidence (got {variable})")
            states[0, int(variable)] = int(state)
            if int(state) < 0:
                raise _bad_state(batch, int(variable), int(state))
        states = states.expand(len(batch), -1)
    else:
        states = _matrix(evidence, n)
    states = states.to(batch.device)
    cards = batch.cardinalities
    wrong = (states < -1) | (states >= cards)
    if bool(wrong.any()):
        row, variable = (int(v) for v in wrong.nonzero()[0])
        raise _bad_state(batch, variable, int(states[row, variable]))
    if len(batch) == 1 and len(states) != 1:
        batch = batch.repeat(len(states))
    if len(states) != len(batch):
        raise ValueError(f"Expected evidence for {len(batch)} models (got {len(states)} rows)")
    number = torch.arange(batch.unary.shape[2], device=batch.device)
    other = (states[..., None] >= 0) & (states[..., None] != number)  # shape: (B, N, K)
    return replace(batch, unary=batch.unary.masked_fill(other, -torch.inf))


def _matrix(evidence: Any, variables: int) -> Tensor:
    states = torch.as_tensor(evidence)
    if states.is_floating_point() or states.is_complex() or states.dtype == torch.bool:
        raise ValueError(f"Expected integer states in the evidence (got {states.dtype})")
    if states.dim() != 2 or states.shape[1] != variables:
        raise ValueError(f"Expected evidence of shape (E, {variables}) (got {tuple(states.shape)})")
    return states.long()


def _bad_state(batch: ModelBatch, variable: int, state: int) -> ValueError:
    most = int(batch.cardinalities[variable])
    return ValueError(f"Expected a state below {most} for variable {variable} in the evidence (got {state})")
