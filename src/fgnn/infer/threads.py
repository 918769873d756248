"""Parts of a CPU's work side by side, each on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

# Rows of messages, over all of its models, below which a thread of their own is not worth starting.
_FEWEST = 16_384


def shares(models: int, rows: int, device: torch.device) -> list[slice]:
    """The models of each thread, ``rows`` messages each: on a CPU about as many for every core, else all together."""
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    parts = max(1, min(threads, models, models * rows // _FEWEST))
    return [slice(a, b) for a, b in pairwise([models * i // parts for i in range(parts + 1)])]


def worth_threads(models: int, rows: int, device: torch.device) -> bool:
    """Whether `side_by_side` is the quicker way, be it for one share; one model alone has all cores work on it."""
    return device.type == "cpu" and models > 1 and models * rows >= _FEWEST


def side_by_side(jobs: Sequence[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run all jobs, each on one core; ``stop`` asks them to end when one of them, or the wait for them, breaks off.

    Two halves of a batch on two cores are quicker than every operation on both: nothing waits after each, and what a
    core works on stays in its cache. Tiny numbers count as zero on these threads: a damped message that fades away
    halves itself down through them, at a hundred times the cost of others.
    """
    threads = torch.get_num_threads()
    inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()  # each thread's own, as its threads
    broken: list[BaseException] = []

    def work(job: Callable[[], None]) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)  # of this thread, which ends with its job
        try:
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                job()
        except BaseException as error:
            broken.append(error)
            stop()

    crew = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs]
    try:
        for one in crew:
            one.start()
        for one in crew:
            one.join()
    except BaseException:
        stop()
        for one in crew:
            if one.ident is not None:
                one.join()
        raise
    finally:
        torch.set_num_threads(threads)  # what the next new thread begins with
    if broken:
        raise broken[0]
