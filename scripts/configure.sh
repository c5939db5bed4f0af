#!/usr/bin/env bash
# Runs cmake --preset, also in a checkout that was moved or copied: CMake refuses a build folder that was configured
# for another place, so such a folder is configured anew.
#   scripts/configure.sh PRESET [-B BUILD] [OPTION...]     BUILD: build/PRESET by default; OPTION: cmake's
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: scripts/configure.sh PRESET [-B BUILD] [OPTION...]}
shift
build=build/$preset
[ "${1:-}" != -B ] || build=$2
export PATH="$PWD/build/tools/bin:$PATH"  # tools that scripts/setup.sh installed by pip
place=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt" 2>/dev/null || true)
if [ -n "$place" ] && ! [ "$place" -ef . ]; then
    echo "$build was configured for $place; it is configured anew"
    rm -rf "$build/CMakeCache.txt" "$build/CMakeFiles"  # cmake --fresh needs CMake 3.24
fi
# These variables are read from the environment, so that make's targets need not pass them on (cmake/fetch.cmake).
for variable in FLATGPT_FETCH FLATGPT_ARCHIVES FLATGPT_WERROR; do
    [ -z "${!variable:-}" ] || set -- "-D$variable=${!variable}" "$@"
done
exec cmake --preset "$preset" "$@"
