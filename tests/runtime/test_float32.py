"""Whether float32 products may round to TF32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fgnn.nn.call_key import modes
from fgnn.runtime.float32 import allows_tf32


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Neither of torch's interfaces resets what the other set."""
    yield
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(("precision", "allowed"), [("highest", False), ("high", True), ("medium", True)])
def test_the_older_interface(precision: str, allowed: bool) -> None:
    torch.set_float32_matmul_precision(precision)
    assert allows_tf32() is allowed


@pytest.mark.parametrize(("precision", "allowed"), [("ieee", False), ("tf32", True)])
def test_the_newer_interface(precision: str, allowed: bool) -> None:
    """After which the older one's getter raises."""
    torch.backends.cuda.matmul.fp32_precision = precision
    assert allows_tf32() is allowed


def test_a_recording_belongs_to_a_precision() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    rounded = modes("cpu")
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert modes("cpu") != rounded
