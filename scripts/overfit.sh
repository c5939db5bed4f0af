#!/usr/bin/env bash
# The debug run: GPT-2 124M must learn one batch of 4 x 64 tokens by heart, to a loss below 0.01 (about 40 steps, a second each on 2 cores).
# A model, gradient or optimizer that is wrong anywhere does not get there.
#   scripts/overfit.sh [OPTION...]     train_gpt2's own, by their letters or names, such as --dtype fp32, which count instead of these
. "$(dirname "$0")/own_options.sh"
case ${1:-} in --help | -h) print_help && exit 0 ;; esac
find_program any
take_own "$@"
tokenize=${TOKENIZE_PROGRAM:-$root/tokenize}
[ -x "$tokenize" ] || fail "$tokenize is not built yet; run make first"

# A shard of 4 x 64 + 1 tokens: the step's sequences are always the same four.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
head -c 4000 "$root/data/tinyshakespeare.txt" >"$folder/text"
"$tokenize" --tokenizer gpt2 --shard-tokens 257 --out "$folder" "$folder/text" >/dev/null

out=$(own_value --out "$root/runs/overfit-$(date +%Y%m%d-%H%M%S)")
mapfile -t recipe < <(not_in_own --model d12 --tokenizer gpt2 --train-data "$folder/train_000000.bin" --batch-size 4 --seq-len 64 --data-order file --steps 60 --lr 3e-4 \
    --schedule constant --warmup 0 --weight-decay 0 --val-every 0 --sample-every 0 --checkpoint-every 0 --dtype bf16 --out "$out")
"$program" "${recipe[@]}" "${own[@]}"
if given --plan; then exit; fi
# Of the last step, and the first step below 0.01.
read -r loss first < <(sed -n 's/^{"kind":"train","step":\([0-9]*\),"loss":\([^,}]*\).*/\1 \2/p' "$out/metrics.jsonl" |
    awk '{ loss = $2 } first == "" && $2 != "null" && $2 < 0.01 { first = $1 } END { print loss, first == "" ? "never" : first }')
awk -v loss="$loss" 'BEGIN { exit !(loss != "null" && loss < 0.01) }' || {
    echo "overfit: the loss is $loss at the end; expected less than 0.01" >&2
    exit 1
}
echo "overfit: loss $loss at the end; below 0.01 first at step $first"
