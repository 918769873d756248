"""The kernels' layout of edges: every edge once, in order; with hints, without host synchronisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fgnn.graph import EdgeTypes, FactorGroup, Hints, Incidence, Side
from fgnn.nn.backends.triton.layout import Layout, _rows, _shape_of_rows, layout_of
from fgnn.runtime.kernel_launch import local
from fgnn.runtime.triton_support import why_unavailable

SIDES: tuple[Side, Side] = ("factor", "variable")
NO_KERNELS = why_unavailable(torch.device("cpu"))
PLACES = [
    pytest.param("cpu", marks=pytest.mark.skipif(NO_KERNELS is not None, reason=str(NO_KERNELS))),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


class NoReadBack(TorchDispatchMode):
    """Fail on what waits for a device: reading a number, and shapes that depend on values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        for waits in ("_local_scalar_dense", "bincount", "nonzero", "repeat_interleave.Tensor", "unique"):
            assert waits not in name, name
        return func(*args, **kwargs or {})


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fgnn.nn.backends.triton.layout.why_unavailable", lambda device: "not here")


def scopes(factors: int, arity: int, variables: int) -> FactorGroup:
    make = torch.Generator().manual_seed(arity)
    return FactorGroup(torch.stack([torch.randperm(variables, generator=make)[:arity] for _ in range(factors)]))


def visited(layout: Layout) -> list[list[int]]:
    """The list positions that the kernels visit for each destination, in order."""
    found: list[list[int]] = [[] for _ in range(layout.destinations)]
    if layout.arity:
        return [list(range(d * layout.arity, (d + 1) * layout.arity)) for d in range(layout.destinations)]
    for destination, start, stop, before in layout.table.t().tolist():
        if start < stop:
            assert stop - start <= layout.width
            assert before == len(found[destination])
            found[destination] += range(start, stop)
    return found


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("arity", [1, 3, 9, 17, 33])
def test_every_edge_is_visited_once_and_in_order(arity: int, side: Side, bounded: bool) -> None:
    hints = Hints(max_degree=40) if bounded else Hints()
    incidence = Incidence.of(scopes(40, arity, 50), 50, hints)
    layout = layout_of(incidence, side)
    ptr = incidence.factor_ptr if side == "factor" else incidence.var_ptr
    assert visited(layout) == [list(range(a, b)) for a, b in zip(ptr.tolist(), ptr.tolist()[1:], strict=False)]
    assert layout.longest >= int(incidence.degree(side).max())
    assert layout_of(incidence, side) is layout


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("degrees", [[9], [0], [0, 5, 0, 23, 8, 0], [2**27, 3]])
def test_degrees_may_differ_by_much(degrees: list[int], bounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    without_kernels(monkeypatch)  # the interpreter takes minutes
    edges = sum(degrees)
    ptr = torch.tensor([0, *degrees]).cumsum(0)
    width, rows = _shape_of_rows(ptr, edges, bounded)
    table, row_ptr = _rows(ptr.int(), width, rows, bounded)
    assert table.dtype == row_ptr.dtype == torch.int32
    needed = [-(-degree // width) for degree in degrees]
    assert all(a >= b if bounded else a == b for a, b in zip(row_ptr.diff().tolist(), needed, strict=True))
    assert int(row_ptr[-1]) == rows
    destination, start, stop, before = table.long()
    assert bool(((row_ptr[destination] <= (row := torch.arange(rows))) & (row < row_ptr[destination + 1])).all())
    assert torch.equal(destination.bincount(weights=stop - start, minlength=len(degrees)).long(), ptr.diff())
    full = start < stop
    assert torch.equal((start - ptr[destination])[full], before[full])
    assert torch.equal(stop[full][:-1], start[full][1:])  # one after another


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("count", [1, 2, 255, 700])
def test_the_kernel_describes_rows_as_torch_does(
    device: str, count: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = torch.Generator().manual_seed(count)
    degrees = torch.randint(0, 40, (count,), generator=make) * torch.randint(0, 2, (count,), generator=make) + 1
    ptr = torch.cat([torch.zeros(1), degrees.cumsum(0)]).to(device, dtype)
    width, rows = _shape_of_rows(ptr, int(ptr[-1]), True)
    table, row_ptr = _rows(ptr, width, rows, True)
    without_kernels(monkeypatch)
    plain, same = _rows(ptr, width, rows, True)
    assert torch.equal(table, plain)
    assert torch.equal(row_ptr, same)


def test_rows_are_described_where_launches_are_only_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout that is made then is kept, and read by later launches."""
    ptr = torch.tensor([0, 3, 3, 9], dtype=torch.int32)
    width, rows = _shape_of_rows(ptr, 9, True)
    without = _rows(ptr, width, rows, True)
    monkeypatch.setattr("fgnn.nn.backends.triton.layout._described", lambda *_: pytest.fail("not written"))
    monkeypatch.setattr("fgnn.nn.backends.triton.layout.why_unavailable", lambda device: None)
    monkeypatch.setattr(local, "notes", {})
    for one, other in zip(without, _rows(ptr, width, rows, True), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("per_edge", [False, True])
def test_with_hints_nothing_is_read_back(side: Side, per_edge: bool) -> None:
    incidence = Incidence.of(scopes(40, 17, 50), 50, Hints(max_degree=40, covers_all=True))
    _ = incidence.var_ptr, incidence.var_edge
    with NoReadBack():
        layout = layout_of(incidence, side, per_edge)
    assert layout.rows == (40 * 17 + layout.destinations * (layout.width - 1)) // layout.width
    with pytest.raises(AssertionError), NoReadBack():
        layout_of(Incidence.of(scopes(40, 17, 50), 50), "variable")


def test_types_of_two_graphs_are_listed_for_each() -> None:
    types = EdgeTypes(torch.arange(12) % 3, 3)
    layouts = [layout_of(Incidence.of(scopes(4, 3, n), n), "variable") for n in (5, 6)]
    lists = [layout.typed(types) for layout in layouts]
    for layout, (kind, by_kind, kind_ptr, walk) in zip(layouts, lists, strict=True):
        assert layout.typed(types)[3] is walk
        assert torch.equal(kind, types.index[layout.edge.long()].int())
        assert kind_ptr.tolist() == [0, 4, 8, 12]
        assert by_kind[:, 3].tolist() == sorted(types.index.tolist())
        assert torch.equal(walk[:12, 2], layout.source)
