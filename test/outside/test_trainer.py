#!/usr/bin/env python3
"""transformers' Trainer continues our checkpoints, and we continue its: each trains the same steps from the same folder as the other does.

dev/check_outside.sh runs this. Both read the same windows in the same order, with AdamW, clipping and a constant learning rate, in fp32.
"""
import json
import pathlib
import tempfile
import unittest

import numpy
import torch
from outside import DATA, run  # beside this file
from test_models import write_shard
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

B, T, STEPS, LR = 4, 32, 10, 1e-3
RATES = dict(weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8, max_grad_norm=1.0)
FAMILIES = {
    "gpt2": [],
    "llama": ["--kv-heads", 2, "--hidden", 48],
    "untied llama": ["--kv-heads", 1, "--untied", "--head-size", 24],
    "qwen3": ["--qwen3", "--kv-heads", 2, "--head-size", 16],
    "nanochat": ["--nanochat"],
}


class InOrder(Trainer):
    """A Trainer that reads its windows one after the other and keeps every loss, where Trainer's own log rounds them."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, *words, **more):
        found = super().compute_loss(*words, **more)
        self.seen = [*getattr(self, "seen", []), (found[0] if isinstance(found, tuple) else found).item()]
        return found


class Continues(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.tokens = numpy.frombuffer((DATA / "tinyshakespeare.txt").read_bytes()[: STEPS * B * T + 1], numpy.uint8).astype(numpy.int64)
        self.shard = write_shard(self.folder / "tokens.bin", self.tokens)

    def ours(self, start, name):
        """The losses, and the folder of the last checkpoint. start: options that say with which model."""
        out = self.folder / name
        run("train_gpt2", *start, "--tokenizer", "byte", "--train-data", self.shard, "--data-order", "file", "--dtype", "fp32", "--steps", STEPS,
            "--batch-size", B, "--seq-len", T, "--total-batch", B * T, "--lr", LR, "--schedule", "constant", "--warmup", 0, "--weight-decay", 0.1,
            "--beta1", 0.9, "--beta2", 0.95, "--eps", 1e-8, "--clip", 1, "--val-every", 0, "--sample-every", 0, "--out", out)  # fmt: skip
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if line["kind"] == "train"], out / f"checkpoints/step_{STEPS:08}"

    def theirs(self, start, name):
        windows = [self.tokens[i * T : i * T + T + 1] for i in range(STEPS * B)]
        data = [dict(input_ids=torch.tensor(w[:-1]), labels=torch.tensor(w[1:]), shift_labels=torch.tensor(w[1:])) for w in windows]
        arguments = TrainingArguments(output_dir=str(self.folder / name), max_steps=STEPS, per_device_train_batch_size=B, learning_rate=LR,
                                      lr_scheduler_type="constant", save_steps=STEPS, report_to=[], use_cpu=True, disable_tqdm=True,
                                      logging_strategy="no", remove_unused_columns=False, **RATES)  # fmt: skip
        model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer = InOrder(model=model, args=arguments, train_dataset=data)
        trainer.train()
        return trainer.seen, self.folder / name / f"checkpoint-{STEPS}"

    def compare(self, start, name):
        """Both train from the folder `start`. Returns what each of them saved."""
        (ours, our_folder), (theirs, their_folder) = self.ours(["--init-from", start], f"{name}, ours"), self.theirs(start, f"{name}, theirs")
        apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        print(f"{name}: the losses of {STEPS} steps differ by at most {apart:.1e}; the last is {ours[-1]:.3f}", flush=True)
        # fp32 on both sides, whose sums differ in their order: 7e-7 with torch 2.15.0
        self.assertLess(apart, 3e-6)
        self.assertLess(ours[-1], ours[0])
        return our_folder, their_folder

    def test_each_from_what_the_other_saved(self):
        for family, options in FAMILIES.items():
            with self.subTest(family):
                sizes = ["--layers", 2, "--heads", 4, "--channels", 32, "--context", T, *options]
                _, first = self.ours(sizes, family)
                _, their_folder = self.compare(first, f"{family}, from our checkpoint")
                self.compare(their_folder, f"{family}, from Trainer's checkpoint")


if __name__ == "__main__":
    unittest.main()
