#!/usr/bin/env bash
# Runs one fuzz target: test/fuzz/run.sh BUILD_FOLDER TARGET SECONDS
#   Starts from BUILD_FOLDER/corpus/TARGET and from the inputs in BUILD_FOLDER/found/TARGET, with which earlier runs reached new code.
#   FUZZ_TIMEOUT: seconds that one input may take (5). FUZZ_SEED: of the changes to inputs (0: another one in each run).
#   Exits with 1 at a finding. The input that caused it is BUILD_FOLDER/finding-TARGET-*; BUILD_FOLDER/fuzz_TARGET reproduces it.
set -euo pipefail
build=$1 target=$2 seconds=$3
mkdir -p "$build/found/$target" "$build/corpus/$target"
words=$build/corpus/$target.dict
exec "$build/fuzz_$target" -max_total_time="$seconds" -seed="${FUZZ_SEED:-0}" -timeout="${FUZZ_TIMEOUT:-5}" \
    -rss_limit_mb=2048 -malloc_limit_mb=2048 -max_len=65536 -print_final_stats=1 -verbosity=1 \
    $([ -f "$words" ] && echo "-dict=$words") -artifact_prefix="$build/finding-$target-" "$build/found/$target" "$build/corpus/$target"
