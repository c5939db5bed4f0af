#!/usr/bin/env bash
# GPT-3 125M by llm.c's recipe: 300 billion tokens, three passes over FineWeb's 100B sample, contexts of 2048.
. "$(dirname "$0")/recipe.sh"
model=gpt3:c768 seq_len=2048 total_batch=524288 batch_most=32 steps=572204
data=fineweb100B/fineweb make_data="dev/data/fineweb.py --type classic --size 100B"
options=(--lr 6e-4 --warmup 700 --schedule cosine --min-lr-fraction 0.1 --weight-decay 0.1 --beta1 0.9 --beta2 0.95
    --skip-loss-z 7 --skip-norm-z 7)
run_recipe "$@"
