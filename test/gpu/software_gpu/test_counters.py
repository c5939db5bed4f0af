#!/usr/bin/env python3
"""How the kernels use a GPU's memory, counted while the software GPU trains a step at GPT-2 124M's width.

    test_counters.py [--gpu PROGRAM] [--table]

Two blocks of 768 channels and 12 heads, 128 tokens, bf16. --table prints the table of docs/performance.md.
Kernels whose time is that of their memory must move at most 1.03 times the bytes that their tensors have (the
formulas are those of kernels/cost.h), in whole 32-byte sectors, and no kernel may meet a bank conflict in shared
memory.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
L, C, B, T, V = 2, 768, 2, 64, 256
N = B * T
PARAMETERS = V * C + T * C + L * (12 * C * C + 13 * C) + 2 * C
BF16, FP32 = 2, 4

# The beginning of a kernel's name, its name in the table, and the bytes of its tensors in one launch; the optimizer,
# the norm and the conversion take all parameters in several launches.
BOUND = {
    "layernorm_forward_kernel<RowCut<simt::Width<32, 16>, 8, 4>, bfloat16, false": (
        "layernorm, forward",
        2 * N * C * BF16,
    ),
    "layernorm_forward_kernel<RowCut<simt::Width<32, 16>, 8, 4>, bfloat16, true": (
        "residual + layernorm, forward",
        4 * N * C * BF16,
    ),
    "gelu_forward_kernel": ("GELU, forward", 2 * N * 4 * C * BF16),
    "gelu_backward_kernel": ("GELU, backward", 3 * N * 4 * C * BF16),
    "cross_entropy_gradient_kernel": ("classifier with gradient", 2 * N * V * BF16),
}
BOUND_IN_ALL = {
    "adamw_kernel": ("AdamW", PARAMETERS * (4 * FP32 + 3 * FP32 + BF16)),
    "global_norm_kernel": ("gradient norm", PARAMETERS * FP32),
    "convert_kernel": ("fp32 to bf16", PARAMETERS * (FP32 + BF16)),
}
# With so few tokens these kernels' partial sums, or what they read again from the cache, are as large as their
# tensors, so the least bytes would say little.
OTHERS = {
    "layernorm_backward_wide_kernel<8, bfloat16, 2": "layernorm, backward",
    "layernorm_backward_wide_kernel<8, bfloat16, 3": "layernorm, backward with a third sum",
    "encoder_forward_kernel": "encoder, forward",
    "encoder_backward_token_kernel": "encoder, backward by token",
    "encoder_backward_place_kernel": "encoder, backward by place",
    "column_sum_detail::partial_kernel": "bias gradient by column sums",
    "attention_mma_forward_kernel": "attention, forward",
    "attention_mma_backward_q_kernel": "attention, backward of q",
    "attention_mma_backward_kv_kernel": "attention, backward of k and v",
}


def find_program(given):
    if given:
        return os.path.abspath(given)
    return os.path.join(ROOT, "build", "software-gpu", "train_gpt2cu")


def count(program):
    """The counters of a step, by kernel."""
    with tempfile.TemporaryDirectory() as folder:
        counted = os.path.join(folder, "counters.json")
        command = [program, "--layers", L, "--heads", 12, "--channels", C, "--seq-len", T, "--context", T]
        command += ["--batch-size", B, "--total-batch", N, "--steps", 1, "--dtype", "bf16", "--no-graph"]
        command += ["--deterministic", "--val-every", 0, "--sample-every", 0, "--checkpoint-every", 0]
        command += ["--out", os.path.join(folder, "run")]
        environment = dict(os.environ, SOFTWARE_GPU="count", SOFTWARE_GPU_COUNTERS=counted)
        words = [str(word) for word in command]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{program} ended with {done.returncode}: {done.stderr[-1000:]}")
        with open(counted) as file:
            return json.load(file)


def named(counters, begins):
    found = [value for name, value in counters.items() if name.startswith(begins)]
    if len(found) != 1:
        raise SystemExit(f"{len(found)} kernels begin with {begins}; expected 1 of {sorted(counters)}")
    return found[0]


def moved(kernel):
    return kernel["loads"]["distinct_bytes"] + kernel["stores"]["distinct_bytes"]


def over_full(transfers):
    return transfers["sectors"] / transfers["least_sectors"] if transfers["least_sectors"] else 1.0


def conflicts(kernel):
    least = kernel["least_shared_wavefronts"]
    return kernel["shared_wavefronts"] / least if least else 1.0


def least_bytes(counters, begins):
    if begins in BOUND:
        return BOUND[begins][1] * named(counters, begins)["launches"]
    return BOUND_IN_ALL[begins][1]


def table(counters):
    lines = [
        "| kernel | warp instructions a KiB moved | bytes moved / least | sectors / full ones: loads | stores "
        "| shared memory: wavefronts / least |",
        "|---|---|---|---|---|---|",
    ]
    names = {begins: entry[0] for begins, entry in {**BOUND, **BOUND_IN_ALL}.items()} | OTHERS
    for begins, name in names.items():
        kernel = named(counters, begins)
        least = f"{moved(kernel) / least_bytes(counters, begins):.3f}" if begins not in OTHERS else ""
        instructions = sum(kernel["instructions"].values()) / (moved(kernel) / 1024)
        shared = f"{conflicts(kernel):.2f}" if kernel["least_shared_wavefronts"] else ""
        lines.append(
            f"| {name} | {instructions:.0f} | {least} | {over_full(kernel['loads']):.2f} | "
            f"{over_full(kernel['stores']):.2f} | {shared} |"
        )
    return "\n".join(lines)


class Counters(unittest.TestCase):
    counters = None

    def test_kernels_bound_by_memory_move_what_their_tensors_have(self):
        for begins in {**BOUND, **BOUND_IN_ALL}:
            with self.subTest(begins):
                ratio = moved(named(self.counters, begins)) / least_bytes(self.counters, begins)
                self.assertLessEqual(ratio, 1.03)
                self.assertGreaterEqual(ratio, 0.999)  # less would be a defect of the counting

    def test_they_move_whole_sectors(self):
        for begins in {**BOUND, **BOUND_IN_ALL}:
            with self.subTest(begins):
                kernel = named(self.counters, begins)
                self.assertLessEqual(over_full(kernel["loads"]), 1.001)
                self.assertLessEqual(over_full(kernel["stores"]), 1.001)

    def test_no_kernel_meets_a_bank_conflict(self):
        for name, kernel in self.counters.items():
            with self.subTest(name):
                self.assertLessEqual(conflicts(kernel), 1.001)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpu", help="train_gpt2cu over the software GPU (build/software-gpu/'s)")
    parser.add_argument("--table", action="store_true", help="print the table of docs/performance.md")
    arguments, rest = parser.parse_known_args()
    path = find_program(arguments.gpu)
    if not os.path.exists(path):
        print(f"test_counters: {path} is not there; make software-gpu builds it")
        sys.exit(77)
    Counters.counters = count(path)
    if arguments.table:
        print(table(Counters.counters))
    else:
        unittest.main(argv=[sys.argv[0], *rest])
