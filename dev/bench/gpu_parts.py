"""The parts of gpu_check.py: the programs that each runs, how their output is read, and the verdicts."""

import argparse
import hashlib
import os
import re
import shutil
import statistics
import subprocess
import sys

import gpu_report
import speed_ladder
from check_units import Failed, NotRun, Unit, identity, read_json
from compare_pytorch import ROOT, TEXT, read_metrics, reason, token_shards

BENCHMARKS = ("layernorm", "gelu", "cross_entropy", "encoder", "adamw", "attention", "matmul", "decode")
# Tests of whole programs take minutes and are not run under the sanitizers. Each runs in pieces.
LONG_TESTS, PIECES = re.compile(r"^test_(\w*_program|training|resume)(cu)?$"), 4
SEVERAL_PROCESSES = re.compile(r"^test_(communicator|data_parallel)(cu)?$")
SANITIZED_TESTS = re.compile(
    r"^test_(simt|layernorm|gelu|residual|encoder|cross_entropy|adamw|optimizers|global_norm|column_sum"
    r"|random|mma|attention|gemm|decode_attention|decode_matmul|gpt2)(cu)?$"
)
BENCH = ROOT / "dev" / "bench"
SLICES = 3  # of each side's fastest micro-batch; its trial is the first
# for rehearsals: a byte-level model that the software GPU trains in a second a step; the shapes of operations
TINY = "--layers 2 --heads 2 --channels 32 --context 16 --vocab 256 --seq-len 16".split()
SMALL = dict(
    layernorm="--N 8",
    gelu="--N 8 --cold --benchmark_filter=forward",  # the software GPU takes long to empty a GPU's caches
    cross_entropy="--N 4",
    encoder="--B 1 --T 16 --C 64 --V 512",
    adamw="--n 4096",
    attention="--B 1 --T 64 --NH 2",
    matmul="--N 16 --C 64 --OC 128",
    decode="--C 64 --OC 256 --NH 2 --benchmark_filter=decode_(matmul/|attention)",  # neither int8 nor whole models
)
# A rehearsal runs the first test of every program; for these programs the first of the tests named here, and for
# long tests all of them.
QUICK_TESTS = dict(
    attention="Attention.*",
    data_parallel="*ChecksumSeesOneBit",
    decoder="Decoder.Refuses*",
    gemm="GemmTest/1.MatchesPyTorch",
    generate_program="*Prints*:*HelpSays*:*WrongUse*",
    resume="*Slurms*:*ADropped*:*ALast*",
    train_program="*Plan*:*Unknown*",
    training="*NeedsItsScale",
    watch_program="*IsRefused",
)
# Starts $1 processes of a program, one a GPU, as torchrun would, and fails if one of them does.
AS_TORCHRUN = """export WORLD_SIZE=$1 LOCAL_WORLD_SIZE=$1 MASTER_ADDR=127.0.0.1
export MASTER_PORT=$((20000 + $$ % 10000)); shift
for rank in $(seq 0 $((WORLD_SIZE - 1))); do RANK=$rank LOCAL_RANK=$rank "$@" & started="$started $!"; done
for process in $started; do wait $process || failed=1; done; exit ${failed:-0}"""


def absent(program):
    """The reason why a program cannot be started, or ""."""
    if not os.path.isfile(program):
        return f"{program} is not built"
    return "" if os.access(program, os.X_OK) else f"{program} is not executable"


def last_line(output):
    """The line of a program's output that gives the reason of its end."""
    left_out = [
        line.removeprefix("compare_pytorch: ") for line in output.splitlines() if " is left out: " in line
    ]
    return "; ".join(left_out) or reason(output)


class Parts:
    """Units of every part, as generators, because they may depend on the findings of earlier units."""

    def seconds(self, estimate):
        """The expected seconds of a unit; 0 in a rehearsal."""
        return 0 if self.rehearsal else estimate

    def gibibytes(self):
        return self.machine.get("memory_gib") or 0

    def lanes(self):
        """The number of programs that share the GPU where nothing is timed."""
        return max(
            1,
            min(6, len(os.sched_getaffinity(0)) // 2, 6 if self.rehearsal else int(self.gibibytes() / 10)),
        )

    # -- helpers of several parts

    def results(self, part):
        return gpu_report.found(self.report, part)

    def compare(self, name, side, arguments, seconds, needs_pytorch=False, optional=False):
        """A unit of compare_pytorch.py, which runs one contender once."""
        ours = side == "ours"
        needs_pytorch = needs_pytorch or side == "pytorch"
        missing = self.machine.get("pytorch_missing", "") if needs_pytorch else ""
        if ours:
            missing = absent(self.train) or missing
        program = [identity(self.train)] if ours else [identity(self.options.llmc)] if side == "llmc" else []
        program += [f"PyTorch {self.machine.get('pytorch')}"] if needs_pytorch else []

        def command(folder):
            given = arguments() if callable(arguments) else arguments
            more = [] if "--data" in given else ["--data", self.options.data]
            python = self.pytorch if needs_pytorch else sys.executable
            device = "cpu" if self.options.device == "cpu" or self.rehearsal and not ours else "cuda"
            one = [python, BENCH / "compare_pytorch.py", "--device", device, "--slice", side]
            return [*one, "--json", folder / "out.json", *more, *given]

        unit = Unit(name, command, self.read_comparison, ", ".join(program), self.seconds(seconds), 520)
        unit.environment, unit.missing, unit.optional = self.environment, missing, optional and not missing
        return unit

    @staticmethod
    def read_comparison(code, folder, output):
        if code != 0:
            raise Failed(last_line(output))
        whole = read_json(folder / "out.json")
        if not whole["results"]:
            raise Failed(last_line(output))
        (result,) = whole["results"].values()
        kept = ("side", "batch_size", "ms", "peak_bytes", "losses")
        return {key: result[key] for key in kept if key in result} | {
            key: whole["options"][key] for key in ("seq_len", "total_batch")
        }

    # -- the parts: each yields its units, which may depend on the findings of earlier units

    def batch_sizes(self, model):
        """Micro-batches to try with the GPU's memory: (for ours and llm.c, for PyTorch)."""
        table = {
            "124M": (
                (120, [64, 128], [64, 128]),
                (70, [64], [32, 64]),
                (35, [64], [16, 32]),
                (20, [16], [8, 16]),
                (0, [4], [4]),
            ),
            "1558M": ((120, [16, 32], [8, 16]), (70, [8, 16], [4, 8]), (45, [4], [2, 4])),
        }[model]
        return next((sizes for least, *sizes in table if self.gibibytes() >= least), None)

    def speed(self, model):
        """The sides take turns. Each tries its micro-batches; then the fastest are measured further, in a changing order."""
        sizes = [[2, 4], [2, 4]] if self.rehearsal else self.batch_sizes(model)
        if not sizes:
            raise NotRun(f"{self.gibibytes():.0f} GiB are too few for {model}")
        candidates = dict(ours=sizes[0], pytorch=sizes[1]) | (
            dict(llmc=sizes[0]) if self.options.llmc else {}
        )
        part, done = f"speed-{model}", gpu_report.units(self.report, f"speed-{model}")
        trials = [
            self.slice(model, side, tried[k], 1, optional=len(tried) > 1)
            for k in range(max(map(len, candidates.values())))
            for side, tried in candidates.items()
            if k < len(tried)
        ]
        yield from trials
        if any(
            done.get(unit.name, {}).get("status") not in ("passed", "failed") and not unit.missing
            for unit in trials
        ):
            return
        ms = {}
        for unit in self.results(part).values():
            ms.setdefault(unit["side"], {})[unit["batch_size"]] = statistics.median(unit["ms"])
        fastest = [(side, self.fastest_trial(part, side)) for side in ms]
        for number in range(2, SLICES + 1):
            for side, size in fastest if number % 2 else reversed(fastest):
                yield self.slice(model, side, size, number)

    def fastest_trial(self, part, side):
        """The fastest by the trials alone; otherwise a later slice could change the choice."""
        trials = [
            unit
            for name, unit in self.results(part).items()
            if unit["side"] == side and name.endswith(", slice 1")
        ]
        return min(trials, key=lambda unit: statistics.median(unit["ms"]))["batch_size"]

    def slice(self, model, side, size, number, optional=False):
        seconds = {
            "124M": dict(ours=(90, 45), pytorch=(150, 75), llmc=(45, 45)),
            "1558M": dict(ours=(150, 90), pytorch=(240, 150), llmc=(120, 120)),
        }
        arguments = ["--preset", model, "--discard", 1 if self.rehearsal else 3]
        arguments += [*TINY, *"--total-batch 64 --steps 2".split()] if self.rehearsal else []
        mode = "plain" if self.options.device == "software" else "compile"
        arguments += f"--batch-size {size} --dtype bf16 --mode {mode}".split()
        arguments += ["--llmc", self.options.llmc] if side == "llmc" else []
        name = f"{dict(ours='ours', pytorch='PyTorch', llmc='llm.c')[side]}, B {size}, slice {number}"
        # PyTorch compiles once per machine, and each call may be on another machine; ours is tuned once.
        tried = [(f"speed-{model}", f"PyTorch, B {size}, slice {earlier}") for earlier in range(1, number)]
        first, later = seconds[model][side]
        known = self.ran.intersection(tried) if side == "pytorch" else number > 1
        return self.compare(name, side, arguments, later if known else first, optional=optional)

    def judge_speed(self, model):
        found = {unit["side"] for unit in self.results(f"speed-{model}").values()}
        wanted = (
            {"ours"} | ({"pytorch"} if self.pytorch else set()) | ({"llmc"} if self.options.llmc else set())
        )
        if wanted - found:
            reasons = {
                unit["reason"]
                for unit in gpu_report.units(self.report, f"speed-{model}").values()
                if unit["status"] == "failed"
            }
            raise Failed(
                f"nothing is measured of {', '.join(sorted(wanted - found))}: {'; '.join(sorted(reasons))}"
            )

    def test_programs(self, wanted):
        ending = "cu" if self.options.device == "software" else ""  # it has tests of its own
        programs = sorted(
            path
            for path in self.build.glob("test_*")
            if path.is_file() and not path.suffix and path.name.endswith(ending) and wanted(path.name)
        )
        if not programs:
            raise NotRun(f"{self.build} has no such tests")
        return programs

    def test(self, program, name=None, command=(), environment={}, **unit):
        if self.rehearsal:
            name_of_tests = program.name.removeprefix("test_").removesuffix(self.suffix)
            quick = dict(GTEST_FILTER=QUICK_TESTS.get(name_of_tests, "*"))
            environment = dict(GTEST_TOTAL_SHARDS="1000", GTEST_SHARD_INDEX="0") | quick | environment
        return Unit(
            name or program.name,
            lambda folder: [*command, program, "--gtest_brief=1"],
            self.read_test,
            identity(program),
            # mpirun's output looks like a terminal to a test.
            environment={"OMP_WAIT_POLICY": "passive", "GTEST_COLOR": "no"} | environment,
            **{"alone": False, "missing": absent(program)} | unit,
        )

    @staticmethod
    def read_test(code, folder, output):
        count = re.findall(r"^\[=+\] (\d+) tests? from .* ran", output, re.M)
        found = dict(tests=sum(map(int, count)) if count else None)
        if code == 0 and not count:
            raise Failed(f"it does not say how many tests have run; its last line: {reason(output)}")
        if code == 0:
            return found
        failed = sorted(set(re.findall(r"\[  FAILED  \] (\S+\.\S+?)(?:,| \(|$)", output, re.M)))
        raise Failed(
            f"killed by signal {-code}" if code < 0 else "failed" if failed else reason(output),
            failed=failed,
            **found,
        )

    def tests(self):
        for program in self.test_programs(lambda name: not LONG_TESTS.match(name)):
            if SEVERAL_PROCESSES.match(program.name):
                yield from self.tests_of_several_processes(program)
            else:
                yield self.test(program)

    def tests_of_several_processes(self, program):
        """Runs NCCL's tests with one process, and with several if there is a GPU for each."""
        gpus = 2 if self.options.device == "cpu" else self.machine["gpus"]
        counts = ([1] if "communicator" in program.name else []) + ([gpus] if gpus > 1 else [])
        for count in counts:
            for how, command, environment in self.starters(count):
                name = f"{program.name}, {count} process{'es' if count > 1 else ''} by {how}"
                yield self.test(program, name, command, environment, alone=True)
        if gpus == 1:
            yield Unit(
                f"{program.name}, several processes",
                missing="this machine has one GPU, and NCCL wants one for each process",
                optional=True,
            )

    def starters(self, count):
        """The ways to start this many processes: names, commands before the program, environments. A rehearsal
        tries all of them."""
        # The MPI library in a bundle lacks the plugins that mpirun would look for.
        mpirun = None if (ROOT / "VERSION").exists() else shutil.which("mpirun")
        allowed = dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        by_mpirun = ("mpirun", [mpirun, "--oversubscribe", "-np", count], allowed)
        as_torchrun = ("torchrun's variables", ["sh", "-c", AS_TORCHRUN, "sh", count], {})
        if self.options.device == "cpu":
            return [("itself", [], {})] if count == 1 else [by_mpirun] if mpirun else []
        if self.rehearsal and mpirun:
            return [by_mpirun, as_torchrun]
        return [by_mpirun if mpirun else as_torchrun]

    def long_tests(self):
        for program in self.test_programs(LONG_TESTS.match):
            for piece in range(PIECES):
                environment = dict(GTEST_TOTAL_SHARDS=str(PIECES), GTEST_SHARD_INDEX=str(piece))
                yield self.test(
                    program,
                    f"{program.name} {piece + 1}/{PIECES}",
                    environment=environment,
                    seconds=self.seconds(60),
                    limit=520,
                )

    def bit_identity(self):
        """Two runs with --deterministic: the same losses, norms and checkpoint."""
        if absent(self.train):
            raise NotRun(absent(self.train))
        shape = [*TINY, *"--tokenizer byte --batch-size 2 --total-batch 64".split()]
        if not self.rehearsal:
            size = min(16, self.batch_sizes("124M")[0][0])
            shape = f"--model d12 --batch-size {size} --seq-len 1024 --total-batch 65536".split()
        fixed = "--dtype bf16 --deterministic --steps 10 --warmup 2 --lr 6e-4 --val-every 0 --sample-every 0"

        def command(folder):
            data = ["--train-data", self.shards(self.options.data)]
            return [
                self.train,
                *shape,
                *data,
                *fixed.split(),
                "--checkpoint-every",
                10,
                "--out",
                folder / "run",
            ]

        for run in (1, 2):
            yield Unit(f"run {run}", command, self.read_run, identity(self.train), self.seconds(40))

    def shards(self, data):
        """Token shards of texts, made in this call's folder."""
        os.environ |= {name: self.environment[name] for name in ("TOKENIZE_PROGRAM", "FLATGPT_BENCH_DATA")}
        try:
            return token_shards(data, 256 if self.rehearsal else 50257)
        except SystemExit as error:
            raise Failed(str(error)) from None

    @staticmethod
    def read_run(code, folder, output):
        if code != 0:
            raise Failed(last_line(output))
        try:
            steps = read_metrics(folder / "run" / "metrics.jsonl")
        except RuntimeError as error:
            raise Failed(str(error)) from None
        trained = [[step["loss"], step["grad_norm"]] for step in steps if step["kind"] == "train"]
        files = [
            [file.name, hashlib.sha256(file.read_bytes()).hexdigest()]
            for file in sorted((folder / "run").glob("checkpoints/*/*.safetensors"))
        ]
        if len(trained) != 10 or not files:
            raise Failed("the run has not written 10 steps and a checkpoint")
        return dict(steps=trained, files=files)

    def judge_bit_identity(self):
        same = self.report["deterministic"]
        if same and not same["identical"]:
            step = same["first_different_step"]
            raise Failed(
                f"the losses differ from step {step} on"
                if step
                else "the losses are the same and the checkpoints differ"
            )

    def curve(self, dtype):
        """Losses of ours and PyTorch's from the same weights on the same tokens."""
        steps, tokens, *_ = gpu_report.CURVES[dtype]
        given = {"fp32": "shakespeare --mode plain", "bf16": "124M --lr 6e-4 --warmup 20 --mode compile"}
        arguments = ["--preset", *given[dtype].split(), "--dtype", dtype, "--loss-check"]
        arguments += ["--loss-steps", 10 if self.rehearsal else steps]
        if self.rehearsal:
            arguments += [*TINY, *"--batch-size 2 --total-batch 64 --mode plain".split()]
        ours = 2 if self.rehearsal else self.batch_sizes("124M")[0][0]
        sizes = {"ours": ours, "pytorch": min(32, ours)}
        for side, name in (("ours", "ours"), ("pytorch", "PyTorch")):

            def whole(side=side):
                if dtype == "fp32":
                    return [*arguments, "--data", TEXT]
                return [*arguments, "--batch-size", sizes[side], "--data", self.new_text(steps * tokens)]

            yield self.compare(name, side, whole, {"fp32": 45, "bf16": 150}[dtype], needs_pytorch=True)

    def new_text(self, tokens):
        """Shards with enough tokens that no epoch repeats, generated on the spot and equal on every machine."""
        if not self.text:
            known = self.shards(str(ROOT / "data" / "*.txt"))
            out, count = self.runner.folder / "text.bin", 1 << 14 if self.rehearsal else tokens + 1
            command = [self.pytorch, BENCH / "markov_text.py", "--tokens", count, "--out", out, known]
            made = subprocess.run([str(word) for word in command], capture_output=True, text=True)
            if made.returncode != 0:
                raise Failed(f"no text could be made: {reason(made.stdout + made.stderr)}")
            self.text = str(out)
        return self.text

    def judge_curve(self, dtype):
        curve = self.report["curves"].get(dtype)
        if curve and not self.rehearsal and not gpu_report.losses_agree(curve, dtype):
            _, _, mean, largest = gpu_report.CURVES[dtype]
            raise Failed(
                f"the losses differ: {gpu_report.described(curve)}; expected at most {mean} and {largest}"
            )

    def kernels(self):
        for name in BENCHMARKS:
            path = self.build / f"bench_{name}{self.suffix}"
            size = f"{SMALL[name]} --benchmark_min_time=0.01".split() if self.rehearsal else ["--cold"]

            def command(folder, path=path, size=size):
                return [path, "--dtype", "bf16", "--preset", "124M", *size, "--json", folder / "out.json"]

            unit = Unit(f"bench_{name}", command, self.read_benchmark, identity(path), self.seconds(40))
            unit.missing = absent(path)
            yield unit

    def read_benchmark(self, code, folder, output):
        rows, bad = [], []
        try:
            found = read_json(folder / "out.json")["benchmarks"]
        except Failed:
            if code == 0:
                raise
            found = []
        for row in found:
            operation, dtype, *shape = row["name"].removesuffix("/manual_time").split("/")
            if row.get("error_occurred"):
                bad.append(f"{operation}: {row.get('error_message')}")
                continue
            shape = "/".join(part for part in shape if not part.startswith("iterations:"))
            shares = [row[share] / 100 for share in ("%bandwidth", "%compute") if share in row]
            shares = [] if self.rehearsal else shares  # no peak of a GPU was measured
            rows.append(
                dict(
                    name=operation,
                    shape=shape,
                    dtype=dtype,
                    ms=row["real_time"] * {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1e3}[row["time_unit"]],
                    share_of_peak=max(shares, default=None),
                    bound="memory" if "GFLOP/s" not in row else None,
                )
            )
        if code != 0 or bad:
            raise Failed("; ".join(bad) or last_line(output), rows=rows)
        if not rows:
            raise Failed(f"it has measured nothing; its last line: {reason(output)}")
        return dict(rows=rows)

    def ladder(self):
        """Trains the rows in turns, twice, and runs the benchmarks from which two of the rows are computed."""
        device = "cpu" if self.options.device == "cpu" else "cuda"
        trained = [name for name, _, _ in speed_ladder.trained_rows(device, True)]
        arguments = ["--tiny"] if self.rehearsal else ["--batch-size", self.batch_sizes("124M")[0][0]]
        arguments += ["--device", device, "--build", self.build, "--data", self.options.data]
        benches = [identity(self.build / f"bench_{name}{self.suffix}") for name in ("matmul", "gelu")]
        rounds = (1,) if self.rehearsal else (1, 2)
        rows = [(name, round_) for round_ in rounds for name in trained]
        rows += [(name, 1) for name in speed_ladder.LOST]
        for name, round_ in rows:

            def command(folder, name=name):
                program = [sys.executable, BENCH / "speed_ladder.py", *arguments]
                return [*program, "--row", name, "--json", folder / "out.json"]

            program = identity(self.train) if name in trained else ", ".join(benches)
            unit_name = f"{name}, {round_}"
            yield Unit(unit_name, command, self.read_row, program, self.seconds(60), 520, self.environment)

    @staticmethod
    def read_row(code, folder, output):
        if code != 0:
            raise Failed(last_line(output))
        return read_json(folder / "out.json")

    def ladder_rows(self):
        """The table, once every row was tried."""
        found, trained, lost = self.results("ladder"), {}, {}
        for name, *_ in speed_ladder.trained_rows("cpu" if self.options.device == "cpu" else "cuda", True):
            rounds = [unit for unit_name, unit in found.items() if unit_name.rsplit(", ", 1)[0] == name]
            if not rounds:
                return None
            ms = [value for unit in rounds for value in unit["ms"] or []]
            trained[name] = (statistics.median(ms) if ms else None, rounds[0]["note"])
        for name in speed_ladder.LOST:
            unit = found.get(f"{name}, 1")
            if not unit:
                return None
            lost[name] = (unit["ms"], unit["note"])
        size = dict(batch_size=self.batch_sizes("124M")[0][0], seq_len=1024)
        size = size | (speed_ladder.TINY if self.rehearsal else {}) | dict(micro_steps=1)
        return speed_ladder.assemble(argparse.Namespace(**size), trained, lost)

    def sanitizer(self):
        if self.rehearsal:
            raise NotRun("compute-sanitizer is for GPUs")
        toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        path = os.pathsep.join([os.environ["PATH"], f"{toolkit}/bin", f"{toolkit}/compute-sanitizer"])
        tool = shutil.which("compute-sanitizer", path=path)
        if not tool:
            raise NotRun(
                "compute-sanitizer is missing; it comes with the CUDA Toolkit (package cuda-sanitizer)"
            )
        # Tests provoke errors of the API on purpose, such as an allocation that is too large.
        checks = {"memcheck": ["--report-api-errors", "no"], "racecheck": []}
        for program in self.test_programs(SANITIZED_TESTS.match):
            for check, more in checks.items():

                def command(folder, check=check, more=more, program=program):
                    return [tool, "--tool", check, "--error-exitcode", 86, *more, program, "--gtest_brief=1"]

                name = f"{check} {program.name}"
                unit = Unit(name, command, self.read_sanitizer, identity(program), 60, 520, alone=False)
                unit.missing = absent(program)
                yield unit

    @staticmethod
    def read_sanitizer(code, folder, output):
        summary = re.findall(r"^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", output, re.M)
        if code == 86 and summary:
            raise Failed(summary[-1].lower())
        if code != 0:
            raise Failed(f"the test failed: {last_line(output)} (exit code {code})")
        if not summary:
            raise Failed(f"compute-sanitizer has checked nothing; its last line: {last_line(output)}")
        return {}

    # The most decisive parts come first. A part has a title, its units, and a check that runs when all have ended.
    PARTS = {
        "speed-124M": (
            "GPT-2 124M beside PyTorch",
            lambda self: self.speed("124M"),
            lambda self: self.judge_speed("124M"),
        ),
        "tests": ("tests of kernels, model and libraries, built by nvcc", tests, None),
        "deterministic": ("--deterministic: two runs, the same bits", bit_identity, judge_bit_identity),
        "curve-fp32": (
            "losses beside PyTorch's, fp32, a small model",
            lambda self: self.curve("fp32"),
            lambda self: self.judge_curve("fp32"),
        ),
        "curve-bf16": (
            "losses beside PyTorch's, bf16, 124M",
            lambda self: self.curve("bf16"),
            lambda self: self.judge_curve("bf16"),
        ),
        "kernels": ("every operation at the shapes of 124M", kernels, None),
        "speed-1558M": (
            "GPT-2 1558M beside PyTorch",
            lambda self: self.speed("1558M"),
            lambda self: self.judge_speed("1558M"),
        ),
        "ladder": ("what made a step faster", ladder, None),
        "sanitizer": ("compute-sanitizer: memcheck and racecheck", sanitizer, None),
        "long-tests": ("tests of whole programs", long_tests, None),
    }
