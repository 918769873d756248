#!/bin/sh
# The trainings of the MAP experiment on one GPU, in parts: sh benchmarks/train_map.sh bench|probe|deep|more|last|paper|tables|layers [OUT]
# An interrupted part continues when run again on the same machine (runs/ keeps its checkpoints).
set -eu
what=$1
out=${2:-${OUT:-out}}
export PYTHONPATH=src PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR="$PWD/runs/inductor"
python=${PYTHON:-python3}
mkdir -p "$out" runs
case $what in
  bench)
    $python -m fgnn bench training paper-map-1 --batch 16384 --steps 16 --out "$out/bench-paper.json" --profile
    $python -m fgnn bench training deep-map-joint --batch 4608 --steps 20 --compile --profile --out "$out/bench-deep.json" ;;
  probe) $python -m tools.sweep benchmarks/map_probe.yaml --out "$out" --time-budget "${BUDGET:-260}" ;;
  deep) $python -m tools.sweep benchmarks/map_deep.yaml --out "$out" --time-budget "${BUDGET:-560}" ;;
  more) $python -m tools.sweep benchmarks/map_more.yaml --out "$out" --time-budget "${BUDGET:-430}" ;;
  last) $python -m tools.sweep benchmarks/map_last.yaml --out "$out" --time-budget "${BUDGET:-290}" ;;
  paper) $python -m tools.sweep benchmarks/map_paper.yaml --out "$out" --time-budget "${BUDGET:-400}" ;;
  tables) $python -m tools.sweep benchmarks/map_tables.yaml --out "$out" --time-budget "${BUDGET:-900}" ;;
  layers) $python -m tools.sweep benchmarks/map_layers.yaml --out "$out" --time-budget "${BUDGET:-400}" ;;
  *) echo "Expected bench, probe, deep, more, last, paper, tables or layers (got $what)" >&2; exit 2 ;;
esac
