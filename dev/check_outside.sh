#!/usr/bin/env bash
# Runs every comparison with other projects' programs. pip installs their current versions in an environment of its own, build/outside; each script
# names the versions with which it was tested.
#   dev/check_outside.sh
set -euo pipefail
cd "$(dirname "$0")/.."
make
cmake --build --preset release --target logits
python3 -m venv build/outside
build/outside/bin/python3 -m pip install --quiet numpy safetensors tiktoken tokenizers torch transformers
run=build/outside/run
rm -rf "$run"
./train_gpt2 --steps 20 --layers 2 --channels 64 --heads 2 --context 64 --val-every 0 --sample-every 0 --out "$run"
build/outside/bin/python3 dev/check_interchange.py "$run/checkpoints/step_00000020"
build/outside/bin/python3 dev/check_masks.py
build/outside/bin/python3 dev/reference_bpe.py
build/outside/bin/python3 dev/reference_folders.py
build/outside/bin/python3 dev/check_tokenizer.py
