#!/usr/bin/env python3
"""Draws docs/speed.png from dev/bench/results/: a step's time beside llm.c's and PyTorch's, and how many times as fast as PyTorch on each machine.

    dev/draw_speed.py [--out FILE]

Above: the newest result of dev/bench/compare_llmc.py, one run in turns, GPT-2 124M on a CPU.
Below: the newest result of dev/bench/compare_pytorch.py for each model and machine, PyTorch's best time divided by ours.
"""
import argparse
import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "dev" / "bench" / "results"
sys.path.insert(0, str(ROOT / "dev" / "bench"))
import tables  # noqa: E402

COLORS = {"ours": "#c8553d", "pytorch": "#1f5fa8", "llmc": "#6e7781"}
MODELS = {"training-shakespeare": "4 layers, C 128", "training-d12": "GPT-2 124M"}


def newest_with_llmc():
    files = [json.loads(path.read_text()) for path in RESULTS.glob("llmc-d12-*.json")]
    return max(files, key=lambda result: result["date"])


def shown(name):
    return name.split(", B ")[0].replace("ours", "flatgpt")


def draw_times(axis, result):
    """A bar a contender, the slowest first."""
    contenders = sorted(result["results"].items(), key=lambda item: item[1]["median_ms"])
    for place, (_, contender) in enumerate(contenders):
        ms = contender["median_ms"]
        axis.barh(place, ms, color=COLORS[contender["side"]], height=0.72)
        axis.annotate(f"{ms / 1000:.2f} s", (ms, place), (5, 0), textcoords="offset points", va="center")
    axis.set_yticks(range(len(contenders)), [shown(name) for name, _ in contenders])
    for label, (_, contender) in zip(axis.get_yticklabels(), contenders):
        label.set_color(COLORS[contender["side"]])
        label.set_fontweight("bold" if contender["side"] == "ours" else "normal")
    axis.set_xlim(0, contenders[-1][1]["median_ms"] * 1.15)
    axis.xaxis.set_major_formatter(lambda ms, _: f"{ms / 1000:g} s")
    axis.set_title(f"One training step of GPT-2 124M, 4 x 64 tokens\n{tables.machine(result)}, all in turns; commit {result['commit']}", loc="left", fontsize=11)


def draw_ratios(axis, results):
    rows = []
    for what, model in MODELS.items():
        for result in results.of(what):
            ratio = 1 / tables.ours_over_pytorch(result)
            rows.append((f"{model}, {result['machine']['name']}", ratio, result["commit"], results.older(result)))
    for place, (_, ratio, commit, older) in enumerate(reversed(rows)):
        axis.barh(place, ratio - 1, left=1, color=COLORS["ours"], alpha=0.55 if older else 1, height=0.72)  # a log axis has no zero to begin at
        axis.annotate(f"{ratio:.1f}x  ({commit}{', older' if older else ''})", (ratio, place), (5, 0), textcoords="offset points", va="center")
    axis.set_yticks(range(len(rows)), [label for label, *_ in reversed(rows)])
    axis.axvline(1, color=COLORS["pytorch"], linewidth=2)
    axis.set_xscale("log")
    axis.set_xlim(1, max(ratio for _, ratio, *_ in rows) * 1.9)
    axis.set_xticks([], minor=True)
    axis.set_xticks([1, 1.5, 2, 3], ["PyTorch", "1.5x", "2x", "3x"])
    axis.get_xticklabels()[0].set_color(COLORS["pytorch"])
    axis.set_title("flatgpt: times as fast as PyTorch, each at its best (fp32 or bf16, plain or compiled)\n2 cores; all of a row in turns in one run; commit in parentheses", loc="left", fontsize=11)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "speed.png")
    arguments = parser.parse_args()
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 5.8), constrained_layout=True, height_ratios=[7, 6])
    draw_times(above, newest_with_llmc())
    draw_ratios(below, tables.Results(RESULTS))
    figure.savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
