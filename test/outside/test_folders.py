#!/usr/bin/env python3
"""Folders of tokenizers that transformers and tokenizers make: our programs and transformers do the same with each.

dev/check_outside.sh runs this; one folder alone: build/outside/bin/python3 test/outside/test_folders.py -k "own, digits"
For each folder, which also holds a small GPT-2:
  text     ./tokenize: the tokens of two texts with every added token, and the token between them
  prompt   ./generate_gpt2 --greedy: the tokens after tokenizer(prompt), which agree only if the prompt's tokens do
  end      the same with a model that always draws one of its ends of text, and with one that never does
  saved    AutoTokenizer, config.json and generation_config.json of a checkpoint and of ./convert's folder; the tokenizer's files byte for byte
With transformers 5.24.0 and tokenizers 0.23.3 all agree.
"""
import json
import pathlib
import random
import shutil
import tempfile
import unittest

import torch
from outside import DATA, gpt2_files, gpt2_tokenizer, run, tokens_of  # beside this file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

CONTEXT, ENDLESS = 128, 6
COMPANIONS = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja"]
EXTRA = "word 12 345 the theatre naïve 語 \n\n  x's <|user|>hi <|user|> <|bot|>\tyo <pad><mask>  <mask>y remdesivir remdesivirs in  Go_Go Go!"


# ----------------------------------------------------------------------------------------------------
# tokenizers and models


def write(folder, **files):
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def own(pre=None, post=None, special=("<s>", "<pad>", "</eos>"), size=600):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre or pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((DATA / "wikitext2_valid.txt").read_text().splitlines()[:600], trainer)
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
        gpt2_files(folder)
        write(folder, **files)
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
    "gpt2": folder_of(gpt2_tokenizer),
    "gpt2, pad is end": folder_of(lambda: gpt2_tokenizer(pad_token="<|endoftext|>")),
    "gpt2, pad, user, bot": folder_of(lambda: with_tokens(gpt2_tokenizer(pad_token="<pad>"), USER, BOT)),
    "gpt2, other begin and end": folder_of(lambda: with_tokens(gpt2_tokenizer(bos_token="<|user|>", eos_token="<|bot|>", pad_token="<pad>"), "remdesivir"),
                                           ids=dict(bos_token_id=50257, eos_token_id=50258, pad_token_id=50259)),
    "gpt2, lstrip": folder_of(lambda: gpt2_tokenizer(mask_token=AddedToken("<mask>", lstrip=True, special=True))),
    "gpt2, rstrip": folder_of(lambda: with_tokens(gpt2_tokenizer(), AddedToken("<mask>", rstrip=True))),
    "gpt2, both strips": folder_of(lambda: with_tokens(gpt2_tokenizer(), AddedToken("<mask>", rstrip=True, lstrip=True, normalized=False))),
    "gpt2, single words": folder_of(lambda: with_tokens(gpt2_tokenizer(), AddedToken("remdesivir", single_word=True), AddedToken("Go", single_word=True))),
    "gpt2, words": folder_of(lambda: with_tokens(gpt2_tokenizer(), "remdesivir", "in", "ï", "語 ")),
    "gpt2, spaces": folder_of(lambda: with_tokens(gpt2_tokenizer(), AddedToken("  ", normalized=False), AddedToken("\n\n", normalized=False), AddedToken("\t"))),
    "gpt2, longest of several": folder_of(lambda: with_tokens(gpt2_tokenizer(), "<|us", USER, AddedToken("er|>hi"), AddedToken("the", normalized=False), "theatre")),
    "gpt2, prefix space": folder_of(lambda: gpt2_tokenizer(add_prefix_space=True)),
    "gpt2, prefix space, tokens": folder_of(lambda: with_tokens(gpt2_tokenizer(add_prefix_space=True), USER, BOT, AddedToken("remdesivir"))),
    "gpt2, chat template": folder_of(lambda: chat(with_tokens(gpt2_tokenizer(), USER))),
    "gpt2, not resized": folder_of(lambda: gpt2_tokenizer(pad_token="<pad>"), V=50257),
    "gpt2, padded to 64": folder_of(lambda: with_tokens(gpt2_tokenizer(pad_token="<pad>"), USER, BOT), V=50304),
    "gpt2, special tokens split": folder_of(lambda: with_tokens(gpt2_tokenizer(split_special_tokens=True), USER, "remdesivir")),
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


def ends_of(folder):
    """The tokens that end the model's texts."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            ends = json.loads((folder / name).read_text()).get("eos_token_id")
            if ends is not None:
                return ends if isinstance(ends, list) else [ends]
    return []


def ids_in(folder):
    found = {}
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        found |= {f"{name}: {key}": content[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if content.get(key) is not None}
    return found


def continuation(folder, prompt, *words):
    options = ["--prompt", prompt, "--greedy", "--max-tokens", ENDLESS, "--dtype", "fp32", "--json"]
    return json.loads(run("generate_gpt2", folder, *words, *options))["samples"][0]["tokens"]


class Folders(unittest.TestCase):
    maxDiff = None

    def check(self, name, build):
        with tempfile.TemporaryDirectory() as work:
            self.work = pathlib.Path(work)
            self.folder = self.work / "model"
            build(self.folder)
            self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
            self.V = json.loads((self.folder / "config.json").read_text())["vocab_size"]
            # Without this word <|endoftext|> in a text would be ordinary text to our programs.
            self.plain_gpt2 = name in ("gpt2", "slow files")
            self.ends = [end for end in ends_of(self.folder) if end < self.V] or [self.tokenizer.eos_token_id]
            for part in (self.check_text, self.check_prompt, self.check_end, self.check_saved):
                with self.subTest(part.__name__):
                    part()

    def end_between(self):
        """The token between two texts: the tokenizer's, else the model's."""
        tokenizer = self.tokenizer
        if tokenizer.eos_token_id is not None and not (tokenizer.eos_token == "<|endoftext|>" and tokenizer.eos_token_id >= self.V):
            return [tokenizer.eos_token_id]
        return ends_of(self.folder)[:1]

    def check_text(self):
        texts = [texts_of(self.tokenizer, self.V, 1), texts_of(self.tokenizer, self.V, 2)]
        first, second = (self.tokenizer(text, add_special_tokens=False).input_ids for text in texts)
        self.assertEqual(tokens_of("gpt2-eot" if self.plain_gpt2 else self.folder, *texts), [*first, *self.end_between(), *second])

    @torch.no_grad()
    def check_prompt(self):
        model = GPT2LMHeadModel.from_pretrained(self.folder).eval()
        words = ["--tokenizer", "gpt2-eot"] if self.plain_gpt2 else []
        unused = list(range(min(self.V, len(self.tokenizer)), self.V))  # numbers without a token are never drawn here
        for prompt in ("Hello there", texts_of(self.tokenizer, self.V, 3)[:60]):
            ids = self.tokenizer(prompt, return_tensors="pt").input_ids
            theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=ENDLESS, do_sample=False, pad_token_id=0, suppress_tokens=unused or None)
            self.assertEqual(continuation(self.folder, prompt, *words), theirs[0, ids.shape[1] :].tolist(), prompt)

    def check_end(self):
        """A model that always draws one token stops there only if the token ends a text."""
        for token in [end for end in self.ends if end is not None and end < self.V] + [65]:
            always = self.work / f"always{token}"
            shutil.copytree(self.folder, always)
            model = GPT2LMHeadModel.from_pretrained(self.folder)
            with torch.no_grad():
                model.transformer.ln_f.weight.fill_(0), model.transformer.ln_f.bias.fill_(1)
                model.transformer.wte.weight.fill_(0)
                model.transformer.wte.weight[token] = 1
            model.save_pretrained(always)
            (always / "generation_config.json").unlink(missing_ok=True)
            for name in ("config.json", "generation_config.json"):
                if (self.folder / name).exists():
                    shutil.copy(self.folder / name, always)
            self.assertEqual(continuation(always, "Hello"), [token] * (1 if token in self.ends else ENDLESS))

    def check_saved(self):
        run("convert", self.folder, "--format", "hf", "--out", self.work / "converted")
        text, trained = self.work / "long.txt", self.work / "run"
        text.write_text((DATA / "wikitext2_valid.txt").read_text()[:4000])
        run("train_gpt2", "--init-from", self.folder, "--train-data", text, "--seq-len", 32, "--batch-size", 1, "--steps", 1, "--val-every", 0,
            "--sample-every", 0, "--out", trained)  # fmt: skip
        run("train_gpt2", "--resume", trained, "--steps", 2)
        for saved in (self.work / "converted", trained / "checkpoints" / "step_00000002"):
            again, texts = AutoTokenizer.from_pretrained(saved), [EXTRA, texts_of(self.tokenizer, self.V, 4)]
            for what in (len, lambda t: [t(text).input_ids for text in texts], lambda t: (t.bos_token, t.eos_token, t.pad_token, t.unk_token), lambda t: t.chat_template):
                self.assertEqual(what(again), what(self.tokenizer), saved.name)
            for file in () if self.plain_gpt2 else COMPANIONS:
                if (self.folder / file).exists():
                    self.assertEqual((saved / file).read_bytes(), (self.folder / file).read_bytes(), f"{saved.name}: {file}")
            ours = ids_in(saved)
            for key, value in ids_in(self.folder).items():
                if all(end < self.V for end in (value if isinstance(value, list) else [value])):
                    self.assertEqual(ours.get(key), value, f"{saved.name}: {key}")
            if self.ends[0] is not None and self.ends[0] < self.V:
                self.assertEqual(ends_of(saved), self.ends, saved.name)


for name, build in FOLDERS.items():
    setattr(Folders, f"test_{name}", lambda self, name=name, build=build: self.check(name, build))


class WholeTexts(unittest.TestCase):
    def test_tokenizers_of_the_dumps(self):
        """Every text in data/ by ./tokenize and by tokenizers; CI compares strings (dev/reference_tokenizer.py)."""
        for file in sorted((DATA.parent / "test" / "reference" / "bpe").glob("*.json")):
            tokenizer = Tokenizer.from_file(str(file))
            for text in sorted(DATA.glob("*.txt")):
                with self.subTest(f"{file.name}, {text.name}"):
                    self.assertEqual(tokens_of(file, text.read_text()), tokenizer.encode(text.read_text(), add_special_tokens=False).ids)


if __name__ == "__main__":
    unittest.main()
