#!/usr/bin/env python3
"""One training step of GPT-2 124M on a CPU, 4 x 64 tokens: llm.c's train_gpt2, PyTorch and ours, in turns in one run.

    git clone https://github.com/karpathy/llm.c && make -C llm.c train_gpt2
    make && dev/bench/compare_llmc.py llm.c          # ten minutes on 2 cores; --rounds 1 is enough to see whether it works

Slices, warm-up and PyTorch's model are those of compare_pytorch.py. llm.c's program always has 4 x 64 tokens, fp32, AdamW without clipping, and trains
from gpt2_124M.bin; that file is made here from random weights by ./convert, and the token files by ./tokenize. A slice ends it after its steps.
The figures are kept in dev/bench/results/llmc-d12-MACHINE-DATE.json, from which dev/draw_speed.py draws.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import compare_pytorch  # noqa: E402
import result_file  # noqa: E402
from compare_pytorch import ROOT  # noqa: E402

DATA = "dev/data/tinyshakespeare"


class LlmcOnCpu(compare_pytorch.Contender):
    STEP = re.compile(r"^step \d+: train loss ([\d.]+|-?nan) \(took ([\d.]+) ms\)", re.M)

    def __init__(self, program, folder, options, environment):
        # Its README binds threads to cores for speed.
        super().__init__("llmc", "llm.c fp32", options, "fp32", environment | {"OMP_PROC_BIND": "true"})
        self.program, self.folder = program, folder

    def run(self, steps, discard):
        process = subprocess.Popen(["stdbuf", "-oL", self.program], cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE)
        found, peak = [], 0
        for line in process.stdout:
            if match := self.STEP.match(line):
                found.append((float(match[1]), float(match[2])))
                peak = int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{process.pid}/status").read_text())[1]) * 1024
            if len(found) == steps + discard:
                break
        process.kill()
        process.wait()
        if len(found) < steps + discard:
            raise RuntimeError(f"{len(found)} steps instead of {steps + discard} in its output")
        return dict(ms=[ms for _, ms in found[discard:]], losses=[loss for loss, _ in found], peak_bytes=peak)


def prepare(folder, options, environment):
    """The files that llm.c's program opens by these names in its working directory."""
    train = compare_pytorch.token_shards(str(compare_pytorch.TEXT), options["vocab"]).replace("*", "000000")
    (folder / DATA).mkdir(parents=True)
    for split in ("train", "val"):
        (folder / DATA / f"tiny_shakespeare_{split}.bin").symlink_to(pathlib.Path(train).resolve())
    weights = folder / "weights"
    weights.mkdir()
    subprocess.run([sys.executable, compare_pytorch.__file__, "--write-initial-weights", json.dumps(options | {"init_from": str(weights)})], check=True,
                   env=environment)  # fmt: skip
    convert = os.environ.get("CONVERT_PROGRAM", ROOT / "convert")
    subprocess.run([convert, weights, "--format", "llmc-fp32", "--out", folder / "gpt2_124M.bin"], check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"compare_llmc: {message}; --help shows the usage\n")
    parser.add_argument("llmc", type=pathlib.Path, help="the folder of llm.c, with train_gpt2 built, or that program")
    parser.add_argument("--rounds", type=int, default=3, help="slices of each contender (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, help="file for the figures (default: in dev/bench/results/)")
    arguments = parser.parse_args()
    program = (arguments.llmc / "train_gpt2" if arguments.llmc.is_dir() else arguments.llmc).resolve()
    if not os.access(program, os.X_OK):
        parser.error(f"{program} is no program; build llm.c with: make train_gpt2")
    compare_pytorch.enter_environment()
    version, _ = compare_pytorch.pytorch()
    preset = dict(compare_pytorch.PRESETS["d12"])
    layers, heads, channels = compare_pytorch.SIZES[preset.pop("model")]
    arguments.steps, arguments.discard, arguments.device = preset.pop("steps"), preset.pop("discard"), "cpu"
    arguments.slice = arguments.loss_check = None
    threads = len(os.sched_getaffinity(0))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    options = preset | dict(layers=layers, heads=heads, channels=channels, batch_size=4, total_batch=256, lr=3e-4, warmup=0, device="cpu", threads=threads)
    ours = options | dict(program=compare_pytorch.our_program("cpu"), data=compare_pytorch.token_shards(str(compare_pytorch.TEXT), options["vocab"]))
    contenders, results = [], {}
    with tempfile.TemporaryDirectory() as name:
        prepare(pathlib.Path(name), options, environment)
        contenders.append(LlmcOnCpu(program, name, options, environment))
        for dtype in ("fp32", "bf16"):
            contenders += [compare_pytorch.PyTorch(ours, dtype, compiled, environment) for compiled in (False, True)]
            contenders.append(compare_pytorch.Ours(ours, dtype, environment))
        try:
            compare_pytorch.measure(contenders, arguments, results)
        finally:
            for contender in contenders:
                contender.close()
    kept = {}
    for name, result in results.items():
        low, high = compare_pytorch.spread(result["ms"])
        kept[name] = dict(side=result["side"], dtype=result["dtype"], median_ms=round(statistics.median(result["ms"]), 1), p10_ms=round(low, 1),
                          p90_ms=round(high, 1), peak_mib=round(result["peak_bytes"] / 2**20))  # fmt: skip
        print(f"{name:28}{kept[name]['median_ms']:10.1f} ms{low:10.1f} to {high:.1f}{kept[name]['peak_mib']:8} MiB")
    versions = {"flatgpt": result_file.our_version(ours["program"]), "oneDNN": result_file.onednn_version(ours["program"]), "PyTorch": version}
    machine, now = result_file.machine(threads), datetime.datetime.now(datetime.timezone.utc)
    # Without "what", so that tables.py, which compares the commits of all its results, passes it over.
    saved = dict(tool="compare_llmc", commit=result_file.commit(), date=f"{now:%Y-%m-%d %H:%M}", source="measured", machine=machine, versions=versions,
                 options=options | dict(rounds=arguments.rounds, steps=arguments.steps), results=kept)  # fmt: skip
    path = arguments.out or result_file.default_path("llmc-d12", machine["name"], f"{now:%Y-%m-%d}")
    path.write_text(json.dumps(saved, indent=1) + "\n")
    print(f"saved to {path}")


if __name__ == "__main__":
    main()
