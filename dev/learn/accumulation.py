#!/usr/bin/env python3
"""Trains with one step cut into 1, 2 and 4 micro-steps, and as if 1/4 were forgotten; draws docs/learn/2-gradient-accumulation.png.

    python3 dev/learn/accumulation.py [--steps N] [--out FILE]     # needs make and matplotlib; one to three minutes

Prints the largest differences. The runs stay in runs/learn-accumulation/, and --draw draws them again.
"""
import argparse
import os
import pathlib
import shutil
import subprocess

import pictures  # beside this file
from pictures import np

TRAIN = os.environ.get("TRAIN_PROGRAM", str(pictures.ROOT / "train_gpt2"))
TOKENS, BATCH, N = 768, 12, 4  # tokens of a step: 12 sequences of 64; micro-steps of the mistaken runs
CLIP, EPS, SGD_LR = 1.0, 1e-8, 0.05
SGD = ["--optimizer", "sgd", "--clip", "0", "--lr"]
MICRO = ["--batch-size", str(BATCH // N)]
# With these options our program computes what one that forgets 1/N computes; the gradient norm of that one is N times ours.
RUNS = {
    "1 micro-step": ["--batch-size", str(BATCH)],
    "2 micro-steps": ["--batch-size", str(BATCH // 2)],
    "4 micro-steps": MICRO,
    "mistaken": [*MICRO, "--clip", repr(CLIP / N), "--eps", repr(EPS / N)],
    "sgd": [*MICRO, *SGD, repr(SGD_LR)],
    "sgd mistaken": [*MICRO, *SGD, repr(SGD_LR * N)],
}


def train(options, steps, folder):
    """Loss and gradient norm of every step."""
    quiet = ["--val-every", "0", "--sample-every", "0", "--checkpoint-every", "0", "--log-every", "1000"]
    subprocess.run([TRAIN, "--total-batch", str(TOKENS), "--steps", str(steps), *quiet, *options, "--out", folder], check=True, stdout=subprocess.DEVNULL)
    return read(folder)


def read(folder):
    return {key: np.array(pictures.RunMetrics(folder).values("train", key)) for key in ("loss", "grad_norm")}


def differences(curves):
    """The largest relative difference of the splits' norms and, in nats, of their losses and of the mistaken run's."""
    one = curves["1 micro-step"]
    splits = [curves["2 micro-steps"], curves["4 micro-steps"]]
    return {
        "split_loss": max(np.abs(s["loss"] - one["loss"]).max() for s in splits),
        "split_norm": max(np.abs(s["grad_norm"] / one["grad_norm"] - 1).max() for s in splits),
        "mistaken_loss": np.abs(curves["mistaken"]["loss"] - one["loss"]).max(),
        "mistaken_loss_mean": np.abs(curves["mistaken"]["loss"] - one["loss"]).mean(),
        "mistaken_loss_end": np.mean(curves["mistaken"]["loss"][-50:] - one["loss"][-50:]),
        "mistaken_norm": np.median(N * curves["mistaken"]["grad_norm"] / one["grad_norm"]),
        "sgd_loss_end": np.mean(curves["sgd mistaken"]["loss"][-50:] - curves["sgd"]["loss"][-50:]),
    }


def draw(curves, out):
    plt = pictures.pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(7.2, 4.6), sharex=True, sharey="row", constrained_layout=True)
    styles = {
        0: [("1 micro-step", pictures.GREY, "-", 4.0, 1, "right, 1 micro-step"), ("2 micro-steps", pictures.GREEN, "-", 2.2, 1, "right, 2 micro-steps"),
            ("4 micro-steps", pictures.BLUE, "-", 0.9, 1, "right, 4 micro-steps"), ("mistaken", pictures.RED, "--", 1.1, N, "1/4 forgotten, 4 micro-steps")],
        1: [("sgd", pictures.BLUE, "-", 0.9, 1, "right, 4 micro-steps"), ("sgd mistaken", pictures.RED, "--", 1.1, N, "1/4 forgotten, 4 micro-steps")],
    }
    for column, lines in styles.items():
        for name, color, style, width, factor, label in lines:
            steps = range(1, len(curves[name]["loss"]) + 1)
            axes[0, column].plot(steps, curves[name]["loss"], color=color, linestyle=style, linewidth=width, label=label)
            axes[1, column].plot(steps, factor * curves[name]["grad_norm"], color=color, linestyle=style, linewidth=width)
        axes[1, column].set_xlabel("step")
    axes[0, 0].set_title("AdamW, clipped: only the norm shows it")
    axes[0, 1].set_title("SGD, not clipped: both show it")
    axes[0, 0].set_ylabel("training loss (nats a byte)")
    axes[1, 0].set_ylabel("gradient norm before clipping")
    axes[1, 0].set_yscale("log")
    axes[0, 0].set_ylim(2, 6)
    worst = int(np.argmax(curves["sgd mistaken"]["loss"]))
    axes[0, 1].annotate(f"{curves['sgd mistaken']['loss'][worst]:.1f} at step {worst + 1}", (worst + 8, 4.6), color=pictures.RED, fontsize=8)
    axes[0, 0].legend(fontsize=8)
    axes[0, 1].legend(fontsize=8, loc="upper right")
    pictures.save(figure, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--draw", action="store_true", help="draw the runs that are there")
    parser.add_argument("--out", type=pathlib.Path, default=pictures.ROOT / "docs/learn/2-gradient-accumulation.png")
    arguments = parser.parse_args()
    folder = pictures.ROOT / "runs/learn-accumulation"
    if not arguments.draw:
        shutil.rmtree(folder, ignore_errors=True)
    curves = {}
    for name, options in RUNS.items():
        run = folder / name.replace(" ", "-")
        print(f"{name}: {' '.join(options)}", flush=True)
        curves[name] = read(run) if arguments.draw else train(options, arguments.steps, run)
    for name, value in differences(curves).items():
        print(f"{name:20} {value:.3g}")
    draw(curves, arguments.out)


if __name__ == "__main__":
    main()
