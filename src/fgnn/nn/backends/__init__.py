"""How the layers are computed: plain torch, or fused Triton kernels."""
