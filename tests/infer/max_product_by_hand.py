"""Max-product for one model, one message at a time, in plain Python: slow, obvious, and shared with nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np

from fgnn import GraphicalModel

Message = list[float]


class ByHand:
    """Messages as a dict from (factor, variable) to a list over states.

    Factors are numbered as a batch lists them: tables group by group, then budgets group by group.
    """

    def __init__(self, model: GraphicalModel, *, paper: bool = False, normalise: bool = True) -> None:
        self.model, self.paper, self.normalise = model, paper, normalise
        self.cards = [int(k) for k in model.cardinalities]
        self.factors: list[tuple[tuple[int, ...], np.ndarray | tuple[int, int]]] = []
        for group in model.table_groups:
            self.factors += [(tuple(s), v) for s, v in zip(group.scopes.tolist(), group.values, strict=True)]
        for budgets in model.budget_groups:
            rows = zip(budgets.scopes.tolist(), budgets.at_least.tolist(), budgets.at_most.tolist(), strict=True)
            self.factors += [(tuple(s), (low, high)) for s, low, high in rows]
        self.messages: dict[tuple[int, int], Message] = {
            (c, i): [0.0] * self.cards[i] for c, (scope, _) in enumerate(self.factors) for i in scope
        }

    def theta(self, c: int, x: tuple[int, ...]) -> float:
        values = self.factors[c][1]
        if isinstance(values, tuple):
            return 0.0 if values[0] <= sum(x) <= values[1] else -math.inf
        return float(values[x])

    def belief(self, i: int, without: int | None = None) -> Message:
        total = [float(v) for v in self.model.unary(i)]
        for (c, j), message in self.messages.items():
            if j == i and c != without:
                total = [t + m for t, m in zip(total, message, strict=True)]
        return total

    def update(self, c: int) -> dict[int, Message]:
        """What factor c would send now to each of its variables."""
        scope = self.factors[c][0]
        nu = {i: self.belief(i, None if self.paper else c) for i in scope}
        sent = {i: [-math.inf] * self.cards[i] for i in scope}
        for x in itertools.product(*(range(self.cards[i]) for i in scope)):
            for a, i in enumerate(scope):
                value = self.theta(c, x)
                for b, j in enumerate(scope):
                    if b != a:
                        value += nu[j][x[b]]
                sent[i][x[a]] = max(sent[i][x[a]], value)
        return {i: normalised(m) if self.normalise else m for i, m in sent.items()}

    def span(self, c: int, update: dict[int, Message]) -> float:
        worst = 0.0
        for i, new in update.items():
            old = self.messages[c, i]
            if any(n == -math.inf < o for n, o in zip(new, old, strict=True)):
                return math.inf
            moves = [n - o for n, o in zip(new, old, strict=True) if n > -math.inf]
            if moves:
                worst = max(worst, max(moves) - min(moves))
        return worst

    def accept(self, c: int, update: dict[int, Message], damping: float) -> None:
        for i, new in update.items():
            old = self.messages[c, i]
            self.messages[c, i] = [
                -math.inf if n == -math.inf else damping * o + (1 - damping) * n for n, o in zip(new, old, strict=True)
            ]

    # ---- schedules: each returns the change -----------------------------------------------------------------

    def flooding(self, damping: float) -> float:
        updates = [self.update(c) for c in range(len(self.factors))]
        change = max(self.span(c, u) for c, u in enumerate(updates))
        for c, u in enumerate(updates):
            self.accept(c, u, damping)
        return change

    def sequential(self, damping: float, order: list[int]) -> float:
        change = 0.0
        for c in order:
            update = self.update(c)
            change = max(change, self.span(c, update))
            self.accept(c, update, damping)
        return change

    def residual(self, damping: float) -> float:
        touching = [[c for c, (scope, _) in enumerate(self.factors) if i in scope] for i in range(len(self.cards))]
        change = 0.0
        for _ in range(max(len(t) for t in touching)):
            updates = [self.update(c) for c in range(len(self.factors))]
            spans = [self.span(c, u) for c, u in enumerate(updates)]
            change = max(spans)
            for c, (scope, _) in enumerate(self.factors):
                if all(spans[c] >= spans[d] * (1 - 1e-5) for i in scope for d in touching[i]):
                    self.accept(c, updates[c], damping)
        return change

    def beliefs(self) -> list[Message]:
        found = [self.belief(i) for i in range(len(self.cards))]
        return [normalised(b) for b in found] if self.normalise else found


def normalised(message: Message) -> Message:
    best = max(message)
    return message if best == -math.inf else [m - best for m in message]
