#!/usr/bin/env bash
# GPT-2 124M by llm.c's recipe: one pass over 10 billion tokens of FineWeb.
# To reach: validation loss below 3.425 and HellaSwag 0.299 to 0.305 (OpenAI's GPT-2: 0.294).
. "$(dirname "$0")/recipe.sh"
model=d12 seq_len=1024 total_batch=524288 batch_most=64 steps=19073
data=fineweb10B/fineweb make_data="dev/data/fineweb.py --type classic --size 10B"
options=(--lr 6e-4 --warmup 700 --schedule cosine --min-lr-fraction 0 --weight-decay 0.1 --beta1 0.9 --beta2 0.95)
run_recipe "$@"
