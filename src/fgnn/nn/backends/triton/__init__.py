"""Fused kernels for the aggregate of Q(t_e) · M(·), in Triton: gathers, matrix, message and maximum in one pass."""

from fgnn.nn.backends.triton.messages import aggregate_fused

__all__ = ["aggregate_fused"]
