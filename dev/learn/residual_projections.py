#!/usr/bin/env python3
"""Measures the residual stream of untrained models, derives it, and draws docs/learn/3-residual-projections.png.

    python3 dev/learn/residual_projections.py [--out FILE]     # after make; NumPy and matplotlib; half a minute

Builds build/release/residual_variance first, unless RESIDUAL_VARIANCE_PROGRAM names it.
"""
import argparse
import json
import pathlib
import subprocess

import pictures  # beside this file
from pictures import np

PROGRAM = pictures.program("residual_variance")
C, T, STD = 128, 64, 0.02  # channels, tokens of a sequence, standard deviation of the initial weights
DEPTHS = [12, 24, 48]


def measure(layers, scaled, channels=C):
    """The output of residual_variance: variance after 0 to 2 layers additions, gradient by block, loss."""
    command = [PROGRAM, str(layers), str(channels), "scaled" if scaled else "unscaled"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_covariance(correlation, variance):
    """E[gelu(u) gelu(v)] for normal u, v of this variance and correlation, by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights, scale = weights / weights.sum(), np.sqrt(variance)
    u = scale * nodes[:, None]
    grid = np.linspace(0, 1, 33)
    values = [weights @ (gelu(u) * gelu(r * u + np.sqrt(1 - r * r) * scale * nodes)) @ weights for r in grid]
    return np.interp(correlation, grid, values)


def derive(layers, scaled, channels=C):
    """The stream's variance after 0 to 2 layers additions, from the widths alone.

    K (T, T) is the covariance of the stream at two positions, in one channel. A layernorm makes it a correlation. A matrix of C inputs
    multiplies a covariance by C STD^2. Scores are so small at the start that attention takes the mean of the values up to each position.
    """
    projection = STD / np.sqrt(2 * layers) if scaled else STD
    K = 2 * STD**2 * np.eye(T)  # wte + wpe
    mean = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
    variances = [np.trace(K) / T]
    for _ in range(layers):
        for branch in "attention", "mlp":
            sd = np.sqrt(np.diag(K))
            normalised = K / np.outer(sd, sd)
            if branch == "attention":
                K = K + channels * projection**2 * mean @ (channels * STD**2 * normalised) @ mean.T
            else:
                K = K + 4 * channels * projection**2 * gelu_covariance(normalised, channels * STD**2)
            variances.append(np.trace(K) / T)
    return np.array(variances)


def draw(measured, out):
    plt = pictures.pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.4), constrained_layout=True)
    colors = dict(zip(DEPTHS, (pictures.RED, pictures.GREEN, pictures.BLUE)))
    for axis, scaled in zip(axes, (False, True)):
        for layers in reversed(DEPTHS):
            blocks = np.arange(2 * layers + 1) / 2
            axis.plot(blocks, 1e3 * derive(layers, scaled), color=colors[layers], linewidth=1.2)
            every = slice(None, None, max(2, 2 * layers // 12))
            axis.plot(blocks[every], 1e3 * np.array(measured[layers, scaled]["variance"])[every], "o", markersize=4, color=colors[layers],
                      label=f"{layers} blocks")  # fmt: skip
        axis.set_xlabel("blocks passed")
        axis.set_ylim(0)
    axes[0].set_title("without the scale: grows with depth")
    axes[1].set_title(r"with $1/\sqrt{2L}$: ends alike at any depth")
    axes[0].set_ylabel("variance of the residual stream (10$^{-3}$)")
    axes[0].legend(title="dots measured, lines derived")
    pictures.save(figure, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=pictures.ROOT / "docs/learn/3-residual-projections.png")
    arguments = parser.parse_args()
    pictures.build("residual_variance")
    measured = {(layers, scaled): measure(layers, scaled) for layers in DEPTHS for scaled in (False, True)}
    print("blocks  scale  variance at the end: measured, derived  gradient of the first block / the last  loss")
    for (layers, scaled), m in measured.items():
        print(f"{layers:6}  {'yes' if scaled else 'no':5}  {m['variance'][-1]:.5f} {derive(layers, scaled)[-1]:.5f}"
              f"  {m['gradient'][0] / m['gradient'][-1]:.2f}  {m['loss']:.4f}")  # fmt: skip
    print(f"GPT-2 124M (12 blocks, 768 channels), derived: {derive(12, False, 768)[-1]:.4f} without, {derive(12, True, 768)[-1]:.4f} with the scale")
    draw(measured, arguments.out)


if __name__ == "__main__":
    main()
