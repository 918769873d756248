"""`method="fgnn"`: a trained network scores the states, and decoding turns scores into a feasible assignment."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn

from fgnn.errors import InputError
from fgnn.infer import Answer, solve
from fgnn.infer.local_search.decode import decode as decode_scores
from fgnn.infer.local_search.refine import refine
from fgnn.infer.lowered import reads_structured
from fgnn.infer.solution import OnProgress
from fgnn.infer.threads import side_by_side, worth_threads
from fgnn.models.from_card import load_into
from fgnn.models.map.config import NetworkConfig
from fgnn.models.map.equivalent import mirrored
from fgnn.models.map.family import Family
from fgnn.models.map.network import MAPNetwork
from fgnn.pgm import ModelBatch
from fgnn.schema import Between, parse
from fgnn.weights import Card, load_weights, weight_names
from fgnn.weights.cards import read_card

# Edges and variables scored at once: as many as fit a CPU's cache or fill a GPU.
_ENTRIES, _ENTRIES_GPU = 1 << 15, 1 << 22


def load_network(place: str | Path, device: torch.device | str = "cpu") -> tuple[MAPNetwork, Card]:
    """A trained network in evaluation mode, and its card; by packaged name, weights file or run folder."""
    weights = load_weights(place)
    if weights.card.task != "map":
        raise InputError(f"Expected weights of a MAP network (got {weights.card.task or 'others'})", file=place)
    card = weights.card.part(MAPCard)
    return load_into(lambda: MAPNetwork(card.network, card.family), weights, device), weights.card


@dataclass(frozen=True)
class MAPCard:
    """What the card of a MAP network must say."""

    network: NetworkConfig
    family: Family


@lru_cache(maxsize=4)
def _network(place: str, device: str) -> MAPNetwork:
    return load_network(place, device)[0]


@reads_structured
def solve_fgnn(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    weights: str | Path | None = None,
    decode: bool = True,
    samples: Annotated[int, Between(0, 4096)] = 8,
    rounds: int | None = 0,
    both_ways: bool = False,
    search: bool = False,
) -> Answer:
    """Score the states with a trained network, then repair and improve its answer (`fgnn.infer.local_search.decode`).

    Args:
        batch: Models of the weights' family.
        time_limit: Seconds, after which decoding returns the best assignment so far.
        seed: Seeds the samples.
        progress: Receives the progress of ``search``; the network itself takes milliseconds.
        weights: A packaged name, a weights file or a run folder; by default the best packaged weights for the models.
        decode: False returns the argmax of the scores, which may be infeasible.
        samples: Further starting points drawn from the scores.
        rounds: Rounds of `fgnn.infer.local_search.refine` after decoding; None continues until the time limit.
        both_ways: Average the scores over the model and its mirror image, where the structure has one.
        search: Guide the method ``search`` by the scores, for the rest of the time limit, instead of decoding them.
    """
    start = time.perf_counter()
    place = str(weights) if weights is not None else choose_weights(batch)
    network = _network(place, str(batch.device))
    reason = network.family.refusal(batch)
    if reason is not None:
        raise ValueError(f"Expected models of the family of the weights {place!r}: {reason}")
    scores = score(network, batch, both_ways=both_ways)
    answer = scores.argmax(2)
    timed_out = False
    if search:
        left = _left(start, time_limit)
        found = solve(batch, "search", time_limit=left, seed=seed, progress=progress, starts=[answer], guide=scores)
        answer = found.assignment
    elif decode:
        answer = decode_scores(batch, scores, samples=samples, seed=seed, time_limit=_left(start, time_limit))
        if rounds != 0:
            left = _left(start, time_limit)
            answer = refine(batch, answer, scores, rounds=rounds, seed=seed, time_limit=left)
    timed_out = time_limit is not None and time.perf_counter() - start > time_limit
    return Answer.of(
        answer,
        timed_out=torch.full((len(batch),), timed_out, device=batch.device),
        info={"weights": place, "log_marginals": scores.log_softmax(-1)},
    )


def _left(start: float, limit: float | None) -> float | None:
    return None if limit is None else max(1e-3, limit - (time.perf_counter() - start))


@torch.no_grad()
def score(network: nn.Module, batch: ModelBatch, *, both_ways: bool = False) -> Tensor:
    """The network's scores (B, N, K), computed in slices to bound memory.

    With ``both_ways``, the mean over the models and their mirror images, which are equivalent: where the network treats
    them differently, its errors average out.
    """
    image = mirrored(batch) if both_ways else None
    if image is not None:
        return (score(network, batch) + score(network, image).flip(1)) / 2
    edges = sum(t.scopes.numel() for t in batch.tables) + sum(u.scopes.numel() for u in batch.budgets)
    entries = _ENTRIES if batch.device.type == "cpu" else _ENTRIES_GPU
    step = max(1, entries // max(1, edges + batch.num_variables))
    parts = [slice(at, at + step) for at in range(0, len(batch), step)]
    scores: dict[int, Tensor] = {}

    def work(which: Sequence[int]) -> None:
        with torch.no_grad():  # a setting of the thread
            for n in which:
                scores[n] = network(batch.select(parts[n]))

    compiled = any(getattr(m, "_compiled_call_impl", None) is not None for m in network.modules())
    if len(parts) < 2 or compiled or not worth_threads(len(batch), edges + batch.num_variables, batch.device):
        work(range(len(parts)))
    else:
        # One thread per slice: with all cores on each small operation, every operation waits for the slowest core.
        network(batch.select(slice(0, 1)))  # compile the structure once, not in every thread
        threads = min(torch.get_num_threads(), len(parts))
        side_by_side([partial(work, range(k, len(parts), threads)) for k in range(threads)], lambda: None)
    return torch.cat([scores[n] for n in range(len(parts))]) if parts else batch.unary.clone()


def choose_weights(batch: ModelBatch) -> str:
    """The packaged weights for the models of a batch: among those whose family they are of, the weights trained on the
    most similar models (by tables per variable, then by budgets and their sizes), then those with the best results."""
    reasons = []
    candidates: list[tuple[float, int, float, str]] = []
    density = Family.of(batch).density
    sizes = {int(u.scopes.shape[1]) for u in batch.budgets}
    for name in weight_names():
        card = read_card(name)
        if card.task != "map":
            continue
        family = parse(Family, card.get("family"), file=card.file, place="family")
        reason = family.refusal(batch)
        if reason is None:
            distance = round(abs(math.log((density + 0.1) / (family.density + 0.1))), 1)
            # the share of instances solved to optimality after decoding, over the data sets on the card
            shares = [float(result["decoded"]["optimal"]) for result in card.get("results", {}).values()]
            solved = statistics.fmean(shares or [0.0])
            unlike = bool(family.budgets) if not sizes else -len(sizes & set(family.budgets))
            candidates.append((distance, unlike, -solved, name))
        else:
            reasons.append(f"{name} expects {reason}")
    if not candidates:
        reason = f"; {reasons[0]}" if reasons else ""
        raise ValueError(
            f"Expected models of a family of the packaged weights (got another{reason}); "
            "train a network on your models with 'fgnn train FOLDER' and give its run folder as the option weights"
        )
    return min(candidates)[3]
