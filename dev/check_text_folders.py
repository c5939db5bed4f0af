#!/usr/bin/env python3
"""Trains on 30 kinds of folders of texts, and compares what was trained on with the texts joined by Python.

  dev/check_text_folders.py [--build build/release] [KIND...]
For each folder: the tokens that train_gpt2 says it has, those that tokenize writes, the share of them that one epoch reads (99 % at least),
and the seconds until the first step. A line that does not say "ok" is a fault; the exit code is 1 then.
"""
import argparse
import array
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEQUENCE = 64
WORDS = "the harbour town is quiet in winter and its boats lie on the shore until the first herring comes in spring".split()


def text(number, size):
    """Made-up text of about `size` bytes; another for every number."""
    line = " ".join(WORDS[(number + 7 * i) % len(WORDS)] for i in range(12)) + f" {number}.\n"
    return (line * (size // len(line) + 1))[:size].encode()


class Folder:
    """A folder of texts, and its texts in the order in which they are read."""

    def __init__(self, path):
        self.path, self.texts = path, {}
        path.mkdir()

    def add(self, name, content, counts=True):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if counts:
            self.texts[name] = content.removeprefix(b"\xef\xbb\xbf")

    def many(self, count, size, name="{:05}.txt"):
        for i in range(count):
            self.add(name.format(i), text(i, size))

    def joined(self):
        return b"".join(self.texts[name] for name in sorted(self.texts, key=os.fsencode))


def links(f):
    f.many(30, 400)
    # The first of two names of a file counts.
    (f.path / "again.txt").symlink_to("00003.txt")
    (f.path / "lost.txt").symlink_to("nowhere.txt")
    (f.path / "more").symlink_to("/usr/share/doc")


def links_outside(f):
    f.many(30, 400)
    outside = f.path.parent / "outside.txt"
    outside.write_bytes(text(99, 500))
    (f.path / "linked.txt").symlink_to(outside)
    f.texts["linked.txt"] = text(99, 500)


def binary(f):
    f.many(40, 300)
    f.add("picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(100), counts=False)
    f.add("paper.pdf", b"%PDF-1.7\n" + b"x" * 500, counts=False)
    f.add("archive.gz", b"\x1f\x8b\x08" + b"x" * 500, counts=False)
    f.add("model.bin", b"\1" * 3000, counts=False)


def hidden(f):
    f.many(40, 300)
    f.add(".git/config", b"hidden" * 100, counts=False)
    f.add(".notes.txt", b"hidden" * 100, counts=False)


def names(f):
    for i, name in enumerate(["Chapter [1].txt", "a b.txt", "*.txt", "{x,y}.md", "~home", "-dash.txt", "é ü.txt", "日本.txt", "UPPER.TXT", "no_ending", "a'b.txt", "q?.md"]):
        f.add(name, text(i, 700))
    path = os.path.join(os.fsencode(f.path), b"\xff\xfe.txt")
    with open(path, "wb") as file:
        file.write(text(50, 700))
    f.texts[os.fsdecode(b"\xff\xfe.txt")] = text(50, 700)


def sizes(*all_sizes):
    return lambda f: [f.add(f"{i:05}.txt", text(i, size)) for i, size in enumerate(all_sizes)]


def many(count, size):
    return lambda f: f.many(count, size)


KINDS = {
    "one short text": sizes(2000),
    "one long text": sizes(3_000_000),
    "one text above the cache's least size": sizes(9_000_000),
    "two texts of equal size": sizes(5000, 5000),
    "ten notes of a line": many(10, 200),
    "200 notes of 120 bytes": many(200, 120),
    "200 poems of 300 bytes": many(200, 300),
    "1,000 mails of 900 bytes": many(1000, 900),
    "3,000 lines, one a file": many(3000, 40),
    "one letter a file": many(3000, 1),
    "20,000 files": many(20000, 60),
    "one long text beside 300 mails": lambda f: (f.many(300, 150), f.add("zz_long.txt", text(5, 400_000))),
    "a long text first": lambda f: (f.many(300, 150), f.add("000_long.txt", text(5, 400_000))),
    "many files above the cache's least size": many(2000, 5000),
    "empty texts between others": lambda f: [f.add(f"{i:03}.txt", text(i, 300) if i % 3 else b"") for i in range(100)],
    "empty texts at both ends": sizes(0, 0, 3000, 2000, 0),
    "subfolders": lambda f: [f.add(f"{i % 7}/{i % 3}/{i}.md", text(i, 250)) for i in range(120)],
    "a deep subfolder": lambda f: [f.add("/".join("abcdefghij"[: i % 10 + 1]) + f"/{i}.txt", text(i, 300)) for i in range(60)],
    "mixed endings": lambda f: [f.add(f"{i:03}.{['txt', 'md', 'rst', 'tex', 'py', 'log'][i % 6]}", text(i, 300)) for i in range(90)],
    "unusual names": names,
    "hidden files": hidden,
    "links": links,
    "a link to a text elsewhere": links_outside,
    "binary files between texts": binary,
    "byte order marks": lambda f: [f.add(f"{i:03}.txt", b"\xef\xbb\xbf" * (i % 2) + text(i, 200)) for i in range(80)],
    "Latin-1 between UTF-8": lambda f: [f.add(f"{i:03}.txt", text(i, 200) + "café\n".encode("latin-1" if i % 2 else "utf-8")) for i in range(80)],
    "text without ASCII": lambda f: [f.add(f"{i:03}.txt", "港の町は冬に静かである。\n".encode() * 9) for i in range(80)],
    "README and LICENSE": lambda f: (f.many(50, 300), f.add("README.md", text(1, 500)), f.add("LICENSE", text(2, 500))),
    "CRLF lines": lambda f: [f.add(f"{i:03}.txt", text(i, 300).replace(b"\n", b"\r\n")) for i in range(60)],
    "JSON lines and tables": lambda f: [f.add(f"{i:03}.{['jsonl', 'csv', 'html'][i % 3]}", text(i, 300)) for i in range(60)],
}


def run(program, *words, cache):
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, errors="replace", env={**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"})


def check(build, work, kind, make):
    """The line about a kind of folder."""
    folder = Folder(work / "texts")
    make(folder)
    joined = folder.joined()
    begin = time.monotonic()
    trained = run(build / "train_gpt2", "--train-data", folder.path, "--layers", 1, "--channels", 8, "--heads", 1, "--context", SEQUENCE, "--batch-size", 1,
                  "--total-batch", SEQUENCE * max(1, len(joined) * 9 // 10 // SEQUENCE // 40), "--epochs", 1, "--val-every", 0, "--sample-every", 0, "--checkpoint-every", 0,
                  "--log-every", 9999, "--out", work / "run", cache=work / "cache")  # fmt: skip
    faults = [] if trained.returncode == 0 else [f"exit code {trained.returncode}: {trained.stderr}"]
    lines = [json.loads(line) for line in (work / "run/metrics.jsonl").read_text().splitlines()] if not faults else []
    said = re.search(r"^data: (\d+) tokens to train on.*, (\d+) to validate", trained.stdout, re.M)
    counts = [int(said[1]), int(said[2])] if said else [0, 1]
    share = max((line["tokens"] for line in lines if line["kind"] == "train"), default=0) / counts[0] if counts[0] else 0
    if sum(counts) != len(joined):
        faults.append(f"{sum(counts)} tokens, expected {len(joined)}")
    # An epoch of whole steps reads the windows of the split, but for the rest of a step.
    step = lines[-1]["tokens"] // max(1, lines[-1]["step"]) if lines else SEQUENCE
    if share + step / max(counts[0], 1) < 0.99:
        faults.append(f"only {share:.3f} of the tokens in an epoch")
    run(build / "tokenize", "--tokenizer", "byte", "--out", work / "shards", folder.path, cache=work / "cache")
    shards = bytes(token for shard in sorted((work / "shards").glob("*.bin")) for token in array.array("H", shard.read_bytes()[1024:]))
    if shards != joined:
        faults.append("tokenize wrote another text")
    notes = len(re.findall(f"^{re.escape(str(folder.path))}", trained.stdout, re.M))
    first = next((line["step_ms"] for line in lines if line["kind"] == "train"), 0)
    return f"{'; '.join(faults) or 'ok':4} {kind}: {len(folder.texts)} texts, {len(joined)} bytes, {counts[0]} + {counts[1]} tokens, {share:.1%} in an epoch of " \
           f"steps of {step}, {notes} notes, {time.monotonic() - begin - first / 1e3:.1f} s", not faults  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    options = parser.parse_args()
    good = True
    for kind, make in KINDS.items():
        if options.kinds and kind not in options.kinds:
            continue
        with tempfile.TemporaryDirectory() as work:
            line, ok = check(options.build.resolve(), pathlib.Path(work), kind, make)
        print(line, flush=True)
        good &= ok
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
