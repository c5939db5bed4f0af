#!/usr/bin/env python3
"""Compares training with masked targets with PyTorch: transformers' GPT-2 in fp32, torch's cross_entropy with ignore_index, AdamW.

    pip install torch transformers && make && dev/check_masks.py

transformers saves a random GPT-2. ./train_gpt2 trains it for 5 steps on a shard with a NAME.mask beside it, in 1, 2 and 4 micro-steps; torch
trains it on the same batches in one pass. Prints the largest relative differences of loss and gradient norm, and exits with 1 above 1e-4.

Result with torch 2.15.0 and transformers 5.23.0: at most 3e-7.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

ROOT = pathlib.Path(__file__).resolve().parent.parent
B, T, V, STEPS = 4, 32, 256, 5
LR, DECAY = 1e-3, 0.1


def write_data(folder, rng):
    tokens = rng.integers(0, V, STEPS * B * T + 1).astype(numpy.uint16)
    mask = (rng.random(len(tokens)) < 0.4).astype(numpy.uint8)
    mask[T + 1:3 * T + 1] = 0  # windows without any target
    header = numpy.zeros(256, numpy.int32)
    header[:3] = 20240520, 1, len(tokens)
    (folder / "tokens.bin").write_bytes(header.tobytes() + tokens.tobytes())
    (folder / "tokens.mask").write_bytes(mask.tobytes())
    return tokens.astype(numpy.int64), mask


def ours(folder, micro_steps):
    out = folder / f"run{micro_steps}"
    subprocess.run([ROOT / "train_gpt2", "--init-from", folder / "model", "--tokenizer", "byte", "--train-data", folder / "tokens.bin", "--out", out,
                    "--data-order", "file", "--steps", str(STEPS), "--batch-size", str(B // micro_steps), "--total-batch", str(B * T), "--lr", str(LR),
                    "--weight-decay", str(DECAY), "--beta2", "0.95", "--schedule", "constant", "--warmup", "0", "--val-every", "0", "--sample-every", "0",
                    "--checkpoint-every", "0"], check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(line["loss"], line["grad_norm"]) for line in lines if line["kind"] == "train"]


def theirs(model, tokens, mask):
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}], lr=LR, betas=(0.9, 0.95))
    results = []
    for step in range(STEPS):
        begin = step * B * T
        inputs = torch.tensor(tokens[begin:begin + B * T]).view(B, T)
        targets = numpy.where(mask[begin + 1:begin + B * T + 1] == 1, tokens[begin + 1:begin + B * T + 1], -100)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs).logits.view(-1, V), torch.tensor(targets), ignore_index=-100)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        results.append((loss.item(), norm.item()))
    return results


def main():
    torch.manual_seed(1)
    rng = numpy.random.default_rng(1)
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokens, mask = write_data(folder, rng)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=T, n_layer=2, n_head=2, n_embd=32, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
        model.save_pretrained(folder / "model")
        expected = theirs(model.train(), tokens, mask)
        for micro_steps in (1, 2, 4):
            difference = max(abs(a / b - 1) for got, want in zip(ours(folder, micro_steps), expected, strict=True) for a, b in zip(got, want, strict=True))
            print(f"{micro_steps} micro-steps: loss and gradient norm differ by at most {difference:.1e} (torch {torch.__version__}, "
                  f"transformers {transformers.__version__})")
            worst = max(worst, difference)
    sys.exit(worst > 1e-4)


if __name__ == "__main__":
    main()
