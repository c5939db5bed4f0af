#!/usr/bin/env bash
# Installs what building and running need from Debian 12 / Ubuntu 24.04 packages: only what is missing,
# with sudo where needed. Where it cannot install, it prints the one command that would. On other systems it installs nothing: CMake names
# what it does not find.
#   scripts/setup.sh
set -euo pipefail

packages=(
    build-essential cmake ninja-build ccache pkg-config
    libboost-context-dev libdnnl-dev libcli11-dev nlohmann-json3-dev libfmt-dev libxxhash-dev libzstd-dev liblz4-dev
    libopenmpi-dev openmpi-bin
    libgtest-dev libbenchmark-dev
    clang libclang-rt-dev
    python3 python3-venv python3-numpy python3-matplotlib
)

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "setup: this system has no apt-get, so nothing is installed; of Debian's packages these are needed, by whatever name: ${packages[*]}" >&2
    exit 0
fi
missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

command=(apt-get install -y --no-install-recommends "${missing[@]}")
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    # -n: a password prompt would hang a build that nobody watches.
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root=(sudo -n); else
        echo "setup: packages are missing and this user may not install them; please run: sudo ${command[*]}" >&2
        exit 1
    fi
fi
echo "setup: installing ${missing[*]}"
log=$(mktemp)
if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "${command[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup: installing failed (the last lines of its log are above); please run: sudo ${command[*]}" >&2
    exit 1
fi
rm -f "$log"
