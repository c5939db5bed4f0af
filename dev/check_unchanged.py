#!/usr/bin/env python3
"""Proves that two trees compute the same bytes: weights, optimizer state, metrics, texts, scores and plans.

    dev/check_unchanged.py BASE [--only WORD] [--speed ROUNDS]

builds the commit BASE in build/unchanged/ and this tree in build/release/. Small models train in both, for every dtype, number of processes,
--zero, --recompute and optimizer; this tree also resumes what BASE has begun. Then both generate from, evaluate and convert BASE's models.
Times, speeds, versions and options that one tree lacks are not compared. Differences are printed, the first of each file or text; exits with 1 if there is one.

    --only WORD       the training runs whose name contains WORD, such as bf16 or zero
    --speed ROUNDS    also the ratio of both trees' times, in turns: a step of the default model and of GPT-2 124M, and a generated token
"""
import argparse
import itertools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ["train_gpt2", "generate_gpt2", "evaluate_gpt2", "convert"]
ENVIRONMENT = os.environ | {"OMP_WAIT_POLICY": "passive"}
STEPS, HALF = 20, 10
MODEL = {"--layers": 2, "--heads": 2, "--channels": 32, "--context": 32, "--vocab": 256, "--batch-size": 2, "--total-batch": 256, "--lr": 3e-3,
         "--steps": STEPS, "--warmup": 4, "--val-every": 5, "--val-steps": 3, "--sample-every": HALF, "--sample-tokens": 50,
         "--log-layer-norms": 5, "--check-replicas": 5, "--checkpoint-every": HALF}  # fmt: skip
OPTIMIZERS = {"adamw": {}, "adam": {"--weight-decay": 0.1}, "sgd": {"--momentum": 0.9, "--nesterov": None, "--lr": 0.1},
              "rmsprop": {"--momentum": 0.9, "--lr": 1e-3}}  # fmt: skip
# Keys of metrics.jsonl and state.json that differ between two runs of one program, name it, or are checksums of files that are compared.
OF_ONE_RUN = {"step_ms", "tokens_per_second", "mfu", "mfu_peak", "versions", "machine", "out", "resume", "resumed_from", "xxh3_64"}
TEXTS = {"greedy, past the context": ["--greedy", "--max-tokens", 80],
         "seeded": ["--temperature", 0.8, "--top-k", 20, "--top-p", 0.9, "--max-tokens", 15],
         "three": ["--samples", 3, "--stop-at-context"]}  # fmt: skip


class Tree:
    def __init__(self, name, root):
        self.name, self.root = name, root

    def build(self):
        subprocess.run(["scripts/configure.sh", "release"], cwd=self.root, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", "--preset", "release", "--target", *PROGRAMS], cwd=self.root, check=True, stdout=subprocess.DEVNULL)

    def run(self, program, *arguments, processes=1):
        launcher = [self.root / "test" / "mpi" / "mpirun.sh", "-np", processes] if processes > 1 else []
        command = [str(word) for word in (*launcher, self.root / "build" / "release" / program, *arguments)]
        done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        if done.returncode != 0:
            sys.exit(f"check_unchanged: {' '.join(command)}: exit status {done.returncode}\n{done.stderr.decode()}")
        return done.stdout

    def train(self, out, options, processes=1):
        words = [word for name, value in options.items() for word in (name, value) if word is not None]
        self.run("train_gpt2", *words, "--out", out, processes=processes)


def difference(ours, theirs, place=""):
    """The first difference of two values as a line, or None. Keys of one run, those that only `ours` has, and options that one of them lacks
    are passed over."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = [key for key in theirs if key not in OF_ONE_RUN and not (place.endswith("options.") and key not in ours)]
        return next(filter(None, (difference(ours.get(key), theirs[key], f"{place}{key}.") for key in keys)), None)
    if isinstance(ours, list) and isinstance(theirs, list):
        pairs = enumerate(itertools.zip_longest(ours, theirs))
        return next(filter(None, (difference(*pair, f"{place}{number}.") for number, pair in pairs)), None)
    if ours == theirs:
        return None
    if isinstance(ours, bytes) and isinstance(theirs, bytes) and max(len(ours), len(theirs)) > 200:
        at = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), min(len(ours), len(theirs)))
        return f"{place} byte {at} of {len(ours)} and {len(theirs)}"
    return f"{place} {ours} instead of {theirs}"


def contents(file):
    """A file's bytes, or its records if it has some that two runs of one program do not share."""
    if file.name == "state.json":
        return json.loads(file.read_bytes())
    if file.name != "metrics.jsonl":
        return file.read_bytes()
    records = [json.loads(line) for line in file.read_bytes().splitlines()]
    # A resumed run has one record more of its start.
    return [record for number, record in enumerate(records) if record["kind"] != "run" or number == 0]


class Comparison:
    def __init__(self):
        self.compared, self.differences = 0, 0

    def same(self, what, ours, theirs):
        self.compared += 1
        if first := difference(ours, theirs):
            self.differences += 1
            print(f"{what}: {first}", flush=True)

    def same_folders(self, what, ours, theirs):
        names = [sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) for folder in (ours, theirs)]
        self.same(f"{what}: names of files", *[" ".join(name) for name in names])
        for name in set(names[0]) & set(names[1]):
            self.same(f"{what}: {name}", contents(ours / name), contents(theirs / name))


def training_runs():
    """(name, options, processes)"""
    for dtype, (processes, zero), recompute, optimizer in itertools.product(("fp32", "bf16"), ((1, 0), (2, 0), (2, 1)), ("none", "gelu", "block"),
                                                                            OPTIMIZERS):  # fmt: skip
        options = {"--dtype": dtype, "--zero": zero, "--recompute": recompute, "--optimizer": optimizer, **OPTIMIZERS[optimizer]}
        if recompute == "block":
            options |= {"--head-chunks": 3, "--reduce-dtype": "bf16"}
        yield f"{dtype}, {processes} processes, zero {zero}, recompute {recompute}, {optimizer}", {**MODEL, **options}, processes


def check_training(base, ours, folder, comparison, only):
    """Returns the folders of BASE's runs of one process."""
    kept = []
    for number, (name, options, processes) in enumerate(training_runs()):
        if only not in name:
            continue
        runs = [folder / f"{number}-{kind}" for kind in ("base", "ours", "resumed")]
        base.train(runs[0], options, processes)
        ours.train(runs[1], options, processes)
        comparison.same_folders(name, runs[1], runs[0])
        # BASE's run as it was in the middle: its last checkpoint is missing, and this tree removes the steps after it from the metrics.
        shutil.copytree(runs[0], runs[2])
        shutil.rmtree(runs[2] / "checkpoints" / f"step_{STEPS:08}")
        ours.train(runs[2], {**options, "--resume": "auto"}, processes)
        comparison.same_folders(f"{name}, resumed from BASE's", runs[2], runs[0])
        plan = ["--resume", runs[0], "--plan", "--device-memory", "40G"]
        comparison.same(f"{name}, plan", *[tree.run("train_gpt2", *plan).splitlines() for tree in (ours, base)])
        if processes == 1 and options["--recompute"] == "none":
            kept.append(runs[0])
        else:
            shutil.rmtree(runs[0])
        for run in runs[1:]:
            shutil.rmtree(run)
    return kept


def check_inference(base, ours, model, comparison):
    trees = (ours, base)
    for dtype in ("--dtype=fp32", "--dtype=bf16", "--quantize=int8"):
        for name, options in TEXTS.items():
            arguments = ["generate_gpt2", model, dtype, "--json", "--prompt", "First Citizen", *options]
            comparison.same(f"{model.name}, {dtype}, text, {name}", *[tree.run(*arguments) for tree in trees])
        scores = [ROOT / "build" / "unchanged" / f"scores-{tree.name}.jsonl" for tree in trees]
        arguments = ["evaluate_gpt2", model, dtype, "--json", "--val-data", ROOT / "data" / "tinyshakespeare.txt", "--val-steps", 20,
                     "--hellaswag", ROOT / "test" / "reference" / "hellaswag.jsonl", "--hellaswag-scores"]  # fmt: skip
        comparison.same(f"{model.name}, {dtype}, scores", *[tree.run(*arguments, file) for tree, file in zip(trees, scores)])
        comparison.same(f"{model.name}, {dtype}, scores of the examples", *[file.read_bytes() for file in scores])
    with tempfile.TemporaryDirectory(dir=model.parent) as folder:
        for form in ("hf", "llmc-fp32", "llmc-bf16"):
            made = [pathlib.Path(folder) / f"{form}-{tree.name}" for tree in trees]
            for tree, path in zip(trees, made):
                tree.run("convert", model, "--format", form, "--out", path)
            if form == "hf":
                comparison.same_folders(f"{model.name}, converted, {form}", *made)
            else:
                comparison.same(f"{model.name}, converted, {form}", *[path.read_bytes() for path in made])


def show_speed(base, ours, folder, rounds):
    def step(options):
        def measure(tree):
            run = folder / "timed"
            tree.train(run, {**options, "--val-every": 0, "--sample-every": 0, "--checkpoint-every": 0})
            times = [record["step_ms"] for record in contents(run / "metrics.jsonl") if record["kind"] == "train"]
            shutil.rmtree(run)
            return statistics.median(times[3:])

        return measure

    large = {"--model": "gpt2", "--batch-size": 4, "--seq-len": 64, "--tokenizer": "gpt2"}
    base.train(folder / "large", {**large, "--steps": 1, "--val-every": 0, "--sample-every": 0, "--optimizer": "sgd"})

    def token(tree):
        began = time.monotonic()
        tree.run("generate_gpt2", folder / "large", "--greedy", "--max-tokens", 128, "--tokenizer", "none", "--tokens", "1,2,3")
        return time.monotonic() - began

    measures = {"step, default model": step({"--steps": 300}), "step, 124M, fp32": step({**large, "--steps": 12}),
                "step, 124M, bf16": step({**large, "--steps": 12, "--dtype": "bf16"}), "128 tokens, 124M, fp32": token}  # fmt: skip
    for name, measure in measures.items():
        ratios = [ours_time / base_time for ours_time, base_time in ((measure(ours), measure(base)) for _ in range(rounds))]
        print(f"{name}: this tree / {base.name}: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE", help="a commit")
    parser.add_argument("--only", metavar="WORD", default="")
    parser.add_argument("--speed", metavar="ROUNDS", type=int, default=0)
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "--verify", arguments.base + "^{commit}"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if commit.returncode != 0:
        sys.exit(2)
    name = commit.stdout.strip()
    base, ours = Tree(name, ROOT / "build" / "unchanged" / name), Tree("this tree", ROOT)
    if not base.root.exists():
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", base.root, name], cwd=ROOT, check=True)
    for tree in (base, ours):
        tree.build()
    comparison = Comparison()
    with tempfile.TemporaryDirectory() as folder:
        models = check_training(base, ours, pathlib.Path(folder), comparison, arguments.only)
        for model in models[:: max(1, len(models) // 2)]:  # one of each dtype
            check_inference(base, ours, model, comparison)
        if arguments.speed:
            show_speed(base, ours, pathlib.Path(folder), arguments.speed)
    print(f"{comparison.compared} comparisons with {name}: {comparison.differences} differences")
    sys.exit(comparison.differences > 0 or comparison.compared == 0)


if __name__ == "__main__":
    main()
