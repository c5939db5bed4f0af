#!/usr/bin/env python3
"""scripts/gpu_check.sh --device software with the real programs: the whole check, with a kill in the middle of it.
PyTorch takes part on the CPU if FLATGPT_PYTORCH_VENV names it, which takes some minutes more. SOFTWARE_PROGRAMS
names the programs' folder (default: build/software-gpu)."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAMS = pathlib.Path(os.environ.get("SOFTWARE_PROGRAMS", ROOT / "build" / "software-gpu"))
PYTORCH = "FLATGPT_PYTORCH_VENV" in os.environ
sys.path.insert(0, str(ROOT / "dev" / "bench"))
from gpu_check import MODELS, Check  # noqa: E402
from gpu_report import CURVES  # noqa: E402


class Rehearsal(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name, "out")
        pathlib.Path(folder.name, "torch.py").write_text("raise ImportError('no torch here')")
        without_pytorch = dict(PYTHONPATH=folder.name, FLATGPT_PYTORCH_VENV="/nowhere")
        self.environment = os.environ | ({} if PYTORCH else without_pytorch)
        self.command = [ROOT / "scripts" / "gpu_check.sh", self.out, "--device", "software", "--build", PROGRAMS]

    def report(self):
        text = (self.out / "report.json").read_text()
        return json.loads(text, parse_constant=lambda name: self.fail(f"{name} is no JSON"))

    def passed(self):
        return {f"{part}/{name}": unit for part, described in self.report()["parts"].items()
                for name, unit in described["units"].items() if unit["status"] == "passed"}  # fmt: skip

    def kill_once_something_passed(self):
        process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, env=self.environment)
        while process.poll() is None:
            if (self.out / "report.json").exists() and len(self.passed()) > 8:
                process.kill()
            time.sleep(0.1)
        self.assertEqual(process.returncode, -9, "the check ended before it could be killed")

    def test_the_whole_check_runs_and_goes_on_after_a_kill(self):
        self.kill_once_something_passed()
        before = self.passed()
        result = subprocess.run(self.command, capture_output=True, text=True, env=self.environment)
        self.assertEqual((result.returncode, result.stderr), (1, ""), result.stdout)  # for want of a sanitizer
        self.assertLessEqual(before.items(), self.passed().items(), "what had passed was run again")
        expected = dict.fromkeys(Check.PARTS, "passed") | {"sanitizer": "not run"}
        if not PYTORCH:
            expected |= {f"speed-{model}": "unfinished" for model in MODELS}
            expected |= {f"curve-{name}": "not run" for name in CURVES}
        report = self.report()
        self.assertEqual({name: part["status"] for name, part in report["parts"].items()}, expected, result.stdout)
        tests = report["parts"]["tests"]["units"]
        self.assertEqual([name for name, unit in tests.items() if not unit["tests"]], [], "ran no test")
        absent = [(row["name"], row["note"]) for row in report["ladder"] if not row["ms"]]
        self.assertEqual(absent, [("attention by cuDNN", "this build has no cuDNN")])
        files = ["log.txt", "matmul_algorithms.json", "report.json", "report.md"]
        self.assertEqual(sorted(path.name for path in self.out.iterdir()), files)
        json.loads((self.out / "matmul_algorithms.json").read_text())
        log = (self.out / "log.txt").read_text()
        self.assertEqual([name for name in self.passed() if f"==== {name}: passed\n" not in log], [])
        self.check_that_it_looks_like_no_measurement(report, result.stdout)

    def check_that_it_looks_like_no_measurement(self, report, output):
        self.assertEqual({criterion["met"] for criterion in report["criteria"]}, {None})
        self.assertEqual({row["model"] for row in report["training"]}, {f"tiny, for {model}" for model in MODELS})
        speeds = [row["found"] for row in report["criteria"][:4]]
        self.assertEqual([found for found in speeds if not found.startswith("(not judged: ")], [])
        self.assertEqual({kernel["share_of_peak"] for kernel in report["kernels"]}, {None})
        self.assertNotIn("dev/bench/results", output)
        page = (self.out / "report.md").read_text()
        self.assertRegex(page, r"^# A rehearsal of flatgpt's check on the software GPU, ")
        for title in ("## Training in bf16, in turns", "## Operations"):
            self.assertIn(f"\n{title} (a rehearsal: no GPU's figures)\n", page)


if __name__ == "__main__":
    for needed in ("train_gpt2cu", "test_gelucu", "bench_gelucu"):
        if not (PROGRAMS / needed).exists():
            print(f"test_rehearsal: {PROGRAMS / needed} is not there; make software-gpu builds it")
            sys.exit(77)
    unittest.main()
