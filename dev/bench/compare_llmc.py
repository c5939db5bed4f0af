#!/usr/bin/env python3
"""One training step of GPT-2 124M on a CPU, 4 x 64 tokens: compare_pytorch.py --preset d12 with llm.c's train_gpt2, in turns in one run.

    git clone https://github.com/karpathy/llm.c && make -C llm.c train_gpt2
    make && dev/bench/compare_llmc.py llm.c          # ten minutes on 2 cores; --rounds 1 is enough to see whether it works

All but llm.c is compare_pytorch.py, whose options may follow; llm.c's program gets PyTorch's environment. It always has 4 x 64 tokens, fp32, AdamW
without clipping, and trains from gpt2_124M.bin; that file is made here from random weights by ./convert, and the token files by ./tokenize. A slice
ends it after its steps. --save keeps the figures as those of compare_pytorch.py --preset d12, with a row more.
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

DATA = "dev/data/tinyshakespeare"


class LlmcOnCpu(compare_pytorch.Contender):
    STEP = re.compile(r"^step \d+: train loss ([\d.]+|-?nan) \(took ([\d.]+) ms\)", re.M)

    def __init__(self, program, options, environment):
        """Writes the files that llm.c's program opens by these names in its working directory."""
        super().__init__("llmc", "llm.c fp32", options, "fp32", compare_pytorch.peer_environment(environment))
        self.program, self.folder = program, tempfile.TemporaryDirectory()
        data, weights = pathlib.Path(self.folder.name, DATA), pathlib.Path(self.folder.name, "weights")
        data.mkdir(parents=True)
        weights.mkdir()
        for split in ("train", "val"):
            (data / f"tiny_shakespeare_{split}.bin").symlink_to(pathlib.Path(options["data"].replace("*", "000000")).resolve())
        initial = json.dumps(options | {"init_from": str(weights)})
        subprocess.run([sys.executable, compare_pytorch.__file__, "--write-initial-weights", initial], check=True, env=environment)
        convert = os.environ.get("CONVERT_PROGRAM", compare_pytorch.ROOT / "convert")
        model = pathlib.Path(self.folder.name, "gpt2_124M.bin")
        subprocess.run([convert, weights, "--format", "llmc-fp32", "--out", model], check=True, stdout=subprocess.DEVNULL)

    def run(self, steps, discard):
        process = subprocess.Popen(["stdbuf", "-oL", self.program], cwd=self.folder.name, env=self.environment, text=True, stdout=subprocess.PIPE)
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

    def close(self):
        self.folder.cleanup()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"compare_llmc: {message}; --help shows the usage\n")
    parser.add_argument("llmc", type=pathlib.Path, help="the folder of llm.c, with train_gpt2 built, or that program")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of compare_pytorch.py (default: --rounds 3)")
    arguments = parser.parse_args()
    program = (arguments.llmc / "train_gpt2" if arguments.llmc.is_dir() else arguments.llmc).resolve()
    if not os.access(program, os.X_OK):
        parser.error(f"{program} is no program; build llm.c with: make train_gpt2")
    words = ["--preset", "d12", "--device", "cpu", "--rounds", "3", *arguments.options]
    compare_pytorch.main(words, lambda options, environment: LlmcOnCpu(program, options, environment), "compare_llmc")


if __name__ == "__main__":
    main()
