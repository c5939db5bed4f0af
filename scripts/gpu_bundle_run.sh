#!/usr/bin/env bash
# Runs the programs of a GPU bundle with the CUDA libraries of PyTorch's wheels.
#   ./run.sh OUTDIR [OPTION...]     scripts/gpu_check.sh: speeds, tests, losses, a report; --help lists the options
#   ./run.sh -- COMMAND...          any other command, such as: ./run.sh -- ./train_gpt2cu --help
# FLATGPT_PYTORCH_VENV names the environment that has PyTorch, if python3 does not have it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${FLATGPT_PYTORCH_VENV:+$FLATGPT_PYTORCH_VENV/bin/}python3
export FLATGPT_ROOT=$here FLATGPT_DATA=$here/data

# Links CUDA's libraries into lib/, where only our programs look.
link_cuda_libraries() {
    local libraries missing
    libraries=$("$python" -c 'import glob, nvidia; print(*(lib for path in nvidia.__path__ for lib in glob.glob(path + "/*/lib/lib*.so*")), sep="\n")' \
        2>/dev/null || true)
    if [ -n "$libraries" ]; then echo "$libraries" | xargs -d '\n' ln -sf -t "$here/lib"; fi
    missing=$(ldd "$here/build/cuda/train_gpt2cu" | sed -n 's/^\t\([^ ]*\) => not found.*/\1/p' | sort -u | tr '\n' ' ')
    if [ -n "$missing" ]; then
        echo "run.sh: not found: ${missing% }; expected them from the driver, from PyTorch's packages" \
            "(of $python), or in LD_LIBRARY_PATH" >&2
        exit 1
    fi
}

if [ "${1:-}" = -- ]; then
    shift
    link_cuda_libraries
    exec "$@"
fi
case " $* " in
    *" --help "* | *" -h "*) ;;
    *)
        if ! nvidia-smi -L >/dev/null 2>&1; then
            echo "run.sh: nvidia-smi lists no GPU" >&2
            exit 2
        fi
        "$here/scripts/check_driver.sh" run.sh "$(cat "$here/CUDA_VERSION")" || exit 2
        link_cuda_libraries
        ;;
esac
exec "$here/scripts/gpu_check.sh" "$@"
