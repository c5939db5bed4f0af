#!/usr/bin/env python3
"""Checks HellaSwag's scores against PyTorch: the same 300 examples, scored by evaluate_gpt2 and by transformers in double precision.

    dev/check_hellaswag.py FOLDER...              # checkpoints or Hugging Face folders; needs torch, transformers, tiktoken
    dev/check_hellaswag.py --random DIR           # makes a GPT-2 of random weights in DIR and checks it
    dev/check_hellaswag.py --trained DIR          # trains a small one in DIR for some minutes, and checks it

A model passes if every example's four mean log-likelihoods differ by at most 1e-3 and the choices by mean and by sum are the same. Where
PyTorch's scores of the two chosen endings differ by less than twice the largest difference found, the example counts as a tie and either choice
passes. Prints one line per model and dtype, and exits with 1 if one fails.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import tiktoken
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging
except ImportError as error:
    sys.exit(f"check_hellaswag.py: {error}; please install them: pip install torch transformers tiktoken")

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
MAX_DIFFERENCE = 1e-3
logging.set_verbosity_error()
logging.disable_progress_bar()


def gpt2_tokenizer():
    """GPT-2's tokenizer of tiktoken with the vocabulary from the project's files; tiktoken would download it."""
    printable = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    byte_of = {chr(b): b for b in printable}
    byte_of |= {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)}
    encoder = json.loads((DATA / "gpt2_encoder.json").read_text())
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in encoder.items() if token != "<|endoftext|>"}
    pattern = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


@torch.no_grad()
def their_scores(folder, examples):
    """Sums and means of the log-likelihoods of every ending's tokens, one ending at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    tokenizer, scores = gpt2_tokenizer(), []
    for example in examples:
        context, sums, means = tokenizer.encode_ordinary(example["ctx"]), [], []
        for text in example["endings"]:
            ending = tokenizer.encode_ordinary(" " + text)
            window = torch.tensor([(context + ending)[-(model.config.n_positions + 1) :]])
            hidden = model.transformer(window[:, :-1]).last_hidden_state[0, -len(ending) :]  # the head only where it counts
            logits = model.lm_head(hidden).log_softmax(-1)
            likelihoods = logits.gather(1, window[0, -len(ending) :, None])
            sums.append(likelihoods.sum().item())
            means.append(likelihoods.mean().item())
        scores.append({"sum": sums, "mean": means})
    return scores


def our_scores(program, folder, file, dtype):
    with tempfile.TemporaryDirectory() as temporary:
        out = pathlib.Path(temporary, "scores")
        command = [program, folder, "--hellaswag", file, "--hellaswag-scores", out, "--batch-size", "8", "--dtype", dtype, "--json"]
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"check_hellaswag.py: {result.stderr.strip()}")
        return json.loads(result.stdout)["hellaswag"], [json.loads(line) for line in out.read_text().splitlines()]


def likeliest(values):
    return values.index(max(values))


def compare(ours, theirs, key):
    """(largest difference, number of examples with different choices, number of ties among these)."""
    worst = max(abs(a - b) for o, t in zip(ours, theirs) for a, b in zip(o[key], t[key]))
    others = [(o[key], t[key]) for o, t in zip(ours, theirs) if likeliest(o[key]) != likeliest(t[key])]
    ties = sum(max(t) - t[likeliest(o)] < 2 * worst for o, t in others)
    return worst, len(others), ties


def check(program, folder, file, dtypes):
    examples = [json.loads(line) for line in pathlib.Path(file).read_text().splitlines()]
    theirs = their_scores(folder, examples)
    right = {key: sum(likeliest(t[key]) == e["label"] for t, e in zip(theirs, examples)) for key in ("sum", "mean")}
    good = True
    for dtype in dtypes:
        result, ours = our_scores(program, folder, file, dtype)
        assert [o["ind"] for o in ours] == [e["ind"] for e in examples]
        (mean, other_mean, tie_mean), (total, other_sum, tie_sum) = compare(ours, theirs, "mean"), compare(ours, theirs, "sum")
        passed = mean <= MAX_DIFFERENCE and other_mean == tie_mean and other_sum == tie_sum
        good = good and (passed or dtype != "fp32")
        print(f"{folder}, {dtype}: {len(examples)} examples; largest difference of a mean {mean:.2g}, of a sum {total:.2g}; "
              f"chosen otherwise by mean {other_mean} ({tie_mean} ties), by sum {other_sum} ({tie_sum} ties); "
              f"accuracy {result['accuracy']:.4f} (PyTorch {right['sum'] / len(examples):.4f}), "
              f"accuracy_norm {result['accuracy_norm']:.4f} ({right['mean'] / len(examples):.4f}){'' if passed else ', OUT OF BOUNDS'}")  # fmt: skip
    return good


def config(**sizes):
    return GPT2Config(vocab_size=50257, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=50256, eos_token_id=50256, **sizes)


def save_random(folder):
    """Saves a GPT-2 whose random weights are larger than an initialisation's, so that the scores of endings differ clearly."""
    torch.manual_seed(1)
    GPT2LMHeadModel(config(n_positions=256, n_embd=96, n_layer=4, n_head=3, initializer_range=0.06)).save_pretrained(folder)


def train(folder, steps, B=4, T=128):
    """Trains a small model on the texts of WikiText-2 and Shakespeare and saves it."""
    torch.manual_seed(2)
    texts = [(DATA / name).read_text() for name in ("wikitext2_valid.txt", "tinyshakespeare.txt")]
    tokens = torch.tensor(sum((gpt2_tokenizer().encode_ordinary(text) for text in texts), []))
    model = GPT2LMHeadModel(config(n_positions=256, n_embd=96, n_layer=3, n_head=3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(step / 20, 1.1 - step / steps)
        starts = torch.randint(len(tokens) - T, (B,))
        batch = torch.stack([tokens[s : s + T] for s in starts])
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    model.save_pretrained(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    parser.add_argument("--random", metavar="DIR")
    parser.add_argument("--trained", metavar="DIR")
    parser.add_argument("--steps", type=int, default=150, help="of the trained one (default: %(default)s)")
    parser.add_argument("--only-make", action="store_true", help="make the models and stop")
    parser.add_argument("--program", default=ROOT / "build" / "release" / "evaluate_gpt2")
    parser.add_argument("--file", default=DATA / "hellaswag_val_300.jsonl")
    parser.add_argument("--dtype", action="append", help="fp32 (default), bf16; only fp32 has a bound to keep")
    arguments = parser.parse_args()
    if arguments.random:
        save_random(arguments.random)
    if arguments.trained:
        train(arguments.trained, arguments.steps)
    folders = arguments.folders + [folder for folder in (arguments.random, arguments.trained) if folder]
    if arguments.only_make:
        return
    sys.exit(not all([check(arguments.program, folder, arguments.file, arguments.dtype or ["fp32"]) for folder in folders]))


if __name__ == "__main__":
    main()
