#!/usr/bin/env python3
"""dev/expected_time.py against its own formulas, against published measurements, and on plans of the program."""
import os
import re
import subprocess
import sys
import unittest

from common import ROOT  # beside this file

PROGRAM = os.environ.get("TRAIN_PROGRAM", str(ROOT / "build" / "release" / "train_gpt2"))
sys.path.insert(0, str(ROOT / "dev"))
import expected_time  # noqa: E402
from expected_time import LINKS, Machines, collective_seconds  # noqa: E402

A100 = Machines(LINKS["nvlink3"], LINKS["hdr8"])
SMALL = ["--model", "gpt2", "--batch-size", 64, "--total-batch", 2**19, "--dtype", "bf16"]
# The plan's line for --optimizer muon --zero 1: 48 matrices have an owner, and all else is divided.
MUON = (
    "each of 8 processes sends and receives in a step, in 66 buckets (48 of them matrices), 132.0 MiB of gradients (fp32, reduce-scatter), 567.0 MiB of "
    "matrices' gradients (fp32, all-reduce), 66.0 MiB of parameters (bf16, all-gather) and 162.0 MiB of matrices' parameters (bf16, broadcast)"
)


def plan_of(*options):
    command = [PROGRAM, *map(str, options), "--plan", "--device-memory", "900G"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def run_script(*arguments, plan):
    return subprocess.run([ROOT / "dev" / "expected_time.py", *map(str, arguments)], input=plan, capture_output=True, text=True)


class Communication(unittest.TestCase):
    def test_a_ring_takes_its_steps_and_its_bytes(self):
        machines = Machines((100e9, 3e-6), (10e9, 9e-6))
        for kind, size, processes, expected in (
            # Within a machine: N - 1 steps, which together send (N - 1) / N of the bytes.
            ("reduce-scatter", 8e8, 8, 7 * 3e-6 + 0.7 / 100),
            ("all-gather", 8e8, 4, 3 * 3e-6 + 0.6 / 100),
            ("all-reduce", 8e8, 8, 2 * (7 * 3e-6 + 0.7 / 100)),
            # A broadcast sends all bytes.
            ("broadcast", 8e8, 8, 7 * 3e-6 + 0.8 / 100),
            # Two machines: one of the 15 steps crosses, and the slowest link sets the pace.
            ("reduce-scatter", 1.6e9, 16, 14 * 3e-6 + 9e-6 + 1.5 / 10),
            ("all-reduce", 800, 1, 0),
        ):
            self.assertAlmostEqual(collective_seconds(kind, size, processes, machines), expected, places=12)
        # One process a machine: only the network.
        machines.per_machine = 1
        self.assertAlmostEqual(collective_seconds("reduce-scatter", 400, 4, machines), 3 * 9e-6 + 300 / 10e9, places=12)

    def test_many_machines_reduce_small_messages_by_a_tree(self):
        ring_latency = 2 * (1023 - 127) * 3.4e-6 + 2 * 127 * 9.6e-6
        self.assertLess(collective_seconds("all-reduce", 1000, 1024, A100), ring_latency / 5)
        self.assertGreater(collective_seconds("reduce-scatter", 1000, 1024, A100), ring_latency / 2)  # it has no tree

    def test_it_agrees_with_a_published_measurement_of_nccl(self):
        """24 A100 in 3 machines of 4 x 200 Gb/s (NVIDIA/nccl-tests issue 119): 96 GB/s of bus bandwidth for large messages."""
        seconds = collective_seconds("all-reduce", 2**27, 24, Machines(LINKS["nvlink3"], (4 * 24e9, 9.6e-6)))
        self.assertAlmostEqual(2 * 23 / 24 * 2**27 / seconds, 96e9, delta=0.15 * 96e9)

    def test_it_explains_the_published_steps_of_gpt2_on_two_gpus(self):
        """huggingface/transformers issue 9371: what DistributedDataParallel adds to a step on two GPUs, in ms, by GPT-2's size, without and with NVLink."""
        for measured, own in (((101.19, 251.51, 514.60), (6.2e9, 10.4e-3)), ((18.78, 43.73, 82.47), (40e9, 3.3e-3))):
            for parameters, ms in zip((124439808, 354823168, 774030080), measured):
                self.assertAlmostEqual(1e3 * collective_seconds("all-reduce", 4 * parameters, 2, Machines(own, own)), ms, delta=0.05 * ms)

    def test_it_agrees_with_the_published_runs_of_eight_gpus(self):
        """llm.c: 8 A100 train 10 billion tokens in about 90 minutes, 8 H100 the 1558M model's 32000 steps of 2^20 tokens in 24 hours."""
        compute, _, exposed = expected_time.step_seconds(plan_of(*SMALL, "--world-size", 8), 218e3, A100)
        self.assertAlmostEqual(19073 * (compute + exposed) / 60, 90, delta=8)
        large = plan_of("--model", "gpt2-xl", "--batch-size", 16, "--total-batch", 2**20, "--dtype", "bf16", "--zero", 1, "--world-size", 8)
        compute, _, exposed = expected_time.step_seconds(large, 48e3, Machines(LINKS["nvlink4"], LINKS["hdr8"]))
        self.assertAlmostEqual(32000 * (compute + exposed) / 3600, 24, delta=1)
        self.assertLess(exposed / compute, 0.02)

    def test_what_backward_hides_is_not_lost(self):
        compute, communication, exposed = expected_time.step_seconds(plan_of(*SMALL, "--world-size", 8), 218e3, A100)
        self.assertAlmostEqual(compute, 2**19 / 8 / 218e3)
        # The embeddings, 39.4 of 124.4 million parameters, are complete at the very end of backward.
        self.assertAlmostEqual(exposed / communication, (50304 + 1024) * 768 / 124.44e6, delta=0.08)
        # ZeRO-1 sends half as much before the update, and a quarter after it (bf16), during the next forward pass.
        _, sharded, of_sharded = expected_time.step_seconds(plan_of(*SMALL, "--world-size", 8, "--zero", 1), 218e3, A100)
        self.assertAlmostEqual(sharded / communication, 0.75, delta=0.1)
        self.assertAlmostEqual(of_sharded / exposed, 0.75, delta=0.1)
        # On slow links only what ends before backward is hidden.
        compute, communication, exposed = expected_time.step_seconds(plan_of(*SMALL, "--world-size", 8), 218e3, Machines((0.1e9, 0), LINKS["hdr8"]))
        self.assertGreater(exposed, 0.9 * communication)
        self.assertGreater(exposed, 9 * compute)
        whole = 2 * 7 / 8 * 4 * 124.44e6 / 0.1e9  # a ring of eight sends each fp32 gradient twice, but for an eighth
        self.assertAlmostEqual(communication, whole, delta=0.01 * whole)


    def test_muons_matrices_are_reduced_and_broadcast_one_by_one(self):
        plan = re.sub("^each of .*", MUON, plan_of(*SMALL, "--world-size", 8, "--zero", 1), flags=re.MULTILINE)
        # Without latency, the bytes: those of the matrices are hidden by computation, the others are nearly all of the embeddings.
        _, communication, exposed = expected_time.step_seconds(plan, 218e3, Machines((1e11, 0), LINKS["hdr8"]))
        self.assertAlmostEqual(communication, (132 + 567 + 66 + 162) * 2**20 / 1e11, delta=1e-9)
        self.assertAlmostEqual(exposed, (132 + 66) * 2**20 / 1e11, delta=0.01 * exposed)
        # Without bytes, the latency of 7 steps: 18 buckets are scattered and gathered, 48 matrices go around the ring twice and once, and so do the flags.
        _, communication, _ = expected_time.step_seconds(plan, 218e3, Machines((1e18, 1e-6), LINKS["hdr8"]))
        self.assertAlmostEqual(communication, 7e-6 * (18 + 18 + 2 * 48 + 48 + 2), delta=1e-8)
        # On a slow link only the computation hides something.
        compute, communication, exposed = expected_time.step_seconds(plan, 218e3, Machines((1e8, 0), LINKS["hdr8"]))
        self.assertAlmostEqual(exposed, communication - compute, delta=1e-6)

    def test_the_programs_plan_of_muon_names_every_collective(self):
        muon = [*SMALL, "--optimizer", "muon", "--world-size", 8]
        found = expected_time.collectives(plan_of(*muon, "--zero", 1))
        self.assertEqual([kind for *_, kind in found], ["reduce-scatter", "all-reduce", "all-gather", "broadcast"])
        matrices, other = 12 * 12 * 768**2, (50304 + 1024) * 768 + 12 * 13 * 768 + 2 * 768
        expected = (7 / 8 * 4 * other, 2 * 7 / 8 * 4 * matrices, 7 / 8 * 2 * other, 2 * matrices)
        for (mebibytes, *_), size in zip(found, expected):
            self.assertAlmostEqual(float(mebibytes), size / 2**20, delta=0.1 + 0.003 * size / 2**20)  # gaps
        # With --zero 0 every process updates everything.
        ((mebibytes, of, what, kind),) = expected_time.collectives(plan_of(*muon))
        self.assertEqual((of, what, kind), ("", "gradients", "all-reduce"))
        self.assertAlmostEqual(float(mebibytes), 2 * (float(found[0][0]) + float(found[1][0]) / 2), delta=0.3)


class Lines(unittest.TestCase):
    def test_a_gpu_is_found_by_the_names_that_cuda_reports(self):
        for gpu, dtype, tera in (
            ("NVIDIA H100 80GB HBM3", "bf16", 989.4), ("H100", "tf32", 494.7), ("NVIDIA A100-SXM4-40GB", "bf16", 312), ("NVIDIA H100 PCIe", "fp32", 51.2),
            ("NVIDIA GeForce RTX 4090", "bf16", 165.2), ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", 0), ("Tesla T4", "bf16", 0), ("", "fp32", 0),
        ):  # fmt: skip
            self.assertAlmostEqual(expected_time.peak(gpu, dtype), tera * 1e12, msg=gpu)

    def test_the_time_follows_from_the_work_and_the_peak(self):
        speed = 0.38 * 989.4e12 / (6 * 124439808 + 6 * 12 * 768 * 1024)
        for more, factor in ([], 1), (["--world-size", 8], 8), (["--recompute", "block"], 3 / 4):
            printed = run_script("--gpu", "H100", plan=plan_of(*SMALL, "--steps", 19073, *more)).stdout
            found = re.fullmatch(r"time: ([\d.]+) (hours|minutes) at (\d+) tokens/s.* \(an estimate, not measured: 38 % of H100's 989 TFLOP/s\)\n", printed)
            self.assertTrue(found, printed)
            self.assertAlmostEqual(float(found[3]), factor * speed, delta=factor)
            hours = float(found[1]) / (1 if found[2] == "hours" else 60)
            self.assertAlmostEqual(hours, 19073 * 2**19 / (factor * speed) / 3600, delta=0.05)
        printed = run_script("--tokens-per-second", 1000, plan=plan_of(*SMALL, "--epochs", 2)).stdout
        self.assertEqual(printed, "time: unknown, because the length of the data is; at 1000 tokens/s (as given)\n")

    def test_with_a_link_it_says_what_communication_costs(self):
        plan = plan_of(*SMALL, "--world-size", 8)
        for network in (["--link", "nvlink4"], ["--link", "370,3.4"], ["--link", "nvlink4", "--network", "12.5,4"]):
            lines = run_script("--gpu", "H100", *network, plan=plan).stdout.splitlines()
            self.assertRegex(lines[1], r"^communication \(a model\): [\d.]+ ms of a step's [\d.]+; .* leaves \d+ tokens/s$")

    def test_wrong_use_is_said(self):
        plan = plan_of(*SMALL)
        for arguments, text, code, expected in (
            ([], "", 2, "expected_time: standard input has no plan"),
            (["--gpu", "Any"], plan, 3, "expected_time: nvidia_rates.inc has no rate of Any in bf16; give the speed"),
            (["--tokens-per-second", "-1"], plan, 2, "-1; expected a number above 0"),
            *((["--link", wrong], plan, 2, f"{wrong}; expected one of") for wrong in ("nvlink", "12", "12,4,", "12,4us", "0,4", "nan,4", "1e300,1", "12,-1")),
        ):
            result = run_script(*arguments, plan=text)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(expected, result.stderr)

    def test_a_plan_of_several_processes_that_does_not_say_what_they_send_is_refused(self):
        plan = plan_of(*SMALL, "--world-size", 8)
        for line in ("", "each of 8 processes sends nothing", MUON.replace("broadcast", "by mail")):
            result = run_script("--gpu", "H100", plan=re.sub("^each of .*", line, plan, flags=re.MULTILINE))
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
            self.assertIn("expected_time: the plan has several processes but not what they send", result.stderr)


if __name__ == "__main__":
    unittest.main()
