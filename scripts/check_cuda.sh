#!/usr/bin/env bash
# Prints what is missing for a GPU build; exits with 1 if anything is.
#   scripts/check_cuda.sh [TARGET]     TARGET: make's target, for the message; gpu: the programs are run here, so the driver counts too
set -euo pipefail
target=${1:-gpu} here=${1:-}
# The order in which CMake looks, too: CUDA_HOME chooses between several toolkits.
for nvcc in "${CUDA_HOME:-}/bin/nvcc" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc ""; do
    [ ! -x "$nvcc" ] || break
done
if [ -n "$nvcc" ] && [ -n "${CUDA_HOME:-}" ] && [ ! -x "$CUDA_HOME/bin/nvcc" ]; then
    echo "make $target: CUDA_HOME=$CUDA_HOME has no bin/nvcc; $nvcc is used" >&2
fi
if [ -z "$nvcc" ]; then
    echo "make $target: nvcc is missing; install the CUDA Toolkit, 12.4 or newer, or set CUDA_HOME to where it is" >&2
    exit 1
fi
version=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\.[0-9]*\),.*/\1/p')
if [ "$(printf '%s\n' 12.4 "$version" | sort -V | head -n 1)" != 12.4 ]; then
    echo "make $target: $nvcc is CUDA $version; expected 12.4 or newer" >&2
    exit 1
fi
root=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
# Folders that this user may not read are passed over.
if [ -z "$(find "$root/" /usr/include -name cublasLt.h -print -quit 2>/dev/null || true)" ]; then
    echo "make $target: cublasLt.h is missing beside $nvcc; install cuBLAS (libcublas-dev-${version/./-})" >&2
    exit 1
fi
[ "$here" != gpu ] || "$(dirname "$0")/check_driver.sh" "make gpu" "$version"
