#!/bin/sh
# Benchmarks and tests that need a GPU, without installing anything: first the benchmarks in sequence, then the tests in
# parallel (most of their time is compilation). Results go to the given folder.
#   benchmarks/on_gpu.sh benchmarks/results
set -u
out=${1:-benchmarks/results}
logs=$(mktemp -d)
mkdir -p "$out"
export PYTHONPATH=src PYTHONUNBUFFERED=1
# compile the kernels and the peers in parallel before measuring
python3 -c "from fgnn.bench import layer; layer.run('cuda', out='$logs', repeats=1, sweep=False, quiet=True)" >"$logs/warm.txt" 2>&1 &
python3 -c "from fgnn.bench import layer; layer._sweep('cuda', 0, 1, True)" >"$logs/warm-sweep.txt" 2>&1 &
python3 -c "from fgnn.bench import networks; networks.point_network('cuda', 0, 1)" >"$logs/warm-points.txt" 2>&1 &
wait
python3 -c "from fgnn.bench import layer; layer.run('cuda', out='$out')" 2>"$logs/layer.txt"
python3 -c "from fgnn.bench import knn; knn.run('cuda', out='$out')" 2>"$logs/knn.txt"
tail -n 4 "$logs/layer.txt" "$logs/knn.txt"
tests() {
    name=$1
    shift
    {
        python3 -m pytest -m gpu -p no:cacheprovider -o addopts= -q "$@" >"$logs/test-$name.txt" 2>&1
        printf '%-10s %s\n' "$name" "$(tail -n 1 "$logs/test-$name.txt")"
        grep -h "^FAILED\|^ERROR\|^E  " "$logs/test-$name.txt" | cut -c 1-200 | head -n 12
    } &
}
kernels=tests/nn/backends/triton/test_gpu.py
tests float32 $kernels -k "value and float32"
tests bfloat16 $kernels -k "value and bfloat16"
tests float16 $kernels -k "value and float16 and not bfloat16"
tests kernels $kernels -k "not value"
tests linear tests/nn/backends --ignore=$kernels
tests knn tests/points/test_knn.py
tests others tests --ignore=tests/nn/backends --ignore=tests/points/test_knn.py
wait
cat "$logs"/*.txt >"$out/gpu-log.txt"
