"""Reads the metrics of a run, RUN_DIR/metrics.jsonl, one object per line, by kind and step, also during the run."""
import argparse
import contextlib
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(sys.argv[0]).stem
LAST_STEP = 2**31  # larger steps are invalid


class MetricsError(Exception):
    """An error described in one line."""


class OneLineParser(argparse.ArgumentParser):
    """Reports an error of the command line in one line."""

    def error(self, message):
        self.exit(2, f"{PROGRAM}: {message}; --help shows the usage\n")


@contextlib.contextmanager
def one_line_errors():
    """Ends the program with one line and its exit code: 2 for a wrong input, 1 for a failed write."""
    try:
        yield
        sys.stdout.flush()
        return
    except MetricsError as error:
        code, message = 2, str(error)
    except OSError as error:
        code, message = 1, f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except RecursionError:
        code, message = 2, "metrics.jsonl holds a record that is nested too deep"
    except MemoryError:
        code, message = 1, "there is not enough memory for a run of this length"
    except KeyboardInterrupt:
        code, message = 130, "interrupted"
    print(f"{PROGRAM}: {one_line(message)}", file=sys.stderr)
    with contextlib.suppress(OSError):
        sys.stdout.close()  # its remaining content cannot be written
    sys.exit(code)


def one_line(text):
    return " ".join(str(text).split())


def valid(text):
    """The text without unpaired surrogates, which a file's name or a JSON escape can contain."""
    return text.encode(errors="replace").decode()


def number(value):
    """The value as a float; NaN for null, for numbers that are too large, and for anything else."""
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


class RunMetrics:
    """header: the last `run` record. by_kind: the records of every other kind, by step; of a step that was logged twice the last record counts."""

    def __init__(self, path):
        path = pathlib.Path(path)
        self.folder = path.parent if path.is_file() else path
        self.file = self.folder / "metrics.jsonl"
        if not self.file.is_file():
            raise MetricsError(f"{self.folder} holds no run: there is no metrics.jsonl in it{self.hint()}")
        self.header, by_kind, unreadable = {}, {}, 0
        lines = [line for line in self.file.read_text(errors="replace").split("\n") if line.strip()]
        for index, line in enumerate(lines):
            try:
                record = json.loads(line)
                kind = record["kind"]
                if kind == "run":
                    self.header = record
                else:
                    record["step"] = int(record["step"])
                    if not 0 <= record["step"] <= LAST_STEP:
                        raise ValueError(record["step"])
                    by_kind.setdefault(valid(kind), {})[record["step"]] = record
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                unreadable += index + 1 < len(lines)  # the last line may be incomplete: the program is writing it, or was killed
        if unreadable:
            print(f"{PROGRAM}: {self.file}: passed over {unreadable} unreadable lines", file=sys.stderr)
        self.by_kind = {kind: [records[step] for step in sorted(records)] for kind, records in by_kind.items()}
        if not self.by_kind.get("train"):
            raise MetricsError(f"{self.file} has no finished step yet")
        self.name = valid(self.folder.resolve().name)

    def options(self):
        options = self.header.get("options")
        return options if isinstance(options, dict) else {}

    def steps(self, kind):
        return [record["step"] for record in self.by_kind.get(kind, [])]

    def values(self, kind, key):
        """A number for every record of a kind; NaN where it wrote none."""
        return [number(record.get(key)) for record in self.by_kind.get(kind, [])]

    def seconds(self):
        """The time that each step took; 0 where its record does not say it."""
        return [ms / 1000 if 0 <= ms < 1e12 else 0.0 for ms in self.values("train", "step_ms")]

    def hint(self):
        """A hint for a path that names a checkpoint's folder instead of its run's."""
        folder = self.folder.resolve()
        runs = [above for above in folder.parents if (above / "metrics.jsonl").is_file()]
        return f"; it lies in the run {runs[0]}" if runs else ""


def newest_run():
    found = [file for folder in {ROOT, pathlib.Path.cwd()} for file in (folder / "runs").glob("*/metrics.jsonl")]
    if not found:
        raise MetricsError("no run under runs/ yet; please name a run's folder")
    return max(found, key=lambda file: file.stat().st_mtime).parent
