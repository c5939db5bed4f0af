# shellcheck shell=bash disable=SC2034
# Functions of the scripts that run train_gpt2 with a recipe. Sourced.
set -euo pipefail

name=$(basename "$0" .sh)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
words=()  # a person's options for the program

fail() {
    echo "$name: $1" >&2
    exit 2
}

# The comment at a script's head is its help.
print_help() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
}

# True if `words` have one of these options, as "--steps 5", "--steps=5", "-x 5" or "-x5": given "--steps|-x".
given() {
    local word pattern="^(($1)(=.*)?|(${1##*|})[^-].*)$"
    [[ $1 == *"|-"[a-z] ]] || pattern="^($1)(=.*)?$"
    for word in "${words[@]}"; do
        if [[ $word =~ $pattern ]]; then return 0; fi
    done
    return 1
}

# The whole number that `words` give one of these options, or $2.
number_given() {
    local pattern=" ($1)[ =]?([1-9][0-9]{0,8}) "
    if [[ " ${words[*]} " =~ $pattern ]]; then echo "${BASH_REMATCH[2]}"; else echo "$2"; fi
}

# Sets `program` to the GPU's; $1 = any: to the CPU's if only that is built. Installed programs are found in PATH.
find_program() {
    program=${TRAIN_PROGRAM:-$root/train_gpt2cu}
    [ -x "$program" ] || program=$(command -v train_gpt2cu || echo "$program")
    if [ "${1:-}" = any ] && [ ! -x "$program" ]; then
        program=$root/train_gpt2
        [ -x "$program" ] || program=$(command -v train_gpt2 || echo "$program")
    fi
    [ -x "$program" ] || fail "$program is not built yet; run make$([ "${1:-}" = any ] || echo " gpu") first"
}
