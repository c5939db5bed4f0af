#!/usr/bin/env python3
"""Writes trainer/tokenizer/unicode_ranges.h: which characters are letters and which are numbers, for GPT-2's pre-tokenizer,
and which others belong to a word (\\w of tiktoken's regex crate, which Hugging Face's tokenizers has too), for single words among added tokens.

    pip install unicodedata2==16.0.0 tiktoken==0.14.0 && dev/unicode_classes.py

The version of Unicode is tiktoken's, so that texts are split in the same way: all 1,112,064 characters are compared with it, and nothing is written
if one differs. Prints the numbers that test/test_tokenizer.cpp expects of the table.
"""
import pathlib
import sys

import tiktoken
import unicodedata2

FILE = pathlib.Path(__file__).resolve().parent.parent / "trainer/tokenizer/unicode_ranges.h"
CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
HEAD = """// unicode_ranges.h: the letters (categories L*) and numbers (N*) of Unicode {version}, and what else is in
//   \\w, as code points. Made by dev/unicode_classes.py.
#pragma once
#include <cstdint>

struct UnicodeRange {{
    uint32_t first, last;
}};
// clang-format off
"""


def by_tiktoken(pattern):
    """The characters that a class of tiktoken's patterns matches."""
    encoding = tiktoken.Encoding("classes", pat_str=pattern, mergeable_ranks={bytes([byte]): byte for byte in range(256)}, special_tokens={})
    return set(encoding.decode(encoding.encode_ordinary("".join(CHARACTERS))))


def ranges(characters):
    codes, found = sorted(map(ord, characters)), []
    for code in codes:
        if found and found[-1][1] + 1 == code:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def table(name, characters):
    lines, line = [f"constexpr UnicodeRange {name}[] = {{"], "   "
    for first, last in ranges(characters):
        entry = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line + entry) > 110:
            lines.append(line)
            line = "   "
        line += entry
    return "\n".join([*lines, line, "};\n"])


def main():
    text = HEAD.format(version=unicodedata2.unidata_version)
    for name, category, pattern in (("unicode_letters", "L", r"\p{L}"), ("unicode_numbers", "N", r"\p{N}")):
        characters = {c for c in CHARACTERS if unicodedata2.category(c).startswith(category)}
        different = characters ^ by_tiktoken(pattern)
        if different:
            sys.exit(f"unicode_classes: {len(different)} characters are not as tiktoken {tiktoken.__version__} has them; another version of Unicode?")
        codes = [ord(c) for c in characters]
        print(f"{name}: {len(codes)} characters, their sum {sum(codes)}, the sum of their squares {sum(code * code for code in codes)}")
        text += table(name, characters)
    word = by_tiktoken(r"\w")
    print(f"word characters: {len(word)}, their sum {sum(map(ord, word))}")
    text += table("unicode_word_marks", word - by_tiktoken(r"\p{L}"))
    spaces = sorted(map(ord, by_tiktoken(r"\s")))
    print("white space:", ", ".join(f"U+{code:04X}" for code in spaces))
    FILE.write_text(text)


if __name__ == "__main__":
    main()
