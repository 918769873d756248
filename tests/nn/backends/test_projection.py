"""Messages and maxima computed chunk by chunk in reused buffers, against one product per edge."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fgnn import FactorGroup
from fgnn.graph import Incidence, Side
from fgnn.nn import Aggregation, aggregate_messages
from fgnn.nn.backends.choice import EdgeCall
from fgnn.nn.backends.torch import chunks, edge_messages
from fgnn.nn.backends.torch.chunks import EdgeInputs
from fgnn.nn.backends.torch.edge_messages import project_all, project_max
from fgnn.nn.backends.torch.reduce import first_max, reduce_edges


def problem(batch: int, shared: bool, *, seed: int = 0) -> EdgeInputs:
    """7 factors over 3 of 5 variables each."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    scopes = torch.stack([torch.randperm(5, generator=rng)[:3] for _ in range(7)])
    incidence = Incidence.of(FactorGroup(scopes), 5)
    phi = normal(21, 4) if shared else normal(batch, 21, 4)
    call = EdgeCall(incidence, "factor", True, Aggregation(), None, batch)
    return EdgeInputs(normal(7, batch, 6), normal(5, batch, 6), phi, normal(4, 2, 6), call)


def messages_one_by_one(parts: EdgeInputs) -> Tensor:
    """Q h with Q built.  # shape: (E, B, m)"""
    assert parts.b is not None
    phi, weight = parts.coefficients, parts.weight
    messages = []
    incidence = parts.call.incidence
    for e in range(incidence.num_edges):
        h = (parts.a[incidence.factor[e]] + parts.b[incidence.variable[e]]).relu()
        rows = phi[e].expand(parts.batch, -1) if phi.dim() == 2 else phi[:, e]
        messages.append(torch.einsum("bt,tmn,bn->bm", rows, weight, h))
    return torch.stack(messages)


@pytest.fixture(params=[1 << 19, 300, 60, 20, 1], ids=lambda size: f"chunk {size}")
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """From one chunk for all rows down to one row and one sample per chunk."""
    monkeypatch.setitem(chunks._CHUNK, "cpu", request.param)
    monkeypatch.setattr(edge_messages, "MIN_ROWS", 1)
    return int(request.param)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize(("batch", "shared"), [(1, True), (3, True), (3, False)])
def test_results_do_not_depend_on_the_chunk_size(
    batch: int, shared: bool, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_messages, "_NARROW", 512 if narrow else 0)
    parts = problem(batch, shared)
    expected = messages_one_by_one(parts)
    torch.testing.assert_close(project_all(parts, torch.empty_like(expected)), expected)
    values, edges = project_max(parts, arg=True)
    best = expected.view(7, 3, batch, 2).max(1)
    torch.testing.assert_close(values, best.values)
    assert edges is not None
    assert torch.equal(edges, best.indices + 3 * torch.arange(7).view(-1, 1, 1))
    alone, none = project_max(parts, arg=False)
    assert none is None
    assert torch.equal(alone, values)


def test_a_maximum_does_not_modify_its_inputs() -> None:
    """Buffers are overwritten, inputs never, even if they are the messages themselves."""
    parts = problem(2, False)
    assert parts.b is not None
    inputs = (parts.a, parts.b, parts.coefficients, parts.weight)
    copies = [t.clone() for t in inputs]
    project_max(parts, arg=True)
    assert all(torch.equal(x, y) for x, y in zip(inputs, copies, strict=True))
    messages = messages_one_by_one(parts)
    before = messages.clone()
    sides: tuple[Side, Side] = ("factor", "variable")
    for towards in sides:
        reduce_edges(messages, parts.call.incidence, towards, Aggregation("max"), arg=True)
    assert torch.equal(messages, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [1, 2, 16, 255, 256, 300])
def test_the_first_maximum(width: int, dtype: torch.dtype) -> None:
    """Few values, hence many ties; infinities are ordinary values."""
    rng = torch.Generator().manual_seed(width)
    rows = torch.randint(0, 4, (5, width, 3), generator=rng).to(dtype)
    rows[0, :, 0], rows[1, :, 1], rows[2, -1, 2] = float("-inf"), -0.0, float("inf")
    original = rows.clone()
    for spend in (False, True):
        values, place = first_max(rows, spend=spend)
        for r in range(5):
            for j in range(3):
                column = original[r, :, j].tolist()
                assert values[r, j] == max(column)
                assert place[r, j] == column.index(max(column))
        assert spend or torch.equal(rows, original)


@pytest.mark.parametrize("towards", ["factor", "variable"])
@pytest.mark.parametrize("scopes", [[[0, 1, 2], [2, 3, 1]], [[0, 1, 2], [3], [2, 1]]], ids=["uniform", "ragged"])
def test_a_nan_message_is_not_lost(scopes: list[list[int]], towards: Side) -> None:
    """NaN is the maximum at its destination and nowhere else, and gradients can still be computed."""
    incidence = Incidence.of(FactorGroup(scopes), 4)
    h = torch.zeros(incidence.num_edges, 2)
    h[1] = float("nan")
    h.requires_grad_()
    phi, weight = torch.ones(incidence.num_edges, 1), torch.ones(1, 3, 2)
    out = aggregate_messages(h, None, incidence, phi, weight, towards=towards, activation="identity")
    at = int(incidence.destination(towards)[1])
    assert out.isnan().any(1).nonzero().flatten().tolist() == [at]
    out.sum().backward()
    assert h.grad is not None
