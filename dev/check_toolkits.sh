#!/usr/bin/env bash
# Compiles the CUDA sources with each of several CUDA Toolkits, and prints a table for docs/gpu.md: what each nvcc compiles, and what its ptxas
# says of spills for every GPU that it knows.
#   dev/check_toolkits.sh [--gpus "80 90a"] [--quick] TOOLKIT...
#     TOOLKIT   a folder with bin/nvcc, include/ (cuBLASLt's headers too) and nvvm/
#     --gpus    these GPUs only; all that nvcc knows from sm_70 on by default
#     --quick   the programs' sources only, without tests and benchmarks
# Exits with 1 if a file does not compile. An hour on 2 cores for three toolkits, 5 minutes for one with --quick --gpus 90a. Needs ./scripts/setup.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
gpus="" quick=false toolkits=()
while [ $# -gt 0 ]; do
    case $1 in
        --gpus) gpus=${2:?usage: --gpus LIST}; shift ;;
        --quick) quick=true ;;
        -*) echo "check_toolkits: $1 is not an option; expected --gpus or --quick" >&2; exit 2 ;;
        *) toolkits+=("$(realpath "$1")") ;;
    esac
    shift
done
[ ${#toolkits[@]} -gt 0 ] || { echo "usage: dev/check_toolkits.sh [--gpus LIST] [--quick] TOOLKIT..." >&2; exit 2; }

log=$(mktemp)
trap 'rm -f "$log" "$log.o"' EXIT
failed=false
# compile NVCC GPU FILE: prints ptxas's spills, if any; fails if the file does not compile.
compile() {
    local number=${2%a}
    if ! "$1" -std=c++20 -O3 -I. -Itest -DPROJECT_ROOT='"."' -DFMT_USE_CONSTEXPR=1 -DTRAIN_PROGRAM='""' -DGENERATE_PROGRAM='""' \
        -Xcompiler=-Wall,-Wextra,-Wno-restrict -Xptxas=-warn-spills -gencode "arch=compute_$2,code=sm_$2" -c "$3" -o "$log.o" >"$log" 2>&1; then
        echo "  $3, sm_$number: $(grep -m 1 -i error "$log")" >&2
        return 1
    fi
    grep -iE 'spill|warning' "$log" | sed "s|^|  $3, sm_$number: |" >&2 || true
}
programs=$(git ls-files '*.cu' | grep -vE '^(test|dev/bench|dev/learn)/')
others=$(git ls-files 'test/*.cu' 'dev/bench/*.cu' 'dev/learn/*.cu')
echo "| CUDA | GPUs | files of the programs | of tests and benchmarks |"
echo "|---|---|---|---|"
for toolkit in "${toolkits[@]}"; do
    nvcc=$toolkit/bin/nvcc
    version=$("$nvcc" --version | sed -n 's/.*V\([0-9.]*\)$/\1/p')
    list=${gpus:-$("$nvcc" --list-gpu-code | sed -n 's/^sm_\([0-9]*\)$/\1/p' | awk '$1 >= 70' | sed 's/^90$/90a/' | tr '\n' ' ')}
    good=0 all=0 good_others=0 all_others=0
    for gpu in $list; do
        for file in $programs; do
            all=$((all + 1))
            if compile "$nvcc" "$gpu" "$file"; then good=$((good + 1)); else failed=true; fi
        done
    done
    last=${list##* }
    $quick || for file in $others; do
        all_others=$((all_others + 1))
        if compile "$nvcc" "${last:-90a}" "$file"; then good_others=$((good_others + 1)); else failed=true; fi
    done
    echo "| $version | ${list% } | $good of $all | $good_others of $all_others |"
done
! $failed
