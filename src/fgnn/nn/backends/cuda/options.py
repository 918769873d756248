"""What the CUDA kernels have in common: which operands they take, and their macros."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from fgnn.nn.backends.triton.launch import Operands, Plan
from fgnn.runtime.cuda_launch import Defines
from fgnn.runtime.nvrtc import CompileError, CudaKernel, can_compile

TERMS = 16  # values of τ, at most: the depth of a product
WIDE = 64  # columns of a block
_ALIGNED = 16  # bytes
_PROBE = r"""
asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
asm volatile("red.global.add.v4.f32 [%0], {%1, %1, %1, %1};" ::"l"(x), "f"(0.0f));
"""
_FEW = 128  # places, below which a row of Triton's kernels is as good
_MOST = 2**31 - 2**20  # rows, so that indices beyond the last tile fit 32 bits
# Names of dtypes; numbers in half precision are moved as bits.
C_TYPES = {torch.float32: "float", torch.bfloat16: "unsigned short", torch.float16: "unsigned short"}
PLACES = {torch.uint8: "unsigned char", torch.int32: "int"}


def fits(x: Operands, plan: Plan, shared: int, given: Sequence[Tensor | None]) -> bool:
    """Whether the kernels take these operands: at most 16 terms in half precision, indices of 32 bits.

    Args:
        shared: Bytes of shared memory of a block.
        given: All tensors that they read or write.
    """
    if not (x.src.is_cuda and x.src.dtype != torch.float32 and x.coef is not None):
        return False
    if not x.coef.is_floating_point() or not _capable(x.src.device, shared):
        return False
    terms, m, n = x.weight.shape
    source, edge, table, _, ptr = plan.tensors
    rows = max(plan.sizes.rows, plan.sizes.destinations, x.src.shape[1], source.shape[0]) * x.src.shape[0]
    return (
        0 < terms <= TERMS
        and min(n, m) > 0
        and n % 8 == m % 8 == 0
        and 0 < rows <= _MOST
        and {i.dtype for i in (source, edge, table, ptr)} == {torch.int32}
        and all(t is None or t.data_ptr() % _ALIGNED == 0 for t in (x.dst, x.src, x.coef, x.weight, *given))
    )


@cache
def _capable(device: torch.device, shared: int) -> bool:
    """Whether a block may have so many bytes of shared memory, and kernels can be compiled."""
    most = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
    return int(most) >= shared and can_compile() and _compiles(device)


@cache
def _compiles(device: torch.device) -> bool:
    """Whether this compiler and this driver know the instructions of the kernels: try it with a small one."""
    probe = _PROBE if _hopper(device) else ""
    try:
        CudaKernel(f'extern "C" __global__ void probe(float* x) {{ {probe} }}', "probe", (), device, _hopper(device))
    except CompileError as error:  # others, such as too little memory, may be gone at the next call
        reason = str(error).strip().splitlines()[0]
        warnings.warn(f"fgnn's CUDA kernels do not compile here, Triton's are used instead: {reason}", stacklevel=2)
        return False
    return True


@cache
def _hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


def fits_rows(x: Operands, plan: Plan, widths: Sequence[int], shared: int, given: Sequence[Tensor | None]) -> bool:
    """Whether the kernels over rows take them too: Hopper's matrix units, and W in shared memory."""
    sizes = plan.sizes
    return (
        fits(x, plan, shared, given)
        and _hopper(x.src.device)
        and x.weight.shape[2] <= WIDE
        and sizes.width in widths
        and sizes.rows * sizes.width * x.src.shape[0] >= _FEW
    )


def row_arguments(x: Operands, plan: Plan) -> list[Tensor | int | None]:
    """``Rows`` of the kernels."""
    source, edge, table = (i if i.numel() else None for i in plan.tensors[:3])
    batch, sources, n = x.src.shape
    terms, m, _ = x.weight.shape
    sizes = plan.sizes
    return [
        x.dst, x.src, x.coef, x.weight, source, edge, table,
        sizes.rows, batch * sizes.rows, sizes.destinations, sources, plan.tensors[0].shape[0], n, m, terms, sizes.arity,
    ]  # fmt: skip


ROWS = "7P9i4x"  # their types


def defines(x: Operands, plan: Plan, places: torch.dtype) -> Defines:
    """The macros of all kernels; ``places`` is the dtype in which winners are numbered."""
    assert x.coef is not None
    return (
        ("HALF", int(x.src.dtype == torch.float16)),
        ("RELU", int(plan.relu)),
        ("HAS_DST", int(x.dst is not None)),
        ("HAS_EDGE", int(plan.tensors[1].numel() > 0)),
        ("OWN_COEF", int(x.coef.dim() == 3)),
        ("ARG", PLACES[places]),
        ("MAX", int(plan.maximum)),
    )
