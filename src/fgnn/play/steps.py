"""Belief propagation one iteration at a time, with every message kept for the eye."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fgnn.infer.max_product.messages import budget_messages, table_messages
from fgnn.pgm import Budget, GraphicalModel, Table

Edge = tuple[int, int]  # (factor, place in its scope)


def max_product_steps(model: GraphicalModel, iterations: int, damping: float = 0.0) -> list[dict[str, Any]]:
    """Flooding max-product on a small model: after each iteration all messages, beliefs and the argmax.

    Entry 0 is the state before the first iteration.
    """
    factors: list[Table | Budget] = [*model.tables(), *model.budgets()]
    unary = [torch.tensor(model.unary(i).copy()) for i in range(model.num_variables)]
    sent: dict[Edge, Tensor] = {
        (c, a): torch.zeros(int(model.cardinalities[i])) for c, f in enumerate(factors) for a, i in enumerate(f.scope)
    }
    sent = {edge: m.double() for edge, m in sent.items()}
    incident: list[list[Edge]] = [[] for _ in unary]
    for c, factor in enumerate(factors):
        for a, i in enumerate(factor.scope):
            incident[i].append((c, a))
    history = [_record(model, unary, incident, sent, {})]
    for _ in range(iterations):
        towards = {
            (c, a): _total(unary[i], [sent[e] for e in incident[i] if e != (c, a)])
            for c, factor in enumerate(factors)
            for a, i in enumerate(factor.scope)
        }
        fresh: dict[Edge, Tensor] = {}
        for c, factor in enumerate(factors):
            incoming = [towards[c, a] for a in range(len(factor.scope))]
            for a, message in enumerate(_factor_messages(factor, incoming)):
                best = message.max()
                message = message - best if best > -torch.inf else message
                old = sent[c, a]
                mixed = torch.where(
                    message.isinf(), message, damping * old.nan_to_num(neginf=0.0) + (1 - damping) * message
                )
                fresh[c, a] = mixed
        history.append(_record(model, unary, incident, fresh, towards, sent))
        sent = fresh
    return history


def _factor_messages(factor: Table | Budget, incoming: list[Tensor]) -> list[Tensor]:
    if isinstance(factor, Budget):
        nu = torch.stack(incoming)[:, :, None, None]  # shape: (n, 2, 1, 1)
        return list(budget_messages(nu, factor.at_least, factor.at_most)[..., 0, 0])
    theta = torch.as_tensor(factor.values.copy())[..., None, None]
    return [m[:, 0, 0] for m in table_messages(theta, [nu[:, None, None] for nu in incoming], full=True)]


def _total(start: Tensor, messages: list[Tensor]) -> Tensor:
    total = start.clone()
    for message in messages:
        total = total + message
    return total


def _record(
    model: GraphicalModel,
    unary: list[Tensor],
    incident: list[list[Edge]],
    sent: dict[Edge, Tensor],
    towards: dict[Edge, Tensor],
    before: dict[Edge, Tensor] | None = None,
) -> dict[str, Any]:
    beliefs = [_total(unary[i], [sent[e] for e in incident[i]]) for i in range(len(unary))]
    assignment = [int(b.argmax()) for b in beliefs]
    changes = [
        float((m - before[e]).nan_to_num(nan=0.0, posinf=1e9, neginf=1e9).abs().max()) for e, m in sent.items()
    ] if before else []  # fmt: skip
    return {
        "beliefs": [b.tolist() for b in beliefs],
        "to_variable": [{"factor": c, "place": a, "values": m.tolist()} for (c, a), m in sent.items()],
        "to_factor": [{"factor": c, "place": a, "values": m.tolist()} for (c, a), m in towards.items()],
        "assignment": assignment,
        "score": model.score(assignment),
        "change": max(changes, default=0.0),
    }
