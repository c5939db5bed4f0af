#!/usr/bin/env python3
"""The folders are the map: a source includes only from its own folder and from those below it, and lines are short."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# From the ground up.
FOLDERS = ["system", "kernels/simt", "kernels", "kernels/gemm", "kernels/attention", "kernels/decode",
           "trainer/distributed", "trainer/tokenizer", "trainer/data", "trainer/model", "trainer/formats",
           "trainer/checkpoint", "trainer/inference", "trainer/command_line", "trainer/run"]
MOST_SOURCES, MOST_COLUMNS = 40, 110
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def sources(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).iterdir())
            if path.suffix in (".cpp", ".cu", ".cuh", ".h")]


class Layout(unittest.TestCase):
    def test_every_folder_with_sources_has_its_place(self):
        found = {str(path.parent.relative_to(ROOT)) for top in ("system", "kernels", "trainer")
                 for path in (ROOT / top).rglob("*") if path.suffix in (".cpp", ".cu", ".cuh", ".h")}
        self.assertEqual(found, set(FOLDERS))

    def test_includes_come_from_folders_below(self):
        for path in sources(*FOLDERS):
            own = str(path.parent.relative_to(ROOT))
            allowed = FOLDERS[:FOLDERS.index(own) + 1]
            for included in INCLUDE.findall(path.read_text()):
                with self.subTest(f"{path.relative_to(ROOT)} includes {included}"):
                    self.assertTrue((ROOT / included).is_file(), "expected a path from the root of the project")
                    self.assertIn(str(pathlib.PurePath(included).parent), allowed)

    def test_no_folder_has_too_many_sources(self):
        for folder in FOLDERS:
            with self.subTest(folder):
                self.assertLessEqual(len(sources(folder)), MOST_SOURCES)

    def test_no_line_is_too_long(self):
        for path in sorted(ROOT.rglob("*")):
            if path.suffix not in (".cpp", ".cu", ".cuh", ".h") or path.relative_to(ROOT).parts[0] in ("build", "runs"):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if len(line) > MOST_COLUMNS:
                    self.fail(f"{path.relative_to(ROOT)}:{number} has {len(line)} columns; expected at most {MOST_COLUMNS}")


if __name__ == "__main__":
    unittest.main()
