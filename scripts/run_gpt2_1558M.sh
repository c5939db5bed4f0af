#!/usr/bin/env bash
# GPT-2 1558M by llm.c's recipe: 33.6 billion tokens of FineWeb-Edu's 100B sample.
# GELU at least is computed again in the backward pass, as there; whole blocks on cards where less does not fit.
. "$(dirname "$0")/recipe.sh"
model=d48 seq_len=1024 total_batch=1048576 batch_most=16 steps=32000 recompute=gelu
data=edu_fineweb100B/edu_fineweb make_data="dev/data/fineweb.py --type edu --size 100B"
options=(--lr 6e-4 --warmup 700 --schedule cosine --min-lr-fraction 0.1 --weight-decay 0.1 --beta1 0.9 --beta2 0.95)
run_recipe "$@"
