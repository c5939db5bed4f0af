#!/usr/bin/env python3
"""Draws README.md's picture, docs/speed.png: the speed of training that dev/bench/tables.py chooses from dev/bench/results/.

    dev/draw_speed.py [--out FILE]

The picture's file contains these figures, too, so that tables.py --check sees whether it was drawn from the same results as the tables.
"""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "dev" / "bench"))
import compare_pytorch  # noqa: E402
import tables  # noqa: E402

try:
    import matplotlib
except ImportError:
    compare_pytorch.enter_environment("matplotlib")
    sys.exit("draw_speed: matplotlib is missing; it is installed by: pip install matplotlib")
matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

OURS, OTHERS = "#c8553d", "#9aa3ad"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the tree with the results (default: this one)")
    parser.add_argument("--out", type=pathlib.Path, help="(default: docs/speed.png in that tree)")
    arguments = parser.parse_args()
    figures = tables.bars(tables.Results(arguments.root / "dev" / "bench" / "results"))
    bars = figures["bars"]
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.spines.bottom": False})
    figure, axis = plt.subplots(figsize=(8.6, 0.9 + 0.5 * len(bars)), constrained_layout=True)
    for place, (name, side, rate, ms) in enumerate(reversed(bars)):
        color = OURS if side == "ours" else OTHERS
        axis.barh(place, rate, color=color, height=0.66)
        text = f"{rate:,.0f} tokens/s  ({ms:,.0f} ms a step)"
        axis.annotate(text, (rate, place), (6, 0), textcoords="offset points", va="center", fontweight="bold" if side == "ours" else "normal")
    axis.set_yticks(range(len(bars)), [name for name, *_ in reversed(bars)])
    axis.get_yticklabels()[0].set_fontweight("bold")
    axis.set_xlim(0, max(rate for _, _, rate, _ in bars) * 1.6)
    axis.set_xticks([])
    axis.tick_params(left=False)
    axis.set_title(f"Training {figures['title']}: longer bars are faster", loc="left", fontsize=12)
    figure.savefig(arguments.out or arguments.root / tables.PICTURE, dpi=110, metadata={"figures": json.dumps(figures)})


if __name__ == "__main__":
    main()
