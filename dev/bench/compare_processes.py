#!/usr/bin/env python3
"""Compares the training step of one process with all threads with that of several with one thread each, in turns: the ratio of their tokens per second.

    dev/bench/compare_processes.py                          # GPT-2 124M, 4 x 64 tokens a process, 4 micro-steps, 2 processes
    dev/bench/compare_processes.py --dtype bf16 --processes 2 --rounds 3

Both use the same micro-batch per process and the same micro-steps, so several processes make a larger step. Weights are random, the text is real.
The first steps of a slice are not counted; the result is the median over the steps of all rounds.
"""
import argparse
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import result_file  # noqa: E402
import tables  # noqa: E402
from compare_pytorch import SIZES, TEXT, Ours, our_program, processor, token_shards  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"compare_processes: {message}; --help shows the usage\n")
    parser.add_argument("--model", choices=SIZES, default="d12")
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--micro-steps", type=int, default=4)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=4, help="counted steps a slice (default: %(default)s)")
    parser.add_argument("--discard", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    result_file.add_option(parser)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    program, a_process = our_program("cpu"), arguments.batch_size * arguments.seq_len * arguments.micro_steps
    options = dict(zip(("layers", "heads", "channels"), SIZES[arguments.model])) | dict(
        program=program, data=token_shards(str(TEXT), 50257), context=1024, vocab=50257, batch_size=arguments.batch_size, seq_len=arguments.seq_len,
        lr=3e-4, warmup=0, device="cpu")  # fmt: skip
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    launch = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", arguments.processes]
    contenders = {"1 process": (1, Ours(options | dict(total_batch=a_process), arguments.dtype, environment))}
    for zero in (0, 1):
        several = options | dict(total_batch=a_process * arguments.processes, launch=launch, more=["--zero", zero])
        contenders[f"{arguments.processes} processes, --zero {zero}"] = arguments.processes, Ours(several, arguments.dtype, environment)
    times = {name: [] for name in contenders}
    try:
        for _ in range(arguments.rounds):
            for name, (_, contender) in contenders.items():
                times[name] += contender.run(arguments.steps, arguments.discard)["ms"]
    except RuntimeError as error:
        sys.exit(f"compare_processes: {error}")
    results = {}
    for name, (processes, _) in contenders.items():
        median = statistics.median(times[name])
        results[name] = dict(median_ms=round(median, 3), tokens_per_second=round(a_process * processes / median * 1e3, 1))
        results[name]["ratio"] = round(results[name]["tokens_per_second"] / results["1 process"]["tokens_per_second"], 3)
    print(f"{arguments.model} {arguments.dtype}, {arguments.batch_size} x {arguments.seq_len} tokens a process, {arguments.micro_steps} micro-steps; {processor()}")
    rows = [[name, *map(str, result.values())] for name, result in results.items()]
    print(tables.aligned(tables.table(["", "ms a step", "tokens/s", "ratio"], rows)))
    if arguments.save is not None:
        names = ("model", "dtype", "batch_size", "seq_len", "micro_steps", "processes", "steps", "rounds")
        versions = {"flatgpt": result_file.our_version(program), "oneDNN": result_file.onednn_version(program)}
        result_file.save(arguments.save, "compare_processes", f"processes-{arguments.model}-{arguments.dtype}", len(os.sched_getaffinity(0)), versions,
                         {name: getattr(arguments, name) for name in names}, results, {})  # fmt: skip


if __name__ == "__main__":
    main()
