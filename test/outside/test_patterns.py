#!/usr/bin/env python3
"""The patterns by which texts are cut into words, against tiktoken and Hugging Face's tokenizers: no word may differ.

    pip install tiktoken tokenizers && cmake --build --preset release --target words && test/outside/test_patterns.py

  characters  all 1,112,064 of Unicode in the surroundings of SURROUNDINGS
  mixed text  20 MB of English, code, Chinese and other languages, emoji, numbers, runs of spaces, LF and CRLF: the shipped texts, files of the system
              (FOLDERS), the same with CRLF, and random strings of dev/reference_tokenizer.py
  normalizer  NFC of all characters, alone and after a letter, a Hangul syllable and a mark

tokenizers gives the words themselves. tiktoken gives tokens: its vocabulary is here the 256 bytes, all words as we cut them, and each joined with the
word after it, so that a word that tiktoken cuts in another way is another token.
"""
import array
import functools
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata
import unittest

import tiktoken
from tokenizers import Regex, normalizers, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "dev"))
import reference_tokenizer  # noqa: E402

WORDS = ROOT / "build/release/words"
GPT4_OF_TIKTOKEN = (r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"""
                    r"""\s+(?!\S)|\s""")
GPT4_FOR_BOTH = (r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s++\z|\s*[\r\n]|"""
                 r"""\s+(?!\S)|\s+""")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
NANOCHAT = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|"
            r"\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT2_OF_TIKTOKEN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


def by_regex(regex):
    return pre_tokenizers.Split(Regex(regex), "isolated")


# pattern: the steps of tokenizers with the same words, and tiktoken's regular expressions
PATTERNS = {
    "gpt2": ([pre_tokenizers.ByteLevel(add_prefix_space=False), by_regex(GPT2), by_regex(GPT2_OF_TIKTOKEN)], [GPT2, GPT2_OF_TIKTOKEN]),
    "gpt4": ([by_regex(GPT4_FOR_BOTH)], [GPT4_FOR_BOTH, GPT4_OF_TIKTOKEN]),
    "gpt4_number_runs": ([by_regex(GPT4_OF_TIKTOKEN)], []),
    "llama3": ([by_regex(LLAMA3), pre_tokenizers.Split(Regex(LLAMA3), "removed", invert=True)], [LLAMA3]),
    "nanochat": ([by_regex(NANOCHAT)], [NANOCHAT]),
    "qwen": ([by_regex(QWEN)], [QWEN]),
    "digits": ([pre_tokenizers.Digits(individual_digits=True)], []),
    "digit_runs": ([pre_tokenizers.Digits(individual_digits=False)], []),
}
CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
# The character is {}: between letters, after an apostrophe, between spaces and digits, and at the ends of lines.
SURROUNDINGS = ["a{}b", "x'{} 'l{}'{}e", " {}1  {}", "{}\n {}\r\n\n{}{}."]
FOLDERS = ["/usr/share/doc", "/usr/share/man", "/usr/share/i18n", "/usr/share/unicode", "/usr/share/vim", "/usr/share/perl", "/usr/lib/python3.11"]
MIXED_BYTES, PART = 20_000_000, 1 << 18  # bytes in all; characters in a text


def ours(pattern, text):
    """The words of a text, as bytes."""
    with tempfile.NamedTemporaryFile() as file:
        data = text.encode()
        pathlib.Path(file.name).write_bytes(data)
        lengths = array.array("I", subprocess.run([WORDS, pattern, file.name], stdout=subprocess.PIPE, check=True).stdout)
    words, begin = [], 0
    for length in lengths:
        words.append(data[begin:begin + length])
        begin += length
    return words


def by_tokenizers(splitter, text):
    return [text[begin:end].encode() for _, (begin, end) in splitter.pre_tokenize_str(text)]


def as_tiktoken_cuts(regex, words, text):
    """True if tiktoken cuts the text into these words."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    for word in [*words, *map(bytes.__add__, words, words[1:])]:
        ranks.setdefault(word, len(ranks))
    encoding = tiktoken.Encoding("words", pat_str=regex, mergeable_ranks=ranks, special_tokens={})
    return encoding.encode_ordinary(text) == [ranks[word] for word in words]


def files():
    """Texts of the shipped data and of the system, in a random but fixed order."""
    paths = sorted(path for folder in FOLDERS for path in pathlib.Path(folder).rglob("*") if path.is_file() and not path.is_symlink())
    random.Random(1).shuffle(paths)
    shipped = [ROOT / "data" / name for name in ("tinyshakespeare.txt", "wikitext2_valid.txt", "hellaswag_val_300.jsonl")]
    for path in [*shipped, *sorted((ROOT / "trainer").rglob("*.cpp")), *paths]:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = subprocess.run(["zcat", path], stdout=subprocess.PIPE, check=False).stdout
        try:
            yield data[:300_000].decode()
        except UnicodeDecodeError:
            continue


@functools.cache
def mixed_text():
    rng, parts, size = random.Random(2), [], 0
    own = "".join(reference_tokenizer.piece(rng) for _ in range(600_000))
    for text in [own, *files()]:
        if len(parts) % 4 == 3:
            text = text.replace("\n", "\r\n")
        if len(parts) % 5 == 4:
            text = text.replace(" ", rng.choice(["  ", " \t", "\u3000", "\xa0 ", "\n  "]))
        parts.append(text)
        size += len(text.encode())
        if size >= MIXED_BYTES:
            break
    text = "".join(parts)
    return [text[begin:begin + PART] for begin in range(0, len(text), PART)]


def texts_of_characters():
    for surrounding in SURROUNDINGS:
        text = "".join(surrounding.replace("{}", character) for character in CHARACTERS)
        yield from (text[begin:begin + PART] for begin in range(0, len(text), PART))


class Patterns(unittest.TestCase):
    def compare(self, texts):
        texts, size = list(texts), 0
        for text in texts:
            size += len(text.encode())
            for pattern, (splitters, regexes) in PATTERNS.items():
                words = ours(pattern, text)
                for splitter in splitters:
                    self.assertEqual(words, by_tokenizers(splitter, text), f"{pattern} against tokenizers, in {text[:100]!r}")
                for regex in regexes:
                    self.assertTrue(as_tiktoken_cuts(regex, words, text), f"{pattern} against tiktoken, in {text[:100]!r}")
        print(f"{size / 1e6:.1f} MB: no word differs", file=sys.stderr)

    def test_all_characters(self):
        self.compare(texts_of_characters())

    def test_mixed_text(self):
        self.compare(mixed_text())

    def test_normalizer(self):
        nfc, newer = normalizers.NFC(), set()
        for before in ["", "e", "가", "a\u0327"]:
            for begin in range(0, len(CHARACTERS), PART):
                text = "".join(f"{before}{character}\n" for character in CHARACTERS[begin:begin + PART])
                with tempfile.NamedTemporaryFile() as file:
                    pathlib.Path(file.name).write_bytes(text.encode())
                    normalized = subprocess.run([WORDS, "nfc", file.name], stdout=subprocess.PIPE, check=True).stdout.decode()
                expected = nfc.normalize_str(text)
                for mine, theirs in zip(normalized.split("\n"), expected.split("\n")):
                    if mine != theirs:
                        is_new = any(unicodedata.category(character) == "Cn" for character in mine)  # also for this Python
                        self.assertTrue(is_new or mine == unicodedata.normalize("NFC", theirs), f"{ascii(mine)} and {ascii(theirs)}")
                        newer.add(mine)
        self.assertLessEqual(len(newer), 40)
        print(f"{len(newer)} marks differ, whose classes Unicode has given or changed since the tables of tokenizers", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
