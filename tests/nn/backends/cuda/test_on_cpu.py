"""CUDA kernels of messages in half precision, run on the CPU thread by thread: values, gradients, and every tile once.

Copies and products happen at the latest moment, and memory that was not written is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from torch import Tensor

from fgnn.graph import Incidence
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.choice import EdgeCall
from fgnn.nn.backends.cuda import best_rows, row_gradients, winners
from fgnn.nn.backends.triton import tile_sizes
from fgnn.nn.backends.triton.aggregate import plan_call
from fgnn.nn.backends.triton.launch import Operands, Plan
from fgnn.runtime.cuda_launch import CudaBinary
from tests.nn.backends.cuda.gpu_on_cpu import Simulator
from tests.nn.backends.triton.cases import Case, Inputs, draw, incidence_of, reference

SMALL = Case(factors=21, arity=16, variables=57, n=64, m=64, terms=16, whole=True)
CASES = [
    SMALL,
    replace(SMALL, towards="variable"),
    replace(SMALL, factors=70, arity=4, terms=8),
    replace(SMALL, factors=50, arity=8, terms=5),
    replace(SMALL, arity=9, n=32, m=24),
    replace(SMALL, arity=17, activation="identity"),
    replace(SMALL, arity=17, towards="variable", bounded=True),
    replace(SMALL, arity=30, ragged=True, terms=16),
    replace(SMALL, factors=200, arity=2, variables=5, towards="variable"),  # hubs
    replace(SMALL, factors=9, q="own", batch=3),
    replace(SMALL, factors=9, q="own", batch=3, ragged=True, towards="variable"),
    replace(SMALL, factors=7, batch=5, arity=7),
    replace(SMALL, n=8, m=8, terms=1),
    replace(SMALL, per_edge=True, ragged=True),
    replace(SMALL, kind="sum"),
    replace(SMALL, kind="sum", ragged=True, arity=30, towards="variable", terms=7),
]


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    return Simulator(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(autouse=True)
def _on_cpu(simulator: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (best_rows, row_gradients, winners):
        monkeypatch.setattr(module, "cuda_binary", CudaBinary)
        monkeypatch.setattr(module, "launch_cuda", simulator.launch)


@dataclass(frozen=True)
class Drawn:
    """A call of whole numbers, for which half precision is exact, and what the kernels read of it."""

    case: Case
    inputs: Inputs
    incidence: Incidence
    x: Operands
    plan: Plan

    @property
    def batch(self) -> int:
        return self.case.batch or 1

    def rows(self) -> list[tuple[int, int]]:
        """The destination among those of all samples, and the number of its earlier edges, of each row with edges."""
        sizes, table = self.plan.sizes, self.plan.tensors[2]
        listed = [(d, 0) for d in range(sizes.rows)] if sizes.arity else list(zip(*table[[0, 3]].tolist(), strict=True))
        live = [True] * sizes.rows if sizes.arity else (table[2] > table[1]).tolist()
        return [
            (sample * sizes.destinations + d, before) if there else (-1, 0)
            for sample in range(self.batch)
            for (d, before), there in zip(listed, live, strict=True)
        ]

    def by_destination(self, rows: Tensor) -> Tensor:
        """Sums (B, D, n) of what each row has."""
        out = torch.zeros(self.batch * self.plan.sizes.destinations, rows.shape[-1], dtype=torch.float64)
        for (d, _), value in zip(self.rows(), rows.double().flatten(0, -2), strict=True):
            if d >= 0:
                out[d] += value
        return out.view(self.batch, -1, rows.shape[-1])


def drawn(case: Case, dtype: torch.dtype) -> Drawn:
    incidence = incidence_of(case)
    inputs = draw(case, incidence)
    call = EdgeCall(
        incidence, case.towards, case.activation == "relu", Aggregation(case.kind), None, case.batch or None  # type: ignore[arg-type]
    )  # fmt: skip
    given = [None if t is None else t.to(dtype) for t in (inputs.a, inputs.b, inputs.phi, inputs.weight)]
    x, plan = plan_call(*given, call)  # type: ignore[arg-type]
    assert plan.family == "rows"
    return Drawn(case, inputs, incidence, x, plan)


def largest(one: Drawn) -> tuple[Tensor, Tensor]:
    """The maximum at each destination and its place, by the kernel of the forward pass."""
    x, plan, m = one.x, one.plan, one.case.m
    whole = plan.sizes.arity > 0  # a row holds all edges of its destination, and its maximum is the result
    total = one.batch * plan.sizes.rows
    value = torch.full((total, m), torch.nan, dtype=x.src.dtype if whole else torch.float32)
    place = torch.full((total, m), 255, dtype=torch.uint8)
    best_rows.forward(x, plan, value, place)
    best = torch.full((one.batch * plan.sizes.destinations, m), -torch.inf, dtype=torch.float64)
    where = torch.zeros_like(best, dtype=torch.int32)
    for (d, before), v, p in zip(one.rows(), value.double(), place.int(), strict=True):
        if d < 0:
            assert bool((v == -torch.inf).all())
            continue
        better = v > best[d]
        where[d] = torch.where(better, p + before, where[d])
        best[d] = torch.where(better, v, best[d])
    shape = one.batch, -1, m
    return best.view(shape), where.view(shape)


@pytest.mark.parametrize(
    ("dtype", "case"), [*product([torch.bfloat16], CASES), *product([torch.float16], CASES[::4])], ids=str
)
@pytest.mark.parametrize("multiprocessors", [1, 4])  # several rounds of tiles, and a last one that is not full
def test_kernels_give_the_numbers_of_a_float64_loop(
    multiprocessors: int, dtype: torch.dtype, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (best_rows, row_gradients, winners, tile_sizes):
        monkeypatch.setattr(module, "processors", lambda device: multiprocessors)
    one = drawn(case, dtype)
    x, plan, batch, edges = one.x, one.plan, one.batch, one.incidence.num_edges
    value, grads = reference(case, one.incidence, one.inputs)
    value = value.view(batch, -1, case.m)
    arg = torch.empty(0, dtype=torch.uint8)
    if plan.maximum:
        best, arg = largest(one)
        assert torch.equal(best, value.to(dtype).double() if plan.sizes.arity else value)
        arg = arg.to(torch.uint8 if plan.sizes.longest <= 256 else torch.int32)
    if plan.sizes.width not in row_gradients._WIDTHS:
        return
    up = torch.where(torch.isfinite(value), one.inputs.upstream.view(value.shape), 0.0).to(dtype)
    given = dict(zip("abpw", grads, strict=True)) if x.dst is not None else dict(zip("apw", grads, strict=True))
    source = "b" if x.dst is not None and case.towards == "factor" else "a"
    for atomic in (True, False):
        monkeypatch.setattr(row_gradients, "atomic", lambda atomic=atomic: atomic)
        by_row = torch.full((batch, plan.sizes.rows, case.n), torch.nan, dtype=torch.float32)
        by_source = torch.zeros(x.src.shape) if atomic else torch.full((batch, edges, case.n), torch.nan)
        d_coef = torch.full((batch, edges, case.terms), torch.nan)
        row_gradients.launch(up, arg, x, plan, [None if x.dst is None else by_row, by_source, d_coef])
        if not atomic:
            by_source = torch.zeros(x.src.shape).index_add(1, plan.tensors[0].long(), by_source)
        assert torch.equal(by_source.double(), given[source].view(by_source.shape))
        found = d_coef.double() if case.q == "own" else d_coef.double().sum(0)
        assert torch.equal(found, given["p"])
        if x.dst is not None:
            other = given["a" if source == "b" else "b"]
            assert torch.equal(one.by_destination(by_row), other.view(batch, -1, case.n))
    if plan.maximum and dtype == torch.bfloat16:
        assert torch.equal(winners.weights(up, arg, x, plan).double().sum(0), given["w"])
