#!/usr/bin/env bash
# Measures all CPU figures of README.md and docs/performance.md, keeps them in dev/bench/results/, rewrites the
# tables and draws docs/speed.png. Takes about 40 minutes on 2 cores, which must have no other work; commit nothing
# meanwhile, because tables show the results of one commit only.
#   dev/bench/measure_cpu.sh --llama-cpp ~/llama.cpp           # with a built llama.cpp (llama-bench, llama-quantize)
#   dev/bench/measure_cpu.sh --llama-cpp FOLDER --llama-version TEXT --llmc FOLDER   # also llm.c (train_gpt2)
#   dev/bench/measure_cpu.sh --which-variables   # also which part of PyTorch's environment matters: half an hour
#   dev/bench/measure_cpu.sh --try ...           # a few steps of each, to see that all of it runs; keeps nothing
set -euo pipefail
usage() {
    echo "measure_cpu: $1; expected [--llama-cpp FOLDER [--llama-version TEXT]] [--llmc FOLDER]" \
        "[--which-variables] [--try]" >&2
    exit 2
}
llama=() llmc="" variables=false try=false root=. save=(--save) rounds=3
train=() generate=() processes=(--steps 2 --discard 1)
while [ $# -gt 0 ]; do
    case $1 in
        --which-variables) variables=true ;;
        --try) try=true ;;
        --llmc | --llama-cpp | --llama-version) [ $# -gt 1 ] || usage "$1 has no value" ;;&
        --llmc) llmc=$(realpath -- "$2"); shift ;;
        --llama-cpp) llama+=("$1" "$(realpath -- "$2")"); shift ;;
        --llama-version) llama+=("$1" "$2"); shift ;;
        *) usage "unknown option $1" ;;
    esac
    shift
done
cd "$(dirname "$0")/../.."
if $try; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    mkdir -p "$root/docs" "$root/dev/bench/results"
    cp README.md "$root"
    cp docs/performance.md "$root/docs"
    rounds=1 train=(--steps 1 --discard 1) generate=(--tokens 4) processes=(--steps 1 --discard 1 --rounds 1)
fi
dev/draw_speed.py --help >/dev/null  # it needs matplotlib: better missed now than after 40 minutes
failed=""
# measure NAME COMMAND...: keeps the results as NAME.json with --try, else under the name that result_file.py gives them.
measure() {
    local name=$1
    shift
    [ "$root" = . ] || save=(--save "$root/dev/bench/results/$name.json")
    "$@" "${save[@]}" || failed+=" $name"
}
make
echo "load of the last minute: $(cut -d ' ' -f 1 /proc/loadavg)"
pytorch=dev/bench/compare_pytorch.py
measure shakespeare $pytorch --preset shakespeare --rounds "$rounds" "${train[@]}"
d12=($pytorch --preset d12)
[ -z "$llmc" ] || d12=(dev/bench/compare_llmc.py "$llmc")
measure d12 "${d12[@]}" --rounds "$rounds" "${train[@]}"
measure d12-1024 $pytorch --preset d12-1024 --rounds "$rounds" "${train[@]}"
measure generation dev/bench/compare_generate.py --rounds "$rounds" "${generate[@]}" "${llama[@]}"
for dtype in fp32 bf16; do
    measure "processes-$dtype" dev/bench/compare_processes.py --dtype "$dtype" "${processes[@]}"
done
if $variables; then
    measure variables $pytorch --preset d12 --which-variables --rounds "$((rounds < 2 ? rounds : 2))" "${train[@]}"
fi
dev/bench/tables.py --root "$root"
dev/draw_speed.py --root "$root"
dev/bench/tables.py --root "$root" --check
[ -z "$failed" ] || { echo "measure_cpu: failed:$failed" >&2; exit 1; }
