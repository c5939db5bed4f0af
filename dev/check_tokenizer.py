#!/usr/bin/env python3
"""Compares ./tokenize with tiktoken: every character of Unicode after a letter, a space, a digit and two spaces, and the texts in data/.

    pip install tiktoken==0.14.0 && make && dev/check_tokenizer.py

Result with tiktoken 0.14.0, which has the Unicode (16.0) of trainer/tokenizer/unicode_ranges.h: 25,111,775 tokens of 1,112,064 characters, all equal.
A tiktoken with another version of Unicode differs in the characters added between the two.
"""
import pathlib
import struct
import subprocess
import sys
import tempfile

import tiktoken
from reference_tokenizer import ROOT, tiktoken_gpt2  # beside this script


def tokens_of(text, folder, *options):
    """The tokens of a text by ./tokenize."""
    file, shards = folder / "text.txt", folder / "shards"
    file.write_bytes(text.encode())
    subprocess.run([ROOT / "tokenize", *options, "--out", shards, file], check=True, stdout=subprocess.DEVNULL)
    tokens = (shards / "train_000000.bin").read_bytes()[1024:]
    return list(struct.unpack(f"<{len(tokens) // 2}H", tokens))


def main():
    encoding, failed = tiktoken_gpt2(), False
    characters = (chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    texts = {"every character": "".join(f"a{c}b {c}1{c}  {c}\n" for c in characters)}
    texts |= {path.name: path.read_text() for path in sorted((ROOT / "data").glob("*.txt"))}
    for name, text in texts.items():
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = tokens_of(text, pathlib.Path(folder)), encoding.encode_ordinary(text)
        same = ours == theirs
        failed |= not same
        print(f"{name}: {len(ours)} tokens, {len(theirs)} by tiktoken {tiktoken.__version__}: {'the same' if same else 'NOT the same'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
