"""Launch exact samples of subgraphs, in many models at once on a GPU; the kernel is in ``sampling.cu``."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fgnn.infer.search.arrays import Arrays, Ints, Layout
from fgnn.infer.search.ball import random_ball
from fgnn.infer.search.chance import generator
from fgnn.infer.search.sampling_plan import SamplingPlan, Words, lay_out
from fgnn.infer.search.subgraph import Workspace, plan_subgraph, workspace
from fgnn.pgm import ModelBatch
from fgnn.runtime.nvrtc import Compile, CudaSource

_MOST_STATES = 256  # of a variable: a byte
_MOST_ENTRIES = 1 << 16  # of a table: an address of 16 bits
_MOST_DRAWN = 1 << 24  # joint states of all steps of a plan
_THREADS = 256  # of a block, or more where its messages leave room for few blocks
_RESIDENT = 2048  # threads of a multiprocessor
_PER_BLOCK = 1024  # bytes of shared memory that the hardware takes for itself

KERNEL = CudaSource("fgnn.infer.search", "sampling.cu", "sample_subgraph", ("-use_fast_math",))


class _Plan(ctypes.Structure):
    """`Plan` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "steps", "sources", "alone", "fixed", "scope", "strides", "levels", "owners", "rows")),
        *((name, ctypes.c_int) for name in ("num_steps", "num_sources", "num_levels", "num_given", "room",
                                            "num_items", "num_variables", "num_unary", "num_values")),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A plan on a device."""

    tensors: tuple[Tensor, ...]  # in the order of `_Plan`; they must outlive the launch
    sizes: tuple[int, ...]
    messages: int  # bytes
    scratch: int  # bytes for a block, without the messages
    variables: tuple[int, ...]  # that are free


def unsupported(batch: ModelBatch) -> str | None:
    """Why the kernel cannot read these models; None if it can."""
    if len(batch.factors) > len(batch.tables):
        return "factors other than tables"
    if batch.unary.shape[2] > _MOST_STATES:
        return f"variables of more than {_MOST_STATES} states"
    if any(int(np.prod(t.shape)) > _MOST_ENTRIES for t in batch.tables):
        return f"tables of more than {_MOST_ENTRIES} entries"
    return None


class Sampler:
    """Models on a device, of which random subgraphs are sampled or solved given the rest.

    All models free the same variables, so that one plan serves them. What is forbidden costs a penalty.

    Args:
        batch: Models of tables.
        seed: Of the choice of subgraphs.
        build: Compiles the kernel; tests build it for the CPU.
    """

    def __init__(self, batch: ModelBatch, seed: int, build: Compile = KERNEL) -> None:
        reason = unsupported(batch)
        if reason is not None:
            raise ValueError(f"Expected tables that the kernel can read (got {reason})")
        self.batch, self.device, self.build = batch, batch.device, build
        none = dict.fromkeys(("unary", "values", "sums"), np.zeros(0))
        fields: dict[str, Any] = {**Layout.of_batch(batch).fields, **none, "weights": np.zeros(0, np.int64)}
        self.arrays = Arrays(**fields)
        values = [t.values.flatten(1) for t in batch.tables]
        joined = torch.cat(values, 1) if values else batch.unary.new_zeros(len(batch), 0)
        unary = batch.unary[:, batch.state_mask]
        penalty = _penalty(joined, len(self.arrays.first) - 1, unary)[:, None]
        self.values = torch.where(joined.isneginf(), -penalty, joined).float().contiguous()
        self.unary = torch.where(unary.isneginf(), -4 * penalty, unary).float().contiguous()
        self.rng = generator(seed, 3)
        self.workspace: Workspace = workspace(self.arrays, 1, _MOST_DRAWN)
        self.scratch = torch.empty(0, dtype=torch.uint8, device=self.device)

    def plan(self, cells: int, size: int | None = None) -> Subgraph:
        """A random subgraph of a ball of ``size`` variables, with at most ``cells`` joint states in a step."""
        m = self.arrays
        ball = random_ball(m, self.workspace, size or len(m.cards), self.rng)
        order, first, scope, _ = plan_subgraph(m, self.workspace, ball, cells, _MOST_DRAWN, self.rng)
        return self._load(lay_out(m, order, first, scope))

    def _load(self, plan: SamplingPlan) -> Subgraph:
        def put(array: Ints | Words) -> Tensor:
            flat = np.ascontiguousarray(array, np.uint16 if array.dtype == np.uint16 else np.int32)
            return torch.from_numpy(flat).to(self.device)

        tensors = tuple(put(array) for array in plan[:9])
        sizes = (len(plan.steps), len(plan.sources), len(plan.levels) - 1, plan.given, plan.room, len(plan.owners),
                 self.batch.num_variables, self.unary.shape[1], self.values.shape[1])  # fmt: skip
        scratch = 4 * (len(plan.sources) + plan.given) + len(plan.owners)
        return Subgraph(tensors, sizes, 8 * plan.room, scratch, tuple(plan.steps[:, 4].tolist()))

    def sample(self, subgraph: Subgraph, states: Tensor, temperatures: Tensor, seed: int) -> None:
        """Draw the free variables of ``states`` (R · B, N), uint8, at temperatures (R · B,); 0 solves for the best.

        Row ``r`` is an assignment of model ``r`` modulo B.
        """
        if not subgraph.variables:
            return
        count = self.batch.num_variables
        room, processors = _machine(self.device)
        messages = subgraph.messages
        keep_messages = messages + _PER_BLOCK <= room
        keep_states = messages * keep_messages + count + _PER_BLOCK <= room
        shared = messages * keep_messages + count * keep_states
        blocks = max(2, min(_RESIDENT // _THREADS, room // (shared + _PER_BLOCK)))  # of a multiprocessor
        threads = max(_THREADS, 1 << (_RESIDENT // blocks).bit_length() - 1)
        step = -(-(subgraph.scratch + messages * (not keep_messages)) // 16) * 16
        launched = min(len(states), blocks * processors)
        if self.scratch.numel() < launched * step:
            self.scratch = torch.empty(launched * step, dtype=torch.uint8, device=self.device)
        defines = {
            "THREADS": threads,
            "BLOCKS": _RESIDENT // threads,
            "STATES": max(1, self.batch.unary.shape[2]),
            "SHARED_STATES": int(keep_states),
            "SHARED_MESSAGES": int(keep_messages),
        }
        pointers = [tensor.data_ptr() for tensor in subgraph.tensors]
        self.build(defines, self.device)(launched, threads, shared, [
            _Plan(*pointers, *subgraph.sizes), _pointer(self.unary), _pointer(self.values), _pointer(temperatures),
            _pointer(states), ctypes.c_int(len(self.batch)), ctypes.c_int(len(states)), ctypes.c_uint(seed),
            _pointer(self.scratch), ctypes.c_longlong(step),
        ])  # fmt: skip


def _penalty(values: Tensor, factors: int, unary: Tensor) -> Tensor:
    """What something forbidden costs in each model: more than a few factors can gain."""
    finite = torch.where(values.isfinite(), values, 0.0).abs().sum(1) / max(1, factors)
    alone = torch.where(unary.isfinite(), unary, 0.0).abs().sum(1) / max(1, unary.shape[1])
    mean = finite + alone
    return torch.where(mean > 0, 4 * mean, 1.0)


def resident_blocks(device: torch.device) -> int:
    """Blocks that the device runs beside each other at most; 1 on a CPU."""
    return _machine(device)[1] * (_RESIDENT // _THREADS if device.type == "cuda" else 1)


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _machine(device: torch.device) -> tuple[int, int]:
    """Bytes of shared memory of a multiprocessor, and the number of these."""
    if device.type != "cuda":
        return 1 << 17, 1
    properties = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_multiprocessor, properties.multi_processor_count
