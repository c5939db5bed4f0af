#!/usr/bin/env bash
# Finetunes a trained model on a text: about two passes over it in at least 20 steps of up to 32 sequences, with train_gpt2's defaults
# for --init-from. The last tenth of the text is held out to validate the model four times on the way; the checkpoint that did best is kept.
#   scripts/finetune.sh MODEL TEXT [OPTION...]
#   MODEL: a Hugging Face GPT-2 folder, a run of ours, a checkpoint, llm.c's .bin, or the name of a model in Hugging Face's cache, such as gpt2
#   TEXT: a file of text, a folder of them, or a glob in quotes, such as 'notes/*.md'
#   OPTION: train_gpt2's own, by their letters or names, which count instead of the recipe's
. "$(dirname "$0")/own_options.sh"
case ${1:-} in --help | -h) print_help && exit 0 ;; esac
usage="scripts/finetune.sh MODEL TEXT [OPTION...]"
[ $# -ge 1 ] && [ "${1#-}" = "$1" ] || fail "expected a model: $usage"
[ $# -ge 2 ] && [ "${2#-}" = "$2" ] || fail "expected a text behind the model: $usage"
model=$1
text=$2
find_program any
take_own "${@:3}"
! given --train-data || fail "the training data is the text behind the model; please leave --train-data out"

# The model's context, up to GPT-2's own, is the length of a sequence; a short text has shorter ones, so that its last tenth is one at least.
plan=$("$program" --init-from "$model" --batch-size 1 --plan --device-memory 1000G) || exit $?
context=$(sed -n 's/^model: .* context \([0-9]*\),.*/\1/p' <<<"$plan")
vocabulary=$(sed -n 's/^model: .* vocabulary \([0-9]*\) .*/\1/p' <<<"$plan")
bytes=$({ compgen -G "$text" || true; } | while IFS= read -r path; do find -L "$path" \( -path "$path/*" -name '.*' -prune \) -o -type f ! -name '*.cache.bin' -exec cat {} +; done | wc -c)
[ "$bytes" -gt 0 ] || fail "$text: there is no such text, or it is empty"
tokens=$((vocabulary > 256 ? bytes / 4 : bytes))
seq_len=$((context < 1024 ? context : 1024))
while [ $seq_len -gt 16 ] && [ $((12 * seq_len)) -gt "$tokens" ]; do seq_len=$((seq_len / 2)); done
seq_len=$(own_value --seq-len $seq_len)
[[ $seq_len =~ ^[1-9][0-9]{0,8}$ ]] || fail "--seq-len $seq_len; expected a number from 1"

sequences=$((tokens / seq_len))
in_a_step=$((sequences / 8))
in_a_step=$((in_a_step < 1 ? 1 : in_a_step > 32 ? 32 : in_a_step))
steps=$((2 * sequences * 9 / 10 / in_a_step))
steps=$(own_value --steps $((steps < 20 ? 20 : steps)))
[[ $steps =~ ^[1-9][0-9]{0,8}$ ]] || fail "--steps $steps; expected a number from 1"
quarter=$((steps < 4 ? 1 : steps / 4))
mapfile -t recipe < <(not_in_own --seq-len "$seq_len" --total-batch $((in_a_step * seq_len)) --batch-size auto --steps "$steps" \
    --val-every $quarter --checkpoint-every $quarter --keep 1 --sample-every "$steps" --sample-tokens 200)
exec "$program" --init-from "$model" --train-data "$text" "${recipe[@]}" "${own[@]}"
