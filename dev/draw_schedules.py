#!/usr/bin/env python3
"""Draws docs/schedules.png: the learning rate of every --schedule, from the metrics of a tiny model's runs of 200 steps.

    dev/draw_schedules.py [--out FILE]     # needs: make
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from run_metrics import RunMetrics  # noqa: E402

SCHEDULES = re.findall(r'^    \{"(\w+)",', (ROOT / "trainer/run/schedule.cpp").read_text(), re.MULTILINE)
TINY = "--layers 1 --heads 1 --channels 8 --context 8 --batch-size 1 --val-every 0 --sample-every 0 --checkpoint-every 0 --log-every 1000".split()


def rates(schedule, folder):
    """The learning rate of each of 200 steps, 20 of them warmup, down to a tenth."""
    run = folder / schedule
    options = ["--schedule", schedule, "--steps", "200", "--warmup", "20", "--lr", "1e-3", "--min-lr-fraction", "0.1", "--out", run]
    subprocess.run([ROOT / "train_gpt2", *TINY, *options], check=True, stdout=subprocess.DEVNULL)
    return RunMetrics(run).values("train", "lr")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/schedules.png")
    arguments = parser.parse_args()
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, len(SCHEDULES), figsize=(9, 2.1), sharey=True, constrained_layout=True)
    with tempfile.TemporaryDirectory() as folder:
        for axis, schedule in zip(axes, SCHEDULES):
            axis.plot(range(1, 201), rates(schedule, pathlib.Path(folder)), color="#1f5fa8", linewidth=1.6)
            axis.set_title(schedule)
            axis.set_xlabel("step")
    axes[0].set_ylabel("learning rate")
    axes[0].set_ylim(0)
    figure.savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
