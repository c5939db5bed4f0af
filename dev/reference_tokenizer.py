#!/usr/bin/env python3
"""Writes test/reference/tiktoken.bin: 10,000 random Unicode strings and their GPT-2 tokens by tiktoken.

    pip install tiktoken && dev/reference_tokenizer.py

Format, little-endian: uint32 strings; then for each: uint32 bytes, uint32 tokens, the bytes (UTF-8), the tokens (uint16).
The strings contain only code points whose class is the same in every Unicode since 12.1 (2019), so that any version of tiktoken gives the same
tokens, although each has its own Unicode tables. dev/unicode_classes.py compares our table with that of one version, for all characters.
"""
import json
import pathlib
import random
import struct

import tiktoken

ROOT = pathlib.Path(__file__).resolve().parent.parent
STRINGS = 10_000

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


def main() -> None:
    encoding = tiktoken_gpt2()
    rng = random.Random(20190214)
    out = bytearray(struct.pack("<I", STRINGS))
    for _ in range(STRINGS):
        text = "".join(piece(rng) for _ in range(rng.randint(0, 12)))
        tokens = encoding.encode_ordinary(text)
        data = text.encode("utf-8")
        out += struct.pack("<II", len(data), len(tokens)) + data + struct.pack(f"<{len(tokens)}H", *tokens)
    path = ROOT / "test/reference/tiktoken.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(out)
    print(f"{path}: {STRINGS} strings, {len(out)} bytes")


if __name__ == "__main__":
    main()
