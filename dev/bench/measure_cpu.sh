#!/usr/bin/env bash
# Measures all CPU figures of README.md and docs/performance.md, keeps them in dev/bench/results/ and rewrites the
# tables. Takes a quarter of an hour on 2 cores without other work.
#   dev/bench/measure_cpu.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
make
echo "load of the last minute: $(cut -d ' ' -f 1 /proc/loadavg)"
dev/bench/compare_pytorch.py --preset shakespeare --rounds 3 --save
dev/bench/compare_pytorch.py --preset d12 --rounds 3 --save
dev/bench/compare_generate.py --rounds 2 --tokens 32 --save
for dtype in fp32 bf16; do
    dev/bench/compare_processes.py --dtype "$dtype" --steps 2 --discard 1 --save
done
dev/bench/tables.py
