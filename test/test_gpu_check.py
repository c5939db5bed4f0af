#!/usr/bin/env python3
"""scripts/gpu_check.sh: order, limits, faults and the report; the contents of scripts/gpu_bundle.sh's archive. The
GPU, our programs, compute-sanitizer and PyTorch or its absence are simulated."""

import argparse
import collections
import importlib.util
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "dev" / "bench"))
import check_units  # noqa: E402
import gpu_check  # noqa: E402
import gpu_parts  # noqa: E402
import gpu_report  # noqa: E402
import markov_text  # noqa: E402
import speed_ladder  # noqa: E402

SMI = """#!/bin/sh
case "$*" in
    -L) echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)' ;;
    *memory.used*) echo 1000 ;;
    *) echo 'NVIDIA H100 80GB HBM3, 580.10, 81920, 9.0, 700.00, 1980' ;;
esac
"""
# Steps with a falling loss, and a checkpoint of one file; seconds of a step by the micro-batch.
TRAIN = """#!/bin/sh
case "$*" in *--help*) echo '  --no-graph'; exit ;; esac
while [ $# -gt 0 ]; do
    case $1 in --out) out=$2 ;; --steps) steps=$2 ;; --batch-size) size=$2 ;; esac
    shift
done
echo "train $size" >>"$FOLDER/calls"
sleep ${PACE:-0}
[ -z "$FLATGPT_MATMULS" ] || echo $size >>"$FLATGPT_MATMULS"
mkdir -p "$out/checkpoints/step_1"
echo weights $(cat "$FOLDER/different" 2>/dev/null) >"$out/checkpoints/step_1/model.safetensors"
[ ! -e "$FOLDER/differ" ] || date +%N >"$FOLDER/different"
i=1
while [ $i -le "$steps" ]; do
    echo "{\\"kind\\":\\"train\\",\\"step\\":$i,\\"loss\\":$((11 - i / 10)).5,\\"grad_norm\\":1.5,\\"step_ms\\":$((750 + size))}"
    i=$((i + 1))
done >"$out/metrics.jsonl"
"""
TOKENIZE = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in --out) mkdir -p "$2"; echo tokens >"$2/train_000000.bin" ;; esac
    shift
done
"""
# A python with PyTorch: it answers gpu_check's query, and replaces compare_pytorch.py with results in no time.
PYTORCH = """#!/usr/bin/env python3
import json, os, pathlib, sys, time
words = sys.argv[1:]
if words[0] == "-c":
    print("2.11.0 True True")
    sys.exit()
time.sleep(float(os.environ.get("PACE", 0)))
option = dict(zip(words, words[1:]))
with open(os.environ["FOLDER"] + "/calls", "a") as calls:
    print(pathlib.Path(words[0]).stem, option.get("--slice", ""), option.get("--batch-size", ""), file=calls)
if "--json" in option:
    small = option["--preset"] == "shakespeare"
    size = int(option.get("--batch-size", 12))
    total = 768 if small else 32768 if option["--preset"] == "1558M" else 524288
    if size == 16:
        sys.exit("compare_pytorch: PyTorch bf16, B 16 is left out: OutOfMemoryError: CUDA out of memory")
    result = dict(side=option["--slice"], batch_size=size, ms=[1000.0 + size] * 8, peak_bytes=size << 30)
    if "--loss-check" in words:
        result["losses"] = [11 - step / 100 for step in range(int(option["--loss-steps"]))]
    whole = dict(options=dict(seq_len=1024, total_batch=total), results={"x": result})
    pathlib.Path(option["--json"]).write_text(json.dumps(whole))
"""
PASSED = """#!/bin/sh
echo "$(basename "$0")${GTEST_SHARD_INDEX:+ $GTEST_SHARD_INDEX}${RANK:+ rank $RANK}" >>"$FOLDER/calls"
sleep ${PACE:-0}
echo '[==========] 7 tests from 2 test suites ran. (3 ms total)'
echo '[  PASSED  ] 7 tests.'
"""
FAILED = """#!/bin/sh
echo "$(basename "$0")" >>"$FOLDER/calls"
echo '[==========] 7 tests from 2 test suites ran. (3 ms total)'
echo '[  FAILED  ] 1 test, listed below:'
echo '[  FAILED  ] Gelu.Backward/3, where GetParam() = 4'
exit 1
"""
SANITIZER = """#!/bin/sh
for word in "$@"; do
    case $word in */test_*) echo "$2 $(basename "$word")" >>"$FOLDER/calls" ;; esac
done
sleep ${PACE:-0}
[ -e "$FOLDER/silent" ] && exit
case "$*" in
    *memcheck*) echo '========= ERROR SUMMARY: 0 errors'; exit ;;
    *test_layernormcu*) [ -e "$FOLDER/clean" ] || hazard=1 ;;
esac
echo "========= RACECHECK SUMMARY: ${hazard:-0} hazard displayed (${hazard:-0} error, 0 warnings)"
[ -z "$hazard" ] || exit 86
"""
BENCH = """#!/bin/sh
echo "$(basename "$0")" >>"$FOLDER/calls"
sleep ${PACE:-0}
while [ $# -gt 0 ]; do
    case $1 in --json) cp "$0.json" "$2" ;; esac
    shift
done
"""


def bench_row(name, shape, us, **rates):
    return dict(name=f"{name}/bf16/{shape}/iterations:30/manual_time", real_time=us, time_unit="us") | rates


ROWS = {
    "layernorm": [
        bench_row("layernorm_forward", "N:65536/C:768", 100, **{"GB/s": 2000, "%bandwidth": 90}),
        bench_row("layernorm_backward", "N:65536/C:768", 200, **{"GB/s": 1500, "%bandwidth": 70}),
    ],
    "attention": [
        bench_row(
            "attention_forward_kernel",
            "B:64/T:1024",
            3000,
            **{"GB/s": 10, "%bandwidth": 1, "GFLOP/s": 100000, "%compute": 20},
        ),
        bench_row(
            "attention_forward_cudnn",
            "B:64/T:1024",
            1800,
            **{"GB/s": 20, "%bandwidth": 2, "GFLOP/s": 200000, "%compute": 40},
        ),
    ],
    "matmul": [
        bench_row(
            "matmul_forward",
            "N:65536/C:768/OC:768",
            500,
            **{"GB/s": 100, "%bandwidth": 5, "GFLOP/s": 600000, "%compute": 80},
        )
    ],
}


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.build, self.out = self.folder / "build", self.folder / "out"
        for name in ("bin", "build", "packages", "temporary"):
            (self.folder / name).mkdir()
        self.fake("bin/nvidia-smi", SMI)
        self.fake("bin/compute-sanitizer", SANITIZER)
        self.fake(
            "bin/mpirun",
            '#!/bin/sh\nwhile [ $# -gt 0 ]; do case $1 in */test_*) break ;; esac; shift; done\nexec "$@"\n',
        )
        self.fake("build/train_gpt2cu", TRAIN)
        self.fake("build/tokenize", TOKENIZE)
        for name in ("layernorm", "gemm", "training", "communicator", "data_parallel"):
            self.fake(f"build/test_{name}cu", PASSED)
        for name in gpu_parts.BENCHMARKS:
            self.fake(f"build/bench_{name}cu", BENCH)
            rows = ROWS.get(name, [bench_row(name, "n:4096", 10)])
            (self.build / f"bench_{name}cu.json").write_text(json.dumps({"benchmarks": rows}))
        (self.folder / "packages" / "torch.py").write_text("raise ImportError('no torch here')")
        self.environment = {
            **os.environ,
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "FOLDER": str(self.folder),
            "PYTHONPATH": str(self.folder / "packages"),
            "TMPDIR": str(self.folder / "temporary"),
        }
        for name in ("FLATGPT_PYTORCH_VENV", "TRAIN_PROGRAM", "TOKENIZE_PROGRAM"):
            self.environment.pop(name, None)
        self.command = [
            ROOT / "scripts" / "gpu_check.sh",
            self.out,
            "--build",
            self.build,
            "--data",
            self.folder / "shards_*.bin",
        ]

    def with_pytorch_on_an_h200(self):
        (self.folder / "venv" / "bin").mkdir(parents=True)
        self.fake("venv/bin/python", PYTORCH)
        self.environment["FLATGPT_PYTORCH_VENV"] = str(self.folder / "venv")
        self.fake("bin/nvidia-smi", SMI.replace("H100 80GB HBM3", "H200").replace("81920", "143771"))
        (self.folder / "clean").touch()
        good = [row | {"%bandwidth": 90} if "%compute" not in row else row for row in ROWS["layernorm"]]
        (self.build / "bench_layernormcu.json").write_text(json.dumps({"benchmarks": good}))

    def fake(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def check(self, *arguments):
        command = [str(part) for part in (*self.command, *arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=300)

    def start(self, *arguments):
        command = [str(part) for part in (*self.command, *arguments)]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self.environment
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def report(self):
        return json.loads(
            (self.out / "report.json").read_text(),
            parse_constant=lambda name: self.fail(f"{name} is no JSON"),
        )

    def status(self):
        return {name: part["status"] for name, part in self.report()["parts"].items()}

    def units(self, part):
        return {name: unit["status"] for name, unit in self.report()["parts"][part]["units"].items()}

    def calls(self):
        return (self.folder / "calls").read_text().split("\n")[:-1]

    def criterion(self, beginning):
        (found,) = [c for c in self.report()["criteria"] if c["criterion"].startswith(beginning)]
        return found

    def wait_for(self, condition):
        end = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), end, "waited in vain")
            time.sleep(0.05)

    def sleeping_test(self, name):
        self.fake(f"build/{name}", '#!/bin/sh\nsleep 1000 &\necho $! >"$FOLDER/sleeper"\nwait\n')

    def sleeps(self):
        return (self.folder / "sleeper").exists() and (self.folder / "sleeper").read_text().endswith("\n")

    def sleeper_is_dead(self):
        status = pathlib.Path(f"/proc/{int((self.folder / 'sleeper').read_text())}/status")
        try:
            return "\tZ" in status.read_text()
        except OSError:
            return True

    def test_every_part_runs_in_its_order_and_is_reported(self):
        result = self.check()
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        report = self.report()
        self.assertEqual(list(report["parts"]), list(gpu_check.Check.PARTS))
        expected = dict.fromkeys(gpu_check.Check.PARTS, "passed")
        # Without PyTorch, and with a race.
        expected |= {
            "speed-124M": "unfinished",
            "speed-1558M": "unfinished",
            "curve-fp32": "not run",
            "curve-bf16": "not run",
            "sanitizer": "failed",
        }
        self.assertEqual(self.status(), expected, json.dumps(report["parts"], indent=1))
        for name in ("speed-124M", "curve-fp32"):
            self.assertIn("PyTorch is not installed", report["parts"][name]["reason"])
        self.assertIn("PyTorch is not installed", (self.out / "report.md").read_text())
        self.assertEqual(report["gpu"], "NVIDIA H100 80GB HBM3")

        first = [
            self.calls().index(name)
            for name in (
                "train 64",
                "test_gemmcu",
                "bench_layernormcu",
                "train 8",
                "memcheck test_gemmcu",
                "test_trainingcu 0",
            )
        ]
        self.assertEqual(first, sorted(first))
        self.assertNotIn("memcheck test_trainingcu", self.calls())
        self.assertEqual(
            [call for call in self.calls() if "training" in call],
            [f"test_trainingcu {piece}" for piece in range(4)],
        )
        # NCCL with one process; for several there are too few GPUs.
        self.assertEqual(self.units("tests")["test_communicatorcu, 1 process by mpirun"], "passed")
        self.assertEqual(self.units("tests")["test_data_parallelcu, several processes"], "missing")
        self.assertNotIn("test_data_parallelcu", self.calls())

        # 524,288 tokens in 814 ms; 32,768 in 758 ms, the faster of two micro-batches.
        fields = {
            "model",
            "dtype",
            "batch_size",
            "seq_len",
            "tokens_per_second",
            "pytorch_tokens_per_second",
            "llmc_tokens_per_second",
            "peak_memory_bytes",
        }
        speeds = {}
        for entry in report["training"]:
            self.assertLessEqual(fields, set(entry))
            speeds[entry["model"]] = (
                round(entry["tokens_per_second"]),
                entry["pytorch_tokens_per_second"],
                entry["seq_len"],
                entry["batch_size"],
            )
        self.assertEqual(speeds, {"124M": (644088, None, 1024, 64), "1558M": (43230, None, 1024, 8)})
        kernels = {kernel["name"]: kernel for kernel in report["kernels"]}
        self.assertLessEqual({"name", "shape", "ms", "share_of_peak"}, set(kernels["layernorm_forward"]))
        self.assertEqual(
            (kernels["layernorm_forward"]["shape"], kernels["layernorm_forward"]["ms"]),
            ("N:65536/C:768", 0.1),
        )
        self.assertEqual(
            (kernels["matmul_forward"]["share_of_peak"], kernels["layernorm_forward"]["share_of_peak"]),
            (0.8, 0.9),
        )

        self.assertEqual(self.criterion("every test passes")["met"], True)
        self.assertEqual(self.criterion("compute-sanitizer")["met"], False)
        self.assertEqual(
            report["parts"]["sanitizer"]["units"]["racecheck test_layernormcu"]["reason"],
            "racecheck summary: 1 hazard displayed (1 error, 0 warnings)",
        )
        self.assertEqual(self.criterion("--deterministic")["met"], True)
        self.assertEqual(self.criterion("bf16 losses")["met"], None)
        self.assertEqual(
            self.criterion("kernels bound by memory"),
            {
                "criterion": "kernels bound by memory reach 85% of a copy's bandwidth",
                "found": "below: layernorm_backward 70%",
                "met": False,
            },
        )
        self.assertEqual(
            (self.criterion("our own attention")["met"], self.criterion("our own attention")["found"]),
            (True, "forward 60%"),
        )
        # The targets of an H200 are judged on no other GPU.
        self.assertEqual(
            (self.criterion("124M: 560,000")["met"], self.criterion("1558M: 55,000")["met"]), (None, None)
        )
        self.assertEqual(
            self.criterion("124M: 560,000")["found"],
            "644,088 tokens/s; not judged: the target is an H200's, and this is NVIDIA H100 80GB HBM3",
        )

    def test_every_target_is_judged(self):
        self.with_pytorch_on_an_h200()
        result = self.check()
        self.assertEqual(self.status(), dict.fromkeys(gpu_check.Check.PARTS, "passed"), result.stdout)
        met = {c["criterion"]: c["met"] for c in self.report()["criteria"]}
        # 32,768 tokens in 766 ms are too few.
        self.assertEqual(
            [name for name, judged in met.items() if judged is not True], ["1558M: 55,000 tokens/s"], met
        )
        self.assertEqual(len(met), 10)
        self.assertEqual(result.returncode, 1)
        speeds = {entry["model"]: entry for entry in self.report()["training"]}
        self.assertEqual(
            (
                speeds["124M"]["batch_size"],
                speeds["124M"]["pytorch_batch_size"],
                speeds["124M"]["slices"],
                speeds["124M"]["pytorch_slices"],
            ),
            (64, 64, 3, 3),
        )
        self.assertEqual(self.criterion("124M: 1.25 x")["found"], f"{1064 / 814:.3f} x")

    def test_it_leaves_few_files(self):
        self.with_pytorch_on_an_h200()
        self.check()
        self.assertEqual(
            sorted(path.name for path in self.out.iterdir()),
            ["logs.tar.gz", "loss.svg", "matmul_algorithms.json", "report.json", "report.md"],
        )
        with tarfile.open(self.out / "logs.tar.gz") as archive:
            names = archive.getnames()
            self.assertIn(b"7 tests from 2 test suites", archive.extractfile("tests/test_gemmcu.log").read())
        self.assertIn("long-tests/test_trainingcu 1 of 4.log", names)
        self.assertEqual(list((self.folder / "temporary").iterdir()), [])
        # All timed training used this one file.
        self.assertLessEqual(
            {"16", "32", "64", "128"}, set((self.out / "matmul_algorithms.json").read_text().split())
        )

    def test_a_part_that_fails_does_not_stop_the_others(self):
        self.fake("build/test_gemmcu", FAILED)
        self.fake("build/test_attentioncu", "#!/bin/sh\nkill -SEGV $$\n")
        (self.build / "bench_gelucu").unlink()
        (self.folder / "differ").touch()
        result = self.check("--parts", "tests,deterministic,kernels")
        self.assertEqual(result.returncode, 1)
        report = self.report()
        self.assertEqual(
            self.status(), {"tests": "failed", "deterministic": "failed", "kernels": "unfinished"}
        )
        self.assertEqual(report["parts"]["tests"]["reason"], "2 of 6 failed: test_attentioncu, test_gemmcu")
        tests = report["parts"]["tests"]["units"]
        self.assertEqual(
            (tests["test_attentioncu"]["status"], tests["test_attentioncu"]["reason"]),
            ("failed", "killed by signal 11"),
        )
        self.assertEqual(tests["test_gemmcu"]["failed"], ["Gelu.Backward/3"])
        self.assertEqual(tests["test_layernormcu"]["status"], "passed")
        self.assertIn("the checkpoints differ", report["parts"]["deterministic"]["reason"])
        self.assertIn("bench_gelucu is not built", report["parts"]["kernels"]["reason"])
        self.assertEqual(len(report["kernels"]), 9)
        for beginning in ("every test passes", "--deterministic"):
            self.assertEqual(self.criterion(beginning)["met"], False)
        self.assertIn(
            "| tests | test_gemmcu | failed | failed; Gelu.Backward/3 |", (self.out / "report.md").read_text()
        )

    def test_what_checked_nothing_has_not_passed(self):
        self.fake("build/test_gemmcu", "#!/bin/sh\necho 'usage: test'\n")
        self.fake("build/test_mmacu", PASSED)
        (self.build / "test_mmacu").chmod(0o644)
        (self.folder / "silent").touch()
        (self.build / "bench_gelucu.json").write_text('{"benchm')
        (self.build / "bench_encodercu.json").write_text('{"benchmarks": []}')
        self.check("--parts", "tests,kernels,sanitizer")
        for part, unit, status, expected in (
            (
                "tests",
                "test_gemmcu",
                "failed",
                "it does not say how many tests have run; its last line: usage",
            ),
            ("tests", "test_mmacu", "missing", f"{self.build}/test_mmacu is not executable"),
            ("tests", "test_layernormcu", "passed", None),
            ("kernels", "bench_gelu", "failed", "out.json is not whole: "),
            ("kernels", "bench_encoder", "failed", "it has measured nothing; its last line: no message"),
            ("kernels", "bench_layernorm", "passed", None),
            (
                "sanitizer",
                "memcheck test_gemmcu",
                "failed",
                "compute-sanitizer has checked nothing; its last",
            ),
        ):
            with self.subTest(part=part, unit=unit):
                found = self.report()["parts"][part]["units"][unit]
                self.assertEqual(found["status"], status, found)
                self.assertTrue(expected is None or found["reason"].startswith(expected), found)
        self.assertNotEqual(self.criterion("every test passes")["met"], True)

    def test_files_that_were_cut_off_on_their_way_are_one_line(self):
        self.check("--parts", "tests")
        for name in ("logs.tar.gz", "report.json"):
            data = (self.out / name).read_bytes()
            (self.out / name).write_bytes(data[: len(data) // 2])
            result = self.check("--continue", "--parts", "tests")
            if name == "logs.tar.gz":
                self.assertRegex(
                    result.stdout, r"^gpu_check: \S+/logs.tar.gz is not whole, \d+ logs are kept"
                )
                self.assertEqual((result.returncode, self.status()), (0, {"tests": "passed"}), result.stderr)
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (1, "", 1))
        self.assertIn("report.json is not whole: ", result.stderr)
        self.assertIn("; without --continue the check begins anew", result.stderr)

    def test_several_gpus_run_the_tests_of_several_processes(self):
        self.fake(
            "bin/nvidia-smi",
            SMI.replace(
                "esac",
                'esac\ncase "$*" in *power*)'
                " echo 'NVIDIA H100 80GB HBM3, 580.10, 81920, 9.0, 700.00, 1980' ;; esac",
            ),
        )
        (self.folder / "bin" / "mpirun").unlink()
        path = self.folder / "path"  # the system's without mpirun
        path.mkdir()
        for folder in os.environ["PATH"].split(":"):
            for program in pathlib.Path(folder).glob("*") if os.path.isdir(folder) else []:
                if program.name != "mpirun" and not (path / program.name).is_symlink():
                    (path / program.name).symlink_to(program)
        self.environment["PATH"] = f"{self.folder}/bin:{path}"
        self.check("--parts", "tests")
        units = self.units("tests")
        self.assertEqual(units["test_communicatorcu, 1 process by torchrun's variables"], "passed")
        self.assertEqual(units["test_data_parallelcu, 2 processes by torchrun's variables"], "passed")
        self.assertEqual(
            sorted(call for call in self.calls() if "parallel" in call),
            ["test_data_parallelcu rank 0", "test_data_parallelcu rank 1"],
        )
        self.fake("build/test_data_parallelcu", "#!/bin/sh\nexit $RANK\n")
        self.check("--parts", "tests")
        self.assertEqual(
            self.units("tests")["test_data_parallelcu, 2 processes by torchrun's variables"], "failed"
        )

    def test_the_time_limit_ends_what_runs_and_leaves_out_the_rest(self):
        self.check("--parts", "tests")
        self.sleeping_test("test_zcu")
        start = time.monotonic()
        result = self.check("--time-limit", 10, "--continue", "--parts", "tests,kernels")
        self.assertEqual(result.returncode, 1)
        self.assertLess(time.monotonic() - start, 30)
        report = self.report()
        self.assertEqual(self.units("tests")["test_gemmcu"], "passed")
        self.assertEqual(
            report["parts"]["tests"]["units"]["test_zcu"]["reason"], "by the check's time limit of 10 s"
        )
        self.assertEqual(self.status(), {"tests": "unfinished", "kernels": "unfinished"})
        self.assertEqual(
            report["parts"]["kernels"]["reason"], "8 of 8 are left for --continue: too little time"
        )
        self.assertEqual(report["parts"]["kernels"]["units"], {})  # no unit was begun only to be ended
        self.assertIsNone(self.criterion("every test passes")["met"])  # nothing failed
        self.assertTrue(self.sleeper_is_dead(), "a program outlived the check")
        self.assertIn("left: tests, kernels; the same command with --continue goes on", result.stdout)

    def test_stopped_by_a_signal_it_leaves_a_whole_report(self):
        self.sleeping_test("test_zcu")
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number.name):
                (self.folder / "sleeper").unlink(missing_ok=True)
                process = self.start("--parts", "kernels,tests")
                self.wait_for(self.sleeps)
                self.assertEqual(self.units("tests")["test_zcu"], "running")  # the status that an immediate SIGKILL would leave
                process.send_signal(number)
                _, errors = process.communicate(timeout=60)
                self.assertEqual((process.returncode, errors), (1, ""))
                report = self.report()
                self.assertEqual(report["stopped"], number.name)
                self.assertEqual(self.status(), {"tests": "unfinished", "kernels": "not run"})
                self.assertEqual(report["parts"]["tests"]["reason"], f"stopped by {number.name}")
                self.assertEqual(self.units("tests")["test_gemmcu"], "passed")
                self.assertIn(f"Stopped by {number.name}", (self.out / "report.md").read_text())
                self.assertTrue(self.sleeper_is_dead(), "a program outlived the check")

    def test_killed_outright_nothing_outlives_it(self):
        self.sleeping_test("test_zcu")
        process = self.start("--parts", "tests")
        self.wait_for(self.sleeps)
        process.kill()
        self.wait_for(self.sleeper_is_dead)
        self.wait_for(lambda: not list((self.folder / "temporary").iterdir()))

    def test_continuing_keeps_what_passed_and_then_tries_again_what_failed(self):
        self.fake("build/test_gemmcu", FAILED)
        self.check("--parts", "tests,kernels")
        (self.folder / "calls").unlink()
        result = self.check("--continue", "--parts", "tests,kernels,deterministic")
        self.assertEqual(
            self.status(), {"tests": "failed", "deterministic": "passed", "kernels": "passed"}, result.stdout
        )
        self.assertEqual(self.calls(), ["train 16", "train 16", "test_gemmcu"])
        self.assertEqual(len(self.report()["kernels"]), 10)

    def test_what_other_programs_found_is_not_kept(self):
        self.fake("build/test_gemmcu", FAILED)
        self.check("--parts", "tests,kernels,speed-124M")
        self.fake("build/test_gemmcu", PASSED)
        self.fake("build/bench_gelucu", BENCH + "# built anew\n")
        self.fake("build/train_gpt2cu", TRAIN + "# built anew\n")
        (self.folder / "calls").unlink()
        result = self.check("--continue", "--parts", "tests")
        for line in (
            "kernels: the report's results are of other programs than these, and are not kept: bench_gelu",
            "speed-124M: the report's results are of other programs than these, and are not kept: "
            "ours, B 64, slice 1, ours, B 64, slice 2",
        ):
            self.assertIn(line, result.stdout)
        self.assertEqual(self.calls(), ["test_gemmcu"])
        self.assertEqual(self.status(), {"speed-124M": "not run", "tests": "passed", "kernels": "not run"})
        self.assertEqual(len(self.units("kernels")), 7)
        self.assertEqual(self.report()["training"], [])

    def test_another_gpu_needs_another_report(self):
        self.check("--parts", "tests")
        before = (self.out / "report.json").read_bytes()
        self.fake("bin/nvidia-smi", SMI.replace("H100", "A100"))
        result = self.check("--continue", "--parts", "tests")
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (1, "", 1))
        self.assertIn("report is of NVIDIA H100 80GB HBM3, and this is NVIDIA A100", result.stderr)
        self.assertEqual((self.out / "report.json").read_bytes(), before)

    def calls_of_what_passed(self):
        """The lines that the simulated programs wrote for units that passed: tests, benchmarks, sanitizers."""
        parts, lines = self.report()["parts"], set()
        for part in ("tests", "kernels", "sanitizer", "long-tests"):
            for name, unit in parts.get(part, {}).get("units", {}).items():
                if unit["status"] == "passed":
                    program, _, piece = name.partition(",")[0].partition("/")[0].partition("cu ")
                    lines.add(
                        f"{program}cu {int(piece) - 1}"
                        if piece
                        else f"{program}cu" if part == "kernels" else program
                    )
        return lines - {"bench_gelucu", "bench_matmulcu"}  # the ladder runs these, too

    def test_it_goes_on_after_a_kill_at_any_moment(self):
        seed = int.from_bytes(os.urandom(4), "little")
        moments, kills = random.Random(seed), 0
        self.with_pytorch_on_an_h200()
        self.environment["PACE"] = "0.05"
        passed, before = set(), 0
        while kills < 12 or len(passed) < 4:  # on a busy machine few units pass between two kills
            process = self.start("--continue")
            try:
                process.wait(moments.uniform(0.3, 3 + kills / 4))
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
            if not self.out.exists() or not (self.out / "report.json").exists():
                continue
            names = [path.name for path in self.out.iterdir()]
            self.assertLessEqual(len(names), 6, (seed, names))
            made = self.calls() if (self.folder / "calls").exists() else []
            self.assertEqual(passed.intersection(made[before:]), set(), (seed, "was run again"))
            passed, before = self.calls_of_what_passed(), len(made)
            # The next call is made on another machine, which has only these files.
            elsewhere = self.folder / f"out-{kills}"
            shutil.copytree(self.out, elsewhere)
            self.out = self.command[1] = elsewhere
        self.assertGreater(len(passed), 3, seed)
        result = self.check("--continue")
        self.assertEqual(self.status(), dict.fromkeys(gpu_check.Check.PARTS, "passed"), (seed, result.stdout))
        self.assertEqual(len(self.report()["criteria"]), 10)
        self.assertEqual(passed.intersection(self.calls()[before:]), set(), (seed, "was run again"))
        with tarfile.open(self.out / "logs.tar.gz") as archive:
            self.assertIn("tests/test_gemmcu.log", archive.getnames(), seed)

    def test_wrong_use_is_one_line(self):
        for arguments, expected in (
            (["--parts", "tests,nonsense"], "no part is called nonsense"),
            (["--time-limit", "0"], "--time-limit 0"),
        ):
            result = self.check(*arguments)
            self.assertEqual(
                (result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr
            )
            self.assertIn(expected, result.stderr)
        self.fake("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        for command in (
            self.command,
            [ROOT / "scripts" / "gpu_check.sh", self.out],
        ):  # the second one would build
            result = subprocess.run(command, capture_output=True, text=True, env=self.environment)
            self.assertEqual(
                (result.returncode, result.stdout, result.stderr),
                (
                    2,
                    "",
                    "gpu_check: nvidia-smi lists no GPU; --device software rehearses the check without one\n",
                ),
            )
        self.assertFalse(self.out.exists())


class Units(unittest.TestCase):
    """Which units begin with the remaining time."""

    def fits(self, left, unit, **record):
        runner = check_units.Runner.__new__(check_units.Runner)
        runner.time_limit, runner.left = 540, lambda: left
        return runner.fits(unit, record)

    def test_nothing_is_begun_that_would_not_end_in_time(self):
        unit = check_units.Unit("", seconds=100)
        self.assertTrue(self.fits(101, unit))
        self.assertFalse(self.fits(99, unit))
        # It was ended after 200 s: it takes longer than that.
        self.assertFalse(self.fits(250, unit, status="stopped", seconds=200))
        self.assertTrue(self.fits(270, unit, status="stopped", seconds=200))
        # A unit that takes longer than a call begins only early in one.
        endless = check_units.Unit("", seconds=600)
        self.assertFalse(self.fits(400, endless))
        self.assertTrue(self.fits(410, endless))


class WithPyTorch(unittest.TestCase):
    """The verdicts from given slices and losses."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        options = argparse.Namespace(
            outdir=folder.name,
            device="cuda",
            build=folder.name,
            time_limit=1e9,
            go_on=False,
            parts=None,
            llmc="/llm.c",
            data="x",
        )
        self.check = gpu_check.Check(options)
        self.check.files = check_units.Files(pathlib.Path(folder.name), False)
        self.check.pytorch = "python3"
        self.check.machine |= {"memory_gib": 80, "pytorch": "2.11.0"}
        self.check.report["gpu"] = "NVIDIA H200"

    def give(self, part, units):
        self.check.report["parts"][part] = dict(title=part, status="passed", units=units)
        self.check.save()

    def speed(self, side, ms, batch_size, total_batch=524288):
        return dict(
            status="passed",
            side=side,
            ms=ms,
            batch_size=batch_size,
            peak_bytes=batch_size << 30,
            seq_len=1024,
            total_batch=total_batch,
        )

    def met(self, beginning):
        (found,) = [c["met"] for c in self.check.report["criteria"] if c["criterion"].startswith(beginning)]
        return found

    def test_the_best_of_each_side_counts(self):
        self.give(
            "speed-124M",
            {
                "a": self.speed("ours", [900, 940], 64),
                "b": self.speed("pytorch", [1300], 32),
                "c": self.speed("pytorch", [1170, 1170, 1180], 16),
                "d": self.speed("llmc", [1310], 64),
                "e": self.speed("ours", [1.0, 5000.0, 6000.0], 32),
            },
        )
        (entry,) = self.check.report["training"]
        self.assertEqual(
            (entry["batch_size"], entry["pytorch_batch_size"], entry["peak_memory_bytes"]), (64, 16, 64 << 30)
        )
        self.assertAlmostEqual(entry["tokens_per_second"], 524288 / 0.920)
        self.assertAlmostEqual(entry["pytorch_tokens_per_second"], 524288 / 1.170)
        self.assertIn("| 1.272 | 400,220 | 1.424 |", (self.check.folder / "report.md").read_text())
        self.assertEqual(
            [self.met("124M: 560,000"), self.met("124M: 1.25 x"), self.met("1558M")], [True, True, None]
        )
        self.give("speed-124M", {"a": self.speed("ours", [940], 64), "b": self.speed("pytorch", [1170], 32)})
        self.give("speed-1558M", {"a": self.speed("ours", [600], 16, 32768)})
        self.assertEqual(
            [self.met("124M: 560,000"), self.met("124M: 1.25 x"), self.met("1558M")], [False, False, False]
        )

    def test_rounds_follow_the_fastest_micro_batches(self):
        self.check.machine["memory_gib"] = 140
        self.check.options.llmc = None

        def names():
            return [unit.name for unit in self.check.speed("124M")]

        trials = [
            "ours, B 64, slice 1",
            "PyTorch, B 64, slice 1",
            "ours, B 128, slice 1",
            "PyTorch, B 128, slice 1",
        ]
        self.assertEqual(names(), trials)
        units = {
            trials[0]: self.speed("ours", [900], 64),
            trials[1]: self.speed("pytorch", [1300], 64),
            trials[2]: self.speed("ours", [880], 128),
        }
        self.check.train = pathlib.Path(sys.executable)
        self.give("speed-124M", units)
        self.assertEqual(names(), trials)
        # A unit that runs out of memory is no fault if another of its side passes.
        self.give("speed-124M", units | {trials[3]: dict(status="failed", reason="OutOfMemoryError")})
        self.assertEqual(
            names(),
            [
                *trials,
                "PyTorch, B 64, slice 2",
                "ours, B 128, slice 2",
                "ours, B 128, slice 3",
                "PyTorch, B 64, slice 3",
            ],
        )
        self.check.judge_speed("124M")
        self.give(
            "speed-124M",
            {trials[0]: units[trials[0]], trials[1]: dict(status="failed", reason="OutOfMemoryError")},
        )
        with self.assertRaisesRegex(check_units.Failed, "nothing is measured of pytorch: OutOfMemoryError"):
            self.check.judge_speed("124M")

    def curve(self, dtype, ours, pytorch, length=None):
        steps, tokens, *_ = gpu_report.CURVES[dtype]
        ours, pytorch = (losses + [8.0] * ((length or steps) - len(losses)) for losses in (ours, pytorch))
        self.give(
            f"curve-{dtype}",
            {
                name: check_units.without_nan(
                    dict(status="passed", side=name.lower(), losses=losses, total_batch=tokens)
                )
                for name, losses in (("ours", ours), ("PyTorch", pytorch))
            },
        )
        try:
            self.check.judge_curve(dtype)
        except check_units.Failed as error:
            return str(error)
        return ""

    def test_losses_must_agree_at_every_step_and_in_the_mean(self):
        self.assertEqual(self.curve("bf16", [11.0, 10.0, 9.0], [11.0, 10.019, 9.0]), "")
        self.assertTrue(self.met("bf16"))
        self.assertIn("step 2", self.curve("bf16", [11.0, 10.0, 9.0], [11.0, 10.021, 9.0]))
        self.assertFalse(self.met("bf16"))
        self.assertEqual(self.curve("bf16", [9.0] * 60, [9.0049] * 60), "")
        self.assertIn("mean 0.005100", self.curve("bf16", [9.0] * 60, [9.0051] * 60))
        self.assertFalse(self.met("bf16"))
        self.assertEqual(self.curve("fp32", [11.0, 10.0], [11.0009, 10.0]), "")
        self.assertIn("step 1", self.curve("fp32", [11.0, 10.0], [11.0011, 10.0]))
        self.assertFalse(self.met("fp32"))
        self.assertIn("step 2", self.curve("fp32", [11.0, float("nan")], [11.0, 10.0]))
        self.assertFalse(self.met("fp32"))
        report = json.loads((self.check.folder / "report.json").read_text(), parse_constant=self.fail)
        self.assertEqual(report["curves"]["fp32"]["ours"][:2], [11.0, None])
        plot = xml.etree.ElementTree.parse(self.check.folder / "loss.svg")
        self.assertEqual(len(list(plot.iter("{http://www.w3.org/2000/svg}polyline"))), 4)
        # A shorter run proves nothing.
        self.curve("bf16", [11.0], [11.0], length=2)
        self.assertIsNone(self.met("bf16"))

    def test_batches_follow_the_memory(self):
        for memory, expected in ((141, [[16, 32], [8, 16]]), (80, [[8, 16], [4, 8]]), (24, None)):
            self.check.machine["memory_gib"] = memory
            self.assertEqual(self.check.batch_sizes("1558M"), expected)
        with self.assertRaisesRegex(check_units.NotRun, "24 GiB"):
            list(self.check.speed("1558M"))


@unittest.skipUnless(importlib.util.find_spec("numpy"), "numpy is missing")
class MarkovText(unittest.TestCase):
    def test_pairs_of_the_source_and_the_same_bits_again(self):
        import numpy as np

        source = np.array([5, 7, 5, 9, 5, 7, 8, 8, 50256], dtype="<u2")
        text = markov_text.markov_walks(source, 3 * markov_text.WALKS * 10 - 7, seed=3)
        self.assertEqual(len(text), 3 * markov_text.WALKS * 10 - 7)
        self.assertEqual(text[:8].tolist(), markov_text.markov_walks(source, len(text), seed=3)[:8].tolist())
        walks = [text[k * 30 : k * 30 + 30] for k in range(markov_text.WALKS - 1)]
        counts = collections.Counter(
            pair for walk in walks for pair in zip(walk[:-1].tolist(), walk[1:].tolist())
        )
        self.assertEqual(
            set(counts), {(5, 7), (7, 5), (5, 9), (9, 5), (7, 8), (8, 8), (8, 50256), (50256, 5)}
        )
        # 5 stands before 7 twice and before 9 once.
        after_five = counts[5, 7] + counts[5, 9]
        self.assertAlmostEqual(counts[5, 7] / after_five, 2 / 3, delta=4 * (2 / 9 / after_five) ** 0.5)


class SpeedLadder(unittest.TestCase):
    """The arithmetic of its rows; training and the timing of operations are simulated."""

    MS = {"fp32": 400.0, "tf32": 200.0, "bf16": 100.0, "attention by cuDNN": 80.0, "CUDA graphs": 79.0}
    # GELU apart costs 2 ms forward and 3 ms backward in each of 12 layers; 50257 columns cost 1, 2 and 4 ms
    # more than 50304.
    BENCHMARKS = {
        "matmul_forward": 10.0,
        "matmul_forward_gelu": 11.0,
        "matmul_backward_input": 20.0,
        "matmul_backward_input_gelu": 22.0,
        "matmul_backward_weight": 30.0,
        "gelu_forward": 3.0,
        "gelu_backward": 5.0,
    }

    def setUp(self):
        self.train, self.benchmark = speed_ladder.train, speed_ladder.benchmark
        speed_ladder.train = lambda arguments: {name: ([ms], "") for name, ms in self.MS.items()}
        speed_ladder.benchmark = self.times
        self.arguments = argparse.Namespace(
            build="", device="cuda", layers=12, channels=768, batch_size=64, seq_len=1024, micro_steps=1
        )

    def tearDown(self):
        speed_ladder.train, speed_ladder.benchmark = self.train, self.benchmark

    def times(self, _, name, **dimensions):
        more = {"matmul_forward": 1.0, "matmul_backward_input": 2.0, "matmul_backward_weight": 4.0}
        shapes = (
            [{**dimensions, "OC": size} for size in str(dimensions["OC"]).split(",")]
            if "OC" in dimensions
            else [dimensions]
        )
        return {
            (row, *(f"{key}:{value}" for key, value in shape.items())): ms
            + (more.get(row, 0) if shape.get("OC") == "50257" else 0)
            for shape in shapes
            for row, ms in self.BENCHMARKS.items()
            if row.startswith(name)
        }

    def rows(self):
        return {row["name"]: row for row in speed_ladder.ladder(self.arguments)}

    def test_what_is_not_switched_is_computed_from_operations(self):
        rows = self.rows()
        self.assertEqual(
            list(rows),
            [
                "fp32",
                "tf32",
                "bf16",
                "GELU in the products' epilogues",
                "vocabulary 50257 -> 50304",
                "attention by cuDNN",
                "CUDA graphs",
            ],
        )
        self.assertEqual([row["ms"] for row in rows.values()], [400, 200, 100 + 7 + 60, 100 + 7, 100, 80, 79])
        self.assertAlmostEqual(rows["vocabulary 50257 -> 50304"]["gain"], 1.07)
        self.assertAlmostEqual(rows["CUDA graphs"]["tokens_per_second"], 65536 / 0.079)

    def test_without_benchmarks_their_rows_are_empty_and_say_why(self):
        def absent(*arguments, **dimensions):
            raise speed_ladder.Absent("bench_matmulcu is not built")

        speed_ladder.benchmark = absent
        rows = self.rows()
        self.assertEqual(rows["bf16"]["ms"], 100)
        for name in ("GELU in the products' epilogues", "vocabulary 50257 -> 50304"):
            self.assertEqual((rows[name]["ms"], rows[name]["note"]), (None, "bench_matmulcu is not built"))
        self.assertAlmostEqual(rows["attention by cuDNN"]["gain"], 100 / 80)

    def test_every_row_adds_to_the_ones_above(self):
        rows = {name: (options, absent) for name, options, absent in speed_ladder.trained_rows("cuda", True)}
        self.assertEqual(rows["fp32"], (["--dtype", "fp32", "--attention", "kernel", "--no-graph"], ""))
        # The backend is named, because "auto" may select our own kernel.
        self.assertEqual(
            rows["attention by cuDNN"], (["--dtype", "bf16", "--attention", "cudnn", "--no-graph"], "")
        )
        self.assertEqual(rows["CUDA graphs"], (["--dtype", "bf16", "--attention", "auto"], ""))
        self.assertEqual(set(rows), set(self.MS))
        on_cpu = {name: absent for name, _, absent in speed_ladder.trained_rows("cpu", False)}
        self.assertEqual(
            on_cpu,
            {
                "fp32": "",
                "tf32": "not on a CPU",
                "bf16": "",
                "attention by oneDNN": "",
                "CUDA graphs": "not on a CPU",
            },
        )


class Bundle(unittest.TestCase):
    """scripts/gpu_bundle.sh and its run.sh, in an empty folder, with any programs that need libstdc++."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.build = cls.folder / "gpu-90a"
        for name in ("gpu-90a", "bin", "site/nvidia/cudnn/lib", "home"):
            (cls.folder / name).mkdir(parents=True)
        source = cls.folder / "program.cpp"
        tests = "[====] 1 test from 1 test suite ran."
        source.write_text(
            "#include <iostream>\nint main(int argc, char**) {"
            f' std::cout << (argc > 1 ? "{tests}" : "runs") << std::endl; }}\n'
        )
        rpath = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../../lib"
        subprocess.run(["g++", source, "-o", cls.build / "train_gpt2cu", rpath], check=True)
        for name in ("test_gelucu", "bench_gelucu", "tokenize"):
            shutil.copy(cls.build / "train_gpt2cu", cls.build / name)
        (cls.build / "CUDA_VERSION").write_text("13.0\n")
        command = [ROOT / "scripts" / "gpu_bundle.sh", cls.build, cls.folder / "b.tar.xz"]
        cls.packed = subprocess.run(command, capture_output=True, text=True)
        # The case where xz is not installed.
        unpack = [sys.executable, "-m", "tarfile", "-e", cls.folder / "b.tar.xz", cls.folder / "unpacked"]
        subprocess.run(unpack, check=True, capture_output=True)
        cls.bundle = cls.folder / "unpacked" / "flatgpt-gpu"
        (cls.folder / "site" / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9").touch()
        (cls.folder / "home").chmod(0o500)
        path = f"{cls.folder}/bin:{os.environ['PATH']}"
        cls.environment = os.environ | dict(
            PATH=path, HOME=f"{cls.folder}/home", PYTHONPATH=f"{cls.folder}/site"
        )
        for name in ("LD_LIBRARY_PATH", "FLATGPT_PYTORCH_VENV", "PYTHONDONTWRITEBYTECODE"):
            cls.environment.pop(name, None)

    def run_bundle(self, *arguments):
        command = [self.bundle / "run.sh", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, cwd=self.folder)

    def gpu(self, exists):
        script = self.folder / "bin" / "nvidia-smi"
        script.write_text(SMI if exists else "#!/bin/sh\nexit 9\n")
        script.chmod(0o755)

    def files(self):
        return {
            str(path): path.lstat().st_mtime_ns
            for path in self.folder.rglob("*")
            if path.name not in ("nvidia-smi", "bin")
        }

    def test_what_is_packed_is_all_that_is_needed(self):
        self.assertEqual((self.packed.returncode, self.packed.stderr), (0, ""))
        self.assertRegex(self.packed.stdout, r"b\.tar\.xz, \d+ MB; needs GLIBC_2\.\d+ or newer\n$")
        wanted = (
            "run.sh VERSION CUDA_VERSION data/tinyshakespeare.txt test/reference/gelu.safetensors dev/bench/gpu_check.py"
        )
        for path in [
            *wanted.split(),
            "dev/bench/markov_text.py",
            "scripts/gpu_check.sh",
            "lib/libstdc++.so.6",
        ]:
            self.assertTrue((self.bundle / path).is_file(), path)
        self.assertEqual(os.readlink(self.bundle / "train_gpt2cu"), "build/cuda/train_gpt2cu")
        self.assertTrue((self.bundle / "build" / "gpu-90a" / "train_gpt2cu").is_file())  # the name that the tests use
        libraries = [path.name for path in (self.bundle / "lib").iterdir()]
        self.assertEqual([name for name in libraries if name.startswith(("libc.", "ld-", "libm."))], [])

    def test_only_our_programs_are_given_its_libraries(self):
        self.gpu(True)
        shown = "echo $FLATGPT_ROOT $FLATGPT_DATA ${LD_LIBRARY_PATH:-none}"
        result = self.run_bundle("--", "sh", "-c", shown)
        self.assertEqual((result.stdout, result.stderr), (f"{self.bundle} {self.bundle}/data none\n", ""))
        result = self.run_bundle("--", "ldd", self.bundle / "build" / "cuda" / "test_gelucu")
        self.assertRegex(result.stdout, rf"libstdc\+\+\.so\.6 => {self.bundle}/\S*lib/libstdc")
        self.assertEqual(self.run_bundle("--", self.bundle / "train_gpt2cu").stdout, "runs\n")
        # CUDA's libraries, from PyTorch's packages.
        wheels = self.folder / "site" / "nvidia" / "cudnn" / "lib"
        self.assertEqual(os.readlink(self.bundle / "lib" / "libcudnn.so.9"), str(wheels / "libcudnn.so.9"))

    def test_without_a_gpu_it_says_so_and_writes_nothing(self):
        self.gpu(False)
        before = self.files()
        result = self.run_bundle("out")
        self.assertEqual(
            (result.returncode, result.stdout, result.stderr), (2, "", "run.sh: nvidia-smi lists no GPU\n")
        )
        check = [self.bundle / "scripts" / "gpu_check.sh", "out"]
        result = subprocess.run(check, capture_output=True, text=True, env=self.environment, cwd=self.folder)
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1))
        self.assertEqual(self.files(), before)

    def test_a_driver_that_is_too_old_is_said_before_anything_runs(self):
        script = self.folder / "bin" / "nvidia-smi"
        script.write_text("#!/bin/sh\necho 'Driver Version: 550.54  CUDA Version: 12.4'\n")
        script.chmod(0o755)
        before = self.files()
        result = self.run_bundle("out")
        expected = (
            "run.sh: NVIDIA's driver runs programs of CUDA 12.4 and older, not of CUDA 13.0; "
            "update the driver, or use CUDA 12\n"
        )
        self.assertEqual((result.returncode, result.stdout, result.stderr), (2, "", expected))
        self.assertEqual(self.files(), before)

    def test_with_a_gpu_it_checks_what_it_has(self):
        self.gpu(True)
        result = self.run_bundle(self.folder / "out", "--parts", "tests")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        report = json.loads((self.folder / "out" / "report.json").read_text())
        self.assertEqual(report["parts"]["tests"]["units"]["test_gelucu"]["status"], "passed")
        self.assertEqual(report["machines"][0]["version"], (self.bundle / "VERSION").read_text().strip())

    def test_help_needs_no_gpu(self):
        self.gpu(False)
        result = self.run_bundle("--help")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("--time-limit", result.stdout)

    def test_programs_that_would_not_find_its_libraries_are_refused(self):
        build = self.folder / "cuda"
        build.mkdir()
        subprocess.run(["g++", self.folder / "program.cpp", "-o", build / "train_gpt2cu"], check=True)
        command = [ROOT / "scripts" / "gpu_bundle.sh", build, self.folder / "c.tar.xz"]
        result = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1))
        self.assertIn("would not look for libraries in the bundle", result.stderr)


if __name__ == "__main__":
    unittest.main()
