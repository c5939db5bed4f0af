#!/usr/bin/env python3
"""scripts/gpu_check.sh --device software, with the real programs: the whole check, a kill in the middle of it,
and programs damaged as by a transfer to a GPU's machine. PyTorch takes part on the CPU if FLATGPT_PYTORCH_VENV
names it, which takes some minutes more. SOFTWARE_PROGRAMS names the programs' folder (default:
build/software-gpu).
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAMS = pathlib.Path(os.environ.get("SOFTWARE_PROGRAMS", ROOT / "build" / "software-gpu"))
sys.path.insert(0, str(ROOT / "dev" / "bench"))
from gpu_check import Check  # noqa: E402

# Runs $REAL, then cuts off the end of the $CUT that it has written.
CUTS = """#!/bin/sh
"$REAL" "$@" || exit
for file in $(find "$FOLDER" -name "$CUT" -newer "$0"); do
    truncate -s -5 "$file"
done
"""


class Rehearsal(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out, self.build = self.folder / "out", self.folder / "build"
        (self.folder / "temporary").mkdir()
        self.environment = os.environ | {"TMPDIR": str(self.folder / "temporary")}
        self.environment.pop("TRAIN_PROGRAM", None)

    def command(self, build, *arguments):
        check = [ROOT / "scripts" / "gpu_check.sh", self.out, "--device", "software", "--build", build]
        return [str(word) for word in (*check, *arguments)]

    def check(self, build, *arguments):
        command = self.command(build, *arguments)
        return subprocess.run(command, capture_output=True, text=True, env=self.environment)

    def report(self):
        text = (self.out / "report.json").read_text()
        return json.loads(text, parse_constant=lambda name: self.fail(f"{name} is no JSON"))

    def links(self, *names):
        """A folder with some of the programs."""
        self.build.mkdir()
        for name in names:
            (self.build / name).symlink_to(PROGRAMS / name)

    def without_pytorch(self):
        (self.folder / "packages").mkdir()
        (self.folder / "packages" / "torch.py").write_text("raise ImportError('no torch here')")
        self.environment["PYTHONPATH"] = str(self.folder / "packages")

    def kill_once_something_passed(self, command):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=self.environment)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while process.poll() is None:
            if (self.out / "report.json").exists() and len(self.passed(self.report())) > 8:
                process.send_signal(signal.SIGKILL)
                process.wait()
                return
            time.sleep(0.1)
        self.fail("the check ended before it could be killed")

    @staticmethod
    def passed(report):
        return {
            (part, name): unit
            for part, described in report["parts"].items()
            for name, unit in described["units"].items()
            if unit["status"] == "passed"
        }

    def test_the_whole_check_runs_and_goes_on_after_a_kill(self):
        if "FLATGPT_PYTORCH_VENV" not in os.environ:
            self.without_pytorch()
        self.kill_once_something_passed(self.command(PROGRAMS))
        before = self.passed(self.report())
        result = self.check(PROGRAMS, "--continue")
        report = self.report()
        self.assertEqual(
            (result.returncode, result.stderr), (1, ""), result.stdout
        )  # for want of a sanitizer
        after = self.passed(report)
        self.assertEqual({name: after.get(name) for name in before}, before, "what had passed was run again")

        pytorch = bool(report["machines"][0]["pytorch"])
        expected = dict.fromkeys(Check.PARTS, "passed") | {"sanitizer": "not run"}
        if not pytorch:
            expected |= dict.fromkeys(("speed-124M", "speed-1558M"), "unfinished")
            expected |= dict.fromkeys(("curve-fp32", "curve-bf16"), "not run")
        found = {name: part["status"] for name, part in report["parts"].items()}
        self.assertEqual(found, expected, result.stdout)
        for name, part in report["parts"].items():
            self.assertEqual(part["status"] == "passed", not part["reason"], name)
            if name != "sanitizer":
                self.assertTrue(part["units"], name)
            for unit_name, unit in part["units"].items():
                self.assertIn(unit["status"], ("passed", "missing"), (name, unit_name))
                self.assertEqual(unit["status"] == "passed", not unit.get("reason"), (name, unit_name))
        self.check_that_it_is_complete(report, pytorch)
        self.check_that_it_looks_like_no_measurement(report, result.stdout)

    def check_that_it_is_complete(self, report, pytorch):
        models = [entry["model"] for entry in report["training"]]
        self.assertEqual(models, ["tiny (for 124M)", "tiny (for 1558M)"])
        self.assertTrue(report["deterministic"]["identical"])
        tests = report["parts"]["tests"]["units"]
        self.assertEqual([name for name, unit in tests.items() if not unit["tests"]], [], "ran no test")
        if report["parts"]["ladder"]["status"] == "passed":
            absent = [(row["name"], row["note"]) for row in report["ladder"] if not row["ms"]]
            self.assertEqual(absent, [("attention by cuDNN", "this build has no cuDNN")])
        self.assertEqual(set(report["curves"]), {"bf16", "fp32"} if pytorch else set())
        names = {"logs.tar.gz", "matmul_algorithms.json", "report.json", "report.md"}
        names |= {"loss.svg"} if pytorch else set()
        self.assertEqual({path.name for path in self.out.iterdir()}, names)
        json.loads((self.out / "matmul_algorithms.json").read_text())
        with tarfile.open(self.out / "logs.tar.gz") as archive:
            logs = archive.getnames()
        for part, name in self.passed(report):
            self.assertIn(f"{part}/{name.replace('/', ' of ')}.log", logs)

    def check_that_it_looks_like_no_measurement(self, report, output):
        self.assertEqual(report["gpu"], "software GPU")
        self.assertEqual({criterion["met"] for criterion in report["criteria"]}, {None})
        self.assertEqual(
            [c for c in report["criteria"] if "tokens/s" in c["found"] or " x" in c["found"]], []
        )
        self.assertEqual({kernel["share_of_peak"] for kernel in report["kernels"]}, {None})
        self.assertNotIn("dev/bench/results", output)
        text = (self.out / "report.md").read_text()
        self.assertRegex(text, r"^# A rehearsal of flatgpt's check with the software GPU, ")
        for title in ("## Training", "## Operations"):
            self.assertRegex(text, rf"\n{title}[^\n]*\(a rehearsal: no GPU's figures\)\n")

    def test_a_broken_program_is_one_line_of_its_part(self):
        """Missing library, lost file mode, truncated files: undamaged programs still run."""
        self.without_pytorch()
        self.links("test_layernormcu", "bench_layernormcu", "bench_matmulcu")
        program = (PROGRAMS / "test_gelucu").read_bytes()
        self.assertIn(b"\0libzstd.so", program)
        (self.build / "test_gelucu").write_bytes(program.replace(b"\0libzstd.so", b"\0libzsxx.so"))
        (self.build / "test_gelucu").chmod(0o755)
        (self.build / "test_randomcu").write_bytes(b"")
        self.wrapper("train_gpt2cu", "metrics.jsonl")
        self.wrapper("bench_gelucu", "out.json")
        parts = "speed-124M,tests,deterministic,kernels"
        result = self.check(self.build, "--parts", parts)
        self.assertEqual((result.returncode, result.stderr), (1, ""), result.stdout)
        report = self.report()
        self.assertEqual(list(report["parts"]), parts.split(","))
        cut = r"metrics\.jsonl, line \d+ of \d+, is not whole: "
        for part, unit, status, why in (
            ("speed-124M", "ours, B 2, slice 1", "failed", f"^ours bf16, B 2 is left out: {cut}"),
            ("deterministic", "run 1", "failed", f"^{cut}"),
            ("deterministic", "run 2", "failed", f"^{cut}"),
            ("tests", "test_gelucu", "failed", r"libzsxx\.so\.1: cannot open shared object file"),
            ("tests", "test_randomcu", "missing", "test_randomcu is not executable$"),
            ("kernels", "bench_gelu", "failed", r"^out\.json is not whole: "),
            ("kernels", "bench_encoder", "missing", "bench_encodercu is not built$"),
        ):
            with self.subTest(part=part, unit=unit):
                found = report["parts"][part]["units"][unit]
                self.assertEqual(found["status"], status, found)
                self.assertRegex(found["reason"], why)
                self.assertNotIn("\n", found["reason"])
                self.assertIn(found["reason"], (self.out / "report.md").read_text())
        passed = {name for part, name in self.passed(report)}
        self.assertLessEqual({"test_layernormcu", "bench_layernorm", "bench_matmul"}, passed, result.stdout)

    def test_a_wrong_path_is_one_line_of_every_part(self):
        self.without_pytorch()
        parts = "speed-124M,tests,deterministic,kernels,long-tests"
        result = self.check(self.folder / "nowhere", "--parts", parts)
        self.assertEqual((result.returncode, result.stderr), (1, ""), result.stdout)
        for name, part in self.report()["parts"].items():
            self.assertNotEqual(part["status"], "passed", name)
            self.assertRegex(part["reason"], r"^\S*nowhere(/\w+ is not built| has no such tests)", name)

    def wrapper(self, name, cut):
        words = CUTS.replace("$REAL", str(PROGRAMS / name)).replace("$CUT", cut)
        (self.build / name).write_text(words.replace("$FOLDER", str(self.folder / "temporary")))
        (self.build / name).chmod(0o755)


if __name__ == "__main__":
    for needed in ("train_gpt2cu", "test_gelucu", "bench_gelucu"):
        if not (PROGRAMS / needed).exists():
            print(f"test_rehearsal: {PROGRAMS / needed} is not there; make software-gpu builds it")
            sys.exit(77)
    unittest.main()
