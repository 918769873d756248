"""Marginals of a Bayesian network given many evidences: one call of ours beside pgmpy and pyAgrum, one by one."""

from __future__ import annotations

import contextlib
import gzip
import io
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.bench.common import timed
from fgnn.infer import marginals, sample
from fgnn.pgm import GraphicalModel
from fgnn.pgm.io import read_model

# Marginals of all variables that are not observed, from the states of those that are.
Answer = Callable[[Mapping[int, int]], dict[int, NDArray[np.float64]]]

# A peer answers until it has answered so many or has taken so many seconds.
_QUERIES, _SECONDS = 20, 60.0
_OBSERVED = 0.1  # share of the variables


def evidence_ratios(
    network: Path, device: str, evidences: int, seed: int, expected: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """By peer, the time per evidence of both, their ratio and the largest difference of a probability.

    Each evidence observes a tenth of the variables in states drawn from the network. Ours is timed over all of them, a
    peer over the first few: its time for all is that many times longer.
    """
    model = read_model(network)
    queries = draw_evidence(model, evidences, seed)
    taken = timed(lambda: marginals(model, "exact", evidence=queries, device=device), repeats=2, device=device)
    rows: dict[str, dict[str, Any]] = {}
    for name, load in PEERS.items():
        title = f"marginals of {network.name.split('.')[0]}, per evidence : {name}"
        try:
            answer = load(network)
        except (ImportError, ValueError) as error:
            rows[title] = {"skipped": str(error).splitlines()[0]}
            continue
        seconds, difference = _ask(answer, queries, taken.result)
        rows[title] = {
            "ours_ms": 1000 * taken.median / evidences,
            "peer_ms": 1000 * float(np.mean(seconds)),
            "ratio": float(np.mean(seconds)) * evidences / taken.median,
            "expected": expected.get(name),
            "largest_difference": difference,
            "evidences": evidences,
            "peer_queries": len(seconds),
        }
    return rows


def draw_evidence(model: GraphicalModel, count: int, seed: int) -> NDArray[np.int64]:
    """States of a tenth of the variables, drawn from the model, and -1 elsewhere, (count, N)."""
    states = np.asarray(sample(model, count, seed=seed))
    return np.where(np.random.default_rng(seed).random(states.shape) < _OBSERVED, states, -1)


def _ask(answer: Answer, queries: NDArray[np.int64], ours: Any) -> tuple[list[float], float]:
    """Seconds of each query that the peer answered, and the largest difference to our answers."""
    seconds: list[float] = []
    difference = 0.0
    for q, row in enumerate(queries[:_QUERIES].tolist()):
        start = time.perf_counter()
        theirs = answer({i: s for i, s in enumerate(row) if s >= 0})
        seconds.append(time.perf_counter() - start)
        for i, p in theirs.items():
            difference = max(difference, float(np.abs(p - ours.variables[i][q].cpu().numpy()).max()))
        if sum(seconds) > _SECONDS:
            break
    return seconds, difference


def _text(network: Path) -> str:
    packed = network.read_bytes()
    return (gzip.decompress(packed) if network.suffix == ".gz" else packed).decode()


def pgmpy_answers(network: Path) -> Answer:
    """pgmpy's variable elimination, a query per variable: for all at once it builds their joint table."""
    logging.getLogger("pgmpy").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        from pgmpy.inference import VariableElimination
        from pgmpy.readwrite import BIFReader

        reader = BIFReader(string=_text(network))
        engine = VariableElimination(reader.get_model())
    names, states = reader.variable_names, reader.variable_states

    def answer(observed: Mapping[int, int]) -> dict[int, NDArray[np.float64]]:
        evidence = {names[i]: states[names[i]][s] for i, s in observed.items()}
        out = {}
        for i, name in enumerate(names):
            if i not in observed:
                with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings(action="ignore"):
                    factor = engine.query([name], evidence=evidence, show_progress=False)
                out[i] = factor.values[[factor.state_names[name].index(s) for s in states[name]]]
        return out

    return answer


def pyagrum_answers(network: Path) -> Answer:
    """pyAgrum's lazy propagation, all marginals of an evidence in one inference."""
    import pyagrum

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.bif"
        path.write_text(_text(network))
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                known = pyagrum.loadBN(str(path))
        except pyagrum.GumException as error:
            raise ValueError(f"pyAgrum cannot read {network.name}: {type(error).__name__}") from None
    engine = pyagrum.LazyPropagation(known)
    names = [known.variable(node).name() for node in sorted(known.nodes())]  # in the order of the file

    def answer(observed: Mapping[int, int]) -> dict[int, NDArray[np.float64]]:
        engine.eraseAllEvidence()
        for i, s in observed.items():
            engine.addEvidence(names[i], s)
        engine.makeInference()
        free = [i for i in range(len(names)) if i not in observed]
        return {i: np.array(engine.posterior(names[i]).tolist()) for i in free}

    return answer


PEERS: dict[str, Callable[[Path], Answer]] = {"pgmpy": pgmpy_answers, "pyAgrum": pyagrum_answers}
