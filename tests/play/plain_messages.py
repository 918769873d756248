"""Max-product one iteration at a time, in plain Python: the witness for the messages of the page."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fgnn.pgm import Budget, GraphicalModel, Table
from fgnn.pgm.factors.ones import ones_messages
from fgnn.pgm.factors.tables import table_messages

Edge = tuple[int, int]  # (factor, position in its scope)


def max_product_steps(model: GraphicalModel, iterations: int, damping: float = 0.0) -> list[dict[str, Any]]:
    """Flooding max-product on a small model: all messages, beliefs and the argmax after each iteration.

    Entry 0 is the state before the first iteration.
    """
    factors: list[Table | Budget] = [*model.tables(), *model.budgets()]
    unary = [torch.tensor(model.unary(i).copy()) for i in range(model.num_variables)]
    variable_of = {(c, a): i for c, factor in enumerate(factors) for a, i in enumerate(factor.scope)}
    incident: list[list[Edge]] = [[] for _ in unary]
    for edge, i in variable_of.items():
        incident[i].append(edge)
    messages = {edge: torch.zeros_like(unary[i]) for edge, i in variable_of.items()}
    history = [_record(model, unary, incident, messages, {})]
    for _ in range(iterations):
        to_factor = {
            edge: sum((messages[e] for e in incident[i] if e != edge), unary[i]) for edge, i in variable_of.items()
        }
        update: dict[Edge, Tensor] = {}
        for c, factor in enumerate(factors):
            incoming = [to_factor[c, a] for a in range(len(factor.scope))]
            for a, message in enumerate(_factor_messages(factor, incoming)):
                best = message.max()
                message = message - best if best > -torch.inf else message
                mixed = damping * messages[c, a].nan_to_num(neginf=0.0) + (1 - damping) * message
                update[c, a] = torch.where(message.isinf(), message, mixed)
        history.append(_record(model, unary, incident, update, to_factor, messages))
        messages = update
    return history


def _factor_messages(factor: Table | Budget, incoming: list[Tensor]) -> list[Tensor]:
    if isinstance(factor, Budget):
        nu = torch.stack(incoming)[:, :, None, None]  # shape: (n, 2, 1, 1)
        return list(ones_messages(nu, factor.at_least, factor.at_most)[..., 0, 0])
    theta = torch.as_tensor(factor.values.copy())[..., None, None]
    return [m[:, 0, 0] for m in table_messages(theta, [nu[:, None, None] for nu in incoming], full=True)]


def _record(
    model: GraphicalModel,
    unary: list[Tensor],
    incident: list[list[Edge]],
    messages: dict[Edge, Tensor],
    to_factor: dict[Edge, Tensor],
    before: dict[Edge, Tensor] | None = None,
) -> dict[str, Any]:
    """One iteration as JSON values."""
    beliefs = [sum((messages[e] for e in edges), theta) for theta, edges in zip(unary, incident, strict=True)]
    assignment = [int(b.argmax()) for b in beliefs]
    change = 0.0
    for edge, old in (before or {}).items():
        difference = (messages[edge] - old).nan_to_num(nan=0.0, posinf=1e9, neginf=1e9)
        change = max(change, float(difference.abs().max()))
    return {
        "beliefs": [b.tolist() for b in beliefs],
        "to_variable": _as_json(messages),
        "to_factor": _as_json(to_factor),
        "assignment": assignment,
        "score": model.score(assignment),
        "change": change,
    }


def _as_json(messages: dict[Edge, Tensor]) -> list[dict[str, Any]]:
    return [{"factor": c, "place": a, "values": m.tolist()} for (c, a), m in messages.items()]
