#!/usr/bin/env python3
"""A model is the same model here and in Hugging Face's transformers, in both directions; masked targets train as in PyTorch.

dev/check_outside.sh runs this. FLATGPT_MODELS names folders, with a colon between them: checkpoints, which transformers must open,
or other Hugging Face folders, which our programs must. Folders that transformers saves are compared in each of its formats. In fp32:
  - the mean log-likelihood of each ending of HellaSwag's examples differs by at most 1e-4 from transformers' in double
    precision, and the accuracies are equal: of all 300 examples for a named folder
  - the loss on a validation text differs by at most 1e-5
  - 100 tokens of greedy continuation are the same
"""
import json
import os
import pathlib
import tempfile
import unittest

import numpy
import torch
from outside import DATA, gpt2_tokenizer, run, tokens_of  # beside this file
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import (AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, NanoChatConfig,
                          NanoChatForCausalLM, Qwen3Config, Qwen3ForCausalLM)  # fmt: skip

EXAMPLES = DATA / "hellaswag_val_300.jsonl"
MAX_LIKELIHOOD, MAX_LOSS, CONTINUATION = 1e-4, 1e-5, 100
NO_DROPOUT = dict(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)


def write_shard(path, tokens, mask=None):
    header = numpy.zeros(256, numpy.int32)
    header[:3] = 20240520, 1, len(tokens)
    path.write_bytes(header.tobytes() + numpy.asarray(tokens, numpy.uint16).tobytes())
    if mask is not None:
        path.with_suffix(".mask").write_bytes(mask.tobytes())
    return path


def real_texts():
    """Verse, an encyclopedia, exercises, code, and writing beyond ASCII."""
    exercises = [json.loads(line)["ctx"] for line in EXAMPLES.read_text().splitlines()]
    other = "Zwölf Boxkämpfer jagen Viktor. Съешь же ещё этих мягких французских булок. 色は匂へど散りぬるを 🙂 "
    return [(DATA / "tinyshakespeare.txt").read_text()[100_000:104_000], (DATA / "wikitext2_valid.txt").read_text()[20_000:24_000],
            " ".join(exercises[:30]), pathlib.Path(__file__).read_text(), other * 20]  # fmt: skip


@torch.no_grad()
def their_likelihoods(model, encode, example):
    """Mean and sum of the log-likelihoods of every ending's tokens."""
    context, endings = encode(example["ctx"]), []
    for text in example["endings"]:
        ending = encode(" " + text)
        window = torch.tensor([(context + ending)[-(model.config.max_position_embeddings + 1) :]])
        logits = model(window[:, :-1], logits_to_keep=len(ending)).logits[0]  # the head only where it counts
        likelihoods = logits.log_softmax(-1).gather(1, window[0, -len(ending) :, None])
        endings.append((likelihoods.mean().item(), likelihoods.sum().item()))
    return endings


@torch.no_grad()
def their_loss(model, tokens, T):
    """The mean over windows of T tokens. Window w starts at token w*T, and its last target is the token after it."""
    tokens = torch.tensor(tokens)
    windows = [tokens[w * T : w * T + T + 1] for w in range((len(tokens) - 1) // T)]
    losses = [torch.nn.functional.cross_entropy(model(window[None, :-1]).logits[0], window[1:]) for window in windows]
    return torch.stack(losses).mean().item()


class Models(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def compare(self, path, count):
        """Likelihoods, loss and greedy continuation of the model in a folder, in its own tokens, or in bytes if it has no tokenizer."""
        examples = self.folder / "examples.jsonl"
        examples.write_text("".join(EXAMPLES.read_text().splitlines(keepends=True)[:count]))
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval()
        self.assertIsInstance(model, (GPT2LMHeadModel, LlamaForCausalLM, NanoChatForCausalLM, Qwen3ForCausalLM))
        tokenizer, encode = "byte", lambda text: list(text.encode())
        if any(pathlib.Path(path, name).exists() for name in ("tokenizer.json", "vocab.json")):
            tokenizer, library = path, AutoTokenizer.from_pretrained(path)
            encode = lambda text: library.encode(text, add_special_tokens=False)  # noqa: E731
        text = tokens_of(tokenizer, (DATA / "tinyshakespeare.txt").read_text()[-8_000:])
        shard, scores = write_shard(self.folder / "text.bin", text), self.folder / "scores"
        result = json.loads(run("evaluate_gpt2", path, "--val-data", shard, "--hellaswag", examples, "--hellaswag-scores", scores,
                                "--tokenizer", tokenizer, "--dtype", "fp32", "--json"))  # fmt: skip

        examples = [json.loads(line) for line in examples.read_text().splitlines()]
        theirs = [their_likelihoods(model, encode, example) for example in examples]
        ours = [json.loads(line)["mean"] for line in scores.read_text().splitlines()]
        worst = max(abs(a - b) for row in zip(ours, theirs, strict=True) for a, (b, _) in zip(*row, strict=True))
        loss = their_loss(model, text, model.config.max_position_embeddings)
        print(f"{path}: likelihoods differ by {worst:.1e}, losses by {abs(result['loss'] - loss):.1e}", flush=True)
        self.assertLessEqual(worst, MAX_LIKELIHOOD)
        for by, accuracy in enumerate(("accuracy_norm", "accuracy")):
            right = sum(max(range(4), key=lambda i: endings[i][by]) == example["label"] for endings, example in zip(theirs, examples))
            self.assertEqual(result["hellaswag"][accuracy], right / len(examples), accuracy)
        self.assertLessEqual(abs(result["loss"] - loss), MAX_LOSS)

        prompt = text[:20]
        words = ["--tokens", ",".join(map(str, prompt)), "--greedy", "--max-tokens", CONTINUATION, "--dtype", "fp32", "--json"]
        inputs = torch.tensor([prompt])
        continued = model.generate(inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=CONTINUATION)
        self.assertEqual(json.loads(run("generate_gpt2", path, *words))["samples"][0]["tokens"], continued[0, len(prompt) :].tolist())

    def test_folders(self):
        paths = [path for path in os.environ.get("FLATGPT_MODELS", "").split(":") if path]
        self.assertTrue(paths, "FLATGPT_MODELS names no folder")
        for path in paths:
            with self.subTest(path):
                self.compare(path, 300)
                # without the special token, which only transformers recognises in a text
                text = "\n".join(real_texts()).replace("<|endoftext|>", "")
                ours, auto, file = tokens_of(path, text), AutoTokenizer.from_pretrained(path), pathlib.Path(path, "tokenizer.json")
                self.assertEqual(auto.encode(text, add_special_tokens=False), ours)
                self.assertEqual(auto.decode(ours), text)
                if file.exists():
                    self.assertEqual(Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids, ours)

    def save(self, name, model, **options):
        path = self.folder / name
        model.save_pretrained(path, **options)
        return path

    def test_every_format_that_transformers_saves(self):
        torch.manual_seed(1)
        config = GPT2Config(vocab_size=256, n_positions=384, n_embd=96, n_layer=3, n_head=4, initializer_range=0.08,
                            bos_token_id=None, eos_token_id=None)  # fmt: skip
        original = GPT2LMHeadModel(config).eval()
        for parameter in original.parameters():  # so that biases and layernorms influence the result
            if parameter.dim() == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
        paths = [self.save("fp32", original), self.save("sharded", original, max_shard_size="200KB"), self.save("bare", original.transformer),
                 self.save("bare, sharded", original.transformer, max_shard_size="200KB")]  # fmt: skip
        for dtype in (torch.float16, torch.bfloat16):
            paths.append(self.save(str(dtype).split(".")[1], GPT2LMHeadModel.from_pretrained(paths[0], dtype=dtype)))
        # Older versions saved the causal masks and the tied head, too.
        paths.append(self.save("masks and head", original))
        tensors = load_file(paths[-1] / "model.safetensors")
        for layer in range(config.n_layer):
            tensors[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 384, 384, dtype=torch.bool).tril()
            tensors[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
        save_file(tensors, paths[-1] / "model.safetensors", metadata={"format": "pt"})
        for path in paths:
            with self.subTest(path.name):
                self.compare(path, 10)

    def test_llamas(self):
        """Blocks as SmolLM2-135M has them (9 heads over 3, a tied head), an untied model whose heads are wider than its channels, nanochat, and
        Qwen3, with heads as Qwen3-0.6B has them (128 channels, twice as many in all as the model), tied, and untied with others."""
        torch.manual_seed(1)
        shared = dict(vocab_size=256, max_position_embeddings=384, bos_token_id=None, eos_token_id=None, initializer_range=0.06)
        smollm2 = LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=3, num_attention_heads=9, num_key_value_heads=3,
                              rms_norm_eps=1e-5, rope_parameters=dict(rope_type="default", rope_theta=100000.0),
                              tie_word_embeddings=True, **shared)  # fmt: skip
        untied = LlamaConfig(hidden_size=96, intermediate_size=200, num_hidden_layers=3, num_attention_heads=4, head_dim=32, **shared)
        # nanochat's defaults, of which its embeddings are too small to tell tokens apart
        nanochat = NanoChatConfig(hidden_size=192, intermediate_size=768, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
                                  pad_token_id=None, **shared)  # fmt: skip
        qwen3 = Qwen3Config(hidden_size=256, intermediate_size=768, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                            head_dim=128, rope_parameters=dict(rope_type="default", rope_theta=1e6), tie_word_embeddings=True, **shared)  # fmt: skip
        qwen3_untied = Qwen3Config(hidden_size=96, intermediate_size=200, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1,
                                   head_dim=34, **shared)  # fmt: skip
        configs = dict(tied=smollm2, untied=untied, nanochat=nanochat, qwen3=qwen3, qwen3_untied=qwen3_untied)
        for name, config in configs.items():
            model = AutoModelForCausalLM.from_config(config).eval()
            for parameter in model.parameters():  # so that norms influence the result
                if parameter.dim() == 1:
                    parameter.data += 0.1 * torch.randn_like(parameter)
            paths = [self.save(name, model), self.save(f"{name}, sharded", model, max_shard_size="1MB")]
            paths.append(self.save(f"{name}, bfloat16", AutoModelForCausalLM.from_pretrained(paths[0], dtype=torch.bfloat16)))
            for path in paths:
                with self.subTest(path.name):
                    self.compare(path, 10)

    def test_gpt2s_tokens(self):
        torch.manual_seed(1)
        # Larger weights than an initialisation's, so that the scores of endings differ clearly.
        path = self.save("gpt2", GPT2LMHeadModel(GPT2Config(n_positions=256, n_embd=96, n_layer=4, n_head=3, initializer_range=0.06)))
        gpt2_tokenizer().save_pretrained(path)
        self.compare(path, 50)


class Masks(unittest.TestCase):
    """5 steps on a shard with a mask, in 1, 2 and 4 micro-steps; torch trains on the same batches in one pass."""

    B, T, V, STEPS, LR, DECAY = 4, 32, 256, 5, 1e-3, 0.1

    def ours(self, folder, shard, micro_steps):
        out = folder / f"run{micro_steps}"
        run("train_gpt2", "--init-from", folder / "model", "--tokenizer", "byte", "--train-data", shard, "--out", out, "--data-order", "file",
            "--steps", self.STEPS, "--batch-size", self.B // micro_steps, "--total-batch", self.B * self.T, "--lr", self.LR, "--weight-decay",
            self.DECAY, "--beta2", 0.95, "--schedule", "constant", "--warmup", 0, "--val-every", 0, "--sample-every", 0,
            "--checkpoint-every", 0)  # fmt: skip
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [(line["loss"], line["grad_norm"]) for line in lines if line["kind"] == "train"]

    def theirs(self, model, tokens, mask):
        groups = [dict(params=[p for p in model.parameters() if p.dim() >= 2], weight_decay=self.DECAY),
                  dict(params=[p for p in model.parameters() if p.dim() < 2], weight_decay=0.0)]  # fmt: skip
        optimizer = torch.optim.AdamW(groups, lr=self.LR, betas=(0.9, 0.95))
        tokens, results = torch.tensor(tokens), []
        targets = torch.where(torch.tensor(mask) == 1, tokens, -100)
        for begin in range(0, self.STEPS * self.B * self.T, self.B * self.T):
            inputs, wanted = tokens[begin:][: self.B * self.T], targets[begin + 1 :][: self.B * self.T]
            optimizer.zero_grad()
            logits = model(inputs.view(self.B, self.T)).logits
            loss = torch.nn.functional.cross_entropy(logits.view(-1, self.V), wanted, ignore_index=-100)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            results.append((loss.item(), norm.item()))
        return results

    def models(self):
        yield GPT2LMHeadModel(GPT2Config(vocab_size=self.V, n_positions=self.T, n_layer=2, n_head=2, n_embd=32, **NO_DROPOUT))
        for tied in (True, False):
            yield LlamaForCausalLM(LlamaConfig(vocab_size=self.V, max_position_embeddings=self.T, num_hidden_layers=2, num_attention_heads=4,
                                               num_key_value_heads=2, hidden_size=32, intermediate_size=48, tie_word_embeddings=tied,
                                               bos_token_id=None, eos_token_id=None))  # fmt: skip

        yield Qwen3ForCausalLM(Qwen3Config(vocab_size=self.V, max_position_embeddings=self.T, num_hidden_layers=2, num_attention_heads=4,
                                           num_key_value_heads=2, head_dim=12, hidden_size=32, intermediate_size=48, tie_word_embeddings=True,
                                           bos_token_id=None, eos_token_id=None))  # fmt: skip
        yield NanoChatForCausalLM(NanoChatConfig(vocab_size=self.V, max_position_embeddings=self.T, num_hidden_layers=2, num_attention_heads=4,
                                                 hidden_size=32, intermediate_size=48, bos_token_id=None, eos_token_id=None,
                                                 pad_token_id=None))  # fmt: skip

    def test_masked_targets_train_as_in_pytorch(self):
        torch.manual_seed(1)
        rng = numpy.random.default_rng(1)
        tokens = rng.integers(0, self.V, self.STEPS * self.B * self.T + 1)
        mask = (rng.random(len(tokens)) < 0.4).astype(numpy.uint8)
        mask[self.T + 1 : 3 * self.T + 1] = 0  # windows without any target
        for model in self.models():
            with tempfile.TemporaryDirectory() as name, self.subTest(model.config):
                folder = pathlib.Path(name)
                shard = write_shard(folder / "tokens.bin", tokens, mask)
                model.save_pretrained(folder / "model")
                expected = self.theirs(model.train(), tokens, mask)
                for micro_steps in (1, 2, 4):
                    # fp32 on both sides; 3e-7 with torch 2.15.0
                    numpy.testing.assert_allclose(self.ours(folder, shard, micro_steps), expected, rtol=3e-6)


if __name__ == "__main__":
    unittest.main()
