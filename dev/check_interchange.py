#!/usr/bin/env python3
"""Checks that a model is the same model here and in Hugging Face's transformers, in both directions.

    dev/check_interchange.py CHECKPOINT...      # checkpoints, Hugging Face folders; needs torch, transformers, tokenizers, safetensors
    dev/check_interchange.py                    # only the random models that transformers saves, and the tokenizers

Export: transformers opens each CHECKPOINT with a plain from_pretrained, and AutoTokenizer opens its tokenizer. Import: our programs open
GPT-2s of random weights that transformers saved, in each of its formats. For each model, in fp32:
  - the logits of 5 real texts (import: 5 random ones) differ by at most 1e-4, absolute
  - the loss on a validation text (import: a random one) differs by at most 1e-5
  - 100 tokens of greedy continuation are the same
Our side is computed by build/release/ logits, evaluate_gpt2, generate_gpt2 and tokenize. Prints one line per model, and exits with 1 if one fails.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging
except ImportError as error:
    sys.exit(f"check_interchange.py: {error}; please install them: pip install torch transformers tokenizers safetensors")

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
MAX_LOGIT, MAX_LOSS, CONTINUATION = 1e-4, 1e-5, 100
VOCABULARY = 200  # of the random models; generate_gpt2 treats it as a vocabulary of bytes
logging.set_verbosity_error()
logging.disable_progress_bar()


def run(programs, name, *arguments):
    result = subprocess.run([programs / name, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"check_interchange.py: {result.stderr.strip()}")
    return result.stdout


def real_texts():
    """Five texts of different kinds: verse, an encyclopedia, exercises, code, and writing beyond ASCII."""
    shakespeare = (DATA / "tinyshakespeare.txt").read_text()
    wiki = (DATA / "wikitext2_valid.txt").read_text()
    exercises = [json.loads(line)["ctx"] for line in (DATA / "hellaswag_val_300.jsonl").read_text().splitlines()]
    other = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Съешь же ещё этих мягких французских булок. 色は匂へど散りぬるを 🙂 "
    return [shakespeare[100_000:104_000], wiki[20_000:24_000], " ".join(exercises[:30]), pathlib.Path(__file__).read_text(), other * 20]


def our_logits(programs, model, token_lists):
    with tempfile.TemporaryDirectory() as folder:
        tokens, out = pathlib.Path(folder, "tokens"), pathlib.Path(folder, "logits")
        save_file({str(i): torch.tensor(ids, dtype=torch.int32) for i, ids in enumerate(token_lists)}, tokens)
        run(programs, "logits", model, tokens, out, "fp32")
        logits = load_file(out)
        return [logits[str(i)] for i in range(len(token_lists))]


@torch.no_grad()
def compare_logits(programs, path, model, token_lists):
    """The largest difference of a logit, and the largest logit."""
    ours = our_logits(programs, path, token_lists)
    theirs = [model(torch.tensor([ids])).logits[0] for ids in token_lists]
    assert all(torch.isfinite(x).all() for x in ours) and all(a.shape == b.shape for a, b in zip(ours, theirs))
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs)), max(b.abs().max().item() for b in theirs)


@torch.no_grad()
def their_loss(model, tokens, T):
    """Mean loss of windows of T tokens. Window w starts at token w*T, and its last target is the token after it."""
    total, windows = 0.0, (len(tokens) - 1) // T
    for first in range(0, windows, 8):
        rows = range(first, min(first + 8, windows))
        x = torch.stack([tokens[w * T : w * T + T] for w in rows])
        y = torch.stack([tokens[w * T + 1 : w * T + T + 1] for w in rows])
        losses = torch.nn.functional.cross_entropy(model(x).logits.flatten(0, 1), y.flatten(), reduction="none")
        total += losses.double().sum().item()
    return total / (windows * T)


def compare_loss(programs, path, model, shard):
    tokens = torch.frombuffer(bytearray(shard.read_bytes()[1024:]), dtype=torch.uint16).long()
    ours = json.loads(run(programs, "evaluate_gpt2", path, "--val-data", shard, "--dtype", "fp32", "--json"))["loss"]
    return ours, their_loss(model, tokens, model.config.n_positions)


@torch.no_grad()
def compare_greedy(programs, path, model, prompt):
    arguments = ["--greedy", "--max-tokens", CONTINUATION, "--dtype", "fp32", "--json"]
    ours = json.loads(run(programs, "generate_gpt2", path, "--tokens", ",".join(map(str, prompt)), *arguments))["samples"][0]["tokens"]
    inputs = torch.tensor([prompt])
    theirs = model.generate(inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=CONTINUATION)[0, len(prompt) :].tolist()
    return sum(1 for _ in iter_common(ours, theirs)), len(theirs), ours == theirs


def iter_common(a, b):
    for x, y in zip(a, b):
        if x != y:
            return
        yield x


def tokenize(programs, name, text, folder):
    """Our tokens of a text, and the shard they are in."""
    source = folder / f"{name}.text"
    source.write_text(text)
    run(programs, "tokenize", "--tokenizer", name, "--out", folder / f"{name}-{source.stat().st_size}", source)
    shard = folder / f"{name}-{source.stat().st_size}" / "train_000000.bin"
    return torch.frombuffer(bytearray(shard.read_bytes()[1024:]), dtype=torch.uint16).tolist(), shard


def check_tokenizer(programs, path, name, folder):
    """Compares AutoTokenizer and Tokenizer with our tokenizer on all real texts, without the special token, which only they recognise in a text."""
    text = "\n".join(real_texts()).replace("<|endoftext|>", "")
    ours, _ = tokenize(programs, name, text, folder)
    auto, plain = AutoTokenizer.from_pretrained(path), Tokenizer.from_file(str(pathlib.Path(path, "tokenizer.json")))
    assert ours == plain.encode(text).ids, f"{path}: tokenizers disagrees with ours"
    assert ours == auto.encode(text), f"{path}: AutoTokenizer disagrees with ours"
    assert plain.decode(ours) == text and auto.decode(ours) == text, f"{path}: they decode to another text"
    return len(ours)


def check_model(programs, path, folder):
    """Export: compares logits, loss, greedy tokens and tokenizer. Returns the line's cells and whether all bounds hold."""
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    assert isinstance(model, GPT2LMHeadModel) and model.dtype == torch.float32
    name = "byte" if model.config.vocab_size <= 256 else "gpt2"
    tokens = check_tokenizer(programs, path, name, folder)
    T = model.config.n_positions
    encode = Tokenizer.from_file(str(pathlib.Path(path, "tokenizer.json"))).encode
    ids = [encode(text).ids[:T] for text in real_texts()]
    logit, largest = compare_logits(programs, path, model, ids)
    _, shard = tokenize(programs, name, (DATA / "tinyshakespeare.txt").read_text()[-60_000:], folder)
    ours, theirs = compare_loss(programs, path, model, shard)
    prompt = ids[0][: min(20, T - CONTINUATION)] if T > CONTINUATION else None
    same, length, equal = compare_greedy(programs, path, model, prompt) if prompt else (0, 0, False)
    print(f"{path}\n  {name} tokenizer: the same {tokens} tokens by tokenizers and AutoTokenizer")
    print(f"  logits of {sum(map(len, ids))} tokens: up to {largest:.1f}, largest difference {logit:.2e}")
    print(f"  loss {ours:.7f} here, {theirs:.7f} there, difference {abs(ours - theirs):.2e}")
    print(f"  greedy continuation: {same} of {length} tokens the same" if prompt else "  greedy continuation: the context is too short for it")
    return logit <= MAX_LOGIT and abs(ours - theirs) <= MAX_LOSS and equal


def variants(folder):
    """Saves one random GPT-2 by transformers in each of its formats. Yields (name, folder)."""
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=96, n_layer=3, n_head=4, initializer_range=0.08, bos_token_id=None, eos_token_id=None)
    original = GPT2LMHeadModel(config).eval()
    for parameter in original.parameters():  # so that biases and layernorms influence the result
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)

    def saved(name, model, **options):
        path = folder / name.replace(" ", "-")
        model.save_pretrained(path, **options)
        return name, path

    yield saved("fp32", original)
    yield saved("sharded", original, max_shard_size="200KB")
    yield saved("without prefix", original.transformer)
    yield saved("without prefix, sharded", original.transformer, max_shard_size="200KB")
    for dtype in (torch.float16, torch.bfloat16):
        yield saved(str(dtype).split(".")[1], GPT2LMHeadModel.from_pretrained(folder / "fp32", dtype=dtype))
    # Older versions saved the causal masks and the tied head, too.
    name, path = saved("masks and head", original)
    tensors = load_file(path / "model.safetensors")
    for layer in range(config.n_layer):
        tensors[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 128, 128, dtype=torch.bool).tril()
        tensors[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    yield name, path


def random_shard(path, vocabulary, generator):
    """2000 random tokens as a shard for evaluate_gpt2."""
    tokens = torch.randint(vocabulary, (2000,), generator=generator).tolist()
    header = [20240520, 1, len(tokens)] + [0] * 253
    path.write_bytes(b"".join(n.to_bytes(4, "little") for n in header) + b"".join(n.to_bytes(2, "little") for n in tokens))
    return path


def check_variants(programs, folder):
    good = True
    generator = torch.Generator().manual_seed(2)
    shard = random_shard(folder / "random.bin", VOCABULARY, generator)
    ids = [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in (1, 17, 64, 127, 128)]
    for name, path in variants(folder):
        model = GPT2LMHeadModel.from_pretrained(path, dtype=torch.float32).eval()
        logit, largest = compare_logits(programs, path, model, ids)
        same, length, equal = compare_greedy(programs, path, model, ids[1])
        ours, theirs = compare_loss(programs, path, model, shard)
        print(f"saved by transformers, {name}: logits up to {largest:.1f}, largest difference {logit:.2e}; loss {ours:.6f}, "
              f"difference {abs(ours - theirs):.2e}; {same} of {length} greedy tokens the same")  # fmt: skip
        good = good and logit <= MAX_LOGIT and abs(ours - theirs) <= MAX_LOSS and equal
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("checkpoint", nargs="*", type=pathlib.Path)
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "build" / "release", help="folder of our programs")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        good = [check_model(arguments.programs, path, folder) for path in arguments.checkpoint]
        good.append(check_variants(arguments.programs, folder))
    sys.exit(0 if all(good) else "check_interchange.py: above the limits")


if __name__ == "__main__":
    main()
