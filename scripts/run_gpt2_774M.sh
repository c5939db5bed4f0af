#!/usr/bin/env bash
# GPT-2 774M by llm.c's recipe: 150 billion tokens, one and a half passes over FineWeb's 100B sample.
. "$(dirname "$0")/recipe.sh"
model=d36 seq_len=1024 total_batch=524288 batch_most=32 steps=286102
data=fineweb100B/fineweb make_data="dev/data/fineweb.py --type classic --size 100B"
options=(--lr 2.5e-4 --warmup 700 --schedule cosine --min-lr-fraction 0 --weight-decay 0.1 --beta1 0.9 --beta2 0.95)
run_recipe "$@"
