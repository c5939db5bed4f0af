#!/usr/bin/env python3
"""Checks what this project promises of a GPU, on a GPU: speed, tests, losses, kernels; writes a report.

    scripts/gpu_check.sh OUTDIR                      # everything, in an hour or two
    scripts/gpu_check.sh OUTDIR --time-limit 540     # what fits into nine minutes, the decisive parts first
    scripts/gpu_check.sh OUTDIR --llmc ~/llm.c --parts speed-124M,curve-bf16
    scripts/gpu_check.sh OUTDIR --device software    # rehearses it over the software GPU, in minutes
    scripts/gpu_check.sh OUTDIR --device cpu         # rehearses it with the CPU's programs

The check is a list of jobs. Each runs one program. OUTDIR/report.json is replaced when a job has ended, so
it is complete however the check ends. The same command goes on, on this machine or another one like it. It
runs the jobs that the report lacks, or whose program has changed, and then those that failed. Another OUTDIR
begins anew. OUTDIR also has report.md, log.txt (the output of every program) and matmul_algorithms.json (the
algorithms timed for our products). A job that fails does not stop the others. Exit code 0: every requested
part is complete and every judged criterion is met; 1: otherwise, or stopped; 2: wrong use.

A rehearsal runs every part at tiny sizes, with the programs of make software-gpu or make. It finds missing
libraries, wrong paths and unreadable files before they cost an hour on a GPU. It judges no criterion.

PyTorch is searched for in $FLATGPT_PYTORCH_VENV, in python3 and in build/pytorch-venv; nothing is installed.
Without it only our own speeds are measured.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import typing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from compare_pytorch import ROOT, TEXT, processor, read_metrics, reason  # noqa: E402
from gpu_report import CURVES, markdown, summarize, units, verdict  # noqa: E402

BENCH = ROOT / "dev" / "bench"
BUILDS = {"cuda": "cuda", "software": "software-gpu", "cpu": "release"}  # --device: its folder in build/
LONGEST_JOB = 520  # seconds after which a job has failed; it fits into a call of nine minutes
LONGEST_LOG = 50_000  # characters of a program's output; of a longer one the end is kept

# GiB that a GPU must have, and then the micro-batches to try: ours and llm.c's, PyTorch's.
BATCH_SIZES = {
    "124M": [(120, [64, 128], [64, 128]), (70, [64], [32, 64]), (35, [64], [16, 32]), (20, [16], [8, 16]),
             (0, [4], [4])],
    "1558M": [(120, [16, 32], [8, 16]), (70, [8, 16], [4, 8]), (45, [4], [2, 4])],
}  # fmt: skip
BATCH_SIZES["nanochat"] = BATCH_SIZES["124M"]
SECONDS_OF_A_SLICE = {"124M": {"ours": 90, "PyTorch": 150}, "1558M": {"ours": 150, "PyTorch": 240}}
SECONDS_OF_A_SLICE["nanochat"] = SECONDS_OF_A_SLICE["124M"]
# The options with which compare_pytorch.py trains each model.
MODELS = {model: ["--preset", model] for model in ("124M", "1558M")}
MODELS["nanochat"] = "--preset 124M --model nanochat:d12 --optimizer muon".split()
BENCHMARKS = ("layernorm", "gelu", "cross_entropy", "encoder", "adamw", "attention", "matmul", "decode",
              "llama", "muon")  # fmt: skip
# Tests of whole programs take minutes and are not run under the sanitizers. Each runs in pieces.
LONG_TESTS, PIECES = re.compile(r"^test_(\w*_program|training|resume)(cu)?$"), 4
SEVERAL_PROCESSES = re.compile(r"^test_(communicator|data_parallel)cu$")
SANITIZED_TESTS = re.compile(
    r"^test_(simt|layernorm|gelu|residual|encoder|cross_entropy|adamw|optimizers|global_norm|column_sum"
    r"|random|mma|attention|gemm|decode_attention|decode_matmul|gpt2)(cu)?$"
)
# For rehearsals: a model that the software GPU trains in a second a step, and the shapes of operations.
TINY = "--layers 2 --heads 2 --channels 32 --context 16 --vocab 256 --seq-len 16 --total-batch 64".split()
SMALL = dict(
    layernorm="--N 8",
    gelu="--N 8 --cold --benchmark_filter=forward",  # the software GPU takes long to empty a GPU's caches
    cross_entropy="--N 4",
    encoder="--B 1 --T 16 --C 64 --V 512",
    adamw="--n 4096",
    attention="--B 1 --T 64 --NH 2",
    matmul="--N 16 --C 64 --OC 128",
    llama="--N 8 --C 192",
    muon="--rows 64 --columns 64",
    decode="--C 64 --OC 256 --NH 2 --benchmark_filter=decode_(matmul/|attention)",  # no int8, no whole models
)
# A rehearsal runs the first test of a program, or the first of these where others take long.
QUICK_TESTS = dict(attention="Attention.*", data_parallel="*OneBit", decoder="*Refuses*", gemm="*/1.*Matches*")
QUICK_LONG_TESTS = "*Prints*:*WrongUse*:*Slurms*:*ADropped*:*Plan*:*NeedsItsScale:*IsRefused"
# Starts $0 processes of a program, one a GPU, as torchrun would, and fails if one of them does.
AS_TORCHRUN = """export WORLD_SIZE=$0 LOCAL_WORLD_SIZE=$0 MASTER_ADDR=127.0.0.1
export MASTER_PORT=$((20000 + $$ % 10000))
for rank in $(seq 0 $((WORLD_SIZE - 1))); do RANK=$rank LOCAL_RANK=$rank "$@" & started="$started $!"; done
for process in $started; do wait $process || failed=1; done; exit ${failed:-0}"""
# Makes $0 tokens that begin no second epoch, equal on every machine, before a program starts.
WITH_NEW_TEXT = """"$TOKENIZE_PROGRAM" --tokenizer $1 --out tokens "$2"/*.txt &&
"$3" "$4" --tokens $0 --out text.bin 'tokens/train_*.bin' && shift 4 && exec "$@" """
# A process that outlives a killed check. It ends the programs left running, which would share the GPU with
# those of the next call, and removes their files.
GUARDIAN = """import os, shutil, signal, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    os.killpg(group, signal.SIGKILL)
shutil.rmtree(sys.argv[1], ignore_errors=True)"""


class Failed(RuntimeError):
    """The reason why a job failed."""


@dataclasses.dataclass
class Job:
    name: str
    command: list = ()
    read: typing.Callable[[int, str, pathlib.Path], dict] = None  # exit code, output, folder -> findings
    programs: list = ()  # their bytes identify the findings
    seconds: float = 20  # not begun if less time is left
    environment: dict = dataclasses.field(default_factory=dict)
    missing: str = ""  # the reason why it cannot be run here
    optional: bool = False  # the part is complete without it

    def __post_init__(self):
        self.missing = self.missing or next(filter(None, map(absent, self.programs)), "")
        self.identity = ", ".join(map(identity, self.programs))


def absent(program):
    """The reason why a program cannot be started, or ""."""
    if not program.is_file():
        return f"{program} is not built"
    return "" if os.access(program, os.X_OK) else f"{program} is not executable"


@functools.cache
def identity(program):
    return hashlib.sha256(program.read_bytes()).hexdigest()[:12] if program.is_file() else ""


# ----------------------------------------------------------------------------------------------------------
# The findings of each kind of program, or Failed with the reason


def last_line(output):
    """The line of a program's output that gives the reason of its end."""
    left_out = [line for line in output.splitlines() if " is left out: " in line]
    return "; ".join(left_out).replace("compare_pytorch: ", "") or reason(output)


def read_json(path):
    """Reads a file written by a program. NaN, which JSON does not have, becomes None."""
    try:
        return json.loads(path.read_text(), parse_constant=lambda name: None)
    except OSError as error:
        raise Failed(f"{path.name} was not written: {error.strerror}") from None
    except ValueError as error:
        raise Failed(f"{path.name} is not whole: {error}") from None


def read_comparison(code, output, folder):
    whole = read_json(folder / "out.json") if code == 0 else {}
    if not whole.get("results"):
        raise Failed(last_line(output))
    (result,) = whole["results"].values()
    found = {key: result.get(key) for key in ("side", "batch_size", "ms", "peak_bytes", "losses")}
    return found | {"total_batch": whole["options"]["total_batch"]}


def read_test(code, output, folder):
    if code != 0:
        failed = sorted(set(re.findall(r"\[  FAILED  \] (\S+\.\S+?)(?:,| \(|$)", output, re.M)))
        raise Failed(f"killed by signal {-code}" if code < 0 else ", ".join(failed) or reason(output))
    count = re.findall(r"^\[=+\] (\d+) tests? from .* ran", output, re.M)
    if not count:
        raise Failed(f"it does not say how many tests have run; its last line: {reason(output)}")
    return dict(tests=sum(map(int, count)))


def read_sanitizer(code, output, folder):
    summary = re.findall(r"^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", output, re.M)
    if code != 0:
        raise Failed(summary[-1].lower() if code == 86 and summary else f"the test failed: {reason(output)}")
    if not summary:
        raise Failed(f"compute-sanitizer has checked nothing; its last line: {reason(output)}")
    return {}


def read_two_runs(code, output, folder):
    """Losses, norms and checkpoints of both runs must be the same."""
    if code != 0:
        raise Failed(last_line(output))
    steps, files = [], []
    for run in (folder / "a", folder / "b"):
        records = [record for record in read_metrics(run / "metrics.jsonl") if record["kind"] == "train"]
        steps.append([(record["loss"], record["grad_norm"]) for record in records])
        files.append({path.name: path.read_bytes() for path in run.glob("checkpoints/*/*.safetensors")})
    if len(steps[0]) != 10 or not files[0]:
        raise Failed("the run has not written 10 steps and a checkpoint")
    different = [step for step in range(10) if steps[0][step] != steps[1][step]]
    if different:
        raise Failed(f"the losses or norms differ from step {different[0] + 1} on")
    if files[0] != files[1]:
        raise Failed("the losses are the same and the checkpoints differ")
    return {}


def read_benchmark(code, output, folder):
    if code != 0 and not (folder / "out.json").exists():
        raise Failed(last_line(output))
    rows, bad = [], []
    for row in read_json(folder / "out.json")["benchmarks"]:
        name, dtype, *shape = row["name"].removesuffix("/manual_time").split("/")
        if row.get("error_occurred"):
            bad.append(f"{name}: {row.get('error_message')}")
            continue
        shape = ", ".join(size.replace(":", " ") for size in shape if not size.startswith("iterations:"))
        ms = row["real_time"] * {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1e3}[row["time_unit"]]
        share = max((row[key] / 100 for key in ("%bandwidth", "%compute") if key in row), default=None)
        bound = "compute" if "GFLOP/s" in row else "memory"
        rows.append(dict(name=name, shape=shape, dtype=dtype, ms=ms, share_of_peak=share, bound=bound))
    if code == 0 and rows and not bad:
        return dict(rows=rows)
    why = "; ".join(bad) or f"it has measured nothing; its last line: {last_line(output)}"
    return dict(rows=rows, status="failed", reason=why)


def read_ladder(code, output, folder):
    if code != 0:
        raise Failed(last_line(output))
    rows = read_json(folder / "out.json")["rows"]
    empty = {row["name"]: row["note"] for row in rows if not row["ms"]}
    bad = [f"{row}: {why}" for row, why in empty.items() if not re.match("this build has|not on a CPU", why)]
    return dict(rows=rows) | (dict(status="failed", reason="; ".join(bad)) if bad else {})


# ----------------------------------------------------------------------------------------------------------


class Parts:
    """The jobs of each part, as generators, because a job may depend on what earlier ones found."""

    def batch_sizes(self, model):
        """The micro-batches to try, ours and PyTorch's; None if the GPU is too small."""
        if self.options.micro_batch:
            return [self.options.micro_batch], [self.options.micro_batch]
        if self.rehearsal:
            return [2, 4], [2, 4]
        sizes = BATCH_SIZES[model]
        return next((tried for gib, *tried in sizes if self.machine["memory_gib"] >= gib), None)

    def compare(self, name, side, arguments, seconds, before=(), needs_pytorch=False):
        """A job of compare_pytorch.py, which runs one side once."""
        theirs = needs_pytorch or side == "PyTorch"
        on_cpu = self.options.device == "cpu" or self.rehearsal and side == "PyTorch"
        command = [self.python if theirs else sys.executable, BENCH / "compare_pytorch.py"]
        command += ["--device", "cpu" if on_cpu else "cuda", "--slice", side.lower().replace(".", "")]
        programs = {"ours": [self.train], "llm.c": [self.options.llmc], "PyTorch": []}[side]
        command = [*before, *command, "--json", "out.json", *arguments]
        job = Job(name, command, read_comparison, programs, seconds, self.training)
        if theirs:
            job.missing = job.missing or self.no_pytorch
            job.identity += f" PyTorch {self.machine['pytorch']}"
        return job

    def speed(self, model):
        """The sides take turns. Each tries its micro-batches; then the fastest are measured further."""
        if not self.batch_sizes(model):
            yield Job(model, missing=f"{self.machine['memory_gib']:.0f} GiB are too few for {model}")
            return
        ours, theirs = self.batch_sizes(model)
        no_llmc = "" if self.options.llmc else "no --llmc was given"
        no_llmc = "llm.c trains GPT-2 only" if model == "nanochat" else no_llmc
        sides = {"ours": ours, "PyTorch": theirs} | ({} if no_llmc else {"llm.c": ours})
        trials = {side: [self.slice(model, side, size, 1) for size in sizes] for side, sizes in sides.items()}
        for turn in range(max(map(len, trials.values()))):
            yield from (jobs[turn] for jobs in trials.values() if turn < len(jobs))
        fastest, found = {}, self.units(f"speed-{model}")
        for side, jobs in trials.items():
            tried = [found.get(job.name) for job in jobs if not job.missing]
            if None in tried:
                return
            passed = [unit for unit in tried if unit["status"] == "passed"]
            if passed:
                fastest[side] = min(passed, key=lambda unit: statistics.median(unit["ms"]))["batch_size"]
                for job in jobs:
                    job.optional = True  # some micro-batches may need too much memory, but not all
        for number in range(2, self.options.slices + 1):
            slices = [self.slice(model, side, size, number) for side, size in fastest.items()]
            yield from slices if number % 2 else reversed(slices)
        if no_llmc:
            yield Job("llm.c", missing=no_llmc, optional=True)

    def slice(self, model, side, size, number):
        arguments = [*MODELS[model], "--batch-size", size, "--dtype", "bf16", "--data", self.options.data]
        arguments += ["--mode", "plain" if self.options.device == "software" else "compile"]
        arguments += [*TINY, "--discard", 1, "--steps", 2] if self.rehearsal else ["--discard", 3]
        arguments += ["--llmc", self.options.llmc] if side == "llm.c" else []
        seconds = SECONDS_OF_A_SLICE[model].get(side, 100)
        return self.compare(f"{side}, B {size}, slice {number}", side, arguments, seconds)

    def test_programs(self, wanted):
        ending = "cu" if self.options.device == "software" else ""  # it has tests of its own
        found = (path for path in self.build.glob("test_*") if path.is_file() and not path.suffix)
        found = sorted(path for path in found if path.name.endswith(ending) and wanted(path.name))
        return found or [self.build / "test_*"]

    def test(self, program, name="", before=(), quick="*", seconds=20, **environment):
        environment |= dict(OMP_WAIT_POLICY="passive", GTEST_COLOR="no")
        if self.rehearsal:
            kind = program.name.removeprefix("test_").removesuffix(self.suffix)
            environment |= dict(GTEST_FILTER=QUICK_TESTS.get(kind, quick), GTEST_TOTAL_SHARDS="1000")
            environment |= dict(GTEST_SHARD_INDEX="0")
        command = [*before, program, "--gtest_brief=1"]
        return Job(name or program.name, command, read_test, [program], seconds, environment)

    def tests(self):
        gpus = self.machine["gpus"]
        for program in self.test_programs(lambda name: not LONG_TESTS.match(name)):
            if not SEVERAL_PROCESSES.match(program.name):
                yield self.test(program)
                continue
            # NCCL's tests run with one process, and with several if there is a GPU for each.
            for count in [1] * ("communicator" in program.name) + [gpus] * (gpus > 1):
                name = f"{program.name}, processes: {count}"
                yield self.test(program, name, before=["sh", "-c", AS_TORCHRUN, count])
            if gpus == 1:
                why = "this machine has one GPU, and NCCL wants one for each process"
                yield Job(f"{program.name}, several processes", missing=why, optional=True)

    def long_tests(self):
        for program in self.test_programs(LONG_TESTS.match):
            for piece in range(PIECES):
                name, share = f"{program.name}, {piece + 1} of {PIECES}", dict(GTEST_TOTAL_SHARDS=str(PIECES))
                share |= dict(GTEST_SHARD_INDEX=str(piece))
                yield self.test(program, name, quick=QUICK_LONG_TESTS, seconds=60, **share)

    def sanitizer(self):
        toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        path = os.pathsep.join([os.environ["PATH"], f"{toolkit}/bin", f"{toolkit}/compute-sanitizer"])
        tool = None if self.rehearsal else shutil.which("compute-sanitizer", path=path)
        if not tool:
            why = "compute-sanitizer is missing; it comes with the CUDA Toolkit (package cuda-sanitizer)"
            yield Job("compute-sanitizer", missing="it is for GPUs" if self.rehearsal else why)
            return
        # Tests provoke errors of the API on purpose, such as an allocation that is too large.
        # racecheck reports races in kernels that cuDNN generates, which are not ours to mend.
        not_ours = ["--kernel-name-exclude", "kernel_substring=cudnn_generated"]
        checks = {"memcheck": ["--report-api-errors", "no"], "racecheck": not_ours}
        for program in self.test_programs(SANITIZED_TESTS.match):
            for check, more in checks.items():
                command = [tool, "--tool", check, "--error-exitcode", 86, *more, program, "--gtest_brief=1"]
                yield Job(f"{check} {program.name}", command, read_sanitizer, [program], 60)

    def deterministic(self):
        """Two runs with --deterministic: the same losses, norms and checkpoint."""
        shape = [*TINY, *"--tokenizer byte --batch-size 2".split()]
        if not self.rehearsal:
            shape = "--model d12 --tokenizer gpt2 --seq-len 1024 --total-batch 65536 --batch-size".split()
            shape.append(min(16, self.batch_sizes("124M")[0][0]))
        fixed = "--dtype bf16 --deterministic --steps 10 --warmup 2 --lr 6e-4 --val-every 0 --sample-every 0"
        train = [self.train, "--train-data", TEXT, *shape, *fixed.split(), "--checkpoint-every", 10]
        twice = '"$0" "$@" --out a && "$0" "$@" --out b'
        yield Job("two runs", ["sh", "-c", twice, *train], read_two_runs, [self.train], 80)

    def curve(self, name):
        """Losses of ours and PyTorch's from the same weights on the same tokens."""
        steps, tokens, *_ = CURVES[name]
        compiled = "--mode compile --dtype bf16 --data text.bin".split()
        given = dict(bf16=[*MODELS["124M"], *compiled, *"--lr 6e-4 --warmup 20".split()])
        given["nanochat"] = [*MODELS["nanochat"], *compiled, "--lr", "0.01"]  # at 0.02 any rounding grows
        given["fp32"] = f"--preset shakespeare --mode plain --dtype fp32 --data {TEXT}".split()
        given = [*given[name], "--loss-check", "--loss-steps", steps]
        given += [*TINY, *"--batch-size 2 --mode plain --loss-steps 10".split()] if self.rehearsal else []
        text = (1 << 14, "byte") if self.rehearsal else (steps * tokens + 1, "gpt2")
        before = ["sh", "-c", WITH_NEW_TEXT, *text, ROOT / "data", self.python, BENCH / "markov_text.py"]
        largest = self.batch_sizes("124M")[0][0]
        for side, size in (("ours", largest), ("PyTorch", min(32, largest))):
            if name == "fp32":
                yield self.compare(side, side, given, 45, needs_pytorch=True)
            else:
                yield self.compare(side, side, [*given, "--batch-size", size], 150, before, True)

    def kernels(self):
        for name in BENCHMARKS:
            program = self.build / f"bench_{name}{self.suffix}"
            size = f"{SMALL[name]} --benchmark_min_time=0.01".split() if self.rehearsal else ["--cold"]
            command = [program, "--dtype", "bf16", "--preset", "124M", *size, "--json", "out.json"]
            yield Job(program.name, command, read_benchmark, [program], 40)

    def ladder(self):
        """Each optimisation of a training step, on top of those before."""
        device = "cpu" if self.options.device == "cpu" else "cuda"
        command = [sys.executable, BENCH / "speed_ladder.py", "--device", device, "--build", self.build]
        command += ["--tiny"] if self.rehearsal else ["--batch-size", self.batch_sizes("124M")[0][0]]
        command += ["--data", self.options.data, "--json", "out.json"]
        programs = [self.train, *(self.build / f"bench_{name}{self.suffix}" for name in ("matmul", "gelu"))]
        yield Job("rows", command, read_ladder, programs, 300, self.training)

    # The most decisive parts come first.
    PARTS = {
        "speed-124M": ("GPT-2 124M beside PyTorch", lambda self: self.speed("124M")),
        "tests": ("tests of kernels, model and libraries, built by nvcc", tests),
        "deterministic": ("--deterministic: two runs, the same bits", deterministic),
        "curve-fp32": ("losses beside PyTorch's, fp32, a small model", lambda self: self.curve("fp32")),
        "curve-bf16": ("losses beside PyTorch's, bf16, 124M", lambda self: self.curve("bf16")),
        "kernels": ("every operation at the shapes of 124M", kernels),
        "speed-nanochat": ("nanochat:d12 with Muon beside PyTorch", lambda self: self.speed("nanochat")),
        "curve-nanochat": ("losses beside PyTorch's, nanochat:d12", lambda self: self.curve("nanochat")),
        "speed-1558M": ("GPT-2 1558M beside PyTorch", lambda self: self.speed("1558M")),
        "ladder": ("what made a step faster", ladder),
        "sanitizer": ("compute-sanitizer: memcheck and racecheck", sanitizer),
        "long-tests": ("tests of whole programs", long_tests),
    }
    SIDE_BY_SIDE = ("tests", "sanitizer", "long-tests")  # nothing is timed there: several jobs share the GPU


class Check(Parts):
    def __init__(self, options):
        self.options, self.build, self.folder = options, options.build, pathlib.Path(options.outdir).resolve()
        self.rehearsal, self.suffix = options.device != "cuda", "" if options.device == "cpu" else "cu"
        self.train = self.build / f"train_gpt2{self.suffix}"
        self.machine = look_at_machine(options.device)
        self.python, self.machine["pytorch"], self.no_pytorch = find_pytorch(self.rehearsal)
        self.report = self.open_report()
        self.failed_before = {part: units(self.report, part, ["failed"]) for part in self.PARTS}
        self.deadline = time.monotonic() + 0.98 * options.time_limit  # the rest is for ending programs
        self.stopped_by, self.lock = None, threading.Lock()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="gpu_check-"))
        quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        guardian = [sys.executable, "-c", GUARDIAN, self.scratch]
        self.guardian = subprocess.Popen(guardian, stdin=subprocess.PIPE, **quiet)
        self.set_environment()

    def set_environment(self):
        matmuls = str(self.folder / "matmul_algorithms.json")  # each product is timed in one run only
        self.training = dict(TRAIN_PROGRAM=str(self.train), FLATGPT_MATMULS=matmuls)
        self.training |= dict(FLATGPT_MATMUL_SECONDS="1") if self.rehearsal else {}
        places = [folder / "tokenize" for folder in (self.build, ROOT / "build" / "cuda", ROOT)]
        tokenize = next(filter(os.path.exists, places), places[0])
        os.environ |= dict(TOKENIZE_PROGRAM=str(tokenize), FLATGPT_BENCH_DATA=str(self.scratch / "tokens"))
        # What PyTorch has compiled stays for the next call; everything else that programs leave is removed.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor")
        os.environ["TMPDIR"] = str(self.scratch)

    def open_report(self):
        """OUTDIR's report, or a new one."""
        here = dict(device=self.options.device, gpu=self.machine["name"])
        report = dict(date=datetime.date.today().isoformat(), **here, machines=[], parts={})
        if (self.folder / "report.json").exists():
            try:
                report = read_json(self.folder / "report.json")
            except Failed as error:
                sys.exit(f"gpu_check: {self.folder}: {error}; another OUTDIR begins anew")
            for key in here:
                if report[key] != here[key]:
                    what = f"{self.folder}'s report is of {report[key]}, and this is {here[key]}"
                    sys.exit(f"gpu_check: {what}; expected another OUTDIR")
        for name, (title, _) in self.PARTS.items():
            nothing = dict(title=title, status="not run", reason="not begun", units={}, missing={})
            report["parts"].setdefault(name, nothing)
        if self.machine not in report["machines"]:
            report["machines"].append(self.machine)
        self.folder.mkdir(parents=True, exist_ok=True)
        return report | {"stopped": None}

    def on_signal(self, number, _):
        self.stopped_by = signal.Signals(number).name

    def units(self, part):
        return self.report["parts"][part]["units"]

    def left(self):
        return 0 if self.stopped_by else self.deadline - time.monotonic()

    def run(self):
        """Runs what is left of the requested parts, then what had failed before. True if all is well."""
        for again in (False, True):
            for part in self.PARTS:
                self.go_through(part, again)
        self.guardian.communicate()
        self.report["stopped"] = self.stopped_by
        self.save()
        complete = all(self.report["parts"][name]["status"] == "passed" for name in self.options.parts)
        met = all(criterion["met"] is not False for criterion in self.report["criteria"])
        return complete and met and not self.stopped_by

    def go_through(self, part, again):
        """Runs the jobs of a part that are due. Findings of programs that have changed are dropped."""
        found, jobs = self.units(part), []

        def visit(job):
            jobs.append(job)
            with self.lock:
                before = found.get(job.name, {}).get("program", job.identity)
                if before != job.identity and not job.missing:
                    for name in [name for name, unit in found.items() if unit["program"] == before]:
                        print(f"{part}/{name}: its program has changed; its result is dropped", flush=True)
                        del found[name]
            due = job.name in self.failed_before[part] if again else job.name not in found
            if due and not job.missing and part in self.options.parts and self.fits(job):
                self.run_job(part, job)

        self.report["parts"][part] |= dict(status="unfinished", reason="the check was killed")
        with concurrent.futures.ThreadPoolExecutor(self.lanes()) as pool:
            list((pool.map if part in self.SIDE_BY_SIDE else map)(visit, self.PARTS[part][1](self)))
        if part in self.SIDE_BY_SIDE and not any(job.missing and not job.optional for job in jobs):
            for name in set(found) - {job.name for job in jobs}:
                del found[name]  # a test that no longer exists
        self.settle(part, jobs)
        self.save()

    def lanes(self):
        """The number of programs that may share the GPU."""
        memory = 6 if self.rehearsal else int(self.machine["memory_gib"] / 10)
        return max(1, min(8, len(os.sched_getaffinity(0)) // 2, memory))

    def settle(self, part, jobs):
        """Derives the part's status from its jobs."""
        found, needed = self.units(part), [job for job in jobs if not job.optional]
        failed = [job.name for job in needed if found.get(job.name, {}).get("status") == "failed"]
        unknown = [job for job in needed if job.name not in found]
        left = sum(not job.missing for job in unknown)
        reasons = [f"{len(failed)} of {len(needed)} failed: {', '.join(failed)}"] if failed else []
        reasons += [f"{left} of {len(needed)} are left"] if left else []
        reasons += sorted({job.missing for job in unknown if job.missing})
        status = "failed" if failed else "passed" if not unknown else "unfinished" if found else "not run"
        missing = {job.name: job.missing for job in jobs if job.missing and job.name not in found}
        self.report["parts"][part] |= dict(status=status, reason="; ".join(reasons), missing=missing)

    def fits(self, job):
        """True if the job may begin now. A job that takes longer than a call is begun only early in one."""
        return self.left() > (0 if self.rehearsal else min(job.seconds, 0.75 * self.options.time_limit))

    def run_job(self, part, job):
        """Runs a job and keeps its record."""
        folder, start = pathlib.Path(tempfile.mkdtemp(dir=self.scratch)), time.monotonic()
        record = dict(status="failed", program=job.identity)
        try:
            code = self.execute(job, folder)
            output = (folder / "log").read_text(errors="replace").split("\n", 1)[1]
            found = dict(status="left") if code is None else job.read(code, output, folder)
            record |= dict(status="passed") | found
        except RuntimeError as error:
            record |= dict(reason=str(error))
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            record |= dict(reason=f"{type(error).__name__}: {error}")
        record["seconds"] = round(time.monotonic() - start, 1)
        why = f": {record['reason']}" if "reason" in record else ""
        with self.lock:
            print(f"  {record['seconds']:7.1f} s  {record['status']:8}{part}/{job.name}{why}", flush=True)
            with open(self.folder / "log.txt", "a") as log:
                output = (folder / "log").read_text(errors="replace")[-LONGEST_LOG:]
                log.write(f"==== {part}/{job.name}: {record['status']}{why}\n{output}\n")
            if record["status"] != "left":
                self.units(part)[job.name] = record
                self.save()
        shutil.rmtree(folder, ignore_errors=True)

    def execute(self, job, folder):
        """The program's exit code, or None if the call ended before it did."""
        start, command = time.monotonic(), [str(word) for word in job.command]
        with open(folder / "log", "w") as log:
            print(f"$ {shlex.join(command)}", file=log, flush=True)
            how = dict(cwd=folder, env=os.environ | job.environment, start_new_session=True)
            streams = dict(stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            process = subprocess.Popen(command, **how, **streams)
        os.write(self.guardian.stdin.fileno(), f"+{process.pid}\n".encode())
        try:
            while process.poll() is None:
                if self.left() <= 0:
                    return None
                if time.monotonic() - start > LONGEST_JOB:
                    raise Failed(f"it took longer than {LONGEST_JOB} s")
                time.sleep(0.02)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.write(self.guardian.stdin.fileno(), f"-{process.pid}\n".encode())
        return process.returncode

    def save(self):
        """Replaces the report's files, each at once."""
        summarize(self.report)
        files = {"report.json": json.dumps(self.report, indent=1) + "\n", "report.md": markdown(self.report)}
        for name, text in files.items():
            (self.folder / ".new").write_text(text)
            (self.folder / ".new").replace(self.folder / name)


def look_at_machine(device):
    git = ["git", "-C", ROOT, "describe", "--always", "--dirty"]
    version = subprocess.run(git, capture_output=True, text=True).stdout
    if (ROOT / "VERSION").exists():  # in a bundle
        version = (ROOT / "VERSION").read_text()
    if device != "cuda":
        name = "software GPU" if device == "software" else "CPU"
        return dict(name=name, on=processor(), gpus=2, version=version.strip())
    fields = ("name", "driver_version", "memory.total", "compute_cap", "power.limit", "clocks.max.sm")
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    listed = subprocess.run(query, capture_output=True, text=True)
    gpus = [line.split(", ") for line in listed.stdout.splitlines() if line.strip()]
    if listed.returncode != 0 or not gpus or len(gpus[0]) != len(fields):
        why = reason(listed.stdout + listed.stderr)
        sys.exit(f"gpu_check: nvidia-smi does not say what the GPU is: {why}")
    machine = dict(zip(fields, gpus[0]), gpus=len(gpus), version=version.strip())
    memory = machine["memory.total"]
    return machine | dict(memory_gib=int(memory) / 1024 if memory.isdigit() else 0)  # some report "[N/A]"


def find_pytorch(rehearsal):
    """The python that has PyTorch, its version, and the reason why there is none."""
    code = "import numpy, torch; print(torch.__version__, torch.cuda.is_available())"
    venv = os.environ.get("FLATGPT_PYTORCH_VENV", ROOT / "build" / "pytorch-venv")
    why = "PyTorch or numpy is not installed; pip install torch numpy, or set FLATGPT_PYTORCH_VENV"
    for python in (f"{venv}/bin/python", sys.executable, shutil.which("python3"), "/usr/bin/python3"):
        if not python or not os.access(python, os.X_OK):
            continue
        words = subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.split()
        if words and (rehearsal or words[1] == "True"):
            return python, words[0], ""
        why = f"PyTorch {words[0]} sees no GPU" if words else why
    return None, None, why


def parse_arguments():
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"gpu_check: {message}; --help shows the usage\n")
    add, parts, folders = parser.add_argument, ",".join(Check.PARTS), "|".join(BUILDS.values())
    add("outdir", metavar="OUTDIR")
    add("--llmc", metavar="PATH", type=pathlib.Path, help="a built llm.c to compare with as well")
    add("--time-limit", metavar="SECONDS", type=float, default=math.inf, help="run what fits into this time")
    add("--parts", metavar="LIST", default=parts, help="only these of: %(default)s")
    add("--micro-batch", metavar="B", type=int, help="train with this one instead of trying several")
    slices = "runs of each side's fastest micro-batch, its trial included (default: %(default)s)"
    add("--slices", metavar="N", type=int, default=3, help=slices)
    add("--continue", action="store_true", help="not needed: a check always goes on with OUTDIR's report")
    texts = str(ROOT / "data" / "*.txt")
    add("--data", default=texts, help="of speed: token shards, or texts, a glob (default: %(default)s)")
    rehearses = "software, cpu: rehearses the check at tiny sizes over the software GPU, or on the CPU"
    add("--device", choices=BUILDS, default="cuda", help=rehearses)
    add("--build", metavar="DIR", help=f"of all programs (default, by --device: build/{folders})")
    options = parser.parse_args()
    options.parts, on_gpu = options.parts.split(","), options.device == "cuda"
    for unknown in set(options.parts) - set(Check.PARTS):
        parser.error(f"no part is called {unknown}; expected some of {parts}")
    for name, value in (("--slices", options.slices), ("--micro-batch", options.micro_batch)):
        if value is not None and value < 1:
            parser.error(f"{name} {value}; expected 1 or more")
    if not options.time_limit > 0:
        parser.error(f"--time-limit {options.time_limit:g}; expected a positive number of seconds")
    if on_gpu and subprocess.run("nvidia-smi -L", shell=True, capture_output=True).returncode != 0:
        why = "nvidia-smi lists no GPU; --device software rehearses the check without one"
        parser.exit(2, f"gpu_check: {why}\n")
    if options.llmc:
        path = options.llmc.expanduser().resolve()
        options.llmc = path / "train_gpt2cu" if path.is_dir() else path
        if not on_gpu or absent(options.llmc):
            parser.error(f"--llmc {path}; expected a GPU, and llm.c built with: make train_gpt2cu")
    options.data = os.path.abspath(options.data)
    options.build = pathlib.Path(options.build or ROOT / "build" / BUILDS[options.device]).resolve()
    return options


def main():
    check = Check(parse_arguments())
    complete, report = check.run(), check.report
    for name in check.options.parts:
        print(f"{name:16}{report['parts'][name]['status']:12}{report['parts'][name]['reason']}")
    for criterion in report["criteria"]:
        print(f"{verdict(criterion):12}{criterion['criterion']}: {criterion['found']}")
    if any(part["status"] in ("unfinished", "not run") for part in report["parts"].values()):
        print("the same command goes on with what is left")
    print(f"{check.folder}/report.md")
    if not check.rehearsal:
        kept = f"dev/bench/results/{re.sub(r'[^A-Za-z0-9]+', '-', report['gpu'])}-{report['date']}.json"
        print(f"worth keeping? cp {shlex.quote(str(check.folder / 'report.json'))} {kept}")
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
