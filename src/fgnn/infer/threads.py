"""Divide the models of a batch among CPU threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

# A thread must have at least this many rows of messages, over all of its models, to be worth starting.
_FEWEST = 16_384


def shares(models: int, rows: int, device: torch.device) -> list[slice]:
    """The models of each thread, at ``rows`` messages per model: on a CPU an equal share per core, else one share."""
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    parts = max(1, min(threads, models, models * rows // _FEWEST))
    return [slice(a, b) for a, b in pairwise([models * i // parts for i in range(parts + 1)])]


def worth_threads(models: int, rows: int, device: torch.device) -> bool:
    """Whether `side_by_side` is faster, even for one share; a single model uses all cores within each operation."""
    return device.type == "cpu" and models > 1 and models * rows >= _FEWEST


def side_by_side(jobs: Sequence[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run all jobs, each on one core; if one of them or the wait for them fails, ``stop`` asks the others to end.

    Two halves of a batch on two cores are faster than every operation on both: there is no synchronisation after each,
    and a core's data stay in its cache. The threads flush denormal numbers to zero: a vanishing damped message passes
    through many of them, and each costs a hundred times as much as a normal number.
    """
    threads = torch.get_num_threads()
    inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()  # per thread
    errors: list[BaseException] = []

    def work(job: Callable[[], None]) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)  # per thread
        try:
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                job()
        except BaseException as error:
            errors.append(error)
            stop()

    workers = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    except BaseException:
        stop()
        for worker in workers:
            if worker.ident is not None:
                worker.join()
        raise
    finally:
        torch.set_num_threads(threads)  # the default of new threads
    if errors:
        raise errors[0]
