#!/bin/sh
# Train the ground filter by folds on one GPU: sh benchmarks/train_lidar.sh OUT FOLDER [SECONDS]
# Make FOLDER first, where laspy is installed: python -m tools.make_ground_data SCANS FOLDER
# SECONDS is the training time of all folds; cutting, compiling and testing take about a minute more.
set -eu
out=$1
folder=$2
seconds=${3:-45}
export PYTHONPATH=src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
mkdir -p "$out"
${PYTHON:-python3} -m tools.train_ground "$folder" "$out" --seconds "$seconds"
rm -f "$out"/fold-*/checkpoint.safetensors "$out"/fold-*/best.*
