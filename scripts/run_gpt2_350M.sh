#!/usr/bin/env bash
# GPT-2 350M by llm.c's recipe: 31.5 billion tokens of FineWeb.
. "$(dirname "$0")/recipe.sh"
model=d24 seq_len=1024 total_batch=524288 batch_most=64 steps=60000
data=fineweb100B/fineweb make_data="dev/data/fineweb.py --type classic --size 100B"
options=(--lr 3e-4 --warmup 700 --schedule cosine --min-lr-fraction 0 --weight-decay 0.1 --beta1 0.9 --beta2 0.95)
run_recipe "$@"
