"""The Triton backend: gathers, matrices, messages and aggregation fused into few kernels."""
