"""Shared by the tests of programs and scripts: a folder for the files of a test, how a program refuses, and files of training."""
import json
import pathlib
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


class FolderTest(unittest.TestCase):
    """A test with a folder of its own, self.folder, which is empty at first."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()

    def fake(self, name, text):
        """Writes a program into the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def assert_one_line(self, result, expected, code=2):
        """The program printed one line, which contains these words, on standard error alone."""
        self.assertEqual((result.returncode, result.stdout or "", result.stderr.count("\n")), (code, "", 1), result.stderr)
        self.assertIn(expected, result.stderr)


def metrics(run, kind="train"):
    """A run's records of one kind."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == kind]


def write_shard(path, tokens):
    header = [20240520, 1, len(tokens)] + [0] * 253
    path.write_bytes(b"".join(n.to_bytes(4, "little") for n in header) + b"".join(t.to_bytes(2, "little") for t in tokens))
