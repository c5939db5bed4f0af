#!/usr/bin/env bash
# Trains a small GPT-2 on Shakespeare, byte by byte, and plots its loss: nanoGPT's CPU recipe.
# With an NVIDIA GPU and nvcc the same kernels run there. What you give goes on to the program: scripts/quickstart.sh --steps 500
set -euo pipefail
cd "$(dirname "$0")/.."

program=./train_gpt2
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU && scripts/check_cuda.sh >/dev/null 2>&1; then
    program=./train_gpt2cu
    cmake --preset cuda && cmake --build --preset cuda --target train_gpt2cu
    ln -sf build/cuda/train_gpt2cu train_gpt2cu
else
    make --no-print-directory all
fi
run=runs/quickstart-$(date +%Y%m%d-%H%M%S)
$program --out "$run" --log-every 100 "$@"
/usr/bin/python3 scripts/plot.py "$run"
