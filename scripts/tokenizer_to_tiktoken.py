#!/usr/bin/env python3
"""Converts a tokenizer.json, such as tokenize --train makes, for tiktoken.

    pip install tiktoken && scripts/tokenizer_to_tiktoken.py tokenizer.json OUT [--check TEXT...]

OUT.tiktoken has a token in base64 and its rank on each line, as tiktoken.load.load_tiktoken_bpe reads it; OUT.json has pat_str and special_tokens, the
other arguments of tiktoken.Encoding. In Python: tokenizer_to_tiktoken.encoding("tokenizer.json").
tiktoken knows no list of merges: it merges any two tokens that together are a token, the one with the lowest number first. So the numbers must be in the
order of the merges, as ours are. --check encodes the texts by both and counts the tokens that differ.
"""
import argparse
import base64
import json
import pathlib
import sys

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def bytes_by_character():
    printable = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def fail(message):
    sys.exit(f"tokenizer_to_tiktoken: {message}")


def pattern_of(pre_tokenizer, path):
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    patterns = [step["pattern"].get("Regex") for step in steps if step["type"] == "Split"]
    patterns += [GPT2 for step in steps if step["type"] == "ByteLevel" and step.get("use_regex", True)]
    if len(patterns) != 1 or any(step["type"] not in ("Split", "ByteLevel") for step in steps):
        fail(f"{path}: its pre_tokenizer is not one pattern; expected a Split or ByteLevel")
    return patterns[0]


def arguments(path):
    """pat_str, mergeable_ranks and special_tokens of a tokenizer.json."""
    root = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    if root.get("normalizer"):
        fail(f"{path}: has a normalizer, which tiktoken has not")
    special = {token["content"]: token["id"] for token in root["added_tokens"]}
    byte_of, vocabulary = bytes_by_character(), root["model"]["vocab"]
    ranks = {bytes(byte_of[c] for c in token): number for token, number in vocabulary.items() if token not in special}
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in root["model"]["merges"]]
    first, last = {}, -1
    for left, right in merges:
        first.setdefault(left + right, vocabulary[left + right])
    for number in first.values():
        if number < last:
            fail(f"{path}: its tokens are not numbered in the order of the merges, which tiktoken needs")
        last = number
    return {"pat_str": pattern_of(root["pre_tokenizer"], path), "mergeable_ranks": ranks, "special_tokens": special}


def encoding(path, name="own"):
    import tiktoken

    return tiktoken.Encoding(name, **arguments(path))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tokenizer")
    parser.add_argument("out")
    parser.add_argument("--check", nargs="+", default=[], metavar="TEXT")
    o = parser.parse_args()
    given = arguments(o.tokenizer)
    ranks = sorted(given.pop("mergeable_ranks").items(), key=lambda item: item[1])
    lines = "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks)
    pathlib.Path(f"{o.out}.tiktoken").write_text(lines)
    pathlib.Path(f"{o.out}.json").write_text(json.dumps(given, indent=1) + "\n")
    print(f"{o.out}.tiktoken: {len(ranks)} tokens; {o.out}.json: the pattern and {len(given['special_tokens'])} special tokens")
    if not o.check:
        return
    from tokenizers import Tokenizer

    theirs, own = encoding(o.tokenizer), Tokenizer.from_file(o.tokenizer)
    for path in o.check:
        text = pathlib.Path(path).read_bytes().decode()
        a, b = theirs.encode_ordinary(text), own.encode(text, add_special_tokens=False).ids
        print(f"{path}: {len(a)} and {len(b)} tokens, {'all equal' if a == b else 'not all equal'}")


if __name__ == "__main__":
    main()
