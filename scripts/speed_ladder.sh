#!/usr/bin/env bash
# What makes a training step of GPT-2 124M fast, one row each: fp32, tf32, bf16, epilogues, padded vocabulary, cuDNN's attention, CUDA graphs.
#   scripts/speed_ladder.sh [OPTION...]     --help lists them
set -euo pipefail
exec python3 "$(dirname "$0")/../dev/bench/speed_ladder.py" "$@"
