#!/bin/sh
# All that needs a GPU, in one go and installing nothing: the tests side by side (most of their time is compiling), then
# the benchmarks one after the other. Results go to the folder named first.
#   benchmarks/on_gpu.sh benchmarks/results
set -u
out=${1:-benchmarks/results}
logs=$(mktemp -d)
mkdir -p "$out"
export PYTHONPATH=src PYTHONUNBUFFERED=1
tests() {
    name=$1
    shift
    python3 -m pytest -m gpu -p no:cacheprovider -o addopts= -q "$@" >"$logs/$name.txt" 2>&1 &
}
kernels=tests/nn/kernels/test_gpu.py
tests float32 $kernels -k "value and float32"
tests bfloat16 $kernels -k "value and bfloat16"
tests float16 $kernels -k "value and float16 and not bfloat16"
tests kernels $kernels -k "not value"
tests knn tests/points/test_knn.py
tests others tests --ignore=tests/nn/kernels --ignore=tests/points/test_knn.py
# compiles what the peers need, so that the measuring run below finds it made
python3 -c "from fgnn.bench import layer; layer.run('cuda', out='$logs', repeats=1, sweep=False, quiet=True)" >"$logs/warm.txt" 2>&1 &
wait
for name in float32 bfloat16 float16 kernels knn others; do
    printf '%-10s %s\n' "$name" "$(tail -n 1 "$logs/$name.txt")"
    grep -h "^FAILED\|^ERROR\|^E  " "$logs/$name.txt" | cut -c 1-200 | head -n 12
done
python3 -c "from fgnn.bench import layer; layer.run('cuda', out='$out')"
python3 -c "from fgnn.bench import knn; knn.run('cuda', out='$out')"
cat "$logs"/*.txt >"$out/gpu-log.txt"
