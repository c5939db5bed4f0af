#!/usr/bin/env bash
# Runs what make gpu-bundle packed, with the CUDA libraries of PyTorch's wheels.
#   ./run.sh OUTDIR [OPTION...]     scripts/gpu_check.sh: tests, speeds, losses, a report; --help lists the options
#   ./run.sh -- COMMAND...          anything else, such as: ./run.sh -- ./train_gpt2cu --help
# FLATGPT_PYTORCH_VENV names the environment that has PyTorch, if python3 has not.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${FLATGPT_PYTORCH_VENV:+$FLATGPT_PYTORCH_VENV/bin/}python3
folders=$("$python" -c 'import glob, nvidia; print(*sorted(lib for path in nvidia.__path__ for lib in glob.glob(path + "/*/lib")), sep=":")' 2>/dev/null || true)
export LD_LIBRARY_PATH=$here/lib${folders:+:$folders}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
missing=$(ldd "$here/build/cuda/train_gpt2cu" | sed -n 's/^\t\([^ ]*\) => not found.*/\1/p' | sort -u | tr '\n' ' ')
if [ -n "$missing" ]; then
    echo "run.sh: not found: ${missing% }; expected them from the driver, from PyTorch's packages (looked in ${folders:-none: $python has no nvidia packages}), or in LD_LIBRARY_PATH" >&2
    exit 1
fi
export FLATGPT_ROOT=$here FLATGPT_DATA=$here/data
if [ "${1:-}" = -- ]; then
    shift
    exec "$@"
fi
exec "$here/scripts/gpu_check.sh" "$@"
