"""Turns documents into token shards in llm.c's format with our own `tokenize --stream`, in parallel, and can be restarted after any interruption.

A data set provides `documents(place)`, which yields (place, text) from a place on (None: from the beginning). tokenize writes a list of its
shards beside them with the place where each one ends; after a restart the documents begin there. DIR/source.json (for the two versions of
TinyStories: DIR/PREFIXsource.json) names the source of the documents, so that a restart reads the same state of the data set.
"""
import argparse
import concurrent.futures
import contextlib
import glob
import json
import os
import pathlib
import subprocess
import sys

import hub
from hub import DataError

HERE = pathlib.Path(__file__).resolve().parent


class OneLineParser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; --help shows the usage\n")


def parser(description, out=None):
    """The options that all data sets share. out: default folder, beside these programs; if None, the caller derives it from further options."""
    options = OneLineParser(description=description.split("\n", 1)[0])
    default = HERE / out if out else None
    shown = os.path.relpath(default) if out else f"one in {os.path.relpath(HERE)}, by type and size"
    options.add_argument("--out", type=pathlib.Path, default=default, metavar="DIR", help=f"folder for the shards (default: {shown})")
    options.add_argument("--source", metavar="DIR", help="folder with the data set's files, instead of its hub")
    options.add_argument("--tokenizer", default="gpt2", metavar="gpt2|byte|FILE", help="FILE: a tokenizer.json")
    options.add_argument("--shard-tokens", type=int, default=100_000_000, metavar="N", help="tokens of a shard (default: 100 million)")
    options.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N", help="that tokenize (default: one a core)")
    options.add_argument("--tokenize", metavar="PROGRAM", help="default: ./tokenize at the top of the project")
    return options


def run(main):
    """Runs a program's main; errors become one line and an exit code."""
    name = pathlib.Path(sys.argv[0]).name
    try:
        main()
    except DataError as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        print(f"{name}: interrupted; the same command continues after the shards that are finished", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        sys.exit(f"{name}: {error}")


def open_source(options, repository, prefix=""):
    """The source named by --source, or the hub, in the state in which the shards in --out were begun."""
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{prefix}source.json"
    known = json.loads(file.read_text()) if file.exists() else None
    if options.source:
        source = hub.LocalSource(options.source)
    else:
        source = hub.HubSource(repository, known if known and known.get("repository") == repository else None)
    begun = any(options.out.glob(f"{glob.escape(prefix)}*shards.json"))  # without shards an earlier command has failed, and its source does not count
    if begun and known and known != source.description():
        raise DataError(f"{file}: the shards there were begun from {known}, not from {source.description()}; choose another --out")
    if known != source.description():
        write_whole(file, json.dumps(source.description()) + "\n")
    return source


def write_whole(file, text):
    """Writes a file atomically: it is complete or absent."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    data = text if isinstance(text, bytes) else text.encode()
    with open(temporary, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, file)


def documents_of(source, names, change=None):
    """documents(place) over a source's files; the next file is fetched while one is read. change(text) is applied before tokenizing."""

    def documents(place):
        first, row = 0, 0
        if place is not None:
            name, _, number = place.rpartition(":")
            if name not in names:
                raise DataError(f"the finished shards end in the file {name}, which the data set does not hold")
            first, row = names.index(name), int(number)
        with concurrent.futures.ThreadPoolExecutor(1) as fetcher:
            following = fetcher.submit(source.path, names[first])
            for index in range(first, len(names)):
                path = following.result()
                if index + 1 < len(names):
                    following = fetcher.submit(source.path, names[index + 1])
                print(f"reading {names[index]} ({index + 1} of {len(names)})", file=sys.stderr, flush=True)
                for number, record in hub.records(path, row, columns=["text"]):
                    text = record.get("text")
                    if not isinstance(text, str):
                        raise DataError(f"{path}, record {number + 1}: has no text \"text\"")
                    yield f"{names[index]}:{number}", change(text) if change else text
                row = 0

    return documents


def finished(options, prefix, split):
    """(complete, place where the finished shards end), as tokenize reads it from the list of shards."""
    file = options.out / f"{prefix}{'' if split == 'first' else split + '_'}shards.json"
    if not file.exists():
        return False, None
    place = None
    listed = json.loads(file.read_text())
    for shard in listed["shards"]:
        path = options.out / shard["file"]
        if not path.exists():
            return False, place
        with path.open("rb") as header:
            token_bytes = 4 if int.from_bytes(header.read(4), "little") == 20240801 else 2
        if path.stat().st_size != 1024 + token_bytes * shard["tokens"]:
            return False, place
        place = shard["document"]
    return listed["complete"], place


def write(options, documents, prefix="", split="first", val_tokens=None):
    """Writes the shards of a split. If tokenize fails, it prints the reason, and this raises SystemExit with its exit code."""
    complete, place = finished(options, prefix, split)
    command = [hub.tokenize_program(options.tokenize), "--stream", "--until-end", "--place-field", "place", "--out", options.out, "--prefix", prefix,
               "--split", split, "--tokenizer", options.tokenizer, "--shard-tokens", str(options.shard_tokens), "--threads", str(options.threads)]  # fmt: skip
    if val_tokens is not None:
        command += ["--val-tokens", str(val_tokens)]
    program = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        if not complete:
            for place, text in documents(place):
                line = json.dumps({"text": text, "place": place}, ensure_ascii=False)
                program.stdin.write(line.encode("utf-8", errors="replace") + b"\n")
            program.stdin.write(b'{"end": true}\n')
        program.stdin.close()
    except BrokenPipeError:
        pass  # tokenize has ended and printed the reason
    except BaseException:
        program.terminate()
        with contextlib.suppress(OSError):
            program.stdin.close()
        program.wait()
        raise
    if program.wait() != 0:
        sys.exit(program.returncode if program.returncode > 0 else 1)
