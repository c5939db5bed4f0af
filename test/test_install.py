#!/usr/bin/env python3
"""Installed files work on their own, in any place: programs, data, scripts, man pages, bash completion."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["BUILD"])
PROGRAMS = ["train_gpt2", "evaluate_gpt2", "generate_gpt2", "tokenize_gpt2", "convert_gpt2"]
TINY = ["--layers", "1", "--heads", "2", "--channels", "16", "--context", "16", "--batch-size", "1", "--steps", "1", "--val-steps", "1",
        "--sample-tokens", "5"]  # fmt: skip


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name).resolve()
        # Installed as for a package: into a staging folder, from which it is moved to its place.
        subprocess.run(["cmake", "--install", BUILD, "--prefix", "/opt/flat gpt"], env={**os.environ, "DESTDIR": str(cls.folder / "package")},
                       stdout=subprocess.DEVNULL, check=True)  # fmt: skip
        cls.prefix = cls.folder / "prefix"
        shutil.move(cls.folder / "package/opt/flat gpt", cls.prefix)
        cls.environment = {name: value for name, value in os.environ.items() if name not in ("TRAIN_PROGRAM", "FLATGPT_DATA")}
        cls.environment["PATH"] = f"{cls.prefix / 'bin'}:{os.environ['PATH']}"

    def run_installed(self, *command):
        result = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=self.folder, env=self.environment, timeout=300)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def test_every_program_has_its_page_and_its_completion(self):
        self.assertEqual(sorted(file.name for file in (self.prefix / "bin").iterdir()), sorted(PROGRAMS))
        for name in PROGRAMS:
            self.assertTrue(self.run_installed(name, "--version").startswith("flatgpt "))
            page = (self.prefix / f"share/man/man1/{name}.1").read_text()
            self.assertTrue(page.startswith(f".TH {name.upper()} 1 "), page[:100])
            completion = self.prefix / "share/bash-completion/completions" / name
            self.assertIn(f"complete -o filenames -F _flatgpt_{name} {name}", self.run_installed("bash", "-c", 'source "$0" && complete', completion))

    def test_programs_find_the_data_beside_them(self):
        data = self.prefix / "share/flatgpt/data"
        before = sorted(data.iterdir())
        self.assertIn("data: 1003854 tokens to train on", self.run_installed("train_gpt2", *TINY, "--out", self.folder / "run"))
        self.assertEqual(sorted(data.iterdir()), before)  # no caches among the installed files
        sample = json.loads(self.run_installed("generate_gpt2", self.folder / "run", "--prompt", "ROMEO:", "--max-tokens", 3, "--json"))
        self.assertEqual(len(sample["samples"][0]["tokens"]), 3)

    def test_the_scripts_find_the_programs(self):
        scripts = self.prefix / "share/flatgpt/scripts"
        self.run_installed("train_gpt2", *TINY, "--vocab", "256", "--out", self.folder / "base")
        text = self.folder / "notes.md"
        text.write_text("The quick brown fox jumps over the lazy dog.\n" * 40)
        self.run_installed(scripts / "finetune.sh", self.folder / "base", text, "--steps", 1, "--out", self.folder / "finetuned")
        # The python3 of this test, which has matplotlib: the system's, or that of scripts/setup.sh if nothing may be
        # installed.
        self.assertEqual(self.run_installed(sys.executable, scripts / "plot.py", self.folder / "finetuned"), f"{self.folder / 'finetuned/loss.png'}\n")


if __name__ == "__main__":
    unittest.main()
