#!/usr/bin/env python3
"""A machine that is busy when a run starts: its peaks are measured far too low, and no share of them exceeds 1."""
import os
import subprocess
import unittest

from common import ROOT, FolderTest, metrics  # beside this file

PROGRAM = os.environ.get("TRAIN_PROGRAM", str(ROOT / "build" / "release" / "train_gpt2"))
CLOCK = os.environ.get("FAST_CLOCK_LIBRARY", str(ROOT / "build" / "release" / "cmake" / "cpu" / "libfast_clock.so"))
STEPS, PROFILED = 12, 4


class BusyStart(FolderTest):
    def test_the_peaks_are_measured_again(self):
        out = self.folder / "run"
        command = f"{PROGRAM} --steps {STEPS} --profile {PROFILED} --val-every 0 --sample-every 0 --checkpoint-every 0 --out {out}"
        environment = os.environ | {"LD_PRELOAD": CLOCK, "FAST_CLOCK_UNTIL": str(out / "metrics.jsonl")}
        done = subprocess.run(command.split(), env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        (run,), train, (profile,) = (metrics(out, kind) for kind in ("run", "train", "profile"))
        first = run["mfu_peak"]["flops_per_second"]
        raised = {record["step"]: record["flops_per_second"] for record in metrics(out, "mfu_peak")}
        self.assertEqual(len(train), STEPS)
        peak = first
        # 6 operations a parameter and token, and 6 x layers x channels x sequence length for attention
        flops = 6 * run["model"]["parameters"] + 6 * 4 * 128 * 64
        for record in train:
            peak = raised.get(record["step"], peak)
            self.assertLessEqual(record["mfu"], 1)
            self.assertAlmostEqual(record["mfu"] * peak / (flops * record["tokens_per_second"]), 1, places=6)
        self.assertGreater(peak, 100 * first)
        self.assertLess(len(raised), STEPS / 2)  # one measurement is enough, unless the machine is really busy
        self.assertEqual(done.stdout.count(" was faster than the peak for MFU, which is now "), len(raised))

        shares = [operation["share_of_peak"] for operation in profile["operations"] if operation["share_of_peak"] is not None]
        self.assertGreater(len(shares), 10)
        self.assertLessEqual(max(shares), 1)
        self.assertGreater(profile["peak_flops_per_second"], 100 * first)
        self.assertNotRegex(done.stdout, r"[1-9]\d\d\.[1-9] %|[2-9]\d\d\.0 %")  # 100.0 % may occur


if __name__ == "__main__":
    unittest.main()
