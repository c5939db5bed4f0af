#!/usr/bin/env python3
"""Trains the default small model with every optimizer at several learning rates, and draws docs/learn/4-optimizers.png.

    python3 dev/learn/optimizers.py                    # needs: make
    python3 dev/learn/optimizers.py --steps 1000       # longer runs, on a machine with more cores

Left: the training loss of each optimizer at the learning rate that gave its lowest validation loss. Right: the validation loss at the end against
the learning rate. All runs start from the same weights and see the same batches. Two tables more: how far a first step moves the biases, which start
from zero; and what becomes of a run whose every gradient is clipped to a norm of 0.1 or, ten times smaller, of 0.01.
"""
import array
import concurrent.futures
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import plot  # noqa: E402
from run_metrics import OneLineParser, RunMetrics  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("TRAIN_PROGRAM", ROOT / "train_gpt2"))
# Name, options, and learning rates.
OPTIMIZERS = {
    "sgd, momentum 0.9": (["--optimizer", "sgd", "--momentum", 0.9], (0.01, 0.03, 0.1, 0.3)),
    "rmsprop": (["--optimizer", "rmsprop"], (1e-4, 3e-4, 1e-3, 3e-3)),
    "adam": (["--optimizer", "adam"], (3e-4, 1e-3, 3e-3, 0.01)),
    "adam, decay 0.1 in the gradient": (["--optimizer", "adam", "--weight-decay", 0.1], (3e-4, 1e-3, 3e-3, 0.01)),
    "adamw, decay 0.1": (["--optimizer", "adamw"], (3e-4, 1e-3, 3e-3, 0.01)),
}
# The same step at two scales of the gradient: every gradient of this model has a norm beyond 0.1.
PROBES = [("adam", 1e-3), ("sgd, momentum 0.9", 0.1)]
CLIPS = (0.1, 0.01)


class Trained:
    """losses: of every step; val: the validation loss after the last one, NaN if the run diverged; norms: of the gradients before clipping."""

    def __init__(self, run):
        metrics = RunMetrics(run)
        self.losses, self.norms = metrics.values("train", "loss"), metrics.values("train", "grad_norm")
        self.val = (metrics.values("val", "loss") or [math.nan])[-1]


def train(options, folder):
    """One run on one thread. A run whose gradient stops being finite ends early, and its validation loss is NaN."""
    run = pathlib.Path(tempfile.mkdtemp(dir=folder))
    command = [PROGRAM, *options, "--sample-every", 0, "--checkpoint-every", 0, "--log-every", 1_000_000, "--out", run]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode != 0 and "not finite" not in done.stderr:
        sys.exit(f"optimizers: {' '.join(done.stderr.split())}")
    return Trained(run)


def first_step(name, arguments, clip):
    """The median over all biases of how far one step moves them, in units of the learning rate."""
    with tempfile.TemporaryDirectory() as folder:
        options = [*arguments.model, *OPTIMIZERS[name][0], "--lr", 1e-3, "--clip", clip, "--steps", 1, "--warmup", 0, "--schedule", "constant", "--val-every", 0]
        command = [PROGRAM, *options, "--sample-every", 0, "--checkpoint-every", 1, "--out", folder]
        subprocess.run([str(part) for part in command], check=True, capture_output=True)
        data = next(pathlib.Path(folder).glob("checkpoints/*/model.safetensors")).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header, moved = json.loads(data[8:begin]), array.array("f")
    for tensor, entry in header.items():
        if tensor.endswith(".bias") and entry.get("dtype") == "F32" and "attn.masked" not in tensor:
            moved.frombytes(data[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]])
    return statistics.median(map(abs, moved)) / 1e-3


def experiment(arguments):
    """({name: {lr: Trained}}, {(name, clip): Trained}). As many runs at a time as there are cores, each on one thread: nothing waits at a barrier."""
    common = [*arguments.model, "--steps", arguments.steps, "--warmup", arguments.steps // 10, "--val-every", arguments.steps, "--val-steps", arguments.val_steps]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        swept = {name: {lr: pool.submit(train, [*common, *options, "--lr", lr], folder) for lr in rates} for name, (options, rates) in OPTIMIZERS.items()}
        probes = {(name, clip): pool.submit(train, [*common, *OPTIMIZERS[name][0], "--lr", lr, "--clip", clip], folder)
                  for name, lr in PROBES for clip in CLIPS}  # fmt: skip
        return ({name: {lr: run.result() for lr, run in runs.items()} for name, runs in swept.items()},
                {key: run.result() for key, run in probes.items()})  # fmt: skip


def best(runs):
    """The learning rate with the lowest validation loss; a run that diverged has none."""
    return min(runs, key=lambda lr: math.inf if math.isnan(runs[lr].val) else runs[lr].val)


def draw(swept, steps, out):
    plt, np = plot.plt, plot.np
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3})
    figure, (curves, rates) = plt.subplots(1, 2, figsize=(11, 4.4), constrained_layout=True)
    lowest = min(runs[best(runs)].val for runs in swept.values())
    top = lowest + 0.75 * (max(run.losses[0] for runs in swept.values() for run in runs.values()) - lowest)
    for (name, runs), color in zip(swept.items(), plot.COLORS):
        lr, dashes = best(runs), "--" if name.startswith("adamw") else "-"  # it nearly hides adam
        curves.plot(range(1, len(runs[lr].losses) + 1), plot.smoothed(np.array(runs[lr].losses)), color=color, linestyle=dashes, linewidth=1.7, label=f"{name}; lr {lr:g}")
        vals = np.array([run.val for run in runs.values()])
        rates.plot(list(runs), np.where(vals > top, top, vals), color=color, linestyle=dashes, marker="o", markersize=4.5, linewidth=1.5)
        rates.plot([lr], [runs[lr].val], marker="o", markersize=9, markerfacecolor="none", markeredgecolor=color, markeredgewidth=1.6)
        diverged = [rate for rate, run in runs.items() if math.isnan(run.val) or run.val > top]
        rates.plot(diverged, [top] * len(diverged), linestyle="none", marker="x", markersize=8, color=color)
    curves.set(title="each optimizer at its best learning rate", xlabel="step", ylabel="training loss, nats a byte", ylim=(None, top), xlim=(0, steps))
    curves.legend(fontsize=9, frameon=False)
    crossed = any(math.isnan(run.val) or run.val > top for runs in swept.values() for run in runs.values())
    rates.set(title=f"after {steps} steps (ring: the best{'; cross: off the scale' if crossed else ''})", xlabel="peak learning rate", ylabel="validation loss, nats a byte",
              xscale="log")  # fmt: skip
    figure.savefig(out, dpi=100)
    plt.close(figure)


def main():
    parser = OneLineParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=200, help="of every run (default: %(default)s)")
    parser.add_argument("--val-steps", type=int, default=40, help="batches of the validation at the end (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/learn/4-optimizers.png")
    parser.add_argument("--tiny", action="store_true", help="a model that trains in no time, to try this out")
    arguments = parser.parse_args()
    arguments.model = "--layers 1 --heads 2 --channels 16 --context 16 --batch-size 8".split() if arguments.tiny else []
    if not PROGRAM.exists():
        sys.exit("optimizers: train_gpt2 is not built; please run: make")
    swept, probes = experiment(arguments)
    print(f"validation loss after {arguments.steps} steps, by learning rate; * the best")
    for name, runs in swept.items():
        print(f"{name:32}" + "".join(f"{lr:9g}: {run.val:.3f}{'*' if lr == best(runs) else ' '}" for lr, run in runs.items()))
    print(f"\na first step's way / learning rate, gradient clipped to a norm of {CLIPS[0]}, {CLIPS[1]}")
    for name in OPTIMIZERS:
        print(f"{name:34}" + "".join(f"{first_step(name, arguments, clip):12.3g}" for clip in CLIPS))
    print(f"\nvalidation loss, every gradient clipped to a norm of {CLIPS[0]}, {CLIPS[1]}")
    for name, lr in PROBES:
        print(f"{name + f', lr {lr:g}':34}" + "".join(f"{probes[name, clip].val:12.4f}" for clip in CLIPS))
    draw(swept, arguments.steps, arguments.out)
    print(f"\n{arguments.out}")


if __name__ == "__main__":
    main()
