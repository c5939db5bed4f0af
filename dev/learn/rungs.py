#!/usr/bin/env python3
"""Measures what fp32, bf16, attention in tiles and recomputation do to a training step's time and memory: draws docs/learn/5-from-fp32-to-everything.png.

    python3 dev/learn/rungs.py              # needs: make

Every rung has all that the rungs before it have. They are trained in turns, three rounds, so that a busy machine slows all of them; the median over
the rounds counts, and only ratios to the first rung are drawn. Time by kind of operation is from --profile, memory from the plan that the
program prints. The first rungs are those of the ladder, scripts/speed_ladder.sh, which measures GPT-2 124M, on a GPU too, and what has no option.
"""
import argparse
import array
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "dev" / "bench")]
import plot  # noqa: E402
import speed_ladder  # noqa: E402
import tables  # noqa: E402
from compare_pytorch import TEXT, our_program, progress, read_metrics, reason  # noqa: E402
from pytorch_side import SHARD_HEADER_BYTES, SHARD_MAGIC  # noqa: E402

SIZE = dict(layers=2, heads=12, channels=768, context=256, vocab=16384, batch_size=4)
TINY = dict(layers=1, heads=2, channels=128, context=64, vocab=512, batch_size=8)
WARM_UP, PROFILED = 3, 2  # steps: --profile measures after three
KINDS = {"matrix products": "#1f5fa8", "attention": "#c8553d", "optimizer, gradient norm": "#8a6d1d", "layernorm, GELU, classifier and the rest": "#3a7d44"}
PARTS = {"parameters": "#1f5fa8", "master weights": "#5cb8e6", "gradients": "#7a4f9a", "optimizer state": "#8a6d1d", "activations and workspace": "#c8553d"}


def rungs():
    """{name: options}, each with those of the rungs before it."""
    trained = {name: options for name, options, absent in speed_ladder.trained_rows("cpu", False) if not absent}
    everything = list(trained.values())[-1]
    block = [*everything, "--recompute", "block"]
    return trained | {"GELU again": [*everything, "--recompute", "gelu"], "blocks again": block, "head in 8 parts": [*block, "--head-chunks", "8"]}


PLAN = re.compile(r"^  (parameters|master weights|gradients|optimizer state|activations|workspace|total) .*?([\d.]+) MiB", re.M)
PROFILE = re.compile(r"^(\S.*?) {2,}(\d+ x \d+ x \d+)? +(\d+) +([\d.]+) +[\d.]+ % +(?:([\d.]+) ([GT])(B|FLOP)/s)?", re.M)
PEAKS = re.compile(r"copy ([\d.]+) ([GT])B/s, matrix product ([\d.]+) ([GT])FLOP/s")


def kind(name, shape):
    if shape:
        return "matrix products"
    if name.startswith("attention"):
        return "attention"
    return "optimizer, gradient norm" if name in ("optimizer", "gradient norm", "clip and count") else "layernorm, GELU, classifier and the rest"


def in_giga(rate, prefix):
    return float(rate or 0) * (1000 if prefix == "T" else 1)


def read_output(text):
    """The output of a run: {plan: MiB by part, operations: {name: (ms, work, unit)}, kinds: ms by kind, peaks: (GB/s, GFLOP/s)}; work in 1e6 of its unit."""
    plan = {part: float(mib) for part, mib in PLAN.findall(text)}
    plan["activations and workspace"] = plan.pop("activations") + plan.pop("workspace")
    operations, kinds = {}, dict.fromkeys(KINDS, 0.0)
    for name, shape, _, ms, rate, prefix, unit in PROFILE.findall(text):
        operations[name] = (float(ms), float(ms) * in_giga(rate, prefix), f"G{unit}/s" if unit else "")
        kinds[kind(name, shape)] += float(ms)
    copy, copy_prefix, products, prefix = PEAKS.search(text).groups()
    return dict(plan=plan, operations=operations, kinds=kinds, peaks=(in_giga(copy, copy_prefix), in_giga(products, prefix)))


def write_shard(path, vocab):
    """Shakespeare as token shards: a pair of ASCII characters is a token, which makes 16,384 of them, so that the head has its weight in a step."""
    text = TEXT.read_bytes()
    tokens = array.array("H", ((a % 128 * 128 + b % 128) % vocab for a, b in zip(text[::2], text[1::2])))
    header = array.array("i", [SHARD_MAGIC, 1, len(tokens)] + [0] * (SHARD_HEADER_BYTES // 4 - 3))
    path.write_bytes(header.tobytes() + tokens.tobytes())


def train(size, options, shard):
    """One run: what it printed, and ms, the milliseconds of its counted steps."""
    shape = [part for name, value in size.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    with tempfile.TemporaryDirectory() as folder:
        command = [our_program("cpu"), *shape, "--train-data", shard, "--val-data", shard, *options, "--steps", str(WARM_UP + PROFILED), "--profile", str(PROFILED),
                   "--warmup", "0", "--val-every", "0", "--sample-every", "0", "--checkpoint-every", "0", "--out", f"{folder}/run"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, env={"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))} | os.environ)
        if done.returncode != 0:
            sys.exit(f"rungs: {reason(done.stderr, done.returncode)}")
        steps = [record for record in read_metrics(pathlib.Path(folder, "run", "metrics.jsonl")) if record["kind"] == "train"]
    return read_output(done.stdout) | dict(ms=[record["step_ms"] for record in steps[WARM_UP:]], loss=steps[-1]["loss"])


def measure(size, rounds):
    """{rung: its runs, one a round}, in turns."""
    runs = {name: [] for name in rungs()}
    with tempfile.TemporaryDirectory() as folder:
        shard = pathlib.Path(folder, "shakespeare.bin")
        write_shard(shard, size["vocab"])
        for round_ in range(rounds):
            for name, options in rungs().items():
                progress(f"round {round_ + 1} of {rounds}: {name}")
                runs[name].append(train(size, options, shard))
    progress("")
    return runs


def summary(runs):
    """{rung: {ms: the median step, spread: the fastest and the slowest, kinds: ms by kind, which add up to it, plan, time and memory: ratios to the first rung}}."""
    result = {}
    for name, of in runs.items():
        ms = statistics.median(ms for run in of for ms in run["ms"])
        kinds = {kind: statistics.median(run["kinds"][kind] for run in of) for kind in KINDS}
        total = sum(kinds.values())
        spread = [bound(ms for run in of for ms in run["ms"]) for bound in (min, max)]
        result[name] = dict(ms=ms, spread=spread, kinds={kind: part * ms / total for kind, part in kinds.items()}, plan=of[0]["plan"], loss=of[0]["loss"])
    first = next(iter(result.values()))
    for row in result.values():
        row |= dict(time=row["ms"] / first["ms"], memory=row["plan"]["total"] / first["plan"]["total"])
    return result


def intensities(size, bytes_each):
    """{operation: (FLOPs, bytes) of one call}, each tensor read or written once, as trainer/engine/cost.h counts; a norm is taken as 8 FLOPs a value."""
    N, C, parameters = size["batch_size"] * size["context"], size["channels"], 12 * size["channels"] ** 2
    product = lambda inputs, outputs, more=0: (2 * N * inputs * outputs, bytes_each * (N * inputs + inputs * outputs + (1 + more) * N * outputs))  # noqa: E731
    return {
        "qkv": product(C, 3 * C),
        "fc + GELU": product(C, 4 * C, 1),
        "attention": (2 * N * size["context"] * C, bytes_each * 4 * N * C + 4 * N * size["heads"]),
        "layernorm": (8 * N * C, bytes_each * 2 * N * C),
        "residual + layernorm": (9 * N * C, bytes_each * 4 * N * C),
        "optimizer": (12 * parameters, parameters * (28 + (bytes_each if bytes_each < 4 else 0))),  # of a block's matrices
    }  # fmt: skip


def report(size, runs, result):
    def show(titles, rows):
        print(tables.aligned(tables.table(titles, rows)) + "\n")

    first = next(iter(result.values()))["ms"]
    numbers = {name: [row["time"], row["memory"], *(ms / first for ms in (*row["spread"], *row["kinds"].values()))] for name, row in result.items()}
    show(["ratios to fp32", "time", "memory", "fastest step", "slowest step", *KINDS, "loss"],
         [[name, *(f"{number:.3f}" for number in row), f"{result[name]['loss']:.3f}"] for name, row in numbers.items()])  # fmt: skip
    parts = (*PARTS, "total")
    show(["MiB", *parts], [[name, *(f"{row['plan'].get(part, 0):.1f}" for part in parts)] for name, row in result.items()])
    for dtype, each in (("fp32", 4), ("bf16", 2)):
        of, rows = runs[dtype], []
        copy, rate = (statistics.median(run["peaks"][i] for run in of) for i in (0, 1))
        for name, (flops, moved) in intensities(size, each).items():
            ms, (_, work, unit) = statistics.median(run["operations"][name][0] for run in of), of[0]["operations"][name]
            share = f"{work / ms / copy:.2f} of a copy" if unit == "GB/s" else f"{work / ms / rate:.2f} of products"
            rows.append([name, f"{flops / moved:.1f}", share])
        show([dtype, "FLOPs a byte", "share of the peak"], [*rows, ["the machine's balance", f"{rate / copy:.1f}", ""]])


def stacked(axis, result, parts, values, title, spread=None):
    """Bars of parts; spread(row): the two ends of a line across the bar."""
    names, ends = list(result), [0.0] * len(result)
    left = [0.0] * len(names)
    for part, color in parts.items():
        widths = [values(result[name], part) for name in names]
        axis.barh(names, widths, left=left, color=color, label=part, height=0.66)
        left = [a + b for a, b in zip(left, widths)]
    if spread:
        lows, ends = zip(*(spread(row) for row in result.values()))
        axis.hlines(range(len(names)), lows, ends, color="black", linewidth=1.3)
    for place, total in enumerate(left):
        axis.text(max(total, ends[place]) + 0.015, place, f"{total:.2f}", va="center")
    axis.set(xlabel=title, xlim=(0, max(*left, *ends) * 1.13))
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=2, frameon=False, fontsize=9)


def draw(result, out):
    plt = plot.plt
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (time, memory) = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, constrained_layout=True)
    first = next(iter(result.values()))
    stacked(time, result, KINDS, lambda row, kind: row["kinds"][kind] / first["ms"], "time of a training step / that of fp32 (line: fastest to slowest)",
            lambda row: [ms / first["ms"] for ms in row["spread"]])  # fmt: skip
    stacked(memory, result, PARTS, lambda row, part: row["plan"].get(part, 0) / first["plan"]["total"], "memory planned / that of fp32")
    time.invert_yaxis()  # and memory's, which is the same
    time.set_yticks(range(len(result)), [name if place == 0 else f"+ {name}" for place, name in enumerate(result)])
    figure.savefig(out, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"rungs: {message}; --help shows the usage\n")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/learn/5-from-fp32-to-everything.png")
    parser.add_argument("--tiny", action="store_true", help="a model that trains in no time, to try this out")
    arguments = parser.parse_args()
    size = TINY if arguments.tiny else SIZE
    runs = measure(size, arguments.rounds)
    result = summary(runs)
    report(size, runs, result)
    draw(result, arguments.out)
    print(f"\n{arguments.out}")


if __name__ == "__main__":
    main()
