#!/usr/bin/env python3
"""Compares layernorm's backward with differences of its forward, and draws docs/learn/1-layernorm-backward.png.

    python3 dev/learn/layernorm_backward.py [--out FILE]     # NumPy and matplotlib; a few seconds
"""
import argparse
import pathlib

import pictures  # beside this file
from pictures import np

EPS = 1e-5


def statistics(inp):
    mean = inp.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(((inp - mean) ** 2).mean(-1, keepdims=True) + inp.dtype.type(EPS))
    return mean, rstd


def forward(inp, weight, bias):
    mean, rstd = statistics(inp)
    return (inp - mean) * rstd * weight + bias


def backward(dout, inp, weight, subtract_mean=True, subtract_norm=True):
    """dinp, dweight, dbias. The two switches leave out a term of dinp: the usual mistakes."""
    mean, rstd = statistics(inp)
    norm, dnorm = (inp - mean) * rstd, dout * weight
    dinp = dnorm.copy()
    if subtract_mean:
        dinp -= dnorm.mean(-1, keepdims=True)
    if subtract_norm:
        dinp -= norm * (dnorm * norm).mean(-1, keepdims=True)
    return dinp * rstd, (dout * norm).sum(0), dout.sum(0)


def example(rows=4, C=48, seed=1):
    """dout, inp, weight, bias of standard normal numbers, away from 0 and 1 where a formula could be right by accident."""
    random = np.random.default_rng(seed)
    return (random.normal(size=(rows, C)), random.normal(0.5, 2, (rows, C)), random.normal(1, 0.3, C), random.normal(size=C))


def difference_quotient(loss, at, h):
    """The gradient of loss at `at` by central differences, in the precision of `at`."""
    gradient = np.empty_like(at)
    for i in np.ndindex(at.shape):
        moved = [at.copy(), at.copy()]
        moved[0][i] += at.dtype.type(h)
        moved[1][i] -= at.dtype.type(h)
        apart = moved[0][i] - moved[1][i]  # the step as it was rounded; 0 where it was rounded away
        gradient[i] = (loss(moved[0]) - loss(moved[1])) / apart if apart else np.nan
    return gradient


def error(computed, expected):
    return float(np.linalg.norm(computed - expected) / np.linalg.norm(expected))


def errors(steps, dtype):
    """The error of each of the three formulas for dinp, against difference quotients with these steps."""
    dout, inp, weight, bias = (a.astype(dtype) for a in example())
    quotients = [difference_quotient(lambda x: (dout * forward(x, weight, bias)).sum(), inp, h) for h in steps]
    formulas = {name: backward(dout, inp, weight, **switches)[0] for name, switches in
                (("right", {}), ("no norm term", {"subtract_norm": False}), ("no mean terms", {"subtract_norm": False, "subtract_mean": False}))}
    return {name: [error(formula, q) for q in quotients] for name, formula in formulas.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=pictures.ROOT / "docs/learn/1-layernorm-backward.png")
    arguments = parser.parse_args()
    steps = np.logspace(0, -11, 67)
    double, single = errors(steps, np.float64), errors(steps, np.float32)
    for name, values in (*double.items(), ("right, fp32", single["right"])):
        print(f"{name:14} smallest error {np.nanmin(values):.1e} at step {steps[int(np.nanargmin(values))]:.1e}")

    plt = pictures.pyplot()
    figure, axis = plt.subplots(figsize=(6.6, 3.9), constrained_layout=True)
    axis.loglog(steps, double["no mean terms"], color=pictures.RED, label="both mean terms forgotten")
    axis.loglog(steps, double["no norm term"], color=pictures.RED, linestyle="--", label="norm · mean(dnorm · norm) forgotten")
    axis.loglog(steps, single["right"], color=pictures.GREY, linestyle=":", linewidth=2, label="right formula, differences in fp32")
    axis.loglog(steps, double["right"], color=pictures.BLUE, linewidth=2, label="right formula, differences in fp64")
    axis.annotate("truncation: error ~ h²", (1.6e-2, 1e-7), color=pictures.BLUE, ha="left", va="top")
    axis.annotate("rounding: error ~ 1/h", (1.5e-7, 2e-9), color=pictures.BLUE, ha="right", va="top")
    axis.set_xlabel("step h of the central difference (units of the input)")
    axis.set_ylabel("relative error of dinp")
    axis.set_ylim(1e-12, 1e4)
    axis.legend(loc="upper center", ncol=2, fontsize=8)
    pictures.save(figure, arguments.out)


if __name__ == "__main__":
    main()
