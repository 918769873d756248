#!/bin/sh
# Train several networks on ShapeNet-Part under one protocol, on one GPU:
#   benchmarks/train_shapes.sh OUT DATA_DIR [NAME:SECONDS ...] [-- further options of tools.train_shapes]
# An interrupted run continues when run again on the same machine (runs/shapes keeps its checkpoints).
set -eu
out=$1
data=$2
shift 2
jobs=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    jobs="$jobs $1"
    shift
done
[ $# -eq 0 ] || shift
export PYTHONPATH=src PYTHONUNBUFFERED=1
# shellcheck disable=SC2086
exec "${PYTHON:-python3}" -m tools.train_shapes --data "$data" --out "$out" ${DEADLINE:+--deadline "$DEADLINE"} "$@" \
    ${jobs:-fgnn:330 dgcnn:120 pointnet:50}
