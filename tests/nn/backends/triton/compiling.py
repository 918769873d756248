"""Compile every kernel for a GPU without having one; a separate program, because import selects the interpreter.

Launchers are called as in use, so that kernels are compiled with the types, options and tiles that they will have.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from triton.runtime import JITFunction

import fgnn
from fgnn import FactorGraph, FactorGroup, GraphicalModel, ModelBatch
from fgnn.infer.ad3 import relax
from fgnn.infer.ad3.fused import Fused
from fgnn.infer.max_product import fused_flooding
from fgnn.infer.probability import chain_launch
from fgnn.models.points.fgnn import PointFGNN
from fgnn.nn import FGNNLayer, use_backend
from fgnn.nn.backends.linear import linears
from fgnn.nn.backends.triton import joint_launch, layout
from fgnn.nn.backends.triton.tape import Operation, Place, contiguous
from fgnn.points import knn_gpu, sampling
from tests.nn.backends.triton.absent_gpu import absent_gpu
from tests.nn.backends.triton.cases import Case, call, draw, incidence_of
from tests.nn.graphs import features

Calls = Iterator[tuple[str, Callable[[], Any]]]
SINGLE, HALF = torch.float32, torch.bfloat16

ROWS = [
    Case(),
    Case(arity=1),
    Case(arity=64),
    Case(arity=70),  # several rows of one width
    Case(ragged=True),
    Case(towards="variable"),
    Case(towards="variable", q="own", batch=3),
    Case(towards="variable", q="types"),
    Case(towards="variable", per_edge=True),
    Case(towards="variable", terms=20),
]
TYPED = [
    Case(q="places"),
    Case(q="types", batch=65),
    Case(q="phi", batch=17),
    Case(towards="variable", q="types", batch=65, per_edge=True),
]
CASES = [replace(case, factors=40, variables=80, n=64, m=64) for case in ROWS + TYPED]
FEW = [CASES[k] for k in (0, 4, 5, 10, 11)]
WIDTHS = [(1, 1), (20, 33), (128, 128), (64, 320), (200, 64)]


def aggregations() -> Calls:
    """Messages: all kinds in single and half precision with both kinds of index; then all widths; then all options."""
    for case, dtype, large in product(CASES, (SINGLE, HALF), (False, True)):
        yield f"{case} {dtype} {large=}", partial(messages, case, dtype, large=large)
    for case, dtype, (n, m) in product(FEW, (SINGLE, HALF), WIDTHS):
        wide = replace(case, n=n, m=m)
        yield f"{wide} {dtype}", partial(messages, wide, dtype)
    for case, (kind, activation) in product(FEW, (("sum", "relu"), ("sum", "identity"), ("max", "identity"))):
        for m, deterministic in ((64, True), (320, False)):
            other = replace(case, kind=kind, activation=activation, n=2 * 64, m=m)
            yield f"{other} {deterministic=}", partial(messages, other, HALF, deterministic=deterministic)
            yield f"{other} TF32", partial(messages, other, SINGLE, precision="high")
    for case in [replace(case, variables=80) for case in ROWS + TYPED]:  # small tiles
        yield f"{case} small", partial(messages, case, torch.float16)


def messages(
    case: Case, dtype: torch.dtype, *, large: bool = False, deterministic: bool = False, precision: str = "highest"
) -> None:
    """Values and gradients of one call."""
    torch.use_deterministic_algorithms(deterministic)
    torch.set_float32_matmul_precision(precision)
    with patch.object(layout, "_INT32", 0 if large else 2**31):
        incidence = incidence_of(case)
        call(case, incidence, draw(case, incidence).to(dtype, "cpu"), "triton")
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")


def layers() -> Calls:
    """Whole layers, for what surrounds the messages; and linear layers of every width."""
    for groups, aggregate, q in product((1, 2, 4), ("max", "sum"), ("table", "basis", "positions")):
        yield f"layer {groups} {aggregate} {q}", partial(layer, groups, aggregate, q, HALF)
    for q in ("table", "basis", "positions"):
        yield f"layer {q} in single precision", partial(layer, 2, "max", q, SINGLE)
    widths = [(3, 16), (1, 1), (16, 64), (64, 64), (128, 128), (256, 128), (64, 256)]
    for (k, m), count, dtype in product(widths, (1, 4), (SINGLE, HALF)):
        yield f"linear {count} {k} to {m} {dtype}", partial(linear, k, m, count, dtype)
    for dtype in (SINGLE, HALF):
        yield f"point cloud network {dtype}", partial(points_network, dtype)


def layer(groups: int, aggregate: Any, q: str, dtype: torch.dtype) -> None:
    scopes = {f"g{k}": FactorGroup(torch.arange(20)[:, None] + torch.arange(k + 1)) for k in range(groups)}
    graph = FactorGraph(40, scopes)
    widths = dict.fromkeys(scopes, 3)
    options = {} if q == "table" else {"hidden": (16,)}
    network = FGNNLayer(
        2, widths, widths, 32, q="table" if q == "table" else "basis", aggregate=aggregate, bias=True,
        activation="relu", q_options=options,
    )  # fmt: skip
    f, gs, edges = features(graph, 2, widths, widths, batch=17, types=q == "table", dtype=SINGLE)
    if q == "positions":
        edges = {name: torch.randn(k + 1, 3) for k, name in enumerate(scopes)}
    with use_backend("triton"), torch.autocast("cpu", dtype, enabled=dtype != SINGLE):
        f, gs = network(graph, f.requires_grad_(), gs, edges)
    torch.stack([x.float().sum() for x in (f, *gs.values())]).sum().backward()


def linear(k: int, m: int, count: int, dtype: torch.dtype) -> None:
    for bias in (True, False):
        xs = [torch.randn(300, k, dtype=dtype, requires_grad=True) for _ in range(count)]
        weights = [torch.randn(m, k, requires_grad=True) for _ in range(count)]
        biases = [torch.randn(m, requires_grad=True)] * count
        with use_backend("triton"), torch.autocast("cpu", HALF):
            ys = linears(xs, weights, biases if bias else None, relu=bias)
        torch.stack([y.float().sum() for y in ys]).sum().backward()


def points_network(dtype: torch.dtype) -> None:
    network = PointFGNN(inputs=3, classes=5, k=8)
    with use_backend("triton"), torch.autocast("cpu", dtype, enabled=dtype != SINGLE):
        y = network(torch.rand(2, 150, 3))
    y.float().mean().backward()


def joint_steps() -> Calls:
    """Small steps of recorded passes, several in a launch."""
    for shape in ((40, 656), (1, 7)):
        yield f"sums of {shape}", partial(joined, joint_launch.sums, torch.ops.aten.sum.dim_IntList, shape, SINGLE)
    for shape, dtype in product(((30, 64), (7,)), (SINGLE, HALF, torch.float16)):
        yield f"additions of {shape}", partial(joined, joint_launch.additions, torch.ops.aten.add.Tensor, shape, dtype)


def joined(join: Callable[..., Any], operation: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = Place(0, 0, shape, contiguous(shape), dtype)
    join(torch.device("cpu"), [Operation(operation, [x, x], {}, [k]) for k in (1, 2, 3)])


def point_clouds() -> Calls:
    """Neighbours and samples of points."""
    for k, exclude in product((1, 16, 32), (False, True)):
        yield f"{k} neighbours", partial(knn_gpu.by_tiles, torch.rand(2, 90, 3), None, k, exclude)
        yield f"{k} neighbours by grid", partial(knn_gpu.by_grid, torch.rand(900, 3), None, k, exclude)
    yield "neighbours of others", partial(knn_gpu.by_tiles, torch.rand(2, 90, 3), torch.rand(2, 50, 3), 8, False)
    for total in (100, sampling._MOST):
        yield f"samples of {total}", partial(sampling._by_kernel, torch.rand(2, total, 3), 7, torch.zeros(2).long())


def inference() -> Calls:
    """The fused solvers."""
    for k, dtype, shared, kept in product((2, 64), (SINGLE, torch.float64), (False, True), (False, True)):
        yield f"chain of {k} states, {dtype}", partial(chain, k, dtype, shared, kept)
    for dtype, floor, pairs in product((SINGLE, torch.float64), (False, True), (False, True)):
        batch = models(dtype, floor, pairs)
        yield f"max-product {dtype}", partial(fgnn.solve, batch, "max-product", time_limit=0.5)
        yield f"ad3 {dtype}", partial(fgnn.solve, batch, "ad3", time_limit=0.5)


def chain(k: int, dtype: torch.dtype, shared: bool, ordered: bool) -> None:
    unary, values = torch.rand(5, 4, k), torch.rand(1 if shared else 5, 3, k, k)
    order = torch.arange(3 if ordered else 0)
    _, kept = chain_launch.forward(unary, values, order, dtype, True)
    chain_launch.forward(unary, values, order, dtype, False)
    chain_launch.backward(unary, values, order, kept, torch.ones(5, dtype=torch.float64))


def models(dtype: torch.dtype, floor: bool, pairs: bool) -> ModelBatch:
    one = GraphicalModel([2] * 7)
    one.add_unaries([0.1 * i for i in range(14)])
    for i in range(5 * pairs):
        one.add_table((i, i + 1), [[0.0, 0.3], [0.2, -0.1]])
    one.add_budget(range(5), at_most=3, at_least=int(floor))
    return ModelBatch.stack([one, one], dtype=dtype)


def missing(found: set[str]) -> set[str]:
    """Kernels of the package that were not compiled; functions that other kernels call do not count."""
    root = Path(fgnn.__file__).parent
    sources = [path for path in root.rglob("*.py") if "@triton.jit" in path.read_text(encoding="utf-8")]
    names = [".".join(("fgnn", *path.relative_to(root).with_suffix("").parts)) for path in sources]
    kernels = [x for name in names for x in vars(import_module(name)).values() if isinstance(x, JITFunction)]
    text = "".join(kernel.src.split("\n", 1)[1] for kernel in kernels)
    return {k.__name__ for k in kernels if not re.search(rf"\b{k.__name__}\(", text)} - found


def main() -> None:
    """Compile everything; with ``--table``, print what each kernel takes."""
    here = patch.object(fused_flooding, "can_launch", lambda device: True)
    with absent_gpu() as gpu, here, patch.object(relax, "fused_of", Fused.of):
        for group in (aggregations(), layers(), joint_steps(), point_clouds(), inference()):
            for gpu.call, run in group:
                run()
    binaries = list(gpu.binaries.values())
    failed = [*gpu.failed, *[f"{name} is never compiled" for name in sorted(missing({x.kernel for x in binaries}))]]
    if "--table" in sys.argv:
        for x in sorted(binaries, key=lambda x: (x.kernel, -x.spilled, -x.shared)):
            print(*x, sep="\t")
    print(*failed, sep="\n")
    print(f"{len(binaries)} compiled")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
