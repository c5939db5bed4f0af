#!/usr/bin/env bash
# Installs the headers of cuDNN's frontend, which no Debian package has new enough, into an environment of its own. CMake runs it where cuDNN is
# there and they are not. Where it cannot, it says so and the build goes on without cuDNN's attention.
#   scripts/cudnn_frontend.sh FOLDER
set -euo pipefail
folder=$1
package=nvidia-cudnn-frontend==1.32.0
log=$(mktemp)
if ! { python3 -m venv "$folder" && "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 20 \
    --only-binary :all: --no-deps "$package"; } > "$log" 2>&1; then
    echo "cudnn_frontend: $package could not be installed into $folder: $(grep -i error "$log" | tail -n 1)" >&2
    rm -rf "$folder"
fi
rm -f "$log"
