#!/usr/bin/env bash
# Trains by a recipe on this machine's GPUs. The tokens of a step stay as published. How many sequences a micro-step has, what is computed
# again (--recompute) and how many processes share a step follow from the cards. The expected time is printed first.
#   scripts/recipe.sh RECIPE [--dry-run] [--gpus N] [--gpu NAME] [--memory SIZE] [--tokens-per-second X] [OPTION...]
#   RECIPE                 gpt2_124M for recipes/gpt2_124M.cfg, and so on; or a file of options
#   --dry-run              stop before the training
#   --gpus N, --gpu NAME, --memory SIZE
#                          instead of what nvidia-smi lists: how many, such as H100, such as 24G
#   --tokens-per-second X  the speed of one GPU, instead of an estimate from its peak
#   OPTION...              train_gpt2's options, which win over those of the recipe
# Please run it in the project's folder, where the paths in the recipes begin.
. "$(dirname "$0")/shared.sh"

refusal=$(mktemp)
trap 'rm -f "$refusal"' EXIT

parse_arguments() {
    case ${1:-} in --help | -h) print_help && exit 0 ;; esac
    recipes=$(cd "$root/recipes" && echo gpt*.cfg | sed 's/\.cfg//g')
    [ $# -ge 1 ] && [ "${1#-}" = "$1" ] || fail "expected a recipe: scripts/recipe.sh RECIPE [OPTION...]; RECIPE is one of $recipes, or a file"
    recipe=$root/recipes/$1.cfg
    [ -f "$recipe" ] || recipe=$1
    [ -f "$recipe" ] || fail "there is no recipe $1; expected a file or one of $recipes"
    shift
    dry_run=no gpus="" gpu="" memory="" speed=()
    while [ $# -gt 0 ]; do
        case $1 in
            --gpus=* | --gpu=* | --memory=* | --tokens-per-second=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
        esac
        case $1 in
            --dry-run) dry_run=yes && shift && continue ;;
            --gpus | --gpu | --memory | --tokens-per-second) [ $# -ge 2 ] || fail "$1 needs a value" ;;
            *) break ;;
        esac
        case $1 in
            --gpus) [[ $2 =~ ^[1-9][0-9]{0,3}$ ]] && gpus=$2 || fail "--gpus $2; expected a number from 1 to 9999" ;;
            --gpu) gpu=$2 ;;
            --memory) [[ $2 =~ ^[1-9][0-9]{0,7}[GM]$ ]] && memory=$2 || fail "--memory $2; expected a size like 24G" ;;
            --tokens-per-second) speed=("$1" "$2") ;;
        esac
        shift 2
    done
    [ "${1:-}" != -- ] || shift
    words=("$@")
    ! given "--dry-run|--gpus|--gpu|--memory" || fail "--dry-run, --gpus, --gpu and --memory come before the options of train_gpt2"
}

# Sets gpus, gpu and memory (of the smallest GPU, in MiB) where they are not given.
find_gpus() {
    local listed=""
    if [ -z "$gpus" ] || [ -z "$gpu" ] || [ -z "$memory" ]; then
        listed=$(nvidia-smi --query-gpu=memory.total,name --format=csv,noheader,nounits 2>/dev/null | grep -E '^[0-9]+, ' || true)
    fi
    [ -n "$gpus" ] || gpus=$(grep -c . <<<"$listed" || true)
    [ "$gpus" -gt 0 ] || fail "nvidia-smi lists no GPU; to see what would run, say --dry-run --gpus 1 --gpu H100 --memory 80G"
    [ -n "$gpu" ] || gpu=$(head -n 1 <<<"$listed" | cut -d, -f2- | sed 's/^ *//')
    case $memory in
        *G) memory=$((${memory%G} * 1024)) ;;
        *M) memory=${memory%M} ;;
        *) memory=$(cut -d, -f1 <<<"$listed" | sort -n | head -n 1) ;;
    esac
    [ -n "$memory" ] || fail "the GPU's memory is not known; give it by --memory 24G"
}

# Prints the program's plan with these options more. CUDA itself takes a GiB. Why there is no plan stands in the file $refusal.
plan() {
    local usable=$((memory > 1024 ? memory - 1024 : 1))
    "$program" --config "$recipe" "${words[@]}" "$@" --plan --world-size "$gpus" --device-memory "${usable}M" 2>"$refusal"
}

refuse() {
    cat "$refusal" >&2
    exit 2
}

# Sets gpus to as many as the sequences of a step divide among. Each keeps a part of the optimizer's state.
share_step() {
    local there=$gpus sequences
    if ! plan "${auto[@]}" >/dev/null; then
        sequences=$(sed -n 's/.*the \([0-9]*\) sequences of a step do not divide among .*/\1/p' "$refusal")
        until [ $((${sequences:-0} % gpus)) -eq 0 ]; do gpus=$((gpus - 1)); done
    fi
    [ "$gpus" -eq "$there" ] || echo "$name: the sequences of a step do not divide among $there GPUs: $gpus are used" >&2
    if [ "$gpus" -gt 1 ] && ! given --zero; then fitted+=(--zero 1); fi
}

# The number that the recipe gives an option, or 0.
number_in_recipe() {
    local value
    value=$(sed -n "s/^$1 *= *\([0-9]*\).*/\1/p" "$recipe")
    echo "${value:-0}"
}

# Adds to `fitted` the recipe's micro-batch, or the largest one that fits, with as little computed again as lets four sequences fit. As many
# tokens are validated on as with the recipe's micro-batch.
fit_batch() {
    local level levels=("" gelu block) options planned sequences best=0 best_options=()
    local most val_steps
    most=$(number_in_recipe batch-size) val_steps=$(number_in_recipe val-steps)
    ! given --recompute || levels=("")
    for level in "${levels[@]}"; do
        options=(${level:+--recompute "$level"})
        planned=$(plan "${auto[@]}" "${fitted[@]}" "${options[@]}") || {
            grep -q 'not even one sequence\|saves nothing' "$refusal" || refuse
            continue
        }
        sequences=$(sed -n 's/^step: [0-9]* tokens = \([0-9]*\) x .*/\1/p' <<<"$planned")
        if [ "$most" -gt 0 ] && [ "$sequences" -gt "$most" ]; then sequences=$most; fi
        if [ "$sequences" -gt $best ]; then best=$sequences best_options=("${options[@]}"); fi
        [ "$best" -lt 4 ] || break
    done
    [ "$best" -gt 0 ] || fail "not even one sequence fits into a GPU of $((memory / 1024)) GiB; expected a larger card or a smaller model"
    fitted+=("${best_options[@]}")
    [ "$best" -ne "$most" ] || return 0
    fitted+=(--batch-size "$best")
    if [ "$most" -gt 0 ] && [ "$val_steps" -gt 0 ] && ! given "--val-steps|-m"; then fitted+=(--val-steps $((val_steps * most / best))); fi
}

parse_arguments "$@"
find_gpus
find_program "$([ $dry_run = no ] || echo any)"  # a plan is the same by the CPU's program
fitted=() auto=(--batch-size auto)
! given "--batch-size|-b" || auto=()
share_step
[ ${#auto[@]} -eq 0 ] || fit_batch
planned=$(plan "${fitted[@]}") || refuse
hours=$("$root/dev/expected_time.py" --gpu "${gpu:-unknown}" "${speed[@]}" <<<"$planned" 2>"$refusal") || case $? in
    2) refuse ;;
    3) ;;  # a GPU whose peak is not known
    *) hours="time: unknown: $(tail -n 1 "$refusal")" ;;  # such as a machine without python3
esac

hellaswag=$root/dev/data/hellaswag/hellaswag_val.bin  # made by dev/data/hellaswag.py
if [ -f "$hellaswag" ] && ! given --hellaswag; then fitted+=(--hellaswag "$hellaswag"); fi
command=("$program")
if [ "$gpus" -gt 1 ]; then command=("$root/scripts/run_multi_gpu.sh" --processes "$gpus"); fi
command+=(--config "$recipe" "${fitted[@]}" "${words[@]}")
sed -n 's/^# The data are made by: /data: made by /p' "$recipe"
echo "gpu: $([ "$gpus" -eq 1 ] || echo "$gpus x ")${gpu:-unknown}, $((memory / 1024)) GiB"
grep -E '^(step|run):' <<<"$planned"
[ -z "$hours" ] || echo "$hours"
echo "command:$(printf ' %q' "${command[@]}")"
[ $dry_run = no ] || exit 0
rm -f "$refusal"
exec "${command[@]}"
