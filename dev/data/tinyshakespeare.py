#!/usr/bin/env python3
"""Token shards of the Shakespeare text that ships with the project (1.1 MB, 338,025 GPT-2 tokens).

    dev/data/tinyshakespeare.py     # dev/data/tinyshakespeare/tiny_shakespeare_val_000000.bin, .._train_000001.bin

As in llm.c, each speech is a document (blank lines separate them), and the first 32,768 tokens are for validation.
"""
import pathlib

import shards


def speeches(path):
    """documents(place): each speech with the blank line after it."""

    def documents(place):
        parts = path.read_text().split("\n\n")
        for index in range(int(place) if place else 0, len(parts)):
            yield str(index), parts[index] + ("\n\n" if index + 1 < len(parts) else "")

    return documents


def main():
    options = shards.parser(__doc__, "tinyshakespeare").parse_args()
    root = shards.HERE.parent.parent
    path = (pathlib.Path(options.source) if options.source else root / "data") / "tinyshakespeare.txt"
    options.out.mkdir(parents=True, exist_ok=True)
    shards.write(options, speeches(path), "tiny_shakespeare_", val_tokens=32768)


if __name__ == "__main__":
    shards.run(main)
