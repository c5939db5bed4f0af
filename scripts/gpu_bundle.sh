#!/usr/bin/env bash
# Packs the programs of make gpu-bundle with data and scripts, for a machine that has NVIDIA's driver and PyTorch but
# no compiler and perhaps no network:
#   scripts/gpu_bundle.sh BUILD [ARCHIVE]     ARCHIVE: build/flatgpt-gpu.tar.xz by default
#   on that machine: python3 -m tarfile -e flatgpt-gpu.tar.xz && flatgpt-gpu/run.sh OUTDIR     (or tar xf, if xz is installed)
# The programs find their libraries in lib/ by their rpath, so that no other program loads them. CUDA's libraries are
# PyTorch's. A build on a machine with a GPU runs on such GPUs only, unless ARCHITECTURES were given.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:?usage: scripts/gpu_bundle.sh BUILD [ARCHIVE]}
archive=$(realpath -m "${2:-$root/build/flatgpt-gpu.tar.xz}")
most=56000000  # bytes: leaves room for a source tree beside it in a transfer of 64 MiB

fail() {
    echo "gpu_bundle: $1" >&2
    exit 1
}
[ -x "$build/train_gpt2cu" ] || fail "$build has no train_gpt2cu; run make gpu-bundle"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/flatgpt-gpu
mkdir -p "$bundle/build/cuda" "$bundle/lib" "$bundle/dev/bench" "$bundle/test" "$bundle/trainer/run"
# Tests look for the programs in the folder where they were built.
[ "$(basename "$build")" = cuda ] || ln -s cuda "$bundle/build/$(basename "$build")"

for program in "$build"/{train,evaluate,generate}_gpt2cu "$build"/{tokenize,convert} "$build"/test_*cu "$build"/bench_*; do
    [ -f "$program" ] && [ -x "$program" ] || continue
    name=$(basename "$program")
    [[ "$(readelf -d "$program")" == *'(RPATH)'*'[$ORIGIN/../../lib]'* ]] ||
        fail "$program would not look for libraries in the bundle; build it with make gpu-bundle"
    strip -o "$bundle/build/cuda/$name" "$program"
    case $name in test_* | bench_*) ;; *) ln -s "build/cuda/$name" "$bundle/$name" ;; esac
done
# The system provides the C library, the driver libcuda, and PyTorch the other libraries of CUDA.
ldd "$bundle"/build/cuda/* | sed -n 's/^\t\([^ ]*\) => \(\/[^ ]*\) .*/\1 \2/p' | sort -u |
    grep -vE '^(lib(c|m|dl|pthread|rt|resolv|util)\.so|ld-linux|lib(cuda|cudart|cudnn|nccl|cublas|cublasLt|nvrtc)\.so)' |
    while read -r name path; do strip -o "$bundle/lib/$name" "$path"; done

cp -r "$root/data" "$root/LICENSE" "$bundle"
cp -r "$root/test/reference" "$bundle/test"
cp -r "$root/scripts" "$root/recipes" "$bundle"
cp "$root"/dev/bench/*.py "$bundle/dev/bench"
cp "$root/dev/expected_time.py" "$bundle/dev"  # recipe.sh prints hours by it
cp "$root/trainer/run/nvidia_rates.inc" "$bundle/trainer/run"
mv "$bundle/scripts/gpu_bundle_run.sh" "$bundle/run.sh"
cp "$build/CUDA_VERSION" "$bundle"  # which the driver has to know
{ git -C "$root" describe --always --dirty 2>/dev/null || echo unknown; } >"$bundle/VERSION"

# Every program contains the same kernels, which nvcc has compressed. A dictionary that reaches back past the previous
# program therefore saves space, and a higher preset does not. Sorting by size puts the large programs together.
(cd "$work" && find flatgpt-gpu ! -type d -printf '%s %p\n' | sort -n | sed 's/^[0-9]* //' >list &&
    tar -T list -c | xz --lzma2=preset=1,dict=256MiB >"$archive")
bytes=$(stat -c %s "$archive")
glibc=$(objdump -T "$bundle"/build/cuda/* "$bundle"/lib/* 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
echo "gpu_bundle: $archive, $((bytes / 1000000)) MB; needs ${glibc:-a C library} or newer"
[ "$bytes" -lt $most ] || fail "that is more than the $((most / 1000000)) MB it may be; try ARCHITECTURES=90a, or another one"
