"""Choosing a device."""

from __future__ import annotations

import pytest
import torch

from fgnn.runtime.devices import check_device, device_name, pick_device


def test_an_unusable_device_is_refused() -> None:
    assert pick_device("cpu") == check_device(torch.device("cpu")) == torch.device("cpu")
    assert "cores" in device_name("cpu")
    for choose in (pick_device, check_device):
        with pytest.raises(ValueError, match="gpu7x"):
            choose("gpu7x")
        if not torch.cuda.is_available():
            with pytest.raises(ValueError, match="no CUDA device"):
                choose("cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_auto_falls_back_to_the_cpu() -> None:
    assert pick_device("auto").type == "cpu"
