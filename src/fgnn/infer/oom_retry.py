"""Retry a batch by halves when memory runs out."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fgnn.infer.solution import OnProgress
from fgnn.pgm import ModelBatch
from fgnn.runtime.resource_errors import out_of_memory

Result = TypeVar("Result")


def call_with_retry(
    method: Callable[..., Result],
    batch: ModelBatch,
    join: Callable[[Sequence[Result]], Result],
    *,
    time_limit: float | None,
    progress: OnProgress | None,
    **options: Any,
) -> Result:
    """Call the method on the batch; if memory runs out, on its halves, down to single models, and join the results.

    Options that hold a row per model are halved with the batch, see `select_rows`.

    Raises:
        RuntimeError or MemoryError: As raised by the method, if a single model does not fit.
    """
    begin = time.monotonic()
    try:
        return method(batch, time_limit=time_limit, progress=progress, **options)
    except (RuntimeError, MemoryError) as error:
        if len(batch) < 2 or out_of_memory(error) is None:
            raise
    # Outside the handler, whose traceback would keep the tensors of the failed attempt alive.
    gc.collect()
    if batch.device.type == "cuda":
        torch.cuda.empty_cache()
    # The assignment of a half is not one of the batch, so it is not reported.
    report = None if progress is None else lambda update: progress(replace(update, assignment=None))
    middle = len(batch) // 2
    results = []
    for rows in (slice(0, middle), slice(middle, len(batch))):
        results.append(
            call_with_retry(
                method,
                batch.select(rows),
                join,
                time_limit=None if time_limit is None else max(1e-3, time_limit - (time.monotonic() - begin)),
                progress=report,
                **{name: select_rows(value, rows) for name, value in options.items()},
            )
        )
    return join(results)


def select_rows(option: Any, rows: slice | Tensor) -> Any:
    """Select models in an option: tensors, alone or in a list, have a row per model; other values have none."""
    if isinstance(option, list):
        return [select_rows(item, rows) for item in option]
    return option[rows] if isinstance(option, Tensor) else option
