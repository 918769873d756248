"""Alternating-directions dual decomposition, batched, with branch and bound on top."""

from fgnn.infer.ad3.solver import solve_ad3

__all__ = ["solve_ad3"]
