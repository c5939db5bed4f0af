#!/usr/bin/env bash
# Judges on a GPU what the project promises of one: speed beside PyTorch and llm.c, tests, losses, kernels, sanitizers; a report in OUTDIR.
#   scripts/gpu_check.sh OUTDIR [--time-limit SECONDS] [--continue] [--llmc PATH] [OPTION...]     --help lists them
# Builds for the GPU first, if that has not been done.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONDONTWRITEBYTECODE=1
build=yes
case " $* " in
    *" --help "* | *" -h "* | *" --device cpu "* | *" --device=cpu "*) build=no ;;
    *" --build"*) build=no ;;&
    *)
        if ! nvidia-smi -L >/dev/null 2>&1; then
            echo "gpu_check: nvidia-smi lists no GPU; --device cpu tries the check without one" >&2
            exit 2
        fi
        ;;
esac
[ $build = no ] || [ -x "$root/build/cuda/train_gpt2cu" ] || make -C "$root" gpu
exec python3 "$root/dev/bench/gpu_check.py" "$@"
