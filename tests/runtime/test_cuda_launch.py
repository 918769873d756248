"""Launches of CUDA kernels: what the driver gets, and how they are noted and recorded. No GPU is needed."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
import torch

from fgnn.nn.backends.triton.tape import Launch, Tape
from fgnn.runtime import cuda_launch
from fgnn.runtime.cuda_launch import CudaBinary, cuda_binary, launch_cuda
from fgnn.runtime.kernel_launch import local
from fgnn.runtime.nvrtc import CudaSource

SOURCE = CudaSource("fgnn.nn.backends.cuda", "winner_weights.cu", "winner_weights", before=("numbers.cu",))


class Kernel:
    """Stands for a compiled kernel; keeps what it is launched with."""

    def __init__(self) -> None:
        self.launches: list[tuple[tuple[int, ...], bytes]] = []

    def launch(self, x: int, y: int, z: int, threads: int, shared: int, stream: int, packed: Any) -> None:
        size = ctypes.c_size_t.from_address(packed[3]).value
        self.launches.append(((x, y, z, threads, shared, stream), ctypes.string_at(packed[1], size)))


@pytest.fixture
def binary(monkeypatch: pytest.MonkeyPatch) -> CudaBinary:
    one = CudaBinary(SOURCE, (("SIZE", 4),), 0, 128, 1024, "PPi4xP")
    one._kernel = Kernel()  # type: ignore[assignment]

    @contextmanager
    def device(index: int) -> Iterator[None]:
        yield

    class Stream:
        cuda_stream = 7

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    return one


def launches(binary: CudaBinary) -> list[tuple[tuple[int, ...], bytes]]:
    kernel: Any = binary._kernel
    return list(kernel.launches)


def test_the_driver_gets_addresses_and_numbers_and_null_for_none(binary: CudaBinary) -> None:
    x, y = torch.zeros(4), torch.zeros(4)
    launch_cuda(binary, (3, 2, 1), [x, None, 5, y])
    wanted = struct.pack("PPi4xP", x.data_ptr(), 0, 5, y.data_ptr())
    assert launches(binary) == [((3, 2, 1, 128, 1024, 7), wanted)]


def test_a_launch_is_recorded_with_the_places_of_its_tensors(binary: CudaBinary) -> None:
    x = torch.zeros(8)
    with Tape([x]) as tape:
        out = torch.empty(8)
        launch_cuda(binary, (1, 1, 1), [x, None, 5, out])
    (launch,) = [step for step in tape.steps if isinstance(step, Launch)]
    assert launch.kernel.binary is binary
    assert [(slot, place.buffer) for slot, place in launch.places] == [(0, 0), (3, 1)]
    assert launch.args == [None, None, 5, None]


def test_a_launch_that_is_only_noted_is_not_made(binary: CudaBinary) -> None:
    local.notes = {}
    try:
        launch_cuda(binary, (1, 1, 1), [None, None, 0, None])
        assert [note[0] for note in local.notes.values()] == [binary]
    finally:
        local.notes = None
    assert not launches(binary)


def test_threads_do_not_share_arguments() -> None:
    found = []
    thread = Thread(target=lambda: found.append(ctypes.addressof(cuda_launch._arguments.bytes)))
    thread.start()
    thread.join()
    assert found != [ctypes.addressof(cuda_launch._arguments.bytes)]


def test_equal_kernels_are_one() -> None:
    one, other = (cuda_binary(SOURCE, (("SIZE", 4),), 0, 128, 1024, "P") for _ in range(2))
    assert one is other
    assert cuda_binary(SOURCE, (("SIZE", 8),), 0, 128, 1024, "P") is not one


def test_a_source_is_read_with_the_files_before_it() -> None:
    text = SOURCE.text()
    assert text.index("to_float") < text.index("winner_weights(")
