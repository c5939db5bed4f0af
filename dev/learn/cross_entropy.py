#!/usr/bin/env python3
"""Measures the errors of cross-entropy's loss and gradient in fp32 and bf16, and draws docs/learn/8-cross-entropy.png.

    python3 dev/learn/cross_entropy.py [--out FILE]     # NumPy and matplotlib; half a minute
"""
import argparse
import pathlib

import pictures  # beside this file
from pictures import np

V, CAP = 50257, 15
LANES = 16  # running sums of the CPU's kernel: the fp32 numbers in 64 bytes
SHOWN, LEVELS, GAPS = (1, 10, 30, 100), (-120, -110, -100, -60, 0, 60, 70, 80), (0, 5, 10, 15, 17, 20)


def to_bf16(x):
    """x rounded to bf16, to nearest and ties to even: the upper half of a float's bits."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def lane_sum(x, lanes=LANES):
    """The sums of the rows, each in several running sums that take turns and are added in the end."""
    whole = x.shape[-1] // lanes * lanes
    lanes = np.add.accumulate(x[:, :whole].reshape(len(x), -1, lanes), axis=1)[:, -1]
    return (lanes.sum(-1) + x[:, whole:].sum(-1))[:, None]


def one_hot(z, targets):
    return np.arange(z.shape[-1]) == targets[:, None]


def naive(z, targets):
    """Losses (N), gradients (N, V) of logits (N, V) in the precision of z."""
    weights = np.exp(z)
    total = lane_sum(weights)
    return (np.log(total) - z[one_hot(z, targets)][:, None])[:, 0], weights / total - one_hot(z, targets)


def subtracted(z, targets):
    """The same with the row's maximum subtracted, as in kernels/cross_entropy.cuh."""
    maximum = z.max(-1, keepdims=True)
    weights = np.exp(z - maximum)
    total = lane_sum(weights)
    at_target = z[one_hot(z, targets)][:, None]
    return (np.log(total) + (maximum - at_target))[:, 0], weights / total - one_hot(z, targets)


def sigmoids(u):
    """sigmoid(u) and 1 - sigmoid(u), neither by a difference: kernels/simt/math.cuh."""
    e = np.exp(-np.abs(u))
    return np.where(u < 0, e, 1) / (1 + e), np.where(u < 0, 1, e) / (1 + e)


def capped(z, targets):
    """Of the capped logits CAP tanh(z / CAP), by q = sigmoid(-2 z / CAP) as in kernels/capped_cross_entropy.cuh."""
    q, rest = sigmoids(z.dtype.type(-2 / CAP) * z)
    weights = np.exp(-2 * CAP * q)
    total, at_target = lane_sum(weights), q[one_hot(z, targets)]
    return np.log(total)[:, 0] + 2 * CAP * at_target, (weights / total - one_hot(z, targets)) * (4 * q * rest)


EXACT = {naive: subtracted, subtracted: subtracted, capped: capped}  # the form whose double precision is the right answer


def errors(form, logits, targets, exact, store=lambda gradients: gradients):
    """The mean error of the losses, in nats, and the relative error of the gradients outside the targets' columns."""
    losses, gradients = form(logits, targets)
    others = ~one_hot(logits, targets)
    wrong = (store(gradients) - exact[1])[others]
    return float(np.abs(losses - exact[0]).mean()), float(np.linalg.norm(wrong) / np.linalg.norm(exact[1][others]))


def over_sizes(sizes, rows=16, V=V):
    """{(form, rounded): errors (sizes, 2)} for rows of normal logits with these standard deviations; `rounded` says what was rounded to bf16."""
    random = np.random.default_rng(1)
    normal, targets = random.normal(size=(rows, V)), random.integers(0, V, rows)
    found = {}
    for size in sizes:
        z = (size * normal).astype(np.float32)
        for form, right in EXACT.items():
            exact = right(z.astype(np.float64), targets)
            found.setdefault((form, "nothing"), []).append(errors(form, z, targets, exact))
            found.setdefault((form, "logits"), []).append(errors(form, to_bf16(z), targets, exact))
            if form is subtracted:
                found.setdefault((form, "gradient"), []).append(errors(form, z, targets, exact, to_bf16))
    return {key: np.array(values) for key, values in found.items()}


def over_levels(levels, rows=16, V=V):
    """[(naive, subtracted, subtracted with logits rounded to bf16)]: errors of the losses of rows of standard deviation 2 to which a level is added."""
    random = np.random.default_rng(2)
    normal, targets = random.normal(0, 2, (rows, V)), random.integers(0, V, rows)
    found = []
    for level in levels:
        z = (normal + level).astype(np.float32)
        exact = subtracted(z.astype(np.float64), targets)
        found.append([errors(form, logits, targets, exact)[0] for form, logits in ((naive, z), (subtracted, z), (subtracted, to_bf16(z)))])
    return found


def one_sum_in_bf16(x):
    """The sums of the rows, each in one running sum that is rounded to bf16 after each addition."""
    total = np.zeros(len(x), np.float32)
    for column in to_bf16(x).T:
        total = to_bf16(total + column)
    return total[:, None]


SUMS = {"bf16, one running sum": one_sum_in_bf16, "fp32, one running sum": lambda x: lane_sum(x, 1), f"fp32, {LANES} running sums": lane_sum}


def over_gaps(gaps, V=V):
    """{name of a sum: errors of the loss} of rows whose first logit is the target's and exceeds all others, which are equal, by a gap."""
    weights = np.repeat(np.exp(-np.asarray(gaps, np.float32))[:, None], V, axis=1)
    weights[:, 0] = 1
    exact = np.log(weights.astype(np.float64).sum(-1))
    return {name: np.abs(np.log(total(weights)[:, 0].astype(np.float64)) - exact) for name, total in SUMS.items()}


def slopes(z):
    """The capped logit's derivative at z, in the precision of z: as it is written, and as the kernel computes it."""
    t = np.tanh(z / z.dtype.type(CAP))
    q, rest = sigmoids(z.dtype.type(-2 / CAP) * z)
    return 1 - t * t, 4 * q * rest


def report(sizes, found):
    highest = {"fp32": np.finfo(np.float32).max, "bf16": (2 - 2**-7) * 2**127, "fp16": np.finfo(np.float16).max}
    print("exp(x) is finite up to x =", ", ".join(f"{np.log(float(most)):.2f} in {name}" for name, most in highest.items()))
    print("\nerrors of loss and gradient by the standard deviation of the logits")
    print(f"{'rounded to bf16':>32}" + "".join(f"{size:>18g}" for size in SHOWN))
    for (form, rounded), values in found.items():
        cells = values[np.searchsorted(sizes, SHOWN)]
        print(f"{form.__name__:16}{rounded:>16}" + "".join(f"{loss:9.0e}{gradient:9.0e}" for loss, gradient in cells))
    print(f"largest error of a capped loss with logits in bf16: {found[capped, 'logits'][:, 0].max():.4f}")

    print("\nerror of the loss; logits of standard deviation 2 around a level")
    print(f"{'level':>8}{'naive':>12}{'subtracted':>12}{'bf16 logits':>13}")
    for level, row in zip(LEVELS, over_levels(LEVELS)):
        print(f"{level:8}{row[0]:12.1e}{row[1]:12.1e}{row[2]:13.1e}")

    print("\nerror of the loss by the gap between the maximum and all others")
    print(f"{'':24}" + "".join(f"{gap:10g}" for gap in GAPS))
    for name, values in over_gaps(GAPS).items():
        print(f"{name:24}" + "".join(f"{value:10.1e}" for value in values))

    print("\nrelative error of the capped logit's slope, as written and by q")
    for z in (15, 60, 150):
        exact = slopes(np.float64(z))[1]
        print(f"z = {z:3}: {exact:.2e}" + "".join(f"{abs(float(slope) / exact - 1):10.0e}" for slope in slopes(np.float32(z))))


def draw(sizes, found, gaps, of_sums, out):
    plt = pictures.pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(12.6, 4.9))
    figure.subplots_adjust(left=0.045, right=0.985, top=0.93, bottom=0.26, wspace=0.17)
    curves = ((naive, "nothing", pictures.RED, "-", "naive, fp32"), (subtracted, "nothing", pictures.BLUE, "-", "maximum subtracted, fp32"),
              (capped, "nothing", pictures.GREEN, "-", "capped, fp32"), (subtracted, "logits", pictures.BLUE, "--", "maximum subtracted, logits in bf16"),
              (capped, "logits", pictures.GREEN, "--", "capped, logits in bf16"),
              (subtracted, "gradient", pictures.GREY, ":", "gradient stored in bf16"))  # fmt: skip
    for column, axis in enumerate(axes[:2]):
        for form, rounded, color, style, label in curves:
            if rounded == "gradient" and column == 0:
                continue  # the loss is not rounded
            values = found[form, rounded][:, column]
            finite = np.isfinite(values)
            width, order = (3.4, 2) if form is naive else (1.7, 3)
            axis.loglog(sizes[finite], values[finite], color=color, linestyle=style, linewidth=width, zorder=order, label=label)
            if not finite.all():
                end = sizes[finite][-1], values[finite][-1]
                axis.plot(*end, "x", color=color, markersize=10, markeredgewidth=2.5, zorder=4)
                line = {"arrowstyle": "-", "color": color, "linestyle": ":", "shrinkB": 6}
                axis.annotate("exp overflows", end, (end[0], (1e-7, 4e-9)[column]), ha="center", color=color, arrowprops=line)
        axis.set_xlabel("standard deviation of the logits")
        axis.set_ylim(bottom=(5e-8, 2e-9)[column])
    for name, color in zip(SUMS, (pictures.RED, pictures.GREY, pictures.BLUE)):
        axes[2].semilogy(gaps, of_sums[name], color=color, label=name)
    axes[2].set_ylim(3e-7, 30)
    axes[2].set_xlabel("gap between the largest logit and all others")
    for axis, title in zip(axes, ("error of the loss (nats)", "relative error of the gradient", "error of the loss (nats): only the sum differs")):
        axis.set_title(title)
    figure.legend(*axes[1].get_legend_handles_labels(), loc="lower left", bbox_to_anchor=(0.08, 0), ncol=2, fontsize=9)
    axes[2].legend(loc="upper right")
    pictures.save(figure, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=pictures.ROOT / "docs/learn/8-cross-entropy.png")
    arguments = parser.parse_args()
    sizes, gaps = np.unique(np.append(np.geomspace(0.1, 300, 31), SHOWN)), np.linspace(0, 24, 97)
    with np.errstate(all="ignore"):  # overflow is what is shown
        found = over_sizes(sizes)
        report(sizes, found)
        draw(sizes, found, gaps, over_gaps(gaps), arguments.out)


if __name__ == "__main__":
    main()
