#!/usr/bin/env python3
"""scripts/export_metrics.py exports every number of a run at its step. TensorBoard reads its files back."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import textwrap
import unittest

from common import ROOT, FolderTest  # beside this file
from packages import with_packages

SCRIPT = ROOT / "scripts" / "export_metrics.py"
sys.path.insert(0, str(SCRIPT.parent))
import export_metrics  # noqa: E402

with_packages("tensorboard")
HAS_TENSORBOARD = importlib.util.find_spec("tensorboard") is not None

RECORDS = [
    {"kind": "run", "options": {"lr": 1e-3, "model": "d12"}, "model": {"layers": 12}},
    {"kind": "train", "step": 1, "loss": 5.5, "grad_norm": 2.0, "lr": 1e-3, "tokens": 768, "step_ms": 500, "mfu": None},
    {"kind": "train", "step": 2, "loss": None, "grad_norm": None, "lr": 1e-3, "tokens": 1536, "step_ms": 250, "mfu": None},
    {"kind": "skipped", "step": 2, "grad_norm": None},
    {"kind": "train", "step": 3, "loss": 9.0, "grad_norm": 9.0, "lr": 1e-3, "tokens": 2304, "step_ms": 250},
    {"kind": "run", "options": {"lr": 1e-3, "model": "d12"}, "resumed_from": 2},
    {"kind": "train", "step": 3, "loss": 4.25, "grad_norm": 1.0, "lr": 1e-3, "tokens": 2304, "step_ms": 250},
    {"kind": "val", "step": 3, "loss": 4.5},
    {"kind": "hellaswag", "step": 3, "accuracy": 0.25, "accuracy_norm": 0.27, "examples": 300},
    {"kind": "layer_norms", "step": 3, "grad": {"wte": 0.5, "h.0": None}, "weight": {"wte": 20, "h.0": 10.5}},
    {"kind": "sample", "step": 3, "text": "ROMEO:\nAy \u2665"},
]
EXPECTED = {
    1: {"train/loss": 5.5, "train/grad_norm": 2.0, "train/lr": 1e-3, "train/tokens": 768, "train/step_ms": 500},
    2: {"train/lr": 1e-3, "train/tokens": 1536, "train/step_ms": 250, "skipped/count": 1},
    3: {"train/loss": 4.25, "train/grad_norm": 1.0, "train/lr": 1e-3, "train/tokens": 2304, "train/step_ms": 250, "val/loss": 4.5,
        "hellaswag/accuracy": 0.25, "hellaswag/accuracy_norm": 0.27, "hellaswag/examples": 300,
        "layer_norms/grad/wte": 0.5, "layer_norms/weight/wte": 20, "layer_norms/weight/h.0": 10.5},
}  # fmt: skip


class ExportMetrics(FolderTest):
    def setUp(self):
        super().setUp()
        self.run_folder = self.folder / "run"
        self.run_folder.mkdir()
        text = "\n".join(json.dumps(record) for record in RECORDS) + '\n{"kind":"train","st'  # incomplete: the run is still writing
        (self.run_folder / "metrics.jsonl").write_text(text)
        self.packages = self.folder / "packages"
        self.packages.mkdir()

    def export(self, *arguments):
        environment = {**os.environ, "PYTHONPATH": str(self.packages)}
        return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, env=environment)

    def test_wrong_use_is_one_line(self):
        self.assert_one_line(self.export(self.packages), "holds no run")
        self.assert_one_line(self.export(self.run_folder, "--nonsense"), "--nonsense")

    def test_every_number_of_every_record_is_a_point(self):
        run = export_metrics.RunMetrics(self.run_folder)
        self.assertEqual(dict(export_metrics.scalars(run)), EXPECTED)
        self.assertEqual([step for step, _ in export_metrics.scalars(run)], [1, 2, 3])
        (zero, name, options), sample = export_metrics.texts(run)
        self.assertEqual((zero, name), (0, "run"))
        self.assertIn('"resumed_from": 2', options)
        self.assertEqual(sample, (3, "sample", "ROMEO:\nAy \u2665"))

    def test_times_are_the_steps_own(self):
        os.utime(self.run_folder / "metrics.jsonl", (5000, 5000))
        time = export_metrics.times(export_metrics.RunMetrics(self.run_folder))
        self.assertEqual([time(step) for step in (0, 1, 2, 3)], [4999.0, 4999.5, 4999.75, 5000.0])

    @unittest.skipUnless(HAS_TENSORBOARD, "tensorboard cannot be imported")
    def test_tensorboard_reads_the_events_back(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        for _ in range(2):  # a repeated export duplicates nothing
            result = self.export(self.run_folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stdout, f"{self.run_folder}/tensorboard\n")
        events = EventAccumulator(str(self.run_folder / "tensorboard"))
        events.Reload()
        found = {}
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                found.setdefault(event.step, {})[tag] = event.value
        self.assertEqual({step: set(series) for step, series in found.items()}, {step: set(series) for step, series in EXPECTED.items()})
        for step, series in EXPECTED.items():
            for tag, value in series.items():
                self.assertAlmostEqual(found[step][tag], value, delta=1e-6 * max(1, abs(value)))  # events hold fp32
        (sample,) = events.Tensors("sample/text_summary")
        self.assertEqual((sample.step, sample.tensor_proto.string_val[0].decode()), (3, "ROMEO:\nAy \u2665"))
        self.assertEqual(len(list((self.run_folder / "tensorboard").iterdir())), 1)
        self.assertEqual(sorted(path.name for path in self.run_folder.iterdir()), ["metrics.jsonl", "tensorboard"])

    def test_wandb_gets_every_step_once_offline(self):
        (self.packages / "wandb.py").write_text(textwrap.dedent(f"""
            import json
            def note(*what):
                with open({str(self.packages / "calls")!r}, "a") as file:
                    print(json.dumps(what), file=file)
            class Run:
                def __init__(self): self.summary = {{}}
                def log(self, data, step=None): note("log", step, data)
                def finish(self): note("finish", self.summary)
            def init(project=None, name=None, dir=None, mode=None, config=None):
                note("init", project, name, mode, config)
                return Run()
            """))  # fmt: skip
        result = self.export(self.run_folder, "--wandb", "--project", "mine")
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = [json.loads(line) for line in (self.packages / "calls").read_text().splitlines()]
        self.assertEqual(calls[0], ["init", "mine", "run", "offline", {"lr": 1e-3, "model": "d12"}])
        self.assertEqual({step: series for kind, step, series in calls[1:-1]}, EXPECTED)
        self.assertEqual(calls[-1][0], "finish")
        self.assertEqual(calls[-1][1]["sample"], "ROMEO:\nAy \u2665")

    def test_a_missing_package_says_what_to_install(self):
        (self.packages / "tensorboard.py").write_text("raise ImportError('no tensorboard here')")
        (self.packages / "wandb.py").write_text("raise ImportError('no wandb here')")
        self.assert_one_line(self.export(self.run_folder), "pip install tensorboard")
        self.assert_one_line(self.export(self.run_folder, "--wandb"), "pip install wandb")
        self.assertEqual([path.name for path in self.run_folder.iterdir()], ["metrics.jsonl"])

    def test_records_of_any_content_ended_in_a_traceback(self):
        deep = '{"a":' * 100_000 + "1" + "}" * 100_000
        nested = '{"a":' * 900 + "1" + "}" * 900
        with open(self.run_folder / "metrics.jsonl", "a") as file:
            file.write(f'\n{{"kind":"train","step":4,"x":{deep}}}\n{{"kind":"train","step":5,"x":{nested},"loss":2}}\n')
            file.write(f'{{"kind":"train","step":6,"loss":{"9" * 400},"step_ms":{"9" * 400},"lr":1}}\n')
            file.write('{"kind":"train","step":1e30}\n{"kind":"sample","step":3,"text":"\\ud800"}\n{"kind":"val","step":6,"\\ud800":1}\n')
        run = export_metrics.RunMetrics(self.run_folder)
        found = dict(export_metrics.scalars(run))
        self.assertEqual(found[5], {"train/loss": 2})
        self.assertEqual(found[6], {"train/lr": 1, "val/?": 1})
        self.assertEqual([step for step in found if step > 6], [])
        self.assertEqual(export_metrics.times(run)(6), export_metrics.times(run)(3))
        if HAS_TENSORBOARD:
            result = self.export(self.run_folder)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (0, 1), result.stderr)

    def test_a_folder_of_other_files_was_replaced(self):
        (self.packages / "precious").write_text("a year's work")
        with self.assertRaisesRegex(export_metrics.MetricsError, "holds precious, which would be lost"):
            export_metrics.check_replaceable(self.packages)
        with self.assertRaisesRegex(export_metrics.MetricsError, "expected the name of a folder"):
            export_metrics.check_replaceable(pathlib.Path("/"))
        if HAS_TENSORBOARD:
            self.assert_one_line(self.export(self.run_folder, "--out", self.packages), "holds precious")
            self.assertEqual((self.packages / "precious").read_text(), "a year's work")

    def test_an_error_of_wandb_is_one_line(self):
        (self.packages / "wandb.py").write_text("def init(**options):\n    raise RuntimeError('no\\nproject')\n")
        self.assert_one_line(self.export(self.run_folder, "--wandb"), "export_metrics: wandb: no project")


if __name__ == "__main__":
    unittest.main()
