"""Damped max-product by PGMax, vectorised over models: an optional peer."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fgnn.pgm import ModelBatch


def pgmax_max_product(batch: ModelBatch, iterations: int = 200, damping: float = 0.5) -> tuple[Tensor, float]:
    """Assignments (B, N) after ``iterations`` iterations, and the seconds of a compiled call.

    In PGMax a budget is a factor that lists its allowed configurations. All models share them, so the bounds must be
    the same in all models.
    """
    import jax
    from pgmax import infer

    bp, arguments = _graph(batch)

    def one(evidence: Any, potentials: Any) -> Any:
        state = bp.init(evidence_updates=evidence, log_potentials_updates=potentials)
        state = bp.run(state, num_iters=iterations, damping=damping, temperature=0.0)
        return infer.decode_map_states(bp.get_beliefs(state))

    run: Callable[..., Any] = jax.jit(jax.vmap(one))
    jax.block_until_ready(run(*arguments))
    start = time.perf_counter()
    decoded = jax.block_until_ready(run(*arguments))
    seconds = time.perf_counter() - start
    (states,) = decoded.values()
    return torch.from_numpy(np.array(states)).long(), seconds


def _graph(batch: ModelBatch) -> tuple[Any, tuple[Any, Any]]:
    """The inferer of one structure, and the inputs per model: evidence and the tables of pairs."""
    from pgmax import fgraph, fgroup, infer, vgroup

    if batch.unary.shape[2] != 2 or len(batch.tables) != 1 or batch.tables[0].shape != (2, 2):
        raise ValueError(f"Expected binary variables, one group of pairs and budgets (got {batch!r})")
    host = batch.to("cpu", torch.float32)
    variables = vgroup.NDVarArray(num_states=2, shape=(host.num_variables,))
    graph = fgraph.FactorGraph(variable_groups=[variables])
    table = host.tables[0]
    pairs = fgroup.PairwiseFactorGroup(
        variables_for_factors=[[variables[int(i)] for i in scope] for scope in table.scopes],
        log_potential_matrix=np.zeros((len(table.scopes), 2, 2)),
    )
    graph.add_factors(pairs)
    for u in host.budgets:
        low, high = int(u.at_least[0, 0]), int(u.at_most[0, 0])
        if bool((u.at_least != low).any() | (u.at_most != high).any()):
            raise ValueError("Expected the same bounds in all budgets (got different ones)")
        allowed = [states for states in product((0, 1), repeat=u.scopes.shape[1]) if low <= sum(states) <= high]
        graph.add_factors(
            fgroup.EnumFactorGroup(
                variables_for_factors=[[variables[int(i)] for i in scope] for scope in u.scopes],
                factor_configs=np.array(allowed),
            )
        )
    bp = infer.build_inferer(graph.bp_state, backend="bp")
    return bp, ({variables: host.unary.numpy()}, {pairs: table.values.numpy()})
