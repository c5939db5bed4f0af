#!/usr/bin/env python3
"""What only a GPU can tell, in one command: tests, sanitizers, speed and memory beside PyTorch and llm.c, losses beside PyTorch's; and a report.

    scripts/gpu_check.sh OUTDIR                                 # everything, in about an hour
    scripts/gpu_check.sh OUTDIR --time-limit 540                # as much as fits: what is short and decides most comes first
    scripts/gpu_check.sh OUTDIR --continue                      # the parts that OUTDIR's report lacks
    scripts/gpu_check.sh OUTDIR --llmc ~/llm.c --parts speed-124M,curve-bf16
    scripts/gpu_check.sh OUTDIR --device cpu                    # the CPU's programs at tiny sizes: tries this script, and proves nothing

OUTDIR/report.json, report.md and loss.svg are written anew whenever something was found out, so that they are whole however the check ends; logs/ has
what every program printed. A part that fails does not stop the others. Exit code 0: every part that was asked for ran and every criterion that was
judged is met; 1: not so, or stopped; 2: wrong use.

PyTorch is looked for in $FLATGPT_PYTORCH_VENV, in python3 and in build/pytorch-venv; nothing is installed. Without it only our own speeds are found.
"""
import argparse
import datetime
import hashlib
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from compare_pytorch import ROOT, TEXT, our_program, processor, reason, token_shards  # noqa: E402

BENCHMARKS = ("layernorm", "gelu", "cross_entropy", "encoder", "adamw", "attention", "matmul", "decode")
# Tests of whole programs take minutes, and are no place to look for a kernel's races.
LONG_TESTS = re.compile(r"^test_(\w*_program|training|resume)(cu)?$")
SEVERAL_PROCESSES = re.compile(r"^test_(communicator|data_parallel)(cu)?$")  # make test-gpu runs them, under mpirun
SANITIZED_TESTS = re.compile(
    r"^test_(simt|layernorm|gelu|residual|encoder|cross_entropy|adamw|optimizers|global_norm|column_sum|random|mma|attention|gemm|decode_attention"
    r"|decode_matmul|gpt2)(cu)?$"
)
# Steps, tokens of a step, and how far the losses may be from PyTorch's.
CURVES = {"bf16": (60, 524288, 0.02), "fp32": (200, 768, 1e-3)}
BANDWIDTH_SHARE, ATTENTION_SHARE = 0.85, 0.5
TINY = ["--layers", 2, "--heads", 2, "--channels", 64, "--context", 64, "--vocab", 50257, "--seq-len", 64]  # --device cpu


class Stopped(Exception):
    """A signal ends the check."""


class OutOfTime(Exception):
    """A part's time limit, or the whole check's."""


class Failed(Exception):
    """Why a part failed."""


class NotRun(Exception):
    """Why a part cannot be run here."""


def last_line(log):
    """Of a part's output, the line that says why it ended."""
    lines = log.read_text(errors="replace").splitlines()[1:]  # the first is the command
    left_out = [line.removeprefix("compare_pytorch: ") for line in lines if " is left out: " in line]
    return "; ".join(left_out) or reason("\n".join(lines))


def without_nan(value):
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Check:
    def __init__(self, options):
        self.options, self.folder = options, pathlib.Path(options.outdir).resolve()
        self.cpu, self.suffix = options.device == "cpu", "" if options.device == "cpu" else "cu"
        self.build = pathlib.Path(options.build or ROOT / "build" / ("release" if self.cpu else "cuda")).resolve()
        self.logs = self.folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.deadline = time.monotonic() + options.time_limit
        self.pytorch = None  # the python that has it
        self.signal, self.waiting = None, False
        self.report = dict(date=datetime.date.today().isoformat(), device=options.device, gpu=None, machine={}, stopped=None, parts={}, criteria=[], training=[],
                           kernels=[], curves={}, deterministic=None, tests={}, sanitizer={}, ladder=None)  # fmt: skip
        if options.go_on and (self.folder / "report.json").exists():
            before = json.loads((self.folder / "report.json").read_text())
            if before["device"] != options.device:
                sys.exit(f"gpu_check: {self.folder}'s report is of --device {before['device']}; expected the same, or another OUTDIR")
            self.report |= before | {"stopped": None}

    # -- what every part uses

    def program(self, name):
        """A test or a benchmark of this build. NotRun if it is not there."""
        path = self.build / f"{name}{self.suffix}"
        if not os.access(path, os.X_OK):
            raise NotRun(f"{path} is not built")
        return path

    def run(self, name, command, limit, environment=None):
        """Exit code, negative for a signal. What it prints goes to logs/NAME.log. Nothing it started outlives it."""
        command = [str(part) for part in command]
        left = self.deadline - time.monotonic()
        if left <= 1:
            raise OutOfTime(f"the check's time limit of {self.options.time_limit:g} s")
        with (self.logs / f"{name}.log").open("w") as log:
            print("$", shlex.join(command), file=log, flush=True)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=ROOT,
                                       env=os.environ | (environment or {}))  # fmt: skip
            try:
                self.waiting = True
                self.heed_signal()
                return process.wait(min(limit, left))
            except subprocess.TimeoutExpired:
                raise OutOfTime(f"its time limit of {limit:g} s" if limit < left else f"the check's time limit of {self.options.time_limit:g} s") from None
            finally:
                self.waiting = False
                self.end(process)

    def on_signal(self, number, _):
        """Only what waits for a program is broken off, or a program might be left running, or half a report."""
        self.signal = signal.Signals(number).name
        if self.waiting:
            self.heed_signal()

    def heed_signal(self):
        if self.signal:
            raise Stopped(self.signal)

    @staticmethod
    def end(process):
        """A moment to write what it has, then none."""
        for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, None)):
            if process.poll() is None:
                os.killpg(process.pid, number)
                try:
                    process.wait(patience)
                except subprocess.TimeoutExpired:
                    pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def compare(self, name, arguments, limit):
        """compare_pytorch.py's results, and what went wrong if anything did: cut short, it has written what it had by then."""
        out = self.logs / f"{name}.json"
        out.unlink(missing_ok=True)
        python, environment = self.pytorch or sys.executable, {}
        if self.pytorch:
            prefix = subprocess.run([python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True).stdout.strip()
            environment = {"FLATGPT_PYTORCH_VENV": prefix}
        command = [python, ROOT / "dev" / "bench" / "compare_pytorch.py", "--device", self.options.device, "--data", self.options.data, "--json", out, *arguments]
        if not self.pytorch:
            command.append("--ours-only")
        problem = None
        try:
            if self.run(name, command, limit, environment) != 0:
                problem = last_line(self.logs / f"{name}.log")
        except OutOfTime as error:
            problem = f"stopped by {error}"
        return json.loads(out.read_text()) if out.exists() else {"results": {}}, problem

    def gibibytes(self):
        return self.report["machine"].get("memory_gib") or 0

    # -- the parts, each of which fills its place in the report

    def machine(self):
        machine = self.report["machine"]
        if self.cpu:
            machine["name"] = processor()
        else:
            fields = ("name", "driver_version", "memory.total", "compute_cap", "power.limit", "clocks.max.sm")
            listed = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"], capture_output=True, text=True)
            values = [value.strip() for value in listed.stdout.split("\n")[0].split(",")]
            if listed.returncode != 0 or len(values) != len(fields):
                raise Failed("nvidia-smi lists no GPU")
            machine |= dict(zip(fields, values)) | {"memory_gib": int(values[2]) / 1024}
        self.report["gpu"] = machine["name"]
        version = ROOT / "VERSION"  # of a bundle
        commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        machine["version"] = version.read_text().strip() if version.exists() else commit or None
        machine["pytorch"] = self.find_pytorch()

    def find_pytorch(self):
        """PyTorch's version; sets the python that has it."""
        seen = "torch.cuda.is_available()" if not self.cpu else "True"
        places = [pathlib.Path(os.environ["FLATGPT_PYTORCH_VENV"], "bin", "python")] if "FLATGPT_PYTORCH_VENV" in os.environ else []
        places += [sys.executable, shutil.which("python3"), "/usr/bin/python3", ROOT / "build" / "pytorch-venv" / "bin" / "python"]
        blind = None
        for python in filter(None, places):
            if not os.access(python, os.X_OK):
                continue
            code = f"import torch; print(torch.__version__, {seen})"
            words = subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.split()
            if words[1:] == ["True"]:
                self.pytorch = str(python)
                return words[0]
            blind = blind or (words and f"PyTorch {words[0]} sees no GPU")
        self.report["machine"]["pytorch_missing"] = blind or "PyTorch is not installed; pip install torch, or set FLATGPT_PYTORCH_VENV"
        return None

    def need_pytorch(self):
        if not self.pytorch:
            raise NotRun(self.report["machine"].get("pytorch_missing", "PyTorch is missing"))

    def test_programs(self, wanted):
        programs = sorted(path for path in self.build.glob("test_*") if path.is_file() and os.access(path, os.X_OK) and wanted(path.name))
        if not programs:
            raise NotRun(f"{self.build} has no such tests")
        return programs

    def run_tests(self, programs, limit):
        tests = self.report["tests"]
        for program in programs:
            start, entry = time.monotonic(), dict(status="running")
            tests[program.name] = entry
            self.save()
            try:
                code = self.run(program.name, [program, "--gtest_brief=1"], limit, {"OMP_WAIT_POLICY": "passive"})
                entry["status"] = "passed" if code == 0 else f"killed by signal {-code}" if code < 0 else "failed"
            except OutOfTime as error:
                entry["status"] = f"stopped by {error}"
            text = (self.logs / f"{program.name}.log").read_text(errors="replace")
            entry |= dict(seconds=round(time.monotonic() - start, 1), failed=sorted(set(re.findall(r"\[  FAILED  \] (\S+\.\S+?)(?:,| \(|$)", text, re.M))))
            count = re.search(r"^\[=+\] (\d+) tests? from .* ran", text, re.M)
            entry["tests"] = int(count[1]) if count else None
            self.save()
            if time.monotonic() >= self.deadline:
                raise OutOfTime(f"the check's time limit of {self.options.time_limit:g} s")
        bad = [program.name for program in programs if tests[program.name]["status"] != "passed"]
        if bad:
            raise Failed(f"{len(bad)} of {len(programs)} programs: {', '.join(bad)}")

    def tests(self):
        self.run_tests(self.test_programs(lambda name: not LONG_TESTS.match(name) and not SEVERAL_PROCESSES.match(name)), limit=300)

    def long_tests(self):
        self.run_tests(self.test_programs(LONG_TESTS.match), limit=900)

    def bit_identity(self):
        """Two runs with --deterministic: the same losses, norms and checkpoint."""
        self.report["deterministic"] = None
        shape = [*TINY, "--batch-size", 2, "--total-batch", 256] if self.cpu else ["--model", "d12", "--batch-size", min(16, self.batch_sizes("124M")[0][0]),
                 "--seq-len", 1024, "--total-batch", 65536]  # fmt: skip
        seen = []
        for name in ("deterministic-1", "deterministic-2"):
            out = self.folder / name
            shutil.rmtree(out, ignore_errors=True)
            command = [our_program(self.options.device), *shape, "--train-data", token_shards(self.options.data, 50257), "--dtype", "bf16", "--deterministic",
                       "--steps", 10, "--warmup", 2, "--lr", 6e-4, "--val-every", 0, "--sample-every", 0, "--checkpoint-every", 10, "--out", out]  # fmt: skip
            if self.run(name, command, limit=150) != 0:
                raise Failed(last_line(self.logs / f"{name}.log"))
            steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            files = sorted(out.glob("checkpoints/*/*.safetensors"))
            seen.append(([(step["loss"], step["grad_norm"]) for step in steps if step["kind"] == "train"],
                         [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]))  # fmt: skip
            shutil.rmtree(out)
        if len(seen[0][0]) != 10 or not seen[0][1]:
            raise Failed("the runs have not written 10 steps and a checkpoint")
        first = next((step for step, (a, b) in enumerate(zip(seen[0][0], seen[1][0]), 1) if a != b), None)
        self.report["deterministic"] = dict(identical=seen[0] == seen[1], first_different_step=first)
        if seen[0] != seen[1]:
            raise Failed(f"the losses differ from step {first} on" if first else "the losses are the same and the checkpoints differ")

    def batch_sizes(self, model):
        """Micro-batches to try with so much memory: ours and llm.c's, PyTorch's."""
        memory = self.gibibytes()
        table = {
            "124M": ((120, [64], [64, 128]), (70, [64], [32, 64]), (35, [64], [16, 32]), (20, [16], [8, 16]), (0, [4], [4])),
            "1558M": ((120, [16, 32], [8, 16]), (70, [8, 16], [4, 8]), (45, [4], [2, 4])),
        }[model]
        return next((sizes for least, *sizes in table if memory >= least), None)

    def speed(self, model, limit):
        if self.cpu:
            arguments = [*TINY, "--batch-size", "2,4", "--total-batch", 512, "--steps", 3, "--discard", 1, "--rounds", 1]
        else:
            sizes = self.batch_sizes(model)
            if not sizes:
                raise NotRun(f"{self.gibibytes():.0f} GiB are too few for {model}")
            ours, theirs = (",".join(map(str, tried)) for tried in sizes)
            arguments = ["--preset", model, "--batch-size", ours, "--pytorch-batch-size", theirs, "--rounds", 2]
            if self.options.llmc:
                arguments += ["--llmc", self.options.llmc]
        found, problem = self.compare(f"speed-{model}", [*arguments, "--dtype", "bf16", "--mode", "compile"], limit)
        best = {}
        for result in found["results"].values():
            side = result["side"]
            if result["tokens_per_second"] and result["tokens_per_second"] > best.get(side, {}).get("tokens_per_second", 0):
                best[side] = result
        if best:
            def of(side, key):
                return best.get(side, {}).get(key)

            entry = dict(model=model, dtype="bf16", batch_size=of("ours", "batch_size"), seq_len=found["options"]["seq_len"],
                         tokens_per_second=of("ours", "tokens_per_second"), pytorch_tokens_per_second=of("pytorch", "tokens_per_second"),
                         llmc_tokens_per_second=of("llmc", "tokens_per_second"), peak_memory_bytes=of("ours", "peak_bytes"),
                         total_batch=found["options"]["total_batch"], pytorch_batch_size=of("pytorch", "batch_size"),
                         pytorch_peak_memory_bytes=of("pytorch", "peak_bytes"), llmc_batch_size=of("llmc", "batch_size"),
                         llmc_peak_memory_bytes=of("llmc", "peak_bytes"))  # fmt: skip
            self.report["training"] = [old for old in self.report["training"] if old["model"] != model] + [entry]
        if problem:
            raise Failed(problem)
        if not self.pytorch:
            raise Failed(f"only ours is measured: {self.report['machine'].get('pytorch_missing')}")

    def curve(self, dtype, limit):
        """Losses of ours and PyTorch's from the same weights on the same tokens."""
        self.need_pytorch()
        steps, _, limit_of_loss = CURVES[dtype]
        if dtype == "fp32":
            arguments = ["--preset", "shakespeare", "--data", TEXT, "--loss-steps", 20 if self.cpu else steps, "--mode", "plain"]
        elif self.cpu:
            arguments = [*TINY, "--batch-size", 2, "--total-batch", 256, "--loss-steps", 10, "--lr", 6e-4, "--warmup", 3, "--mode", "plain"]
        else:
            size = self.batch_sizes("124M")[0][0]
            arguments = ["--preset", "124M", "--batch-size", size, "--pytorch-batch-size", min(32, size), "--loss-steps", steps, "--lr", 6e-4, "--warmup", 20,
                         "--mode", "compile"]  # fmt: skip
        self.report["curves"].pop(dtype, None)
        found, problem = self.compare(f"curve-{dtype}", [*arguments, "--dtype", dtype, "--loss-check", "--rounds", 0], limit)
        losses = {result["side"]: result["losses"] for result in found["results"].values() if result.get("losses")}
        if problem or set(losses) != {"ours", "pytorch"}:
            raise Failed(problem or "there is nothing to compare")
        differences = [abs(a - b) for a, b in zip(losses["ours"], losses["pytorch"], strict=True)]
        largest = max(differences, key=lambda value: math.inf if math.isnan(value) else value)
        self.report["curves"][dtype] = losses | dict(tokens_a_step=found["options"]["total_batch"], largest_difference=largest,
                                                     at_step=differences.index(largest) + 1)  # fmt: skip
        if not largest <= limit_of_loss:
            raise Failed(f"the losses differ by {largest:.5f} at step {differences.index(largest) + 1}; expected at most {limit_of_loss}")

    def kernels(self):
        self.report["kernels"], bad = [], []
        for name in BENCHMARKS:
            out = self.logs / f"bench_{name}.json"
            out.unlink(missing_ok=True)
            size = ["--benchmark_min_time=0.01"] if self.cpu else ["--preset", "124M", "--cold"]
            try:
                code = self.run(f"bench_{name}", [self.program(f"bench_{name}"), "--dtype", "bf16", *size, "--json", out], limit=120)
                if code != 0:
                    bad.append(f"bench_{name}: {last_line(self.logs / f'bench_{name}.log')}")
            except NotRun as error:
                bad.append(str(error))
            except OutOfTime as error:
                bad.append(f"bench_{name}: stopped by {error}")
            try:
                rows = json.loads(out.read_text())["benchmarks"]
            except (OSError, ValueError, KeyError):
                rows = []
            for row in rows:
                operation, dtype, *shape = row["name"].removesuffix("/manual_time").split("/")
                shape = [part for part in shape if not part.startswith("iterations:")]
                if row.get("error_occurred"):
                    bad.append(f"{operation}: {row.get('error_message')}")
                    continue
                ms = row["real_time"] * {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1e3}[row["time_unit"]]
                shares = [row[share] / 100 for share in ("%bandwidth", "%compute") if share in row]
                self.report["kernels"].append(dict(name=operation, shape="/".join(shape), dtype=dtype, ms=ms, share_of_peak=max(shares, default=None),
                                                   bound="memory" if "GFLOP/s" not in row else None))  # fmt: skip
            self.save()
        if bad:
            raise Failed("; ".join(bad))

    def sanitizer(self):
        if self.cpu:
            raise NotRun("compute-sanitizer is for GPUs")
        places = [os.environ.get("CUDA_HOME", "") + "/bin", "/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"]
        tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(places))
        if not tool:
            raise NotRun("compute-sanitizer is missing; it comes with the CUDA Toolkit (package cuda-sanitizer)")
        self.report["sanitizer"], bad = {}, []
        for program in self.test_programs(SANITIZED_TESTS.match):
            for check in ("memcheck", "racecheck"):
                name, start = f"{check}-{program.name}", time.monotonic()
                try:
                    # What a test provokes on purpose, such as an allocation that is too large, is not an error of ours.
                    command = [tool, "--tool", check, "--error-exitcode", 86, *(["--report-api-errors", "no"] if check == "memcheck" else []), program]
                    code = self.run(name, [*command, "--gtest_brief=1"], limit=240)
                    status = "clean" if code == 0 else "errors" if code == 86 else f"the test failed (exit code {code})"
                except OutOfTime as error:
                    status = f"stopped by {error}"
                self.report["sanitizer"][name] = dict(status=status, seconds=round(time.monotonic() - start, 1))
                bad += [name] if status != "clean" else []
                self.save()
                if time.monotonic() >= self.deadline:
                    raise OutOfTime(f"the check's time limit of {self.options.time_limit:g} s")
        if bad:
            raise Failed(", ".join(bad))

    def ladder(self):
        out = self.logs / "ladder.json"
        out.unlink(missing_ok=True)
        arguments = ["--tiny"] if self.cpu else ["--batch-size", self.batch_sizes("124M")[0][0]]
        command = [sys.executable, ROOT / "dev" / "bench" / "speed_ladder.py", "--device", self.options.device, "--build", self.build, "--data", self.options.data,
                   "--json", out, *arguments]  # fmt: skip
        code = self.run("ladder", command, limit=600)
        self.report["ladder"] = json.loads(out.read_text())["rows"] if out.exists() else None
        if code != 0:
            raise Failed(last_line(self.logs / "ladder.log"))

    # In this order; the first three decide whether the rest means anything.
    PARTS = {
        "machine": ("the machine", machine),
        "tests": ("tests of kernels, model and libraries, built by nvcc", tests),
        "deterministic": ("--deterministic: two runs, the same bits", bit_identity),
        "speed-124M": ("GPT-2 124M beside PyTorch", lambda self: self.speed("124M", limit=1200)),
        "curve-fp32": ("losses beside PyTorch's, fp32, a small model", lambda self: self.curve("fp32", limit=240)),
        "curve-bf16": ("losses beside PyTorch's, bf16, 124M", lambda self: self.curve("bf16", limit=900)),
        "kernels": ("every operation at the shapes of 124M", kernels),
        "sanitizer": ("compute-sanitizer: memcheck and racecheck", sanitizer),
        "long-tests": ("tests of whole programs", long_tests),
        "speed-1558M": ("GPT-2 1558M beside PyTorch", lambda self: self.speed("1558M", limit=1500)),
        "ladder": ("what made a step faster", ladder),
    }

    def all_parts(self):
        """Runs what was asked for. True if nothing is left to wish for."""
        wanted = self.options.parts or list(self.PARTS)
        before, parts = self.report["parts"], {}
        self.report["parts"] = parts
        for name, (title, _) in self.PARTS.items():
            if name in before and (name not in wanted or before[name]["status"] == "passed"):
                parts[name] = before[name]
            elif name in wanted or name == "machine":
                parts[name] = dict(title=title, status="not run", reason="the check has not come to it")
        try:
            for name in self.PARTS:
                if name == "machine" or (name in wanted and parts[name]["status"] == "not run"):
                    self.one_part(name)
            self.heed_signal()
        except Stopped as error:
            self.report["stopped"] = str(error)
            for part in parts.values():
                if part["status"] == "running":
                    part |= dict(status="failed", reason=f"stopped by {error}")
        self.save()
        judged = [criterion["met"] for criterion in self.report["criteria"] if criterion["met"] is not None]
        return not self.report["stopped"] and all(judged) and all(parts[name]["status"] == "passed" for name in wanted)

    def one_part(self, name):
        self.heed_signal()
        part = self.report["parts"][name] = dict(title=self.PARTS[name][0], status="running")
        start = time.monotonic()
        self.save()
        if name != "machine" and start >= self.deadline - 1:
            part |= dict(status="not run", reason=f"the check's time limit of {self.options.time_limit:g} s")
        else:
            try:
                self.PARTS[name][1](self)
                part["status"] = "passed"
            except NotRun as error:
                part |= dict(status="not run", reason=str(error))
            except (Failed, SystemExit) as error:  # SystemExit: compare_pytorch's functions say so what is missing
                part |= dict(status="failed", reason=str(error))
            except OutOfTime as error:
                part |= dict(status="failed", reason=f"stopped by {error}")
            except (OSError, ValueError, KeyError, TypeError) as error:
                part |= dict(status="failed", reason=f"{type(error).__name__}: {error}")
        part["seconds"] = round(time.monotonic() - start, 1)
        self.save()
        print(f"{name:16}{part['status']:10}{part['seconds']:8.1f} s  {part.get('reason', '')}", flush=True)

    # -- the report

    def save(self):
        self.report["criteria"] = criteria(self.report)
        report = without_nan(self.report)
        for name, text in (("report.json", json.dumps(report, indent=1) + "\n"), ("report.md", markdown(report)), ("loss.svg", loss_plot(report["curves"]))):
            if text:
                new = self.folder / f".{name}"
                new.write_text(text)
                new.replace(self.folder / name)


def criteria(report):
    """What the project promises of a GPU: [{criterion, found, met}], met being None where nothing was found out."""
    parts, found = report["parts"], []

    def judge(criterion, text, met):
        found.append(dict(criterion=criterion, found=text, met=None if report["device"] == "cpu" else met))

    ran = {name: part["status"] for name, part in parts.items()}
    tests = report["tests"].values()
    passed = sum(test["status"] == "passed" for test in tests)
    wrong = any(test["status"].startswith(("failed", "killed")) for test in tests)
    whole = all(ran.get(name) == "passed" for name in ("tests", "long-tests"))
    judge("every test passes", f"{passed} of {len(tests)} programs passed", False if wrong else whole or None)
    runs = report["sanitizer"].values()
    clean = sum(run["status"] == "clean" for run in runs)
    wrong = any(run["status"].startswith(("errors", "the test failed")) for run in runs)
    judge("compute-sanitizer finds nothing", f"{clean} of {len(runs)} runs clean", False if wrong else ran.get("sanitizer") == "passed" or None)
    same = report["deterministic"]
    judge("--deterministic: two runs have the same bits", "" if same is None else "the same" if same["identical"] else "not the same", same and same["identical"])
    for dtype, (steps, tokens, limit) in CURVES.items():
        text, met, curve = "", None, report["curves"].get(dtype)
        if curve:
            largest = math.nan if curve["largest_difference"] is None else curve["largest_difference"]
            text = f"{largest:.6f} at step {curve['at_step']} of {len(curve['ours'])}, {curve['tokens_a_step']:,} tokens each"
            met = largest <= limit if (len(curve["ours"]), curve["tokens_a_step"]) == (steps, tokens) else None
        judge(f"{dtype} losses of {steps} steps at {tokens:,} tokens within {limit} of PyTorch's", text, met)
    memory = [kernel for kernel in report["kernels"] if kernel["bound"] == "memory" and kernel["share_of_peak"] is not None]
    slow = [kernel for kernel in memory if kernel["share_of_peak"] < BANDWIDTH_SHARE]
    listed = ", ".join(f"{kernel['name']} {kernel['share_of_peak']:.0%}" for kernel in sorted(slow, key=lambda kernel: kernel["share_of_peak"]))
    judge(f"kernels bound by memory reach {BANDWIDTH_SHARE:.0%} of a copy's bandwidth", listed and f"below: {listed}" or (f"all {len(memory)}" if memory else ""),
          not slow if memory else None)  # fmt: skip
    ms = {(kernel["name"], kernel["shape"]): kernel["ms"] for kernel in report["kernels"]}
    shares = {(name, shape): ms[name.replace("_kernel", "_cudnn"), shape] / value for (name, shape), value in ms.items()
              if name.startswith("attention_") and name.endswith("_kernel") and (name.replace("_kernel", "_cudnn"), shape) in ms}  # fmt: skip
    judge(f"our own attention reaches {ATTENTION_SHARE:.0%} of cuDNN's speed", ", ".join(f"{name.split('_')[1]} {share:.0%}" for (name, _), share in shares.items()),
          all(share >= ATTENTION_SHARE for share in shares.values()) if shares else None)  # fmt: skip
    return found


def number(value, form=",.0f", scale=1):
    return "" if value is None else f"{value * scale:{form}}"


def markdown(report):
    machine = report["machine"]
    lines = [f"# flatgpt on {report['gpu'] or 'an unknown GPU'}, {report['date']}", ""]
    if report["device"] == "cpu":
        lines += ["Tried on a CPU at tiny sizes: this proves that the check runs, and nothing else.", ""]
    lines += ["; ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.items() if value is not None), ""]
    if report["stopped"]:
        lines += [f"**Stopped by {report['stopped']}**: what follows is what was found out by then.", ""]
    lines += ["| criterion | found | met |", "|---|---|---|"]
    lines += [f"| {c['criterion']} | {c['found']} | {'not judged' if c['met'] is None else 'yes' if c['met'] else '**no**'} |" for c in report["criteria"]]
    if report["training"]:
        lines += ["", "## Training", "", "Tokens per second, in turns in one run; GiB of the GPU's memory; B the micro-batch.", "",
                  "| model | tokens a step | ours | B | GiB | PyTorch | B | GiB | ours / PyTorch | llm.c | ours / llm.c |", "|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
        for t in report["training"]:
            ratios = [t["tokens_per_second"] / t[key] if t["tokens_per_second"] and t[key] else None for key in ("pytorch_tokens_per_second", "llmc_tokens_per_second")]
            lines.append(f"| GPT-2 {t['model']} {t['dtype']} | {t['total_batch']:,} | {number(t['tokens_per_second'])} | {number(t['batch_size'])} | "
                         f"{number(t['peak_memory_bytes'], '.1f', 2**-30)} | {number(t['pytorch_tokens_per_second'])} | {number(t['pytorch_batch_size'])} | "
                         f"{number(t['pytorch_peak_memory_bytes'], '.1f', 2**-30)} | {number(ratios[0], '.2f')} | {number(t['llmc_tokens_per_second'])} | "
                         f"{number(ratios[1], '.2f')} |")  # fmt: skip
    if report["curves"]:
        lines += ["", "## Losses", "", "![losses of ours and PyTorch's on the same tokens](loss.svg)"]
    if report["ladder"]:
        lines += ["", "## What made a step faster", "", "| | ms | tokens/s | gain | |", "|---|---|---|---|---|"]
        lines += [f"| {row['name']} | {number(row['ms'], '.1f')} | {number(row['tokens_per_second'])} | {number(row['gain'], '.2f')} | {row['note']} |" for row in report["ladder"]]
    if report["kernels"]:
        lines += ["", "## Operations", "", "| operation | shape | dtype | ms | share of the peak |", "|---|---|---|---|---|"]
        lines += [f"| {k['name']} | {k['shape'].replace(':', ' ').replace('/', ', ')} | {k['dtype']} | {number(k['ms'], '.3f')} | {number(k['share_of_peak'], '.0%')} |" for k in report["kernels"]]
    failed = {name: test for name, test in report["tests"].items() if test["status"] != "passed"}
    if failed:
        lines += ["", "## Tests that did not pass", ""]
        lines += [f"- {name}: {test['status']}{': ' if test.get('failed') else ''}{', '.join(test.get('failed', []))}" for name, test in failed.items()]
    lines += ["", "## Parts", "", "| part | status | seconds | |", "|---|---|---|---|"]
    lines += [f"| {part['title']} | {part['status']} | {number(part.get('seconds'), '.0f')} | {part.get('reason', '').replace('|', '/')} |" for part in report["parts"].values()]
    return "\n".join(lines) + "\n"


def loss_plot(curves):
    """Both curves of every dtype as SVG, which needs no package."""
    width, height, left, right, top, bottom = 640, 300, 60, 620, 30, 260
    panels = []
    for index, (dtype, curve) in enumerate(sorted(curves.items())):
        values = [value for side in ("ours", "pytorch") for value in curve[side] if value is not None]
        low, high, steps = min(values, default=0), max(values, default=1), len(curve["ours"])

        def point(step, value, low=low, high=high, steps=steps):
            return left + (right - left) * step / max(1, steps - 1), top + (bottom - top) * (high - value) / ((high - low) or 1)

        panels.append(f'<g transform="translate(0 {index * height})">')
        panels.append(f'<text x="{left}" y="18">{dtype}: loss, {curve["tokens_a_step"]:,} tokens a step</text>')
        for value in (low + (high - low) * k / 4 for k in range(5)):
            y = point(0, value)[1]
            panels.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#ddd"/><text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>')
        for side, style in (("pytorch", 'stroke="#c8553d" stroke-width="3" opacity="0.6"'), ("ours", 'stroke="#1f5fa8"')):
            line = " ".join("{:.1f},{:.1f}".format(*point(step, value)) for step, value in enumerate(curve[side]) if value is not None)
            panels.append(f'<polyline points="{line}" fill="none" {style}/>')
        legend = '<tspan fill="#1f5fa8">ours</tspan> <tspan fill="#c8553d">PyTorch</tspan>'
        panels.append(f'<text x="{left}" y="{bottom + 20}">{legend}, steps 1 to {steps}</text></g>')
    if not panels:
        return ""
    size = f'width="{width}" height="{height * len(curves)}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12"><rect {size} fill="white"/>', *panels, "</svg>\n"])


def parse_arguments():
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"gpu_check: {message}; --help shows the usage\n")
    parser.add_argument("outdir", metavar="OUTDIR")
    parser.add_argument("--llmc", metavar="PATH", help="a built llm.c to compare with as well")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", default=math.inf, help="for all parts together")
    parser.add_argument("--parts", type=lambda text: text.split(","), help=f"only these of: {','.join(Check.PARTS)}")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="keep what OUTDIR's report has, and run what has not passed")
    shards = sorted((ROOT / "dev" / "data").glob("*/*_train_*.bin"))
    data = str(shards[0].parent / "*_train_*.bin") if shards else str(ROOT / "data" / "*.txt")
    parser.add_argument("--data", default=data, help="token shards, or texts, a glob (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tries the check itself at tiny sizes")
    parser.add_argument("--build", metavar="DIR", help="of tests and benchmarks (default: build/cuda)")
    options = parser.parse_args()
    unknown = [name for name in options.parts or [] if name not in Check.PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]}; expected some of {','.join(Check.PARTS)}")
    if not options.time_limit > 0:
        parser.error(f"--time-limit {options.time_limit:g}; expected a positive number of seconds")
    if options.device == "cuda" and (not shutil.which("nvidia-smi") or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode != 0):
        parser.error("nvidia-smi lists no GPU; --device cpu tries the check without one")
    options.data = os.path.abspath(options.data)
    options.llmc = options.llmc and os.path.abspath(os.path.expanduser(options.llmc))
    return options


def main():
    check = Check(parse_arguments())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, check.on_signal)
    complete = check.all_parts()
    for criterion in check.report["criteria"]:
        verdict = "not judged" if criterion["met"] is None else "met" if criterion["met"] else "NOT met"
        print(f"{verdict:11}{criterion['criterion']}: {criterion['found']}")
    print(f"{check.folder}/report.md")
    if not check.cpu:
        name = re.sub(r"\W+", "-", check.report["gpu"] or "gpu")
        print(f"worth keeping? mkdir -p dev/bench/results; cp {shlex.quote(str(check.folder / 'report.json'))} dev/bench/results/{name}-{check.report['date']}.json")
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
