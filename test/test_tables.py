#!/usr/bin/env python3
"""dev/bench/tables.py, result_file.py: the published tables match the results."""

import argparse
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLES = ROOT / "dev" / "bench" / "tables.py"
sys.path.insert(0, str(ROOT / "dev" / "bench"))
import compare_generate  # noqa: E402
import compare_pytorch  # noqa: E402
import result_file  # noqa: E402
import tables  # noqa: E402

PAGE = "Before.\n\n{}\nAfter.\n"


def block(name, text=""):
    return f"<!-- table: {name} -->\n{text}<!-- end -->\n"


def contender(side, dtype, ms, peak=1024):
    return dict(side=side, dtype=dtype, median_ms=ms, p10_ms=ms * 0.9, p90_ms=ms * 1.1, peak_mib=peak)


def training(ours, pytorch):
    return {
        "PyTorch fp32, B 4": contender("pytorch", "fp32", pytorch * 2, 4096),
        "PyTorch fp32 compiled, B 4": contender("pytorch", "fp32", pytorch, 3072),
        "ours fp32, B 4": contender("ours", "fp32", ours, 2048),
    }


def result(what, machine="Fast", date="2026-03-01 10:00", commit="aaaaaaa", results=None, **more):
    return (
        dict(
            tool="made_up",
            what=what,
            commit=commit,
            date=date,
            source="measured",
            machine=dict(name=machine, cores=2),
            versions={"PyTorch": "3.0"},
            command="measure",
            options=dict(dtype=what[-4:], tokens=32),
            results=results or training(50, 100),
        )
        | more
    )


class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "docs").mkdir()
        (self.root / "dev" / "bench" / "results").mkdir(parents=True)
        (self.root / "README.md").write_text("No tables.\n")
        self.page = self.root / "docs" / "performance.md"

    def write(self, name, content):
        (self.root / "dev" / "bench" / "results" / f"{name}.json").write_text(json.dumps(content))

    def run_tables(self, *arguments):
        return subprocess.run(
            [sys.executable, TABLES, "--root", self.root, *arguments], capture_output=True, text=True
        )

    def made(self, name):
        self.page.write_text(PAGE.format(block(name)))
        done = self.run_tables()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, f"docs/performance.md: {name}\n")
        text = self.page.read_text()
        self.assertTrue(
            text.startswith("Before.\n\n<!-- table:") and text.endswith("<!-- end -->\n\nAfter.\n"), text
        )
        return text

    def test_a_training_table_has_every_contender_and_the_ratio_to_the_faster_of_pytorchs(self):
        self.write("a", result("training-d12"))
        text = self.made("training-d12")
        self.assertIn("**Fast, 2 cores** (2026-03-01, commit aaaaaaa, PyTorch 3.0; `measure`):", text)
        self.assertIn("| PyTorch fp32 | 200.0 | 180 to 220 | 4096 |", text)
        self.assertIn("| **ours fp32** | **50.0** | 45.0 to 55.0 | 2048 |", text)
        self.assertIn("Ours / PyTorch's best: 0.50 in fp32, 0.50 the best of each.", text)

    def test_a_result_of_another_commit_is_marked_older_and_says_before_what(self):
        self.write("a", result("training-d12"))
        self.write(
            "b", result("training-d12", "Slow", "2026-02-01", "bbbbbbb", before="the kernels were rewritten")
        )
        text = self.made("training-d12")
        self.assertIn(
            "commit bbbbbbb, PyTorch 3.0; `measure`); **older**, before the kernels were rewritten:", text
        )
        self.assertEqual(text.count("older"), 1)
        self.assertLess(text.index("Fast"), text.index("Slow"))

    def test_the_newest_result_of_a_machine_counts(self):
        self.write("z", result("training-d12", date="2026-02-28", results=training(70, 100)))
        self.write("b", result("training-d12", date="2026-03-01 09:59", results=training(60, 100)))
        self.write("a", result("training-d12"))
        text = self.made("training-d12")
        self.assertIn("**50.0**", text)
        self.assertNotIn("**60.0**", text)
        self.assertNotIn("**70.0**", text)

    def test_reports_of_other_kinds_in_the_folder_are_passed_over(self):
        self.write("gpu", {"gpu": "H100", "verdicts": []})
        self.write("a", result("training-d12"))
        self.assertIn("**ours fp32**", self.made("training-d12"))

    def test_several_processes_and_generation(self):
        rates = {
            "1 process": {"ratio": 1.0},
            "2 processes, --zero 0": {"ratio": 1.25},
            "2 processes, --zero 1": {"ratio": 1.5},
        }
        for dtype in ("fp32", "bf16"):
            self.write(dtype, result(f"processes-d12-{dtype}", results=rates))
        self.assertIn("| Fast, 2 cores, 2026-03-01, aaaaaaa | fp32 | 1.25 | 1.50 |", self.made("processes"))
        rates = {
            "transformers fp32": dict(tokens_per_second=40, step_ms=25),
            "ours fp32 int8": dict(tokens_per_second=100, step_ms=10, ratio=2.5, agree=31),
        }
        self.write("generate", result("generate-d12", results=rates))
        text = self.made("generate")
        self.assertIn("| transformers fp32 | 40.0 | 25.0 | | |", text)
        self.assertIn("| **ours fp32, int8 weights** | 100.0 | 10.0 | 2.50 | 31 of 32 |", text)

    def test_a_column_a_machine_in_the_readme(self):
        self.write("a", result("training-d12"))
        self.write("b", result("training-shakespeare", results=training(30, 100)))
        self.write("c", result("training-d12", "Slow", "2026-02-01", "bbbbbbb", results=training(80, 100)))
        rates = {
            name: dict(tokens_per_second=rate, step_ms=1)
            for name, rate in {
                "transformers fp32": 30,
                "ours fp32": 40,
                "ours bf16": 50,
                "ours fp32 int8": 60,
                "ours bf16 int8": 70,
            }.items()
        }
        self.write("d", result("generate-d12", results=rates))
        text = self.made("speed")
        self.assertIn("| model, batch | dtype | Fast | Slow |", text)
        self.assertIn("| 4 layers, C 128, bytes, 12 x 64 | fp32 | 0.30 | |", text)
        self.assertIn("| GPT-2 124M, 4 x 64 | fp32 | 0.50 | 0.80 |", text)
        self.assertIn("| measured at commit | | aaaaaaa | bbbbbbb, older |", text)
        self.assertIn("GPT-2 124M takes 2.0 to 2.0 GiB where PyTorch takes 3.0 to 4.0.", text)
        self.assertIn("40 tokens/s with this model in fp32, 50 in bf16 and 70 with int8 weights, ", text)
        self.assertIn("where `transformers` makes 30 (Fast, 2 cores, commit aaaaaaa).", text)

    def test_check_names_the_page_and_the_table_whose_figure_was_changed_by_hand(self):
        self.write("a", result("training-d12"))
        text = self.made("training-d12")
        self.assertEqual(self.run_tables("--check").returncode, 0)
        self.page.write_text(text.replace("**50.0**", "**49.0**"))
        done = self.run_tables("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("docs/performance.md: table training-d12 differs from dev/bench/results", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("**49.0**", self.page.read_text())

    def test_tables_are_made_of_what_the_tools_save(self):
        program = self.root / "program"
        program.write_text("#!/bin/sh\necho flatgpt 1.2.3\n")
        program.chmod(0o755)
        folder = self.root / "dev" / "bench" / "results"
        arguments = argparse.Namespace(
            save=folder / "training.json", preset="d12", batch_size=[4], rounds=1, steps=3
        )
        timed = dict(
            side="ours",
            dtype="fp32",
            ms=[9.0, 10.0, 30.0],
            median_ms=10.0,
            peak_bytes=5 << 20,
            loss=4.5,
            losses=[4.5],
        )
        slower = timed | dict(side="pytorch", ms=[20.0, 20.0, 20.0], median_ms=20.0)
        never = timed | dict(ms=[], median_ms=None)
        options = dict(layers=12, program=str(program), data="text", init_from="weights")
        generated = argparse.Namespace(
            save=folder / "generate.json",
            model="d12",
            context=1024,
            prompt_tokens=4,
            tokens=32,
            samples=1,
            rounds=1,
        )
        rates = {
            "ours fp32": dict(tokens_per_second=100.04, low=99.0, high=101.0, prompt_ms=5.0, step_ms=10.0)
        }
        with contextlib.redirect_stdout(io.StringIO()):
            results = {"ours fp32, B 4": timed, "PyTorch fp32, B 4": slower, "ours bf16, B 4": never}
            compare_pytorch.save(arguments, options, results, "3.0", 2)
            compare_generate.save(generated, rates, program, "PyTorch 3.0, transformers 6.1", 2)
        saved = json.loads((folder / "training.json").read_text())
        keys = "tool what commit date source machine versions command options results"
        self.assertEqual(set(saved), set(keys.split()))
        self.assertEqual(
            (saved["tool"], saved["what"], saved["source"]), ("compare_pytorch", "training-d12", "measured")
        )
        self.assertEqual(saved["versions"], {"PyTorch": "3.0", "flatgpt": "1.2.3"})
        self.assertEqual(saved["machine"]["cores"], 2)
        self.assertEqual(saved["options"], {"layers": 12, "batch_size": [4], "rounds": 1, "steps": 3})
        self.assertEqual(list(saved["results"]), ["ours fp32, B 4", "PyTorch fp32, B 4"])
        text = self.made("training-d12")
        self.assertIn("| **ours fp32** | **10.0** |", text)
        self.assertIn("| 5 | 4.5000 |", text)
        self.assertIn("0.50 in fp32", text)
        self.assertIn("PyTorch 3.0, transformers 6.1", self.made("generate"))
        other = argparse.Namespace(**vars(arguments) | {"save": folder / "other.json"})
        with contextlib.redirect_stdout(io.StringIO()):
            compare_pytorch.save(other, options | {"layers": 2}, {"ours fp32, B 4": timed}, "3.0", 2)
        self.assertEqual(json.loads(other.save.read_text())["what"], "training-other")  # in no table
        self.assertIn("| **ours fp32** | 100.0 | 10.0 | | |", self.made("generate"))

    def test_what_cannot_be_made_is_one_line(self):
        for page, expected in (
            ("<!-- table: mystery -->\n<!-- end -->\n", "no table mystery"),
            ("<!-- table: speed -->\n", "has no <!-- end -->"),
            (block("training-d12"), "no result for training-d12"),
        ):
            self.page.write_text(page)
            done = self.run_tables("--check")
            self.assertEqual(done.returncode, 1)
            self.assertIn(expected, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_a_broken_result_ended_in_a_traceback(self):
        self.page.write_text(PAGE.format(block("training-d12")))
        results = self.root / "dev" / "bench" / "results"
        for text in ("{", "[" * 100_000, '{"what":"x"}', '{"what":"x","machine":[]}', "\ufffd"):
            (results / "broken.json").write_text(text)
            done = self.run_tables()
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
            self.assertIn("broken.json: is no result of a benchmark", done.stderr)
        self.assertEqual(self.run_tables("--root", "/none").stderr.count("\n"), 1)

    def test_a_wrong_option_printed_the_whole_usage(self):
        for name in ("compare_generate", "compare_processes", "compare_pytorch", "markov_text", "speed_ladder", "tables"):
            done = subprocess.run([sys.executable, TABLES.with_name(f"{name}.py"), "--nonsense"], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertTrue(done.stderr.startswith(f"{name}: "), done.stderr)

    def test_the_published_tables_are_what_the_results_give(self):
        done = subprocess.run([sys.executable, TABLES, "--check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


class ResultFile(unittest.TestCase):
    def test_a_machine_is_named_by_what_decides_its_speed(self):
        for processor, flags, name in (
            ("Intel(R) Xeon(R) Processor @ 2.80GHz", "fpu avx2 avx512f", "Intel Xeon, AVX-512"),
            ("Intel(R) Xeon(R) Platinum 8488C", "avx512f avx512_bf16 amx_bf16", "Intel Xeon, AMX"),
            ("AMD EPYC 9R14", "avx2 avx512f avx512_bf16", "AMD EPYC, AVX512_BF16"),
            ("AMD Ryzen 9 3900X 12-Core Processor", "sse2 avx2", "AMD Ryzen, AVX2"),
            ("aarch64", "", "aarch64"),
        ):
            self.assertEqual(result_file.machine_name(processor, flags), name)

    def test_a_changed_source_makes_the_commit_dirty_and_a_changed_table_does_not(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            self.assertEqual(result_file.commit(root), "unknown")

            def git(*arguments):
                identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
                subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)

            git("init")
            for name in ("kernel.cuh", "README.md"):
                (root / name).write_text("one\n")
            git("add", ".")
            git("commit", "-m", "one")
            self.assertRegex(result_file.commit(root), r"^[0-9a-f]{7}$")
            (root / "README.md").write_text("two\n")
            self.assertRegex(result_file.commit(root), r"^[0-9a-f]{7}$")
            (root / "kernel.cuh").write_text("two\n")
            self.assertRegex(result_file.commit(root), r"^[0-9a-f]{7}-dirty$")

    def test_the_files_name_says_what_where_and_when(self):
        path = result_file.default_path("training-d12", "AMD EPYC, AVX512_BF16", "2026-11-22")
        self.assertEqual(path.parent, ROOT / "dev" / "bench" / "results")
        self.assertEqual(path.name, "training-d12-amd-epyc-avx512-bf16-2026-11-22.json")


if __name__ == "__main__":
    unittest.main()
