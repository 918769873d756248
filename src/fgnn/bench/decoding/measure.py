"""What is counted of a decoder: errors with their interval, speed, and agreement with another shot by shot."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.decoding import Code, ErrorRate, Problem, decode
from fgnn.errors import MissingExtra, need
from fgnn.runtime.progress import log_line

Answer = NDArray[Any]  # observables, or words


def peer(module: str) -> Any:
    """A peer's module, or None, with a line that says so, where it is not installed."""
    try:
        return need(module)
    except MissingExtra as error:
        log_line(f"left out: {error}")
        return None


@dataclass(frozen=True)
class Decoder:
    """Something that answers for shots ``a`` to ``b``.

    Attributes:
        answer: Their words or observables.
        at_once: Shots of a call; peers that decode one by one get one.
        like: The name of the decoder whose answers it is compared with.
    """

    answer: Callable[[int, int], Answer]
    at_once: int = 1
    like: str | None = None


def measure(decoders: dict[str, Decoder], truth: Answer, seconds: float) -> dict[str, Any]:
    """Let each decoder answer for ``seconds``, shot after shot, and count its errors."""
    rows: dict[str, Any] = {}
    answers: dict[str, Answer] = {}
    for name, decoder in decoders.items():
        decoder.answer(0, min(len(truth), 8))  # compiles
        parts, at, start, used = [], 0, time.perf_counter(), time.process_time()
        while at < len(truth) and time.perf_counter() - start < seconds:
            end = min(len(truth), at + decoder.at_once)
            parts.append(decoder.answer(at, end))
            at = end
        elapsed, used = time.perf_counter() - start, time.process_time() - used
        answers[name] = np.concatenate(parts)
        # of one thread, and the same on a machine that is busy otherwise
        rows[name] = row(answers[name], truth, elapsed) | {"shots per CPU second": at / max(used, 1e-9)}
        if decoder.like in answers:
            rows[name]["shot by shot"] = compare(answers[name], answers[decoder.like], truth)
    return rows


def row(answer: Answer, truth: Answer, seconds: float) -> dict[str, Any]:
    """Error rates, that of words with its 95 % interval, and speed."""
    wrong = answer != truth[: len(answer)]
    rate = ErrorRate(len(answer), int(wrong.any(1).sum()), int(wrong.sum()), truth.shape[1], seconds=seconds)
    return {
        **asdict(rate), "rate": rate.rate, "interval": list(rate.interval()), "bit rate": rate.bit_rate,
        "shots per second": len(answer) / seconds,
        "first shots": {str(n): float(wrong[:n].any(1).mean()) for n in (100, 1000, 10_000) if n < len(answer)},
    }  # fmt: skip


def compare(theirs: Answer, ours: Answer, truth: Answer) -> dict[str, Any]:
    """How two decoders do on the shots that both saw."""
    n = min(len(theirs), len(ours))
    bad, own = ((x[:n] != truth[:n]).any(1) for x in (theirs, ours))
    return {
        "shots": n, "same answer": float((theirs[:n] == ours[:n]).all(1).mean()), "both wrong": int((bad & own).sum()),
        "only ours wrong": int((own & ~bad).sum()), "only theirs wrong": int((bad & ~own).sum()),
    }  # fmt: skip


# Shots of a call on a CPU and on a GPU, by method: enough to fill the machine, few enough to stop in time.
_AT_ONCE = {"relay": (256, 1 << 18), "osd": (256, 256), "fgnn": (256, 1 << 14)}


def ours(problem: Code | Problem, received: Answer, device: str, at_once: int | None = None, **options: Any) -> Decoder:
    """A method of ours."""

    def answer(a: int, b: int) -> Answer:
        found = decode(problem, received[a:b], device=device, keep_words=isinstance(problem, Code), **options)
        return found.words if found.observables is None else found.observables

    usual = _AT_ONCE.get(options["method"], (2048, 1 << 18))
    return Decoder(answer, at_once or usual[device != "cpu"])


def one_by_one(decode_one: Callable[[int], Answer], like: str) -> Decoder:
    """A peer that decodes a shot at a time."""
    return Decoder(lambda a, b: np.array([decode_one(k) for k in range(a, b)]), 1, like)
