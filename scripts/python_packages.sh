#!/usr/bin/env bash
# Installs packages of Python's into an environment of their own, without what they depend on: files that the build needs and no Debian package has.
# CMake runs it where they are missing. Where it cannot, it says so, and the build goes on without them.
#   scripts/python_packages.sh FOLDER PACKAGE==VERSION...
set -euo pipefail
folder=$1
shift
log=$(mktemp)
if ! { python3 -m venv "$folder" && "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 20 \
    --only-binary :all: --no-deps "$@"; } > "$log" 2>&1; then
    echo "python_packages: $* could not be installed into $folder: $(grep -i error "$log" | tail -n 1)" >&2
    rm -rf "$folder"
fi
rm -f "$log"
