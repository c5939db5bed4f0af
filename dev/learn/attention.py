#!/usr/bin/env python3
"""Compares attention that stores its (T, T) matrices with attention in tiles, and draws docs/learn/7-attention.png.

    python3 dev/learn/attention.py [--out FILE]     # after make; NumPy and matplotlib; 40 seconds

Builds build/release/attention_forms first, unless ATTENTION_FORMS_PROGRAM names it. The functions below are the chapter's formulas in NumPy,
for one head: q, k, v, out (T, HS), lse (T). test/test_learn_attention.py compares them with difference quotients.
"""
import json
import pathlib
import subprocess
import sys

import pictures  # beside this file
from pictures import np

PROGRAM = pictures.program("attention_forms")
HEADS, HEAD_SIZE, SECONDS = 4, 64, 3
ROUNDING = 2.0**-24  # the largest relative error of rounding to fp32
LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096]
FORMS = {
    "naive": (pictures.RED, "naive: (T, T) matrices"),
    "tiles": (pictures.BLUE, "tiles: our kernel"),
    "blocks": (pictures.GREEN, "blocks of 64 queries: oneDNN"),
}
# FLOPs of forward and backward in units of T^2 HS, for each head: a whole product of T, T and HS has 2, and half of one, as causality leaves it, 1.
# At T = 64 the backward of tiles has 5 in place of 7 (kernels/attention/attention_one_tile.cuh).
FLOPS = {"naive": 2 * (2 + 4), "tiles": 2 + 7, "blocks": 2 + 5}


def scores(q, k):
    """(T, T), -inf where the key is later than the query."""
    later = np.arange(len(k))[None, :] > np.arange(len(q))[:, None]
    return np.where(later, -np.inf, q @ k.T / np.sqrt(q.shape[1]))


def forward(q, k, v):
    s = scores(q, k)
    largest = s.max(1)
    lse = largest + np.log(np.exp(s - largest[:, None]).sum(1))
    return np.exp(s - lse[:, None]) @ v, lse


def backward(dout, q, k, v, out, lse):
    """dq, dk, dv from what forward leaves."""
    p = np.exp(scores(q, k) - lse[:, None])
    delta = (dout * out).sum(1)
    ds = p * (dout @ v.T - delta[:, None]) / np.sqrt(q.shape[1])
    return ds @ k, ds.T @ q, p.T @ dout


def online_softmax(scores_of_row, values):
    """(maximum, sum, weighted sum of the values) after each key."""
    maximum, total, out, states = -np.inf, 0.0, 0.0, []
    for score, value in zip(scores_of_row, values):
        new = max(maximum, score)
        shrink, weight = np.exp(maximum - new), np.exp(score - new)
        maximum, total, out = new, total * shrink + weight, out * shrink + weight * value
        states.append((maximum, total, out))
    return states


def tiles(T, rows, columns):
    """(first query, first key) of the tiles that hold a key at or before a query of theirs."""
    return [(t, s) for t in range(0, T, rows) for s in range(0, min(t + rows, T), columns)]


def scores_of_tile(q, k, t, s, rows, columns):
    """Those of queries t to t + rows - 1 and keys s to s + columns - 1."""
    of_tile = q[t : t + rows] @ k[s : s + columns].T / np.sqrt(q.shape[1])
    later = np.arange(s, s + of_tile.shape[1])[None, :] > np.arange(t, t + of_tile.shape[0])[:, None]
    return np.where(later, -np.inf, of_tile)


def tiled_forward(q, k, v, rows, columns):
    maximum, total, out = np.full(len(q), -np.inf), np.zeros(len(q)), np.zeros(v.shape)
    for t, s in tiles(len(q), rows, columns):
        of, values = slice(t, t + rows), v[s : s + columns]
        p = scores_of_tile(q, k, t, s, rows, columns)
        new = np.maximum(maximum[of], p.max(1))
        shrink, p = np.exp(maximum[of] - new), np.exp(p - new[:, None])
        total[of] = total[of] * shrink + p.sum(1)
        out[of] = out[of] * shrink[:, None] + p @ values
        maximum[of] = new
    return out / total[:, None], maximum + np.log(total)


def tiled_backward(dout, q, k, v, out, lse, rows, columns):
    delta, scale = (dout * out).sum(1), 1 / np.sqrt(q.shape[1])
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for t, s in tiles(len(q), rows, columns):
        of, keys = slice(t, t + rows), slice(s, s + columns)
        p = np.exp(scores_of_tile(q, k, t, s, rows, columns) - lse[of, None])
        ds = p * (dout[of] @ v[keys].T - delta[of, None]) * scale
        dq[of] += ds @ k[keys]
        dk[keys] += ds.T @ q[of]
        dv[keys] += p.T @ dout[of]
    return dq, dk, dv


def grouped_forward(q, k, v):
    """q (NH, T, HS), k and v (NKV, T, HS): NH / NKV neighbouring heads of q share a head of k and v."""
    shared = len(q) // len(k)
    out, lse = zip(*(forward(q[h], k[h // shared], v[h // shared]) for h in range(len(q))))
    return np.array(out), np.array(lse)


def grouped_backward(dout, q, k, v, out, lse):
    shared = len(q) // len(k)
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for h in range(len(q)):
        dq[h], dk_of_head, dv_of_head = backward(dout[h], q[h], k[h // shared], v[h // shared], out[h], lse[h])
        dk[h // shared] += dk_of_head
        dv[h // shared] += dv_of_head
    return dq, dk, dv


def measure(lengths, seconds, heads=HEADS, head_size=HEAD_SIZE):
    """{form: {length: what attention_forms prints}}"""
    command = [PROGRAM, heads, head_size, round(1000 * seconds), *lengths]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    records = list(map(json.loads, done.stdout.splitlines()))
    return {form: {record["length"]: record for record in records if record["form"] == form} for form in FORMS}


def milliseconds(record):
    return record["forward"] + record["backward"]


def ratios(measured, form):
    """Its time over that of the naive form, for each length. The machine's speed changes from second to second, so only forms that took turns compare."""
    return [milliseconds(record) / milliseconds(measured["naive"][T]) for T, record in measured[form].items()]


def report(measured):
    print("     T  form    kept, scratch: KiB    error: out, dqkv, 2^-24    forward, backward: ms   / naive   GFLOP/s")
    for place, T in enumerate(measured["naive"]):
        for form, of in measured.items():
            r = of[T]
            print(f"{T:6}  {form:6} {r['kept'] / 1024:10.1f} {r['scratch'] / 1024:9.1f}  {r['out_error'] / ROUNDING:14.1f} {r['dqkv_error'] / ROUNDING:8.1f}"
                  f"  {r['forward']:15.2f} {r['backward']:9.2f}  {ratios(measured, form)[place]:8.2f}"
                  f" {FLOPS[form] * T * T * HEAD_SIZE * HEADS / milliseconds(r) / 1e6:9.1f}")  # fmt: skip


def draw(measured, out):
    plt = pictures.pyplot()
    figure, (errors, memory, time) = plt.subplots(1, 3, figsize=(10.4, 4.0), constrained_layout=True)
    lengths = list(measured["naive"])
    for form, (color, label) in FORMS.items():
        records = list(measured[form].values())
        look = dict(color=color, marker="o", markersize=3.5, label=label)
        errors.loglog(lengths, [r["dqkv_error"] / ROUNDING for r in records], **look)
        errors.loglog(lengths, [r["out_error"] / ROUNDING for r in records], **look | dict(linestyle=":", label=None))
        memory.loglog(lengths, [(r["kept"] + r["scratch"]) / 2**20 for r in records], **look)
        time.semilogx(lengths, ratios(measured, form), **look)
        time.axhline(FLOPS[form] / FLOPS["naive"], color=color, linestyle=":")
    tensors = [4 * HEADS * HEAD_SIZE * T * 4 / 2**20 for T in lengths]
    memory.loglog(lengths, tensors, color=pictures.GREY, linestyle="--", label="memory of q, k, v and out themselves")
    errors.set_ylabel("error relative to double precision, units of 2$^{-24}$")
    memory.set_ylabel("memory beside q, k, v, out and gradients, MiB")
    time.set_ylabel("time of forward and backward / that of naive")
    time.set_ylim(0)
    for axis in (errors, memory, time):
        axis.set_xlabel("T, tokens of a sequence")
        axis.set_xticks(lengths, [str(T) for T in lengths], fontsize=8)
        axis.minorticks_off()
    errors.set_yticks([2, 4, 8, 16, 32], ["2", "4", "8", "16", "32"])
    memory.set_yticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    solid, dotted = (plt.Line2D([], [], color=pictures.GREY, linestyle=style) for style in ("-", ":"))
    errors.legend([solid, dotted], ["gradient of q, k and v", "output"], loc="upper left")
    time.legend([solid, dotted], ["measured", "counted: FLOPs"], loc="lower left")
    figure.legend(*memory.get_legend_handles_labels(), loc="upper center", ncol=4)
    figure.get_layout_engine().set(rect=(0, 0, 1, 0.92))  # the legend stands above the axes
    pictures.save(figure, out)


def main():
    parser = pictures.OneLineParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="in which the forms take turns, for each length (default: %(default)s)")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="(default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=pictures.ROOT / "docs/learn/7-attention.png")
    arguments = parser.parse_args()
    pictures.build("attention_forms")
    measured = measure(arguments.lengths, arguments.seconds)
    report(measured)
    draw(measured, arguments.out)


if __name__ == "__main__":
    main()
