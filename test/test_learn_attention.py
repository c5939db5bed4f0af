#!/usr/bin/env python3
"""The claims of docs/learn/7-attention.md hold for its formulas and for the experiment.

ATTENTION_FORMS_PROGRAM names the program to test with.
"""
import contextlib
import io
import re
import sys
import unittest
import unittest.mock

from common import ROOT, FolderTest  # beside this file

try:
    import matplotlib.figure
    import numpy as np
except ImportError as error:
    print(f"{error}; the scripts need it\n\nOK (skipped=1)", file=sys.stderr)
    sys.exit(0)

sys.path.insert(0, str(ROOT / "dev" / "learn"))
import attention  # noqa: E402
from layernorm_backward import difference_quotient, error  # noqa: E402

CHAPTER = (ROOT / "docs" / "learn" / "7-attention.md").read_text()


def example(*shapes, seed=1):
    random = np.random.default_rng(seed)
    return [random.normal(size=shape) for shape in shapes]


class Formulas(unittest.TestCase):
    # At h = 1e-4 the difference quotient is right to h^2 and to 2^-53 / h, times a few numbers near 1: both are near 1e-11.
    STEP, BOUND = 1e-4, 1e-9

    def test_backward_is_the_derivative(self):
        q, k, v, dout = example(*[(9, 5)] * 4)
        out, lse = attention.forward(q, k, v)
        gradients = attention.backward(dout, q, k, v, out, lse)
        for place, gradient in enumerate(gradients):
            moved = lambda x, place=place: [x if i == place else other for i, other in enumerate((q, k, v))]  # noqa: E731
            quotient = difference_quotient(lambda x: (dout * attention.forward(*moved(x))[0]).sum(), (q, k, v)[place], self.STEP)
            self.assertLess(error(gradient, quotient), self.BOUND, "qkv"[place])

    def test_the_gradient_of_a_softmax(self):
        s, dp = example((12,), (12,))
        dp += 2  # a constant, which changes p * dp and not the gradient
        softmax = lambda x: np.exp(x) / np.exp(x).sum()  # noqa: E731
        p = softmax(s)
        ds = p * (dp - (p * dp).sum())
        self.assertLess(error(ds, difference_quotient(lambda x: (dp * softmax(x)).sum(), s, self.STEP)), self.BOUND)
        self.assertLess(abs(ds.sum()), 1e-15)  # a dozen numbers below 1
        # Without the sum it is not the gradient.
        self.assertGreater(error(p * dp, ds), 0.1)

    def test_delta_is_the_sum_over_the_keys_without_the_keys(self):
        q, k, v, dout = example(*[(40, 16)] * 4)
        out, lse = attention.forward(q, k, v)
        p = np.exp(attention.scores(q, k) - lse[:, None])
        np.testing.assert_allclose((dout * out).sum(1), (p * (dout @ v.T)).sum(1), rtol=0, atol=1e-13)  # sums of 16 and of 40 numbers up to 10

    def test_the_weights_follow_from_the_log_sum_exp(self):
        q, k, v = example(*[(40, 16)] * 3)
        s = attention.scores(q, k)
        p = np.exp(s - attention.forward(q, k, v)[1][:, None])
        np.testing.assert_allclose(p.sum(1), 1, rtol=1e-14)
        np.testing.assert_allclose(p, np.exp(s) / np.exp(s).sum(1, keepdims=True), rtol=1e-13)

    def test_without_delta_short_rows_are_wrong_and_long_ones_nearly_right(self):
        # In one row, delta is 1 / sqrt(n) of the gradient if n keys have equal weights; queries of 0 give equal weights.
        T = 1024
        k, v, dout = example(*[(T, 64)] * 3)
        q = np.zeros((T, 64))
        out, lse = attention.forward(q, k, v)
        right = attention.backward(dout, q, k, v, out, lse)[0]
        wrong = attention.backward(dout, q, k, v, 0 * out, lse)[0]  # out is used for delta alone
        self.assertLess(np.abs(right[0]).max(), 1e-14)  # the only weight is 1, whatever the query
        self.assertGreater(np.abs(wrong[0]).max(), 0.1)
        for first, last in ((15, 31), (900, 1024)):
            share = error(wrong[first:last], right[first:last]) * np.sqrt((first + 1 + last) / 2)
            # The error of a row scatters as the mean of 64 products does, and there are at least 16 rows: the bound is wide.
            self.assertAlmostEqual(share, 1, delta=0.35)


class Tiles(unittest.TestCase):
    def test_the_online_softmax_of_the_chapter(self):
        states = attention.online_softmax([1, 3, 2], [10, 20, 30])
        rows = re.findall(r"^\| -?\d+ \| \d+ \| (-?\d+) \| ([\d.]+) \| ([\d.]+) \|$", CHAPTER, re.M)
        self.assertEqual([tuple(map(float, row)) for row in rows], [(m, round(total, 4), round(out, 4)) for m, total, out in states])
        maximum, total, out = states[-1]
        p = np.exp([1, 3, 2]) / np.exp([1, 3, 2]).sum()
        self.assertAlmostEqual(out / total, p @ [10, 20, 30], delta=1e-14 * 30)
        self.assertAlmostEqual(maximum + np.log(total), np.log(np.exp([1, 3, 2]).sum()), delta=1e-14)
        self.assertIn(f"O = {out / total:.3f}", CHAPTER)
        self.assertIn(f"{maximum + np.log(total):.4f}", CHAPTER)

    def test_tiles_compute_the_same(self):
        q, k, v, dout = example(*[(50, 8)] * 4)
        q = 30 * q  # scores up to a few hundred: the maximum changes by much from tile to tile
        out, lse = attention.forward(q, k, v)
        gradients = attention.backward(dout, q, k, v, out, lse)
        for rows, columns in ((50, 50), (16, 16), (16, 12), (7, 20), (1, 1)):
            with self.subTest(rows=rows, columns=columns):
                tiled_out, tiled_lse = attention.tiled_forward(q, k, v, rows, columns)
                # Rounding of scores of some hundreds: 2^-53 * 500 = 6e-14 in each exponential.
                self.assertLess(error(tiled_out, out), 1e-12)
                self.assertLess(error(tiled_lse, lse), 1e-14)
                for tiled, whole in zip(attention.tiled_backward(dout, q, k, v, out, lse, rows, columns), gradients):
                    self.assertLess(error(tiled, whole), 1e-12)

    def test_scores_whose_exponentials_overflow(self):
        q, k, v = example(*[(50, 8)] * 3)
        q = 1e4 * q
        with np.errstate(over="ignore", invalid="ignore"):
            s = attention.scores(q, k)
            self.assertFalse(np.isfinite(np.exp(s).sum(1)).all())  # what the maximum is subtracted for
        self.assertTrue(np.isfinite(attention.tiled_forward(q, k, v, 16, 16)[0]).all())

    def test_a_start_at_minus_infinity_needs_a_key_in_the_first_tile(self):
        with np.errstate(invalid="ignore"):
            self.assertTrue(np.isnan(np.exp(np.float64(-np.inf) - np.float64(-np.inf))))
        lowest = -np.finfo(np.float32).max  # what kernels/online_softmax.cuh starts from
        self.assertEqual(np.exp(-np.inf - np.float64(lowest)), 0)

    def test_no_key_is_left_out_and_none_is_seen_twice(self):
        for T, rows, columns in ((256, 64, 64), (100, 16, 12), (5, 8, 8)):
            seen = np.zeros((T, T), int)
            for t, s in attention.tiles(T, rows, columns):
                seen[t : t + rows, s : s + columns] += 1
            self.assertTrue((seen[np.tril_indices(T)] == 1).all())
            self.assertLessEqual(seen.max(), 1)
        for n in (1, 4, 16):
            self.assertEqual(len(attention.tiles(64 * n, 64, 64)), n * (n + 1) // 2)

    def test_the_share_of_the_scores_that_strips_of_16_compute(self):
        for T in (64, 1024, 4096):
            computed = sum(16 * min(columns, t + 16 - s) for t, s in attention.tiles(T, 16, 64) for columns in (64,))
            self.assertAlmostEqual(computed / T**2, 0.5 + 8 / T, places=12)


def running_sums(weights, rows, parts):
    """weights^T rows in fp32, by multiplications and additions that round once, one row after the other in each of `parts` sums."""
    sums = np.zeros((parts, weights.shape[1], rows.shape[1]), np.float32)
    each = len(rows) // parts
    for i in range(each):
        for part in range(parts):
            t = part * each + i
            sums[part] = sums[part] + weights[t][:, None] * rows[t]  # in double precision, then rounded
    return sums.sum(0, dtype=np.float32)


class RunningSums(unittest.TestCase):
    def test_the_error_of_a_running_sum_grows_with_the_root_of_its_length(self):
        errors = {}
        for T in (256, 1024):
            q, k, v, dout = example((T, 64), (T, 64), (T, 64), (T, 8))
            p = np.exp(attention.scores(q, k) - attention.forward(q, k, v)[1][:, None])
            for parts in (1, 8):
                errors[T, parts] = error(running_sums(p, dout, parts), p.T @ dout) / attention.ROUNDING
            # A rounding has a root mean square of 0.42 units, if a sum is as often at any place between two powers of 2. A key is seen by T / 2
            # queries on average; sums that are still small when they are rounded make it less, and keys differ.
            self.assertGreater(errors[T, 1], 0.5 * 0.42 * np.sqrt(T))
            self.assertLess(errors[T, 1], 0.42 * np.sqrt(T))
            self.assertLess(errors[T, 8], errors[T, 1] / 2)
        growth = errors[1024, 1] / errors[256, 1]  # 2 by the root of the length; nearer to that than to 1 or 4
        self.assertTrue(np.sqrt(2) < growth < np.sqrt(8), growth)

    def test_a_rounding_has_a_root_mean_square_of_042_units(self):
        x = 2 ** np.random.default_rng(1).uniform(0, 1, 100_000)
        self.assertAlmostEqual(np.sqrt(np.mean((x.astype(np.float32) / x - 1) ** 2)) / attention.ROUNDING, 0.42, delta=0.01)


class SharedHeads(unittest.TestCase):
    def test_gradients_of_shared_heads_are_sums(self):
        q, k, v, dout = example((6, 7, 4), (2, 7, 4), (2, 7, 4), (6, 7, 4))
        out, lse = attention.grouped_forward(q, k, v)
        gradients = attention.grouped_backward(dout, q, k, v, out, lse)
        for place, gradient in enumerate(gradients):
            moved = lambda x, place=place: [x if i == place else other for i, other in enumerate((q, k, v))]  # noqa: E731
            quotient = difference_quotient(lambda x: (dout * attention.grouped_forward(*moved(x))[0]).sum(), (q, k, v)[place], Formulas.STEP)
            self.assertLess(error(gradient, quotient), Formulas.BOUND, "qkv"[place])
        # Each head of q with a copy of its own: the copies' gradients add up.
        own_k, own_v = np.repeat(k, 3, 0), np.repeat(v, 3, 0)
        apart = attention.grouped_backward(dout, q, own_k, own_v, out, lse)
        for shared, copies in zip(gradients[1:], apart[1:]):
            np.testing.assert_allclose(shared, copies.reshape(2, 3, 7, 4).sum(1), rtol=0, atol=1e-14)


class Experiment(FolderTest):
    def test_memory_and_errors_of_the_three_forms(self):
        heads, lengths = 3, (70, 140)
        measured = attention.measure(lengths, 0.001, heads, 24)
        for T in lengths:
            naive, tiles = measured["naive"][T], measured["tiles"][T]
            self.assertEqual((naive["kept"], naive["scratch"]), (4 * heads * T * T, 4 * T * T))
            self.assertEqual((tiles["kept"], tiles["scratch"]), (4 * heads * T, 4 * heads * T))
            self.assertEqual(measured["blocks"][T]["kept"], 4 * heads * T)
            for form, of in measured.items():
                for name in ("out_error", "dqkv_error"):
                    with self.subTest(form=form, T=T, name=name):
                        # fp32: a few dozen roundings of 2^-24 = 6e-8, which add up as a random walk; none at all would be double precision.
                        self.assertLess(of[T][name], 1e-6)
                        self.assertGreater(of[T][name], 1e-8)
        self.assertLess(measured["blocks"][140]["scratch"], 3 * measured["blocks"][70]["scratch"])  # O(T), not O(T^2)

    def test_the_memory_that_the_chapter_names(self):
        rows = re.findall(r"^\| ([\d,]+) \| ([\d.]+) MiB \| (\d+) KiB \| ([\d.]+) MiB \|", CHAPTER, re.M)
        self.assertEqual([row[0] for row in rows], ["256", "1,024", "4,096"])
        for T, naive, tiles, _ in rows:
            T = int(T.replace(",", ""))
            self.assertEqual(float(naive) * 2**20, 4 * (attention.HEADS + 1) * T * T)
            self.assertEqual(float(tiles) * 2**10, 2 * 4 * attention.HEADS * T)
        # oneDNN's products take more scratch on a processor with AVX-512, so the chapter names two figures.
        with_avx512 = re.search(r"With AVX-512\s+it takes ([\d.]+) MiB at", CHAPTER)[1]
        shortest = attention.measure([256], 0.001)["blocks"][256]
        self.assertIn(f"{(shortest['kept'] + shortest['scratch']) / 2**20:.1f}", (rows[0][3], with_avx512))

    def test_the_picture_shows_what_was_measured(self):
        picture, figures, seen, out = self.folder / "picture.png", [], [], io.StringIO()
        save, measure = matplotlib.figure.Figure.savefig, attention.measure

        def keep(figure, *arguments, **named):
            save(figure, *arguments, **named)
            figures.append(figure)

        def remember(*arguments):
            seen.append(measure(*arguments))
            return seen[-1]

        arguments = ["attention", "--lengths", "64", "128", "--seconds", "0.001", "--out", str(picture)]
        with unittest.mock.patch.object(matplotlib.figure.Figure, "savefig", keep), unittest.mock.patch.object(sys, "argv", arguments):
            with unittest.mock.patch.object(attention, "measure", remember), contextlib.redirect_stdout(out):
                attention.main()
        self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        drawn = [list(line.get_ydata()) for axis in figures[0].axes for line in axis.get_lines()]
        for form, of in seen[0].items():
            records = list(of.values())
            self.assertIn([r["dqkv_error"] / attention.ROUNDING for r in records], drawn)
            self.assertIn([(r["kept"] + r["scratch"]) / 2**20 for r in records], drawn)
            naive = list(seen[0]["naive"].values())
            self.assertIn([(r["forward"] + r["backward"]) / (n["forward"] + n["backward"]) for r, n in zip(records, naive)], drawn)
            for r in records:
                self.assertRegex(out.getvalue(), rf"{form} +{r['kept'] / 1024:.1f} +{r['scratch'] / 1024:.1f} ")


if __name__ == "__main__":
    unittest.main()
