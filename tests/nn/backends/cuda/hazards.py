"""Registers that Hopper's matrix units still use when another instruction touches them, in machine code (SASS).

A product (HGMMA) runs while later instructions do. Until ``WARPGROUP.DEPBAR`` has waited for its group, its sums may be
neither read nor written, and its operands in registers may not be written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_REGISTER = re.compile(r"\bR(\d+)(?:\.(64))?\b")
_SUMS, _OPERANDS = 32, 4  # registers of a product with 64 columns in single precision, and of 16 terms in half
_WITHOUT_RESULT = ("ST", "RED", "BAR", "BRA", "EXIT", "WARP", "MEMBAR", "ISETP", "FSETP", "LDGSTS", "FENCE", "R2UR")
_MOST = 8  # groups that are told apart


@dataclass(frozen=True)
class Instruction:
    """One line of machine code."""

    at: int
    guarded: bool
    name: str
    operands: str

    @property
    def registers(self) -> list[int]:
        """All that it names."""
        return [int(x) + k for x, wide in _REGISTER.findall(self.operands) for k in range(2 if wide else 1)]

    @property
    def written(self) -> range:
        """Those of its result."""
        found = re.match(r"R(\d+)\b", self.operands)
        if found is None or self.name.startswith(_WITHOUT_RESULT):
            return range(0)
        count = 4 if ".128" in self.name else 2 if ".64" in self.name or ".WIDE" in self.name else 1
        return range(int(found[1]), int(found[1]) + count)


class _Group(NamedTuple):
    """First registers of the sums and of the operands of products that are waited for together."""

    sums: frozenset[int] = frozenset()
    operands: frozenset[int] = frozenset()


def instructions(text: str) -> list[Instruction]:
    """All lines of a disassembly."""
    return [Instruction(int(at, 16), bool(guard), name, rest) for at, guard, name, rest in _LINE.findall(text)]


def hazards(text: str) -> list[str]:
    """What touches registers of products that may still run, along every path."""
    code = instructions(text)
    place = {x.at: k for k, x in enumerate(code)}
    found: dict[int, str] = {}
    start: tuple[_Group, ...] = (_Group(),)  # groups that may run; the last one is not closed yet
    todo, seen = [(0, start)], set[tuple[int, tuple[_Group, ...]]]()
    while todo:
        state = todo.pop()
        if state in seen or state[0] == len(code):
            continue
        seen.add(state)
        k, groups = state
        x = code[k]
        if x.name.startswith("HGMMA"):
            sums, operand = x.registers[:2]
            if any(set(range(operand, operand + _OPERANDS)) & _spread(g.sums, _SUMS) for g in groups):
                found[x.at] = f"{x.at:x}: an operand of {x.operands} is still being added"
            last = _Group(groups[-1].sums | {sums}, groups[-1].operands | {operand})
            groups = (*groups[:-1], last, _Group()) if "gsb0" in x.operands else (*groups[:-1], last)
            if len(groups) > _MOST:  # a loop that waits for nothing
                first, second, *rest = groups
                groups = (_Group(first.sums | second.sums, first.operands | second.operands), *rest)
        elif x.name.startswith("WARPGROUP.DEPBAR"):
            running = int(x.operands.split("0x")[-1], 16)
            groups = groups[max(0, len(groups) - 1 - running) :]
        else:
            touched, written = {*x.registers, *x.written}, set(x.written)
            for g in groups:
                if touched & _spread(g.sums, _SUMS) or written & _spread(g.operands, _OPERANDS):
                    found[x.at] = f"{x.at:x}: {x.name} {x.operands}"
        target = re.search(r"0x([0-9a-f]+)$", x.operands) if x.name.startswith("BRA") else None
        if target is not None:
            todo.append((place[int(target[1], 16)], groups))
        if x.guarded or not x.name.startswith(("BRA", "EXIT")):
            todo.append((k + 1, groups))
    return [found[at] for at in sorted(found)]


def _spread(first: frozenset[int], count: int) -> set[int]:
    return {r + k for r in first for k in range(count)}
