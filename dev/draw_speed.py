#!/usr/bin/env python3
"""Draws docs/speed.png: the figures that dev/bench/tables.py chooses from dev/bench/results/, those of README.md's tables.

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

OURS, OTHERS = "#c8553d", "#6e7781"
COLORS = {"ours": OURS, "pytorch": "#1f5fa8", "pytorch_onednn": "#6f9bc8", "llama.cpp": "#1f5fa8"}


def draw(axis, title, unit, bars, large):
    for place, (_, side, value) in enumerate(bars):
        axis.barh(place, value, color=COLORS.get(side, OTHERS), height=0.7)
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
        axis.annotate(f"{shown} {unit}", (value, place), (4, 0), textcoords="offset points", va="center")
    axis.set_yticks(range(len(bars)), [label for label, _, _ in bars])
    for label, (_, side, _) in zip(axis.get_yticklabels(), bars):
        label.set_color(COLORS.get(side, OTHERS))
        label.set_fontweight("bold" if side == "ours" else "normal")
    axis.set_xlim(0, max(value for _, _, value in bars) * 1.45)
    axis.set_xticks([])
    axis.tick_params(left=False)
    axis.spines["bottom"].set_visible(False)
    axis.set_title(title, loc="left", fontsize=9.5)
    axis.text(0.98, 0.04, large, transform=axis.transAxes, ha="right", va="bottom", fontsize=19, fontweight="bold", color=OURS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the tree with the results (default: this one)")
    parser.add_argument("--out", type=pathlib.Path, help="(default: docs/speed.png in that tree)")
    arguments = parser.parse_args()
    figures = tables.panels(tables.Results(arguments.root / "dev" / "bench" / "results"))
    plt.rcParams.update({"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False})
    rows = [[panel for panel in figures["panels"] if (panel[1] == "ms") == training] for training in (True, False)]
    rows = [row for row in rows if row]
    columns = max(map(len, rows))
    heights = [max(len(bars) for _, _, bars, _ in row) for row in rows]
    size = 4.8 * columns, 0.8 + sum(0.27 * height + 0.35 for height in heights)
    figure, grid = plt.subplots(len(rows), columns, figsize=size, squeeze=False, constrained_layout=True, height_ratios=heights)
    for row, axes in zip(rows, grid):
        for axis in axes[len(row) :]:
            axis.set_axis_off()
        for axis, panel in zip(axes, row):
            draw(axis, *panel)
    figure.suptitle(figures["place"], x=0.01, ha="left", fontsize=11)
    figure.savefig(arguments.out or arguments.root / tables.PICTURE, dpi=110, metadata={"figures": json.dumps(figures)})


if __name__ == "__main__":
    main()
