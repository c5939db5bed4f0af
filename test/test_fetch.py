#!/usr/bin/env python3
"""Libraries from archives (cmake/fetch.cmake): missing or damaged ones are named, and nothing is fetched without the option.

The archives are not part of the project, so building them and testing the programs with them is done by hand (docs/machines.md).
"""
import os
import shutil
import subprocess
import unittest

from common import ROOT, FolderTest  # beside this file


class Fetch(FolderTest):
    def configure(self, *options):
        command = ["cmake", "-S", ROOT, "-B", self.folder / "build", "-G", "Ninja", "-DFLATGPT_BENCHMARKS=OFF", "-DFLATGPT_MPI=OFF", *options]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        return result.returncode, " ".join(result.stderr.split())

    def test_an_archive_that_is_missing_is_named_with_its_url(self):
        code, errors = self.configure("-DFLATGPT_FETCH=ALL", f"-DFLATGPT_ARCHIVES={self.folder}")
        self.assertNotEqual(code, 0)
        self.assertIn(f"{self.folder}/fmt-10.2.1.tar.gz is missing; it is https://github.com/fmtlib/fmt/archive/refs/tags/10.2.1.tar.gz", errors)

    def test_an_archive_with_another_checksum_is_refused(self):
        (self.folder / "fmt-10.2.1.tar.gz").write_bytes(b"not what was released")
        code, errors = self.configure("-DFLATGPT_FETCH=ALL", f"-DFLATGPT_ARCHIVES={self.folder}")
        self.assertNotEqual(code, 0)
        self.assertIn("1250e4cc58bf06ee631567523f48848dc4596133e163f02615c97f78bab6c811", errors)

    def test_only_three_words_are_understood(self):
        code, errors = self.configure("-DFLATGPT_FETCH=SOME")
        self.assertNotEqual(code, 0)
        self.assertIn("FLATGPT_FETCH=SOME; expected OFF, ON or ALL", errors)
        script = subprocess.run([ROOT / "scripts/setup.sh"], env=os.environ | {"FLATGPT_FETCH": "SOME"}, capture_output=True, text=True)
        self.assertEqual((script.returncode, script.stderr), (2, "setup: FLATGPT_FETCH=SOME; expected OFF, ON or ALL\n"))

    def test_what_is_there_is_not_fetched(self):
        without, errors = self.configure("-DFLATGPT_FETCH=OFF", "-DFLATGPT_TESTS=OFF")
        shutil.rmtree(self.folder / "build")
        code, errors_of_fetch = self.configure("-DFLATGPT_FETCH=ON", f"-DFLATGPT_ARCHIVES={self.folder}", "-DFLATGPT_TESTS=OFF")
        if without == 0:
            self.assertEqual(code, 0, errors_of_fetch)
        else:  # the system lacks one, and the folder has no archive of it
            self.assertIn("missing", errors)
            self.assertIn(".tar.gz is missing; it is https://github.com/", errors_of_fetch)


if __name__ == "__main__":
    unittest.main()
