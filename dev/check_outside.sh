#!/usr/bin/env bash
# Compares our programs with other projects': transformers, PyTorch, tiktoken, tokenizers. pip installs their current versions in an environment of its
# own, build/outside. CI compares with what they wrote into test/reference/ instead. Here it is written again and must not have changed, and every test
# in test/outside/ must run and pass.
#   dev/check_outside.sh [FOLDER...]     FOLDER: other checkpoints and Hugging Face folders to compare with transformers
set -euo pipefail
models=()
for folder; do models+=("$(realpath -- "$folder")"); done
cd "$(dirname "$0")/.."
make
cmake --build --preset release --target words
python=build/outside/bin/python3
python3 -m venv build/outside
$python -m pip install --quiet accelerate numpy safetensors tiktoken tokenizers torch transformers
dumps=dev/reference_tokenizer.py
$python $dumps
git diff --exit-code --stat test/reference || { echo "check_outside: $dumps writes other tokens than those of test/reference" >&2; exit 1; }
run=build/outside/run
rm -rf "$run"
./train_gpt2 --steps 20 --layers 2 --channels 64 --heads 2 --context 512 --val-every 0 --sample-every 0 --out "$run"
models+=("$run/checkpoints/step_00000020")
FLATGPT_MODELS=$(IFS=:; echo "${models[*]}") $python -m unittest discover -s test/outside -v 2>&1 | tee build/outside/log
grep -qx OK build/outside/log || { echo "check_outside: a test was skipped" >&2; exit 1; }  # unittest says "OK (skipped=1)" then
