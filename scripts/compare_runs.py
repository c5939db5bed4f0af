#!/usr/bin/env python3
"""Prints a table of runs, the best first: losses, speed, and the options that differ.

    scripts/compare_runs.py RUN_DIR RUN_DIR ... [--csv]

best val is the lowest validation loss, with its step; loss is the mean of the last fiftieth of the steps; hours are those of the steps, without
validation, checkpoints and breaks; tokens/s and MFU are the median step's. Reads RUN_DIR/metrics.jsonl, also during the run.
"""
import csv
import math
import statistics
import sys

from run_metrics import OneLineParser, RunMetrics, one_line, one_line_errors, valid  # beside this script

LONGEST = 32  # characters of a cell
OF_ONE_START = {"out", "resume", "config", "profile", "plan", "device-memory"}  # options whose difference is not shown


def shortened(text):
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2 - 1]}…{text[-LONGEST // 2 :]}"


def finite(values):
    return [value for value in values if math.isfinite(value)]


def options_of(run):
    values = {name: f"{value:g}" if isinstance(value, float) else valid(str(value)) for name, value in run.options().items()}
    return {valid(name): one_line(value) for name, value in values.items() if name not in OF_ONE_START}


def measured(run):
    """A run's results by column; values that it did not measure are absent."""
    steps = run.steps("train")
    row = {"steps": steps[-1], "hours": sum(run.seconds()) / 3600}
    if tokens := finite(run.values("train", "tokens")[-1:]):
        row["tokens"] = tokens[0]
    validations = zip(run.values("val", "loss"), run.steps("val"), run.values("val", "bits_per_byte"))
    if losses := [(loss, step, bits) for loss, step, bits in validations if math.isfinite(loss)]:
        row["best val"], row["at step"], bits = min(losses)
        if math.isfinite(bits):
            row["bits/byte"] = bits
    if last := finite(run.values("train", "loss")[-max(1, len(steps) // 50) :]):
        row["loss"] = statistics.fmean(last)
    for name, key, factor in (("tokens/s", "tokens_per_second", 1), ("MFU, %", "mfu", 100)):
        if values := finite(run.values("train", key)):
            row[name] = factor * statistics.median(values)
    return row


FORMATS = {"steps": "{:d}", "tokens": "{:.4g}", "hours": "{:.3g}", "best val": "{:.4f}", "at step": "{:d}", "bits/byte": "{:.4f}", "loss": "{:.4f}",
           "tokens/s": "{:.0f}", "MFU, %": "{:.1f}"}  # fmt: skip


def table(runs):
    """The heads of the columns, and a list of texts for every run."""
    options = [options_of(run) for run in runs]
    names = sorted(set().union(*options))
    differing = [name for name in names if len({own.get(name) for own in options}) > 1]
    rows = []
    for run, own in zip(runs, options):
        row = measured(run)
        order = row.get("best val", math.inf), row.get("loss", math.inf)
        cells = {"run": run.name, **{name: FORMATS[name].format(value) for name, value in row.items()}}
        cells.update({f"--{name}": own.get(name, "") for name in differing})
        rows.append((order, cells))
    rows.sort(key=lambda row: row[0])
    heads = [name for name in ("run", *FORMATS, *(f"--{name}" for name in differing)) if any(name in cells for _, cells in rows)]
    return heads, [[cells.get(head, "") for head in heads] for _, cells in rows]


def print_table(heads, rows):
    """Prints the table with numbers aligned to the right."""
    cells = [heads, *([shortened(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    for row in cells:
        print("  ".join(f"{cell:>{width}}" if 0 < i <= len(FORMATS) else f"{cell:<{width}}" for i, (cell, width) in enumerate(zip(row, widths))).rstrip())


def main():
    parser = OneLineParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR", help="a folder that holds metrics.jsonl")
    parser.add_argument("--csv", action="store_true", help="with commas, for a spreadsheet")
    arguments = parser.parse_args()
    sys.stdout.reconfigure(errors="surrogateescape")
    with one_line_errors():
        heads, rows = table([RunMetrics(path) for path in arguments.runs])
        if arguments.csv:
            csv.writer(sys.stdout).writerows([heads, *rows])
        else:
            print_table(heads, rows)


if __name__ == "__main__":
    main()
