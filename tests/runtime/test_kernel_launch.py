"""Launches through the cache of compiled kernels, with a kernel that notes how it is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fgnn.runtime import kernel_launch
from fgnn.runtime.kernel_launch import caller_of, constants, launch


class _Kernel:
    """A kernel (x, n, WIDTH, FLAG): as in Triton, a call compiles it and returns the binary."""

    arg_names = ("x", "n", "WIDTH", "FLAG")
    device_caches: Any = None

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, tuple[Any, ...]]] = []

    def __getitem__(self, grid: Any) -> Any:
        def run(*args: Any, **options: Any) -> _Binary:
            self.calls.append(("kernel", grid, (*args[1:], *options.values())))
            return _Binary(self)

        return run


class _Binary:
    def __init__(self, kernel: _Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args: self.kernel.calls.append(("binary", grid, args[1:]))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> _Kernel:
    monkeypatch.setattr(kernel_launch, "_compiled", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return _Kernel()


def test_the_second_call_goes_to_the_binary_with_all_arguments_in_order(kernel: _Kernel) -> None:
    options = constants(FLAG=True, num_warps=4, WIDTH=64)
    for _ in range(2):
        launch(kernel, (7, 2), [torch.empty(8), 5], options)
    assert kernel.calls == [("kernel", (7, 2), (5, True, 4, 64)), ("binary", (7, 2, 1), (5, 64, True))]


@pytest.mark.parametrize("other", ["dtype", "number", "options", "device"])
def test_what_a_kernel_is_compiled_for_finds_another_binary(
    kernel: _Kernel, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(kernel, (1,), [torch.empty(8), 5], constants(WIDTH=64, FLAG=True))
    if other == "device":
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    x = torch.empty(8, dtype=torch.float64 if other == "dtype" else None)
    options = constants(WIDTH=32 if other == "options" else 64, FLAG=True)
    launch(kernel, (1,), [x, 16 if other == "number" else 5], options)
    assert [how for how, _, _ in kernel.calls] == ["kernel", "kernel"]


def test_a_tensor_that_is_not_aligned_is_left_to_triton(kernel: _Kernel) -> None:
    for x in (torch.empty(8), torch.empty(9)[1:], torch.empty(9)[1:]):
        launch(kernel, (1,), [x, 5], constants(WIDTH=64, FLAG=True))
    assert [how for how, _, _ in kernel.calls] == ["kernel", "kernel", "kernel"]


def test_the_cache_does_not_grow_without_end(kernel: _Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_launch, "_MOST", 3)
    for number in range(2, 12):
        launch(kernel, (1,), [torch.empty(8), number], constants(WIDTH=64, FLAG=True))
    assert len(kernel_launch._compiled) <= 3


class _Launcher:
    """A launcher as Triton 3.6 has. What it calls is in C there; here ``print`` stands for it."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid, launch_pdl = False, True

    def __init__(self) -> None:
        self.launch: Any = print

    def __call__(self, gridX: int, gridY: int, gridZ: int, stream: int, function: int, *args: Any) -> None:
        self.launch(
            gridX, gridY, gridZ, stream, function, self.launch_cooperative_grid, self.launch_pdl, None, None, *args
        )


class _Later(_Launcher):
    """One whose launcher takes something else."""

    def __call__(
        self, gridX: int, gridY: int, gridZ: int, stream: int, function: int, metadata: Any, *args: Any
    ) -> None:
        print("later", gridX, gridY, gridZ, stream, function, metadata, *args)


def launched(run: Any) -> tuple[Any, tuple[Any, ...]]:
    return caller_of(SimpleNamespace(run=run, function=17, packed_metadata=(4, 1, 0)))


@pytest.mark.parametrize("kind", [_Launcher, _Later])
def test_a_kernel_is_launched_as_its_launcher_does(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = kind()
    function, before = launched(run)
    assert (function is print) == (kind is _Launcher)
    function(1, 2, 3, 99, *before, 5, 6)
    run(1, 2, 3, 99, 17, (4, 1, 0), None, None, None, 5, 6)
    short, whole = capsys.readouterr().out.splitlines()
    assert short == whole


@pytest.mark.parametrize("name", ["global_scratch_size", "profile_scratch_size", "launch"])
def test_a_kernel_with_scratch_memory_is_left_to_its_launcher(name: str) -> None:
    run = _Launcher()
    setattr(run, name, 64 if "size" in name else lambda *args: None)
    assert launched(run)[0] is run
