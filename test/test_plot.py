#!/usr/bin/env python3
"""scripts/plot.py draws the metrics of a run, also of an interrupted one, and reports in one line what it cannot draw."""
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import unittest
import unittest.mock

from common import ROOT, FolderTest  # beside this file

SCRIPT = ROOT / "scripts" / "plot.py"
sys.path.insert(0, str(SCRIPT.parent))
import plot  # noqa: E402


def record(**fields):
    return json.dumps(fields)


def run_lines(steps=300, options=None):
    lines = [record(kind="run", options=options or {"train_data": "data/tinyshakespeare.txt"}, model="custom")]
    for step in range(1, steps + 1):
        loss = 2 + 8 * math.exp(-step / 40)
        lines.append(record(kind="train", step=step, loss=loss, grad_norm=1 + 1 / step, lr=1e-3, tokens=step * 768, step_ms=9.5,
                            tokens_per_second=80_000.0, mfu=0.5))  # fmt: skip
        if step % 100 == 0:
            lines.append(record(kind="val", step=step, loss=2.1))
    return lines


class Plot(FolderTest):
    def write(self, lines, name="run", end="\n"):
        run = self.folder / name
        run.mkdir()
        (run / "metrics.jsonl").write_text("\n".join(lines) + end)
        return run

    def plot(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)

    def assert_drawn(self, result, picture):
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, f"{picture}\n")
        data = picture.read_bytes()
        self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", data[16:24])
        self.assertTrue(800 <= width <= 3000 and 600 <= height <= 3000, (width, height))
        self.assertGreater(len(data), 20_000)  # an empty figure of this size takes less
        self.assertEqual([file.name for file in picture.parent.glob(".*png*")], [])

    def test_many_runs_are_legible(self):
        runs = [self.write(run_lines(), f"{'a' * 60}-{i}") for i in range(13)]
        out = self.folder / "many.png"
        self.assert_drawn(self.plot(*runs, "--out", out), out)
        styles = {(style.color, style.line) for style in (plot.Style(i, 13) for i in range(13))}
        self.assertEqual(len(styles), 13)
        names = {plot.Run(run).short_name() for run in runs}
        self.assertEqual((len(names), max(map(len, names))), (13, plot.LONGEST_NAME))

    def figures_of(self, *several_runs):
        """The figures of each list of runs, for inspection."""
        seen, save = [], plot.plt.Figure.savefig

        def look(figure, *arguments, **options):
            save(figure, *arguments, **options)
            seen.append(figure)

        with unittest.mock.patch.object(plot.plt.Figure, "savefig", look):
            for runs in several_runs:
                plot.draw(runs, self.folder / "figure.png")
        return seen

    def test_the_lines_are_what_the_run_wrote(self):
        lines = [record(kind="train", step=s, loss=10 / s, grad_norm=s, lr=s * 1e-4, tokens_per_second=100.0 * s) for s in range(1, 41)]
        lines += [record(kind="val", step=s, loss=3 / s) for s in (10, 20, 40)] + [record(kind="hellaswag", step=40, accuracy_norm=0.3)]
        (figure,) = self.figures_of([plot.Run(self.write(lines))])
        drawn = {axis.get_ylabel(): [(list(line.get_xdata()), list(line.get_ydata())) for line in axis.get_lines()] for axis in figure.axes}
        steps = list(range(1, 41))
        self.assertIn((steps, [10 / s for s in steps]), drawn["loss, nats a token"])
        self.assertIn(([10, 20, 40], [0.3, 0.15, 0.075]), drawn["loss, nats a token"])
        self.assertIn((steps, steps), drawn["gradient norm"])
        self.assertIn((steps, [s * 1e-4 for s in steps]), drawn["learning rate"])
        self.assertIn((steps, [100 * s for s in steps]), drawn["tokens/s"])
        self.assertIn(([40], [0.3]), drawn["HellaSwag"])
        loss = next(axis for axis in figure.axes if axis.get_ylabel().startswith("loss"))
        self.assertEqual([text.get_text() for text in loss.get_legend().get_texts()], ["train", "validation, last 0.075"])

    def test_no_legend_hides_a_line(self):
        lines = run_lines()
        lines += [record(kind="skipped", step=7, grad_norm=None), record(kind="hellaswag", step=300, accuracy_norm=0.3)]
        runs = [plot.Run(self.write(lines, f"run{i}")) for i in range(5)]
        seen = self.figures_of(runs[:1], runs)
        legends = [(axis, axis.get_legend()) for figure in seen for axis in figure.axes if axis.get_legend()]
        self.assertGreaterEqual(len(legends), 3)
        for axis, legend in legends:
            self.assertFalse(legend.get_window_extent().overlaps(axis.get_window_extent()), legend.get_texts())
        for figure in seen:
            for axis in figure.axes:
                self.assertGreater(axis.get_window_extent().width, 0.6 * figure.bbox.width)

    def test_the_x_axis_counts_steps_tokens_or_hours(self):
        run = self.write(run_lines())
        for x, last in (("steps", 300), ("tokens", 300 * 768), ("hours", 300 * 9.5 / 3.6e6)):
            places, _ = plot.Run(run, x).series("val", "loss")
            self.assertAlmostEqual(places[-1], last, delta=last * 1e-9)
            self.assert_drawn(self.plot(run, "--x", x), run / "loss.png")
        self.assert_one_line(self.plot(run, "--x", "miles"), "invalid choice")
        old = self.write([record(kind="train", step=1, loss=3.0)], "old")
        self.assert_one_line(self.plot(old, "--x", "tokens"), "does not say the tokens of its steps; expected --x steps")

    def test_speed_is_drawn_where_it_was_measured(self):
        self.assertTrue(plot.Speed().wanted([plot.Run(self.write(run_lines()))]))
        self.assertFalse(plot.Speed().wanted([plot.Run(self.write([record(kind="train", step=1, loss=3.0, tokens_per_second=None)], "none"))]))
        rates = plot.np.full(400, 5.0)
        rates[10], rates[20] = math.nan, 1e9
        self.assertEqual(set(plot.running_median(rates)), {5.0})

    def test_torn_last_line_nulls_skipped_steps_and_foreign_records(self):
        lines = run_lines()
        lines[50] = record(kind="train", step=50, loss=None, grad_norm=None, lr=1e-3)
        lines += [record(kind="skipped", step=50, grad_norm=None), record(kind="sample", step=300, text="ROMEO:"), record(kind="future", step=1)]
        run = self.write(lines, end='\n{"kind":"train","step":301,"lo')
        result = self.plot(run)
        self.assert_drawn(result, run / "loss.png")
        self.assertEqual(result.stderr, "")

    def test_a_step_logged_again_after_resuming_counts_once(self):
        lines = run_lines(10) + [record(kind="run", resumed_from=8), record(kind="train", step=9, loss=1.0), record(kind="train", step=10, loss=2.0)]
        steps, losses = plot.Run(self.write(lines)).series("train", "loss")
        self.assertEqual(list(steps), list(range(1, 11)))
        self.assertEqual(list(losses[-2:]), [1.0, 2.0])

    def test_one_step_or_nothing_finite_is_drawn_too(self):
        for name, loss in (("one", 3.0), ("nothing", None)):
            run = self.write([record(kind="train", step=1, loss=loss, grad_norm=None, lr=1e-3)], name)
            self.assert_drawn(self.plot(run), run / "loss.png")

    def test_references_belong_to_data_and_size(self):
        cases = [
            ("data/fineweb10B/fineweb_train_*.bin", {"model": "d12"}, 3.424958),
            ("/data/edu_fineweb10B/edufineweb_train_*.bin", {"model": "gpt2"}, 3.2924),
            ("fineweb-edu/train.bin", {"model": "d48"}, None),  # nothing published
            ("OpenWebText/train.bin", {"layers": 24, "channels": 1024, "vocab": 50257}, 2.84),
            ("fineweb/train.bin", {"layers": 12, "channels": 768, "vocab": 256}, None),  # other tokens, other losses
            ("data/tinyshakespeare.txt", {"model": "d12"}, None),
        ]
        for index, (data, options, expected) in enumerate(cases):
            run = plot.Run(self.write(run_lines(2, {"train-data": data, **options}), f"run{index}"))
            reference = run.reference()
            self.assertEqual(reference and reference[1], expected, data)

    def test_hellaswag_stands_beside_openai_s_models_of_that_size(self):
        lines = run_lines(options={"model": "d12", "train_data": "fineweb10B/fineweb_train_*.bin"})
        lines += [record(kind="hellaswag", step=step, accuracy=0.27, accuracy_norm=0.25 + step / 6000, examples=10042) for step in (100, 200, 300)]
        run = self.write(lines)
        self.assertEqual(plot.Run(run).hellaswag_references(), [("GPT-2 124M", 0.294463), ("GPT-3 125M", 0.337)])
        self.assertTrue(plot.HellaSwag().wanted([plot.Run(run)]))
        self.assert_drawn(self.plot(run), run / "loss.png")
        bytes_only = plot.Run(self.write(run_lines(2, {"layers": 12, "channels": 768, "vocab": 256}), "bytes"))
        self.assertEqual(bytes_only.hellaswag_references(), [])
        self.assertFalse(plot.HellaSwag().wanted([bytes_only]))

    def test_norms_by_layer_of_a_lone_run(self):
        lines = run_lines()
        for step in range(10, 301, 10):
            layers = {"wte": 2 / step, **{f"h.{i}": (i + 1) / step for i in range(12)}, "ln_f": None if step == 50 else 0.5 / step}
            lines.append(record(kind="layer_norms", step=step, grad=layers, weight={layer: 30 + len(layer) for layer in layers}))
        run = self.write(lines)
        steps, norms = plot.Run(run).layer_norms("grad")
        self.assertEqual(list(steps), list(range(10, 301, 10)))
        self.assertEqual(norms["h.11"][0], 1.2)
        self.assertTrue(math.isnan(norms["ln_f"][4]))
        self.assertTrue(plot.LayerNorms("weight", "").wanted([plot.Run(run)]))
        self.assertFalse(plot.LayerNorms("grad", "").wanted([plot.Run(run)] * 2))  # the lines of several runs could not be distinguished
        self.assert_drawn(self.plot(run), run / "loss.png")
        self.assert_drawn(self.plot(run, self.write(run_lines(), "other"), "--out", self.folder / "both.png"), self.folder / "both.png")

    def test_smoothing_keeps_a_line_and_passes_over_gaps(self):
        line = plot.np.linspace(10, 2, 500)
        self.assertLess(abs(plot.smoothed(line) - line)[:-5].max(), 1e-12)  # the last window has only its left half
        line[100] = math.nan
        self.assertTrue(plot.np.isfinite(plot.smoothed(line)).all())

    def test_what_cannot_be_drawn_is_one_line(self):
        self.assert_one_line(self.plot(self.folder / "absent"), "holds no run")
        self.assert_one_line(self.plot(self.write([], "empty")), "no finished step yet")
        self.assert_one_line(self.plot(self.write([record(kind="run")], "begun")), "no finished step yet")
        self.assert_one_line(self.plot("--unknown"), "unrecognized arguments")

    def test_a_python_without_matplotlib_names_one_that_has_it(self):
        result = subprocess.run([sys.executable, "-S", SCRIPT, "run"], capture_output=True, text=True)  # -S: sees no packages
        self.assert_one_line(result, "No module named", code=1)
        system = "/usr/bin/python3"
        if pathlib.Path(system).exists() and subprocess.run([system, "-c", "import matplotlib, numpy"], stderr=subprocess.DEVNULL).returncode == 0:
            self.assertIn(f"{system} has it: {system} {SCRIPT} run", result.stderr)
        else:
            self.assertIn("please install python3-matplotlib", result.stderr)

    def test_a_picture_named_svg_or_pdf_was_a_png(self):
        run = self.write(run_lines())
        for name, begin in (("a.svg", b"<?xml"), ("b.PDF", b"%PDF-"), ("c.png", b"\x89PNG")):
            result = self.plot(run, "--out", self.folder / name)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertTrue((self.folder / name).read_bytes().startswith(begin), name)
        self.assertIn(b"<svg", (self.folder / "a.svg").read_bytes())
        for name in ("a.jpg", "a", "."):
            self.assert_one_line(self.plot(run, "--out", self.folder / name), "ends in .png, .svg or .pdf")
        self.assertFalse((self.folder / "a.jpg").exists())

    def test_records_of_any_content_ended_in_a_traceback(self):
        deep = '{"kind":"train","step":1,"loss":' + '{"a":' * 100_000 + "1" + "}" * 100_001
        nested = '{"kind":"future","step":1,"x":' + '{"a":' * 900 + "1" + "}" * 901
        lines = [deep, nested, '{"kind":"train","step":1e999}', '{"kind":"train","step":123456789012345678901234567890}',
                 '{"kind":"train","step":-1}', '{"kind":["train"],"step":1}', '{"kind":7,"step":1}', '{"kind":"run","model":{"layers":[1],"channels":{}}}',
                 '{"kind":"\\ud800","step":1}', '{"kind":"train","step":2,"loss":' + "9" * 400 + ',"lr":1e308}', *run_lines()]  # fmt: skip
        run = self.write(lines)
        with open(run / "metrics.jsonl", "ab") as file:
            file.write(b'{"kind":"sample","step":1,"text":"\xff\xfe"}\n\x00\xff\n')
        result = self.plot(run)
        self.assert_drawn(result, run / "loss.png")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn("passed over 6 unreadable lines", result.stderr)

    def test_a_checkpoint_in_place_of_its_run_names_the_run(self):
        run = self.write(run_lines(5))
        checkpoint = run / "checkpoints" / "step_00000005"
        checkpoint.mkdir(parents=True)
        self.assert_one_line(self.plot(checkpoint), f"it lies in the run {run.resolve()}")

    def test_a_full_disk_ended_in_a_traceback(self):
        run = self.write(run_lines(5))
        with open("/dev/full", "w") as full:
            result = subprocess.run([sys.executable, SCRIPT, run], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assert_one_line(result, "No space left", code=1)
        limited = subprocess.run(["/bin/sh", "-c", 'ulimit -f 8; exec "$0" "$@"', sys.executable, "-B", SCRIPT, run], capture_output=True, text=True)
        self.assert_one_line(limited, "File too large", code=1)

    def test_a_name_that_is_not_utf_8(self):
        name = b"r\xffn".decode(errors="surrogateescape")
        self.write(run_lines(5), name)
        result = subprocess.run([sys.executable, SCRIPT, self.folder / name], capture_output=True)
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        self.assertTrue(result.stdout.endswith(b"/r\xffn/loss.png\n"), result.stdout)

    def test_a_broken_matplotlib_is_one_line(self):
        result = subprocess.run([sys.executable, SCRIPT, "run"], capture_output=True, text=True, env={**os.environ, "MPLBACKEND": "none such"})
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_a_folder_that_cannot_be_written_is_one_line(self):
        run = self.write(run_lines(5))
        self.assert_one_line(self.plot(run, "--out", self.folder / "absent" / "loss.png"), "loss.png", code=1)

    def compare(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT.with_name("compare_runs.py"), *arguments], capture_output=True, text=True)

    def test_a_table_compares_runs(self):
        first = self.write(run_lines(options={"lr": 1e-3, "seed": 1, "out": "a"}), "first")
        second = self.write([*run_lines(options={"lr": 0.00031622776, "seed": 1, "out": "b"}), record(kind="val", step=250, loss=1.9, bits_per_byte=0.98765)], "second")
        third = self.write([record(kind="train", step=1, loss=None)], "third")
        result = self.compare(first, second, third)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        head, *rows = [line.split() for line in result.stdout.splitlines()]
        self.assertEqual(head, "run steps tokens hours best val at step bits/byte loss tokens/s MFU, % --lr --seed".split())
        self.assertEqual(rows[0], ["second", "300", "2.304e+05", "0.000792", "1.9000", "250", "0.9877", "2.0047", "80000", "50.0", "0.000316228", "1"])
        self.assertEqual(rows[1][:1] + rows[1][4:6] + rows[1][-2:], ["first", "2.1000", "100", "0.001", "1"])
        self.assertEqual(rows[2], ["third", "1", "0"])
        same = self.compare(first, first)
        self.assertNotIn("--", same.stdout)  # no option differs
        rows = self.compare(first, second, "--csv").stdout.splitlines()
        self.assertEqual(rows[0].split(",")[:5], ["run", "steps", "tokens", "hours", "best val"])
        self.assertEqual(len(rows), 3)

    def test_a_table_of_no_run_is_refused(self):
        self.assert_one_line(self.compare(self.folder / "absent"), "holds no run")
        self.assert_one_line(self.compare(), "required: RUN_DIR")


if __name__ == "__main__":
    unittest.main()
