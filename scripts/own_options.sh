# shellcheck shell=bash disable=SC2154
# What scripts share that give the program options of their own and take a person's, which count instead. Sourced.
set -euo pipefail

name=$(basename "$0" .sh)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
    echo "$name: $1" >&2
    exit 2
}

# The comment at a script's head is its help.
print_help() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
}

# Fills `own` with what a person gives, names spelled out and values apart: -l 1e-3, -l1e-3 and --lr=1e-3 are all --lr 1e-3.
take_own() {
    local help word long
    help=$("$program" --help)
    own=()
    for word in "$@"; do
        case $word in
            --*=*) own+=("${word%%=*}" "${word#*=}") ;;
            -[a-z]*)
                long=$(sed -n "s/^ *${word:0:2},\(--[a-z0-9-]*\) .*/\1/p" <<<"$help")
                own+=("${long:-${word:0:2}}")
                [ ${#word} -eq 2 ] || own+=("${word:2}")
                ;;
            *) own+=("$word") ;;
        esac
    done
    ! given --config || fail "--config counts less than the options of this script; give its options one by one"
}

given() {
    local word
    for word in "${own[@]}"; do
        if [ "$word" = "$1" ]; then return 0; fi
    done
    return 1
}

# The value of option $1 in `own`, or $2 if it is not given.
own_value() {
    local i
    for ((i = 0; i + 1 < ${#own[@]}; i++)); do
        if [ "${own[i]}" = "$1" ]; then echo "${own[i + 1]}" && return; fi
    done
    echo "$2"
}

# Prints those of the options --name value.. that a person has not given, nor another that excludes them, a line each.
not_in_own() {
    local instead option
    while [ $# -gt 0 ]; do
        instead=("$1")
        case $1 in
            --steps) instead+=(--epochs --tokens) ;;
            --model) instead+=(--layers --heads --channels --init-from) ;;
        esac
        for option in "${instead[@]}"; do
            if given "$option"; then shift 2 && continue 2; fi
        done
        printf '%s\n' "$1" "$2"
        shift 2
    done
}

# The GPU's program; where the CPU's will do ($1 = any), that one if the other is not built. After make install they lie where PATH says.
find_program() {
    program=${TRAIN_PROGRAM:-$root/train_gpt2cu}
    [ -x "$program" ] || program=$(command -v train_gpt2cu || echo "$program")
    if [ "${1:-}" = any ] && [ ! -x "$program" ]; then
        program=$root/train_gpt2
        [ -x "$program" ] || program=$(command -v train_gpt2 || echo "$program")
    fi
    [ -x "$program" ] || fail "$program is not built yet; run make$([ "${1:-}" = any ] || echo " gpu") first"
}
