#!/usr/bin/env python3
"""Draws docs/speed.png from dev/bench/results/: the time of a training step of two models on each machine, ours beside PyTorch's.

    dev/draw_speed.py [--out FILE]

Each panel is the newest result of dev/bench/compare_pytorch.py for a model and a machine. Where dev/bench/compare_llmc.py has a newer one for
GPT-2 124M, the panel shows that one, with a bar for llm.c.
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
NAMES = {"ours": "flatgpt", "pytorch": "PyTorch", "llmc": "llm.c"}
MODELS = {"training-shakespeare": "4 layers, C 128", "training-d12": "GPT-2 124M"}


def panels(results):
    """For each model the newest result of each machine, the machines in the same order."""
    with_llmc = [json.loads(path.read_text()) for path in RESULTS.glob("llmc-d12-*.json")]
    found = {}
    for what in MODELS:
        by_machine = {result["machine"]["name"]: result for result in results.of(what)}
        for result in with_llmc if what == "training-d12" else []:
            name = result["machine"]["name"]
            if name not in by_machine or by_machine[name]["date"] < result["date"]:
                by_machine[name] = result
        found[what] = by_machine
    machines = list(dict.fromkeys(name for by_machine in found.values() for name in by_machine))
    return found, machines


def bars(result):
    """(label, side, ms) of each side and dtype, PyTorch's better one of plain and compiled; the slowest last."""
    best = {}
    for contender in result["results"].values():
        key = contender["side"], contender["dtype"]
        best[key] = min(best.get(key, contender["median_ms"]), contender["median_ms"])
    return sorted(((f"{NAMES[side]} {dtype}", side, ms) for (side, dtype), ms in best.items()), key=lambda bar: bar[2])


def draw(axis, result):
    drawn = bars(result)
    for place, (_, side, ms) in enumerate(drawn):
        axis.barh(place, ms, color=COLORS[side], height=0.7)
        axis.annotate(f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms", (ms, place), (4, 0), textcoords="offset points", va="center")
    axis.set_yticks(range(len(drawn)), [label for label, _, _ in drawn])
    for label, (_, side, _) in zip(axis.get_yticklabels(), drawn):
        label.set_color(COLORS[side])
        label.set_fontweight("bold" if side == "ours" else "normal")
    axis.set_xlim(0, drawn[-1][2] * 1.35)
    axis.set_xticks([])
    axis.tick_params(left=False)
    axis.spines["bottom"].set_visible(False)
    faster = 1 / tables.ours_over_pytorch(result)
    axis.text(0.98, 0.06, f"{faster:.1f}x", transform=axis.transAxes, ha="right", va="bottom", fontsize=19, fontweight="bold", color=COLORS["ours"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "speed.png")
    arguments = parser.parse_args()
    found, machines = panels(tables.Results(RESULTS))
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, grid = plt.subplots(len(MODELS), len(machines), figsize=(10, 4.3), squeeze=False, constrained_layout=True)
    for row, (what, model) in zip(grid, MODELS.items()):
        for axis, machine in zip(row, machines):
            if machine in found[what]:
                result = found[what][machine]
                draw(axis, result)
                axis.set_title(f"{machine}\n{model}, commit {result['commit']}", loc="left", fontsize=9.5)
            else:
                axis.set_axis_off()
    figure.savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
