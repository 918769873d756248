"""Launch ``rows_forward``: the maximum over rows of edges on Hopper's matrix units."""

from __future__ import annotations

from torch import Tensor

from fgnn.nn.backends.cuda import options
from fgnn.nn.backends.cuda.options import C_TYPES, ROWS, WIDE
from fgnn.nn.backends.triton.launch import Operands, Plan
from fgnn.nn.backends.triton.tile_sizes import cdiv, processors
from fgnn.runtime.cuda_launch import cuda_binary, launch_cuda
from fgnn.runtime.nvrtc import CudaSource

KERNEL = CudaSource(
    "fgnn.nn.backends.cuda", "rows_forward.cu", "rows_forward", before=("numbers.cu", "rows.cu"), own=True
)
_GROUPS = 3  # warpgroups of a block, as in the kernel
_PLACES = 128  # of a warpgroup
_WIDTHS = (4, 8, 16, 32)


def fits(x: Operands, plan: Plan) -> bool:
    """Whether the kernel takes these operands."""
    return plan.maximum and options.fits_rows(x, plan, _WIDTHS, _shared(x), ())


def _shared(x: Operands) -> int:
    """Bytes of shared memory of a block: W, and φ of each warp's places."""
    return 1024 + x.weight.shape[0] * WIDE * WIDE * 2 + 4 * _GROUPS * 1024


def forward(x: Operands, plan: Plan, value: Tensor, place: Tensor) -> None:
    """Fill ``value`` and ``place`` (total rows, m): the maximum over each row, and where it is."""
    m = x.weight.shape[1]
    device, width = x.src.device, plan.sizes.width
    macros = (
        *options.defines(x, plan, place.dtype),
        ("W", width),
        ("VALUE", C_TYPES[value.dtype]),
        ("VALUE_FLOAT", int(value.element_size() == 4)),
    )
    binary = cuda_binary(KERNEL, macros, device.index, 128 * _GROUPS, _shared(x), ROWS + "2P")
    units, columns = cdiv(x.src.shape[0] * plan.sizes.rows * width, _PLACES), cdiv(m, WIDE)
    blocks = min(units, max(1, processors(device) // columns))
    launch_cuda(binary, (blocks, columns, 1), [*options.row_arguments(x, plan), value, place])
