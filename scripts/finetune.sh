#!/usr/bin/env bash
# Finetunes a trained model on a text: about two passes over it in at least 20 steps of up to 32 sequences, with train_gpt2's defaults
# for --init-from. The last tenth of the text is held out to validate the model four times on the way; the checkpoint that did best is kept.
#   scripts/finetune.sh MODEL TEXT [OPTION...]
#   MODEL: a Hugging Face GPT-2, Llama, Qwen3 or nanochat folder, a run of ours, a checkpoint, llm.c's .bin, or the name of a model in Hugging Face's cache, such as gpt2
#   TEXT: a file of text, a folder of them, or a pattern in quotes, such as 'notes/*.md'
#   OPTION: train_gpt2's own, which win over this script's
. "$(dirname "$0")/shared.sh"
case ${1:-} in --help | -h) print_help && exit 0 ;; esac
usage="scripts/finetune.sh MODEL TEXT [OPTION...]"
[ $# -ge 1 ] && [ "${1#-}" = "$1" ] || fail "expected a model: $usage"
[ $# -ge 2 ] && [ "${2#-}" = "$2" ] || fail "expected a text behind the model: $usage"
model=$1 text=$2 words=("${@:3}")
! given "--train-data|-i" || fail "the training data is the text behind the model; please leave --train-data out"
find_program any

# The length of a sequence is the model's context, at most GPT-2's; it is halved until the last tenth of a short text is one sequence at least.
tokenizer=()
for ((i = 0; i < ${#words[@]}; i++)); do
    case ${words[i]} in
        --tokenizer) tokenizer=("${words[@]:i:2}") ;;
        --tokenizer=*) tokenizer=("${words[i]}") ;;
    esac
done
plan=$("$program" --init-from "$model" --batch-size 1 --train-data "$text" "${tokenizer[@]}" --plan --device-memory 1000G) || exit $?
context=$(sed -n 's/^model: .* context \([0-9]*\),.*/\1/p' <<<"$plan")
vocabulary=$(sed -n 's/^model: .* vocabulary \([0-9]*\) .*/\1/p' <<<"$plan")
data=$(sed -n 's/^data: //p' <<<"$plan")
[[ $data =~ ^[0-9] ]] || fail "$data"
[[ $data =~ ^[0-9]+\ texts?\ of\ ([1-9][0-9]*)\ bytes$ ]] || fail "$text: is $data; expected text to finetune on"
bytes=${BASH_REMATCH[1]}
tokens=$((vocabulary > 256 ? bytes / 4 : bytes))
seq_len=$((context < 1024 ? context : 1024))
while [ $seq_len -gt 16 ] && [ $((12 * seq_len)) -gt "$tokens" ]; do seq_len=$((seq_len / 2)); done
seq_len=$(number_given "--seq-len|-t" $seq_len)

sequences=$((tokens / (seq_len > 0 ? seq_len : 1)))
in_a_step=$((sequences / 8))
in_a_step=$((in_a_step < 1 ? 1 : in_a_step > 32 ? 32 : in_a_step))
steps=$((2 * sequences * 9 / 10 / in_a_step))
steps=$(number_given "--steps|-x" $((steps < 20 ? 20 : steps)))
quarter=$((steps < 4 ? 1 : steps / 4))

# A file of options, because those of a person win over it. The program opens it after it is deleted.
config=$(mktemp)
cat >"$config" <<END
seq-len = $seq_len
total-batch = $((in_a_step * seq_len))
batch-size = auto
steps = $steps
val-every = $quarter
checkpoint-every = $quarter
keep = 1
sample-every = $steps
sample-tokens = 200
END
exec 3<"$config" && rm "$config"
exec "$program" --config /dev/fd/3 --init-from "$model" --train-data "$text" "${words[@]}"
