"""One rule says whether Triton kernels can run, and layers, neighbour search and solvers all follow it."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fgnn.infer.ad3 import fused as ad3
from fgnn.infer.max_product import fused_flooding as max_product
from fgnn.nn import choose_backend
from fgnn.nn.backends.linear import has_kernel
from fgnn.nn.norm import NodeBatchNorm
from fgnn.runtime import triton_support
from fgnn.runtime.triton_support import can_launch, why_unavailable

CUDA = torch.device("cuda")
knn_module = import_module("fgnn.points.knn")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a recent GPU, Triton and a C compiler, as far as the rule can see."""
    monkeypatch.setattr(triton_support, "_reasons", {})
    monkeypatch.setattr(triton_support, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=0: (9, 0))
    monkeypatch.setattr(triton_support.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.delenv("CC", raising=False)


def hide_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support.shutil, "which", lambda name: None)


class OnGPU(SimpleNamespace):
    """Stands in for a tensor on the GPU."""

    device, dtype, shape = CUDA, torch.bfloat16, (1, 40, 3)

    def numel(self) -> int:
        return 120

    def cpu(self) -> OnGPU:
        return self

    def to(self, device: torch.device) -> OnGPU:
        return self


def neighbour_search(monkeypatch: pytest.MonkeyPatch) -> str:
    """The path that `knn` takes for points on a GPU."""
    paths: list[str] = []

    def path(name: str) -> Any:
        return lambda *_: (paths.append(name), (OnGPU(), OnGPU()))[1]

    monkeypatch.setattr(knn_module, "_local", lambda *_: (OnGPU(), None))
    monkeypatch.setattr(knn_module, "_on_gpu", path("triton"))
    monkeypatch.setattr(knn_module, "_by_cells", path("tree"))
    knn_module.knn(torch.rand(1, 40, 3), 4)
    return paths[0]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("compiler", [True, False])
def test_without_a_compiler_every_part_steps_aside(compiler: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiler:
        hide_compiler(monkeypatch)
    kernels = OnGPU(pair_row=[0], ones_row=[0], incident=[0])
    monkeypatch.setattr(max_product, "worth_fusing", lambda *_: True)
    monkeypatch.setattr(ad3.Fused, "of", lambda *_: kernels)
    monkeypatch.setattr(max_product.FusedFlooding, "of", lambda *_: kernels)
    wiring: Any = SimpleNamespace(belief_of=OnGPU(), derived=lambda name, make: make())
    features: Any = OnGPU()
    assert choose_backend(device=CUDA, dtype=torch.float32) == ("triton" if compiler else "torch")
    assert has_kernel(features, torch.empty(8, 3)) == compiler
    assert NodeBatchNorm(3).fused(features) == compiler
    assert neighbour_search(monkeypatch) == ("triton" if compiler else "tree")
    assert (ad3.fused_of(wiring, CUDA) is kernels) == compiler
    assert (max_product.fused_flooding(wiring, 1) is kernels) == compiler


@pytest.mark.usefixtures("gpu")
def test_each_obstacle_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_unavailable(CUDA) is None
    assert can_launch(CUDA)
    monkeypatch.setattr(triton_support, "_reasons", {})
    hide_compiler(monkeypatch)
    assert "C compiler" in str(why_unavailable(CUDA))
    monkeypatch.setattr(triton_support, "_reasons", {})
    monkeypatch.setenv("CC", "cc")
    assert why_unavailable(CUDA) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=0: (7, 5))
    assert "8.0" in str(why_unavailable(torch.device("cuda", 1)))
    monkeypatch.setattr(triton_support, "find_spec", lambda name: None)
    assert "not installed" in str(why_unavailable(torch.device("cuda", 2)))


@pytest.mark.usefixtures("gpu")
def test_the_interpreter_counts_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert why_unavailable(torch.device("cpu")) is None
    assert not can_launch(torch.device("cpu"))
    monkeypatch.setattr(triton_support, "_reasons", {})
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "cpu" in str(why_unavailable(torch.device("cpu")))


def test_compiled_code_may_ask_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network may be compiled before it was ever called, in one graph."""
    monkeypatch.setattr(triton_support, "_reasons", {})

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + (triton_support.why_unavailable(x.device) is None)

    fast = torch.compile(add, backend="eager", fullgraph=True)
    expected = triton_support.why_unavailable(torch.device("cpu")) is None
    assert fast(torch.zeros(2)).tolist() == [float(expected)] * 2
