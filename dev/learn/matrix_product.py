#!/usr/bin/env python3
"""Measures every step from three loops to the library's matrix product, and draws docs/learn/9-matrix-product.png.

    python3 dev/learn/matrix_product.py [--out FILE]     # after make; NumPy and matplotlib; a minute

Builds build/release/matrix_product first, unless MATRIX_PRODUCT_PROGRAM names it. In every round all steps take turns, the slowest one in the first
three only. The time of a round is the processor time of each thread, and the fastest round counts: other programs can only lengthen it.
"""
import argparse
import json
import pathlib
import statistics
import subprocess

import pictures  # beside this file

PROGRAM = pictures.program("matrix_product")
# (M, N, K) of GPT-2 124M's MLP with 256 tokens: C (M, N) = A (M, K) B (K, N). The first is drawn.
SHAPES = [(256, 3072, 768), (256, 768, 3072)]
# name: (label, whether all cores work)
STEPS = {
    "elements": ("three loops,\ndown the columns of B", False),
    "rows": ("three loops,\nalong the rows of B", False),
    "blocks": ("+ blocks for the caches", False),
    "tiles": ("+ tiles in registers", False),
    "packed_1": ("+ both operands packed", False),
    "packed": ("+ all cores", True),
    "pairs": ("+ pairs of bf16", True),
    "ours": ("packed_product.h, fp32", True),
    "ours_bf16": ("packed_product.h, bf16", True),
}
BACKWARD = {"packed_dx": "dX by the packed step", "packed_dw": "dW by the packed step",
            "ours_dx": "dX by packed_product.h", "ours_dw": "dW by packed_product.h"}  # fmt: skip
LIBRARY = {"onednn_1": "oneDNN on one core", "onednn": "oneDNN", "onednn_bf16": "oneDNN, bf16"}
PEAKS = {"peak_1": "multiply-adds in registers, one core", "peak": "multiply-adds in registers"}


def measure(shape, rounds, names=()):
    """What the program prints, and gflops and median: {name: GFLOP/s} of the fastest and of the median round, and row_by_row: oneDNN's with B read
    row by row. In gflops and median oneDNN has the better of its two ways to read B."""
    command = [PROGRAM, "measure", *map(str, (*shape, rounds)), *names]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    M, N, K = shape

    def rates(of):
        rate = {name: 2e-6 * M * N * K / of(times) for name, times in result["ms"].items()}
        return rate | {name: max(rate[name], rate[f"{name}_t"]) for name in LIBRARY if f"{name}_t" in rate}

    row_by_row = {name: 2e-6 * M * N * K / min(result["ms"][name]) for name in LIBRARY if name in result["ms"]}
    return result | dict(gflops=rates(min), median=rates(statistics.median), row_by_row=row_by_row)


def report(shape, result):
    M, N, K = shape
    gflops, peak = result["gflops"], result["gflops"]["peak"]
    print(f"\n({M}, {K}) times ({K}, {N}), {result['threads']} threads, vectors of {result['lanes']} floats")
    print(f"{'':44}   GFLOP/s  of the peak  median round")
    labels = {name: label.replace("\n", " ") for name, (label, _) in STEPS.items()} | BACKWARD | LIBRARY | PEAKS
    for name, label in labels.items():
        if name in gflops:
            read = f"  {result['row_by_row'][name]:.1f} with B row by row" if name in result["row_by_row"] else ""
            print(f"{label:44} {gflops[name]:9.2f}  {gflops[name] / peak:11.1%}  {result['median'][name]:12.2f}{read}")
    print(f"{'the largest product of --profile':44} {result['large_product']:9.2f}  {result['large_product'] / peak:11.1%}")
    if not result["pairs"]:
        print("left out: pairs of bf16, because this processor has no AVX512_BF16")


def draw(shape, result, out):
    plt = pictures.pyplot()
    gflops, peak, threads = result["gflops"], result["gflops"]["peak"], result["threads"]
    steps = {name: step for name, step in STEPS.items() if name in gflops}
    bf16 = "onednn_bf16" if "onednn_bf16" in gflops else "onednn"
    peers = {name: bf16 if name in ("pairs", "ours_bf16") else "onednn" if parallel else "onednn_1" for name, (_, parallel) in steps.items()}
    figure, axis = plt.subplots(figsize=(7.6, 4.6), constrained_layout=True)
    for place, (name, (_, parallel)) in enumerate(steps.items()):
        share, library = gflops[name] / peak, gflops[peers[name]] / peak
        axis.barh(place, share, color=pictures.GREEN if parallel else pictures.BLUE, height=0.66)
        axis.vlines(library, place - 0.51, place + 0.51, color=pictures.RED, linewidth=1.8)
        # beside the bar, or beyond the line if the text would lie on it
        after = max(share, library) if -0.01 < library - share < 0.27 else share
        box = dict(facecolor="white", edgecolor="none", pad=1)
        axis.text(after + 0.012, place, f"{share:.1%}, {gflops[name]:.3g} GFLOP/s", va="center", bbox=box)
    of_cores = [("one core", pictures.BLUE), (f"{threads} cores", pictures.GREEN)]
    handles = [plt.Rectangle((0, 0), 1, 1, color=color, label=f"on {name}") for name, color in of_cores]
    handles.append(plt.Line2D([], [], color=pictures.RED, linewidth=1.8, label="oneDNN on as many cores"))
    handles.append(plt.Line2D([], [], color=pictures.GREY, linestyle=":", label="peak of one core"))
    axis.axvline(gflops["peak_1"] / peak, color=pictures.GREY, linestyle=":", zorder=0)
    axis.legend(handles=handles, loc="upper right", fontsize=8)
    axis.set_yticks(range(len(steps)), [label for label, _ in steps.values()])
    axis.invert_yaxis()
    axis.set_xlim(0, max(1, *(gflops[name] / peak for name in (*steps, *peers.values()))) * 1.12)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    M, N, K = shape
    axis.set_xlabel(f"share of the peak of {threads} cores, {peak:.0f} GFLOP/s, for ({M}, {K}) times ({K}, {N})")
    pictures.save(figure, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=pictures.ROOT / "docs/learn/9-matrix-product.png")
    arguments = parser.parse_args()
    pictures.build("matrix_product")
    results = {shape: measure(shape, arguments.rounds) for shape in SHAPES}
    for shape, result in results.items():
        report(shape, result)
    draw(SHAPES[0], results[SHAPES[0]], arguments.out)


if __name__ == "__main__":
    main()
