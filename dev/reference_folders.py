#!/usr/bin/env python3
"""Makes folders of tokenizers with transformers and tokenizers, and compares what our programs and transformers do with each.

    pip install torch transformers==5.24.0 tokenizers==0.23.3 safetensors && make && dev/reference_folders.py [NAME...]

For each folder, which also holds a small GPT-2:
  text     ./tokenize: the tokens of two texts with every added token, and the token between them
  prompt   ./generate_gpt2 --greedy: the tokens after tokenizer(prompt), which agree only if the prompt's tokens do
  end      the same with a model that always draws one of its ends of text, and with one that never does
  saved    AutoTokenizer, config.json and generation_config.json of a checkpoint and of ./convert's folder; the tokenizer's files byte for byte
A text or a prompt of a folder that is refused must be refused with the line that is expected. Exits with 1 if something differs.

Result with transformers 5.24.0 and tokenizers 0.23.3: every folder is ok.
"""
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
import torch  # noqa: E402
import transformers  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: E402
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, GPT2TokenizerFast, PreTrainedTokenizerFast  # noqa: E402

transformers.utils.logging.disable_progress_bar()
ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTEXT, ENDLESS = 128, 6
COMPANIONS = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja"]
EXTRA = "word 12 345 the theatre naïve 語 \n\n  x's <|user|>hi <|user|> <|bot|>\tyo <pad><mask>  <mask>y remdesivir remdesivirs in  Go_Go Go!"


# ----------------------------------------------------------------------------------------------------
# tokenizers and models


def gpt2(**more):
    with tempfile.TemporaryDirectory() as folder:
        slow(pathlib.Path(folder))
        return GPT2TokenizerFast(vocab=f"{folder}/vocab.json", merges=f"{folder}/merges.txt", **more)


def slow(folder, **files):
    """GPT-2's vocab.json and merges.txt, and other files: name without ending = content."""
    folder.mkdir(exist_ok=True, parents=True)
    shutil.copy(ROOT / "data/gpt2_encoder.json", folder / "vocab.json")
    shutil.copy(ROOT / "data/gpt2_vocab.bpe", folder / "merges.txt")
    write(folder, **files)


def write(folder, **files):
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def own(pre=None, post=None, special=("<s>", "<pad>", "</eos>"), size=600):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre or pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((ROOT / "data/wikitext2_valid.txt").read_text().splitlines()[:600], trainer)
    if post:
        tokenizer.post_processor = post
    return tokenizer


def fast(tokenizer, **roles):
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


def save_model(folder, V, ids=None, generation=None):
    """A random GPT-2. ids: of config.json; generation: generation_config.json, False for none."""
    torch.manual_seed(V)
    folder.mkdir(exist_ok=True, parents=True)
    config = GPT2Config(vocab_size=V, n_embd=16, n_layer=1, n_head=1, n_positions=CONTEXT, initializer_range=0.4, **(ids or {}))
    GPT2LMHeadModel(config).save_pretrained(folder)
    if generation is not None:
        (folder / "generation_config.json").unlink(missing_ok=True)
    if generation:
        write(folder, generation_config=generation)


def folder_of(tokenizer, V=None, ids=None, generation=None, **files):
    """A builder: the tokenizer as it saves itself (or a tokenizers.Tokenizer alone), a model of V (all tokens if None), other files."""

    def build(folder):
        made = tokenizer()
        folder.mkdir()
        made.save(str(folder / "tokenizer.json")) if isinstance(made, Tokenizer) else made.save_pretrained(folder)
        write(folder, **files)
        save_model(folder, V or (made.get_vocab_size() if isinstance(made, Tokenizer) else len(made)), ids, generation)

    return build


def slow_folder(V=50257, **files):
    def build(folder):
        slow(folder, **files)
        save_model(folder, V)

    return build


def own_slow(folder):
    """vocab.json and merges.txt of an own BPE, the merges with a version line and empty lines."""
    folder.mkdir()
    own(special=["<|endoftext|>"]).model.save(str(folder))
    save_model(folder, 600, dict(bos_token_id=0, eos_token_id=0))


def with_tokens(tokenizer, *tokens, **special):
    tokenizer.add_tokens(list(tokens))
    if special:
        tokenizer.add_special_tokens(special)
    return tokenizer


def changed(tokenizer, change):
    """A builder of a folder whose tokenizer.json is changed after it was saved."""
    build = folder_of(tokenizer)

    def build_and_change(folder):
        build(folder)
        content = json.loads((folder / "tokenizer.json").read_text())
        change(content)
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return build_and_change


def old_merges(content):
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]


def chat(tokenizer):
    tokenizer.chat_template = "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}"
    return tokenizer


def limited(tokenizer):
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9, pad_id=1, pad_token="<pad>")
    return tokenizer


def described(content, **flags):
    return {"content": content, **dict(lstrip=False, rstrip=False, single_word=False, normalized=False, special=True), **flags}


USER, BOT = AddedToken("<|user|>", special=True), AddedToken("<|bot|>", special=True, rstrip=True)
ROLES = dict(bos_token="<s>", eos_token="</eos>", pad_token="<pad>")
NO_IDS = dict(bos_token_id=None, eos_token_id=None)
TEMPLATE = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)])
BOTH_ENDS = processors.TemplateProcessing(single="<s> $A </eos>", pair="$A $B", special_tokens=[("<s>", 0), ("</eos>", 2)])
DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
RUNS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(add_prefix_space=False)])
SPACE = pre_tokenizers.ByteLevel(add_prefix_space=True)
FAST_CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}

FOLDERS = {
    "gpt2": folder_of(gpt2),
    "gpt2, pad is end": folder_of(lambda: gpt2(pad_token="<|endoftext|>")),
    "gpt2, pad, user, bot": folder_of(lambda: with_tokens(gpt2(pad_token="<pad>"), USER, BOT)),
    "gpt2, other begin and end": folder_of(lambda: with_tokens(gpt2(bos_token="<|user|>", eos_token="<|bot|>", pad_token="<pad>"), "remdesivir"),
                                           ids=dict(bos_token_id=50257, eos_token_id=50258, pad_token_id=50259)),
    "gpt2, lstrip": folder_of(lambda: gpt2(mask_token=AddedToken("<mask>", lstrip=True, special=True))),
    "gpt2, rstrip": folder_of(lambda: with_tokens(gpt2(), AddedToken("<mask>", rstrip=True))),
    "gpt2, both strips": folder_of(lambda: with_tokens(gpt2(), AddedToken("<mask>", rstrip=True, lstrip=True, normalized=False))),
    "gpt2, single words": folder_of(lambda: with_tokens(gpt2(), AddedToken("remdesivir", single_word=True), AddedToken("Go", single_word=True))),
    "gpt2, words": folder_of(lambda: with_tokens(gpt2(), "remdesivir", "in", "ï", "語 ")),
    "gpt2, spaces": folder_of(lambda: with_tokens(gpt2(), AddedToken("  ", normalized=False), AddedToken("\n\n", normalized=False), AddedToken("\t"))),
    "gpt2, longest of several": folder_of(lambda: with_tokens(gpt2(), "<|us", USER, AddedToken("er|>hi"), AddedToken("the", normalized=False), "theatre")),
    "gpt2, prefix space": folder_of(lambda: gpt2(add_prefix_space=True)),
    "gpt2, prefix space, tokens": folder_of(lambda: with_tokens(gpt2(add_prefix_space=True), USER, BOT, AddedToken("remdesivir"))),
    "gpt2, chat template": folder_of(lambda: chat(with_tokens(gpt2(), USER))),
    "gpt2, not resized": folder_of(lambda: gpt2(pad_token="<pad>"), V=50257),
    "gpt2, padded to 64": folder_of(lambda: with_tokens(gpt2(pad_token="<pad>"), USER, BOT), V=50304),
    "gpt2, special tokens split": folder_of(lambda: with_tokens(gpt2(split_special_tokens=True), USER, "remdesivir")),
    "slow files": slow_folder(),
    "slow, added_tokens.json": slow_folder(50259, added_tokens={"remdesivir": 50257, "<|user|>": 50258},
                                           special_tokens_map={"additional_special_tokens": ["<|user|>"]}),
    "slow, special_tokens_map": slow_folder(50259, special_tokens_map={"pad_token": "<pad>", "eos_token": "<|bot|>"}),
    "slow, strips in the map": slow_folder(50258, special_tokens_map={"mask_token": described("<mask>", lstrip=True)}),
    "slow, added_tokens_decoder": slow_folder(50258, tokenizer_config={
        "tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"50256": described("<|endoftext|>"), "50257": described("<mask>", rstrip=True)}}),
    "slow, begin": slow_folder(tokenizer_config={"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "add_prefix_space": True}),
    "slow, own vocabulary": own_slow,
    "own": folder_of(lambda: fast(own(), **ROLES), ids=dict(bos_token_id=0, eos_token_id=2, pad_token_id=1)),
    "own, no end": folder_of(own, ids=NO_IDS, generation=False, tokenizer_config=FAST_CLASS),
    "own, end in config": folder_of(own, ids=dict(bos_token_id=0, eos_token_id=2), generation=False, tokenizer_config=FAST_CLASS),
    "own, end in generation_config": folder_of(own, ids=NO_IDS, generation={"eos_token_id": 2, "pad_token_id": 1}, tokenizer_config=FAST_CLASS),
    "own, several ends": folder_of(lambda: fast(own(), **ROLES), ids=dict(bos_token_id=0, eos_token_id=2), generation={"eos_token_id": [2, 77], "temperature": 0.5}),
    "own, ends of two kinds": folder_of(lambda: fast(own(), **ROLES), ids=dict(bos_token_id=0, eos_token_id=2), generation={"bos_token_id": 0, "eos_token_id": 88}),
    "own, end in tokenizer_config": folder_of(own, ids=NO_IDS, generation=False, tokenizer_config={**FAST_CLASS, **ROLES}),
    "own, end in the map": folder_of(own, ids=NO_IDS, generation=False, tokenizer_config=FAST_CLASS, special_tokens_map=ROLES),
    "own, the map overrides": folder_of(own, ids=NO_IDS, generation=False, tokenizer_config={**FAST_CLASS, "eos_token": "<s>"}, special_tokens_map=ROLES),
    "own, end outside the model": folder_of(lambda: fast(own(), **ROLES)),
    "own, digits": folder_of(lambda: fast(own(DIGITS), **ROLES)),
    "own, runs of digits": folder_of(lambda: fast(with_tokens(own(RUNS), "345"), **ROLES)),
    "own, prefix space": folder_of(lambda: fast(with_tokens(own(SPACE), USER, BOT), **ROLES)),
    "own, template": folder_of(lambda: fast(own(post=TEMPLATE), **ROLES)),
    "own, template at both ends": folder_of(lambda: fast(own(post=BOTH_ENDS), **ROLES)),
    "own, RobertaProcessing": folder_of(lambda: fast(own(post=processors.RobertaProcessing(("</eos>", 2), ("<s>", 0))), **ROLES)),
    "own, merges of old versions": changed(lambda: fast(own(), **ROLES), old_merges),
    "own, 50257 rows": folder_of(lambda: fast(own(), **ROLES), V=50257, ids=dict(bos_token_id=0, eos_token_id=2)),
    "own, not resized": folder_of(lambda: with_tokens(fast(own(), **ROLES), USER, BOT, "remdesivir"), V=600),
    "own, truncation and padding": folder_of(lambda: fast(limited(own()), **ROLES)),
    "own, added_tokens.json": folder_of(own, V=602, ids=NO_IDS, tokenizer_config={**FAST_CLASS, **ROLES}, added_tokens={"<|user|>": 600, "remdesivir": 601}),
    "own, additional in the map": folder_of(own, V=602, ids=NO_IDS, tokenizer_config={**FAST_CLASS, **ROLES},
                                            special_tokens_map={"additional_special_tokens": ["<|user|>", "<mask>"]}),
    "own, additional in the config": folder_of(own, V=602, ids=NO_IDS, tokenizer_config={**FAST_CLASS, **ROLES, "additional_special_tokens": ["<|user|>", "<|bot|>"]}),
    "own, named special token": folder_of(own, V=601, ids=NO_IDS, tokenizer_config={**FAST_CLASS, **ROLES, "user_token": "<|user|>"}),
    "own, flags in the config": folder_of(own, ids=NO_IDS, tokenizer_config={**FAST_CLASS, **ROLES, "added_tokens_decoder": {"1": described("<pad>", rstrip=True, lstrip=True)}}),
    "own, a word of the vocabulary": folder_of(lambda: fast(with_tokens(own(), "in"), **ROLES)),
    "own, tokenizer.json alone": folder_of(lambda: own(special=["<|endoftext|>"]), ids=dict(bos_token_id=0, eos_token_id=0)),
    "own, many unused": folder_of(lambda: fast(with_tokens(own(), *[f"<unused{i}>" for i in range(3000)]), **ROLES)),
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------
# comparisons


class Different(Exception):
    pass


def same(what, ours, theirs):
    if ours != theirs:
        raise Different(f"{what}: ours {ours}, transformers {theirs}")


def run(program, *words):
    result = subprocess.run([ROOT / program, *map(str, words)], capture_output=True, text=True)
    if result.returncode != 0:
        raise Different(f"{program}: {result.stderr.strip()}")
    return result.stdout


def texts_of(tokenizer, V, seed):
    """A text with every added token that the model has, among words and spaces."""
    rng = random.Random(seed)
    contents = [str(token) for number, token in tokenizer.added_tokens_decoder.items() if number < V]
    contents = rng.sample(contents, min(len(contents), 12)) * 2 + EXTRA.split(" ")
    rng.shuffle(contents)
    text = "".join(content + rng.choice(["", " ", "  ", "\n", "_"]) for content in contents)
    absent = [str(token) for number, token in tokenizer.added_tokens_decoder.items() if number >= V]
    for content in absent:
        text = text.replace(content, "")
    return text if not any(content in text for content in absent) else "plain words"


def is_plain_gpt2(name):
    return name in ("gpt2", "slow files")


def end_between(folder, tokenizer, V):
    """The token between two texts: the tokenizer's, else the model's."""
    if tokenizer.eos_token_id is not None and not (tokenizer.eos_token == "<|endoftext|>" and tokenizer.eos_token_id >= V):
        return tokenizer.eos_token_id
    ends = ends_of(folder)
    return ends[0] if ends else None


def ends_of(folder):
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            ends = json.loads((folder / name).read_text()).get("eos_token_id")
            if ends is not None:
                return ends if isinstance(ends, list) else [ends]
    return []


def check_text(name, folder, tokenizer, V, work):
    texts = [texts_of(tokenizer, V, 1), texts_of(tokenizer, V, 2)]
    for i, text in enumerate(texts):
        (work / f"{i}.txt").write_bytes(text.encode())
    run("tokenize", "--tokenizer", "gpt2-eot" if is_plain_gpt2(name) else folder, "--out", work / "shards", work / "0.txt", work / "1.txt")
    shard = (work / "shards/train_000000.bin").read_bytes()[1024:]
    ours = [int.from_bytes(shard[i : i + 2], "little") for i in range(0, len(shard), 2)]
    first, second = (tokenizer(text, add_special_tokens=False).input_ids for text in texts)
    end = end_between(folder, tokenizer, V)
    same("text", ours, first + ([] if end is None else [end]) + second)
    return len(ours)


def continuation(folder, prompt, *words):
    return json.loads(run("generate_gpt2", folder, *words, "--prompt", prompt, "--greedy", "--max-tokens", ENDLESS, "--dtype", "fp32", "--json"))["samples"][0]["tokens"]


@torch.no_grad()
def check_prompt(name, folder, tokenizer, V):
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    used = min(V, len(tokenizer))
    for prompt in ("Hello there", texts_of(tokenizer, V, 3)[:60]):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        # numbers without a token are never drawn here
        theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=ENDLESS, do_sample=False, pad_token_id=0, suppress_tokens=list(range(used, V)) or None)
        words = ["--tokenizer", "gpt2-eot"] if is_plain_gpt2(name) else []
        same(f"continuation of {prompt!r}", continuation(folder, prompt, *words), theirs[0, ids.shape[1] :].tolist())


def check_end(folder, tokenizer, V, work):
    """A model that always draws one token stops there only if the token ends a text."""
    ends = [end for end in ends_of(folder) if end < V] or [tokenizer.eos_token_id]
    for token in [end for end in ends if end is not None and end < V] + [65]:
        always = work / f"always{token}"
        shutil.copytree(folder, always)
        model = GPT2LMHeadModel.from_pretrained(folder)
        with torch.no_grad():
            model.transformer.ln_f.weight.fill_(0), model.transformer.ln_f.bias.fill_(1)
            model.transformer.wte.weight.fill_(0)
            model.transformer.wte.weight[token] = 1
        kept = {name: (folder / name).read_bytes() for name in ("config.json", "generation_config.json") if (folder / name).exists()}
        model.save_pretrained(always)
        (always / "generation_config.json").unlink(missing_ok=True)
        for file, content in kept.items():
            (always / file).write_bytes(content)
        same(f"text of token {token}", continuation(always, "Hello"), [token] * (1 if token in ends else ENDLESS))


def ids_in(folder):
    found = {}
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        found |= {f"{name}: {key}": content[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if content.get(key) is not None}
    return found


def check_saved(name, folder, saved, tokenizer, V):
    again = AutoTokenizer.from_pretrained(saved)
    texts = [EXTRA, texts_of(tokenizer, V, 4)]
    for what in (len, lambda t: [t(text).input_ids for text in texts], lambda t: (t.bos_token, t.eos_token, t.pad_token, t.unk_token), lambda t: t.chat_template):
        same(f"{saved.name}: tokenizer", what(again), what(tokenizer))
    if not is_plain_gpt2(name):
        for file in COMPANIONS:
            if (folder / file).exists():
                same(f"{saved.name}: {file}", (saved / file).read_bytes(), (folder / file).read_bytes())
    ours = ids_in(saved)
    for key, value in ids_in(folder).items():
        ends = value if isinstance(value, list) else [value]
        if all(end < V for end in ends):
            same(f"{saved.name}: {key}", ours.get(key), value)
    ends = [end for end in ends_of(folder) if end < V] or [tokenizer.eos_token_id]
    if ends[0] is not None and ends[0] < V:
        same(f"{saved.name}: ends", ends_of(saved), ends)


def check_folder(name, build, work):
    folder = work / "model"
    build(folder)
    tokenizer, V = AutoTokenizer.from_pretrained(folder), json.loads((folder / "config.json").read_text())["vocab_size"]
    tokens = check_text(name, folder, tokenizer, V, work)
    check_prompt(name, folder, tokenizer, V)
    check_end(folder, tokenizer, V, work)
    run("convert", folder, "--format", "hf", "--out", work / "converted")
    (work / "long.txt").write_text((ROOT / "data/wikitext2_valid.txt").read_text()[:4000])
    run("train_gpt2", "--init-from", folder, "--train-data", work / "long.txt", "--seq-len", 32, "--batch-size", 1, "--steps", 1, "--val-every", 0,
        "--sample-every", 0, "--out", work / "run")  # fmt: skip
    run("train_gpt2", "--resume", work / "run", "--steps", 2)
    for saved in (work / "converted", work / "run/checkpoints/step_00000002"):
        check_saved(name, folder, saved, tokenizer, V)
    return f"ok ({tokens} tokens of text, {len(tokenizer)} tokens in all, {V} rows)"


def main():
    failed = False
    for name, build in FOLDERS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as work:
            try:
                result = check_folder(name, build, pathlib.Path(work))
            except Different as difference:
                failed, result = True, f"DIFFERENT: {difference}"
            print(f"{name}: {result}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
