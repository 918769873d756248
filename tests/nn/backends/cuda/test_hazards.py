"""The search for registers that are touched too early finds them, and nothing else."""

from __future__ import annotations

import pytest

from tests.nn.backends.cuda.hazards import hazards

PRODUCT = "HGMMA.64x64x16.F32.BF16 R24, R88, gdesc[UR4], R24, gsb0 ;"
OTHER = "HGMMA.64x64x16.F32.BF16 R56, R92, gdesc[UR4], R56, gsb0 ;"
READ = "FADD R2, R3, R55 ;"


def code(*lines: str) -> str:
    return "\n".join(f"        /*{16 * k:04x}*/    {line}" for k, line in enumerate(lines))


@pytest.mark.parametrize(
    "lines",
    [
        [PRODUCT, "WARPGROUP.DEPBAR.LE gsb0, 0x0 ;", READ],
        [PRODUCT, OTHER, "WARPGROUP.DEPBAR.LE gsb0, 0x1 ;", READ],  # the first is complete
        [PRODUCT, "FADD R2, R88, R3 ;"],  # operands may be read
        [PRODUCT, PRODUCT, "WARPGROUP.DEPBAR.LE gsb0, 0x0 ;", READ],  # to the same sums, in order
        [PRODUCT, "BRA 0x30 ;", READ, "EXIT ;"],
        [PRODUCT, "STG.E R90, [UR4] ;"],
    ],
)
def test_nothing_is_found_where_nothing_is_wrong(lines: list[str]) -> None:
    assert hazards(code(*lines)) == []


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ([PRODUCT, READ], "10"),
        ([PRODUCT, OTHER, "WARPGROUP.DEPBAR.LE gsb0, 0x1 ;", "FADD R2, R3, R87 ;"], "30"),
        ([PRODUCT, "MOV R91, R3 ;"], "10"),  # an operand
        ([PRODUCT, "LDG.E.128 R20, [UR2] ;", "LDG.E.128 R22, [UR2] ;"], "20"),  # four registers
        ([READ, PRODUCT, "@P0 BRA 0x0 ;", "EXIT ;"], "0"),  # in the next iteration
        ([PRODUCT, "@P1 BRA 0x30 ;", "WARPGROUP.DEPBAR.LE gsb0, 0x0 ;", READ], "30"),  # on one of two paths
        ([PRODUCT, "HGMMA.64x64x16.F32.BF16 R120, R52, gdesc[UR4], R120, gsb0 ;"], "10"),  # sums as operands
    ],
)
def test_a_register_of_a_running_product_is_found(lines: list[str], where: str) -> None:
    (found,) = hazards(code(*lines))
    assert found.startswith(f"{where}: ")
