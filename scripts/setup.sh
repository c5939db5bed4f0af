#!/usr/bin/env bash
# Installs the missing packages for building, plotting and testing.
#   scripts/setup.sh [build] [plot] [test]     default: all three
#   scripts/setup.sh gpu                       for the GPU programs only, which need fewer; CUDA is not among them
# On Debian and Ubuntu it uses apt-get, with sudo if needed; if it may not install, it prints the one command that would. On other systems it
# installs nothing, and CMake names what it does not find.
# FLATGPT_FETCH=ON in the environment needs no right to install packages: pip installs cmake, ninja, numpy and matplotlib in build/tools if they
# are missing, and CMake fetches the libraries that it does not find (cmake/fetch.cmake).
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A packages=(
    [build]="build-essential cmake ninja-build pkg-config libboost-context-dev libdnnl-dev libcli11-dev nlohmann-json3-dev libfmt-dev libxxhash-dev
        libopenmpi-dev openmpi-bin libedit-dev libutf8proc-dev"
    [gpu]="build-essential cmake ninja-build pkg-config libcli11-dev nlohmann-json3-dev libfmt-dev libxxhash-dev libopenmpi-dev openmpi-bin libedit-dev
        libutf8proc-dev"
    [plot]="python3 python3-numpy python3-matplotlib"
    [test]="ccache libzstd-dev liblz4-dev libgtest-dev libbenchmark-dev clang libclang-rt-dev python3-venv"
)
[ $# -gt 0 ] || set -- build plot test
for what in "$@"; do
    [ -n "${packages[$what]:-}" ] || { echo "usage: scripts/setup.sh [build] [gpu] [plot] [test]" >&2; exit 2; }
done

# Installs missing tools in build/tools, without the right to install packages.
install_tools() {
    command -v "${CXX:-g++}" >/dev/null || { echo "setup: ${CXX:-g++} is missing; nothing can be built without it" >&2; exit 1; }
    local missing=() tools=build/tools
    if [[ " $* " == *" build "* || " $* " == *" gpu "* ]]; then
        command -v cmake >/dev/null || missing+=("cmake<4")
        command -v ninja >/dev/null || missing+=(ninja)
    fi
    if [[ " $* " == *" plot "* ]] && ! python3 -c 'import numpy, matplotlib' 2>/dev/null; then missing+=(numpy matplotlib); fi
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "setup: installing ${missing[*]} in $tools"
    mkdir -p build
    local log=build/tools.log
    if ! { python3 -m venv --system-site-packages $tools && $tools/bin/python3 -m pip install "${missing[@]}"; } >$log 2>&1; then
        tail -n 20 $log >&2
        echo "setup: ${missing[*]} cannot be installed in $tools (above); expected a python3 with venv and pip, or these tools in PATH" >&2
        exit 1
    fi
}
case ${FLATGPT_FETCH:-OFF} in
    OFF) ;;
    ON | ALL)
        PATH=$PWD/build/tools/bin:$PATH install_tools "$@"
        exit 0
        ;;
    *) echo "setup: FLATGPT_FETCH=$FLATGPT_FETCH; expected OFF, ON or ALL" >&2 && exit 2 ;;
esac

wanted=()
for what in "$@"; do read -ra some -d '' <<<"${packages[$what]}" || true; wanted+=("${some[@]}"); done
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "setup: this system has no apt-get, so nothing is installed; please install what Debian calls ${wanted[*]}, or let FLATGPT_FETCH=ON fetch the libraries" >&2
    exit 0
fi
# The packages that are not installed, into `missing`. Before Ubuntu 24.04, clang's own packages hold what is libclang-rt-dev today.
find_missing() {
    missing=()
    local package
    for package in "${wanted[@]}"; do
        if dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$'; then continue; fi
        if [ "$package" = libclang-rt-dev ] && apt-cache show clang >/dev/null 2>&1 && ! apt-cache show $package >/dev/null 2>&1; then continue; fi
        missing+=("$package")
    done
}
find_missing
[ ${#missing[@]} -eq 0 ] && exit 0

install=(apt-get install -y --no-install-recommends)
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    # -n: a password prompt would hang an unattended build.
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root=(sudo -n); else
        echo "setup: packages are missing and this user may not install them; please run: sudo ${install[*]} ${missing[*]}" >&2
        echo "setup: or fetch what is missing: FLATGPT_FETCH=ON make ${MAKE_TARGET:-quickstart}" >&2
        exit 1
    fi
fi
log=$(mktemp)
give_up() {
    tail -n 20 "$log" >&2
    echo "setup: installing failed (the last lines of its log are above); please run: sudo ${install[*]} ${missing[*]}" >&2
    exit 1
}
"${as_root[@]}" apt-get update >"$log" 2>&1 || give_up
find_missing  # by the packages that are known now
[ ${#missing[@]} -gt 0 ] || exit 0
echo "setup: installing ${missing[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}" "${missing[@]}" >"$log" 2>&1 || give_up
rm -f "$log"
