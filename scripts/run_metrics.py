"""What a run wrote: RUN_DIR/metrics.jsonl, an object a line, by kind and step. Read also while the run is going on."""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(sys.argv[0]).stem


class MetricsError(Exception):
    """What was wrong, in one line."""


class OneLineParser(argparse.ArgumentParser):
    """Says what was wrong with the command line in one line."""

    def error(self, message):
        self.exit(2, f"{PROGRAM}: {message}; --help shows the usage\n")


class RunMetrics:
    """header: the last `run` record. by_kind: the records of every other kind, by step; a step that was logged twice counts as it was last."""

    def __init__(self, path):
        path = pathlib.Path(path)
        self.folder = path.parent if path.is_file() else path
        self.file = self.folder / "metrics.jsonl"
        if not self.file.is_file():
            raise MetricsError(f"{self.folder} holds no run: there is no metrics.jsonl in it")
        self.header, by_kind, unreadable = {}, {}, 0
        lines = [line for line in self.file.read_text(errors="replace").split("\n") if line.strip()]
        for index, line in enumerate(lines):
            try:
                record = json.loads(line)
                kind = record["kind"]
                if kind == "run":
                    self.header = record
                else:
                    by_kind.setdefault(kind, {})[int(record["step"])] = record
            except (ValueError, TypeError, KeyError, OverflowError):
                unreadable += index + 1 < len(lines)  # the last line may be torn: the program is writing it, or was killed
        if unreadable:
            print(f"{PROGRAM}: {self.file}: passed over {unreadable} unreadable lines", file=sys.stderr)
        self.by_kind = {kind: [records[step] for step in sorted(records)] for kind, records in by_kind.items()}
        if not self.by_kind.get("train"):
            raise MetricsError(f"{self.file} has no finished step yet")
        self.name = self.folder.resolve().name


def newest_run():
    found = sorted((ROOT / "runs").glob("*/metrics.jsonl"), key=lambda file: file.stat().st_mtime)
    if not found:
        raise MetricsError("no run under runs/ yet; please name a run's folder")
    return found[-1].parent
