#!/usr/bin/env python3
"""Predicts a micro-step of GPT-2 124M in bf16 on GPUs, operation by operation, from published rates. It uses no GPU, and its figures are not measured.

    dev/bench/predict_step.py [--train ./train_gpt2] [--batch-size 64]    # prints the tables of docs/performance.md

The operations with their bytes and flops are those of --profile (trainer/engine/cost.h). They grow linearly with the number of sequences, so two short
runs on the CPU, with 1 and with 2 sequences of 1024 tokens, give them for any number. An operation that does not grow happens once a step; its time is
divided by the step's micro-steps.

A matrix product takes the time of its arithmetic and then that of its bytes. A library hides a part of the bytes behind the arithmetic; how much of
them at C = 768, where the loop over a tile is short, only a measurement can tell. So there are two predictions: one hides none of them, and reads the
gradients of qkv and fc again for the bias gradients; the other hides all, and has these in the products' epilogues. GELU is in the epilogues in both.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTEXT, TOKENS_OF_A_STEP = 1024, 524288

# The share of the data sheet's bandwidth that a copy reaches: 4.3 of 4.8 TB/s on an H200; 1.73 of 1.94 on an A800 (mli/transformers-benchmarks, issue 4).
COPY = 0.9
# The share of a copy's bandwidth that our kernels reach: the least that gpu_check.sh accepts.
KERNELS = 0.85
# FlashAttention-2's rate backward / forward at T = 1024 and head size 64: 62.5 / 81.0 TFLOP/s on an RTX A5000 (gpu-mode/ring-attention, issue 10),
# 281 / 359 on a B200 (Dao-AILab/flash-attention, issue 1589).
BACKWARD = 0.78
COLUMN_SUMS = "bias gradients of qkv and fc"  # a part of qkv dW and fc dW in --profile
GAP = 2e-6  # seconds between two kernels of a graph: assumed


@dataclasses.dataclass
class Gpu:
    name: str  # as in trainer/run/nvidia_rates.inc
    bandwidth: float  # bytes/s, data sheet
    products: float  # FLOP/s of large products in bf16, measured by others
    attention: float  # FLOP/s forward, causal, T = 1024, head size 64


# Products: the table of maximum achievable matmul FLOPS in stas00/ml-engineering, by which an H200 is like an H100; RTX 4090: 8192 x 8192 x 8192 in
# zzc0721/torch-performance-test-data, issue 78. Attention on an H100: cuDNN's, by its authors. A100: FlashAttention-2's 229 TFLOP/s on an H100, by the
# numbers of SMs and their boost clocks. RTX 4090: the 73 % of the data sheet's rate that FlashAttention-2 has on the RTX A5000 without a mask, and 8/9 of
# it with one, because of a head's 64 tiles of 128 x 128 it computes 36, and 32 count.
GPUS = [
    Gpu("H100", 3350e9, 794.5e12, 288e12),
    Gpu("H200", 4800e9, 794.5e12, 288e12),
    Gpu("A100", 2039e9, 271.2e12, 133e12),
    Gpu("RTX 4090", 1008e9, 160.2e12, 107e12),
]


def data_sheet_rate(name, text):
    """The rate of dense products in bf16, FLOP/s, in nvidia_rates.inc."""
    return float(re.search(rf'\{{"{re.escape(name)}", ([\d.]+),', text)[1]) * 1e12


def profile(program, sequences):
    """The operations of a step with one micro-step, as --profile reports them."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "run")
        command = [program, "--model", "d12", "--dtype", "bf16", "--batch-size", sequences, "--seq-len", CONTEXT]
        command += ["--total-batch", sequences * CONTEXT, "--steps", 4, "--profile", 1]
        command += ["--train-data", ROOT / "data" / "tinyshakespeare.txt", "--tokenizer", "gpt2"]
        command += ["--val-every", 0, "--sample-every", 0, "--checkpoint-every", 0, "--out", out]
        done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"predict_step: {program}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return next(record["operations"] for record in records if record["kind"] == "profile")


def operations_of(one, two, sequences):
    """The operations of a micro-step of so many sequences, from the profiles of one and of two."""
    micro_steps = TOKENS_OF_A_STEP / (sequences * CONTEXT)
    found = []
    for a, b in zip(one, two, strict=True):
        assert a["name"] == b["name"], (a["name"], b["name"])
        grown = {key: a[key] + (sequences - 1) * (b[key] - a[key]) for key in ("bytes", "flops")}
        share = 1 / micro_steps if (a["bytes"], a["flops"]) == (b["bytes"], b["flops"]) else 1
        product = a["shape"] is not None
        found.append({"name": a["name"], "product": product, "calls": a["calls"] * share} | {k: v * share for k, v in grown.items()})
    outputs = {a["name"]: a["calls"] * a["shape"][0] * a["shape"][2] for a in one if a["name"] in ("qkv dW", "fc dW")}
    column_sums = 2 * sequences * sum(outputs.values())
    return [*found, dict(name=COLUMN_SUMS, product=False, calls=0, bytes=column_sums, flops=0)]


def seconds(operation, gpu):
    """(nothing hidden, bytes hidden behind arithmetic)"""
    copy = COPY * gpu.bandwidth
    if operation["product"]:
        arithmetic, memory = operation["flops"] / gpu.products, operation["bytes"] / copy
        return arithmetic + memory, max(arithmetic, memory)
    if operation["name"].startswith("attention"):
        time = operation["flops"] / (gpu.attention * (BACKWARD if "backward" in operation["name"] else 1))
    else:
        time = operation["bytes"] / (KERNELS * copy)
    return time, 0 if operation["name"] == COLUMN_SUMS else time


def row(*cells):
    return "| " + " | ".join(cells) + " |"


def table_of_rates():
    text = (ROOT / "trainer" / "run" / "nvidia_rates.inc").read_text()
    lines = [row("", *(gpu.name for gpu in GPUS)), row(*["---"] * (1 + len(GPUS)))]
    lines += [row("bandwidth, data sheet, GB/s", *(f"{gpu.bandwidth / 1e9:.0f}" for gpu in GPUS))]
    lines += [row("products in bf16, data sheet, TFLOP/s", *(f"{data_sheet_rate(gpu.name, text) / 1e12:.0f}" for gpu in GPUS))]
    lines += [row("large products in bf16, measured by others, TFLOP/s", *(f"{gpu.products / 1e12:.0f}" for gpu in GPUS))]
    return [*lines, row("attention forward, TFLOP/s", *(f"{gpu.attention / 1e12:.0f}" for gpu in GPUS))]


def table_of_times(operations, sequences):
    """Milliseconds, each row by the name that --profile gives it; what takes less than 0.2 ms on every GPU is in one row."""
    tokens = sequences * CONTEXT
    ms = {operation["name"]: [1e3 * seconds(operation, gpu)[0] for gpu in GPUS] for operation in operations}
    shown = {name: times for name, times in ms.items() if max(times) >= 0.2}
    others = [sum(times[i] for name, times in ms.items() if name not in shown) for i in range(len(GPUS))]
    gaps = 1e3 * GAP * sum(operation["calls"] for operation in operations)
    most = [sum(times[i] for times in ms.values()) + gaps for i in range(len(GPUS))]
    least = [1e3 * sum(seconds(operation, gpu)[1] for operation in operations) + gaps for gpu in GPUS]
    lines = [row("predicted, ms", *(gpu.name for gpu in GPUS)), row(*["---"] * (1 + len(GPUS)))]
    lines += [row(name, *(f"{time:.1f}" for time in times)) for name, times in shown.items()]
    lines += [row("all others", *(f"{time:.1f}" for time in others)), row("between kernels", *[f"{gaps:.1f}"] * len(GPUS))]
    lines += [row("**micro-step, predicted: nothing hidden**", *(f"**{time:.0f}**" for time in most))]
    lines += [row("predicted: products hide their bytes", *(f"{time:.0f}" for time in least))]
    return [*lines, row("thousand tokens/s, predicted", *(f"{tokens / a:.0f} to {tokens / b:.0f}" for a, b in zip(most, least)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--train", default=ROOT / "train_gpt2", help="our program for the CPU")
    parser.add_argument("--batch-size", type=int, default=64, help="sequences of 1024 tokens in a micro-step")
    options = parser.parse_args()
    train = pathlib.Path(options.train).resolve()
    if not train.is_file():
        sys.exit(f"predict_step: {train} is not there; expected train_gpt2, which make builds")
    operations = operations_of(profile(train, 1), profile(train, 2), options.batch_size)
    print("\n".join([*table_of_rates(), "", *table_of_times(operations, options.batch_size)]))


if __name__ == "__main__":
    main()
