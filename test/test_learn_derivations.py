#!/usr/bin/env python3
"""The claims of docs/learn, chapters 1 to 3, hold for the experiments that they describe.

TRAIN_PROGRAM and RESIDUAL_VARIANCE_PROGRAM name the programs to test with.
"""
import pathlib
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "dev" / "learn"))
import accumulation  # noqa: E402
import layernorm_backward  # noqa: E402
import residual_projections  # noqa: E402


class LayernormBackward(unittest.TestCase):
    def test_the_formula_is_the_derivative_and_the_mistakes_are_not(self):
        # At h = 1e-4 the difference quotient is right to h^2 and to 2^-53 / h, times a few numbers near 1: both are near 1e-11.
        errors = {name: values[0] for name, values in layernorm_backward.errors([1e-4], np.float64).items()}
        self.assertLess(errors["right"], 1e-9)
        self.assertGreater(errors["no norm term"], 0.1)
        self.assertGreater(errors["no mean terms"], 0.1)

    def test_truncation_falls_with_the_square_of_the_step(self):
        coarse, fine = layernorm_backward.errors([1e-1, 1e-2], np.float64)["right"]
        self.assertAlmostEqual(coarse / fine, 100, delta=5)  # the next term is h^4

    def test_weight_and_bias(self):
        dout, inp, weight, bias = layernorm_backward.example()
        _, dweight, dbias = layernorm_backward.backward(dout, inp, weight)
        # The output is linear in both, so the difference quotient is exact but for rounding.
        for gradient, loss, at in ((dweight, lambda w: (dout * layernorm_backward.forward(inp, w, bias)).sum(), weight),
                                   (dbias, lambda b: (dout * layernorm_backward.forward(inp, weight, b)).sum(), bias)):  # fmt: skip
            self.assertLess(layernorm_backward.error(gradient, layernorm_backward.difference_quotient(loss, at, 1.0)), 1e-12)

    def test_the_gradient_is_orthogonal_to_ones_and_to_the_normalised_row(self):
        dout, inp, weight, _ = layernorm_backward.example(64, 768)
        dinp = layernorm_backward.backward(dout, inp, weight)[0]
        mean, rstd = layernorm_backward.statistics(inp)
        length = np.linalg.norm(dinp, axis=1)
        self.assertLess(np.abs(dinp.sum(1) / length / np.sqrt(768)).max(), 1e-13)
        # Along norm, a part eps rstd^2 = 2.5e-6 of dnorm's component is left.
        self.assertLess(np.abs((dinp * (inp - mean) * rstd).sum(1) / length / np.sqrt(768)).max(), 1e-5)


def adamw(gradients, eps, clip, lr=1e-2, beta1=0.9, beta2=0.99, decay=0.1):
    """The parameters after each step, in double precision: kernels/adamw.cuh with the scale of kernels/optimizer_state.cuh."""
    p, m, v, path = np.ones(gradients.shape[1]), 0.0, 0.0, []
    for t, g in enumerate(gradients, 1):
        g = g * min(1, clip / np.linalg.norm(g))
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        p = p * (1 - lr * decay) - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        path.append(p)
    return np.array(path)


class Accumulation(unittest.TestCase):
    def test_gradients_n_times_too_large_are_eps_and_clip_n_times_too_small(self):
        # Norms from 0.1 to 10, so that steps are clipped by both programs, by one, and by none.
        random = np.random.default_rng(3)
        gradients = random.normal(size=(40, 50)) / np.sqrt(50) * 10 ** random.uniform(-1, 1, (40, 1))
        mistaken, emulated = adamw(4 * gradients, 1e-3, 1), adamw(gradients, 1e-3 / 4, 1 / 4)
        np.testing.assert_allclose(mistaken, emulated, rtol=1e-13)
        self.assertGreater(np.abs(mistaken - adamw(gradients, 1e-3, 1)).max(), 1e-3)  # and not what the right program does

    def test_micro_steps_change_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            small = "--layers 1 --heads 1 --channels 16".split()
            curves = [accumulation.train([*small, "--batch-size", str(accumulation.BATCH // n)], 5, pathlib.Path(folder, str(n))) for n in (1, 2, 4)]
        for curve in curves[1:]:
            # fp32 sums of 768 tokens in another order: sqrt(768) 2^-24 = 1.7e-6, with a factor 3
            np.testing.assert_allclose(curve["loss"], curves[0]["loss"], rtol=5e-6)
            np.testing.assert_allclose(curve["grad_norm"], curves[0]["grad_norm"], rtol=5e-6)


class ResidualProjections(unittest.TestCase):
    def test_the_derived_variance_is_the_measured_one(self):
        for layers in (4, 16):
            for scaled in (False, True):
                with self.subTest(layers=layers, scaled=scaled):
                    # The part that all positions share is one random vector of 128 numbers: its squared length scatters by 12 %.
                    measured = residual_projections.measure(layers, scaled)["variance"]
                    np.testing.assert_allclose(measured, residual_projections.derive(layers, scaled), rtol=0.12)

    def test_the_scale_makes_the_end_independent_of_depth(self):
        ends = {scaled: [residual_projections.derive(layers, scaled)[-1] for layers in (12, 48)] for scaled in (False, True)}
        self.assertGreater(ends[False][1] / ends[False][0], 4)
        self.assertAlmostEqual(ends[True][1] / ends[True][0], 1, delta=0.01)


if __name__ == "__main__":
    unittest.main()
