#!/usr/bin/env python3
"""HellaSwag (Zellers et al. 2019, arXiv:1905.07830): which of four endings continues a context; 10,042 validation examples.

    dev/data/hellaswag.py [--split val|train]     # dev/data/hellaswag/hellaswag_val.jsonl and hellaswag_val.bin

The source is the hub's data set Rowan/hellaswag. Writes the official JSON lines, and llm.c's eval format with GPT-2's tokens:
256 int32 (20240522, 1, examples, bytes of the longest example), then uint16 for each example: 65535, its bytes, index, label, 4,
the number of context tokens, these tokens, and for each of the four endings the number of its tokens and these tokens. An ending begins
with a space.
"""
import array
import json
import pathlib
import subprocess
import sys
import tempfile

import hub
import shards
from hub import DataError

FILES = {"val": ["data/validation-*.parquet", "data/val*"], "train": ["data/train-*.parquet"]}
END_OF_TEXT = 50256


def checked(record, where):
    """An example as the official files have it: label a number."""
    try:
        example = {**record, "label": int(record["label"])}
        texts = [example["ctx"], *example["endings"]]
        if len(texts) != 5 or not all(isinstance(text, str) and text for text in texts) or not 0 <= example["label"] < 4:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{where}: is no HellaSwag example; expected ctx, four endings and a label from 0 to 3") from None
    return example


def read_examples(source, names):
    for name in names:
        path = source.path(name)
        for row, record in hub.records(path):
            yield checked(record, f"{path}, record {row + 1}")


def tokenized(texts, program):
    """The GPT-2 tokens of each text (none is empty), by our own tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts) + '{"end": true}\n'
        command = [program, "--stream", "--until-end", "--split", "train", "--shard-tokens", "4000000000", "--out", folder]
        if subprocess.run(command, input=lines.encode(), stdout=subprocess.DEVNULL).returncode != 0:
            sys.exit(1)  # tokenize has printed the reason
        tokens = array.array("H", (pathlib.Path(folder) / "train_000000.bin").read_bytes()[1024:])
    documents = []
    for token in tokens:
        documents.append([]) if token == END_OF_TEXT else documents[-1].append(token)
    if len(documents) != len(texts):
        raise DataError(f"{program}: {len(documents)} documents of tokens for {len(texts)} texts")
    return documents


def eval_file(examples, documents):
    """llm.c's format; documents: five a example, context and endings."""
    body, longest = array.array("H"), 0
    for index, example in enumerate(examples):
        numbers = [65535, 0, index, example["label"], 4]
        for tokens in documents[5 * index : 5 * index + 5]:
            numbers += [len(tokens), *tokens]
        numbers[1] = 2 * len(numbers)
        longest = max(longest, numbers[1])
        if longest > 65535 or index > 65535:
            raise DataError(f"example {index + 1}: the format has no room for {longest} bytes an example and {index + 1} examples")
        body.extend(numbers)
    return array.array("i", [20240522, 1, len(examples), longest] + [0] * 252).tobytes() + body.tobytes()


def main():
    parser = shards.OneLineParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=shards.HERE / "hellaswag", metavar="DIR")
    parser.add_argument("--source", metavar="DIR", help="folder with the data set's files, instead of its hub")
    parser.add_argument("--split", choices=sorted(FILES), default="val")
    parser.add_argument("--tokenize", metavar="PROGRAM", help="default: ./tokenize at the top of the project")
    options = parser.parse_args()
    program = hub.tokenize_program(options.tokenize)
    source = shards.open_source(options, "Rowan/hellaswag")
    examples = list(read_examples(source, source.files(FILES[options.split])))
    if not examples:
        raise DataError("the data set holds no example")
    documents = tokenized([text for e in examples for text in [e["ctx"], *(" " + ending for ending in e["endings"])]], program)
    for name, data in (
        (f"hellaswag_{options.split}.jsonl", "".join(json.dumps(example) + "\n" for example in examples)),
        (f"hellaswag_{options.split}.bin", eval_file(examples, documents)),
    ):
        shards.write_whole(options.out / name, data)
        print(f"{options.out / name}: {len(examples)} examples")


if __name__ == "__main__":
    shards.run(main)
