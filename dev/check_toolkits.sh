#!/usr/bin/env bash
# Compiles the CUDA sources with each of several CUDA Toolkits, and prints a table for docs/gpu.md: what each nvcc compiles, and how many kernels
# its ptxas spills on the GPUs that it knows. Errors, warnings and spills go to stderr.
#   dev/check_toolkits.sh [--gpus "80 90a"] [--quick | --files LIST] TOOLKIT...
#     TOOLKIT   a folder with bin/nvcc, include/ (cuBLASLt's headers too) and nvvm/
#     --gpus    these GPUs only; all that nvcc knows from sm_70 on by default
#     --quick   the programs' sources only, without tests and benchmarks
#     --files   these sources only
# Exits with 1 if a file does not compile or a kernel spills. Files are compiled side by side, as many as there are cores. Needs ./scripts/setup.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
gpus="" quick=false programs="" toolkits=()
while [ $# -gt 0 ]; do
    case $1 in
        --gpus) gpus=${2:?usage: --gpus LIST}; shift ;;
        --quick) quick=true ;;
        --files) quick=true programs=${2:?usage: --files LIST}; shift ;;
        -*) echo "check_toolkits: $1 is not an option; expected --gpus, --quick or --files" >&2; exit 2 ;;
        *) toolkits+=("$(realpath "$1")") ;;
    esac
    shift
done
[ ${#toolkits[@]} -gt 0 ] || { echo "usage: dev/check_toolkits.sh [--gpus LIST] [--quick | --files LIST] TOOLKIT..." >&2; exit 2; }

for toolkit in "${toolkits[@]}"; do
    [ -x "$toolkit/bin/nvcc" ] || { echo "check_toolkits: $toolkit has no bin/nvcc; expected the folder of a CUDA Toolkit" >&2; exit 2; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# compile NVCC RESULTS GPU WHAT FILE: adds a line to RESULTS, "good" or "bad", and one for each spill. WHAT: -c, or -cubin, which leaves out the
# host's half of the file.
compile() {
    local nvcc=$1 results=$2 gpu=$3 what=$4 file=$5 log
    log=$(mktemp -p "$(dirname "$results")")
    if "$nvcc" -std=c++20 -O3 -I. -Itest -DPROJECT_ROOT='"."' -DFMT_USE_CONSTEXPR=1 -DTRAIN_PROGRAM='""' -DGENERATE_PROGRAM='""' \
        -Xcompiler=-Wall,-Wextra,-Wno-restrict -Xptxas=-warn-spills -gencode "arch=compute_$gpu,code=sm_$gpu" "$what" "$file" -o "$log.o" >"$log" 2>&1
    then
        echo good >>"$results"
        grep -iE 'spill|warning' "$log" | c++filt | sed "s|^|  $file, sm_$gpu: |" | tee -a "$results" >&2 || true
    else
        echo bad >>"$results"
        echo "  $file, sm_$gpu: $(grep -im 1 error "$log" || tail -n 1 "$log")" >&2
    fi
    rm -f "$log" "$log.o"
}
export -f compile
# compile_all NVCC RESULTS GPUS FILES: only the first GPU's compilation has the host's half.
compile_all() {
    local nvcc=$1 results=$2 gpu file what=-c
    for gpu in $3; do
        for file in $4; do printf '%s\0' "$gpu" "$what" "$file"; done
        what=-cubin
    done | xargs -0 -n 3 -P "$(nproc)" bash -c 'compile "$@"' compile "$nvcc" "$results"
}
# good RESULTS: how many of the files compiled.
good() { echo "$(grep -c '^good$' "$1") of $(grep -cE '^(good|bad)$' "$1")"; }

programs=${programs:-$(git ls-files '*.cu' | grep -vE '^(test|dev/bench|dev/learn)/')}
others=$(git ls-files 'test/test_*.cu' 'test/mpi/test_*.cu' 'dev/bench/*.cu')  # those of the GPU build
echo "| CUDA | GPUs | files of the programs, for each GPU | kernels that spill | files of tests and benchmarks |"
echo "|---|---|---|---|---|"
for toolkit in "${toolkits[@]}"; do
    nvcc=$toolkit/bin/nvcc
    version=$("$nvcc" --version | sed -n 's/.*V\([0-9.]*\)$/\1/p')
    list=${gpus:-$("$nvcc" --list-gpu-code | sed -n 's/^sm_\([0-9]*\)$/\1/p' | sort -n | awk '$1 >= 70' | sed 's/^90$/90a/' | paste -sd ' ')}
    compile_all "$nvcc" "$work/$version.programs" "$list" "$programs"
    of_others="not compiled"
    if ! $quick; then
        compile_all "$nvcc" "$work/$version.others" "${list##* }" "$others"
        of_others=$(good "$work/$version.others")
    fi
    echo "| $version | $list | $(good "$work/$version.programs") | $(grep -c spilled "$work/$version.programs" || true) | $of_others |"
done
! grep -qE '^bad$|spilled' "$work"/*
