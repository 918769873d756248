"""`method="fgnn"`: a trained network's ranking, decoded."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.errors import InputError
from fgnn.infer.local_search.decode import decode as decode_scores
from fgnn.infer.local_search.refine import refine
from fgnn.infer.solution import Answer, OnProgress
from fgnn.infer.threads import side_by_side, worth_threads
from fgnn.models.map.config import NetworkConfig
from fgnn.models.map.family import Family
from fgnn.models.map.mirror import mirrored
from fgnn.models.map.network import MAPNetwork
from fgnn.pgm import ModelBatch
from fgnn.weights import load_weights, weight_names
from fgnn.weights.cards import read_card

# Models are scored in slices of about this many edges: what fits a CPU's cache, or fills a GPU.
_ENTRIES, _ENTRIES_GPU = 1 << 15, 1 << 22


def load_network(place: str | Path, device: torch.device | str = "cpu") -> tuple[MAPNetwork, Mapping[str, Any]]:
    """A trained network, ready to score models, and its card; by packaged name, weights file or run folder."""
    weights = load_weights(place)
    if weights.card.get("task") != "map":
        raise InputError(f"Expected weights of a MAP network (got {weights.card.get('task', 'others')})", file=place)
    network = MAPNetwork(NetworkConfig(**weights.card["network"]), family_of(weights.card))
    try:
        network.load_state_dict(dict(weights.tensors))
    except RuntimeError as error:
        raise InputError("Expected the tensors that the card names (got others)", file=place) from error
    return network.to(device).eval(), weights.card


def family_of(card: Mapping[str, Any]) -> Family:
    """The family a card names."""
    values: dict[str, Any] = {k: _tuples(v) for k, v in card["family"].items()}
    return Family(**values)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@lru_cache(maxsize=4)
def _network(place: str, device: str) -> MAPNetwork:
    return load_network(place, device)[0]


def solve_fgnn(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    weights: str | Path | None = None,
    decode: bool = True,
    samples: int = 8,
    rounds: int | None = 0,
    both_ways: bool = False,
) -> Answer:
    """Score the states with a trained network, then repair and improve its answer (`fgnn.infer.local_search.decode`).

    Args:
        batch: Models of a family that the weights know.
        time_limit: Seconds; decoding stops then with the best so far.
        seed: Seeds the samples.
        progress: Not called: the whole takes milliseconds per model.
        weights: A packaged name, a weights file or a run's folder; by default the package's best for the models.
        decode: False returns the network's argmax as it is, feasible or not.
        samples: Further starting points drawn from the network's scores.
        rounds: Of `fgnn.infer.local_search.refine` after decoding; None goes on until the time limit.
        both_ways: Average the network's scores over the model and its mirror image, where the structure is its own.
    """
    start = time.perf_counter()
    place = str(weights) if weights is not None else choose_weights(batch)
    network = _network(place, str(batch.device))
    reason = network.family.refusal(batch)
    if reason is not None:
        raise ValueError(f"Expected models that the weights {place!r} know: {reason}")
    scores = score(network, batch, both_ways=both_ways)
    answer = scores.argmax(2)
    timed_out = False
    if decode:
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
    """The network's scores (B, N, K), in slices that bound memory; ``both_ways``: the mean of those of the models and
    of their mirror images, which mean the same, so that what the network does differently on the two cancels."""
    image = mirrored(batch) if both_ways else None
    if image is not None:
        return (score(network, batch) + score(network, image).flip(1)) / 2
    edges = sum(t.scopes.numel() for t in batch.tables) + sum(u.scopes.numel() for u in batch.budgets)
    entries = _ENTRIES if batch.device.type == "cpu" else _ENTRIES_GPU
    step = max(1, entries // max(1, edges + batch.num_variables))
    parts = [slice(at, at + step) for at in range(0, len(batch), step)]
    found: list[Tensor | None] = [None] * len(parts)

    def work(which: Sequence[int]) -> None:
        with torch.no_grad():  # which is each thread's own
            for n in which:
                found[n] = network(batch.select(parts[n]))

    compiled = any(getattr(m, "_compiled_call_impl", None) is not None for m in network.modules())
    if len(parts) < 2 or compiled or not worth_threads(len(batch), edges + batch.num_variables, batch.device):
        work(range(len(parts)))
    else:
        # slices side by side: every operation on all cores at once waits for the slowest of them, thousands of times
        with torch.no_grad():
            network(batch.select(slice(0, 1)))  # the structure is read once, by one
        crew = range(min(torch.get_num_threads(), len(parts)))
        side_by_side([partial(work, range(k, len(parts), len(crew))) for k in crew], lambda: None)
    scores = [scored for scored in found if scored is not None]
    return torch.cat(scores) if scores else batch.unary.clone()


def _measured(card: Mapping[str, Any]) -> float:
    """The share of instances solved to the optimum after decoding, as the card has it, over the kinds tested."""
    shares = [float(result["decoded"]["optimal"]) for result in card.get("results", {}).values()]
    return sum(shares) / len(shares) if shares else 0.0


def choose_weights(batch: ModelBatch) -> str:
    """The package's weights for a batch's models: of those that know them, trained on the likest (as many tables per
    variable, budgets of the same sizes), the best measured."""
    reasons = []
    known: list[tuple[float, int, float, str]] = []
    density = Family.of(batch).density
    sizes = {int(u.scopes.shape[1]) for u in batch.budgets}
    for name in weight_names():
        card = read_card(name)
        if card.get("task") != "map":
            continue
        family = family_of(card)
        reason = family.refusal(batch)
        if reason is None:
            apart = round(abs(math.log((density + 0.1) / (family.density + 0.1))), 1)
            known.append((apart, -len(sizes & set(family.budgets)), -_measured(card), name))
        else:
            reasons.append(f"{name} expects {reason}")
    if not known:
        told = "".join(f"; {reason}" for reason in reasons[:1])
        raise ValueError(
            f"Expected models of a family that the package's weights know (got another{told}); "
            "train a network on yours with 'fgnn train FOLDER' and name its run by the option weights"
        )
    return min(known)[3]
