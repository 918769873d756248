"""Networks as HTML tables, for notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from fgnn.drawing.fragment import grid

_MOST_ROWS = 40


def count_parameters(module: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def module_html(module: nn.Module) -> str:
    """The parts of a module with their parameters; equal neighbours in a list share a row."""
    rows = list(_rows(module, depth=0))
    note = f"and {len(rows) - _MOST_ROWS:,} more rows" if len(rows) > _MOST_ROWS else ""
    title = f"{type(module).__name__}, {count_parameters(module):,} parameters"
    return grid(title, ("part", "module", "parameters"), rows[:_MOST_ROWS], note)


def lines_html(title: str, lines: Sequence[Sequence[str]]) -> str:
    """The lines of a network from the paper's notation: item, shapes after it, parameters."""
    shapes = max((len(line) for line in lines), default=2) - 2
    return grid(title, ("layer", *["after it"] * min(shapes, 1), *[""] * (shapes - 1), "parameters"), lines)


def _rows(module: nn.Module, depth: int) -> Iterator[tuple[str, str, str]]:
    runs: list[tuple[str, str, nn.Module, int]] = []  # first name, last name, module, parameters
    for name, child in module.named_children():
        count = count_parameters(child)
        last = runs[-1] if runs else None
        if last and name.isdigit() and type(last[2]) is type(child) and count == last[3]:
            runs[-1] = (last[0], name, child, count)
        else:
            runs.append((name, name, child, count))
    for first, last_name, child, count in runs:
        name = first if first == last_name else f"{first} to {last_name}"
        times = 1 if first == last_name else int(last_name) - int(first) + 1
        shown = f"{times} × {count:,}" if times > 1 and count else f"{count:,}" if count else ""
        yield "  " * depth + name, type(child).__name__, shown
        if depth < 1 or isinstance(child, nn.ModuleList):
            yield from _rows(child, depth + 1)
