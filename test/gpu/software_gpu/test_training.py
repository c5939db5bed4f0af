#!/usr/bin/env python3
"""train_gpt2cu, executed from its PTX by the software GPU, gives the losses and gradient norms of train_gpt2.

Both train the same small model on Shakespeare for 20 steps. Without cuDNN, --attention auto selects our own
kernel, like --attention kernel.

    test_training.py [--gpu PROGRAM] [--cpu PROGRAM] [Fp32] [Bf16] [LlamaFp32] [LlamaBf16] [NanochatFp32] [NanochatBf16] [Processes]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
MPIRUN = ROOT / "test" / "mpi" / "mpirun.sh"
STEPS = 20
HALF = STEPS // 2
# 64 tokens a step, of 4 sequences, divide among 1, 2 and 4 micro-steps or processes. The learning rate is
# high: the loss falls from 5.5 to 4.2, so a step that is not taken, or taken twice, shows.
MODEL = ["--layers", 2, "--heads", 2, "--channels", 32, "--context", 16, "--vocab", 256, "--total-batch", 64,
         "--steps", STEPS, "--warmup", 5, "--val-every", 0, "--sample-every", 0]  # fmt: skip
BATCH = ["--batch-size", 4, "--checkpoint-every", 0]
BATCH_AND_CHECKPOINT = ["--batch-size", 4, "--checkpoint-every", HALF]
FAST = ["--deterministic"]  # no matmul is timed
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
# Largest difference of a loss, and of a gradient norm relative to it. In fp32 a weight decay of 0.09 instead
# of 0.1 changes losses by 2e-4 and norms by 7e-5. In bf16 every activation is rounded at 2^-9; errors of many
# average out in a norm, which has to agree better than one of them.
BOUNDS = {"fp32": (1e-5, 1e-5), "bf16": (2e-3, 2**-9)}

programs = {}


def train(folder, program, *options, processes=1, settings=""):
    """Trains in a new folder inside the given one and returns it. settings: those of the software GPU."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=folder))
    command = ["timeout", "-s", "KILL", "300"]
    if processes > 1:
        command += [MPIRUN, "-np", processes]
    command += [programs[program], *MODEL, *options, "--out", folder]
    command = [str(word) for word in command]
    environment = ENVIRONMENT | {"SOFTWARE_GPU": settings}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        output = result.stdout[-2000:] + result.stderr[-2000:]
        raise AssertionError(f"{' '.join(command)}: exit status {result.returncode}\n{output}")
    return folder


def records(folder):
    """The records of the training steps."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]


def numbers(folder):
    """Losses and gradient norms."""
    return [(record["loss"], record["grad_norm"]) for record in records(folder)]


def checkpoint(folder, step):
    return folder / "checkpoints" / f"step_{step:08}"


class Runs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    model = ("--lr", 3e-3)

    def train(self, program, *options, **more):
        return train(self.folder, program, *self.model, *options, **more)

    def assert_close(self, dtype, name, folder, expected):
        """The runs in both folders agree."""
        self.assertEqual([record["step"] for record in records(folder)], list(range(1, STEPS + 1)))
        pairs = list(zip(numbers(folder), numbers(expected), strict=True))
        loss_error = max(abs(a[0] - b[0]) for a, b in pairs)
        norm_error = max(abs(a[1] / b[1] - 1) for a, b in pairs)
        print(f"{dtype}, {name}: losses within {loss_error:.1e}, norms within {norm_error:.1e}", flush=True)
        loss_bound, norm_bound = BOUNDS[dtype]
        self.assertLessEqual(loss_error, loss_bound, f"{dtype}, {name}: (measured, expected) {pairs}")
        self.assertLessEqual(norm_error, norm_bound, f"{dtype}, {name}: (measured, expected) {pairs}")

    def assert_goes_on(self, dtype, name, program, first, expected):
        """The program resumes from the first run's middle checkpoint and gives the same results."""
        resumed = self.train(program, "--dtype", dtype, *BATCH, "--resume", checkpoint(first, HALF), *FAST)
        self.assert_close(dtype, name, resumed, expected)
        # The steps before the checkpoint are the first run's, with their times; those after it are not.
        self.assertEqual(records(resumed)[:HALF], records(first)[:HALF])
        for ours, theirs in zip(records(resumed)[HALF:], records(first)[HALF:], strict=True):
            self.assertNotEqual(ours["step_ms"], theirs["step_ms"])


class OneProcess:
    """Runs of one process in the class's dtype."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.reference = train(cls.folder, "cpu", *cls.model, "--dtype", cls.dtype, *BATCH_AND_CHECKPOINT)

    def check(self, name, *options):
        folder = self.train("gpu", "--dtype", self.dtype, *options)
        self.assert_close(self.dtype, name, folder, self.reference)
        return folder

    def test_plain(self):
        self.check("graphs, timed matmuls", *BATCH)

    def test_no_graph(self):
        self.check("no graphs", *BATCH, "--no-graph", *FAST)

    def test_micro_steps(self):
        options = ["--batch-size", 1, "--checkpoint-every", 0, *FAST]
        self.check("4 micro-steps", *options)
        self.check("4 micro-steps, no graphs", *options, "--no-graph")

    def test_recompute(self):
        self.check("recompute", *BATCH, "--recompute", "block", *FAST)

    def test_orders(self):
        """The same bits in any order of warps, blocks and streams."""
        options = ["--dtype", self.dtype, "--batch-size", 2, "--checkpoint-every", STEPS, *FAST]
        orders = ("order=ascending", "order=descending,seed=3", "order=seeded,seed=7")
        runs = [self.train("gpu", *options, settings=order) for order in orders]
        weights = [(checkpoint(run, STEPS) / "model.safetensors").read_bytes() for run in runs]
        for run, weight in zip(runs[1:], weights[1:], strict=True):
            self.assertEqual(numbers(run), numbers(runs[0]))
            self.assertTrue(weight == weights[0], "the weights differ")

    def test_checkpoints(self):
        first = self.check("with checkpoints", *BATCH_AND_CHECKPOINT, *FAST)
        self.assert_goes_on(self.dtype, "train_gpt2 after train_gpt2cu", "cpu", first, self.reference)
        name = "train_gpt2cu after train_gpt2"
        self.assert_goes_on(self.dtype, name, "gpu", self.reference, self.reference)


class Fp32(OneProcess, Runs):
    dtype = "fp32"


class Bf16(OneProcess, Runs):
    dtype = "bf16"


# At 3e-3, tokens' embeddings cross zero within 20 steps. RMSNorm multiplies the gradient of such a token by the
# inverse of its size, so that a rounding of bf16 changes the norm of the whole gradient by a tenth for a step.
class LlamaFp32(Fp32):
    model = ("--lr", 6e-4, "--kv-heads", 1, "--hidden", 72)


class LlamaBf16(Bf16):
    model = ("--lr", 6e-4, "--kv-heads", 1, "--hidden", 72, "--untied")


class NanochatFp32(Fp32):
    model = ("--lr", 6e-4, "--nanochat", "--kv-heads", 1)


class NanochatBf16(Bf16):
    model = ("--lr", 6e-4, "--nanochat", "--kv-heads", 1)


class Processes(Runs):
    """Two processes with the replaced NCCL; one process of train_gpt2 resumes from their checkpoint."""

    def check(self, dtype, *options):
        expected = self.train("cpu", "--dtype", dtype, *BATCH)
        more = ["--batch-size", 2, "--checkpoint-every", HALF, *FAST]
        first = self.train("gpu", "--dtype", dtype, *more, *options, processes=2)
        name = f"2 processes, {' '.join(map(str, options))}"
        self.assert_close(dtype, name, first, expected)
        self.assert_goes_on(dtype, f"train_gpt2 after {name}", "cpu", first, expected)

    def test_fp32(self):
        self.check("fp32", "--zero", 0)

    def test_fp32_zero(self):
        self.check("fp32", "--zero", 1)

    def test_bf16(self):
        self.check("bf16", "--zero", 0)

    def test_bf16_zero(self):
        self.check("bf16", "--zero", 1)

    def test_memory_is_kept_for_libraries(self):
        """300 MiB of the 8 GiB are kept for kernels and libraries, and 1640 MiB for NCCL where it is used."""
        for launcher, free in ([], 8192 - 300), ([MPIRUN, "-np", 2], 8192 - 300 - 1640):
            command = [*launcher, programs["gpu"], *MODEL, "--batch-size", 2, "--plan"]
            result = subprocess.run([str(word) for word in command], env=ENVIRONMENT, capture_output=True, text=True)
            self.assertRegex(result.stdout + result.stderr, f"total .* of {free}[.]0 MiB free")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", default=ROOT / "build" / "software-gpu" / "train_gpt2cu", type=pathlib.Path)
    parser.add_argument("--cpu", default=ROOT / "build" / "release" / "train_gpt2", type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    programs.update(gpu=arguments.gpu, cpu=arguments.cpu)
    for program, target in ((arguments.gpu, "make software-gpu"), (arguments.cpu, "make")):
        if not program.exists():
            print(f"skipped: there is no {program}; `{target}` builds it")
            sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
