"""Compile every kernel for a GPU without having one; a separate program, because import selects the interpreter."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fgnn.nn.backends.triton import combine_kernels, linear, linear_kernels, position_kernels
from fgnn.nn.backends.triton import edge_row_kernels as rows_kernels
from fgnn.nn.backends.triton import typed_edge_kernels as typed_kernels
from fgnn.points import sampling_kernels

INDICES = ("source", "edge", "table", "walk", "by_kind", "node_ptr", "kind_ptr", "ptr", "row_ptr", "kind", "order")
SUMS = ("d_weight", "partial", "d_src")
ROWS = {"N": 64, "M": 64, "W": 8, "BR": 8, "BN": 64, "BM": 64, "RELU": True, "HAS_DST": True, "OWN_COEF": False}
TYPED = {"G": 1, "N": 64, "M": 64, "BI": 64, "BN": 64, "BM": 64, "RELU": True, "HAS_DST": True, "MAX": True}
BACK = {"NEED_DST": True, "NEED_SRC": True}
LINEAR = {"M": 16, "BR": 128, "BM": 16} | {f"K{j}": 20 for j in range(4)} | {f"BK{j}": 32 for j in range(4)}
BACK_LINEAR = {"BIASES": 5, "NEED_WEIGHT": True, "AT1": 336, "AT2": 656, "AT3": 992}
POSITIONS = {"H": 32, "G": 4, "BS": 32, "BC": 128, "BA": 16, "BD": 16, "BT": 16, "PREC": "tf32x3"} | {
    f"D{j}": 8 for j in range(4)
}
COMBINE = {"M": 64, "G": 1, "HAS_BIAS": True, "R": 64, "C": 64}
SHARED = 200 * 1024  # bytes that a program may take; the GPUs that are ``roomy`` for so wide a Θ have more
WIDE = [(128, 128), (128, 256), (256, 128), (64, 256), (256, 64)]


def wide_options(m: int, k: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that wide layers are launched with, each way."""
    forward = linear._forward_options(m, (k, k), True, torch.bfloat16, "ieee", True)[-1]
    return forward, linear._backward_options(m, (k, k), 3, True, torch.bfloat16, "ieee", True)[-1]


COUNTS = ("shares", "entries", "blocks")
JOINED = (
    linear_kernels.linear_forward, linear_kernels.linear_backward, position_kernels.positions_forward,
    position_kernels.positions_backward, position_kernels.networks_backward,
)  # fmt: skip
CHOSEN = (typed_kernels.typed_forward, typed_kernels.typed_nodes, typed_kernels.typed_weight)
CASES: list[tuple[Any, dict[str, Any]]] = [
    *(
        (kernel, ROWS | more | {"A": a, "HAS_EDGE": a == 0, "TYPED": typed, "MAX": maximum})
        for kernel, more in (
            (rows_kernels.rows_forward, {}),
            (rows_kernels.rows_backward, BACK | {"ATOMIC": True, "T": 16, "BT": 16}),
            (rows_kernels.rows_backward, BACK | {"ATOMIC": False, "T": 20, "BT": 16, "M": 200}),
            (rows_kernels.rows_weight, {"BT": 4, "AHEAD": True}),
            (rows_kernels.rows_weight, {"BT": 4, "AHEAD": False}),
        )
        for a, typed, maximum in ((8, False, True), (8, True, True), (0, False, False))
    ),
    (typed_kernels.typed_forward, TYPED | {"A": 0, "BY_ITEM": False}),
    (typed_kernels.typed_forward, TYPED | {"A": 0, "BY_ITEM": False, "G": 2}),
    (typed_kernels.typed_forward, TYPED | {"A": 8, "BY_ITEM": True}),
    (typed_kernels.typed_nodes, TYPED | {"AHEAD": True}),
    (typed_kernels.typed_nodes, TYPED | {"AHEAD": True, "G": 4}),
    (typed_kernels.typed_nodes, TYPED | {"AHEAD": False, "M": 100}),
    (typed_kernels.typed_nodes, TYPED | {"AHEAD": True, "MAX": False, "HAS_DST": False}),
    (typed_kernels.places_backward, TYPED | BACK | {"A": 8, "ATOMIC": True}),
    (typed_kernels.typed_weight, TYPED | {"A": 0, "BY_ITEM": False}),
    (typed_kernels.typed_weight, TYPED | {"A": 0, "BY_ITEM": False, "G": 4, "HAS_DST": False}),
    (typed_kernels.typed_weight, TYPED | {"A": 8, "BY_ITEM": True}),
    (linear_kernels.linear_forward, LINEAR | {"RELU": True, "K1": 0, "K2": 0, "K3": 0}),
    (linear_kernels.linear_forward, LINEAR | {"RELU": False}),
    (linear_kernels.linear_backward, LINEAR | BACK_LINEAR | {"K3": 0}),
    (linear_kernels.linear_backward, LINEAR | BACK_LINEAR),
    *((linear_kernels.linear_forward, wide_options(m, k)[0]) for m, k in WIDE),
    *((linear_kernels.linear_backward, wide_options(m, k)[1]) for m, k in WIDE),
    (position_kernels.positions_forward, POSITIONS | {"D2": 0, "D3": 0}),
    (position_kernels.positions_backward, POSITIONS),
    (position_kernels.networks_backward, POSITIONS),
    (position_kernels.networks_backward, POSITIONS | {"others": None, "total": None}),
    *(
        (combine_kernels.combine_forward, COMBINE | {"P": parts, "MAX": maximum, "RELU": True, "HAS_EMPTY": True})
        for parts, maximum in ((1, True), (2, True), (4, False))
    ),
    (combine_kernels.combine_forward, COMBINE | {"G": 4, "P": 1, "MAX": True, "RELU": True, "HAS_EMPTY": True}),
    (combine_kernels.combine_backward, COMBINE | {"P": 2, "MAX": True}),
    (combine_kernels.combine_backward, COMBINE | {"G": 4, "P": 1, "MAX": False}),
    (sampling_kernels.farthest, {"BP": 2048}),
]


def compile_kernel(kernel: Any, sizes: dict[str, Any]) -> None:
    """Compile for compute capability 9.0, in bfloat16."""
    sizes = {"CT": tl.bfloat16, "PREC": "ieee", **sizes}
    if "NEED_DST" in sizes and "TYPED" in sizes:
        sizes["NEED_COEF"] = not sizes["TYPED"]

    def kind(name: str) -> str:
        if name in sizes:
            return "constexpr"
        if kernel in JOINED:
            if name[-1].isdigit() and not sizes.get(f"K{name[-1]}", sizes.get(f"D{name[-1]}", 1)):
                return "constexpr"  # an absent layer or group
            return "i32" if name.rstrip("0123") in ("rows", "A", "splits", "T", "C", "width", *COUNTS) else "*fp32"
        if kernel in CHOSEN and name[-1].isdigit():
            if int(name[-1]) >= sizes["G"]:
                return "constexpr"  # an absent group
            name = name[:-1]
        if name in INDICES:
            return "*i32"
        if name in ("points", "start", "index"):
            return "*fp32" if name == "points" else "*i64"
        if kernel in (combine_kernels.combine_forward, combine_kernels.combine_backward):
            stem = name.rstrip("0123")
            there = sizes["G"] * sizes["P"] if stem in ("x", "d") else sizes["G"]
            kinds = {"which": "*u8", "empty": "*i1", "bias": "*fp32", "partial": "*fp32", "steps": "i32"}
            kinds |= {"rows": "i32", "D": "i32"}
            return "constexpr" if name != stem and int(name[-1]) >= there else kinds.get(stem, "*bf16")
        if name == "coef" and sizes["TYPED"]:
            return "*i64"
        if name in ("dst", "src", "coef", "weight", "grad", "out", "d_dst", "d_coef", "arg") or name in SUMS:
            return "*fp32" if name in SUMS else "*u8" if name == "arg" else "*bf16"
        return "*fp32" if name in ("x", "x2", "weight2", "bias", "y", "grad2", "d_x", "d_x2", "out2") else "i32"

    names = kernel.arg_names
    sizes = {name: value for name, value in sizes.items() if name in (*names, "num_warps", "num_stages")}
    sizes |= {name: None for name in names if kind(name) == "constexpr" and name not in sizes}
    source = ASTSource(
        fn=kernel,
        signature={name: kind(name) for name in names},
        constexprs={(names.index(name),): value for name, value in sizes.items() if name in names},
    )
    options = {"num_warps": sizes.pop("num_warps", 4), "num_stages": sizes.pop("num_stages", 2)}
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert binary.metadata.shared <= SHARED, (kernel.__name__, sizes, binary.metadata.shared)


if __name__ == "__main__":
    for one, given in CASES:
        compile_kernel(one, given)
    print(f"{len(CASES)} compiled")
