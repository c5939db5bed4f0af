#!/usr/bin/env bash
# Installs Python packages in an environment of their own, without dependencies: they have files that the build needs and no Debian package has.
# CMake runs this script if they are missing. If it fails, it prints the reason, and the build continues without them.
#   scripts/python_packages.sh FOLDER PACKAGE==VERSION...
set -euo pipefail
folder=$1
shift
log=$(mktemp)
if ! { python3 -m venv "$folder" && "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 20 \
    --only-binary :all: --no-deps "$@"; } > "$log" 2>&1; then
    reason=$(grep -i error "$log" | tail -n 1) || reason=$(tail -n 1 "$log")
    echo "python_packages: $* could not be installed into $folder: $reason" >&2
    rm -rf "$folder"
fi
rm -f "$log"
