#!/usr/bin/env python3
"""Trains the same tokenizer by ./tokenize --train and by Hugging Face's BpeTrainer, in turns: merges, lengths, seconds and memory.

    pip install tokenizers && dev/bench/compare_tokenizer_training.py --tokens 32768 --pattern gpt4 TEXT...

Each text is one sequence for both. Seconds and the peak of memory are those of a process of its own on all cores, the best of --rounds.
"""
import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "dev"))


def splitting(pattern):
    import reference_tokenizer

    if pattern == "gpt2":
        return reference_tokenizer.BYTES
    regex = {"gpt4": "GPT4", "llama3": "LLAMA3", "nanochat": "NANOCHAT", "qwen": "QWEN"}[pattern]
    return reference_tokenizer.split(getattr(reference_tokenizer, regex))


def train_theirs(out, tokens, pattern, texts):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = splitting(pattern), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=tokens, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((pathlib.Path(text).read_bytes().decode() for text in texts), trainer)
    tokenizer.save(out)


def measured(command):
    """Seconds and peak MiB of a command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.Popen(command)
    _, status, usage = __import__("os").wait4(process.pid, 0)
    if status:
        sys.exit(f"{command[0]} failed")
    del before
    return time.monotonic() - start, usage.ru_maxrss / 1024


def merges_of(path):
    return [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)
            for merge in json.loads(pathlib.Path(path).read_text())["model"]["merges"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--pattern", default="gpt2")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--theirs", help=argparse.SUPPRESS)
    parser.add_argument("texts", nargs="+")
    o = parser.parse_args()
    if o.theirs:
        return train_theirs(o.theirs, o.tokens, o.pattern, o.texts)
    with tempfile.TemporaryDirectory() as folder:
        best = {}
        for number in range(o.rounds):
            ours, theirs = f"{folder}/{number}/tokenizer.json", f"{folder}/theirs.json"
            commands = {"ours": [ROOT / "build/release/tokenize", "--train", str(o.tokens), "--pattern", o.pattern, "--out", ours, *o.texts],
                        "tokenizers": [sys.executable, __file__, "--tokens", str(o.tokens), "--pattern", o.pattern, "--theirs", theirs, *o.texts]}
            for name, command in commands.items():
                seconds, mib = measured([str(word) for word in command])
                print(f"{name}: {seconds:.1f} s, {mib:.0f} MiB", flush=True)
                best[name] = min(best.get(name, (seconds, mib)), (seconds, mib))
        mine, other = merges_of(ours), merges_of(theirs)
        same = sum(a == b for a, b in zip(mine, other))
        print(f"{o.pattern}, {o.tokens} tokens: {len(mine)} and {len(other)} merges, {same} equal in order, {len(set(mine) ^ set(other))} in one list only")
        first = next((i for i, (a, b) in enumerate(zip(mine, other)) if a != b), None)
        if first is not None:
            print(f"first difference at {first}: {mine[first:first + 3]} and {other[first:first + 3]}")
        from tokenizers import Tokenizer

        counts = []
        for path in (ours, theirs):
            tokenizer = Tokenizer.from_file(path)
            counts.append(sum(len(tokenizer.encode(pathlib.Path(text).read_bytes().decode(), add_special_tokens=False).ids) for text in o.texts[:5]))
        print(f"tokens of {len(o.texts[:5])} texts by tokenizers: {counts[0]} and {counts[1]}; times: "
              + ", ".join(f"{name} {seconds:.1f} s, {mib:.0f} MiB" for name, (seconds, mib) in best.items()))


if __name__ == "__main__":
    main()
