#!/usr/bin/env bash
# Finetunes a trained model on Shakespeare by nanoGPT's recipe: 20 steps of 32 sequences at a small, constant learning rate.
#   scripts/finetune_shakespeare.sh MODEL [OPTION...]
#   MODEL: a Hugging Face GPT-2 folder, a run of ours or llm.c's .bin; OPTION: train_gpt2's own, which count instead of the recipe's
. "$(dirname "$0")/recipe.sh"
[ $# -ge 1 ] && [ "${1#-}" = "$1" ] || fail "expected a model: scripts/finetune_shakespeare.sh MODEL [OPTION...]"
trained=$1
own=("${@:2}")
find_program any

# The model's context, up to GPT-2's own, is the length of a sequence.
plan=$("$program" --init-from "$trained" --batch-size 1 --plan --device-memory 1000G) || exit $?
context=$(sed -n 's/^model: .* context \([0-9]*\),.*/\1/p' <<<"$plan")
seq_len=$((context < 1024 ? context : 1024))
mapfile -t recipe < <(not_in_own --train-data "$root/data/tinyshakespeare.txt" --seq-len $seq_len --total-batch $((32 * seq_len)) --batch-size auto \
    --lr 3e-5 --schedule constant --warmup 0 --weight-decay 0.1 --beta2 0.95 --steps 20 --val-every 5 --val-steps 0 --sample-every 20 \
    --sample-tokens 200)
exec "$program" --init-from "$trained" "${recipe[@]}" "${own[@]}"
