#!/usr/bin/env bash
# Finetunes a trained model on Shakespeare by nanoGPT's recipe: 20 steps of 32 sequences at a small, constant learning rate.
#   scripts/finetune_shakespeare.sh MODEL [OPTION...]     as scripts/finetune.sh has them
. "$(dirname "$0")/shared.sh"
case ${1:-} in --help | -h) print_help && exit 0 ;; esac
[ $# -ge 1 ] && [ "${1#-}" = "$1" ] || fail "expected a model: scripts/finetune_shakespeare.sh MODEL [OPTION...]"
words=("${@:2}")
given "--steps|-x|--epochs|--tokens" || words+=(--steps 20)
exec "$root/scripts/finetune.sh" "$1" "$root/data/tinyshakespeare.txt" "${words[@]}"
