#!/usr/bin/env python3
"""Compares the same training step in PyTorch and in flatgpt, alternating in one run: the ratio of their times.

    dev/bench/compare_pytorch.py --preset shakespeare        # a small GPT-2: 4 layers, C 128, bytes
    dev/bench/compare_pytorch.py --preset d12 --loss-check   # GPT-2 124M; also trains 100 steps on each side, from the same weights
    dev/bench/compare_pytorch.py --preset d12-1024           # GPT-2 124M, one sequence of 1024 tokens
    dev/bench/compare_pytorch.py --preset llama-d12          # a Llama of the same layers and channels
    dev/bench/compare_pytorch.py --preset nanochat --optimizer muon --loss-check --loss-steps 500
    dev/bench/compare_pytorch.py --preset d12 --which-variables --save   # which part of PyTorch's environment makes it faster
    dev/bench/compare_pytorch.py --model d12 --batch-size 8 --seq-len 1024 --dtype bf16 --json result.json
    dev/bench/compare_pytorch.py --preset 124M --dtype bf16 --llmc ~/llm.c     # on a GPU: 524,288 tokens a step, also against llm.c

--model llama:d12 and nanochat:d12 are the other families in the sizes of d12; --kv-heads and --hidden are a Llama's too.

PyTorch's side (pytorch_side.py) is written for speed: scaled_dot_product_attention, fused AdamW, bf16 autocast, padded vocabulary, no
dropout, gradients set to None; with and without torch.compile. Its Muon orthogonalises all matrices of one shape as one batch, in fp32 where
the parameters are fp32, as ours does; torch.optim.Muon does it one by one, and in bf16 always. Each PyTorch contender is a process that lives
through the whole run and sleeps while others work, unless memory is short; ours is started anew for every slice. All may use the same cores
and number of threads. A round is one slice of steps of every contender, in a rotating order. The first steps of a slice warm up and are not
counted, nor is compilation. The result is the median over the steps of all rounds; a step is batch, forward, backward, clipping and the
optimizer. No side validates, samples or writes checkpoints.

Our program asks for huge pages and binds its threads by itself. On a CPU PyTorch gets the same by PEER_ENVIRONMENT; --plain-environment
leaves it out. "oneDNN" rows are PyTorch with another library for the products of fp32: oneDNN's, which PyTorch contains, where it uses MKL by
itself. They are shown beside the others, and ratios to PyTorch's best leave them out.

On a GPU PyTorch, too, is started anew for every slice (compiled code stays on disk), because a sleeping process would hold memory that the
others need. Memory is that of the GPU, read by nvidia-smi in the same way for all.

PyTorch is installed into build/pytorch-venv, once; FLATGPT_PYTORCH_VENV names an environment that has it already.
"""
import argparse
import contextlib
import glob
import json
import math
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import result_file  # noqa: E402
import tables  # noqa: E402
from pytorch_side import CLIP, EPS, MOMENTUM, SEED, WEIGHT_DECAY, fail, worker, write_initial_weights  # noqa: E402
from result_file import ROOT, processor  # noqa: E402

TEXT = ROOT / "data" / "tinyshakespeare.txt"
SIZES = {"d6": (6, 6, 384), "d12": (12, 12, 768), "d24": (24, 16, 1024), "d36": (36, 20, 1280), "d48": (48, 25, 1600)}  # layers, heads, channels
SIZES |= {"gpt2": SIZES["d12"], "gpt2-medium": SIZES["d24"], "gpt2-large": SIZES["d36"], "gpt2-xl": SIZES["d48"]}
PRESETS = {
    "shakespeare": dict(layers=4, heads=4, channels=128, context=64, vocab=256, batch_size=12, seq_len=64, steps=100, discard=20),
    "d12": dict(model="d12", context=1024, vocab=50257, batch_size=4, seq_len=64, steps=8, discard=2),
    "d12-1024": dict(model="d12", context=1024, vocab=50257, batch_size=1, seq_len=1024, steps=4, discard=2),
    "llama": dict(family="llama", layers=4, heads=4, kv_heads=2, channels=128, hidden=352, context=64, vocab=256, batch_size=12, seq_len=64, steps=100, discard=20),
    "llama-d12": dict(model="llama:d12", context=1024, vocab=50257, batch_size=4, seq_len=64, steps=8, discard=2),
    "nanochat": dict(family="nanochat", layers=4, heads=4, channels=128, context=64, vocab=256, batch_size=12, seq_len=64, steps=100, discard=20),
    "nanochat-d12": dict(model="nanochat:d12", context=1024, vocab=50257, batch_size=4, seq_len=64, steps=8, discard=2),
    # For GPUs.
    "124M": dict(model="d12", context=1024, vocab=50257, batch_size=64, seq_len=1024, total_batch=524288, steps=8, discard=2),
    "1558M": dict(model="d48", context=1024, vocab=50257, batch_size=8, seq_len=1024, total_batch=32768, steps=8, discard=2),
}
FAMILIES = ("gpt2", "llama", "nanochat")
# The rates of our program's defaults with muon, which both sides are given.
RATES = {"adamw": dict(lr=3e-4, beta1=0.9, beta2=0.95), "muon": dict(lr=0.02, beta1=0.9, beta2=0.95, embedding_lr=0.003, head_lr=0.003, vector_lr=0.003)}
NANOCHAT_RATES = RATES["muon"] | dict(beta1=0.8, embedding_lr=0.1, vector_lr=0.01)
# Huge pages for PyTorch's tensors and for malloc, memory that stays with the process, threads that stay on their cores.
PEER_ENVIRONMENT = {
    "THP_MEM_ALLOC_ENABLE": "1",
    "OMP_PROC_BIND": "true",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=8589934592:glibc.malloc.trim_threshold=17179869184:glibc.malloc.top_pad=268435456",
}
TOOL = "compare_pytorch"
LOSS_WINDOW = 10  # --loss-check: the number of last steps whose mean is compared


# ---------------------------------------------------------------------------------------------------------------------------------------
# The contenders. run(steps, discard) trains, and returns {ms: of every counted step, losses: of every step, peak_bytes}.


def reason(log, code=0):
    """Why a program has ended: the line of its output with Python's last exception, or the last line; and its exit code, negative for a signal."""
    lines = [line for line in log.splitlines() if line.strip()] or ["no message"]
    line = next((line for line in reversed(lines) if line.split(":")[0].endswith("Error")), lines[-1])
    if code < 0:
        return f"{line} (killed by signal {-code}, {signal.strsignal(-code)})"
    return f"{line} (exit code {code})" if code > 0 else line


def read_metrics(path):
    """The records of a run. Raises RuntimeError if they are missing or incomplete."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise RuntimeError(f"{path.name} was not written: {error.strerror}") from None
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise RuntimeError(f"{path.name}, line {number} of {len(lines)}, is not whole: {error}") from None
    return records


class Worker:
    """A process of `program --worker OPTIONS` that lives through the whole run and answers every line of JSON with one."""

    def __init__(self, program, name, options, environment):
        self.name, self.log = name, tempfile.TemporaryFile("w+")
        command = [sys.executable, program, "--worker", json.dumps(options)]
        self.process = subprocess.Popen(command, env=environment, text=True, stderr=self.log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request):
        """Sends a request and returns the answer. Raises RuntimeError with the reason if the process has ended."""
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.log.seek(0)
            raise RuntimeError(reason(self.log.read(), self.process.wait()))
        return json.loads(answer)

    def close(self):
        self.process.kill()
        self.process.wait()


class Contender:
    def __init__(self, side, title, options, dtype, environment):
        self.side, self.dtype, self.environment = side, dtype, environment
        self.options, self.name, self.variables = options, f"{title}, B {options['batch_size']}", None

    def close(self):
        pass


def available_bytes():
    """The memory that a new process can take without swapping."""
    return int(re.search(r"MemAvailable:\s+(\d+) kB", pathlib.Path("/proc/meminfo").read_text())[1]) * 1024


class PyTorch(Contender):
    """variables: which part of PEER_ENVIRONMENT is compared, as a suffix of the name; every slice then starts a new process."""

    def __init__(self, options, dtype, compiled, environment, onednn=False, variables=None):
        title = f"PyTorch {dtype}{' oneDNN' if onednn else ''}{' compiled' if compiled else ''}{f', {variables}' if variables else ''}"
        more = dict(dtype=dtype, compile=compiled, onednn=onednn)
        super().__init__("pytorch_onednn" if onednn else "pytorch", title, options | more, dtype, environment)
        self.variables, self.worker, self.anew = variables, None, options["device"] == "cuda" or variables is not None

    def run(self, steps, discard):
        if not self.worker:
            self.worker = Worker(__file__, self.name, self.options, self.environment)
        answer = self.worker.ask(steps=steps, discard=discard)
        # A sleeping process keeps its memory; whoever is next, and whoever it wakes, may need as much again.
        if self.anew or available_bytes() < 2 * answer["peak_bytes"]:
            self.close()
        return answer

    def close(self):
        if self.worker:
            self.worker.close()
            self.worker = None


class LlmC(Contender):
    """llm.c's train_gpt2cu, which computes in the type that it was built for, by default bf16."""

    STEP = re.compile(r"^step +\d+/\d+ \| loss ([\d.]+|-?nan) .*?\| ([\d.]+) ms \|", re.M)

    def __init__(self, options, environment):
        super().__init__("llmc", "llm.c bf16", options, "bf16", environment)

    def run(self, steps, discard):
        o = self.options
        model = next(name for name, size in SIZES.items() if size == (o["layers"], o["heads"], o["channels"]))
        # llm.c validates before the first step and after the last, and divides by -v. It recomputes GELU for models that would not fit otherwise.
        command = [o["llmc"], "-i", o["data"], "-j", o["data"], "-e", model, "-b", o["batch_size"], "-t", o["seq_len"], "-d", o["total_batch"],
                   "-x", steps + discard, "-l", o["lr"], "-u", o["warmup"], "-c", WEIGHT_DECAY, "-v", 1 << 30, "-m", 1, "-s", 0,
                   "-r", 0 if o["layers"] <= 12 else 1]  # fmt: skip
        done = subprocess.run([str(part) for part in command], env=self.environment, cwd=pathlib.Path(o["llmc"]).parent, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(reason(done.stdout, done.returncode))
        found = [(float(loss), float(ms)) for loss, ms in self.STEP.findall(done.stdout)]
        if len(found) < steps + discard:
            raise RuntimeError(f"{len(found)} steps instead of {steps + discard} in its output")
        return dict(ms=[ms for _, ms in found[discard:]], losses=[loss for loss, _ in found], peak_bytes=None)


class Ours(Contender):
    def __init__(self, options, dtype, environment):
        super().__init__("ours", f"ours {dtype}", options, dtype, environment)

    def run(self, steps, discard):
        o = self.options
        shape = ["--layers", o["layers"], "--heads", o["heads"], "--channels", o["channels"], "--context", o["context"], "--vocab", o["vocab"]]
        family, muon = o.get("family", "gpt2"), o.get("optimizer") == "muon"
        shape += ["--kv-heads", o["kv_heads"], "--hidden", o["hidden"]] if family != "gpt2" else []
        shape += ["--nanochat"] if family == "nanochat" else []
        rates = [word for name in ("lr", "beta1", "beta2", *(("embedding_lr", "head_lr", "vector_lr") if muon else ()))
                 for word in (f"--{name.replace('_', '-')}", o.get(name, RATES["adamw"].get(name)))]  # fmt: skip
        rates += ["--optimizer", "muon", "--momentum", MOMENTUM] if muon else []
        command = [*o.get("launch", []), o["program"], "--train-data", o["data"], "--tokenizer", "byte" if o["vocab"] == 256 else "gpt2", "--data-order", "file",
                   *(["--init-from", o["init_from"]] if "init_from" in o else shape),
                   "--batch-size", o["batch_size"], "--seq-len", o["seq_len"], "--total-batch", o["total_batch"],
                   *rates, "--schedule", "constant", "--warmup", o["warmup"], "--weight-decay", WEIGHT_DECAY, "--eps", EPS, "--clip", CLIP,
                   "--seed", SEED, "--dtype", self.dtype, "--steps", steps + discard,
                   "--val-every", 0, "--sample-every", 0, "--checkpoint-every", 0, *o.get("more", [])]  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            out, log = pathlib.Path(folder, "run"), pathlib.Path(folder, "log")
            with log.open("w") as stream:
                process = subprocess.Popen([str(part) for part in [*command, "--out", out]], env=self.environment, stdout=stream, stderr=stream)
                _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                raise RuntimeError(reason(log.read_text(), process.returncode))
            records = read_metrics(out / "metrics.jsonl")
        train = [record for record in records if record["kind"] == "train"]
        if len(train) < steps + discard:
            raise RuntimeError(f"{len(train)} steps instead of {steps + discard} in its metrics.jsonl")
        losses = [math.nan if record["loss"] is None else record["loss"] for record in train]
        peak = None if o["device"] == "cuda" else usage.ru_maxrss * 1024
        return dict(ms=[record["step_ms"] for record in train[discard:]], losses=losses, peak_bytes=peak)


class GpuMemory:
    """`peak`: the most bytes in use on the GPU while this is open, beyond those before; None where nvidia-smi does not report them."""

    def __enter__(self):
        self.before = self.used()
        self.highest, self.closed = self.before, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        if self.before is not None:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.closed.set()
        self.peak = None
        if self.before is not None:
            self.thread.join()
            self.peak = self.highest - self.before

    def watch(self):
        while not self.closed.wait(0.25):
            self.highest = max(self.highest, self.used() or 0)

    @staticmethod
    def used():
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
        command = ["nvidia-smi", "-i", gpu, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        try:
            return int(subprocess.run(command, capture_output=True, text=True).stdout.split("\n")[0]) << 20
        except (OSError, ValueError):
            return None


def measure(contenders, arguments, results):
    """Warms up all contenders and runs the rounds. Fills results by name; a failing contender is left out, with its reason on stderr."""

    def attempt(contender, steps, discard):
        try:
            return contender.run(steps, discard)
        except RuntimeError as error:
            print(f"compare_pytorch: {contender.name} is left out: {error}", file=sys.stderr)
            contender.close()
            return None

    alive = []
    for contender in contenders:
        progress(f"{contender.name}: compiling and warming up")
        with GpuMemory() if arguments.device == "cuda" else contextlib.nullcontext() as memory:
            if arguments.loss_check:
                answer = attempt(contender, 0, arguments.loss_steps)
            elif arguments.slice:
                answer = attempt(contender, arguments.steps, arguments.discard)
            else:  # with other variables it compiles, and starts anew for its slices
                answer = attempt(contender, 0, 1 if contender.variables else max(5, arguments.discard))
        if answer:
            alive.append(contender)
            result = dict(side=contender.side, dtype=contender.dtype, batch_size=contender.options["batch_size"], ms=answer["ms"] if arguments.slice else [],
                          variables=contender.variables, peak_bytes=memory and memory.peak or answer["peak_bytes"])  # fmt: skip
            if arguments.loss_check:
                losses = answer["losses"][: arguments.loss_steps]
                result |= dict(losses=losses, loss=statistics.fmean(losses[-LOSS_WINDOW:]))
            results[contender.name] = result
    for round_ in range(arguments.rounds):
        for k in range(len(alive)):
            contender = alive[(k + round_) % len(alive)]
            progress(f"round {round_ + 1} of {arguments.rounds}: {contender.name}")
            answer = attempt(contender, arguments.steps, arguments.discard)
            if answer:
                result = results[contender.name]
                result["ms"] += answer["ms"]
                if arguments.device == "cpu":
                    result["peak_bytes"] = max(answer["peak_bytes"], result["peak_bytes"])
            else:
                results.pop(contender.name)
        alive = [contender for contender in alive if contender.name in results]
    progress("")


def medians(results):
    """Medians and quantiles of the contenders, as a result file has them."""
    kept = {}
    for name, result in results.items():
        kept[name] = {key: result[key] for key in ("side", "dtype", "variables") if result.get(key)}
        if ms := result["ms"]:
            low, *_, high = statistics.quantiles(ms, n=10) if len(ms) > 1 else (ms[0], ms[0])
            kept[name] |= dict(median_ms=round(statistics.median(ms), 3), p10_ms=round(low, 3), p90_ms=round(high, 3),
                               peak_mib=round(result["peak_bytes"] / 2**20) if result["peak_bytes"] else None)  # fmt: skip
        if "loss" in result:
            kept[name]["loss"] = round(result["loss"], 4)
    return kept


def report_losses(results):
    """Says, for each type, by how much our losses of --loss-check differ from those of PyTorch without torch.compile."""
    with_losses = [result for name, result in results.items() if "losses" in result and "compiled" not in name]
    for ours in with_losses:
        for theirs in with_losses:
            if (ours["side"], theirs["side"], theirs["dtype"]) == ("ours", "pytorch", ours["dtype"]):
                apart = [abs(a - b) for a, b in zip(ours["losses"], theirs["losses"])]
                most, mean = max(apart), statistics.fmean(apart)
                at = apart.index(most) + 1
                print(f"{ours['dtype']}: the losses of {len(apart)} steps differ by at most {most:.1e} (step {at}), by {mean:.1e} in the mean")


def save(arguments, options, results, version, threads, tool=TOOL):
    """Saves the result file for the tables: medians and quantiles."""
    kept = {name: result for name, result in medians(results).items() if "median_ms" in result}
    program = options.get("program")
    versions = {"PyTorch": version} | ({"flatgpt": result_file.our_version(program), "oneDNN": result_file.onednn_version(program)} if program else {})
    shown = {name: value for name, value in options.items() if name not in ("program", "data", "init_from", "llmc")}
    shown |= dict(rounds=arguments.rounds, steps=arguments.steps)
    changed = [name for name, value in preset_of(arguments).items() if name in options and options[name] != value]
    kind = "variables" if arguments.which_variables else "training"
    kind += "" if options.get("optimizer", "adamw") == "adamw" else f"-{options['optimizer']}"
    what = f"{kind}-other" if changed else f"{kind}-{arguments.preset}"
    theirs = {} if arguments.plain_environment else PEER_ENVIRONMENT
    environment = {"PyTorch and llm.c" if tool == "compare_llmc" else "PyTorch": theirs} if arguments.device == "cpu" and not arguments.which_variables else {}
    result_file.save(arguments.save, tool, what, threads, versions, shown, kept, environment)


def peer_environment(environment, plain=False, names=PEER_ENVIRONMENT):
    """environment with these variables of PEER_ENVIRONMENT and without its others."""
    names = () if plain else names
    return {name: value for name, value in environment.items() if name not in PEER_ENVIRONMENT} | {name: PEER_ENVIRONMENT[name] for name in names}


def parts_of_environment():
    """The parts of PEER_ENVIRONMENT that --which-variables compares: {title: names}."""
    every = list(PEER_ENVIRONMENT)
    parts = {"none": [], "all": every} | {f"{name} alone": [name] for name in every}
    return parts | {f"all without {name}": [other for other in every if other != name] for name in every}


def contenders_of(options, arguments, wanted, environment):
    """The contenders in the order of their rows, by dtype."""
    theirs = environment if arguments.device == "cuda" else peer_environment(environment, arguments.plain_environment)
    modes, onednn = arguments.mode if "pytorch" in wanted else [], arguments.device == "cpu" and not (arguments.slice or arguments.loss_check)
    contenders = []
    for dtype in arguments.dtype:
        for library in (False, True) if onednn and dtype == "fp32" and not arguments.no_onednn else (False,):
            for mode in modes:
                contenders.append(PyTorch(options, dtype, mode == "compile", theirs, library))
        if "ours" in wanted:
            contenders.append(Ours(options, dtype, environment))
        if arguments.llmc and dtype == "bf16" and arguments.slice in (None, "llmc"):
            contenders.append(LlmC(options, environment))
    return contenders


def contenders_by_variables(options, arguments, environment):
    """PyTorch once with each part of PEER_ENVIRONMENT."""
    return [PyTorch(options, dtype, mode == "compile", peer_environment(environment, names=names), variables=title)
            for dtype in arguments.dtype for mode in arguments.mode for title, names in parts_of_environment().items()]  # fmt: skip


def progress(text):
    """Shows progress in one line that is overwritten, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def pytorch():
    """PyTorch's version and the GPU it sees, or "". Another process imports it, because a child's peak memory begins with its parent's."""
    code = "import torch; print(torch.__version__); print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if result.returncode != 0:
        fail(f"PyTorch in {sys.prefix} does not work: {reason(result.stderr, result.returncode)}")
    return result.stdout.split("\n")[:2]


def enter_environment(*packages, optional=()):
    """Continues in the environment that has PyTorch and these packages; creates it first if necessary. An optional package may be missing."""
    venv = pathlib.Path(os.environ.get("FLATGPT_PYTORCH_VENV", ROOT / "build" / "pytorch-venv"))
    if pathlib.Path(sys.prefix).resolve() == venv.resolve():
        return
    python, ready = venv / "bin" / "python", venv / "-".join([".has_pytorch", *packages, *optional])
    if "FLATGPT_PYTORCH_VENV" in os.environ:
        if not python.exists():
            fail(f"FLATGPT_PYTORCH_VENV={venv} has no bin/python")
    elif not ready.exists():
        print(f"compare_pytorch: installing PyTorch into {venv} (once; some minutes)", file=sys.stderr)
        if subprocess.call([sys.executable, "-m", "venv", str(venv)]) != 0:
            fail(f"cannot make {venv}; it needs the package python3-venv")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install = [*pip, "torch", "numpy"]
        if subprocess.call(install) != 0:
            fail(f"could not run: {' '.join(install)}")
        if packages and subprocess.call([*pip, *packages]) != 0:
            fail(f"could not run: {' '.join([*pip, *packages])}")
        for package in optional:
            if subprocess.call([*pip, package]) != 0:
                print(f"compare_pytorch: {package} could not be installed", file=sys.stderr)
        ready.touch()
    os.execv(python, [str(python), *sys.argv])


def our_program(device):
    program = pathlib.Path(os.environ.get("TRAIN_PROGRAM", ROOT / ("train_gpt2cu" if device == "cuda" else "train_gpt2")))
    target = "make gpu" if device == "cuda" else "make"
    if not program.exists():
        fail(f"{program.name} is not built; please run: {target} (or pass --pytorch-only)")
    sources = [path for folder in ("kernels", "system", "trainer") for path in (ROOT / folder).rglob("*.*")] + [ROOT / "train_gpt2.cu"]
    newest = max((path for path in sources if path.exists()), key=lambda path: path.stat().st_mtime, default=None)
    if newest and newest.stat().st_mtime > program.stat().st_mtime:
        print(f"compare_pytorch: {newest.relative_to(ROOT)} is newer than {program.name}; if that matters, run: {target}", file=sys.stderr)
    return str(program)


def token_shards(data, vocab):
    """The pattern of the shards to train on; our own program tokenizes texts first."""
    if not data.endswith(".txt"):
        return data
    texts, tokenizer = sorted(glob.glob(data)), "byte" if vocab == 256 else "gpt2"
    if not texts:
        fail(f"there is no --data {data}")
    folder = pathlib.Path(os.environ.get("FLATGPT_BENCH_DATA", ROOT / "build" / "bench-data"), "-".join([*(pathlib.Path(text).stem for text in texts), tokenizer]))
    if not (folder / "train_000000.bin").exists():
        program = pathlib.Path(os.environ.get("TOKENIZE_PROGRAM", ROOT / "tokenize"))
        if not program.exists():
            fail(f"tokenize is not built, and {data} needs it; please run: make (or pass --data with token shards)")
        folder.mkdir(parents=True, exist_ok=True)
        if subprocess.call([program, "--tokenizer", tokenizer, "--out", folder, *texts], stdout=subprocess.DEVNULL) != 0:
            fail(f"tokenizing {data} failed")
    return str(folder / "train_*.bin")


def use_threads(threads):
    """Keeps this process, and those that it starts, to as many cores; all by default. Returns their number and the environment of the processes."""
    cores = sorted(os.sched_getaffinity(0))
    threads = threads or len(cores)
    os.sched_setaffinity(0, cores[:threads])
    return threads, os.environ | {"OMP_NUM_THREADS": str(threads)}


def positive(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be positive")
    return int(text)


def sizes_of(model):
    """The values that a name of --model stands for."""
    if not model:
        return {}
    family, size = model.split(":") if ":" in model else ("gpt2", model)
    return dict(zip(("layers", "heads", "channels"), SIZES[size])) | dict(family=family)


def preset_of(arguments):
    preset = dict(family="gpt2") | PRESETS[arguments.preset]
    return preset | sizes_of(preset.get("model"))


def set_defaults(arguments):
    """What neither the command line nor the preset says: heads and width as our program chooses them, and the optimizer's rates."""
    if arguments.family == "gpt2":
        arguments.kv_heads, arguments.hidden = arguments.heads, 4 * arguments.channels
    arguments.kv_heads = arguments.kv_heads or arguments.heads
    arguments.hidden = arguments.hidden or (4 * arguments.channels if arguments.family == "nanochat" else -(-8 * arguments.channels // 96) * 32)
    rates = NANOCHAT_RATES if (arguments.optimizer, arguments.family) == ("muon", "nanochat") else RATES[arguments.optimizer]
    for name, value in rates.items():
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, value)


def parse_arguments(words, tool):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"{tool}: {message}; --help shows the usage\n")
    parser.add_argument("--preset", choices=PRESETS, default="shakespeare", help="values for whatever is not given (default: %(default)s)")
    models = [*SIZES, *(f"{family}:{size}" for family in FAMILIES[1:] for size in SIZES if size[0] == "d")]
    parser.add_argument("--model", choices=models, metavar="NAME", help="layers, heads and channels by name: d12, llama:d12, nanochat:d12, ...")
    for name in ("layers", "heads", "channels", "kv-heads", "hidden", "context", "vocab", "seq-len"):
        parser.add_argument(f"--{name}", type=positive)
    parser.add_argument("--batch-size", type=positive, help="sequences of a micro-step")
    parser.add_argument("--total-batch", type=positive, help="tokens of a step (default: one micro-step)")
    parser.add_argument("--optimizer", choices=RATES, default="adamw", help="(default: %(default)s)")
    parser.add_argument("--lr", type=float, help="(default: 3e-4; with muon 0.02, of the matrices)")
    parser.add_argument("--warmup", type=int, default=0, help="steps over which the learning rate rises (default: %(default)s)")
    parser.add_argument("--dtype", default="fp32,bf16", help="a list of fp32, tf32, bf16 (default: %(default)s)")
    parser.add_argument("--mode", help="of PyTorch, a list of plain, compile (default: both; compile with --which-variables)")
    parser.add_argument("--no-onednn", action="store_true", help="on a CPU: leave out PyTorch's rows with oneDNN's products in fp32")
    parser.add_argument("--plain-environment", action="store_true", help=f"on a CPU: run PyTorch without {', '.join(PEER_ENVIRONMENT)}")
    parser.add_argument("--data", default=str(TEXT), help="token shards (a glob), or a .txt file (default: %(default)s)")
    parser.add_argument("--steps", type=positive, help="counted steps a slice")
    parser.add_argument("--discard", type=positive, help="steps before them, not counted")
    parser.add_argument("--rounds", type=int, default=5, help="slices of each contender (default: %(default)s)")
    parser.add_argument("--threads", type=positive, help="default: one for each core this process may use")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--loss-check", action="store_true", help=f"train --loss-steps first, all from the same weights; report the mean loss of the last {LOSS_WINDOW}")
    parser.add_argument("--loss-steps", type=positive, default=100, help="(default: %(default)s)")
    parser.add_argument("--llmc", metavar="PATH", help="on a GPU: a built llm.c, or its train_gpt2cu, to compare with as well")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--pytorch-only", action="store_true", help="leave ours out")
    only.add_argument("--ours-only", action="store_true", help="leave PyTorch out; it need not be installed")
    only.add_argument("--which-variables", action="store_true", help="on a CPU: compare PyTorch without these variables, with each of them, without each, with all")
    only.add_argument("--slice", choices=("ours", "pytorch", "llmc"), help="start this one contender once, for --discard and --steps (gpu_check's grain)")
    parser.add_argument("--json", metavar="OUT", help="write the results, every step's time included")
    result_file.add_option(parser)
    arguments = parser.parse_args(words)
    for name, value in (preset_of(arguments) | sizes_of(arguments.model)).items():
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, value)
    if bool(arguments.kv_heads) != bool(arguments.hidden) and arguments.family == "gpt2":
        parser.error("a Llama has both --kv-heads and --hidden")
    if arguments.kv_heads and arguments.family == "gpt2":
        arguments.family = "llama"
    set_defaults(arguments)
    arguments.mode = arguments.mode or ("compile" if arguments.which_variables else "plain,compile")
    arguments.dtype, arguments.mode = arguments.dtype.split(","), arguments.mode.split(",")
    if not set(arguments.dtype) <= {"fp32", "tf32", "bf16"} or not set(arguments.mode) <= {"plain", "compile"}:
        parser.error("--dtype is a list of fp32, tf32, bf16, and --mode of plain, compile")
    if arguments.heads % arguments.kv_heads:
        parser.error("--kv-heads must divide --heads")
    if arguments.channels % arguments.heads or arguments.seq_len > arguments.context:
        parser.error("--channels must be a multiple of --heads, and --seq-len at most --context")
    arguments.total_batch = arguments.total_batch or arguments.batch_size * arguments.seq_len
    if arguments.total_batch % (arguments.batch_size * arguments.seq_len):
        parser.error(f"--total-batch {arguments.total_batch} is not a multiple of {arguments.batch_size} x {arguments.seq_len} tokens")
    if (arguments.ours_only or arguments.slice) and arguments.device == "auto":
        parser.error("--ours-only and --slice need --device cpu or cuda")
    if arguments.which_variables and (arguments.loss_check or arguments.plain_environment):
        parser.error("--which-variables compares times of several environments; expected neither --loss-check nor --plain-environment")
    if arguments.slice:
        arguments.rounds = 0
    if arguments.llmc:
        if arguments.family != "gpt2" or arguments.optimizer != "adamw":
            parser.error("--llmc: llm.c trains GPT-2 with AdamW only")
        if arguments.device == "cpu":
            parser.error("--llmc: llm.c is compared with on a GPU; expected --device cuda")
        path = pathlib.Path(arguments.llmc).expanduser().resolve()
        arguments.llmc = str(path / "train_gpt2cu" if path.is_dir() else path)
        if not os.access(arguments.llmc, os.X_OK):
            parser.error(f"--llmc: {arguments.llmc} is no program; build llm.c with: make train_gpt2cu")
        if (arguments.layers, arguments.heads, arguments.channels) not in SIZES.values():
            parser.error("--llmc: llm.c knows the sizes of --model only")
    return arguments


def main(words=None, more=None, tool=TOOL):
    """words: the options, those of the command line by default; more(options, environment) returns a contender beside those that they name."""
    if sys.argv[1:2] == ["--worker"]:
        return worker(json.loads(sys.argv[2]))
    if sys.argv[1:2] == ["--write-initial-weights"]:
        return write_initial_weights(json.loads(sys.argv[2]))
    arguments = parse_arguments(words, tool)
    version, gpu = None, ""
    only_pytorch = arguments.pytorch_only or arguments.which_variables
    wanted = {arguments.slice} if arguments.slice else {"pytorch"} if only_pytorch else {"ours"} if arguments.ours_only else {"ours", "pytorch"}
    if ("pytorch" in wanted or arguments.loss_check) and not arguments.slice:
        enter_environment()
        version, gpu = pytorch()
    if arguments.device == "auto":
        arguments.device = "cuda" if gpu else "cpu"
    if arguments.which_variables and arguments.device == "cuda":
        fail("--which-variables: these variables are for a CPU; expected --device cpu")
    threads, environment = use_threads(arguments.threads)
    scratch = tempfile.TemporaryDirectory()
    environment.setdefault("FLATGPT_MATMULS", str(pathlib.Path(scratch.name, "matmul_algorithms.json")))  # our slices on a GPU time products once
    names = ("family", "layers", "heads", "channels", "kv_heads", "hidden", "context", "vocab", "batch_size", "seq_len", "total_batch", "optimizer", "warmup",
             "device", "llmc", *RATES["muon"])  # fmt: skip
    options = {name: getattr(arguments, name) for name in names if hasattr(arguments, name)} | dict(threads=threads)
    if "ours" in wanted:
        options["program"] = our_program(arguments.device)
    options["data"] = token_shards(arguments.data, arguments.vocab)
    machine = (gpu or "a GPU") if arguments.device == "cuda" else f"{processor()}, {threads} threads"
    family = {"gpt2": "GPT-2", "llama": "Llama ({kv_heads} heads of keys, MLP of {hidden})", "nanochat": "nanochat"}[options["family"]]
    sizes = " of {layers} layers, {heads} heads, C {channels}, V {vocab}, sequences of {seq_len}, {total_batch} tokens a step, {optimizer}"
    print((family + sizes).format(**options))
    print(f"{machine}; {f'PyTorch {version}' if version else 'without PyTorch'}")
    if "pytorch" in wanted and arguments.device == "cpu" and not arguments.which_variables:
        print(f"PyTorch's environment: {'plain' if arguments.plain_environment else result_file.shown_environment(PEER_ENVIRONMENT)}")

    contenders, results, interrupted, initial = [], {}, False, tempfile.TemporaryDirectory()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments.loss_check:
            options["init_from"] = initial.name
            if subprocess.call([sys.executable, __file__, "--write-initial-weights", json.dumps(options)], env=environment) != 0:
                fail("the initial weights could not be written")
        if more:
            contenders.append(more(options, environment))
        if arguments.which_variables:
            contenders += contenders_by_variables(options, arguments, environment)
        else:
            contenders += contenders_of(options, arguments, wanted, environment)
        measure(contenders, arguments, results)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        for contender in contenders:
            contender.close()
        initial.cleanup()
        scratch.cleanup()
    sides = {result["side"] for result in results.values()}
    if results:
        print(tables.aligned(tables.training_table(dict(results=medians(results)))))
    report_losses(results)
    if arguments.json:
        theirs = {} if arguments.plain_environment or arguments.device == "cuda" else PEER_ENVIRONMENT
        whole = dict(machine=machine, pytorch=version, environment=theirs, options=options, results=results)
        pathlib.Path(arguments.json).write_text(json.dumps(whole, indent=1) + "\n")
    if arguments.save is not None and results and not interrupted:
        save(arguments, options, results, version, threads, tool)
    if interrupted:
        fail("interrupted")
    if not wanted <= sides:
        fail("there is nothing to compare")


if __name__ == "__main__":
    main()
