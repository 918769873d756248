"""Messages in half precision with a matrix for each edge, by CUDA kernels, which NVRTC compiles."""
