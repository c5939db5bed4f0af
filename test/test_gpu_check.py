#!/usr/bin/env python3
"""scripts/gpu_check.sh: order, limits, faults, verdicts, the report; scripts/gpu_bundle.sh's archive. The
GPU, our programs, compute-sanitizer and PyTorch or its absence are simulated."""

import argparse
import collections
import importlib.util
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import types
import unittest
import unittest.mock as mock

from common import ROOT, FolderTest  # beside this file

sys.path.insert(0, str(ROOT / "dev" / "bench"))
import gpu_check  # noqa: E402
import gpu_report  # noqa: E402
import markov_text  # noqa: E402
import speed_ladder  # noqa: E402

PARTS = list(gpu_check.Check.PARTS)
H100 = "NVIDIA H100 80GB HBM3, 580.10, 81920, 9.0, 700.00, 1980"
H200 = "NVIDIA H200, 580.10, 143771, 9.0, 700.00, 1980"
SMI = "#!/bin/sh\n[ $1 = -L ] && echo 'GPU 0' && exit\necho '{}'\n"
# Steps with a falling loss, and a checkpoint of one file; a step takes longer with a larger micro-batch.
TRAIN = """#!/bin/sh
out=$FOLDER/run
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=$2 ;; --steps) steps=$2 ;; --batch-size) size=$2 ;;
        --nanochat) model=" nanochat" ;; --optimizer) model="$model $2" ;;
    esac
    shift
done
echo "train $size$model" >>"$FOLDER/calls"
sleep ${PACE:-0}
[ -z "$FLATGPT_MATMULS" ] || echo $size >>"$FLATGPT_MATMULS"
mkdir -p "$out/checkpoints/step_1"
echo weights $(cat "$FOLDER/differ" 2>/dev/null) >"$out/checkpoints/step_1/model.safetensors"
[ ! -e "$FOLDER/differ" ] || date +%N >"$FOLDER/differ"
for i in $(seq $steps); do
    printf '{"kind":"train","loss":%d.5,"grad_norm":1.5,"step_ms":%d}\\n' $((11 - i / 10)) $((750 + size))
done >"$out/metrics.jsonl"
"""
TOKENIZE = """#!/bin/sh
while [ "$1" != --out ]; do shift; done
mkdir -p "$2" && echo tokens >"$2/train_000000.bin"
"""
# A python with PyTorch: it answers gpu_check's question, and replaces compare_pytorch.py with results in no
# time. PyTorch's micro-batch of 16 needs too much memory.
PYTORCH = """#!/usr/bin/env python3
import json, os, pathlib, sys, time
words = sys.argv[1:]
if words[0] == "-c":
    sys.exit(print("2.11.0 True"))
time.sleep(float(os.environ.get("PACE", 0)))
option = dict(zip(words, words[1:]))
with open(os.environ["FOLDER"] + "/calls", "a") as calls:
    names = ("--slice", "--batch-size", "--model", "--optimizer")
    print(pathlib.Path(words[0]).stem, *(option[name] for name in names if name in option), file=calls)
if "--json" in option:
    size = int(option.get("--batch-size", 12))
    total = {"shakespeare": 768, "124M": 524288, "1558M": 32768}[option["--preset"]]
    if size == 16:
        sys.exit("compare_pytorch: PyTorch bf16, B 16 is left out: OutOfMemoryError: CUDA out of memory")
    result = dict(side=option["--slice"], batch_size=size, ms=[1000.0 + size] * 8, peak_bytes=size << 30)
    if "--loss-check" in words:
        result["losses"] = [11 - step / 100 for step in range(int(option["--loss-steps"]))]
    whole = dict(options=dict(total_batch=total), results={"x": result})
    pathlib.Path(option["--json"]).write_text(json.dumps(whole))
"""
# Stands for tests, benchmarks, the ladder's benchmarks and compute-sanitizer.
PROGRAM = """#!/bin/sh
name=$(basename "$0")
for word; do
    case $word in */test_*) name="$2 $(basename $word)" ;; esac
done
echo "$name${GTEST_SHARD_INDEX:+ $GTEST_SHARD_INDEX}${RANK:+ rank $RANK}" >>"$FOLDER/calls"
sleep ${PACE:-0}
case $name in
    bench_*) while [ "$1" != --json ]; do shift; done; cp "$0.json" "$2" ;;
    memcheck*) echo '========= ERROR SUMMARY: 0 errors' ;;
    racecheck*layernorm*) echo "========= RACECHECK SUMMARY: 1 hazard displayed"; exit 86 ;;
    racecheck*) echo "========= RACECHECK SUMMARY: 0 hazards displayed" ;;
    *) echo '[==========] 7 tests from 2 test suites ran. (3 ms total)' ;;
esac
"""
FAILED = PROGRAM + "echo '[  FAILED  ] Gelu.Backward/3, where GetParam() = 4'\nexit 1\n"


def bench_row(name, us, shape="N:65536/C:768", **rates):
    return dict(name=f"{name}/bf16/{shape}/manual_time", real_time=us, time_unit="us") | rates


COMPUTE = {"%bandwidth": 1, "GFLOP/s": 100000, "%compute": 40}
PRODUCTS = ("forward", "forward_gelu", "backward_input", "backward_input_gelu", "backward_weight")
ROWS = {
    "layernorm": [bench_row("layernorm_forward", 100, "N:65536/C:768/iterations:30", **{"%bandwidth": 90}),
                  bench_row("layernorm_backward", 200, **{"%bandwidth": 84})],
    "attention": [bench_row("attention_forward_kernel", 3000, **COMPUTE),
                  bench_row("attention_forward_cudnn", 1800, **COMPUTE)],
    "gelu": [bench_row(f"gelu_{way}", 10, "N:65536/C:3072") for way in ("forward", "backward")],
    "matmul": [bench_row(f"matmul_{product}", 500, f"N:65536/C:{size}", **COMPUTE) for product in PRODUCTS
               for size in ("768/OC:3072", "3072/OC:768", "768/OC:50257", "768/OC:50304")],
}  # fmt: skip


class GpuCheck(FolderTest):
    def setUp(self):
        super().setUp()
        self.build, self.out = self.folder / "build", self.folder / "out"
        self.fake("bin/nvidia-smi", SMI.format(H100))
        self.fake("bin/compute-sanitizer", PROGRAM)
        self.fake("build/train_gpt2cu", TRAIN)
        self.fake("build/tokenize", TOKENIZE)
        for name in ("layernorm", "gemm", "training", "communicator", "data_parallel"):
            self.fake(f"build/test_{name}cu", f"{PROGRAM}# {name}\n")
        for name in gpu_check.BENCHMARKS:
            self.fake(f"build/bench_{name}cu", f"{PROGRAM}# {name}\n")
            self.benchmark(name, ROWS.get(name, [bench_row(name, 10)]))
        self.fake("packages/torch.py", "raise ImportError('no torch here')")
        (self.folder / "temporary").mkdir()
        self.environment = os.environ | dict(
            PATH=f"{self.folder}/bin:{os.environ['PATH']}", PYTHONPATH=f"{self.folder}/packages",
            TMPDIR=f"{self.folder}/temporary", FLATGPT_PYTORCH_VENV=f"{self.folder}/venv",
            FOLDER=str(self.folder), CUDA_HOME=str(self.folder),
        )  # fmt: skip

    def benchmark(self, name, rows):
        (self.build / f"bench_{name}cu.json").write_text(json.dumps({"benchmarks": rows}))

    def with_pytorch_on_an_h200(self):
        self.fake("venv/bin/python", PYTORCH)
        self.fake("bin/nvidia-smi", SMI.format(H200))
        self.fake("bin/compute-sanitizer", PROGRAM.replace("racecheck*layernorm*", "nothing"))
        self.benchmark("layernorm", ROWS["layernorm"][:1])

    def command(self, *arguments):
        check = [ROOT / "scripts" / "gpu_check.sh", self.out, "--build", self.build, "--data", "shards_*.bin"]
        return [str(word) for word in (*check, *arguments)]

    def check(self, *arguments):
        command = self.command(*arguments)
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=300)

    def start(self, *arguments):
        process = subprocess.Popen(self.command(*arguments), stdout=subprocess.DEVNULL, env=self.environment)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def report(self):
        text = (self.out / "report.json").read_text()
        return json.loads(text, parse_constant=lambda name: self.fail(f"{name} is no JSON"))

    def status(self):
        return {name: part["status"] for name, part in self.report()["parts"].items()}

    def unit(self, part, name):
        return self.report()["parts"][part]["units"][name]

    def criterion(self, beginning):
        (found,) = [c for c in self.report()["criteria"] if c["criterion"].startswith(beginning)]
        return found["met"], found["found"]

    def calls(self):
        return (self.folder / "calls").read_text().splitlines()

    def wait_for(self, condition):
        end = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), end, "waited in vain")
            time.sleep(0.05)

    def sleeping_test(self):
        """A test that comes after the others and does not end."""
        self.fake("build/test_zcu", '#!/bin/sh\nsleep 1000 &\necho $! >"$FOLDER/sleeper"\nwait\n')
        (self.folder / "sleeper").unlink(missing_ok=True)

    def sleeps(self):
        return (self.folder / "sleeper").exists() and (self.folder / "sleeper").read_text().endswith("\n")

    def sleeper_is_dead(self):
        try:
            process = int((self.folder / "sleeper").read_text())
            return "\tZ" in pathlib.Path(f"/proc/{process}/status").read_text()
        except OSError:
            return True

    def test_everything_is_run_in_its_order_and_judged(self):
        self.with_pytorch_on_an_h200()
        result = self.check()
        self.assertEqual(self.status(), dict.fromkeys(PARTS, "passed"), result.stdout)
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        met = {c["criterion"]: c["met"] for c in self.report()["criteria"]}
        self.assertEqual(len(met), 12)
        # 32,768 tokens in 766 ms are too few.
        self.assertEqual([name for name in met if not met[name]], ["1558M: 55,000 tokens/s"], met)
        order = ["train 64", "test_gemmcu", "bench_layernormcu", "train 32", "memcheck test_gemmcu"]
        order += [f"test_trainingcu {piece}" for piece in range(4)]
        calls = self.calls()
        self.assertEqual(sorted(order, key=calls.index), order)
        # The sides take turns: each micro-batch once, then the fastest of each side twice.
        ours, theirs = "train", "compare_pytorch pytorch"
        trials = [f"{ours} 64", f"{theirs} 64", f"{ours} 128", f"{theirs} 128"]
        self.assertEqual(calls[:8], [*trials, f"{theirs} 64", f"{ours} 64", f"{ours} 64", f"{theirs} 64"])
        nanochat = [f"{ours} {size} nanochat muon" for size in (64, 128)]
        sizes = ("pytorch 64", "pytorch 128", "ours 64", "pytorch 32")  # the last two are those of the losses
        nanochat += [f"compare_pytorch {size} nanochat:d12 muon" for size in sizes]
        self.assertEqual({call for call in calls if "nanochat" in call}, set(nanochat))
        # PyTorch cannot train with its larger micro-batch of 1558M.
        keys = ("model", "side", "batch_size", "slices")
        rows = [" ".join(str(row[key]) for key in keys) for row in self.report()["training"]]
        sides = [f"{model} {side} 64 3" for model in ("124M", "nanochat") for side in ("ours", "pytorch")]
        self.assertEqual(rows, [*sides, "1558M ours 16 3", "1558M pytorch 8 3"])
        names = ["log.txt", "matmul_algorithms.json", "report.json", "report.md"]
        self.assertEqual(sorted(path.name for path in self.out.iterdir()), names)
        self.assertEqual(list((self.folder / "temporary").iterdir()), [])
        self.assertIn("tests/test_gemmcu: passed\n$ ", (self.out / "log.txt").read_text())
        # All timed training used this one file.
        timed = (self.out / "matmul_algorithms.json").read_text().split()
        self.assertLessEqual({"16", "32", "64", "128"}, set(timed))

    def test_what_is_missing_is_named_and_nothing_is_judged_by_another_gpus_targets(self):
        result = self.check()
        lacking = {f"speed-{model}": "unfinished" for model in gpu_report.MODELS} | {"sanitizer": "failed"}
        lacking |= {f"curve-{name}": "not run" for name in gpu_report.CURVES}
        self.assertEqual(self.status(), dict.fromkeys(PARTS, "passed") | lacking, result.stdout)
        report, page = self.report(), (self.out / "report.md").read_text()
        for name in ("speed-124M", "curve-fp32"):
            self.assertIn("PyTorch or numpy is not installed", report["parts"][name]["reason"])
        self.assertIn("| curve-fp32/ours | missing |  | PyTorch or numpy is not installed;", page)
        several = "test_data_parallelcu, several processes"
        self.assertIn(f"| tests/{several} | missing |  | this machine has one GPU", page)
        # 524,288 tokens in 814 ms.
        why = "not judged: the target is an H200's, and this is NVIDIA H100 80GB HBM3"
        self.assertEqual(self.criterion("124M: 560,000"), (None, f"644,088 tokens/s ({why})"))
        self.assertEqual(self.criterion("kernels bound by memory"), (False, "below: layernorm_backward 84%"))
        self.assertEqual(self.criterion("our own attention"), (True, "forward 60%"))
        self.assertEqual(self.criterion("compute-sanitizer"), (False, "3 of 4 passed"))
        why = "racecheck summary: 1 hazard displayed"
        self.assertEqual(self.unit("sanitizer", "racecheck test_layernormcu")["reason"], why)
        kernel = dict(name="layernorm_forward", shape="N 65536, C 768", dtype="bf16", ms=0.1)
        self.assertLessEqual(kernel.items(), report["kernels"][0].items())

    def test_a_part_that_fails_is_reported_and_does_not_stop_the_others(self):
        self.fake("build/train_gpt2cu", TRAIN + 'truncate -s -5 "$out/metrics.jsonl"\n')
        self.fake("build/test_gemmcu", FAILED)
        self.fake("build/test_attentioncu", "#!/bin/sh\nkill -SEGV $$\n")
        self.fake("build/test_gelucu", "#!/bin/sh\necho 'libzstd.so.1: cannot open'\nexit 127\n")
        self.fake("build/test_mmacu", "#!/bin/sh\necho 'usage: test'\n")
        self.fake("build/test_randomcu", PROGRAM)
        (self.build / "test_randomcu").chmod(0o644)
        (self.build / "bench_gelucu").unlink()
        (self.build / "bench_adamwcu.json").write_text('{"benchm')
        self.benchmark("encoder", [])
        self.fake("bin/compute-sanitizer", "#!/bin/sh\n")
        result = self.check("--parts", "speed-124M,tests,deterministic,kernels,sanitizer")
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        page, cut_off = (self.out / "report.md").read_text(), "is not whole: "
        for part, job, why in (
            ("speed-124M", "ours, B 64, slice 1", "ours bf16, B 64 is left out: metrics.jsonl, line 11 of "),
            ("tests", "test_gemmcu", "Gelu.Backward/3"),
            ("tests", "test_attentioncu", "killed by signal 11"),
            ("tests", "test_gelucu", "libzstd.so.1: cannot open"),
            ("tests", "test_mmacu", "it does not say how many tests have run; its last line: usage: test"),
            ("deterministic", "two runs", f"metrics.jsonl, line 10 of 10, {cut_off}"),
            ("kernels", "bench_adamwcu", f"out.json {cut_off}"),
            ("kernels", "bench_encodercu", "it has measured nothing; its last line: "),
            ("sanitizer", "memcheck test_gemmcu", "compute-sanitizer has checked nothing; its last line: "),
        ):
            with self.subTest(part=part, job=job):
                found = self.unit(part, job)
                self.assertEqual((found["status"], found["reason"][: len(why)]), ("failed", why))
                self.assertRegex(page, rf"\| {part}/{job} \| failed \| [\d.]+ \| {re.escape(why)}")
        self.assertIn(f"| tests/test_randomcu | missing |  | {self.build}/test_randomcu is not exe", page)
        self.assertIn(f"| kernels/bench_gelucu | missing |  | {self.build}/bench_gelucu is not built", page)
        self.assertEqual((self.status()["speed-124M"], self.status()["tests"]), ("failed", "failed"))
        self.assertEqual(self.unit("tests", "test_layernormcu")["status"], "passed")
        self.assertEqual(len(self.report()["kernels"]), 28)
        for beginning in ("every test passes", "--deterministic"):
            self.assertFalse(self.criterion(beginning)[0])

    def test_two_runs_that_differ_are_not_deterministic(self):
        (self.folder / "differ").touch()
        self.check("--parts", "deterministic")
        why = "the losses are the same and the checkpoints differ"
        self.assertEqual(self.unit("deterministic", "two runs")["reason"], why)
        self.assertEqual(self.criterion("--deterministic"), (False, "0 of 1 passed"))

    def test_a_wrong_path_is_one_line_of_every_part(self):
        parts = "speed-124M,tests,deterministic,kernels,ladder,long-tests"
        self.build = self.folder / "nowhere"
        self.assertEqual(self.check("--parts", parts).returncode, 1)
        for name in parts.split(","):
            self.assertEqual(self.status()[name], "not run", name)
            self.assertRegex(self.report()["parts"][name]["reason"], r"^\S*nowhere/\S+ is not built", name)

    def test_several_gpus_run_the_tests_of_several_processes(self):
        self.fake("bin/nvidia-smi", SMI.format(f"{H100}\n{H100}"))
        self.check("--parts", "tests")
        self.assertEqual(self.unit("tests", "test_communicatorcu, processes: 1")["status"], "passed")
        self.assertEqual(self.unit("tests", "test_data_parallelcu, processes: 2")["status"], "passed")
        ranks = sorted(call for call in self.calls() if "parallel" in call)
        self.assertEqual(ranks, ["test_data_parallelcu rank 0", "test_data_parallelcu rank 1"])
        self.fake("build/test_data_parallelcu", "#!/bin/sh\nexit $RANK\n")
        self.check("--parts", "tests")
        self.assertEqual(self.unit("tests", "test_data_parallelcu, processes: 2")["status"], "failed")

    def test_the_time_limit_ends_what_runs_and_leaves_the_rest_to_the_next_call(self):
        self.check("--parts", "tests")
        self.sleeping_test()
        start = time.monotonic()
        result = self.check("--time-limit", 10, "--parts", "tests,kernels")
        self.assertEqual(result.returncode, 1)
        self.assertLess(time.monotonic() - start, 30)
        self.assertRegex(result.stdout, r"\ntests +unfinished +1 of 4 are left\n")
        # None was begun only to be ended.
        self.assertRegex(result.stdout, r"\nkernels +not run +10 of 10 are left\n")
        self.assertIsNone(self.criterion("every test passes")[0])  # nothing failed
        self.assertTrue(self.sleeper_is_dead(), "a program outlived the check")
        self.assertIn("the same command goes on with what is left", result.stdout)

    def test_nothing_is_begun_that_would_not_end_in_time(self):
        check = gpu_check.Check.__new__(gpu_check.Check)
        check.rehearsal, check.options = False, argparse.Namespace(time_limit=540)
        # The last job takes longer than a call.
        for seconds, left, fits in ((100, 101, True), (100, 99, False), (600, 410, True), (600, 400, False)):
            check.left = lambda left=left: left
            self.assertEqual(check.fits(gpu_check.Job("", seconds=seconds)), fits, (seconds, left))

    def test_stopped_by_a_signal_it_leaves_a_whole_report_and_no_program(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            with self.subTest(signal=number.name):
                self.out, killed = self.folder / number.name, number == signal.SIGKILL
                self.sleeping_test()
                process = self.start("--parts", "tests")
                self.wait_for(self.sleeps)
                process.send_signal(number)
                self.assertEqual(process.wait(60), -9 if killed else 1)
                self.wait_for(self.sleeper_is_dead)
                self.wait_for(lambda: not list((self.folder / "temporary").iterdir()))
                self.assertEqual(self.report()["stopped"], None if killed else number.name)
                part = self.report()["parts"]["tests"]
                why = "the check was killed" if killed else "1 of 4 are left"
                self.assertEqual((part["status"], part["reason"]), ("unfinished", why))
                self.assertEqual(part["units"]["test_gemmcu"]["status"], "passed")

    def test_it_goes_on_after_a_kill_at_any_moment(self):
        seed = int.from_bytes(os.urandom(4), "little")
        moments, kills = random.Random(seed), 0
        self.with_pytorch_on_an_h200()
        self.environment["PACE"] = "0.05"
        passed = {}
        while kills < 12 or len(passed) < 4:  # on a busy machine few jobs pass between two kills
            process = self.start()
            try:
                process.wait(moments.uniform(0.3, 3 + kills / 4))
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
            if not (self.out / "report.json").exists():
                continue
            now = self.passed()
            self.assertEqual({name: now.get(name) for name in passed}, passed, (seed, "was run again"))
            passed = now
            # The next call is made on another machine, which has only these files.
            elsewhere = self.folder / f"out-{kills}"
            shutil.copytree(self.out, elsewhere)
            self.out = elsewhere
        result = self.check()
        self.assertEqual(self.status(), dict.fromkeys(PARTS, "passed"), (seed, result.stdout))
        self.assertLessEqual(passed.items(), self.passed().items(), (seed, "was run again"))

    def passed(self):
        """The jobs that passed, with their records as text; seconds tell one run of a job from another."""
        return {(part, name): json.dumps(unit) for part, described in self.report()["parts"].items()
                for name, unit in described["units"].items() if unit["status"] == "passed"}  # fmt: skip

    def test_what_failed_is_tried_again_last_and_what_passed_is_kept(self):
        self.fake("build/test_gemmcu", FAILED)
        self.check("--parts", "tests,kernels")
        (self.folder / "calls").unlink()
        self.check("--parts", "tests,kernels,deterministic", "--continue")
        self.assertEqual(self.calls(), ["train 16", "train 16", "test_gemmcu"])
        expected = {"tests": "failed", "deterministic": "passed", "kernels": "passed"}
        self.assertLessEqual(expected.items(), self.status().items())

    def test_what_other_programs_found_is_not_kept(self):
        self.check("--parts", "tests,kernels,speed-124M")
        self.fake("build/bench_gelucu", PROGRAM + "# built anew\n")
        self.fake("build/train_gpt2cu", TRAIN + "# built anew\n")
        (self.build / "test_gemmcu").unlink()
        (self.folder / "calls").unlink()
        result = self.check("--parts", "tests")
        for name in ("kernels/bench_gelucu", "speed-124M/ours, B 64, slice 1"):
            self.assertIn(f"{name}: its program has changed; its result is dropped\n", result.stdout)
        self.assertFalse((self.folder / "calls").exists())
        self.assertEqual(self.report()["training"], [])
        self.assertEqual(len(self.report()["kernels"]), 30)
        self.assertNotIn("test_gemmcu", self.report()["parts"]["tests"]["units"])

    def test_a_report_of_another_gpu_or_one_that_was_cut_off_is_left_alone(self):
        self.check("--parts", "deterministic")
        report = self.out / "report.json"
        self.fake("bin/nvidia-smi", SMI.format(H200))
        expected = "report is of NVIDIA H100 80GB HBM3, and this is NVIDIA H200; expected another OUTDIR"
        whole = report.read_text()
        for text, error in ((whole, expected), (whole[:100], "report.json is not whole: ")):
            report.write_text(text)
            self.assert_one_line(self.check("--parts", "deterministic"), error, code=1)
            self.assertEqual(report.read_text(), text)

    def test_wrong_use_is_one_line(self):
        nothing = "nvidia-smi lists no GPU; --device software rehearses the check without one"
        for arguments, error in (
            (["--parts", "tests,nonsense"], "no part is called nonsense"),
            (["--slices", "0"], "--slices 0; expected 1 or more"),
            (["--micro-batch", "0"], "--micro-batch 0; expected 1 or more"),
            (["--time-limit", "0"], "--time-limit 0; expected a positive number of seconds"),
            (["--llmc", "/nowhere"], "--llmc /nowhere; expected a GPU, and llm.c built"),
            ([], nothing),
        ):
            if not arguments:
                self.fake("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
            self.assert_one_line(self.check(*arguments), error)
        self.assertFalse(self.out.exists())


class Verdicts(unittest.TestCase):
    """The criteria at their edges, from given findings."""

    def judge(self, part, units, gpu="NVIDIA H200", status="passed"):
        parts = {name: dict(title=name, status="not run", reason="", units={}, missing={}) for name in PARTS}
        units = {str(number): dict(status="passed", seconds=1) | unit for number, unit in enumerate(units)}
        parts[part] |= dict(status=status, units=units)
        report = dict(device="cuda", gpu=gpu, date="", machines=[], stopped=None, parts=parts)
        gpu_report.summarize(report)
        self.report = report
        return {c["criterion"]: c["met"] for c in report["criteria"] if c["met"] is not None}

    def slice(self, side, ms, size, total=524288):
        return dict(side=side, ms=ms, batch_size=size, peak_bytes=size << 30, total_batch=total)

    def test_speeds(self):
        rate, ratio = "124M: 560,000 tokens/s", "124M: 1.25 x PyTorch with torch.compile"
        slow, fast = 524288 / 559.9, 524288 / 560.1
        self.assertEqual(self.judge("speed-124M", [self.slice("ours", [fast], 64)]), {rate: True})
        self.assertEqual(self.judge("speed-124M", [self.slice("ours", [slow], 64)]), {rate: False})
        self.assertEqual(self.judge("speed-124M", [self.slice("ours", [fast], 64)], "NVIDIA H100"), {})
        for theirs, met in ((1125.1, True), (1124.9, False)):
            both = [self.slice("ours", [900], 64), self.slice("pytorch", [theirs], 32)]
            self.assertEqual(self.judge("speed-124M", both), {rate: True, ratio: met})
        for ms, met in ((32768 / 55.1, True), (32768 / 54.9, False)):
            small = [self.slice("ours", [ms], 16, 32768)]
            self.assertEqual(self.judge("speed-1558M", small), {"1558M: 55,000 tokens/s": met})

        for theirs, met in ((1080.1, True), (1079.9, False)):
            both = [self.slice("ours", [900], 64), self.slice("pytorch", [theirs], 64)]
            ratio = "nanochat: 1.2 x PyTorch with torch.compile"
            self.assertEqual(self.judge("speed-nanochat", both), {ratio: met})

    def test_the_best_micro_batch_of_each_side_counts_by_its_median(self):
        given = [("ours", [900, 940], 64), ("ours", [1.0, 5000.0, 6000.0], 32), ("ours", [920], 64)]
        given += [("pytorch", [1300], 32), ("pytorch", [1170, 1170, 1180], 16), ("llmc", [1310], 64)]
        self.judge("speed-124M", [self.slice(*slice) for slice in given])
        training = self.report["training"]
        rows = [(row["side"], row["batch_size"], round(row["tokens_per_second"])) for row in training]
        self.assertEqual(rows, [("llmc", 64, 400220), ("ours", 64, 569878), ("pytorch", 16, 448109)])
        page = gpu_report.markdown(self.report)
        self.assertIn("| 124M | pytorch | 448,109 | 524288 | 16 | 1 | 16.000 | 1.272 |", page)

    def curve(self, dtype, ours, pytorch, length=None):
        steps, tokens, *_ = gpu_report.CURVES[dtype]
        ours, pytorch = (losses + [8.0] * ((length or steps) - len(losses)) for losses in (ours, pytorch))
        units = [dict(side="ours", losses=ours), dict(side="pytorch", losses=pytorch)]
        met = self.judge(f"curve-{dtype}", [unit | dict(total_batch=tokens) for unit in units])
        return list(met.values())

    def test_losses_must_agree_at_every_step_and_in_the_mean(self):
        for dtype, ours, pytorch, met in (
            ("bf16", [11.0, 10.0, 9.0], [11.0, 10.019, 9.0], True),
            ("bf16", [11.0, 10.0, 9.0], [11.0, 10.021, 9.0], False),
            ("bf16", [9.0] * 60, [9.0049] * 60, True),
            ("bf16", [9.0] * 60, [9.0051] * 60, False),
            ("fp32", [11.0, 10.0], [11.0009, 10.0], True),
            ("fp32", [11.0, 10.0], [11.0011, 10.0], False),
            ("fp32", [9.0] * 200, [9.00026] * 200, False),
            ("fp32", [11.0, None], [11.0, 10.0], False),
        ):
            with self.subTest(dtype=dtype, ours=ours[:2], pytorch=pytorch[:2]):
                self.assertEqual(self.curve(dtype, ours, pytorch), [met])
                self.assertIn(f"| {ours[0]:.3f} | {pytorch[0]:.3f} | 1 |", gpu_report.markdown(self.report))
        self.assertEqual(self.curve("bf16", [11.0], [11.0], length=2), [])  # a shorter run proves nothing

    def test_kernels(self):
        kernel = dict(shape="N 1", dtype="bf16", ms=1.0, bound="memory", share_of_peak=0.85)
        memory = "kernels bound by memory reach 85% of a copy's bandwidth"
        good, bad = kernel | dict(name="gelu"), kernel | dict(name="gelu", shape="N 2", share_of_peak=0.849)
        self.assertEqual(self.judge("kernels", [dict(rows=[good])]), {memory: True})
        self.assertEqual(self.judge("kernels", [dict(rows=[good, bad])]), {memory: False})
        self.assertEqual(self.judge("kernels", [dict(rows=[good])], status="unfinished"), {})
        idle = kernel | dict(name="adamw", share_of_peak=11.2)
        self.assertEqual(self.judge("kernels", [dict(rows=[good, idle])]), {memory: False})
        for ms, met in ((1.99, True), (2.01, False)):
            own = kernel | dict(name="attention_backward_kernel", bound="compute", ms=ms)
            theirs = own | dict(name="attention_backward_cudnn", ms=1.0)
            attention = {"our own attention reaches 50% of cuDNN's speed": met}
            self.assertEqual(self.judge("kernels", [dict(rows=[own, theirs])]), attention)

    def test_tests_and_sanitizer_must_be_complete(self):
        self.assertEqual(self.judge("sanitizer", [{}]), {"compute-sanitizer finds nothing": True})
        self.assertEqual(self.judge("sanitizer", [{}], status="unfinished"), {})
        self.assertEqual(self.judge("tests", [{}]), {})  # the long tests have not run
        failed = dict(status="failed", reason="")
        self.assertEqual(self.judge("tests", [{}, failed], status="failed"), {"every test passes": False})

    def test_batches_follow_the_memory(self):
        parts = gpu_check.Parts()
        parts.rehearsal, parts.options = False, types.SimpleNamespace(micro_batch=None)
        for memory, expected in ((141, [[16, 32], [8, 16]]), (80, [[8, 16], [4, 8]]), (24, None)):
            parts.machine = dict(memory_gib=memory)
            self.assertEqual(parts.batch_sizes("1558M"), expected)
        self.assertEqual([job.missing for job in parts.speed("1558M")], ["24 GiB are too few for 1558M"])
        parts.options.micro_batch = 8
        self.assertEqual(parts.batch_sizes("1558M"), ([8], [8]))


@unittest.skipUnless(importlib.util.find_spec("numpy"), "numpy is missing")
class MarkovText(unittest.TestCase):
    def test_pairs_of_the_source_and_the_same_bits_again(self):
        import numpy as np

        source = np.array([5, 7, 5, 9, 5, 7, 8, 8, 50256], dtype="<u2")
        text = markov_text.markov_walks(source, 3 * markov_text.WALKS * 10 - 7, seed=3)
        self.assertEqual(len(text), 3 * markov_text.WALKS * 10 - 7)
        self.assertEqual(text[:8].tolist(), markov_text.markov_walks(source, len(text), seed=3)[:8].tolist())
        walks = [text[k * 30 : k * 30 + 30].tolist() for k in range(markov_text.WALKS - 1)]
        counts = collections.Counter(pair for walk in walks for pair in zip(walk[:-1], walk[1:]))
        pairs = {(5, 7), (7, 5), (5, 9), (9, 5), (7, 8), (8, 8), (8, 50256), (50256, 5)}
        self.assertEqual(set(counts), pairs)
        # 5 stands before 7 twice and before 9 once.
        after_five = counts[5, 7] + counts[5, 9]
        self.assertAlmostEqual(counts[5, 7] / after_five, 2 / 3, delta=4 * (2 / 9 / after_five) ** 0.5)


class SpeedLadder(unittest.TestCase):
    """The arithmetic of its rows; training and the timing of operations are simulated."""

    MS = {"fp32": 400.0, "tf32": 200.0, "bf16": 100.0, "attention by cuDNN": 80.0, "CUDA graphs": 79.0}
    # GELU apart costs 2 ms forward and 3 ms backward in each of 12 layers; 50257 columns cost 1, 2 and 4 ms
    # more than 50304.
    BENCHMARKS = dict(gelu_forward=3.0, gelu_backward=5.0, matmul_forward=10.0, matmul_forward_gelu=11.0)
    BENCHMARKS |= dict(matmul_backward_input=20.0, matmul_backward_input_gelu=22.0)
    BENCHMARKS |= dict(matmul_backward_weight=30.0)
    MORE = {"matmul_forward": 1.0, "matmul_backward_input": 2.0, "matmul_backward_weight": 4.0}

    def times(self, _, name, **dimensions):
        times = {}
        for columns in str(dimensions.get("OC", "")).split(","):
            shape = dimensions | ({"OC": columns} if columns else {})
            for row, ms in self.BENCHMARKS.items():
                if row.startswith(name):
                    more = self.MORE.get(row, 0) if columns == "50257" else 0
                    times[row, *(f"{key}:{value}" for key, value in shape.items())] = ms + more
        return times

    def rows(self, benchmark):
        size = dict(layers=12, channels=768, batch_size=64, seq_len=1024, micro_steps=1)
        trained = {name: ([ms], "") for name, ms in self.MS.items()}
        with mock.patch.multiple(speed_ladder, train=lambda arguments: trained, benchmark=benchmark):
            rows = speed_ladder.ladder(argparse.Namespace(build="", device="cuda", **size))
        return {row["name"]: row for row in rows}

    def test_what_is_not_switched_is_computed_from_operations(self):
        rows = self.rows(self.times)
        expected = {"fp32": 400, "tf32": 200, "bf16": 100 + 7 + 60}
        expected |= {"GELU in the products' epilogues": 100 + 7, "vocabulary 50257 -> 50304": 100}
        expected |= {"attention by cuDNN": 80, "CUDA graphs": 79}
        self.assertEqual([(name, row["ms"]) for name, row in rows.items()], list(expected.items()))
        self.assertAlmostEqual(rows["vocabulary 50257 -> 50304"]["gain"], 1.07)
        self.assertAlmostEqual(rows["CUDA graphs"]["tokens_per_second"], 65536 / 0.079)

    def test_without_benchmarks_their_rows_are_empty_and_say_why(self):
        rows = self.rows(mock.Mock(side_effect=speed_ladder.Absent("bench_matmulcu is not built")))
        self.assertEqual(rows["bf16"]["ms"], 100)
        for name in ("GELU in the products' epilogues", "vocabulary 50257 -> 50304"):
            self.assertEqual((rows[name]["ms"], rows[name]["note"]), (None, "bench_matmulcu is not built"))
        self.assertAlmostEqual(rows["attention by cuDNN"]["gain"], 100 / 80)

    def test_every_row_adds_to_the_ones_above(self):
        on_gpu = speed_ladder.trained_rows("cuda", True)
        rows = {name: (" ".join(options), absent) for name, options, absent in on_gpu}
        self.assertEqual(set(rows), set(self.MS))
        self.assertEqual(rows["fp32"], ("--dtype fp32 --attention kernel --no-graph", ""))
        # The backend is named, because "auto" may select our own kernel.
        self.assertEqual(rows["attention by cuDNN"], ("--dtype bf16 --attention cudnn --no-graph", ""))
        self.assertEqual(rows["CUDA graphs"], ("--dtype bf16 --attention auto", ""))
        on_cpu = [(name, absent) for name, _, absent in speed_ladder.trained_rows("cpu", False)]
        absent = "not on a CPU"
        self.assertEqual(on_cpu, [("fp32", ""), ("tf32", absent), ("bf16", ""), ("attention by oneDNN", ""),
                                  ("CUDA graphs", absent)])  # fmt: skip


class Bundle(FolderTest):
    """scripts/gpu_bundle.sh and its run.sh, in an empty folder, with any programs that need libstdc++."""

    def setUp(self):
        super().setUp()
        self.build = self.folder / "gpu-90a"
        tests = "[====] 1 test from 1 test suite ran."
        self.fake("program.cpp", "#include <iostream>\nint main(int argc, char**) {"
                  f' std::cout << (argc > 1 ? "{tests}" : "runs") << std::endl; }}\n')  # fmt: skip
        self.fake("gpu-90a/CUDA_VERSION", "13.0\n")
        self.compile(self.build / "train_gpt2cu", "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../../lib")
        for name in ("test_gelucu", "bench_gelucu", "tokenize"):
            shutil.copy(self.build / "train_gpt2cu", self.build / name)
        self.fake("site/nvidia/cudnn/lib/libcudnn.so.9", "")
        (self.folder / "home").mkdir(0o500)
        self.bundle = self.folder / "unpacked" / "flatgpt-gpu"
        self.environment = os.environ | dict(
            PATH=f"{self.folder}/bin:{os.environ['PATH']}", HOME=f"{self.folder}/home",
            PYTHONPATH=f"{self.folder}/site",
        )  # fmt: skip
        for name in ("LD_LIBRARY_PATH", "FLATGPT_PYTORCH_VENV", "PYTHONDONTWRITEBYTECODE"):
            self.environment.pop(name, None)

    def compile(self, program, *options):
        subprocess.run(["g++", self.folder / "program.cpp", "-o", program, *options], check=True)

    def run_program(self, *command):
        where = dict(env=self.environment, cwd=self.folder)
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True, **where)
        return result.returncode, result.stdout, result.stderr

    def pack(self):
        code, output, errors = self.run_program(ROOT / "scripts" / "gpu_bundle.sh", self.build, "b.tar.xz")
        self.assertEqual((code, errors), (0, ""))
        self.assertRegex(output, r"b\.tar\.xz, \d+ MB; needs GLIBC_2\.\d+ or newer\n$")
        # This works where xz is not installed.
        self.run_program(sys.executable, "-m", "tarfile", "-e", "b.tar.xz", "unpacked")

    def files(self):
        return {str(path): path.lstat().st_mtime_ns for path in self.bundle.rglob("*")}

    def test_it_runs_where_it_was_unpacked(self):
        self.pack()
        self.fake("bin/nvidia-smi", SMI.format(H100))
        for path in ("VERSION", "CUDA_VERSION", "data/tinyshakespeare.txt", "test/reference/gelu.safetensors",
                     "dev/bench/markov_text.py", "dev/expected_time.py", "trainer/run/nvidia_rates.inc", "lib/libstdc++.so.6"):  # fmt: skip
            self.assertTrue((self.bundle / path).is_file(), path)
        # This is the name that the tests use.
        self.assertTrue((self.bundle / "build" / "gpu-90a" / "train_gpt2cu").is_file())
        libraries = [path.name for path in (self.bundle / "lib").iterdir()]
        self.assertEqual([name for name in libraries if name.startswith(("libc.", "ld-", "libm."))], [])
        # Only our programs are given its libraries.
        run, shown = self.bundle / "run.sh", "echo $FLATGPT_ROOT $FLATGPT_DATA ${LD_LIBRARY_PATH:-none}"
        result = self.run_program(run, "--", "sh", "-c", shown)
        self.assertEqual(result, (0, f"{self.bundle} {self.bundle}/data none\n", ""))
        linked = self.run_program(run, "--", "ldd", self.bundle / "build" / "cuda" / "test_gelucu")[1]
        self.assertRegex(linked, rf"libstdc\+\+\.so\.6 => {self.bundle}/\S*lib/libstdc")
        self.assertEqual(self.run_program(run, "--", self.bundle / "train_gpt2cu")[1], "runs\n")
        # CUDA's libraries, from PyTorch's packages.
        wheel = self.folder / "site" / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
        self.assertEqual(os.readlink(self.bundle / "lib" / "libcudnn.so.9"), str(wheel))
        # The check runs what the bundle has.
        code, output, errors = self.run_program(run, "out", "--parts", "tests")
        self.assertEqual((code, errors), (0, ""), output)
        report = json.loads((self.folder / "out" / "report.json").read_text())
        self.assertEqual(report["parts"]["tests"]["units"]["test_gelucu"]["status"], "passed")
        self.assertEqual(report["machines"][0]["version"], (self.bundle / "VERSION").read_text().strip())

    def test_a_machine_that_cannot_run_it_is_told_why_before_anything_is_written(self):
        self.pack()
        before = self.files()
        self.fake("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        run = self.bundle / "run.sh"
        self.assertEqual(self.run_program(run, "out"), (2, "", "run.sh: nvidia-smi lists no GPU\n"))
        code, output, errors = self.run_program(self.bundle / "scripts" / "gpu_check.sh", "out")
        self.assertEqual((code, output, errors.count("\n")), (2, "", 1))
        code, output, errors = self.run_program(run, "--help")
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("--time-limit", output)
        self.fake("bin/nvidia-smi", "#!/bin/sh\necho 'Driver Version: 550.54  CUDA Version: 12.4'\n")
        expected = "run.sh: NVIDIA's driver runs programs of CUDA 12.4 and older, not of CUDA 13.0; "
        expected += "update the driver, or use CUDA 12\n"
        self.assertEqual(self.run_program(run, "out"), (2, "", expected))
        self.assertEqual(self.files(), before)

    def test_programs_that_would_not_find_its_libraries_are_refused(self):
        self.compile(self.build / "train_gpt2cu")
        code, _, errors = self.run_program(ROOT / "scripts" / "gpu_bundle.sh", self.build, "c.tar.xz")
        self.assertEqual((code, errors.count("\n")), (1, 1))
        self.assertIn("would not look for libraries in the bundle", errors)


if __name__ == "__main__":
    unittest.main()
