#!/usr/bin/env bash
# Trains a small byte-level nanochat with Muon on Shakespeare and plots its loss.
# With an NVIDIA GPU and nvcc the same kernels run on the GPU.
#   scripts/quickstart.sh [OPTION...]     options of train_gpt2 except --out, such as --steps 500
#   scripts/quickstart.sh --config recipes/shakespeare_gpt2.cfg     a GPT-2 with AdamW instead: nanoGPT's recipe
# --config, --model, --qwen3 and --init-from leave the nanochat out; any other option changes it.
. "$(dirname "$0")/shared.sh"
case ${1:-} in --help | -h) print_help && exit 0 ;; esac
cd "$root"

program=./train_gpt2
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU && scripts/check_cuda.sh >/dev/null 2>&1; then
    program=./train_gpt2cu
    scripts/configure.sh cuda
    cmake --build --preset cuda --target train_gpt2cu
    ln -sf build/cuda/train_gpt2cu train_gpt2cu
else
    make --no-print-directory all
fi
words=("$@")
if ! given --config && ! given "--model|-e" && ! given --qwen3 && ! given --init-from; then
    given "--steps|-x" || given --epochs || given --tokens || words=(--steps 1000 "${words[@]}")
    words=(--config recipes/shakespeare_nanochat.cfg "${words[@]}")
fi
run=runs/quickstart-$(date +%Y%m%d-%H%M%S)
given --log-every || words+=(--log-every 100)
"$program" --out "$run" "${words[@]}"
[ -f "$run/metrics.jsonl" ] || exit 0  # --plan
python=/usr/bin/python3
[ ! -x build/tools/bin/python3 ] || python=build/tools/bin/python3
"$python" scripts/plot.py "$run"
