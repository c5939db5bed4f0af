"""Sources of data sets: the hub's files, or the same files in a local folder, read one record at a time.

A source lists files and provides each as a local path. `records` reads parquet, JSON lines (plain, .gz, .zst) and texts, from any row on.
Packages are imported where they are needed; the error for a missing one names the command that installs it.
"""
import fnmatch
import gzip
import importlib
import io
import json
import pathlib
import subprocess

PACKAGES = {"pyarrow.parquet": "pyarrow", "huggingface_hub": "huggingface_hub", "zstandard": "zstandard"}
FORMATS = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".txt")


class DataError(Exception):
    """An error described in one line."""


def require(module):
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        package = PACKAGES[module]
        raise DataError(f"the Python package {package} is missing; install it with: pip install {package}") from None
    except ImportError as error:  # it is installed, but a package that it needs is too old
        raise DataError(f"the Python package {PACKAGES[module]} cannot be imported: {error}") from None


class LocalSource:
    """A folder that holds the hub's files, in any folders below it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        if not self.folder.is_dir():
            raise DataError(f"--source {folder}: is no folder; expected one with the data set's files")

    def description(self):
        return {"folder": str(self.folder)}

    def files(self, patterns):
        """Paths below the folder whose file name matches a pattern's file name, in any format."""
        stems = [pattern.rsplit("/", 1)[-1].split(".", 1)[0].rstrip("*").rstrip("-") for pattern in patterns]
        paths = [path for path in self.folder.rglob("*") if path.name.endswith(FORMATS) and path.is_file()]
        names = [str(path.relative_to(self.folder)) for path in paths if any(fnmatch.fnmatch(path.name, stem + "*") for stem in stems)]
        if not names:
            raise DataError(f"--source {self.folder}: holds no file {' or '.join(stem + '*' for stem in stems)} that ends in {', '.join(FORMATS)}")
        return sorted(names)

    def path(self, name):
        return self.folder / name


class HubSource:
    """A data set on the Hugging Face hub. The first of `patterns` that matches a file is used."""

    def __init__(self, repository, known=None):
        self.hub = require("huggingface_hub")
        self.repository = repository
        # The same state of the data set on every restart, whatever happens to its main branch.
        self.revision = known["revision"] if known else self.ask(lambda: self.hub.HfApi().dataset_info(repository).sha)

    def ask(self, question):
        try:
            return question()
        except Exception as error:  # the package raises a dozen types for this one error
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DataError(f"the data set {self.repository} cannot be reached: {reason[:300]}") from error

    def description(self):
        return {"repository": self.repository, "revision": self.revision}

    def files(self, patterns):
        every = self.ask(lambda: self.hub.HfApi().list_repo_files(self.repository, repo_type="dataset", revision=self.revision))
        for pattern in patterns:
            names = sorted(fnmatch.filter(every, pattern))
            if names:
                return names
        raise DataError(f"the data set {self.repository} holds no {' or '.join(patterns)}; it may have moved: give its files by --source")

    def path(self, name):
        """Downloads the file, or finds it in the package's cache."""
        return self.ask(lambda: self.hub.hf_hub_download(self.repository, name, repo_type="dataset", revision=self.revision))


def records(path, first=0, columns=None):
    """(row, record) of a file from row `first` on. A record is a dict; a text file has a record {"text": part} for each part between <|endoftext|>."""
    path = pathlib.Path(path)
    name = path.name
    if name.endswith(".parquet"):
        yield from parquet_records(path, first, columns)
    elif name.endswith(".txt"):
        parts = path.read_text(encoding="utf-8", errors="replace").split("<|endoftext|>")
        yield from ((row, {"text": part}) for row, part in enumerate(parts) if row >= first)
    elif name.endswith(FORMATS):
        yield from json_records(path, first)
    else:
        raise DataError(f"{path}: unknown format; expected a name that ends in {', '.join(FORMATS)}")


def parquet_records(path, first, columns):
    parquet = require("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise DataError(f"{path}: is no parquet file, or cut short: {' '.join(str(error).split())[:200]}") from error
    missing = set(columns or []) - set(file.schema_arrow.names)
    if missing:
        raise DataError(f"{path}: has no column {', '.join(sorted(missing))}; it has {', '.join(file.schema_arrow.names)}")
    row = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if row + rows <= first:  # skipped without being read or decompressed
            row += rows
            continue
        for batch in file.iter_batches(batch_size=1024, row_groups=[group], columns=columns):
            for record in batch.to_pylist():
                if row >= first:
                    yield row, record
                row += 1


def json_records(path, first):
    if path.name.endswith(".gz"):
        stream = gzip.open(path, "rt", encoding="utf-8")
    elif path.name.endswith(".zst"):
        stream = io.TextIOWrapper(require("zstandard").ZstdDecompressor().stream_reader(open(path, "rb")), encoding="utf-8")
    else:
        stream = open(path, encoding="utf-8")
    row = -1
    with stream:
        try:
            for row, line in enumerate(stream):
                if row < first or not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise DataError(f"{path}, line {row + 1}: {error}") from error
                if not isinstance(record, dict):
                    raise DataError(f"{path}, line {row + 1}: expected an object")
                yield row, record
        except (ValueError, EOFError, OSError) as error:  # not UTF-8, or a damaged .gz
            raise DataError(f"{path}, line {row + 2}: {error}") from error


def tokenize_program(given=None):
    """Path of our own `tokenize`."""
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    for path in [given] if given else [root / "tokenize", root / "build" / "release" / "tokenize"]:
        if subprocess.run(["test", "-x", path]).returncode == 0:
            return str(pathlib.Path(path).resolve())
    raise DataError(f"{given}: is no program" if given else "the program tokenize is not built yet; run make first")
