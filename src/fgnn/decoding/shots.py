"""Launch belief propagation on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fgnn.runtime.triton_support import power_of_two

if TYPE_CHECKING:
    from fgnn.decoding.belief import Schedule
    from fgnn.decoding.code import Code

_TILE = 4  # edges of a check whose loads are under way together


@dataclass(frozen=True)
class Wiring:
    """The edges of a code as dense tables, -1 where there is none.

    Attributes:
        check_bits: The bit at each place of each check.  # shape: (places, checks, padded)
        bit_slots: Where the messages to each bit are, as indices of ``check_bits``.  # shape: (places, bits, padded)
    """

    check_bits: Tensor
    bit_slots: Tensor

    @classmethod
    def of(cls, code: Code, device: torch.device, block: int) -> Wiring:
        place = np.arange(code.num_edges) - code.starts[code.checks]
        rows = -(-max(1, int(place.max(initial=0)) + 1) // _TILE) * _TILE
        checks = -(-code.num_checks // block) * block
        check_bits = np.full((rows, checks), -1, np.int32)
        check_bits[place, code.checks] = code.bits
        starts, edges = code.by_bit
        own = code.bits[edges]
        turn = np.arange(code.num_edges) - starts[own]
        bit_slots = np.full(
            (power_of_two(int(turn.max(initial=0)) + 1), -(-code.num_bits // 1024) * 1024), -1, np.int32
        )
        bit_slots[turn, own] = place[edges] * checks + code.checks[edges]
        return cls(torch.from_numpy(check_bits).to(device), torch.from_numpy(bit_slots).to(device))


def decode_on(
    code: Code, llr: Tensor, syndromes: Tensor | None, schedule: Schedule, *, posterior: bool, half: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return words, posteriors (or nothing), iterations and convergence of every shot, on the device of ``llr``."""
    from fgnn.decoding.shot_kernels import decode_shots

    if schedule.layered:
        raise ValueError("Expected the schedule flooding on a GPU (got layered)")
    device = llr.device
    shots, n, m = len(llr) if syndromes is None else len(syndromes), code.num_bits, code.num_checks
    block = min(1024, power_of_two(m))
    wiring = Wiring.of(code, device, block)
    (places, checks), (degree, bits) = wiring.check_bits.shape, wiring.bit_slots.shape
    zeros = torch.zeros(shots, m, dtype=torch.uint8, device=device) if syndromes is None else syndromes.contiguous()
    gammas = torch.from_numpy(schedule.gammas).to(device)
    slots = min(shots, _slots(device, places * checks))

    def new(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device=device)

    words, ends = new(shots, n, dtype=torch.uint8), new(shots, dtype=torch.uint8)
    posteriors = new(shots if posterior else 0, n, dtype=torch.float32)
    iterations = new(shots, dtype=torch.int32)
    decode_shots[(slots,)](
        wiring.check_bits, wiring.bit_slots, llr.float().contiguous(), n if len(llr) > 1 else 0, gammas,
        gammas.shape[1], int(gammas.shape[1] > 1), torch.from_numpy(schedule.lengths).to(device, torch.int32),
        len(schedule.lengths), zeros, words, posteriors, iterations, ends,
        new(slots, places * checks, dtype=torch.float16 if half else torch.float32),
        new(slots, bits, dtype=torch.float32),
        torch.zeros(1, dtype=torch.int32, device=device), shots, n, bits, m, checks, places, float(schedule.scale),
        float(schedule.offset), schedule.solutions, SUM=schedule.rule == "sum-product", KEEP=posterior, DV=degree,
        BC=block, BN=min(1024, power_of_two(n)), U=_TILE, num_warps=max(1, min(32, block // 32)),
    )  # fmt: skip
    return words, posteriors, iterations, ends.bool()


def _slots(device: torch.device, edges: int) -> int:
    """Programs at once: two per multiprocessor, more of them for small codes."""
    if device.type != "cuda":
        return 3
    processors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * max(2, min(16, 32_768 // max(1, edges)))
