#!/usr/bin/env python3
"""Draws a run: loss, validation loss, HellaSwag, gradient norm, learning rate, speed and norms by layer, into RUN_DIR/loss.png, whose path it prints.

    scripts/plot.py [RUN_DIR ...] [--x steps|tokens|hours] [--out FILE]     # several runs share a picture; default: the newest under runs/

Hours are those of the steps, without validation, checkpoints and breaks. FILE ends in .png, .svg or .pdf, which selects its format.
scripts/compare_runs.py prints a table of several runs.

Reads RUN_DIR/metrics.jsonl, also during the run. If there is a published validation loss for the run's data and size (OpenAI's GPT-2
checkpoints), a dashed line shows it; HellaSwag's accuracy is compared with GPT-2's and GPT-3's of that size. Quantities that a run did
not measure have no panel.
"""
import math
import os
import pathlib
import re
import subprocess
import sys
import warnings

try:
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.ticker import EngFormatter, LogLocator
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv[1:]):  # which needs no library; this module may be imported by another program
        sys.exit(print(sys.modules["__main__"].__doc__.strip()))
    # Only the system's python3 sees the packages of Debian and Ubuntu; one of pyenv, conda or a virtual environment does not.
    system = "/usr/bin/python3"
    if os.path.exists(system) and subprocess.call([system, "-c", "import matplotlib, numpy"], stderr=subprocess.DEVNULL) == 0:
        sys.exit(f"plot: {error} in {sys.executable}; {system} has it: {system} {' '.join(sys.argv)}")
    sys.exit(f"plot: {error} in {sys.executable}; please install python3-matplotlib, or run scripts/setup.sh")

except Exception as error:  # a broken installation, or an unknown MPLBACKEND
    sys.exit(f"plot: matplotlib cannot be used: {' '.join(str(error).split())}")

from run_metrics import MetricsError, OneLineParser, RunMetrics, newest_run, number, one_line_errors  # beside this script

# Validation loss of OpenAI's checkpoints by data set (recognised by the path of the training data) and size.
# FineWeb: llm.c; FineWeb-Edu: build-nanogpt; OpenWebText: nanoGPT.
REFERENCES = [
    ("FineWeb-Edu", r"fineweb[-_]?edu|edu[-_]?fineweb", {"124M": 3.2924}),
    ("FineWeb", r"fineweb", {"124M": 3.424958, "350M": 3.083089, "774M": 3.000580, "1558M": 2.831273}),
    ("OpenWebText", r"openwebtext", {"124M": 3.12, "350M": 2.84, "774M": 2.67, "1558M": 2.54}),
]
# HellaSwag by the mean log-likelihood of the endings (accuracy_norm): OpenAI's GPT-2 checkpoints (llm.c), and the models of the GPT-3
# paper that are nearest in size (Brown et al. 2020, arXiv:2005.14165, table H.1).
HELLASWAG_REFERENCES = {
    "124M": [("GPT-2 124M", 0.294463), ("GPT-3 125M", 0.337)],
    "350M": [("GPT-2 350M", 0.375224), ("GPT-3 350M", 0.436)],
    "774M": [("GPT-2 774M", 0.431986), ("GPT-3 760M", 0.510)],
    "1558M": [("GPT-2 1558M", 0.488946), ("GPT-3 1.3B", 0.547)],
}
SIZE_BY_NAME = {"d12": "124M", "d24": "350M", "d36": "774M", "d48": "1558M"}
SIZE_BY_NAME |= {"gpt2": "124M", "gpt2-medium": "350M", "gpt2-large": "774M", "gpt2-xl": "1558M"}
SIZE_BY_SHAPE = {(12, 768): "124M", (24, 1024): "350M", (36, 1280): "774M", (48, 1600): "1558M"}  # layers, channels
FORMATS = [".png", ".svg", ".pdf"]
COLORS = ["#1f5fa8", "#c8553d", "#3a7d44", "#7a4f9a", "#8a6d1d", "#2a8c8c", "#d488b0", "#555555", "#8fb51c", "#5cb8e6"]
LINES = ["-", "--", "-.", ":"]  # the next style is used when all colours are taken
MANY = 4  # from this number of runs on only running means are drawn, because the losses of single steps would hide each other
X_AXES = {"steps": "step", "tokens": "tokens", "hours": "hours of training steps"}
LONGEST_NAME = 34  # characters of a run's name in a legend


class Run(RunMetrics):
    """The data of a run to draw, over steps, tokens or hours."""

    def __init__(self, path, x="steps"):
        super().__init__(path)
        self.trained_steps = np.array(self.steps("train"))
        if x == "tokens":
            self.trained_x = np.array(self.values("train", "tokens"))
        elif x == "hours":
            self.trained_x = np.cumsum(self.seconds()) / 3600
        else:
            self.trained_x = self.trained_steps.astype(float)
        if not np.isfinite(self.trained_x).any():
            raise MetricsError(f"{self.file} does not say the {x} of its steps; expected --x steps")

    def x_of(self, steps):
        """The steps' positions on the x axis. Missing values are interpolated between their neighbours."""
        known = np.isfinite(self.trained_x)
        return np.interp(steps, self.trained_steps[known], self.trained_x[known]) if len(steps) else np.array([])

    def series(self, kind, key):
        """Positions on the x axis and values as arrays; NaN where the run wrote null."""
        return self.x_of(self.steps(kind)), np.array(self.values(kind, key))

    def short_name(self):
        half = LONGEST_NAME // 2
        return self.name if len(self.name) <= LONGEST_NAME else f"{self.name[: half - 1]}…{self.name[-half:]}"

    def options(self):
        return {key.replace("-", "_"): value for key, value in super().options().items()}

    def size(self):
        """"124M" and so on, or None if OpenAI has no model of this size."""
        model, options = self.header.get("model"), self.options()
        for name in (model, options.get("model"), model.get("name") if isinstance(model, dict) else None):
            if isinstance(name, str) and name in SIZE_BY_NAME:
                return SIZE_BY_NAME[name]
        for shape in (model, options):
            if isinstance(shape, dict) and shape.get("vocab", 50257) == 50257:
                for (layers, channels), size in SIZE_BY_SHAPE.items():
                    if (shape.get("layers"), shape.get("channels")) == (layers, channels):
                        return size
        return None

    def reference(self):
        """(label, validation loss), or None where nothing is published."""
        data = self.options().get("train_data")
        for name, pattern, losses in REFERENCES:
            if re.search(pattern, str(data).lower()):
                size = self.size()
                return (f"GPT-2 {size} on {name}: {losses[size]:.3f}", losses[size]) if size in losses else None
        return None

    def hellaswag_references(self):
        """[(name, accuracy)] of OpenAI's models of this size."""
        return HELLASWAG_REFERENCES.get(self.size(), [])

    def layer_norms(self, key):
        """Steps, and by layer the norms at them: {"wte": [..], "h.0": [..], ..}; key: "grad" or "weight"."""
        records = [r for r in self.by_kind.get("layer_norms", []) if isinstance(r.get(key), dict)]
        layers = list(dict.fromkeys(layer for record in records for layer in record[key]))
        return self.x_of([r["step"] for r in records]), {layer: np.array([number(r[key].get(layer)) for r in records]) for layer in layers}


def smoothed(values):
    """The mean over a window of a fiftieth of the run. It is shorter towards the start, where the loss is steep and a long window would distort it."""
    finite = np.isfinite(values)
    total = np.concatenate([[0], np.cumsum(np.where(finite, values, 0))])
    count = np.concatenate([[0], np.cumsum(finite)])
    index = np.arange(len(values))
    half = np.minimum(index, len(values) // 100)
    low, high = index - half, np.minimum(index + half + 1, len(values))
    covered = count[high] - count[low]
    return np.where(covered > 0, (total[high] - total[low]) / np.maximum(covered, 1), math.nan)


def running_median(values):
    """The median of up to 101 steps around each step."""
    half = min(50, max(0, (len(values) - 1) // 4))
    padded = np.concatenate([np.full(half, np.nan), values, np.full(half, np.nan)])
    return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)


class Style:
    """The style in which one run of a picture is drawn."""

    def __init__(self, index, count):
        self.color, self.line = COLORS[index % len(COLORS)], LINES[index // len(COLORS) % len(LINES)]
        self.alone, self.many = count == 1, count >= MANY


class Panel:
    """One axis of the picture. `wanted` is true if the runs have data for it; `draw` adds one run."""

    height = 1.0
    label = ""

    def wanted(self, runs):
        return True

    def draw(self, axis, run, style):
        raise NotImplementedError

    def finish(self, axis, runs):
        """Called once, when all runs are drawn."""


def legend_above(axis):
    """Puts the legend in a row above the axis, where it hides nothing."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncol=len(handles), borderaxespad=0.2, columnspacing=1.2, handlelength=1.6)


def reference_line(axis, label, value, below=False):
    axis.axhline(value, color="#666666", linewidth=1.1, linestyle="--")
    axis.annotate(label, (0.995, value), (0, -3 if below else 3), xycoords=("axes fraction", "data"), textcoords="offset points", ha="right",
                  va="top" if below else "bottom", color="#444444", fontsize=9,
                  bbox=dict(facecolor="white", alpha=0.75, edgecolor="none", pad=1))  # fmt: skip


def mark_skipped(axis, run, style, labelled=False):
    skipped, _ = run.series("skipped", "grad_norm")
    for index, place in enumerate(skipped):
        axis.axvline(place, color="#d03030" if style.alone else style.color, linewidth=0.8, alpha=0.6, linestyle="-" if style.alone else ":",
                     label=f"skipped steps ({len(skipped)})" if labelled and index == 0 else None)  # fmt: skip


def last_finite(values):
    """", last 1.879", or "" where there is none."""
    return f", last {values[np.isfinite(values)][-1]:.3f}" if np.isfinite(values).any() else ""


def bits_per_byte(run):
    """The last validation's ", 2.540 bits per byte", or "" where it is not known."""
    bits = run.series("val", "bits_per_byte")[1]
    return f", {bits[-1]:.3f} bits per byte" if np.isfinite(bits[-1:]).any() else ""


def log_scale(axis, subs=(1, 2, 5)):
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=subs))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("")


class Loss(Panel):
    height = 3.4
    label = "loss, nats a token"

    def __init__(self):
        self.tops, self.bottoms = [], []

    def draw(self, axis, run, style):
        x, losses = run.series("train", "loss")
        val_x, val_losses = run.series("val", "loss")
        smooth = smoothed(losses)
        if not style.many:
            axis.plot(x, losses, color=style.color, alpha=0.25, linewidth=0.8, marker="." if len(x) == 1 else None)
        axis.plot(x, smooth, color=style.color, linestyle=style.line, linewidth=1.6 if style.alone else 1.3,
                  label="train" if style.alone else f"{run.short_name()}{last_finite(val_losses)}")  # fmt: skip
        if np.isfinite(val_losses).any():
            axis.plot(val_x, val_losses, color="black" if style.alone else style.color, linewidth=1, linestyle="none" if style.many else ":",
                      marker="o", markersize=3.5 if style.many else 4.5, markerfacecolor="white", markeredgewidth=1.2,
                      label=f"validation{last_finite(val_losses)}{bits_per_byte(run)}" if style.alone else None)  # fmt: skip
        mark_skipped(axis, run, style, labelled=style.alone)
        seen = np.concatenate([smooth, val_losses])
        if np.isfinite(seen).any():
            # The fall from 11 in the first steps would flatten the rest of the curve, so the upper limit ignores the first 2 % of the run.
            after_fall = np.concatenate([smooth[len(smooth) // 50 :], val_losses[len(val_losses) // 50 :]])
            self.tops.append(np.nanmax(after_fall) if np.isfinite(after_fall).any() else np.nanmax(seen))
            self.bottoms.append(np.nanmin(seen))

    def finish(self, axis, runs):
        for label, loss in dict.fromkeys(filter(None, (run.reference() for run in runs))):
            reference_line(axis, label, loss)
            self.tops.append(loss)
            self.bottoms.append(loss)
        if self.tops:
            margin = 0.06 * (max(self.tops) - min(self.bottoms)) or 0.1
            axis.set_ylim(min(self.bottoms) - margin, max(self.tops) + margin)
        if len(runs) == 1:
            axis.set_title(runs[0].short_name(), loc="left", fontsize=11)
            legend_above(axis)
        else:
            skipped = "; dotted: skipped steps" if any(run.by_kind.get("skipped") for run in runs) else ""
            axis.set_title(f"{len(runs)} runs: training loss; circles: validation, with its last value{skipped}", loc="left", fontsize=11)
            axis.legend(loc="upper left", bbox_to_anchor=(1, 1.02), fontsize=9)


class HellaSwag(Panel):
    height = 1.5
    label = "HellaSwag"

    def wanted(self, runs):
        return any(np.isfinite(run.series("hellaswag", "accuracy_norm")[1]).any() for run in runs)

    def draw(self, axis, run, style):
        x, accuracies = run.series("hellaswag", "accuracy_norm")
        if np.isfinite(accuracies).any():
            axis.plot(x, accuracies, color=style.color, linestyle=style.line, linewidth=1.2, marker="o", markersize=3.5 if style.many else 4.5,
                      markerfacecolor="white", markeredgewidth=1.2, label=f"accuracy_norm{last_finite(accuracies)}" if style.alone else None)  # fmt: skip

    def finish(self, axis, runs):
        for label, accuracy in dict.fromkeys(reference for run in runs for reference in run.hellaswag_references()):
            reference_line(axis, f"{label}: {accuracy:.3f}", accuracy, below=label.startswith("GPT-3"))
        reference_line(axis, "chance", 0.25)
        axis.margins(y=0.12)
        legend_above(axis)


class GradientNorm(Panel):
    label = "gradient norm"

    def draw(self, axis, run, style):
        x, norms = run.series("train", "grad_norm")
        axis.plot(x, norms if style.alone else smoothed(norms), color=style.color, linestyle=style.line, linewidth=0.8)
        mark_skipped(axis, run, style)

    def finish(self, axis, runs):
        if any((run.series("train", "grad_norm")[1] > 0).any() for run in runs):
            log_scale(axis)


class LearningRate(Panel):
    label = "learning rate"

    def draw(self, axis, run, style):
        axis.plot(*run.series("train", "lr"), color=style.color, linestyle=style.line, linewidth=1.4)

    def finish(self, axis, runs):
        axis.set_ylim(bottom=0)
        axis.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))


class Speed(Panel):
    """Tokens a second of each step and their running median. For a single run the scale on the right is MFU, which is proportional to them."""

    label = "tokens/s"

    def wanted(self, runs):
        return any((run.series("train", "tokens_per_second")[1] > 0).any() for run in runs)

    def draw(self, axis, run, style):
        x, rates = run.series("train", "tokens_per_second")
        if not style.many:
            axis.plot(x, rates, color=style.color, alpha=0.25, linewidth=0.8)
        axis.plot(x, running_median(rates), color=style.color, linestyle=style.line, linewidth=1.3, marker="." if len(x) == 1 else None)

    def finish(self, axis, runs):
        rates = np.concatenate([running_median(run.series("train", "tokens_per_second")[1]) for run in runs])
        axis.set_ylim(0, 1.15 * np.nanmax(rates))  # a step that took almost no time would flatten the rest
        axis.yaxis.set_major_formatter(EngFormatter(sep=""))
        if len(runs) > 1:
            return
        (_, rates), (_, shares) = (runs[0].series("train", key) for key in ("tokens_per_second", "mfu"))
        known = (rates > 0) & (shares > 0)
        if known.any():
            percent = 100 * np.median(shares[known] / rates[known])
            right = axis.secondary_yaxis("right", functions=(lambda rate: rate * percent, lambda share: share / percent))
            right.set_ylabel("MFU, %")


class LayerNorms(Panel):
    """One line per layer, from the first (dark) to the last (light); embeddings and the last layer norm are dashed. For a single run only."""

    height = 1.7

    def __init__(self, key, label):
        self.key, self.label = key, label

    def wanted(self, runs):
        return len(runs) == 1 and any((norms > 0).any() for norms in runs[0].layer_norms(self.key)[1].values())

    def draw(self, axis, run, style):
        steps, norms = run.layer_norms(self.key)
        blocks = [layer for layer in norms if layer.startswith("h.")]
        marker = "." if len(steps) == 1 else None
        for index, layer in enumerate(blocks):
            ends = index in (0, len(blocks) - 1)
            shade = plt.cm.viridis(0.9 * index / max(1, len(blocks) - 1))
            axis.plot(steps, norms[layer], color=shade, linewidth=1, marker=marker, label=layer if ends else None)
        others = [layer for layer in norms if layer not in blocks]
        for layer, color in zip(others, ["#c8553d", "#8a6d1d", "#7a4f9a", "#666666"]):
            axis.plot(steps, norms[layer], color=color, linewidth=1.1, linestyle="--", marker=marker, label=layer)

    def finish(self, axis, runs):
        log_scale(axis)
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)


def checked_format(file):
    """The format that a picture's name selects."""
    if file.suffix.lower() not in FORMATS or file.is_dir():
        raise MetricsError(f"--out {file}: expected the name of a file that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return file.suffix[1:].lower()


def draw(runs, file, x="steps"):
    picture_format = checked_format(file)
    warnings.simplefilter("ignore")  # overflowing sums, names with characters that the font lacks
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e4",
                         "axes.axisbelow": True, "legend.frameon": False})  # fmt: skip
    by_layer = [LayerNorms("grad", "gradient norm\nby layer"), LayerNorms("weight", "weight norm\nby layer")]
    panels = [panel for panel in (Loss(), HellaSwag(), GradientNorm(), LearningRate(), Speed(), *by_layer) if panel.wanted(runs)]
    heights = [panel.height for panel in panels]
    size = 9 if len(runs) == 1 else 12, 8 / 5.4 * sum(heights)  # a legend beside the panels needs a quarter of the width
    figure, axes = plt.subplots(len(panels), 1, figsize=size, sharex=True, height_ratios=heights, constrained_layout=True)
    for panel, axis in zip(panels, axes):
        for index, run in enumerate(runs):
            panel.draw(axis, run, Style(index, len(runs)))
        panel.finish(axis, runs)
        axis.set_ylabel(panel.label)
    axes[-1].set_xlabel(X_AXES[x])
    if x == "tokens":
        axes[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.align_ylabels()
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        figure.savefig(temporary, format=picture_format, dpi=130)
        os.replace(temporary, file)  # the picture is replaced atomically
    finally:
        temporary.unlink(missing_ok=True)


def main():
    parser = OneLineParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("runs", nargs="*", metavar="RUN_DIR", help="a folder that holds metrics.jsonl (default: the newest under runs/)")
    parser.add_argument("--x", choices=X_AXES, default="steps", help="what the x axis counts (default: steps)")
    parser.add_argument("--out", metavar="FILE", type=pathlib.Path, help=".png, .svg or .pdf (default: loss.png in the first RUN_DIR)")
    arguments = parser.parse_args()
    sys.stdout.reconfigure(errors="surrogateescape")  # a file's name can contain any bytes
    with one_line_errors():
        if arguments.out:
            checked_format(arguments.out)
        runs = [Run(path, arguments.x) for path in arguments.runs or [newest_run()]]
        file = arguments.out or runs[0].folder / "loss.png"
        draw(runs, file, arguments.x)
        print(file)


if __name__ == "__main__":
    main()
