#!/usr/bin/env bash
# Compares NVIDIA's driver, if there is one, with the CUDA version of programs: a driver runs programs of its own major version of CUDA, and of
# older ones. Prints what is wrong; exits with 1 if the programs would not start.
#   scripts/check_driver.sh WHO VERSION     WHO: begins the messages; VERSION: such as 13.0
set -euo pipefail
who=$1 version=$2
driver=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\.[0-9]*\).*/\1/p' | head -n 1 || true)
[ -n "$driver" ] || exit 0
if [ "${driver%.*}" -lt "${version%.*}" ]; then
    echo "$who: NVIDIA's driver runs programs of CUDA $driver and older, not of CUDA $version; update the driver, or use CUDA ${driver%.*}" >&2
    exit 1
fi
if [ "${driver%.*}" -eq "${version%.*}" ] && [ "${driver#*.}" -lt "${version#*.}" ]; then
    echo "$who: NVIDIA's driver is for CUDA $driver, the programs were built with CUDA $version; that works for GPUs whose code they contain" >&2
fi
