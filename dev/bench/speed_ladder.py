#!/usr/bin/env python3
"""Measures the gain of each optimisation of a training step, one row each; every row includes the rows above it.

    scripts/speed_ladder.sh                                  # GPT-2 124M, 64 x 1024 tokens, on the GPU
    scripts/speed_ladder.sh --batch-size 16 --json out.json
    scripts/speed_ladder.sh --device cpu --batch-size 4 --seq-len 64

Rows that the program has options for are trained, in turns, in one run; the result is the median over the steps of all rounds. No option switches off
the products' epilogues or the padding of the vocabulary. Those rows are computed: a trained step plus the time by which the benchmarks of the operations
are slower without them. A row that this machine or build cannot run is reported with the reason.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tables  # noqa: E402
from compare_pytorch import ROOT, SIZES, TEXT, Ours, our_program, positive, progress, reason, token_shards  # noqa: E402

VOCABULARY, PADDED = 50257, 50304
TINY = dict(layers=1, heads=2, channels=32, batch_size=2, seq_len=16, steps=2, discard=1, rounds=1, bench_seconds=0.01)


def fail(message):
    sys.exit(f"speed_ladder: {message}")


class Absent(Exception):
    """The reason why a row cannot be measured here."""


def trained_rows(device, has_graphs):
    """[(name, options, reason of its absence or "")] of the rows that options switch; the options include those of the rows above."""
    single = ["--no-graph"] if has_graphs else []
    gpu = device == "cuda"
    library = "cuDNN" if gpu else "oneDNN"
    return [
        ("fp32", ["--dtype", "fp32", "--attention", "kernel", *single], ""),
        ("tf32", ["--dtype", "tf32", "--attention", "kernel", *single], "" if gpu else "not on a CPU"),
        ("bf16", ["--dtype", "bf16", "--attention", "kernel", *single], ""),
        (f"attention by {library}", ["--dtype", "bf16", "--attention", library.lower(), *single], ""),
        ("CUDA graphs", ["--dtype", "bf16", "--attention", "auto"], "" if gpu and has_graphs else "not on a CPU" if not gpu else "this build has none"),
    ]


def benchmark(arguments, name, **dimensions):
    """Milliseconds of every operation, by its name and shape. Raises Absent if the benchmark cannot be run."""
    program = pathlib.Path(arguments.build) / f"bench_{name}{'cu' if arguments.device == 'cuda' else ''}"
    if not os.access(program, os.X_OK):
        raise Absent(f"{program.name} is not built")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "out.json")
        shape = [part for key, value in dimensions.items() for part in (f"--{key}", value)]
        fixed = ["--dtype", "bf16", "--json", out, f"--benchmark_min_time={arguments.bench_seconds}"]
        done = subprocess.run([program, *fixed, *map(str, shape)], capture_output=True, text=True)
        if done.returncode != 0:
            raise Absent(reason(done.stderr, done.returncode))
        rows = json.loads(out.read_text())["benchmarks"]
    return {(row["name"].split("/")[0], *row["name"].split("/")[2:-1]): row["real_time"] * {"us": 1e-3, "ms": 1}[row["time_unit"]] for row in rows}


def lost_without_epilogues(arguments):
    """Milliseconds that a step would take longer if GELU and its gradient were kernels of their own after the MLP's products."""
    N, C, OC = arguments.batch_size * arguments.seq_len, arguments.channels, 4 * arguments.channels
    up = benchmark(arguments, "matmul", N=N, C=C, OC=OC)
    down = benchmark(arguments, "matmul", N=N, C=OC, OC=C)
    gelu = benchmark(arguments, "gelu", N=N, C=OC)
    up_shape, down_shape, gelu_shape = (f"N:{N}", f"C:{C}", f"OC:{OC}"), (f"N:{N}", f"C:{OC}", f"OC:{C}"), (f"N:{N}", f"C:{OC}")
    forward = up["matmul_forward", *up_shape] + gelu["gelu_forward", *gelu_shape] - up["matmul_forward_gelu", *up_shape]
    backward = down["matmul_backward_input", *down_shape] + gelu["gelu_backward", *gelu_shape] - down["matmul_backward_input_gelu", *down_shape]
    return arguments.layers * arguments.micro_steps * (forward + backward)


def lost_without_padding(arguments):
    """Milliseconds that a step would take longer if the head's three products had 50257 columns."""
    N = arguments.batch_size * arguments.seq_len
    ms = benchmark(arguments, "matmul", N=N, C=arguments.channels, OC=f"{VOCABULARY},{PADDED}")
    of = {size: sum(ms[f"matmul_{product}", f"N:{N}", f"C:{arguments.channels}", f"OC:{size}"] for product in ("forward", "backward_input", "backward_weight"))
          for size in (VOCABULARY, PADDED)}  # fmt: skip
    return arguments.micro_steps * (of[VOCABULARY] - of[PADDED])


def train(arguments):
    """Milliseconds of every step of each trained row, or a note why there are none: {name: (ms, note)}."""
    program = our_program(arguments.device)
    shared = dict(program=program, device=arguments.device, data=token_shards(arguments.data, VOCABULARY), layers=arguments.layers, heads=arguments.heads,
                  channels=arguments.channels, context=arguments.seq_len, vocab=VOCABULARY, batch_size=arguments.batch_size, seq_len=arguments.seq_len,
                  total_batch=arguments.batch_size * arguments.seq_len * arguments.micro_steps, lr=3e-4, warmup=0)  # fmt: skip
    scratch = tempfile.TemporaryDirectory()
    environment = {"FLATGPT_MATMULS": str(pathlib.Path(scratch.name, "matmul_algorithms.json"))}  # products are timed once; the caller's FILE takes precedence
    environment |= os.environ | {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    has_graphs = "--no-graph" in subprocess.run([program, "--help"], capture_output=True, text=True).stdout
    rows = {name: dict(ms=[], note=absent, options=options) for name, options, absent in trained_rows(arguments.device, has_graphs)}
    for round_ in range(arguments.rounds):
        for name, row in rows.items():
            if row["note"]:
                continue
            progress(f"round {round_ + 1} of {arguments.rounds}: {name}")
            dtype = row["options"][1]
            try:
                row["ms"] += Ours(shared | {"more": row["options"][2:]}, dtype, environment).run(arguments.steps, arguments.discard)["ms"]
            except RuntimeError as error:
                lacking = re.search(r"this build has no \w+", str(error))
                row["note"] = lacking[0] if lacking else str(error)
    progress("")
    return {name: (row["ms"] if not row["note"] else [], row["note"]) for name, row in rows.items()}


LOST = {"padding": lost_without_padding, "epilogues": lost_without_epilogues}


def lost_without(name, arguments):
    """(milliseconds that a step would take longer, a note), or (None, the reason) if they cannot be measured."""
    progress(f"benchmarks: {name}")
    try:
        return LOST[name](arguments), "computed, from its operations"
    except Absent as error:
        return None, str(error)
    except KeyError as error:
        return None, f"no benchmark of {error}"
    finally:
        progress("")


def ladder(arguments):
    """Rows in order: [{name, ms, tokens_per_second, gain over the row above, note}]."""
    trained = {name: (statistics.median(ms) if ms else None, note) for name, (ms, note) in train(arguments).items()}
    lost = {name: lost_without(name, arguments) for name in LOST}
    bf16, note = trained.pop("bf16")
    without = [(None if None in (bf16, *losses) else bf16 + sum(losses)) for losses in ((lost["padding"][0], lost["epilogues"][0]), (lost["padding"][0],))]
    rows = [(name, *trained.pop(name)) for name in ("fp32", "tf32")]
    rows.append(("bf16", without[0] if without[0] is not None else bf16, note or (lost["padding"][1] if without[0] is not None else "with the next two rows")))
    rows.append(("GELU in the products' epilogues", without[1], lost["epilogues"][1]))
    rows.append((f"vocabulary {VOCABULARY} -> {PADDED}", bf16 if lost["padding"][0] is not None else None, note or ("" if lost["padding"][0] is not None else lost["padding"][1])))
    rows += [(name, *row) for name, row in trained.items()]
    result, above = [], None
    for name, ms, note in rows:
        tokens = arguments.batch_size * arguments.seq_len * arguments.micro_steps
        result.append(dict(name=name, ms=ms, tokens_per_second=ms and tokens / ms * 1e3, gain=ms and above and above / ms, note=note))
        above = ms or above
    return result


def main():
    parser = argparse.ArgumentParser(prog="speed_ladder", description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"speed_ladder: {message}; --help shows the usage\n")
    parser.add_argument("--model", choices=SIZES, default="d12", help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=positive, default=64, help="(default: %(default)s)")
    parser.add_argument("--seq-len", type=positive, default=1024, help="(default: %(default)s)")
    parser.add_argument("--micro-steps", type=positive, default=1, help="(default: %(default)s)")
    parser.add_argument("--steps", type=positive, default=10, help="counted steps a slice (default: %(default)s)")
    parser.add_argument("--discard", type=positive, default=4, help="steps before them, not counted (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=2, help="(default: %(default)s)")
    parser.add_argument("--data", default=str(TEXT), help="token shards (a glob), or texts (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--build", metavar="DIR", help="of the benchmarks (default: build/cuda, or build/release)")
    parser.add_argument("--tiny", action="store_true", help="a model that trains in no time, to try this out")
    parser.add_argument("--json", metavar="OUT", help="write the rows")
    arguments = parser.parse_args()
    arguments.layers, arguments.heads, arguments.channels = SIZES[arguments.model]
    arguments.bench_seconds = 0.2
    if arguments.tiny:
        vars(arguments).update(TINY)
    arguments.build = arguments.build or ROOT / "build" / ("cuda" if arguments.device == "cuda" else "release")
    rows = ladder(arguments)
    cells = [[row["name"], *(f"{row[key]:,.{digits}f}" if row[key] else "" for key, digits in (("ms", 1), ("tokens_per_second", 0), ("gain", 2))), row["note"]]
             for row in rows]  # fmt: skip
    print(tables.aligned(tables.table(["", "ms", "tokens/s", "gain", ""], cells)))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(dict(rows=rows), indent=1) + "\n")
    if not any(row["ms"] for row in rows):
        fail(f"no row could be measured: {rows[0]['note']}")


if __name__ == "__main__":
    main()
