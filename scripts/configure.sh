#!/usr/bin/env bash
# Runs cmake --preset, also in a checkout that was moved or copied: CMake refuses a build folder that was configured
# for another place, so such a folder is configured anew. So is one of another CUDA Toolkit than CUDA_HOME's, which CMake
# would keep.
#   scripts/configure.sh PRESET [-B BUILD] [OPTION...]     BUILD: build/PRESET by default; OPTION: cmake's
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: scripts/configure.sh PRESET [-B BUILD] [OPTION...]}
shift
build=build/$preset
[ "${1:-}" != -B ] || build=$2
export PATH="$PWD/build/tools/bin:$PATH"  # tools that scripts/setup.sh installed by pip
# cached NAME: the value of CMake's variable in the build folder.
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt" 2>/dev/null || true; }
configured_for=$(cached CMAKE_HOME_DIRECTORY)
if [ "$configured_for" -ef . ]; then
    configured_for=$(cached CMAKE_CUDA_COMPILER)
    if [ ! -x "${CUDA_HOME:-/none}/bin/nvcc" ] || [ "$configured_for" -ef "$CUDA_HOME/bin/nvcc" ]; then configured_for=; fi
fi
if [ -n "$configured_for" ]; then
    echo "$build was configured for $configured_for; it is configured anew"
    rm -rf "$build/CMakeCache.txt" "$build/CMakeFiles"  # cmake --fresh needs CMake 3.24
fi
# These variables are read from the environment, so that make's targets need not pass them on (cmake/fetch.cmake).
for variable in FLATGPT_FETCH FLATGPT_ARCHIVES FLATGPT_MARCH FLATGPT_WERROR; do
    [ -z "${!variable:-}" ] || set -- "-D$variable=${!variable}" "$@"
done
exec cmake --preset "$preset" "$@"
