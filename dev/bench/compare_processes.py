#!/usr/bin/env python3
"""Compares the training step of one process with all threads with that of several with one thread each, in turns: the ratio of their tokens per second.

    dev/bench/compare_processes.py                          # GPT-2 124M, 4 x 64 tokens a process, 4 micro-steps, 2 processes
    dev/bench/compare_processes.py --dtype bf16 --processes 2 --rounds 3

Both use the same micro-batch per process and the same micro-steps, so several processes make a larger step. Weights are random, the text is real.
The first steps of a slice are not counted; the result is the median over the steps of all rounds.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import result_file  # noqa: E402
from compare_pytorch import TEXT, our_program, processor, token_shards  # noqa: E402


def run(program, data, arguments, processes, zero):
    """Trains and returns the milliseconds of each counted step."""
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "run")
        tokens = arguments.batch_size * arguments.seq_len * processes * arguments.micro_steps
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", processes] if processes > 1 else []
        command += [program, "--model", arguments.model, "--train-data", data, "--dtype", arguments.dtype, "--batch-size", arguments.batch_size,
                    "--seq-len", arguments.seq_len, "--total-batch", tokens, "--steps", arguments.steps + arguments.discard, "--zero", zero,
                    "--val-every", 0, "--sample-every", 0, "--checkpoint-every", 0, "--out", out]  # fmt: skip
        done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"compare_processes: {done.stderr.strip().splitlines()[0]}")
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [record["step_ms"] for record in records if record["kind"] == "train"][arguments.discard :]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"compare_processes: {message}; --help shows the usage\n")
    parser.add_argument("--model", default="d12")
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--micro-steps", type=int, default=4)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=4, help="counted steps a slice (default: %(default)s)")
    parser.add_argument("--discard", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    result_file.add_option(parser)
    arguments = parser.parse_args()
    program, data = our_program("cpu"), token_shards(str(TEXT), 50257)
    contenders = {"1 process": (1, 0)} | {f"{arguments.processes} processes, --zero {zero}": (arguments.processes, zero) for zero in (0, 1)}
    times = {name: [] for name in contenders}
    for _ in range(arguments.rounds):
        for name, (processes, zero) in contenders.items():
            times[name] += run(program, data, arguments, processes, zero)
    print(f"{arguments.model} {arguments.dtype}, {arguments.batch_size} x {arguments.seq_len} tokens a process, {arguments.micro_steps} micro-steps; {processor()}")
    rates = {}
    for name, (processes, _) in contenders.items():
        median = statistics.median(times[name])
        rates[name] = arguments.batch_size * arguments.seq_len * arguments.micro_steps * processes / median * 1e3
        print(f"{name:24}{median:10.1f} ms a step{rates[name]:10.0f} tokens/s{rates[name] / rates['1 process']:8.3f}")
    if arguments.save is not None:
        results = {name: dict(median_ms=round(statistics.median(times[name]), 3), tokens_per_second=round(rates[name], 1), ratio=round(rates[name] / rates['1 process'], 3)) for name in contenders}
        names = ("model", "dtype", "batch_size", "seq_len", "micro_steps", "processes", "steps", "rounds")
        options = {name: getattr(arguments, name) for name in names}
        versions = {"flatgpt": result_file.our_version(program), "oneDNN": result_file.onednn_version(program)}
        result_file.save(arguments.save, "compare_processes", f"processes-{arguments.model}-{arguments.dtype}", len(os.sched_getaffinity(0)), versions,
                         options, results, {})  # fmt: skip


if __name__ == "__main__":
    main()
