"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Without a GPU the kernels are tested by Triton's interpreter, which is chosen when triton is first imported.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# One profile for all: no deadline (a first call may compile or import), examples derived from the test itself, so
# that a red run stays red.
settings.register_profile(
    "fgnn", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fgnn")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, unless it was asked for: then it has to fail."""
    if "gpu" in config.getoption("markexpr"):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu") is not None:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m gpu`` import only files with such tests: a GPU machine may lack packages that others need."""
    if config.getoption("markexpr") != "gpu" or collection_path.suffix != ".py":
        return None
    return "mark.gpu" not in collection_path.read_text(encoding="utf-8") or None


@pytest.fixture(autouse=True)
def float32_products() -> Iterator[None]:
    """Training on a GPU allows TF32 for the whole process: not for the tests that follow."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.backends.cuda.matmul.fp32_precision == "tf32":
        torch.set_float32_matmul_precision("highest")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of benchmark data: FGNN_DATA, or ``shared/data`` beside the project; the test skips without it."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("FGNN_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no benchmark data at {folder} (set FGNN_DATA)")
    return folder
