#!/bin/sh
# Check the kernels for out-of-bounds accesses and races with NVIDIA's compute-sanitizer; needs a GPU.
#   benchmarks/sanitize.sh
set -u
export PYTHONPATH=src PYTORCH_NO_CUDA_MEMORY_CACHING=1
status=0
python3 -m tests.nn.backends.triton.every_kernel >/dev/null || exit 1 # compile outside the checker, which is slow
for tool in memcheck racecheck; do
    compute-sanitizer --tool $tool --error-exitcode 9 python3 -m tests.nn.backends.triton.every_kernel || status=$?
done
exit $status
