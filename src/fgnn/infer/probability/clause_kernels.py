"""Unit propagation and components of clauses over binary variables, compiled.

Literals are 2 v + s, which holds if variable v has state s. ``starts`` delimits the literals of each clause, and
``first`` the clauses of each literal. ``state`` is -1 for variables without a value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fgnn.runtime.jit import compiled


@compiled
def assign(
    literal: Any, state: Any, trail: Any, size: Any, literals: Any, starts: Any, first: Any, clauses: Any
) -> tuple[bool, int]:  # pragma: no cover (compiled)
    """Set a literal and what follows; returns whether no clause is violated, and the new length of the trail.

    The number of a violated clause is left behind the trail, -1 if the literal itself was false.
    """
    head = size
    if state[literal >> 1] >= 0:
        trail[size] = -1
        return state[literal >> 1] == (literal & 1), size
    state[literal >> 1] = literal & 1
    trail[size] = literal
    size += 1
    while head < size:
        false = trail[head] ^ 1
        head += 1
        for at in range(first[false], first[false + 1]):
            clause = clauses[at]
            unit, left, satisfied = -1, 0, False
            for place in range(starts[clause], starts[clause + 1]):
                other = literals[place]
                value = state[other >> 1]
                if value < 0:
                    unit = other
                    left += 1
                    if left > 1:
                        break
                elif value == (other & 1):
                    satisfied = True
                    break
            if satisfied or left > 1:
                continue
            if left == 0:
                trail[size] = clause
                return False, size
            state[unit >> 1] = unit & 1
            trail[size] = unit
            size += 1
    return True, size


@compiled
def retract(state: Any, trail: Any, size: Any, target: Any) -> None:  # pragma: no cover (compiled)
    """Unset the literals of the trail from ``target`` on."""
    for at in range(target, size):
        state[trail[at] >> 1] = -1


@compiled
def components(
    variables: Any, state: Any, literals: Any, starts: Any, first: Any, clauses: Any, seen: Any, mark: Any, stamp: Any
) -> tuple[Any, Any, Any, Any]:  # pragma: no cover (compiled)
    """Split the unset ones of some variables by the clauses that are not satisfied.

    ``seen`` (by variable) and ``mark`` (by clause) hold stamps of earlier calls. Returns the variables by component,
    the end of each, the clauses by component, and the end of each.
    """
    members, touched = np.empty(len(variables), np.int32), np.empty(len(mark), np.int32)
    ends, clause_ends = np.empty(len(variables), np.int64), np.empty(len(variables), np.int64)
    size, used, count = 0, 0, 0
    for v in variables:
        if state[v] >= 0 or seen[v] == stamp:
            continue
        head = size
        members[size] = v
        seen[v] = stamp
        size += 1
        while head < size:
            u = members[head]
            head += 1
            for literal in (2 * u, 2 * u + 1):
                for at in range(first[literal], first[literal + 1]):
                    clause = clauses[at]
                    if mark[clause] == stamp:
                        continue
                    mark[clause] = stamp
                    satisfied = False
                    for place in range(starts[clause], starts[clause + 1]):
                        other = literals[place]
                        if state[other >> 1] == (other & 1):
                            satisfied = True
                            break
                    if satisfied:
                        continue
                    touched[used] = clause
                    used += 1
                    for place in range(starts[clause], starts[clause + 1]):
                        w = literals[place] >> 1
                        if state[w] < 0 and seen[w] != stamp:
                            seen[w] = stamp
                            members[size] = w
                            size += 1
        ends[count], clause_ends[count] = size, used
        count += 1
    return members[:size], ends[:count], touched[:used], clause_ends[:count]


@compiled
def branch(
    members: Any, active: Any, state: Any, trail: Any, size: Any, literals: Any, starts: Any, first: Any, clauses: Any,
    prior: Any, score: Any, probes: Any,
) -> Any:  # pragma: no cover (compiled)  # fmt: skip
    """The literal to branch on, or one that is forced (returned as ~literal), -1 - 2**30 if neither value is possible.

    Candidates are the variables of the highest prior plus a count of their short clauses; each value of the best few
    is propagated.
    """
    for v in members:
        score[v] = prior[v]
    for clause in active:
        left = 0
        for place in range(starts[clause], starts[clause + 1]):
            left += 1 if state[literals[place] >> 1] < 0 else 0
        weight = 4.0 ** (2 - left) if left < 8 else 0.0002
        for place in range(starts[clause], starts[clause + 1]):
            v = literals[place] >> 1
            if state[v] < 0:
                score[v] += weight
    best, best_value = -1, -1.0
    for _ in range(min(probes, len(members))):
        v, top = -1, -1.0
        for u in members:
            if score[u] > top:
                v, top = u, score[u]
        if v < 0:
            break
        score[v] = -2.0
        gain = np.zeros(2)
        for s in range(2):
            fits, end = assign(2 * v + s, state, trail, size, literals, starts, first, clauses)
            gain[s] = end - size if fits else -1.0
            retract(state, trail, end, size)
        if gain[0] < 0 and gain[1] < 0:
            return -1 - (1 << 30)
        if gain[0] < 0 or gain[1] < 0:
            return ~(2 * v + (1 if gain[0] < 0 else 0))
        value = gain[0] * gain[1] + gain[0] + gain[1] + top
        if value > best_value:
            best, best_value = 2 * v + (1 if gain[1] > gain[0] else 0), value
    return best


@compiled
def sample_solutions(
    p: Any, order: Any, weight: Any, state: Any, trail: Any, size: Any, literals: Any, starts: Any, first: Any,
    clauses: Any, most: Any, rng: Any, found: Any, solutions: Any, hits: Any,
) -> int:  # pragma: no cover (compiled)  # fmt: skip
    """Draw solutions, at most ``len(found)``; returns how many.

    Each sets the variables in ``order`` to 1 with probability ``p``, propagates, and goes back where that fails; it is
    given up after ``most`` violated clauses. ``found`` gets the log of weight over probability, ``solutions`` the
    states, and ``hits`` how often a variable was in a violated clause.
    """
    n, count = len(state), 0
    chosen, begin, log_q = np.empty(n + 1, np.int64), np.empty(n + 1, np.int64), np.empty(n + 1)
    refuted, place = np.empty(n + 1, np.bool_), np.empty(n + 1, np.int64)
    for _ in range(len(found)):
        end, level, at, violated, alive = size, 0, 0, 0, True
        while alive:
            while at < n and state[order[at]] >= 0:
                at += 1
            if at == n:
                break
            v = order[at]
            s = 1 if rng.random() < p[v] else 0
            chosen[level], begin[level], place[level], refuted[level] = 2 * v + s, end, at, False
            log_q[level] = np.log(p[v] if s == 1 else 1.0 - p[v])
            level += 1
            fits, end = assign(2 * v + s, state, trail, end, literals, starts, first, clauses)
            while not fits:
                for c in range(starts[trail[end]], starts[trail[end] + 1]):
                    hits[literals[c] >> 1] += 1.0
                violated += 1
                # The other value of the last choice that has one: it is certain, now that this one is refuted.
                while level > 0 and refuted[level - 1]:
                    level -= 1
                if level == 0 or violated > most:
                    alive = False
                    break
                last = level - 1
                retract(state, trail, end, begin[last])
                at, refuted[last], log_q[last] = place[last], True, 0.0
                chosen[last] ^= 1
                fits, end = assign(chosen[last], state, trail, begin[last], literals, starts, first, clauses)
        if alive:
            solutions[count] = state
            found[count] = weight[trail[size:end]].sum()
            for last in range(level):  # choices whose alternatives fail at once are certain as well
                retract(state, trail, end, begin[last])
                if not refuted[last]:
                    fits, end = assign(chosen[last] ^ 1, state, trail, begin[last], literals, starts, first, clauses)
                    retract(state, trail, end, begin[last])
                    found[count] -= log_q[last] if fits else 0.0
                fits, end = assign(chosen[last], state, trail, begin[last], literals, starts, first, clauses)
            count += 1
        retract(state, trail, end, size)
    return count
