#!/usr/bin/env python3
"""Draws docs/architecture.svg: the way of the data through the folders, and the four seams.

    dev/draw_architecture.py [--out FILE]

The picture brings its own white ground, so that it is legible on a light and on a dark page.
"""
import argparse
import pathlib
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, HEIGHT = 1000, 640
INK, GREY = "#1b1f24", "#57606a"
DATA, STEP, AFTER, SEAM = "#dbeafe", "#dcf5e3", "#fdecc8", "#f1e4fa"  # fills, by lane
EDGES = {DATA: "#3b77bc", STEP: "#2f8f4e", AFTER: "#b7791f", SEAM: "#8250a8"}
BOX_HEIGHT = 84
SEAMS = {
    1: ("gemm/gemm.h", "matrix products", "cuBLASLt", "oneDNN"),
    2: ("attention/attention.h", "attention", "cuDNN, ours", "oneDNN, ours"),
    3: ("communicator.h", "sums over processes", "NCCL", "MPI, single"),
    4: ("simt/device.h", "memory, streams (all kernels)", "CUDA", "the host"),
}


def text(x, y, words, size=13, weight="normal", color=INK, mono=False, anchor="middle"):
    family = "ui-monospace, 'DejaVu Sans Mono', Menlo, monospace" if mono else "'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
    return (f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{color}" font-family="{family}" text-anchor="{anchor}">'
            f"{escape(words)}</text>")  # fmt: skip


def rectangle(x, y, width, height, fill, edge, dashed=False):
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{edge}" stroke-width="1.5"{dashes}/>'


def mark(x, y, number):
    """The number of a seam, in a circle."""
    return f'<circle cx="{x}" cy="{y}" r="10" fill="{EDGES[SEAM]}"/>' + text(x, y + 4.5, str(number), 13, "bold", "#ffffff")


def box(x, y, width, fill, title, folder, detail, seams=()):
    """A stage: its name, its folder or file, what it does; on its upper edge the seams that it calls."""
    middle = x + width / 2
    parts = [rectangle(x, y, width, BOX_HEIGHT, fill, EDGES[fill]), text(middle, y + 26, title, 16, "bold"),
             text(middle, y + 48, folder, 11.5, mono=True), text(middle, y + 69, detail, 12, color=GREY)]  # fmt: skip
    parts += [mark(x + width - 16 - 24 * k, y, number) for k, number in enumerate(reversed(seams))]
    return "".join(parts)


def arrow(points, dashed=False):
    path = " ".join(f"{'ML'[k > 0]}{x} {y}" for k, (x, y) in enumerate(points))
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.6" stroke-linejoin="round"{dashes} marker-end="url(#head)"/>'


def lane(x, y, words):
    return text(x, y, words, 13, "bold", GREY, anchor="start")


def row(y, fill, stages, left=30, gap=26):
    """Boxes of equal width over the whole width, with arrows between them; returns their parts and their left edges."""
    width = (WIDTH - 2 * left - gap * (len(stages) - 1)) / len(stages)
    edges = [left + k * (width + gap) for k in range(len(stages))]
    parts = [box(x, y, width, fill, *stage) for x, stage in zip(edges, stages)]
    parts += [arrow([(x + width + 1, y + BOX_HEIGHT / 2), (x + width + gap - 3, y + BOX_HEIGHT / 2)]) for x in edges[:-1]]
    return "".join(parts), edges, width


def seam(x, y, width, number, file, what, gpu, cpu):
    half = (width - 30) / 2
    parts = [rectangle(x, y, width, 118, SEAM, EDGES[SEAM]), mark(x + 18, y + 20, number), text(x + 36, y + 25, file, 11.5, "bold", mono=True, anchor="start"),
             text(x + width / 2, y + 48, what, 12.5, color=GREY)]  # fmt: skip
    for k, (machine, library) in enumerate((("GPU", gpu), ("CPU", cpu))):
        left = x + 10 + k * (half + 10)
        parts += [rectangle(left, y + 60, half, 46, "#ffffff", EDGES[SEAM]), text(left + half / 2, y + 78, machine, 11, "bold", GREY),
                  text(left + half / 2, y + 96, library, 11.5)]  # fmt: skip
    return "".join(parts)


def drawing():
    first, second, third, last = 44, 196, 368, 502
    data, data_edges, data_width = row(first, DATA, [
        ("text", "data/, dev/data/", "files and folders"),
        ("tokens", "trainer/tokenizer/", "bytes or byte-pair encoding"),
        ("shards", "trainer/data/", "uint16, cached beside the text"),
        ("DataLoader", "trainer/data/", "the batch of a step"),
    ], gap=34)  # fmt: skip
    step, step_edges, step_width = row(second, STEP, [
        ("forward", "trainer/model/", "block after block", (1, 2)),
        ("loss", "kernels/", "softmax and gradient", ()),
        ("backward", "trainer/model/", "block after block", (1, 2)),
        ("Communicator", "trainer/distributed/", "sum of gradients", (3,)),
        ("update", "trainer/model/", "norm, clipping, AdamW", ()),
    ])  # fmt: skip
    after, after_edges, after_width = row(third, AFTER, [
        ("Session", "trainer/run/", "logs, validates, saves"),
        ("checkpoint", "trainer/checkpoint/, trainer/formats/", "a Hugging Face folder"),
        ("sampler", "trainer/inference/", "generate_gpt2, evaluate_gpt2", (1, 2)),
    ], gap=60)  # fmt: skip
    between, below = (first + BOX_HEIGHT + second) / 2 - 6, (second + BOX_HEIGHT + third) / 2 - 4
    loader, forward = data_edges[-1] + data_width / 2, step_edges[0] + step_width / 2
    update, session = step_edges[-1] + step_width / 2, after_edges[0] + after_width / 2
    parts = [
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="12" fill="#ffffff" stroke="#d0d7de"/>',
        lane(30, first - 14, "before the first step, once"), data,
        lane(forward + 110, second - 18, "every step: train_gpt2.cu"), step,
        lane(session + 14, third - 16, "between steps and afterwards"), after,
        lane(30, last - 14, "seams: the build links one side of each; a number on a box marks a seam that it calls"),
        arrow([(loader, first + BOX_HEIGHT + 1), (loader, between), (forward, between), (forward, second - 3)]),
        arrow([(update, second + BOX_HEIGHT + 1), (update, below), (session, below), (session, third - 3)]),
        arrow([(WIDTH - 30 + 1, second + BOX_HEIGHT / 2), (WIDTH - 14, second + BOX_HEIGHT / 2), (WIDTH - 14, first + BOX_HEIGHT / 2), (WIDTH - 27, first + BOX_HEIGHT / 2)]),
        text(WIDTH - 22, between - 6, "next step", 12, color=GREY, anchor="end"),
    ]  # fmt: skip
    width = (WIDTH - 60 - 3 * 16) / 4
    parts += [seam(30 + k * (width + 16), last, width, number, *words) for k, (number, words) in enumerate(SEAMS.items())]
    head = '<marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z" fill="#1b1f24"/></marker>'
    lines = "\n".join(parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">\n'
            f"<title>From text to tokens, batches, forward, loss, backward, sums over processes, update, checkpoint and samples</title>\n<defs>{head}</defs>\n{lines}\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "architecture.svg")
    parser.parse_args().out.write_text(drawing())


if __name__ == "__main__":
    main()
