#!/usr/bin/env python3
"""Writes what the fuzz targets of test/fuzz start from: OUT/TARGET/NAME, small valid files and near misses, and OUT/TARGET.dict, words.

    dev/fuzz_corpus.py OUT

The same files every time. Needs nothing but Python; the formats are those of docs and headers (token_shard.h, safetensors.h, ...).
"""
import json
import pathlib
import struct
import sys

OUT = pathlib.Path()


def seed(target, name, content):
    folder = OUT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def words(target, texts):
    """A dictionary for libFuzzer: each text may be put into an input as a whole."""
    lines = ["".join(f"\\x{byte:02x}" for byte in (text if isinstance(text, bytes) else text.encode())) for text in texts]
    (OUT / f"{target}.dict").write_text("".join(f'"{line}"\n' for line in lines))


def parts(*texts):
    """Several files as one input (parts_of in fuzz.h)."""
    return b"\n====\n".join(text if isinstance(text, bytes) else text.encode() for text in texts)


def header(*values):
    """llm.c's header: 256 int32."""
    return struct.pack("<256I", *values, *([0] * (256 - len(values))))


def token_shards():
    def shard(tokens, source_hash=0, magic=20240520, version=1, count=None):
        counted = len(tokens) if count is None else count
        return header(magic, version, counted, 0, source_hash) + struct.pack(f"<{len(tokens)}H", *tokens)

    seed("token_shard", "empty", shard([]))
    seed("token_shard", "small", shard([5962, 22307, 25, 198, 8421, 356, 5120, 597]))
    seed("token_shard", "windows", shard([token % 50257 for token in range(0, 60000, 300)], source_hash=7))
    seed("token_shard", "outside_the_vocabulary", shard([1, 2, 3, 50257, 65535, 4, 5]))
    seed("token_shard", "too_many", shard([1, 2, 3], count=2**31 + 3))
    seed("token_shard", "version", shard([1], version=2))
    seed("token_shard", "cut_short", shard([1, 2, 3])[:-1])
    seed("token_shard", "no_shard", b"To be, or not to be")


def safetensors_bytes(tensors, metadata=None):
    """tensors: {name: (dtype, shape, data)}"""
    root, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, content) in tensors.items():
        root[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(root, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors():
    one = struct.pack("<f", 1.0)
    dtypes = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4,
              "U64": 8, "I64": 8, "F64": 8}  # fmt: skip
    seed("safetensors", "one", safetensors_bytes({"x": ("F32", [1], one)}))
    seed("safetensors", "none", safetensors_bytes({}, {"format": "pt"}))
    seed("safetensors", "scalar", safetensors_bytes({"x": ("F64", [], b"\x00" * 8)}))
    seed("safetensors", "dtypes", safetensors_bytes({f"t.{name}": (name, [2, 1], bytes(range(2 * size))) for name, size in dtypes.items()}))
    seed("safetensors", "empty_tensor", safetensors_bytes({"e": ("F16", [3, 0], b""), "x": ("F32", [1], one)}))
    seed("safetensors", "overflow", safetensors_bytes({"x": ("F32", [2**32, 2**32], one)}))
    seed("safetensors", "unicode", safetensors_bytes({"\u00e9\u20ac": ("F32", [1], one)}, {"k": "\x1b[31m"}))
    words("safetensors", ['"dtype":"', '"shape":[', '"data_offsets":[', '"__metadata__":{', "18446744073709551615", "[[[[", "{}", *dtypes])


def vocabulary():
    """The byte-level vocabulary of GPT-2's files: 256 characters, and the characters by byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + index) for index, byte in enumerate(others)}
    return {characters[byte]: index for index, byte in enumerate([*printable, *others])}


def tokenizer_files():
    merges = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("e", "r"), ("o", "the"), ("othe", "r")]
    encoder = vocabulary()
    for left, right in merges:
        encoder[left + right] = len(encoder)
    encoder["<|endoftext|>"] = len(encoder)
    lines = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges)
    for name, ascii_only in (("escaped", True), ("plain", False)):
        seed("tokenizer_files", name, parts(json.dumps(encoder, ensure_ascii=ascii_only, separators=(",", ":")), lines))
    for name, change in (("no_end", {}), ("negative", {"th": -1}), ("fraction", {"th": 1.5}), ("huge", {"th": 2**32 + 256}), ("text", {"th": "1"})):
        broken = {key: value for key, value in {**encoder, **change}.items() if name != "no_end" or key != "<|endoftext|>"}
        seed("tokenizer_files", name, parts(json.dumps(broken), lines))
    seed("tokenizer_files", "merge_order", parts(json.dumps(encoder), "th e\nt h\n"))
    seed("tokenizer_files", "list", parts("[1,2]", "a b\n"))
    words("tokenizer_files", ['"<|endoftext|>":', '"th":', "#version", "\n====\n", "\\u0120", "-1", "4294967552", "1e300", "\u0120", "null"])


def tokenizer():
    texts = ["", "Hello world", "  \n\t  x", "I'll they've 123 4567", "na\u00efve \u65e5\u672c\u8a9e \U0001f600", "<|endoftext|>", "\u00a0\u2003\u3000",
             "a" * 300, " " * 300, "\u0301" * 50, "x\ny z\n\n  w"]  # fmt: skip
    for index, text in enumerate(texts):
        seed("tokenizer", f"text_{index:02}", text)
    seed("tokenizer", "bytes", bytes(range(256)))
    seed("tokenizer", "broken_utf8", b"\xc3 \xe2\x82 \xf0\x9f\x98 \xed\xa0\x80 \xc0\x80 \xf4\x90\x80\x80 x")
    words("tokenizer", ["'s", "'ll", "\u00a0", "\u2028", "\u0661", "\U0001d7d8", "<|endoftext|>", b"\xed\xa0\x80", b"\xff"])


def main():
    global OUT
    if len(sys.argv) != 2:
        sys.exit("usage: dev/fuzz_corpus.py OUT")
    OUT = pathlib.Path(sys.argv[1])
    OUT.mkdir(parents=True, exist_ok=True)
    for write in (token_shards, safetensors, tokenizer_files, tokenizer):
        write()


if __name__ == "__main__":
    main()
