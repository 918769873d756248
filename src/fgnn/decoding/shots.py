"""Launch belief propagation on a GPU; the kernel is in ``shots.cu``."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fgnn.decoding.wiring import PER_WORD, Wiring, wire
from fgnn.runtime.nvrtc import Compile, CudaSource

if TYPE_CHECKING:
    from fgnn.decoding.belief import Schedule
    from fgnn.decoding.code import Code

# Larger than any message: what a bit that does not exist believes.
_NOWHERE = 6e4
# Threads of a multiprocessor: as many as hide latency best, with 32 registers each; and blocks. A few large blocks are
# faster than many small ones, since they finish the slowest shots sooner; small codes cannot fill a large one.
_THREADS = 1920
_BLOCKS = 32
_LARGE_BLOCKS = 3
_PER_BLOCK = 1024  # bytes of shared memory that the hardware takes for itself

# Products and sums stay apart, as on a CPU.
KERNEL = CudaSource("fgnn.decoding", "shots.cu", "decode_shots", ("-fmad=false",))


class _Problem(ctypes.Structure):
    """`Problem` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "check_bits", "bit_slots", "check_degrees", "bit_degrees", "level_starts", "order")),
        *((name, ctypes.c_int) for name in ("N", "M", "NP", "MP", "levels")),
    )  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Where the state of a shot is, and how many threads decode it.

    Attributes:
        post: Bytes of posteriors and syndrome.
        checks: Bytes of the messages of the checks.
        home: 0 if all of it is in shared memory, 1 if the checks are in global memory, 2 if all is.
        blocks: Blocks of a multiprocessor.
        threads: Of a block.
    """

    post: int
    checks: int
    home: int
    blocks: int
    threads: int

    @classmethod
    def of(cls, wiring: Wiring, bits: int, checks: int, *, sums: bool, half: bool, room: int) -> Layout:
        """Fit the state of a shot into ``room`` bytes of shared memory, and as many shots as go beside it."""
        places, width = 4 * len(wiring.check_bits), wiring.check_bits.shape[1]
        post = -(-(bits + 1) // 8) * 8 * 4 + -(-(checks + 1) // 8) * 8
        state = 4 * width * (places if sums else (1 if half else 2) + -(-places // PER_WORD))
        home = 0 if post + state + _PER_BLOCK <= room else 1 if post + _PER_BLOCK <= room else 2
        shared = (post + state, post, 0)[home]
        blocks = max(1, min(_BLOCKS, room // (shared + _PER_BLOCK)))
        threads = min(1024, _THREADS // min(_LARGE_BLOCKS, blocks) // 32 * 32, -(-bits // 32) * 32)
        return cls(post, state, home, max(1, min(blocks, _THREADS // threads)), threads)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return (self.post + self.checks, self.post, 0)[self.home]

    @property
    def scratch(self) -> int:
        """Bytes of global memory of a block."""
        return self.post + self.checks - self.shared


def decode_on(
    code: Code, llr: Tensor, syndromes: Tensor | None, schedule: Schedule, *, posterior: bool, half: bool,
    build: Compile = KERNEL,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return words, posteriors (or nothing), iterations and convergence of every shot, on the device of ``llr``.

    Args:
        build: Compiles the kernel; tests build it for the CPU.
    """
    device, n, m = llr.device, code.num_bits, code.num_checks
    shots, sums = len(llr) if syndromes is None else len(syndromes), schedule.rule == "sum-product"
    wiring = wire(code, device, schedule.layered)
    order = wiring.bit_order.long()
    layout = Layout.of(wiring, n, m, sums=sums, half=half, room=_room(device))
    blocks = min(shots, layout.blocks * _processors(device))
    nowhere = torch.full((len(llr), 1), _NOWHERE, device=device)
    priors = torch.cat([llr.float()[:, order], nowhere], 1)
    gammas = torch.from_numpy(schedule.gammas).to(device)
    gammas = gammas[:, order] if gammas.shape[1] > 1 else gammas
    seen = None if syndromes is None else syndromes[:, wiring.check_order].contiguous()

    def new(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device=device)

    words, ends = new(shots, n, dtype=torch.uint8), new(shots, dtype=torch.uint8)
    posteriors = new(shots if posterior else 0, n, dtype=torch.float32)
    iterations = new(shots, dtype=torch.int32)
    lengths = torch.from_numpy(schedule.lengths).to(device, torch.int32)
    scratch = new(blocks, -(-layout.scratch // 16) * 4, dtype=torch.float32)
    queue = torch.zeros(1, dtype=torch.int32, device=device)
    launch = build(_defines(wiring, layout, schedule, half), device)
    if shots:
        launch(blocks, layout.threads, layout.shared, [
            _problem(wiring, n, m), _pointer(priors), ctypes.c_longlong(n + 1 if len(llr) > 1 else 0), _pointer(gammas),
            ctypes.c_int(gammas.shape[1]), ctypes.c_int(gammas.shape[1] > 1), _pointer(lengths),
            ctypes.c_int(len(lengths)), _pointer(seen), _pointer(words), _pointer(posteriors if posterior else None),
            _pointer(iterations), _pointer(ends), _pointer(scratch), ctypes.c_longlong(scratch.shape[1]),
            _pointer(queue), ctypes.c_int(shots), ctypes.c_float(schedule.scale), ctypes.c_float(schedule.offset),
            ctypes.c_int(schedule.solutions),
        ])  # fmt: skip
    return words, posteriors, iterations, ends.bool()


def _defines(wiring: Wiring, layout: Layout, schedule: Schedule, half: bool) -> dict[str, str | int]:
    kinds = {torch.uint16: "ushort4", torch.int32: "uint4"}
    return {
        "SUM": int(schedule.rule == "sum-product"), "LAYERED": int(schedule.layered), "HALF": int(half),
        "HOME": layout.home, "bit4_t": kinds[wiring.check_bits.dtype], "slot4_t": kinds[wiring.bit_slots.dtype],
        "CHECK_BITS": wiring.shift, "THREADS": layout.threads,
        "BLOCKS": layout.blocks,
    }  # fmt: skip


def _problem(wiring: Wiring, n: int, m: int) -> _Problem:
    tables = (wiring.check_bits, wiring.bit_slots, wiring.check_degrees, wiring.bit_degrees, wiring.level_starts,
              wiring.bit_order)  # fmt: skip
    sizes = (n, m, wiring.bit_slots.shape[1], wiring.check_bits.shape[1], len(wiring.level_starts) - 1)
    return _Problem(*(table.data_ptr() for table in tables), *sizes)


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _room(device: torch.device) -> int:
    """Bytes of shared memory of a multiprocessor."""
    if device.type != "cuda":
        return 16 << 10
    room: int = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    return room


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
