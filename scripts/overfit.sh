#!/usr/bin/env bash
# The debug run: GPT-2 124M must learn one batch of 4 x 64 tokens by heart, to a loss below 0.01 (about 40 steps, a second each on 2 cores).
# A model, gradient or optimizer that is wrong anywhere does not get there.
#   scripts/overfit.sh [OPTION...]     train_gpt2's own, such as --dtype fp32, which win over those of recipes/overfit.cfg
. "$(dirname "$0")/shared.sh"
case ${1:-} in --help | -h) print_help && exit 0 ;; esac
find_program any
tokenize=${TOKENIZE_PROGRAM:-$root/tokenize}
[ -x "$tokenize" ] || fail "$tokenize is not built yet; run make first"

# A shard of 4 x 64 + 1 tokens: every step has the same four sequences.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
head -c 4000 "$root/data/tinyshakespeare.txt" >"$folder/text"
"$tokenize" --tokenizer gpt2 --shard-tokens 257 --out "$folder" "$folder/text" >/dev/null

"$program" --config "$root/recipes/overfit.cfg" --train-data "$folder/train_000000.bin" "$@" | tee "$folder/log"
grep -q '^step *[0-9]*/' "$folder/log" || exit 0  # a plan has no steps
sed -n 's/^step *\([0-9]*\)\/.* loss \([^ ]*\) .*/\1 \2/p' "$folder/log" >"$folder/losses"
[ -s "$folder/losses" ] || { echo "overfit: no loss was found in the steps' lines" >&2 && exit 1; }
loss=$(tail -n 1 "$folder/losses" | cut -d' ' -f2)
awk -v loss="$loss" 'BEGIN { exit !(loss != "nan" && loss < 0.01) }' || {
    echo "overfit: the loss is $loss at the end; expected less than 0.01" >&2
    exit 1
}
echo "overfit: loss $loss at the end; below 0.01 first at step $(awk '$2 < 0.01 { print $1; exit }' "$folder/losses")"
