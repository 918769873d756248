"""The machine underneath: devices, processes, Triton, determinism, and resources that run out."""
