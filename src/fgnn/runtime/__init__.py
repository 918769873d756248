"""The machine underneath: devices, processes, Triton, determinism, progress, and resource errors."""
