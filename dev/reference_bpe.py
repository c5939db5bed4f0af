#!/usr/bin/env python3
"""Writes byte-level BPEs of Hugging Face's tokenizers for the tests, and compares ./tokenize with tokenizers on whole texts.

    pip install tokenizers==0.23.3 && make && dev/reference_bpe.py

Writes test/reference/bpe/NAME.json (as tokenizers saves it) and NAME.bin: 300 random Unicode strings and their tokens, in the format of
dev/reference_tokenizer.py. Then every text in data/ goes through `./tokenize --tokenizer NAME.json` and through tokenizers.

Result with tokenizers 0.23.3: all tokens of all texts are equal. added_tokens has added tokens of every kind, and its strings contain them.
"""
import json
import pathlib
import random
import struct
import sys
import tempfile

import tokenizers
from check_tokenizer import tokens_of  # both beside this script
from reference_tokenizer import ROOT, piece
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

STRINGS = 300
OUT = ROOT / "test/reference/bpe"
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPLITTINGS = {
    "plain": BYTES,
    "prefix_space": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
    "number_runs": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), BYTES]),
}


def trained(splitting):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = splitting, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>", "<｜pad｜>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((ROOT / "data/wikitext2_valid.txt").read_text().splitlines(), trainer)
    return tokenizer


def merges_out_of_order():
    """A BPE whose tokens are not numbered in the order of the merges, with a token that two merges make, unused numbers and an end of text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("t", "he"), ("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("in", "g"), ("n", "g"), ("i", "ng"), ("e", "r")]
    vocabulary = {character: 1000 - index for index, character in enumerate(alphabet)}
    for left, right in reversed(merges):
        vocabulary.setdefault(left + right, len(vocabulary) - len(alphabet))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = BYTES, decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


ADDED = [
    AddedToken("<a>", special=True), AddedToken("<ab>", special=True), AddedToken("<left>", special=True, lstrip=True),
    AddedToken("<right>", special=True, rstrip=True), AddedToken("<both>", special=True, lstrip=True, rstrip=True),
    AddedToken("the", single_word=True), AddedToken("th"), AddedToken("ü語", single_word=True, normalized=False), AddedToken("a b"),
    AddedToken("  "), AddedToken("<a><", normalized=True), AddedToken("word <", normalized=True, rstrip=True),
    AddedToken("\n", normalized=False), AddedToken(" x", normalized=False, single_word=True),
]


def with_added_tokens(tokenizer):
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.add_tokens(ADDED)
    return tokenizer


def added_strings():
    """Strings of added tokens, of pieces of them, and of what may stand beside them."""
    rng = random.Random(20190215)
    between = ["", "", " ", "  ", "   ", "\n", "\t ", "\u3000", "_", "e\u0301", "\u200d", "1", "²", "語", "Ab", "<", "<a", ">", ".", "'s", " the", "theatre"]

    def some():
        return rng.choice([rng.choice(ADDED).content, rng.choice(between), rng.choice(between), piece(rng)])

    return ["".join(some() for _ in range(rng.randint(0, 12))) for _ in range(STRINGS)]


def strings():
    rng = random.Random(20190214)
    return ["".join(piece(rng) for _ in range(rng.randint(0, 12))) for _ in range(STRINGS)]


def packed(texts, tokenizer):
    out = bytearray(struct.pack("<I", len(texts)))
    for text in texts:
        data, tokens = text.encode(), tokenizer.encode(text, add_special_tokens=False).ids
        out += struct.pack("<II", len(data), len(tokens)) + data + struct.pack(f"<{len(tokens)}H", *tokens)
    return bytes(out)


def main():
    OUT.mkdir(exist_ok=True)
    made = {name: trained(splitting) for name, splitting in SPLITTINGS.items()} | {"merges_out_of_order": merges_out_of_order()}
    made |= {f"added_tokens_{name}": with_added_tokens(made[name]) for name in ("plain", "prefix_space", "digits")}
    failed = False
    for name, tokenizer in made.items():
        file = OUT / f"{name}.json"
        file.write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
        tokenizer = Tokenizer.from_file(str(file))
        texts = added_strings() if name.startswith("added") else strings()
        file.with_suffix(".bin").write_bytes(packed(texts, tokenizer))
        for text in [path.read_text() for path in sorted((ROOT / "data").glob("*.txt"))] + ["\n".join(texts)]:
            with tempfile.TemporaryDirectory() as folder:
                ours = tokens_of(text, pathlib.Path(folder), "--tokenizer", file)
            theirs = tokenizer.encode(text, add_special_tokens=False).ids
            failed |= ours != theirs
            print(f"{name}: {len(ours)} tokens, {len(theirs)} by tokenizers {tokenizers.__version__}: {'the same' if ours == theirs else 'NOT the same'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
