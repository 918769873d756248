"""Bitwise reproducible training and solving."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import fgnn
from fgnn import FactorGraph, FactorGroup, ModelBatch, deterministic, solve
from fgnn.data import ChainMAP
from fgnn.train.run import run
from fgnn.weights import load_weights
from tests.infer.oracle import chain
from tests.tasks.helpers import small_recipe
from tests.tensors import same_tensors

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
    ),
]
METHODS: dict[str, dict[str, Any]] = {
    "brute-force": {},
    "exact": {},
    "toulbar2": {},
    "lp": {},
    "ad3": {"iterations": 300},
    "max-product": {"schedule": "sequential", "order": "random"},
    "auto": {},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", METHODS)
def test_every_solver_twice(method: str, device: str) -> None:
    if method == "toulbar2":
        pytest.importorskip("pytoulbar2")
    batch = ModelBatch.stack([chain(seed, length=12, window=5, at_most=2) for seed in range(6)], device=device)
    with deterministic():
        one, two = (solve(batch, method, seed=1, **METHODS[method]) for _ in range(2))
    for name in ("assignment", "score", "bound", "iterations"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert one.status == two.status


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("schedule", ["flooding", "residual"])
def test_max_product_twice_on_many(schedule: str, device: str) -> None:
    batch = ChainMAP(kind=2, length=30, window=8).sample(200, seed=0, device=device)
    with deterministic():
        one, two = (solve(batch, "max-product", schedule=schedule, iterations=30) for _ in range(2))
    assert torch.equal(one.assignment, two.assignment)
    assert torch.equal(one.info["deltas"], two.info["deltas"])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_twice(tmp_path: Path, device: str, precision: str) -> None:
    if device == "cpu" and precision == "bf16":
        pytest.skip("the CPU trains in float32")
    recipe = small_recipe(steps=20, precision=precision) if precision != "fp32" else small_recipe(steps=20)
    with deterministic():
        runs = [run(recipe, tmp_path / name, device=device)[1] for name in ("one", "two")]
    one, two = (load_weights(r.path / "last.safetensors").tensors for r in runs)
    assert same_tensors(one, two)
    curves = [
        [{k: v for k, v in line.items() if k in ("step", "loss", "agreement")} for line in r.lines()] for r in runs
    ]
    assert curves[0] == curves[1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("q", ["basis", "table", "dense"])
@pytest.mark.parametrize("aggregate", ["max", "sum"])
def test_gradients_of_a_layer_twice(q: str, aggregate: str, device: str) -> None:
    """Many factors share few variables, so that the order of summation matters."""
    torch.manual_seed(0)
    scopes = torch.stack([torch.randperm(8)[:3] for _ in range(500)])
    graph = FactorGraph(8, {"c": FactorGroup(scopes)}).to(device)
    layer = fgnn.nn.FGNNLayer(
        variable_in=16, factor_in={"c": 4}, edge_in={"c": 3}, out=16, q=q, aggregate=aggregate
    ).to(device)
    f = torch.randn(4, 8, 16, device=device)
    gs = {"c": torch.randn(4, 500, 4, device=device)}
    edges = {"c": torch.eye(3, device=device).repeat(500, 1)}
    gradients = []
    with deterministic():
        for _ in range(3):
            inputs = f.clone().requires_grad_()
            layer.zero_grad()
            out, _ = layer(graph, inputs, gs, edges)
            out.square().sum().backward()
            assert inputs.grad is not None
            gradients.append([inputs.grad, *(p.grad for p in layer.parameters() if p.grad is not None)])
    for other in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients[0], other, strict=True))


def test_the_switch_holds_inside_its_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert not torch.are_deterministic_algorithms_enabled()
    with deterministic():
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        with deterministic(False):
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_the_switch_holds_as_a_plain_call() -> None:
    switch = deterministic()
    assert torch.are_deterministic_algorithms_enabled()
    switch.__exit__(None, None, None)
    assert not torch.are_deterministic_algorithms_enabled()
