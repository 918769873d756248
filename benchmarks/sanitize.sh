#!/bin/sh
# Looks for accesses out of bounds and for races in the kernels, with NVIDIA's compute-sanitizer; needs a GPU.
#   benchmarks/sanitize.sh
set -u
export PYTHONPATH=src PYTORCH_NO_CUDA_MEMORY_CACHING=1
status=0
python3 -m tests.nn.backends.triton.every_kernel >/dev/null || exit 1 # compiled outside the checker, which slows all it watches
for tool in memcheck racecheck; do
    compute-sanitizer --tool $tool --error-exitcode 9 python3 -m tests.nn.backends.triton.every_kernel || status=$?
done
exit $status
