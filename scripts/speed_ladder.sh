#!/usr/bin/env bash
# Measures the gain of each optimisation of a training step of GPT-2 124M, one row each: fp32, tf32, bf16, epilogues, padded vocabulary, cuDNN's
# attention, CUDA graphs.
#   scripts/speed_ladder.sh [OPTION...]     --help lists them
set -euo pipefail
exec python3 "$(dirname "$0")/../dev/bench/speed_ladder.py" "$@"
