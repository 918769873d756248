"""Choose, check, name and time the device that computes."""

from __future__ import annotations

import os
import time

import torch


def pick_device(name: torch.device | str) -> torch.device:
    """Return the device of that name; ``auto`` is CUDA where available, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return check_device(name)


def check_device(device: torch.device | str) -> torch.device:
    """Return the device, or raise `ValueError` if torch cannot use it on this machine."""
    try:
        checked = torch.device(device)
    except RuntimeError:
        raise ValueError(f"Expected a device such as cpu or cuda:0 (got {device!r})") from None
    if checked.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"Expected a device this machine has (got {device}, and torch sees no CUDA device)")
    return checked


def device_name(device: torch.device | str) -> str:
    """Return the model of a GPU, or the CPU with its number of cores."""
    device = torch.device(device)
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{device.type}, {os.cpu_count()} cores"


def synchronised_time(device: torch.device) -> float:
    """Wait for the device to finish its queued work; return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def memory_bytes(device: torch.device) -> int:
    """Return the memory of a GPU, or that installed in this machine (2^62 if unknown)."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not available on every system
        return 1 << 62
