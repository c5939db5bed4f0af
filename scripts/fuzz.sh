#!/usr/bin/env bash
# Builds the fuzz targets of test/fuzz and runs them, two at a time; libFuzzer tests every reader of external data.
#   scripts/fuzz.sh [SECONDS] [TARGET...]     # 60 seconds each; all targets, or those named (safetensors, token_shard, ...)
# Prints the executions and findings of each target; exits with 1 if there is a finding.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
case $seconds in '' | *[!0-9]*) echo "fuzz: '$seconds' is not a number of seconds; expected scripts/fuzz.sh [SECONDS] [TARGET...]" >&2; exit 2 ;; esac
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for source in test/fuzz/fuzz_*.cpp; do name=$(basename "$source" .cpp); targets+=("${name#fuzz_}"); done
fi
for target in "${targets[@]}"; do
    [ -f "test/fuzz/fuzz_$target.cpp" ] || { echo "fuzz: there is no target $target; see test/fuzz" >&2; exit 2; }
done
build=$PWD/build/fuzz
mkdir -p "$build"
{ scripts/configure.sh fuzz && cmake --build --preset fuzz; } >"$build/build.log" 2>&1 || { tail -n 30 "$build/build.log" >&2; exit 1; }

fuzz() {
    local log=$build/$1.log status=0
    test/fuzz/run.sh "$build" "$1" "$seconds" >"$log" 2>&1 || status=$?
    local runs; runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    if [ $status -eq 0 ]; then echo "$1: ${runs:-0} executions in $seconds s, no finding"; else
        echo "$1: FINDING after ${runs:-?} executions; log in $log, input in $(ls -t "$build"/finding-"$1"-* 2>/dev/null | head -n 1)"
        return 1
    fi
}
export -f fuzz
export build seconds
printf '%s\n' "${targets[@]}" | xargs -P 2 -I '{}' bash -c 'fuzz {}'
