#!/usr/bin/env python3
"""A checkout that was built, and then moved or copied, builds again with make, and its programs find the data beside them.

The Makefile, presets and scripts are the real ones, but the build only writes the programs' names; the program that runs is the real tokenize.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest
import unittest.mock

from common import ROOT, FolderTest  # beside this file

PROGRAMS = ["train_gpt2", "evaluate_gpt2", "generate_gpt2", "tokenize", "convert"]
CMAKE = """cmake_minimum_required(VERSION 3.25)
project(stand_in LANGUAGES NONE)
foreach(program %s)
    add_custom_target(${program} COMMAND echo ${CMAKE_SOURCE_DIR} > ${program})
endforeach()
""" % " ".join(PROGRAMS)


class MovedCheckout(FolderTest):
    def setUp(self):
        super().setUp()
        self.checkout = self.folder / "first"
        (self.checkout / "scripts").mkdir(parents=True)
        for name in ("Makefile", "CMakePresets.json", "scripts/configure.sh"):
            shutil.copy(ROOT / name, self.checkout / name)
        (self.checkout / "CMakeLists.txt").write_text(CMAKE)

    def make(self, checkout):
        environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        result = subprocess.run(["make", "-C", checkout], capture_output=True, text=True, env=environment, timeout=300)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        for name in PROGRAMS:
            self.assertEqual((checkout / name).read_text().strip(), str(checkout), name)
        return result.stdout

    def test_a_moved_checkout_is_configured_anew(self):
        self.make(self.checkout)
        moved = self.checkout.rename(self.folder / "second")
        self.assertIn(f"build/release was configured for {self.checkout}; it is configured anew", self.make(moved))

    def test_a_copied_checkout_does_not_build_in_the_first_one(self):
        self.make(self.checkout)
        copied = shutil.copytree(self.checkout, self.folder / "second", symlinks=True)
        self.make(copied)
        self.assertEqual((self.checkout / "tokenize").read_text().strip(), str(self.checkout))
        self.assertNotIn("anew", self.make(self.checkout))

    def test_a_checkout_that_stayed_keeps_its_configuration(self):
        self.make(self.checkout)
        link = self.folder / "link"
        link.symlink_to(self.checkout)
        for again in (self.checkout, link):
            result = subprocess.run(["make", "-C", again], capture_output=True, text=True, timeout=300)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("anew", result.stdout)

    def test_a_portable_build_names_its_processors(self):
        with unittest.mock.patch.dict(os.environ, FLATGPT_MARCH="x86-64-v3"):
            self.make(self.checkout)
        self.assertIn("FLATGPT_MARCH:UNINITIALIZED=x86-64-v3\n", (self.checkout / "build/release/CMakeCache.txt").read_text())
        # In the real build, the choice reaches the compiler of the kernels.
        build = pathlib.Path(os.environ.get("BUILD", ROOT / "build/release"))
        chosen = re.search(r"^FLATGPT_MARCH:STRING=(.+)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE).group(1)
        commands = json.loads((build / "compile_commands.json").read_text())
        kernels = [command["command"] for command in commands if command["file"].endswith("gemm_unfused.cu")]
        self.assertEqual([re.findall(r"-march=\S+", command) for command in kernels], [[f"-march={chosen}"]])

    # They would otherwise fail in every compilation, or, kept by CMake, in every later make that names none.
    def test_choices_that_cannot_be_are_refused_once(self):
        build = self.folder / "build"
        for choice, reason in {
            "FLATGPT_MARCH=z80": "FLATGPT_MARCH is z80, which the compiler's -march does not take; expected native",
            "FLATGPT_FETCH=on": "FLATGPT_FETCH=on; expected OFF, ON or ALL",
        }.items():
            options = [f"-D{choice}", "-DFLATGPT_TESTS=OFF", "-DFLATGPT_BENCHMARKS=OFF"]
            result = subprocess.run(["cmake", "--preset", "release", "-B", build, *options], cwd=ROOT, capture_output=True, text=True)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(reason, " ".join(result.stderr.split()))
            self.assertNotIn(f"\n{choice.replace('=', ':STRING=')}\n", (build / "CMakeCache.txt").read_text())

    # The checkout in which the program was compiled is still there, with data of its own, which differs from the
    # copy's.
    def test_a_copied_program_finds_the_data_of_its_own_checkout(self):
        program = pathlib.Path(os.environ.get("TOKENIZE_PROGRAM", ROOT / "build/release/tokenize"))
        copy = self.folder / "second"
        (copy / "build/release").mkdir(parents=True)
        shutil.copy(program, copy / "build/release/tokenize")
        (copy / "tokenize").symlink_to("build/release/tokenize")
        (copy / "data").mkdir()
        (copy / "data/gpt2_vocab.bpe").write_text("#version: another one\n")
        text = self.folder / "text"
        text.write_text("some text")

        def tokenize(**more):
            environment = {name: value for name, value in os.environ.items() if name != "FLATGPT_DATA"}
            return subprocess.run([copy / "tokenize", "--out", self.folder / "out", text], capture_output=True, text=True, cwd="/", env={**environment, **more})

        missing = tokenize()
        self.assertEqual(missing.returncode, 2)
        self.assertEqual(missing.stderr, f"tokenize: {copy}/data/gpt2_encoder.json: cannot be opened: No such file or directory\n")
        for name in ("gpt2_encoder.json", "gpt2_vocab.bpe"):
            shutil.copy(ROOT / "data" / name, copy / "data" / name)
        self.assertEqual(tokenize().stdout, f"{self.folder}/out/train_000000.bin: 2 tokens\n")
        chosen = tokenize(FLATGPT_DATA=str(self.folder))
        self.assertEqual(chosen.stderr, f"tokenize: {self.folder}/gpt2_encoder.json: cannot be opened: No such file or directory\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
