#!/usr/bin/env python3
"""One training step of GPT-2 124M on a CPU, 4 x 64 tokens: compare_pytorch.py --preset d12 with llm.c's train_gpt2, in turns in one run.

    git clone https://github.com/karpathy/llm.c && make -C llm.c train_gpt2
    make && dev/bench/compare_llmc.py llm.c          # ten minutes on 2 cores; --rounds 1 is enough to see whether it works

Slices, warm-up, the other contenders and their environment are those of compare_pytorch.py; llm.c's program gets PyTorch's environment. It always has
4 x 64 tokens, fp32, AdamW without clipping, and trains from gpt2_124M.bin; that file is made here from random weights by ./convert, and the token files
by ./tokenize. A slice ends it after its steps. --save keeps the figures as those of compare_pytorch.py --preset d12, with a row more.
"""
import argparse
import json
import os
import pathlib
import re
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
        super().__init__("llmc", "llm.c fp32", options, "fp32", compare_pytorch.peer_environment(environment))
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
    preset = dict(compare_pytorch.PRESETS["d12"])
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"compare_llmc: {message}; --help shows the usage\n")
    parser.add_argument("llmc", type=pathlib.Path, help="the folder of llm.c, with train_gpt2 built, or that program")
    parser.add_argument("--rounds", type=int, default=3, help="slices of each contender (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=preset.pop("steps"), help="counted steps a slice (default: %(default)s)")
    parser.add_argument("--discard", type=int, default=preset.pop("discard"), help="steps before them, not counted (default: %(default)s)")
    result_file.add_option(parser)
    arguments = parser.parse_args()
    program = (arguments.llmc / "train_gpt2" if arguments.llmc.is_dir() else arguments.llmc).resolve()
    if not os.access(program, os.X_OK):
        parser.error(f"{program} is no program; build llm.c with: make train_gpt2")
    compare_pytorch.enter_environment()
    version, _ = compare_pytorch.pytorch()
    layers, heads, channels = compare_pytorch.SIZES[preset.pop("model")]
    threads = len(os.sched_getaffinity(0))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    options = preset | dict(layers=layers, heads=heads, channels=channels, total_batch=256, lr=3e-4, warmup=0, device="cpu", threads=threads)
    ours = options | dict(program=compare_pytorch.our_program("cpu"), data=compare_pytorch.token_shards(str(compare_pytorch.TEXT), options["vocab"]))
    # what compare_pytorch.py --preset d12 --device cpu has
    chosen = argparse.Namespace(preset="d12", device="cpu", dtype=["fp32", "bf16"], mode=["plain", "compile"], batch_size=preset["batch_size"],
                                pytorch_batch_size=preset["batch_size"], llmc=None, slice=None, loss_check=None, no_onednn=False, plain_environment=False,
                                which_variables=False, save=arguments.save, rounds=arguments.rounds, steps=arguments.steps, discard=arguments.discard,
                                total_batch=256, loss_steps=0)  # fmt: skip
    results, contenders = {}, []
    with tempfile.TemporaryDirectory() as name:
        prepare(pathlib.Path(name), options, environment)
        try:
            contenders.append(LlmcOnCpu(program, name, options | {"batch_size": 4}, environment))
            contenders += compare_pytorch.contenders_of(ours, chosen, {"ours", "pytorch"}, environment)
            compare_pytorch.measure(contenders, chosen, results)
        finally:
            for contender in contenders:
                contender.close()
    compare_pytorch.take_medians(results, chosen)
    compare_pytorch.report(results, chosen)
    if arguments.save is not None:
        compare_pytorch.save(chosen, ours, results, version, threads, "compare_llmc")


if __name__ == "__main__":
    main()
