#!/usr/bin/env bash
# Finetunes a trained model on Shakespeare by nanoGPT's recipe: 20 steps of 32 sequences at a small, constant learning rate.
#   scripts/finetune_shakespeare.sh MODEL [OPTION...]
#   MODEL: a Hugging Face GPT-2 folder, a run of ours or llm.c's .bin
#   OPTION: train_gpt2's own, by their letters or names, which count instead of the recipe's
. "$(dirname "$0")/own_options.sh"
case ${1:-} in --help | -h) print_help && exit 0 ;; esac
[ $# -ge 1 ] && [ "${1#-}" = "$1" ] || fail "expected a model: scripts/finetune_shakespeare.sh MODEL [OPTION...]"
trained=$1
find_program any
take_own "${@:2}"

# The model's context, up to GPT-2's own, is the length of a sequence.
plan=$("$program" --init-from "$trained" --batch-size 1 --plan --device-memory 1000G) || exit $?
context=$(sed -n 's/^model: .* context \([0-9]*\),.*/\1/p' <<<"$plan")
seq_len=$(own_value --seq-len $((context < 1024 ? context : 1024)))
[[ $seq_len =~ ^[1-9][0-9]{0,8}$ ]] || fail "--seq-len $seq_len; expected a number from 1"
mapfile -t recipe < <(not_in_own --train-data "$root/data/tinyshakespeare.txt" --seq-len "$seq_len" --total-batch $((32 * seq_len)) --batch-size auto \
    --lr 3e-5 --schedule constant --warmup 0 --weight-decay 0.1 --beta2 0.95 --steps 20 --val-every 5 --val-steps 0 --sample-every 20 \
    --sample-tokens 200)
exec "$program" --init-from "$trained" "${recipe[@]}" "${own[@]}"
