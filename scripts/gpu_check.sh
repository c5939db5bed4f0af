#!/usr/bin/env bash
# Checks the project's claims for GPUs on a GPU: speed beside PyTorch and llm.c, tests, losses, kernels, sanitizers. Writes a report to OUTDIR.
#   scripts/gpu_check.sh OUTDIR [--time-limit SECONDS] [--llmc PATH] [OPTION...]     --help lists them
# The same command goes on where an earlier one ended. Builds for the GPU first, if there is no build.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONDONTWRITEBYTECODE=1
build=cuda target=gpu
case " $* " in
    *" --help "* | *" -h "* | *" --device cpu "* | *" --device=cpu "*) build= ;;
    *" --device software "* | *" --device=software "*) build=software-gpu target=software-gpu ;;
    *)
        if ! nvidia-smi -L >/dev/null 2>&1; then
            echo "gpu_check: nvidia-smi lists no GPU; --device software rehearses the check without one" >&2
            exit 2
        fi
        ;;
esac
case " $* " in *" --build"*) build= ;; esac
[ -z "$build" ] || [ -x "$root/build/$build/train_gpt2cu" ] || make -C "$root" $target
exec python3 "$root/dev/bench/gpu_check.py" "$@"
