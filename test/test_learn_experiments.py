#!/usr/bin/env python3
"""The experiments of docs/learn/4, 5 and 6 run, draw what they measured, and measure what the chapters say."""
import contextlib
import importlib.util
import io
import re
import sys
import types
import unittest
import unittest.mock

from common import ROOT, FolderTest  # beside this file

try:
    import matplotlib.figure
except ImportError as error:
    print(f"{error}; the scripts need it\n\nOK (skipped=1)", file=sys.stderr)
    sys.exit(0)

sys.path.insert(0, str(ROOT / "dev" / "learn"))  # where muon.py finds pictures.py


def load(name):
    spec = importlib.util.spec_from_file_location(f"learn_{name}", ROOT / "dev" / "learn" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Experiment(FolderTest):
    def run_main(self, module, *options):
        """The script's output, and the figure that it wrote into a picture."""
        picture, figures, out = self.folder / "picture.png", [], io.StringIO()
        save = matplotlib.figure.Figure.savefig

        def keep(figure, *arguments, **named):
            save(figure, *arguments, **named)
            figures.append(figure)

        arguments = ["script", *options, "--out", str(picture)]
        with unittest.mock.patch.object(matplotlib.figure.Figure, "savefig", keep), unittest.mock.patch.object(sys, "argv", arguments):
            with contextlib.redirect_stdout(out):
                module.main()
        self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        return out.getvalue(), figures[0]


class Optimizers(Experiment):
    def test_runs_steps_and_the_picture(self):
        module, seen = load("optimizers"), {}
        measure = module.experiment
        module.OPTIMIZERS = {name: (options, rates[2:4]) for name, (options, rates) in module.OPTIMIZERS.items()}
        module.experiment = lambda arguments: seen.setdefault("runs", measure(arguments))
        text, figure = self.run_main(module, "--tiny", "--steps", "20", "--val-steps", "2")
        swept, probes = seen["runs"]
        every = [run for runs in swept.values() for run in runs.values()]
        self.assertEqual(len({run.losses[0] for run in every}), 1)  # the same weights and batch
        self.assertTrue(all(len(run.losses) == 20 and run.val < run.losses[0] for run in every))
        curves, rates = figure.axes
        for name, runs in swept.items():
            lowest = min(run.val for run in runs.values())
            best = next(lr for lr, run in runs.items() if run.val == lowest)
            self.assertIn(f"{best:g}: {lowest:.3f}*", text)
            self.assertIn(f"{name}; lr {best:g}", [line.get_label() for line in curves.get_lines()])
            self.assertIn(([best], [lowest]), [(list(line.get_xdata()), list(line.get_ydata())) for line in rates.get_lines()])

        # The gradients of every step are longer than 0.1, so the two clips differ by a factor of 10 in all steps. Adam divides it out,
        # but for eps = 1e-8 beside gradients of about 0.01 / sqrt(5000) = 1e-4; SGD learns ten times as slowly.
        self.assertGreater(min(norm for run in probes.values() for norm in run.norms), 0.1)
        adam, sgd = ([probes[name, clip].val for clip in module.CLIPS] for name, _ in module.PROBES)
        self.assertAlmostEqual(*adam, delta=1e-3)
        self.assertGreater(abs(sgd[0] - sgd[1]), 0.1)

        # The first step is the learning rate with bias correction, 1 / sqrt(1 - 0.99) times that without, and SGD's is in proportion to
        # the gradient. Printed to three digits.
        first = {line[:34].strip(): list(map(float, line[34:].split())) for line in text.split("first step")[1].splitlines()[1:6]}
        self.assertEqual(list(first), list(swept))
        for name, (longer, shorter) in first.items():
            if name.startswith("sgd"):
                self.assertAlmostEqual(longer / shorter, 10, delta=0.1)
            else:
                expected = 10 if name == "rmsprop" else 1
                self.assertAlmostEqual(longer, expected, delta=0.01 * expected)
                self.assertAlmostEqual(shorter, expected, delta=0.01 * expected)

    def test_a_run_that_diverged_is_not_the_best(self):
        runs = {lr: types.SimpleNamespace(val=val) for lr, val in ((1, 3.0), (2, 2.5), (3, float("nan")))}
        self.assertEqual(load("optimizers").best(runs), 2)


class Rungs(Experiment):
    def test_rates_are_read_in_tera_too(self):
        text = "profile: peaks measured in this run: copy 1.2 TB/s, matrix product 1.6 TFLOP/s\n" + "".join(
            f"  {part} 1.0 MiB\n" for part in ("activations", "workspace")
        )
        text += "qkv                         256 x 768 x 2304       1       0.500     10.0 %      1.5 TFLOP/s    93.8 %\n"
        text += "attention                                          1       2.000     40.0 %     30.0 GB/s        2.5 %\n"
        text += "sum of norms                                       1       0.001      0.0 %                -         -\n"
        read = load("rungs").read_output(text)
        self.assertEqual(read["peaks"], (1200, 1600))
        self.assertEqual(read["operations"], {"qkv": (0.5, 750, "GFLOP/s"), "attention": (2, 60, "GB/s"), "sum of norms": (0.001, 0, "")})

    def test_ratios_kinds_plan_and_intensities(self):
        module, seen = load("rungs"), {}
        rungs, summary = module.rungs(), module.summary
        self.assertEqual(list(rungs), ["fp32", "bf16", "attention by oneDNN", "GELU again", "blocks again", "head in 8 parts"])
        self.assertEqual(rungs["head in 8 parts"][-4:], ["--recompute", "block", "--head-chunks", "8"])
        module.rungs = lambda: {name: rungs[name] for name in ("fp32", "bf16")}
        module.summary = lambda runs: seen.setdefault("result", summary(seen.setdefault("runs", runs)))
        text, figure = self.run_main(module, "--tiny", "--rounds", "1")
        runs, result = seen["runs"], seen["result"]
        for name, row in result.items():
            (run,) = runs[name]
            self.assertAlmostEqual(sum(row["kinds"].values()), row["ms"], delta=1e-6 * row["ms"])
            self.assertAlmostEqual(row["time"], row["ms"] / result["fp32"]["ms"])
            plan = dict(row["plan"])
            self.assertAlmostEqual(plan.pop("total"), sum(plan.values()), delta=0.05 * (len(plan) + 2))  # MiB, printed to 0.1
            self.assertAlmostEqual(run["loss"], runs["fp32"][0]["loss"], delta=0.02)
        self.assertNotIn("master weights", result["fp32"]["plan"])
        self.assertIn("master weights", result["bf16"]["plan"])
        # The program's rates times its times are what trainer/engine/cost.h counts, as far as
        # times printed to 0.001 ms and rates to 0.1 of GB/s, GFLOP/s or TFLOP/s say it.
        for name, each in (("fp32", 4), ("bf16", 2)):
            operations = runs[name][0]["operations"]
            expected = module.intensities(module.TINY, each)
            for operation, calls in (("qkv", 1), ("fc + GELU", 1), ("attention", 1), ("layernorm", 1), ("residual + layernorm", 2)):
                ms, done, unit = operations[operation]
                least = calls * expected[operation][unit == "GB/s"] / 1e6
                digit = 0.06 if done / ms < 999 else 60
                self.assertAlmostEqual(done, least, delta=least * 0.0006 / ms + digit * ms, msg=f"{name} {operation}")
        self.assertRegex(text, rf"\n bf16 +\| {result['bf16']['time']:.3f} +\| {result['bf16']['memory']:.3f} +\|")
        for axis, key, delta in zip(figure.axes, ("time", "memory"), (1e-6, 0.06)):  # a plan of a few MiB is printed to 0.1
            for place, row in enumerate(result.values()):
                self.assertAlmostEqual(sum(container[place].get_width() for container in axis.containers), row[key], delta=delta)


class Muon(Experiment):
    def test_both_runs_learn_and_the_update_has_singular_values_near_one(self):
        module, seen = load("muon"), {}
        draw = module.draw

        def keep(runs, before, after, arguments):
            records = {name: module.RunMetrics(run).values("train", "loss") for name, run in runs.items()}
            seen.update(losses=records, before=before, after=after)
            draw(runs, before, after, arguments)

        module.draw = keep
        text, figure = self.run_main(module, "--tiny", "--steps", "40", "--val-steps", "2")
        first = {losses[0] for losses in seen["losses"].values()}
        self.assertEqual(len(first), 1)  # the same weights and batch
        for name, losses in seen["losses"].items():
            self.assertEqual(len(losses), 40)
            val = float(re.search(rf"^{name}: validation loss (\d+\.\d+) after 40 steps$", text, re.M)[1])
            self.assertLess(val, losses[0])
        # Divided by its norm, a value above 0.002 ends between 0.68 and 1.21 (docs/learn/6), and a smaller one below that.
        before, after = seen["before"], seen["after"]
        self.assertEqual(before.shape, (16,))
        self.assertTrue((after < 1.21).all(), after)
        self.assertGreaterEqual((after > 0.68).sum(), (before / (before**2).sum() ** 0.5 > 0.002).sum())
        curves, values = figure.axes
        self.assertEqual([line.get_label() for line in curves.get_lines()], ["adamw", "muon"])
        self.assertEqual(list(values.get_lines()[1].get_ydata()), list(after))


if __name__ == "__main__":
    unittest.main()
