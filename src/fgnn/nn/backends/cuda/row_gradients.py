r"""Launch ``row_gradients``: gradients at nodes and at φ on Hopper's matrix units.

With g the gradient at a message and :math:`P_\tau = W_\tau^\top g`, :math:`dh = \sum_\tau \varphi_\tau P_\tau` and
:math:`d\varphi_\tau = P_\tau \cdot h`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fgnn.nn.backends.cuda import options
from fgnn.nn.backends.cuda.options import C_TYPES, PLACES, ROWS, WIDE
from fgnn.nn.backends.triton.launch import Operands, Plan, atomic
from fgnn.nn.backends.triton.tile_sizes import cdiv, processors
from fgnn.runtime.cuda_launch import cuda_binary, launch_cuda
from fgnn.runtime.nvrtc import CudaSource

KERNEL = CudaSource(
    "fgnn.nn.backends.cuda", "row_gradients.cu", "row_gradients", before=("numbers.cu", "rows.cu"), own=True
)
_GROUPS = 3  # warpgroups of a block, as in the kernel
_PLACES = 64  # of a warpgroup
_WIDTHS = (4, 8, 16)


def fits(x: Operands, plan: Plan, grad: Tensor, arg: Tensor) -> bool:
    """Whether the kernel takes these operands."""
    if grad.dtype != x.src.dtype or (plan.maximum and arg.dtype not in PLACES):
        return False
    given = grad, arg if plan.maximum else None
    return x.weight.shape[1] <= WIDE and options.fits_rows(x, plan, _WIDTHS, _shared(x), given)


def _shared(x: Operands) -> int:
    """Bytes of shared memory of a block: W, and φ, its gradient and src of each warp's places."""
    return 1024 + x.weight.shape[0] * WIDE * WIDE * 2 + 4 * _GROUPS * 3648


def launch(grad: Tensor, arg: Tensor, x: Operands, plan: Plan, outs: Sequence[Tensor | None]) -> None:
    """Fill the gradients at dst by row, at src (see ``source_buffer``) and at φ; None for those not wanted."""
    d_dst, d_src, d_coef = outs
    terms, device, width = x.weight.shape[0], x.src.device, plan.sizes.width
    kinds = [torch.float32 if out is None else out.dtype for out in (d_dst, d_coef)]
    macros = (
        *options.defines(x, plan, arg.dtype if plan.maximum else torch.uint8),
        ("W", width),
        ("TERMS", terms),
        ("ATOMIC", int(atomic())),
        ("NEED_COEF", int(d_coef is not None)),
        *(
            pair
            for name, dtype in zip(("DST", "COEF"), kinds, strict=True)
            for pair in ((name, C_TYPES[dtype]), (f"{name}_FLOAT", int(dtype == torch.float32)))
        ),
    )
    binary = cuda_binary(KERNEL, macros, device.index, 128 * _GROUPS, _shared(x), ROWS + "5P")
    units = cdiv(x.src.shape[0] * plan.sizes.rows * width, _PLACES)
    given = [grad, arg if plan.maximum else None, d_dst, d_src, d_coef]
    launch_cuda(binary, (min(units, processors(device)), 1, 1), [*options.row_arguments(x, plan), *given])
