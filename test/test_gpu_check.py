#!/usr/bin/env python3
"""scripts/gpu_check.sh: order, limits, faults and the report; what scripts/gpu_bundle.sh packs. The GPU, our programs, compute-sanitizer and PyTorch's absence are stand-ins."""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "dev" / "bench"))
import gpu_check  # noqa: E402
import speed_ladder  # noqa: E402

SMI = """#!/bin/sh
case "$*" in
    -L) echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)' ;;
    *memory.used*) echo 1000 ;;
    *) echo 'NVIDIA H100 80GB HBM3, 580.10, 81920, 9.0, 700.00, 1980' ;;
esac
"""
# Steps with a falling loss, and a checkpoint of one file.
TRAIN = """#!/bin/sh
case "$*" in *--help*) echo '  --no-graph'; exit ;; esac
while [ $# -gt 0 ]; do
    case $1 in --out) out=$2 ;; --steps) steps=$2 ;; esac
    shift
done
echo train >>"$FOLDER/calls"
mkdir -p "$out/checkpoints/step_1"
echo weights $(cat "$FOLDER/different" 2>/dev/null) >"$out/checkpoints/step_1/model.safetensors"
[ ! -e "$FOLDER/differ" ] || date +%N >"$FOLDER/different"
i=1
while [ $i -le "$steps" ]; do
    echo "{\\"kind\\":\\"train\\",\\"step\\":$i,\\"loss\\":$((11 - i / 10)).5,\\"grad_norm\\":1.5,\\"step_ms\\":1000}"
    i=$((i + 1))
done >"$out/metrics.jsonl"
"""
PASSED = """#!/bin/sh
echo "$(basename "$0")" >>"$FOLDER/calls"
echo '[==========] 7 tests from 2 test suites ran. (3 ms total)'
echo '[  PASSED  ] 7 tests.'
"""
FAILED = """#!/bin/sh
echo '[==========] 7 tests from 2 test suites ran. (3 ms total)'
echo '[  FAILED  ] 1 test, listed below:'
echo '[  FAILED  ] Gelu.Backward/3, where GetParam() = 4'
exit 1
"""
SANITIZER = """#!/bin/sh
for word in "$@"; do
    case $word in */test_*) echo "$2 $(basename "$word")" >>"$FOLDER/calls" ;; esac
done
case "$*" in *racecheck*test_layernormcu*) echo '========= ERROR SUMMARY: 1 error'; exit 86 ;; esac
"""
BENCH = """#!/bin/sh
echo "$(basename "$0")" >>"$FOLDER/calls"
while [ $# -gt 0 ]; do
    case $1 in --json) cp "$0.json" "$2" ;; esac
    shift
done
"""


def bench_row(name, shape, us, **rates):
    return dict(name=f"{name}/bf16/{shape}/iterations:30/manual_time", real_time=us, time_unit="us") | rates


ROWS = {
    "layernorm": [bench_row("layernorm_forward", "N:65536/C:768", 100, **{"GB/s": 2000, "%bandwidth": 90}),
                  bench_row("layernorm_backward", "N:65536/C:768", 200, **{"GB/s": 1500, "%bandwidth": 70})],
    "attention": [bench_row("attention_forward_kernel", "B:64/T:1024", 3000, **{"GB/s": 10, "%bandwidth": 1, "GFLOP/s": 100000, "%compute": 20}),
                  bench_row("attention_forward_cudnn", "B:64/T:1024", 1800, **{"GB/s": 20, "%bandwidth": 2, "GFLOP/s": 200000, "%compute": 40})],
    "matmul": [bench_row("matmul_forward", "N:65536/C:768/OC:768", 500, **{"GB/s": 100, "%bandwidth": 5, "GFLOP/s": 600000, "%compute": 80})],
}  # fmt: skip


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.build, self.out = self.folder / "build", self.folder / "out"
        for name in ("bin", "build", "packages"):
            (self.folder / name).mkdir()
        self.fake("bin/nvidia-smi", SMI)
        self.fake("bin/compute-sanitizer", SANITIZER)
        self.fake("bin/train", TRAIN)
        for name in ("layernorm", "gemm", "training", "data_parallel"):
            self.fake(f"build/test_{name}cu", PASSED)
        for name in gpu_check.BENCHMARKS:
            self.fake(f"build/bench_{name}cu", BENCH)
            (self.build / f"bench_{name}cu.json").write_text(json.dumps({"benchmarks": ROWS.get(name, [])}))
        (self.folder / "packages" / "torch.py").write_text("raise ImportError('no torch here')")
        self.environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "FOLDER": str(self.folder), "TRAIN_PROGRAM": f"{self.folder}/bin/train",
                            "PYTHONPATH": str(self.folder / "packages")}  # fmt: skip
        self.environment.pop("FLATGPT_PYTORCH_VENV", None)
        self.command = [ROOT / "scripts" / "gpu_check.sh", self.out, "--build", self.build, "--data", self.folder / "shards_*.bin"]

    def fake(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def check(self, *arguments):
        command = [str(part) for part in (*self.command, *arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=300)

    def start(self, *arguments):
        command = [str(part) for part in (*self.command, *arguments)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self.environment)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def report(self):
        return json.loads((self.out / "report.json").read_text(), parse_constant=lambda name: self.fail(f"{name} is no JSON"))

    def status(self):
        return {name: part["status"] for name, part in self.report()["parts"].items()}

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
        self.fake(f"build/{name}", '#!/bin/sh\necho $$ >"$FOLDER/sleeper"\nsleep 1000\n')

    def assert_sleeper_is_dead(self):
        pid = int((self.folder / "sleeper").read_text())
        status = pathlib.Path(f"/proc/{pid}/status")
        self.assertTrue(not status.exists() or "\tZ" in status.read_text(), "a program outlived the check")

    def test_every_part_runs_in_its_order_and_is_reported(self):
        result = self.check()
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        report = self.report()
        self.assertEqual(list(report["parts"]), list(gpu_check.Check.PARTS))
        expected = dict.fromkeys(gpu_check.Check.PARTS, "passed")
        # Without PyTorch, and with a race.
        expected |= {"speed-124M": "failed", "speed-1558M": "failed", "curve-fp32": "not run", "curve-bf16": "not run", "sanitizer": "failed"}
        self.assertEqual(self.status(), expected, json.dumps(report["parts"], indent=1))
        for name in ("speed-124M", "curve-fp32"):
            self.assertIn("PyTorch is not installed", report["parts"][name]["reason"])
        self.assertIn("PyTorch is not installed", (self.out / "report.md").read_text())
        self.assertEqual(report["gpu"], "NVIDIA H100 80GB HBM3")

        first = [self.calls().index(name) for name in ("test_gemmcu", "train", "bench_layernormcu", "memcheck test_gemmcu", "test_trainingcu")]
        self.assertEqual(first, sorted(first))
        self.assertNotIn("test_data_parallelcu", self.calls())  # it needs several processes
        self.assertNotIn("memcheck test_trainingcu", self.calls())

        # 524,288 tokens in a second; 32,768 in a second.
        fields = {"model", "dtype", "batch_size", "seq_len", "tokens_per_second", "pytorch_tokens_per_second", "llmc_tokens_per_second", "peak_memory_bytes"}
        speeds = {}
        for entry in report["training"]:
            self.assertLessEqual(fields, set(entry))
            speeds[entry["model"]] = (entry["tokens_per_second"], entry["pytorch_tokens_per_second"], entry["seq_len"])
        self.assertEqual(speeds, {"124M": (524288, None, 1024), "1558M": (32768, None, 1024)})
        self.assertEqual(report["training"][0]["batch_size"], 64)
        kernels = {kernel["name"]: kernel for kernel in report["kernels"]}
        self.assertLessEqual({"name", "shape", "ms", "share_of_peak"}, set(kernels["layernorm_forward"]))
        self.assertEqual((kernels["layernorm_forward"]["shape"], kernels["layernorm_forward"]["ms"]), ("N:65536/C:768", 0.1))
        self.assertEqual((kernels["matmul_forward"]["share_of_peak"], kernels["layernorm_forward"]["share_of_peak"]), (0.8, 0.9))

        self.assertEqual(self.criterion("every test passes")["met"], True)
        self.assertEqual(self.criterion("compute-sanitizer")["met"], False)
        self.assertEqual(self.criterion("--deterministic")["met"], True)
        self.assertEqual(self.criterion("bf16 losses")["met"], None)
        self.assertEqual(self.criterion("kernels bound by memory"), {"criterion": "kernels bound by memory reach 85% of a copy's bandwidth",
                                                                      "found": "below: layernorm_backward 70%", "met": False})  # fmt: skip
        self.assertEqual((self.criterion("our own attention")["met"], self.criterion("our own attention")["found"]), (True, "forward 60%"))

    def test_a_part_that_fails_does_not_stop_the_others(self):
        self.fake("build/test_gemmcu", FAILED)
        self.fake("build/test_attentioncu", "#!/bin/sh\nkill -SEGV $$\n")
        (self.build / "bench_gelucu").unlink()
        (self.folder / "differ").touch()
        result = self.check("--parts", "tests,deterministic,kernels")
        self.assertEqual(result.returncode, 1)
        report = self.report()
        self.assertEqual(self.status(), {"machine": "passed", "tests": "failed", "deterministic": "failed", "kernels": "failed"})
        self.assertEqual(report["parts"]["tests"]["reason"], "2 of 3 programs: test_attentioncu, test_gemmcu")
        self.assertEqual(report["tests"]["test_attentioncu"]["status"], "killed by signal 11")
        self.assertEqual(report["tests"]["test_gemmcu"]["failed"], ["Gelu.Backward/3"])
        self.assertEqual(report["tests"]["test_layernormcu"]["status"], "passed")
        self.assertIn("the checkpoints differ", report["parts"]["deterministic"]["reason"])
        self.assertIn("bench_gelucu is not built", report["parts"]["kernels"]["reason"])
        self.assertEqual(len(report["kernels"]), 5)
        for beginning in ("every test passes", "--deterministic"):
            self.assertEqual(self.criterion(beginning)["met"], False)
        self.assertIn("test_gemmcu: failed: Gelu.Backward/3", (self.out / "report.md").read_text())

    def test_the_time_limit_ends_what_runs_and_leaves_out_the_rest(self):
        self.sleeping_test("test_zcu")
        start = time.monotonic()
        result = self.check("--time-limit", 5)
        self.assertEqual(result.returncode, 1)
        self.assertLess(time.monotonic() - start, 60)
        report, status = self.report(), self.status()
        self.assertEqual(report["tests"]["test_gemmcu"]["status"], "passed")
        self.assertEqual(report["tests"]["test_zcu"]["status"], "stopped by the check's time limit of 5 s")
        self.assertEqual((status.pop("machine"), status.pop("tests")), ("passed", "failed"))
        self.assertEqual(set(status.values()), {"not run"})
        self.assertEqual(report["parts"]["kernels"]["reason"], "the check's time limit of 5 s")
        self.assertIsNone(self.criterion("every test passes")["met"])  # nothing failed
        self.assert_sleeper_is_dead()

    def test_stopped_by_a_signal_it_leaves_a_whole_report(self):
        self.sleeping_test("test_zcu")
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number.name):
                (self.folder / "sleeper").unlink(missing_ok=True)
                process = self.start("--parts", "kernels,tests")
                self.wait_for(lambda: (self.folder / "sleeper").exists() and (self.folder / "sleeper").read_text())
                self.assertEqual(self.report()["tests"]["test_zcu"]["status"], "running")  # had it been killed outright
                process.send_signal(number)
                _, errors = process.communicate(timeout=60)
                self.assertEqual((process.returncode, errors), (1, ""))
                report = self.report()
                self.assertEqual(report["stopped"], number.name)
                self.assertEqual(report["parts"]["tests"]["status"], "failed")
                self.assertEqual(report["parts"]["kernels"]["status"], "not run")
                self.assertEqual(report["tests"]["test_gemmcu"]["status"], "passed")
                self.assertIsInstance(report["training"], list)
                self.assertIsInstance(report["kernels"], list)
                self.assertIn(f"Stopped by {number.name}", (self.out / "report.md").read_text())
                self.assert_sleeper_is_dead()

    def test_continuing_keeps_what_passed(self):
        self.fake("build/test_gemmcu", FAILED)
        self.check("--parts", "tests,kernels")
        self.fake("build/test_gemmcu", PASSED)
        (self.folder / "calls").unlink()
        result = self.check("--continue", "--parts", "tests,kernels,deterministic")
        self.assertEqual(set(self.status().values()), {"passed"}, result.stdout)
        self.assertEqual(self.calls(), ["test_gemmcu", "test_layernormcu", "train", "train"])
        self.assertEqual(len(self.report()["kernels"]), 5)

    def test_wrong_use_is_one_line(self):
        for arguments, expected in ((["--parts", "tests,nonsense"], "no part is called nonsense"), (["--time-limit", "0"], "--time-limit 0")):
            result = self.check(*arguments)
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
            self.assertIn(expected, result.stderr)
        self.fake("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        result = self.check()
        self.assertEqual((result.returncode, result.stderr), (2, "gpu_check: nvidia-smi lists no GPU; --device cpu tries the check without one; --help shows the usage\n"))
        self.assertFalse(self.out.exists())


class WithPyTorch(unittest.TestCase):
    """What is made of compare_pytorch.py's results, which are given here."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        options = argparse.Namespace(outdir=folder.name, device="cuda", build=folder.name, time_limit=1e9, go_on=False, parts=None, llmc="/llm.c", data="x")
        self.check = gpu_check.Check(options)
        self.check.pytorch = "python3"
        self.check.report["machine"]["memory_gib"] = 80
        self.asked = None

    def give(self, results, problem=None):
        def compare(name, arguments, limit):
            self.asked = arguments
            return dict(options=dict(seq_len=1024, total_batch=768 if "shakespeare" in arguments else 524288), results=results), problem

        self.check.compare = compare

    def speed(self, side, tokens_per_second, batch_size):
        return dict(side=side, tokens_per_second=tokens_per_second, batch_size=batch_size, peak_bytes=batch_size << 30)

    def test_the_best_of_each_side_counts(self):
        self.give({"a": self.speed("ours", 5e5, 64), "b": self.speed("pytorch", 3e5, 32), "c": self.speed("pytorch", 4e5, 16), "d": self.speed("llmc", 4.5e5, 64)})
        self.check.speed("124M", limit=10)
        self.assertIn("/llm.c", self.asked)
        (entry,) = self.check.report["training"]
        self.assertEqual((entry["tokens_per_second"], entry["pytorch_tokens_per_second"], entry["llmc_tokens_per_second"]), (5e5, 4e5, 4.5e5))
        self.assertEqual((entry["batch_size"], entry["pytorch_batch_size"], entry["peak_memory_bytes"]), (64, 16, 64 << 30))
        self.check.save()
        self.assertIn("| 1.25 | 450,000 | 1.11 |", (self.check.folder / "report.md").read_text())

    def test_what_was_measured_counts_though_a_contender_fell_out(self):
        self.give({"a": self.speed("ours", 5e5, 64)}, problem="PyTorch bf16 compiled, B 64 is left out: OutOfMemoryError")
        with self.assertRaisesRegex(gpu_check.Failed, "OutOfMemoryError"):
            self.check.speed("124M", limit=10)
        self.assertEqual(self.check.report["training"][0]["tokens_per_second"], 5e5)

    def curve(self, dtype, ours, pytorch):
        ours, pytorch = (losses + [8.0] * (gpu_check.CURVES[dtype][0] - len(losses)) for losses in (ours, pytorch))
        self.give({"a": dict(side="ours", losses=ours), "b": dict(side="pytorch", losses=pytorch)})
        try:
            self.check.curve(dtype, limit=10)
        except gpu_check.Failed as error:
            return str(error)
        finally:
            self.check.save()
        return ""

    def test_losses_must_agree_at_every_step(self):
        def met(dtype):
            (found,) = [c["met"] for c in self.check.report["criteria"] if c["criterion"].startswith(f"{dtype} losses")]
            return found

        self.assertEqual(self.curve("bf16", [11.0, 10.0, 9.0], [11.0, 10.019, 9.0]), "")
        self.assertTrue(met("bf16"))
        self.assertIn("step 2", self.curve("bf16", [11.0, 10.0, 9.0], [11.0, 10.021, 9.0]))
        self.assertFalse(met("bf16"))
        self.assertEqual(self.curve("fp32", [11.0, 10.0], [11.0009, 10.0]), "")
        self.assertIn("step 1", self.curve("fp32", [11.0, 10.0], [11.0011, 10.0]))
        self.assertFalse(met("fp32"))
        self.assertIn("step 2", self.curve("fp32", [11.0, float("nan")], [11.0, 10.0]))
        self.assertFalse(met("fp32"))
        report = json.loads((self.check.folder / "report.json").read_text(), parse_constant=self.fail)
        self.assertEqual(report["curves"]["fp32"]["ours"][:2], [11.0, None])
        plot = xml.etree.ElementTree.parse(self.check.folder / "loss.svg")
        self.assertEqual(len(list(plot.iter("{http://www.w3.org/2000/svg}polyline"))), 4)
        # A shorter run proves nothing.
        self.check.report["curves"]["bf16"]["ours"] = [11.0, 10.0]
        self.check.report["curves"]["bf16"]["largest_difference"] = 0.0
        self.check.save()
        self.assertIsNone(met("bf16"))

    def test_batches_follow_the_memory(self):
        for memory, expected in ((141, [[16, 32], [8, 16]]), (80, [[8, 16], [4, 8]]), (24, None)):
            self.check.report["machine"]["memory_gib"] = memory
            self.assertEqual(self.check.batch_sizes("1558M"), expected)
        with self.assertRaisesRegex(gpu_check.NotRun, "24 GiB"):
            self.check.speed("1558M", limit=10)


class SpeedLadder(unittest.TestCase):
    """The arithmetic of its rows; what trains and what times operations are stand-ins."""

    MS = {"fp32": 400.0, "tf32": 200.0, "bf16": 100.0, "attention by cuDNN": 80.0, "CUDA graphs": 79.0}
    # GELU apart costs 2 ms forward and 3 ms backward in each of 12 layers; 50257 columns cost 1, 2 and 4 ms more than 50304.
    BENCHMARKS = {"matmul_forward": 10.0, "matmul_forward_gelu": 11.0, "matmul_backward_input": 20.0, "matmul_backward_input_gelu": 22.0, "matmul_backward_weight": 30.0,
                  "gelu_forward": 3.0, "gelu_backward": 5.0}  # fmt: skip

    def setUp(self):
        self.train, self.benchmark = speed_ladder.train, speed_ladder.benchmark
        speed_ladder.train = lambda arguments: {name: (ms, "") for name, ms in self.MS.items()}
        speed_ladder.benchmark = self.times
        self.arguments = argparse.Namespace(build="", device="cuda", layers=12, channels=768, batch_size=64, seq_len=1024, micro_steps=1)

    def tearDown(self):
        speed_ladder.train, speed_ladder.benchmark = self.train, self.benchmark

    def times(self, build, name, device, **dimensions):
        more = {"matmul_forward": 1.0, "matmul_backward_input": 2.0, "matmul_backward_weight": 4.0}
        shapes = [{**dimensions, "OC": size} for size in str(dimensions["OC"]).split(",")] if "OC" in dimensions else [dimensions]
        return {(row, *(f"{key}:{value}" for key, value in shape.items())): ms + (more.get(row, 0) if shape.get("OC") == "50257" else 0)
                for shape in shapes for row, ms in self.BENCHMARKS.items() if row.startswith(name)}  # fmt: skip

    def rows(self):
        return {row["name"]: row for row in speed_ladder.ladder(self.arguments)}

    def test_what_is_not_switched_is_computed_from_operations(self):
        rows = self.rows()
        self.assertEqual(list(rows), ["fp32", "tf32", "bf16", "GELU in the products' epilogues", "vocabulary 50257 -> 50304", "attention by cuDNN", "CUDA graphs"])
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
        self.assertEqual(rows["CUDA graphs"], (["--dtype", "bf16", "--attention", "auto"], ""))
        self.assertEqual(set(rows), set(self.MS))
        on_cpu = {name: absent for name, _, absent in speed_ladder.trained_rows("cpu", False)}
        self.assertEqual(on_cpu, {"fp32": "", "tf32": "not on a CPU", "bf16": "", "attention by oneDNN": "", "CUDA graphs": "not on a CPU"})


class Bundle(unittest.TestCase):
    def test_what_is_packed_runs_where_it_is_unpacked(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "build").mkdir()
            for program in ("train_gpt2cu", "test_gelucu", "bench_gelucu"):
                shutil.copy(shutil.which("ls"), folder / "build" / program)  # any program with a library beside C's
            packed = subprocess.run([ROOT / "scripts" / "gpu_bundle.sh", folder / "build", folder / "b.tar.xz"], capture_output=True, text=True)
            self.assertEqual((packed.returncode, packed.stderr), (0, ""))
            self.assertRegex(packed.stdout, r"b\.tar\.xz, \d+ MB; needs GLIBC_2\.\d+ or newer\n$")
            subprocess.run(["tar", "-C", folder, "-xf", folder / "b.tar.xz"], check=True)
            bundle = folder / "flatgpt-gpu"
            for path in ("run.sh", "VERSION", "data/tinyshakespeare.txt", "test/reference/gelu.safetensors", "dev/bench/gpu_check.py", "scripts/gpu_check.sh"):
                self.assertTrue((bundle / path).is_file(), path)
            self.assertEqual(os.readlink(bundle / "train_gpt2cu"), "build/cuda/train_gpt2cu")
            self.assertEqual([path.name for path in (bundle / "lib").iterdir() if path.name.startswith(("libc.", "ld-", "libm."))], [])
            result = subprocess.run([bundle / "run.sh", "--", "sh", "-c", "echo $FLATGPT_ROOT $FLATGPT_DATA ${LD_LIBRARY_PATH%%:*}"], capture_output=True, text=True)
            self.assertEqual((result.stdout, result.stderr), (f"{bundle} {bundle}/data {bundle}/lib\n", ""))
            result = subprocess.run([bundle / "run.sh", "--help"], capture_output=True, text=True)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn("--time-limit", result.stdout)


if __name__ == "__main__":
    unittest.main()
