#!/usr/bin/env bash
# What only a GPU can tell, in one command: tests, sanitizers, speed, memory and losses beside PyTorch and llm.c; a report in OUTDIR.
#   scripts/gpu_check.sh OUTDIR [--llmc PATH] [--time-limit SECONDS] [OPTION...]     --help lists them
# Builds for the GPU first, if that has not been done.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
case " $* " in
    *" --help "* | *" -h "* | *" --device cpu "* | *" --device=cpu "* | *" --build"*) ;;
    *) [ -x "$root/build/cuda/train_gpt2cu" ] || make -C "$root" gpu ;;
esac
exec python3 "$root/dev/bench/gpu_check.py" "$@"
