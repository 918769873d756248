"""A batch that does not fit the memory, solved in halves."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fgnn.infer.solution import Answer, OnProgress, Progress
from fgnn.pgm import ModelBatch
from fgnn.runtime.resource_errors import out_of_memory

_FIELDS = ("bound", "proved", "converged", "iterations", "timed_out")


def solve_in_halves(
    solver: Callable[..., Answer],
    batch: ModelBatch,
    *,
    time_limit: float | None,
    progress: OnProgress | None,
    **options: Any,
) -> Answer:
    """Give the batch to a solver, and each half of it where the memory does not suffice, down to single models.

    Raises:
        RuntimeError: torch's own, where one model alone is too much.
    """
    begin = time.monotonic()
    try:
        return solver(batch, time_limit=time_limit, progress=progress, **options)
    except (RuntimeError, MemoryError) as error:
        if len(batch) < 2 or out_of_memory(error) is None:
            raise
    # outside the handler, whose traceback would keep the failed attempt's tensors alive
    gc.collect()
    if batch.device.type == "cuda":
        torch.cuda.empty_cache()
    middle = len(batch) // 2
    parts = []
    for part in (slice(0, middle), slice(middle, len(batch))):
        left = None if time_limit is None else max(1e-3, time_limit - (time.monotonic() - begin))
        tell = None if progress is None else _without_assignment(progress)
        parts.append(solve_in_halves(solver, batch.select(part), time_limit=left, progress=tell, **options))
    return join_answers(parts)


def join_answers(parts: Sequence[Answer]) -> Answer:
    """The answers of consecutive parts of a batch as one."""
    known = {name: torch.cat([getattr(part, name) for part in parts]) for name in _FIELDS}
    methods = list(dict.fromkeys(part.method for part in parts))
    info = {key: _joined([part.info for part in parts], key, parts) for key in parts[0].info}
    return Answer.of(torch.cat([part.assignment for part in parts]), **known, method="+".join(methods), info=info)


def _joined(infos: Sequence[Mapping[str, Any]], key: str, parts: Sequence[Answer]) -> Any:
    """What is told for each model is put together; of anything else there is one for each part, or one for all."""
    values = [info.get(key) for info in infos]
    tensors = [v for v in values if isinstance(v, Tensor) and v.dim()]
    if len(tensors) == len(parts) and all(len(v) == len(p.bound) for v, p in zip(tensors, parts, strict=True)):
        if tensors[0].dim() == 2:  # as many columns as the longest part had iterations
            widest = max(v.shape[1] for v in tensors)
            tensors = [torch.nn.functional.pad(v, (0, widest - v.shape[1])) for v in tensors]
        return torch.cat(tensors)
    return values[0] if all(type(v) is type(values[0]) and v == values[0] for v in values) else values


def _without_assignment(progress: OnProgress) -> OnProgress:
    """News of a part: its assignment is not one of the batch."""

    def tell(news: Progress) -> None:
        progress(replace(news, assignment=None))

    return tell
