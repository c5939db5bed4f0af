#!/usr/bin/env python3
"""dev/bench/predict_step.py: costs grow with the batch, and an operation takes the time of what bounds it."""
import sys
import unittest

from common import ROOT  # beside this file

sys.path.insert(0, str(ROOT / "dev" / "bench"))
import predict_step  # noqa: E402

GPU = predict_step.Gpu("none", bandwidth=1e9 / predict_step.COPY, products=4e9, attention=2e9)  # copies 1 GB/s


def profiled(name, size, flops=0, calls=1, shape=None):
    return dict(name=name, bytes=size, flops=flops, calls=calls, shape=shape)


def operation(name, size, flops=0, product=False):
    return dict(name=name, bytes=size, flops=flops, calls=1, product=product)


class PredictStep(unittest.TestCase):
    def test_two_profiles_give_every_batch(self):
        """A product has weights beside its rows; the optimizer runs once in the 8 micro-steps of 64 sequences."""
        one = [profiled("qkv", 110, 7, 12, [1024, 768, 2304]), profiled("optimizer", 50, calls=26)]
        two = [profiled("qkv", 120, 14, 12, [2048, 768, 2304]), profiled("optimizer", 50, calls=26)]
        qkv, optimizer, _ = predict_step.operations_of(one, two, 64)
        self.assertEqual(qkv, dict(name="qkv", product=True, calls=12, bytes=740, flops=448))
        self.assertEqual(optimizer, dict(name="optimizer", product=False, calls=26 / 8, bytes=50 / 8, flops=0))

    def test_bias_gradients_read_the_gradients_again_or_are_free(self):
        one, two = ([profiled("fc dW", n, n, 12, [n * 1024, 768, 3072])] for n in (1, 2))
        sums = predict_step.operations_of(one, two, 64)[-1]
        self.assertEqual(sums["bytes"], 12 * 65536 * 3072 * 2)
        most, least = predict_step.seconds(sums, GPU)
        self.assertAlmostEqual(most, sums["bytes"] / (1e9 * predict_step.KERNELS))
        self.assertEqual(least, 0)

    def test_a_product_takes_its_arithmetic_and_its_bytes_or_the_longer_of_them(self):
        for size, flops, expected in ((3e9, 4e9, (4, 3)), (1e9, 8e9, (3, 2))):
            found = predict_step.seconds(operation("fc dX", size, flops, product=True), GPU)
            for value, wanted in zip(found, expected):
                self.assertAlmostEqual(value, wanted)

    def test_other_operations_take_what_bounds_them(self):
        most, least = predict_step.seconds(operation("classifier", 1e9), GPU)
        self.assertEqual(most, least)
        self.assertAlmostEqual(most, 1 / predict_step.KERNELS)
        self.assertAlmostEqual(predict_step.seconds(operation("attention", 9e9, 2e9), GPU)[0], 1)
        backward = predict_step.seconds(operation("attention backward", 9e9, 2e9), GPU)[0]
        self.assertAlmostEqual(backward, 1 / predict_step.BACKWARD)

    def test_no_rate_is_above_the_data_sheets(self):
        rates = (ROOT / "trainer" / "run" / "nvidia_rates.inc").read_text()
        for gpu in predict_step.GPUS:
            with self.subTest(gpu.name):
                self.assertLess(gpu.products, predict_step.data_sheet_rate(gpu.name, rates))
                self.assertLess(gpu.attention, gpu.products)

    def test_the_page_has_these_rates_and_says_what_they_are(self):
        page = (ROOT / "docs" / "performance.md").read_text()
        wanted = ["\n".join(predict_step.table_of_rates()), "**micro-step, predicted: nothing hidden**", "predicted, not measured"]
        self.assertEqual([text for text in wanted if text not in page], [])


if __name__ == "__main__":
    unittest.main()
