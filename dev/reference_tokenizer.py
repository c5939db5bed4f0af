#!/usr/bin/env python3
"""Writes random Unicode strings and their tokens by other programs, for the tests: test/reference/tiktoken.bin and test/reference/bpe/.

    pip install tiktoken tokenizers && dev/reference_tokenizer.py     # tested with tiktoken 0.14.0 and tokenizers 0.23.3; the same bytes every time

tiktoken.bin has 10,000 strings with GPT-2's tokens. bpe/NAME.json is a byte-level BPE as Hugging Face's tokenizers saves it, NAME.bin has 300 strings
with its tokens; the strings of added_tokens_* contain added tokens of every kind.

Format, little-endian: uint32 strings; then for each: uint32 bytes, uint32 tokens, the bytes (UTF-8), the tokens (uint16).
The strings contain only code points whose class is the same in every Unicode since 12.1 (2019), so that any version of tiktoken gives the same
tokens, although each has its own Unicode tables. dev/unicode_classes.py compares our table with that of one version, for all characters.
"""
import json
import pathlib
import random
import struct

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "test" / "reference"

RANGES = {
    "ascii": [(0x20, 0x7E)],
    "lower": [(0x61, 0x7A)],
    "digits": [(0x30, 0x39)],
    "latin": [(0xC0, 0x24F), (0x1E00, 0x1EFF)],
    "greek, cyrillic": [(0x3B1, 0x3C9), (0x400, 0x52F)],
    "right to left": [(0x5D0, 0x5EA), (0x620, 0x65F), (0x671, 0x6D3)],
    "indic, thai": [(0x904, 0x939), (0x93C, 0x94D), (0xE01, 0xE3A), (0xE40, 0xE4E)],
    "cjk": [(0x3041, 0x3096), (0x30A0, 0x30FF), (0x4E00, 0x9FEF), (0xAC00, 0xD7A3), (0x20000, 0x2A6D6)],
    "emoji": [(0x1F300, 0x1F64F), (0x1F680, 0x1F6C5), (0x200D, 0x200D), (0xFE0F, 0xFE0F), (0x1F3FB, 0x1F3FF)],
    "combining": [(0x300, 0x36F), (0x483, 0x487), (0x20D0, 0x20F0)],
    "other digits": [(0x660, 0x669), (0x966, 0x96F), (0xFF10, 0xFF19), (0x1D7CE, 0x1D7FF), (0xB2, 0xB3), (0xBC, 0xBE),
                     (0x2150, 0x2188), (0x2460, 0x249B), (0x3021, 0x3029)],
    "symbols": [(0xA1, 0xAC), (0xAE, 0xB1), (0x2010, 0x2027), (0x2030, 0x205E), (0x20A0, 0x20BF), (0x2190, 0x23FF)],
    "control": [(0x00, 0x08), (0x0E, 0x1F), (0x7F, 0x84), (0x86, 0x9F), (0xAD, 0xAD), (0x200B, 0x200F), (0x2060, 0x2064)],
    "letters past the basic plane": [(0x10000, 0x1000B), (0x1D400, 0x1D454), (0x10400, 0x1049D)],
    "no characters": [(0xE000, 0xF8FF), (0xFFFD, 0xFFFF), (0x10FFFE, 0x10FFFF)],
}
SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
NO_SPACES = "\u180e\u200b\ufeff\x1c\x1d\x1e\x1f"  # white space for some libraries
FRAGMENTS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'", "’s", "<|endoftext|>", "\r\n", "\n\n", "  ", " ", " ", "don't",
             " the", "Hello", " world", "1234567890", "http://", "....", "====", "_", "hello hello"]


def piece(rng: random.Random) -> str:
    kind = rng.randrange(10)
    if kind < 3:
        return rng.choice(FRAGMENTS)
    if kind == 3:
        return "".join(rng.choice(SPACES) for _ in range(rng.choice([1, 1, 2, 4])))
    if kind == 4:
        return rng.choice(NO_SPACES)
    ranges = RANGES[rng.choice(list(RANGES))]
    return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.choice([1, 2, 3, 5, 8])))


def tiktoken_gpt2() -> tiktoken.Encoding:
    """GPT-2's tokenizer of tiktoken with the vocabulary from the project's files; tiktoken would download it."""
    printable = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    others = [b for b in range(256) if b not in printable]
    byte_of = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    vocabulary = json.loads((ROOT / "data/gpt2_encoder.json").read_text())
    end_of_text = vocabulary.pop("<|endoftext|>")
    return tiktoken.Encoding(
        name="gpt2",
        pat_str=r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        mergeable_ranks={bytes(byte_of[c] for c in token): rank for token, rank in vocabulary.items()},
        special_tokens={"<|endoftext|>": end_of_text},
    )


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPLITTINGS = {
    "plain": BYTES,
    "prefix_space": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
    "number_runs": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), BYTES]),
}


def split(regex):
    steps = [pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    return pre_tokenizers.Sequence(steps)


# The regular expressions of the files of Llama 3 and Qwen, of nanochat, and GPT-4's for both tokenizers and tiktoken.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
NANOCHAT = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
GPT4 = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s++\z|\s*[\r\n]|\s+(?!\S)|\s+"


def with_splits():
    """Tokenizers in the form of Llama 3 (words of the vocabulary before merges), Qwen (NFC), nanochat and GPT-4, one without words."""
    made = {name: trained(split(regex)) for name, regex in (("llama3", LLAMA3), ("qwen", QWEN), ("nanochat", NANOCHAT), ("gpt4", GPT4))}
    made["qwen"].normalizer = normalizers.NFC()
    llama = json.loads(made["llama3"].to_str())
    llama["model"] |= {"ignore_merges": True, "merges": [merge for index, merge in enumerate(llama["model"]["merges"]) if index % 7]}
    nanochat = json.loads(made["nanochat"].to_str())
    nanochat["model"]["byte_fallback"] = True
    whole = json.loads(made["nanochat"].to_str())
    whole["pre_tokenizer"] = whole["pre_tokenizer"]["pretokenizers"][1]
    return made | {name: Tokenizer.from_str(json.dumps(file)) for name, file in (("llama3", llama), ("nanochat", nanochat), ("no_words", whole))}


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


def added_piece(rng):
    """An added token, a piece of one, or what may stand beside one."""
    between = ["", "", " ", "  ", "   ", "\n", "\t ", "\u3000", "_", "e\u0301", "\u200d", "1", "²", "語", "Ab", "<", "<a", ">", ".", "'s", " the", "theatre"]
    return rng.choice([rng.choice(ADDED).content, rng.choice(between), rng.choice(between), piece(rng)])


def write_strings(path, count, seed, some, encode):
    """`count` strings of up to 12 pieces, some(rng), with the tokens that encode(text) gives."""
    rng, out = random.Random(seed), bytearray(struct.pack("<I", count))
    for _ in range(count):
        text = "".join(some(rng) for _ in range(rng.randint(0, 12)))
        data, tokens = text.encode(), encode(text)
        out += struct.pack("<II", len(data), len(tokens)) + data + struct.pack(f"<{len(tokens)}H", *tokens)
    path.write_bytes(out)


def main() -> None:
    write_strings(OUT / "tiktoken.bin", 10_000, 20190214, piece, tiktoken_gpt2().encode_ordinary)
    made = {name: trained(splitting) for name, splitting in SPLITTINGS.items()} | {"merges_out_of_order": merges_out_of_order()} | with_splits()
    made |= {f"added_tokens_{name}": with_added_tokens(made[name]) for name in ("plain", "prefix_space", "digits", "qwen")}
    for name, tokenizer in made.items():
        file = OUT / "bpe" / f"{name}.json"
        file.write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
        tokenizer, added = Tokenizer.from_file(str(file)), name.startswith("added")
        write_strings(file.with_suffix(".bin"), 300, 20190215 if added else 20190214, added_piece if added else piece,
                      lambda text: tokenizer.encode(text, add_special_tokens=False).ids)  # noqa: B023, fmt: skip


if __name__ == "__main__":
    main()
