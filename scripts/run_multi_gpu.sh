#!/usr/bin/env bash
# Trains with one process per GPU on this machine. mpirun starts the processes; where it is missing, this script starts them, each with its
# rank in the environment, as torchrun does.
#   scripts/run_multi_gpu.sh [--processes N] [--launcher mpirun|environment] OPTION...
#   --processes N   number of processes (default: the GPUs that nvidia-smi lists and CUDA_VISIBLE_DEVICES permits)
#   --launcher      default: mpirun if it is installed, else environment
#   OPTION...       all other options are passed to ./train_gpt2cu, or to the program that TRAIN_PROGRAM names
# When one process fails, the others are ended, and this script exits with its exit code. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 end the run after
# its step, with a checkpoint. Ctrl-C or SIGTERM again, a second or more later, ends it at once.
set -euo pipefail

fail() {
    echo "run_multi_gpu: $1" >&2
    exit 2
}

processes="" launcher=""
while [ $# -gt 0 ]; do
    case "$1" in
        --help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;;
        --processes) [[ ${2:-} =~ ^[1-9][0-9]{0,3}$ ]] || fail "--processes ${2:-}; expected a number from 1" ;;
        --launcher) [[ ${2:-} =~ ^(mpirun|environment)$ ]] || fail "--launcher ${2:-}; expected mpirun or environment" ;;
        *) break ;;
    esac
    if [ "$1" = --processes ]; then processes=$2; else launcher=$2; fi
    shift 2
done
program=${TRAIN_PROGRAM:-$(cd "$(dirname "$0")/.." && pwd)/train_gpt2cu}
[ -x "$program" ] || fail "$program is not built yet; run make gpu first"

if [ -z "$processes" ]; then
    processes=$(nvidia-smi --query-gpu=memory.total,name --format=csv,noheader,nounits 2>/dev/null | grep -cE '^[0-9]+, ' || true)
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then processes=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .); fi
    [ "$processes" -gt 0 ] || fail "nvidia-smi lists no GPU; to start processes without, give --processes N"
fi
if [ -z "$launcher" ]; then launcher=$(command -v mpirun >/dev/null && echo mpirun || echo environment); fi

pids=()
signal_all() { kill -s "$1" "${pids[@]}" 2>/dev/null || true; }
# mpirun kills its processes two seconds after SIGINT or SIGTERM, which may be too short for a checkpoint. SIGUSR1 it passes on, and waits.
declare -A asked=() # by signal, the time of the first one in microseconds
# shellcheck disable=SC2317  # the traps call it
pass_on() {
    local now=${EPOCHREALTIME//[!0-9]/}
    if [ "$launcher" = environment ]; then
        signal_all "$1"
    elif [ -z "${asked[$1]:-}" ]; then
        asked[$1]=$now
        signal_all USR1
    elif [[ $1 =~ ^(INT|TERM)$ ]] && [ $((now - asked[$1])) -ge 950000 ]; then
        signal_all TERM
    fi
}
for signal in INT TERM HUP USR1; do
    # shellcheck disable=SC2064  # the current name is meant
    trap "pass_on $signal" $signal
done

if [ "$launcher" = mpirun ]; then
    if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
    # The program chooses its cores itself; with one or two processes, mpirun would bind each to a single core. In a session of its own, mpirun
    # gets no Ctrl-C from the terminal.
    setsid setpriv --pdeathsig TERM mpirun -np "$processes" --bind-to none "$program" "$@" &
    pids+=($!)
else
    export WORLD_SIZE=$processes LOCAL_WORLD_SIZE=$processes MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-$((20000 + RANDOM % 10000))}
    for ((rank = 0; rank < processes; rank++)); do
        RANK=$rank LOCAL_RANK=$rank "$program" "$@" &
        pids+=($!)
    done
fi

status=0
for ((left = ${#pids[@]}; left > 0 && status == 0; )); do
    ended="" code=0
    wait -n -p ended || code=$?
    if [ -n "${ended:-}" ]; then status=$code left=$((left - 1)); fi  # otherwise a signal has arrived and was passed on
done
if [ $status != 0 ] && [ "$launcher" = environment ]; then
    for ((rank = 0; rank < processes; rank++)); do
        if [ "${pids[rank]}" = "$ended" ]; then echo "run_multi_gpu: process $rank ended with exit code $status; the others are ended too" >&2; fi
    done
    # The others wait for a process that is gone. Ending them is safe, because they write files atomically.
    signal_all TERM
    for ((i = 0; i < 50; i++)); do
        [ -n "$(jobs -rp)" ] || break
        sleep 0.1
    done
    signal_all KILL
    wait || true
fi
exit $status
