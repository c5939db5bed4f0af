#!/usr/bin/env python3
"""The claims of docs/learn/8-cross-entropy.md hold."""
import contextlib
import functools
import io
import re
import sys
import unittest
import unittest.mock

from common import ROOT, FolderTest  # beside this file

try:
    import matplotlib.figure  # noqa: F401
    import numpy as np
except ImportError as error:
    print(f"{error}; the scripts need it\n\nOK (skipped=1)", file=sys.stderr)
    sys.exit(0)

sys.path.insert(0, str(ROOT / "dev" / "learn"))
import cross_entropy  # noqa: E402
from cross_entropy import capped, naive, subtracted, to_bf16  # noqa: E402

CHAPTER = (ROOT / "docs/learn/8-cross-entropy.md").read_text()
V, Vp = 50257, 50304


def logits(rows, V, scale, seed=5):
    random = np.random.default_rng(seed)
    return scale * random.normal(size=(rows, V)), random.integers(0, V, rows)


class Derivation(unittest.TestCase):
    def test_the_gradient_is_the_derivative_of_the_loss(self):
        # At h = 1e-5 central differences are right to h^2 and to 2^-53 |loss| / h, both below 1e-9.
        h = 1e-5
        for form in (naive, subtracted, capped):
            with self.subTest(form.__name__):
                z, targets = logits(3, 20, 4)
                gradient = form(z, targets)[1]
                for row, column in np.ndindex(z.shape):
                    up, down = z.copy(), z.copy()
                    up[row, column] += h
                    down[row, column] -= h
                    quotient = (form(up, targets)[0] - form(down, targets)[0])[row] / (2 * h)
                    self.assertAlmostEqual(gradient[row, column], quotient, delta=1e-8)

    def test_a_row_of_gradients_adds_up_to_zero_unless_the_logits_are_capped(self):
        z, targets = logits(3, 1000, 4)
        self.assertLess(np.abs(subtracted(z, targets)[1].sum(-1)).max(), 1e-13)  # 1000 roundings of numbers below 1
        self.assertGreater(np.abs(capped(z, targets)[1].sum(-1)).min(), 1e-3)
        np.testing.assert_allclose(subtracted(z + 60, targets)[0], subtracted(z, targets)[0], rtol=1e-13)

    def test_the_capped_form_is_the_cross_entropy_of_capped_logits(self):
        z, targets = logits(3, 1000, 20)
        t = np.tanh(z / 15)
        losses, gradients = naive(15 * t, targets)
        computed = capped(z, targets)
        np.testing.assert_allclose(computed[0], losses, rtol=1e-13)
        np.testing.assert_allclose(computed[1], gradients * (1 - t**2), atol=1e-14)
        # The largest |z| (1 - tanh^2) on a fine grid; and the slope at three caps.
        z = np.linspace(0, 100, 100001)
        self.assertAlmostEqual((z * cross_entropy.slopes(z)[1]).max(), 6.7, delta=0.05)
        self.assertAlmostEqual(cross_entropy.slopes(np.float64(45))[1], 0.01, delta=0.0005)

    def test_a_maximum_and_a_sum_can_be_kept_in_one_pass_and_joined(self):
        def one_pass(values):
            maximum, total = -np.finfo(np.float32).max, 0.0
            for x in values:
                if x > maximum:
                    total, maximum = total * np.exp(maximum - x), x
                total += np.exp(x - maximum)
            return maximum, total

        z = logits(1, 999, 30)[0][0]
        z[::7] = -np.inf
        expected = np.exp(z - z.max()).sum()
        for begin, end in ((0, 999), (0, 1), (400, 401), (998, 999)):
            parts = [one_pass(part) for part in (z[:begin], z[begin:end], z[end:])]
            most = max(maximum for maximum, _ in parts)
            self.assertEqual(most, z.max())
            self.assertAlmostEqual(sum(total * np.exp(maximum - most) for maximum, total in parts) / expected, 1, delta=1e-13)


class Rounding(unittest.TestCase):
    def test_to_bf16_rounds_to_the_nearest_and_ties_to_even(self):
        for x, rounded in ((1, 1), (1 + 2**-8, 1), (1 + 3 * 2**-8, 1 + 2**-6), (1 + 2**-8 + 2**-20, 1 + 2**-7), (-63.9, -64), (64.25, 64), (64.26, 64.5),
                           (np.inf, np.inf)):  # fmt: skip
            self.assertEqual(to_bf16(np.array([x]))[0], rounded)
        self.assertTrue(np.isnan(to_bf16(np.array([np.nan]))[0]))

    def test_where_exp_overflows(self):
        with np.errstate(over="ignore"):
            for dtype, below, above in ((np.float32, 88.72, 88.73), (np.float16, 11.08, 11.1)):
                self.assertTrue(np.isfinite(np.exp(dtype(below))))
                self.assertTrue(np.isinf(np.exp(dtype(above))))
            # bf16 has no number between 88.5 and 89.
            self.assertEqual(list(np.isfinite(to_bf16(np.exp(to_bf16(np.array([88.6, 88.8])))))), [True, False])
            self.assertEqual(to_bf16(np.array([88.6]))[0], 88.5)
        self.assertEqual(np.exp(np.float32(-104)), 0)

    def test_the_difference_is_rounded_once(self):
        p = np.array([0.9985], np.float32)
        self.assertEqual(to_bf16(p)[0] - 1, 0)
        self.assertAlmostEqual(float(to_bf16(p - 1)[0]) / (0.9985 - 1), 1, delta=2**-8)

    def test_fp16_cannot_hold_a_small_gradient(self):
        for p, zero in ((1 / 65, True), (1 / 63, False)):
            self.assertEqual(np.float16(p / 524288) == 0, zero)
            self.assertAlmostEqual(float(to_bf16(np.array([p / 524288]))[0]) * 524288 / p, 1, delta=2**-8)

    def test_slopes_near_the_cap(self):
        exact = cross_entropy.slopes(np.array([60.0, 150.0]))[1]
        written, by_q = (np.abs(slope / exact - 1) for slope in cross_entropy.slopes(np.array([60, 150], np.float32)))
        # 1 - tanh^2 is 1.3e-3 at 60, and tanh^2 is rounded by up to 2^-24: once as tanh, which counts twice, and once as a product.
        self.assertGreater(written[0], 1e-6)
        self.assertLess(written[0], 3 * 2**-24 / 1.3e-3)
        self.assertEqual(written[1], 1)  # the slope is 0
        # exp(-2 z / 15) with an argument rounded by 2^-24 twice: 20 at z = 150
        self.assertLess(by_q.max(), 3 * 20 * 2**-24)


class Experiment(FolderTest):
    def test_errors_over_the_size_of_the_logits(self):
        sizes = np.array([1, 10, 30, 100])
        with np.errstate(all="ignore"):
            found = cross_entropy.over_sizes(sizes, rows=6)
        # 16 sums of 3141 positive terms each: a running sum is rounded by at most 3141 * 2^-24 = 2e-4, and by a tenth of that if the
        # roundings partly cancel. Losses are up to 600, and are rounded by up to 2^-24 of that twice: 7e-5, but a third in the mean.
        self.assertLess(found[subtracted, "nothing"][:, 0].max(), 4e-5)
        self.assertLess(found[subtracted, "nothing"][:, 1].max(), 4e-5)
        self.assertLess(found[capped, "nothing"].max(), 4e-5)
        # The largest of 6 * 50257 normal numbers is between 4 and 6, so exp overflows between 88.7 / 6 = 15 and 88.7 / 4 = 22.
        np.testing.assert_array_equal(np.isfinite(found[naive, "nothing"][:, 0]), [True, True, False, False])
        np.testing.assert_array_less(found[naive, "nothing"][:2], 4e-5)
        # Rounding of the logits belongs to neither form, grows with the size, and is bounded by the cap.
        np.testing.assert_allclose(found[naive, "logits"][:2], found[subtracted, "logits"][:2], rtol=0.02)
        self.assertTrue((found[subtracted, "logits"][:, 0] > 100 * found[subtracted, "nothing"][:, 0]).all())
        self.assertGreater(found[subtracted, "logits"][3, 0], 100 * found[subtracted, "logits"][0, 0])
        self.assertGreater(found[subtracted, "logits"][3, 0], 0.1)
        # 6.7 * 2^-8 for the target's logit, and as much for the mean of all
        self.assertLess(found[capped, "logits"][:, 0].max(), 2 * 6.7 / 256)
        # A stored gradient is wrong by at most 2^-8 of each element; even numbers that lie evenly between two steps are wrong by 2^-8 / 4.
        self.assertLess(found[subtracted, "gradient"][:, 1].max(), 2**-8)
        self.assertGreater(found[subtracted, "gradient"][0, 1], 2**-8 / 4)
        np.testing.assert_array_equal(found[subtracted, "gradient"][:, 0], found[subtracted, "nothing"][:, 0])

    def test_errors_around_a_level(self):
        with np.errstate(all="ignore"):
            errors = dict(zip(cross_entropy.LEVELS, cross_entropy.over_levels(cross_entropy.LEVELS)))
        self.assertEqual([level for level, row in errors.items() if not np.isfinite(row[0])], [-120, 80])
        self.assertGreater(errors[-110][0], 0.1)  # only the highest logits have an exponential above 0
        self.assertLess(max(errors[level][0] for level in (-60, 0, 60, 70)), 1e-5)  # ulps of 70 are 8e-6
        self.assertLess(max(row[1] for row in errors.values()), 2e-6)
        # The chapter's table: the same random numbers, so what is rounded to bf16 has the same error but for the last digit printed.
        rows = [line.strip("| ").split(" | ") for line in CHAPTER.splitlines() if re.match(r"\| (level|naive|maximum)", line)]
        cells = {name: [float(cell) for cell in row] for name, *row in rows}
        self.assertEqual(tuple(cells["level"]), cross_entropy.LEVELS)
        np.testing.assert_allclose(cells["maximum subtracted, logits in bf16"], [row[2] for row in errors.values()], rtol=0.06)
        np.testing.assert_array_equal(np.isinf(cells["naive, fp32"]), [np.isinf(row[0]) for row in errors.values()])
        # Targets at a level of 64 to 128 are rounded by up to 0.25, evenly: 0.125 in the mean, and half of that below 64. Of 16 such errors the mean
        # has a standard deviation of 0.144 / 4.
        for level, mean in ((-120, 0.125), (-110, 0.125), (-100, 0.125), (-60, 0.0625), (60, 0.0625), (80, 0.125)):
            self.assertAlmostEqual(errors[level][2], mean, delta=3 * 0.58 / 4 * mean)

    def test_a_sum_loses_what_is_below_half_of_a_step(self):
        in_bf16, one, several = cross_entropy.SUMS
        found = {gap: {name: values[0] for name, values in cross_entropy.over_gaps([gap]).items()} for gap in (0, 5.6, 16.7)}
        self.assertAlmostEqual(found[0][in_bf16], np.log(V / 256), delta=1e-12)
        self.assertAlmostEqual(found[0][one], 0, delta=1e-12)  # whole numbers below 2^24
        for gap, name, lost in ((5.6, in_bf16, V - 1), (16.7, in_bf16, V - 1), (16.7, one, V - 1), (16.7, several, V // cross_entropy.LANES - 1)):
            # The lost terms are all equal. The other sums are rounded at most 3141 times, by 2^-24 each.
            missing = np.log1p((V - 1) * np.exp(-gap)) - np.log1p((V - 1 - lost) * np.exp(-gap))
            self.assertAlmostEqual(found[gap][name], missing, delta=1e-5 * missing + (V - 1) * np.exp(-gap) * 3141 * 2**-24)

    def test_the_hump_belongs_to_the_sum(self):
        in_lanes = cross_entropy.over_sizes([4], rows=4)[subtracted, "nothing"][0]
        with unittest.mock.patch.object(cross_entropy, "lane_sum", lambda x: x.sum(-1, dtype=np.float64).astype(x.dtype)[:, None]):
            exactly = cross_entropy.over_sizes([4], rows=4)[subtracted, "nothing"][0]
        self.assertTrue((in_lanes > 3 * exactly).all(), (in_lanes, exactly))

    def test_the_picture(self):
        picture, out, figures = self.folder / "picture.png", io.StringIO(), []
        small = {name: functools.partial(getattr(cross_entropy, name), V=500) for name in ("over_sizes", "over_levels", "over_gaps")}
        save = matplotlib.figure.Figure.savefig

        def keep(figure, *arguments, **named):
            figures.append(figure)
            save(figure, *arguments, **named)

        with contextlib.ExitStack() as stack:
            stack.enter_context(unittest.mock.patch.multiple(cross_entropy, **small))
            stack.enter_context(unittest.mock.patch.object(matplotlib.figure.Figure, "savefig", keep))
            stack.enter_context(unittest.mock.patch.object(sys, "argv", ["script", "--out", str(picture)]))
            stack.enter_context(contextlib.redirect_stdout(out))
            cross_entropy.main()
        self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        self.assertIn("exp(x) is finite up to x = 88.72 in fp32, 88.72 in bf16, 11.09 in fp16", out.getvalue())
        self.assertEqual(len(figures[0].axes), 3)
        self.assertEqual([line.get_label() for line in figures[0].axes[2].get_lines()], list(cross_entropy.SUMS))


class Chapter(unittest.TestCase):
    def test_sizes(self):
        for N, each, said in ((65536, 4, "12.3 GiB in fp32"), (65536, 2, "6.1 GiB in bf16")):
            size = N * Vp * each / 2**30
            self.assertIn(said, CHAPTER)
            self.assertAlmostEqual(size, float(said.split()[0]), delta=0.05)
        once = 65536 * Vp * 2 / 2**30
        for passes, said in ((2, "12.3 GiB in bf16"), (4, "24.6 GiB"), (6, "36.8 GiB")):
            self.assertIn(said, CHAPTER)
            self.assertAlmostEqual(passes * once, float(said.split()[0]), delta=0.05)
        self.assertAlmostEqual(24.4 - 19.0, 7 / 8 * once, delta=0.11)  # two figures of the plan, with one decimal
        self.assertEqual(Vp, (V + 127) // 128 * 128)
        self.assertEqual(Vp, 393 * 128)
        self.assertAlmostEqual(np.log(Vp / V), 0.0009, delta=0.00005)

    def test_padded_logits_of_zero_would_take_the_probability(self):
        z, _ = logits(1, V, 2)
        padded = np.concatenate((z - 60, np.zeros((1, Vp - V))), axis=1)
        p = np.exp(padded - padded.max())
        self.assertGreater(p[0, V:].sum() / p.sum(), 1 - 1e-15)


if __name__ == "__main__":
    unittest.main()
