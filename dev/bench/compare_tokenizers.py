#!/usr/bin/env python3
"""Encodes a text on one core by our tokenizer and by tiktoken, in turns: MB/s of each, and that the tokens are as many.

    pip install tiktoken && cmake --build --preset release --target tokenizer_speed && dev/bench/compare_tokenizers.py TEXT TOKENIZER...

TOKENIZER: gpt2, or a tokenizer.json whose tokens are numbered in the order of its merges. Each has the text in memory and encodes it --rounds times; the
first time, when caches are empty, is shown by itself and counts, too. Both are bound to one core.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "scripts")]
import reference_tokenizer  # noqa: E402
import tokenizer_to_tiktoken  # noqa: E402


def compare(name, path, rounds):
    text = pathlib.Path(path).read_bytes().decode()
    megabytes = len(text.encode()) / 1e6
    theirs = reference_tokenizer.tiktoken_gpt2() if name == "gpt2" else tokenizer_to_tiktoken.encoding(name)
    ours = subprocess.Popen([ROOT / "build/release/tokenizer_speed", name, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    seconds = {"ours": [], "tiktoken": []}
    for _ in range(rounds):
        ours.stdin.write("\n")
        ours.stdin.flush()
        took, tokens = ours.stdout.readline().split()
        seconds["ours"].append(float(took))
        start = time.perf_counter()
        count = len(theirs.encode_ordinary(text))
        seconds["tiktoken"].append(time.perf_counter() - start)
        if count != int(tokens):
            sys.exit(f"compare_tokenizers: {name}: {tokens} tokens, and {count} by tiktoken")
    ours.stdin.close()
    ours.wait()
    mean = {who: statistics.median(times) for who, times in seconds.items()}
    print(f"{pathlib.Path(name).parent.name or name}, {pathlib.Path(path).name} ({megabytes:.1f} MB, {tokens} tokens): "
          + ", ".join(f"{who} {megabytes / mean[who]:.1f} MB/s (first {megabytes / seconds[who][0]:.1f})" for who in seconds)
          + f": {mean['tiktoken'] / mean['ours']:.2f} times as fast, first {seconds['tiktoken'][0] / seconds['ours'][0]:.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("text")
    parser.add_argument("tokenizer", nargs="+")
    o = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for name in o.tokenizer:
        compare(name, o.text, o.rounds)


if __name__ == "__main__":
    main()
