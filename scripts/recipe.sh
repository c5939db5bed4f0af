# shellcheck shell=bash disable=SC2154,SC2015
# What the recipes scripts/run_*.sh share: fits a published recipe to the GPU at hand, and trains by it.
# The tokens of a step stay; how many sequences a micro-step has follows from the card's memory, and activations are computed again
# (--recompute) where that is needed. Sourced by a script that sets: model, seq_len, total_batch, batch_most (sequences a micro-step,
# published), steps, data (files' prefix under dev/data), make_data (the command that makes them), options (the rest of the recipe, each
# with a value).
. "$(dirname "${BASH_SOURCE[0]}")/own_options.sh"

usage() {
    cat <<END
$(print_help)

usage: scripts/$name.sh [--dry-run] [--data PREFIX] [--out DIR] [--gpus N] [--gpu NAME] [--memory SIZE] [--tokens-per-second X] [-- OPTION...]
  --dry-run              print the command and the time it would take, and stop
  --data PREFIX          PREFIX_train_*.bin and PREFIX_val_*.bin [dev/data/$data]
  --out DIR              of the run; an unfinished run there goes on [runs/$name]
  --gpus N, --gpu NAME, --memory SIZE
                         instead of what nvidia-smi lists: how many, such as H100, such as 24G
  --tokens-per-second X  for the time, instead of an estimate from the GPU's peak
  -- OPTION...           go to the program, by their letters or names, and count instead of the recipe's
END
}

# Dense bf16 peak in TFLOP/s, from the vendor's data sheets; nothing for a GPU that is not listed.
peak_tflops() {
    case "$1" in
        *B200*) echo 2250 ;;
        *H100*PCIe*) echo 756 ;;
        *H100* | *H200*) echo 989 ;;
        *A100*) echo 312 ;;
        *L40S*) echo 362 ;;
        *A6000*) echo 155 ;;
        *"A10") echo 125 ;;
        *A10G*) echo 70 ;;
        *"L4") echo 121 ;;
        *5090*) echo 209 ;;
        *4090*) echo 165 ;;
        *4080*) echo 97 ;;
        *3090*) echo 71 ;;
        *3080*) echo 60 ;;
    esac
}

parse_arguments() {
    dry_run=no out=runs/$name gpus="" gpu="" memory="" tokens_per_second="" prefix=$root/dev/data/$data programs_own=()
    while [ $# -gt 0 ]; do
        if [[ $1 == --?*=* ]]; then set -- "${1%%=*}" "${1#*=}" "${@:2}"; fi
        case "$1" in
            --help | -h) usage && exit 0 ;;
            --dry-run) dry_run=yes && shift && continue ;;
            --) shift && programs_own=("$@") && break ;;
            --data | --out | --gpus | --gpu | --memory | --tokens-per-second) [ $# -ge 2 ] || fail "$1 needs a value" ;;
            *) fail "unknown option $1; see scripts/$name.sh --help, and put the program's own options behind --" ;;
        esac
        case "$1" in
            --data) prefix=$2 ;;
            --out) out=$2 ;;
            --gpus) gpus=$2 && [[ $gpus =~ ^[1-9][0-9]{0,3}$ ]] || fail "--gpus $2; expected a number from 1 to 9999" ;;
            --gpu) gpu=$2 ;;
            --memory) memory=$2 && [[ $memory =~ ^[1-9][0-9]{0,7}[GM]$ ]] || fail "--memory $2; expected a size like 24G" ;;
            --tokens-per-second) tokens_per_second=$2 && [[ $2 =~ ^[1-9][0-9]*$ ]] || fail "--tokens-per-second $2; expected a number" ;;
        esac
        shift 2
    done
}

# Fills gpus, gpu and memory (of the smallest GPU, in MiB) where they are not given.
find_gpus() {
    local listed=""
    if [ -z "$gpus" ] || [ -z "$gpu" ] || [ -z "$memory" ]; then
        listed=$(nvidia-smi --query-gpu=memory.total,name --format=csv,noheader,nounits 2>/dev/null | grep -E '^[0-9]+, ' || true)
    fi
    [ -n "$gpus" ] || gpus=$(grep -c . <<<"$listed" || true)
    [ "$gpus" -gt 0 ] || fail "nvidia-smi lists no GPU; to see what would run, say --dry-run --gpus 1 --gpu H100 --memory 80G"
    [ -n "$gpu" ] || gpu=$(head -n 1 <<<"$listed" | cut -d, -f2- | sed 's/^ *//')
    case "$memory" in
        *G) memory=$((${memory%G} * 1024)) ;;
        *M) memory=${memory%M} ;;
        *) memory=$(cut -d, -f1 <<<"$listed" | sort -n | head -n 1) ;;
    esac
    [ -n "$memory" ] || fail "the GPU's memory is not known; give it by --memory 24G"
}

# As many GPUs as the sequences of a step divide among. Each keeps its part of the optimizer's state.
share_step() {
    local there=$gpus
    while [ $((total_batch / seq_len % gpus)) -ne 0 ]; do gpus=$((gpus - 1)); done
    [ "$gpus" -eq "$there" ] ||
        echo "$name: the $((total_batch / seq_len)) sequences of a step do not divide among $there GPUs: $gpus are used" >&2
    planned=() shared=()
    if [ "$gpus" -gt 1 ]; then
        mapfile -t shared < <(not_in_own --zero 1)
        planned=(--world-size "$gpus" "${shared[@]}")
    fi
}

# The published micro-batch, or the largest one that fits beside CUDA's own GiB; with as little computed again as lets four sequences fit.
# Sets batch_size, recompute, and shape: the model's layers, channels and parameters.
fit_batch() {
    local level plan fitting error=$(mktemp) usable=$((memory > 1024 ? memory - 1024 : 1))
    batch_size=0
    for level in $recompute_from gelu block; do
        [ "$level" != "${recompute:-}" ] || continue
        recompute=$level
        plan=$("$program" "${recipe[@]}" --batch-size auto --recompute "$level" "${own[@]}" "${planned[@]}" --plan --device-memory "${usable}M" 2>"$error") || {
            grep -q 'not even one sequence' "$error" || { cat "$error" >&2 && exit 2; }
            continue
        }
        fitting=$(sed -n 's/^step: [0-9]* tokens = \([0-9]*\) x .*/\1/p' <<<"$plan")
        shape=$(sed -n 's/^model: \([0-9]*\) layers, [0-9]* heads, \([0-9]*\) channels.* \([0-9]*\) parameters$/\1 \2 \3/p' <<<"$plan")
        [ "$fitting" -le "$batch_most" ] || fitting=$batch_most
        if [ "$fitting" -gt $batch_size ]; then batch_size=$fitting best=$level; fi
        [ $batch_size -lt 4 ] || break
    done
    rm -f "$error"
    [ $batch_size -gt 0 ] || fail "not even one sequence fits into a GPU of $((memory / 1024)) GiB; expected a larger card or a smaller model"
    recompute=$best
}

# How long the run takes, from the speed given or an estimate by the GPU's peak.
print_time() {
    local speed=$tokens_per_second source="as given" peak
    [ "$steps" -gt 0 ] || { echo "time: the data decides; the run shows it after its first steps" && return; }
    if [ -z "$speed" ]; then
        peak=$(peak_tflops "$gpu")
        [ -n "$peak" ] || { echo "time: unknown for '$gpu'; the run shows it after its first steps" && return; }
        # 6 N + 6 L C T operations a token: forward and backward through the weights and causal attention; forward, a third, twice if blocks are
        # computed again.
        speed=$(awk -v t="$seq_len" -v peak="$peak" -v again="$recompute" -v gpus="$gpus" '{
            printf "%d", gpus * 0.38 * peak * 1e12 / (6 * $3 + 6 * $1 * $2 * t) / (again == "block" ? 4 / 3 : 1) }' <<<"$shape")
        source="an estimate, not measured: 38 % of $gpu's peak of $peak TFLOP/s, which llm.c reaches with 124M on an H100$([ "$gpus" -eq 1 ] || echo ", on each of $gpus")"
    fi
    awk -v tokens="$((steps * total_batch))" -v speed="$speed" -v source="$source" 'BEGIN {
        hours = tokens / speed / 3600
        printf "time: %.1f hours%s for %.1f billion tokens at %d tokens/s (%s)\n", hours, hours < 100 ? "" : sprintf(" (%.0f days)", hours / 24),
            tokens / 1e9, speed, source }'
}

# How long a person's own options make the run; 0 if only the data can tell.
find_steps() {
    local tokens
    steps=$(own_value --steps "$steps")
    tokens=$(own_value --tokens "")
    if [[ $tokens =~ ^[1-9][0-9]{0,17}$ ]]; then steps=$(((tokens + total_batch - 1) / total_batch)); fi
    if given --epochs || [[ ! $steps =~ ^[1-9][0-9]{0,8}$ ]]; then steps=0; fi  # the program refuses what is no number of steps
}

run_recipe() {
    recompute_from=${recompute:-none}
    unset recompute
    parse_arguments "$@"
    find_gpus
    find_program "$([ $dry_run = no ] || echo any)"  # a plan is the same by the CPU's program
    take_own "${programs_own[@]}"
    local option
    for option in --model --init-from --layers --heads --channels --seq-len --total-batch --batch-size --recompute --optimizer --plan --world-size --help; do
        ! given "$option" || fail "$option is the recipe's own affair; run the program itself to change it"
    done
    ! given --device-memory || fail "--device-memory is given by --memory, before the --"
    find_steps
    mapfile -t recipe < <(not_in_own --model "$model" --seq-len "$seq_len" --total-batch "$total_batch" --dtype bf16 --steps "$steps" "${options[@]}")
    share_step
    fit_batch
    local micro_steps=$((total_batch / (batch_size * seq_len * gpus)))
    local rest
    mapfile -t rest < <(not_in_own --train-data "${prefix}_train_*.bin" --val-data "${prefix}_val_*.bin" --out "$out" --val-every 250 \
        --val-steps $((20 * micro_steps * gpus)) --sample-every 5000 --sample-tokens 256 --checkpoint-every 1000 --keep-every 5000 \
        --resume auto "${run_options[@]}")
    command=("$program")
    if [ "$gpus" -gt 1 ]; then command=("$root/scripts/run_multi_gpu.sh" --processes "$gpus"); fi
    command+=("${recipe[@]}" --batch-size "$batch_size" --recompute "$recompute" "${shared[@]}" "${rest[@]}" "${own[@]}")
    echo "gpu: $([ "$gpus" -eq 1 ] || echo "$gpus x ")$gpu, $((memory / 1024)) GiB"
    echo "step: $total_batch tokens = $batch_size x $seq_len$([ "$gpus" -eq 1 ] || echo " x $gpus processes") x $micro_steps micro-step$([ $micro_steps -eq 1 ] || echo s)$([ "$steps" -eq 0 ] || echo ", $steps steps")"
    print_time
    echo "command:$(printf ' %q' "${command[@]}")"
    [ $dry_run = no ] || return 0
    compgen -G "${prefix}_train_*.bin" >/dev/null ||
        fail "there is no ${prefix}_train_*.bin; make the shards with: $make_data, or name others by --data"
    exec "${command[@]}"
}

# HellaSwag is scored where dev/data/hellaswag.py has been run.
run_options=()
if [ -f "$root/dev/data/hellaswag/hellaswag_val.bin" ]; then
    run_options+=(--hellaswag "$root/dev/data/hellaswag/hellaswag_val.bin" --hellaswag-every 1000)
fi
