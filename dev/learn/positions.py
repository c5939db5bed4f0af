#!/usr/bin/env python3
"""Trains a small GPT-2 with learned positions, with rotated ones and with none, and draws docs/learn/10-positions.png.

    python3 dev/learn/positions.py [--out FILE]     # after make; NumPy and matplotlib

Left: what the rotation of some pairs, and of all together, makes of the product of a query and a key at a distance. Right: the loss by position, up
to four times the length that training saw. For each of three seeds the three models begin with the same weights and see the same batches.
Builds build/release/positions first, unless POSITIONS_PROGRAM names it.
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

import pictures  # beside this file
from pictures import BLUE, GREEN, GREY, RED, ROOT, OneLineParser, np

PROGRAM = pictures.program("positions")
TEXT = ROOT / "data/tinyshakespeare.txt"
THETA, HS, TRAINED = 10000, 16, 64  # as in positions.cu: base, channels of a head, bytes of a training window
SLOWED, FIRST_SLOWED = "rotated, pairs {} to 7 slowed", (2, 3, 4)
DRAWN = {"none": (GREY, "-"), "learned": (RED, "-"), "rotated": (BLUE, "-"), SLOWED.format(3): (BLUE, "--")}
RANGES = ((1, 8), (9, 56), (57, 64), (65, 72), (73, 128), (129, 256))  # first and last position, counted from 1


def frequencies(channels=HS, theta=THETA):
    """The angle by which pair i turns from one position to the next."""
    return theta ** (-2 * np.arange(channels // 2) / channels)


def rotate(x, t, theta=THETA, sign=1):
    """A head at position t, as kernels/attention/rope.cuh turns it."""
    a, b = np.split(x, 2)
    angle = sign * t * frequencies(len(x), theta)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)])


def attend(q, k, v):
    """One query's attention to the rows of k and v."""
    weights = np.exp(k @ q / np.sqrt(len(q)))
    return weights @ v / weights.sum()


def measure(kind, seed, steps, lr):
    """What positions prints, on one thread."""
    command = [PROGRAM, kind, seed, steps, lr, TEXT]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    return json.loads(done.stdout)


def experiment(steps, lr, seeds):
    """{name: loss (seeds, 256) by position}. As many runs at a time as there are cores, each on one thread."""
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        runs = {kind: [pool.submit(measure, kind, seed, steps, lr) for seed in seeds] for kind in ("rotated", "learned", "none")}
        results = {kind: [run.result() for run in each] for kind, each in runs.items()}
    losses = {kind: np.array([result["loss"] for result in each]) for kind, each in results.items()}
    slowed = np.array([result["slowed"] for result in results["rotated"]])
    return losses | {SLOWED.format(first): slowed[:, i] for i, first in enumerate(FIRST_SLOWED)}


def groups(last):
    """Position by position at first, then ever more together: (begin, end)."""
    edges = [0]
    while edges[-1] < last:
        edges.append(min(last, edges[-1] + max(1, edges[-1] // 8)))
    return list(zip(edges, edges[1:]))


def draw(losses, out):
    plt = pictures.pyplot()
    figure, (products, curves) = plt.subplots(1, 2, figsize=(9.2, 3.8), constrained_layout=True)
    distance = np.linspace(0, 256, 2049)
    for pair, color, dashes in ((1, GREY, "-"), (3, GREEN, "-"), (5, GREY, "--")):
        products.plot(distance, np.cos(distance * frequencies()[pair]), dashes, color=color, linewidth=1.1, label=f"pair {pair}")
    products.plot(distance, np.cos(np.outer(distance, frequencies())).mean(1), color=BLUE, linewidth=2, label=f"mean of all {HS // 2}")
    products.set(xlabel="distance of query and key", ylabel="product, for equal query and key", ylim=(-1.3, 1.6), yticks=(-1, 0, 1), xticks=range(0, 257, 64))
    products.text(TRAINED + 4, -1.25, "not in training", fontsize=8)
    products.legend(ncol=2, loc="upper right")
    for name, (color, dashes) in DRAWN.items():
        mean = losses[name].mean(0)
        # The slowed pairs were read on too few windows for single positions.
        spans = [span for span in groups(len(mean)) if not name.endswith("slowed") or span[0] >= TRAINED // 4]
        at = [(begin + end + 1) / 2 for begin, end in spans]
        for seed in losses[name]:
            curves.plot(at, [seed[begin:end].mean() for begin, end in spans], color=color, linewidth=0.6, alpha=0.5)
        curves.plot(at, [mean[begin:end].mean() for begin, end in spans], dashes, color=color, linewidth=1.8, label=name)
    curves.set(xscale="log", xlabel="position in the window, from 1", ylabel="validation loss, nats a byte")
    curves.set_xticks((1, 4, 16, 64, 256), ("1", "4", "16", "64", "256"))
    curves.minorticks_off()
    curves.legend(loc="upper left")
    for axis in products, curves:
        axis.axvline(TRAINED, color="black", linestyle=":", linewidth=1)
    pictures.save(figure, out)


def main():
    parser = OneLineParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=800, help="of every run (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="(default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/learn/10-positions.png")
    arguments = parser.parse_args()
    pictures.build("positions")
    losses = experiment(arguments.steps, arguments.lr, arguments.seeds)
    print(f"validation loss after {arguments.steps} steps, mean over positions (counted from 1), one number a seed")
    print(f"{'positions':30}" + "".join(f"{f'{first} to {last}':>20}" for first, last in RANGES))
    for name, by_position in losses.items():
        print(f"{name:30}" + "".join(f"{' '.join(f'{loss:.3f}' for loss in by_position[:, first - 1 : last].mean(1)):>20}" for first, last in RANGES))
    draw(losses, arguments.out)


if __name__ == "__main__":
    main()
