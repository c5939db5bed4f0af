#!/usr/bin/env python3
"""scripts/recipe.sh fits the published recipes to any GPU without changing the tokens of a step; overfit.sh and finetune*.sh run.

TRAIN_PROGRAM and TOKENIZE_PROGRAM name the programs to test with; nvidia-smi is simulated.
"""
import json
import math
import os
import re
import shlex
import shutil
import struct
import subprocess
import unittest

import numpy

from common import ROOT, FolderTest, metrics  # beside this file

SCRIPTS = ROOT / "scripts"
BUILD = ROOT / "build" / "release"
PROGRAMS = {name: os.environ.get(name, str(BUILD / program)) for name, program in (("TRAIN_PROGRAM", "train_gpt2"), ("TOKENIZE_PROGRAM", "tokenize"))}

# recipe: model, sequence length, tokens of a step, published micro-batch, steps, smallest card in GiB
RECIPES = {
    "gpt2_124M": ("d12", 1024, 524288, 64, 19073, 8),
    "gpt2_350M": ("d24", 1024, 524288, 64, 60000, 8),
    "gpt2_774M": ("d36", 1024, 524288, 32, 286102, 24),
    "gpt2_1558M": ("d48", 1024, 1048576, 16, 32000, 40),
    "gpt3_125M": ("gpt3:c768", 2048, 524288, 32, 572204, 8),
    "nanochat_d12": ("nanochat:d12", 1024, 524288, 64, 3500, 8),
}


RECIPES_FOLDER = ROOT / "recipes"


def recipe_options(recipe):
    lines = [re.sub(r"\s+#.*", "", line) for line in (RECIPES_FOLDER / f"{recipe}.cfg").read_text().splitlines()]
    return {"--" + name: value for name, value in (line.split(" = ") for line in lines if line and line[0] != "#")}


class Recipes(FolderTest):
    def run_script(self, script, *arguments, gpus=()):
        """Runs a script. gpus: (name, MiB) of those that nvidia-smi lists."""
        lines = "".join(f"echo '{memory}, {name}'\n" for name, memory in gpus)
        self.fake("nvidia-smi", "#!/bin/sh\n" + (lines or "echo 'NVIDIA-SMI has failed'; exit 9\n"))
        environment = {**os.environ, **PROGRAMS, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        command = [SCRIPTS / f"{script}.sh", *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=self.folder)
        # On a slow machine tokenize also reports its progress.
        result.stderr = re.sub(r"(?m)^tokenize: \d+ thousand tokens\n", "", result.stderr)
        return result

    def dry_run(self, recipe, *arguments, gpus=()):
        """The options of the run by name (those of the command over the recipe's), and the whole output."""
        result = self.run_script("recipe", recipe, "--dry-run", *arguments, gpus=gpus)
        self.assertEqual(result.returncode, 0, result.stderr)
        command = shlex.split(re.search(r"^command: (.*)$", result.stdout, re.M)[1])
        launcher = str(SCRIPTS / "run_multi_gpu.sh")
        self.assertEqual(command[0], launcher if "--processes" in command else PROGRAMS["TRAIN_PROGRAM"])
        self.assertEqual(len(command) % 2, 1, command)
        options = dict(zip(command[1::2], command[2::2]))
        self.assertEqual(2 * len(options) + 1, len(command), "an option is given twice")
        self.assertEqual(options["--config"], str(RECIPES_FOLDER / f"{recipe}.cfg"))
        return {**recipe_options(recipe), **options}, result

    def assert_refused(self, expected, script, *arguments, gpus=()):
        self.assert_one_line(self.run_script(script, *arguments, gpus=gpus), expected)

    def test_the_total_batch_stays_on_every_card(self):
        for recipe, (model, seq_len, total, most, steps, smallest) in RECIPES.items():
            batch_sizes = []
            for gib in (8, 12, 24, 40, 80):
                with self.subTest(recipe=recipe, gib=gib):
                    gpus = [("NVIDIA Some Card", gib * 1024)]
                    if gib < smallest:
                        self.assert_refused("not even one sequence fits", "recipe", recipe, "--dry-run", gpus=gpus)
                        continue
                    options, result = self.dry_run(recipe, gpus=gpus)
                    batch_size = int(options["--batch-size"])
                    self.assertEqual((options["--model"], int(options["--seq-len"]), int(options["--steps"])), (model, seq_len, steps))
                    self.assertEqual(int(options["--total-batch"]), total)
                    self.assertEqual(total % (batch_size * seq_len), 0)
                    self.assertLessEqual(batch_size, most)
                    self.assertEqual(int(options["--val-steps"]) * batch_size * seq_len, 20 * total)
                    self.assertEqual(options.get("--skip-loss-z"), "7" if recipe == "gpt3_125M" else None)
                    batch_sizes.append(batch_size)
                    # The program accepts the whole command, and reports that it fits.
                    plan = self.program_plans(options, 1, f"{gib - 1}G")
                    self.assertIn(f"step: {total} tokens = {batch_size} x {seq_len} x {total // batch_size // seq_len} micro-step", plan.stdout)
            self.assertEqual(batch_sizes, sorted(batch_sizes))
            self.assertEqual(batch_sizes[-1], most)  # as published, on 80 GB

    def test_muons_recipe_fits_the_same_cards_as_adamws(self):
        for gib in (8, 24, 80):
            gpus = [("NVIDIA Some Card", gib * 1024)]
            options, _ = self.dry_run("gpt2_124M_muon", gpus=gpus)
            self.assertEqual((options["--model"], options["--optimizer"], options["--total-batch"]), ("d12", "muon", "524288"))
            self.assertEqual(options["--batch-size"], self.dry_run("gpt2_124M", gpus=gpus)[0]["--batch-size"])
            plan = self.program_plans(options, 1, f"{gib - 1}G").stdout
            self.assertIn(f"step: 524288 tokens = {options['--batch-size']} x 1024 x ", plan)
            self.assertIn("\nrun: 6200 steps, 3.3 billion tokens\n", plan)
        # Several GPUs divide its matrices among them.
        options, _ = self.dry_run("gpt2_124M_muon", gpus=[("NVIDIA H100 80GB HBM3", 81920)] * 8)
        self.assertEqual((options["--processes"], options["--zero"]), ("8", "1"))
        self.assertIn("\nmuon: each matrix is updated by one of 8 processes; ", self.program_plans(options, 8, "79G").stdout)

    def test_the_small_recipes_are_the_programs_defaults_and_these_with_muon(self):
        usual = subprocess.run([PROGRAMS["TRAIN_PROGRAM"], "--plan"], capture_output=True, text=True)
        for name, steps in (("shakespeare_gpt2", "2000"), ("shakespeare_muon", "500")):
            plan = subprocess.run([PROGRAMS["TRAIN_PROGRAM"], "--config", RECIPES_FOLDER / f"{name}.cfg", "--plan"], capture_output=True, text=True)
            self.assertEqual((plan.returncode, plan.stderr), (0, ""))
            self.assertIn(f"\nrun: {steps} steps, ", plan.stdout)
            for line in ("model", "step"):
                self.assertEqual(re.search(f"^{line}: .*", plan.stdout, re.M)[0], re.search(f"^{line}: .*", usual.stdout, re.M)[0])
            if name == "shakespeare_gpt2":
                # How much memory is free changes from one run to the next.
                first, second = (re.sub(r"[0-9.]+ [MGT]iB free", "free", output) for output in (plan.stdout, usual.stdout))
                self.assertEqual(first, second)
        self.assertEqual(recipe_options("shakespeare_muon")["--optimizer"], "muon")

    def test_the_quickstart_is_a_nanochat_unless_another_model_is_given(self):
        tree, tools = self.folder / "tree", self.folder / "tools"
        for name in ("scripts", "recipes"):
            shutil.copytree(ROOT / name, tree / name)
        (tree / "train_gpt2").symlink_to(PROGRAMS["TRAIN_PROGRAM"])
        tools.mkdir()
        for name, code in (("make", 0), ("nvidia-smi", 9)):
            (tools / name).write_text(f"#!/bin/sh\nexit {code}\n")
            (tools / name).chmod(0o755)
        for words, model, steps in (
            ("", "nanochat, 4 layers", 1000),
            ("-x 5", "nanochat, 4 layers", 5),
            ("--layers=2 --tokens 7680", "nanochat, 2 layers", 10),
            ("--config recipes/shakespeare_gpt2.cfg", "4 layers", 2000),
            ("-e d6 --steps 3", "6 layers", 3),
        ):
            command = [tree / "scripts" / "quickstart.sh", *words.split(), "--plan"]
            environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
            result = subprocess.run(command, capture_output=True, text=True, env=environment)
            self.assertEqual((result.returncode, result.stderr), (0, ""), words)
            self.assertIn(f"\nmodel: {model}, ", result.stdout, words)
            self.assertIn(f"\nrun: {steps} steps, ", result.stdout, words)

    def test_the_small_recipe_of_nanochat_learns_in_500_steps(self):
        """The bound is 0.04 nats above what a prototype in PyTorch reached."""
        run = self.folder / "run"
        command = [PROGRAMS["TRAIN_PROGRAM"], "--config", RECIPES_FOLDER / "shakespeare_nanochat.cfg", "--steps", 500, "--out", run, "--sample-every", 0]
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        last = metrics(run, "val")[-1]
        self.assertEqual(last["step"], 500)
        self.assertLess(last["loss"], 1.80)
        self.assertAlmostEqual(last["bits_per_byte"], last["loss"] / math.log(2), places=6)

    def test_several_gpus_share_the_step(self):
        card = ("NVIDIA A100-SXM4-40GB", 40960)
        alone, _ = self.dry_run("gpt2_124M", gpus=[card])
        speed = None
        for count, micro_steps in ((2, 4), (4, 2), (8, 1), (16, 1)):
            options, result = self.dry_run("gpt2_124M", gpus=[card] * count)
            self.assertEqual(options["--processes"], str(count))
            self.assertEqual(options["--zero"], "1")
            self.assertEqual(options["--total-batch"], alone["--total-batch"])
            self.assertEqual(int(options["--batch-size"]) * 1024 * count * micro_steps, 524288)
            self.assertEqual(int(options["--val-steps"]) * int(options["--batch-size"]) * 1024, 20 * 524288)
            self.assertEqual(result.stderr, "")
            self.assertIn(f"gpu: {count} x {card[0]}, 40 GiB\n", result.stdout)
            self.assertIn(f" x 1024 x {count} processes x {micro_steps} micro-step", result.stdout)
            total = int(re.search(r"at (\d+) tokens/s", result.stdout)[1]) / count
            self.assertAlmostEqual(speed or total, total, delta=1)
            speed = total
            self.program_plans(options, count, "39G")
        # 512 sequences do not divide among 3 or 7.
        for there, used in ((3, 2), (7, 4)):
            options, result = self.dry_run("gpt2_124M", gpus=[card] * there)
            self.assertEqual(options["--processes"], str(used))
            expected = f"recipe: the sequences of a step do not divide among {there} GPUs: {used} are used\n"
            self.assertEqual(result.stderr, expected)
        # Given options take precedence, and the smallest card decides.
        self.assertEqual(self.dry_run("gpt2_124M", "--zero", 0, gpus=[card] * 2)[0]["--zero"], "0")
        mixed, _ = self.dry_run("gpt2_124M", gpus=[card, ("NVIDIA GeForce RTX 3080", 10240)])
        self.assertLess(int(mixed["--batch-size"]), int(alone["--batch-size"]))

    def program_plans(self, options, count, memory):
        """The program accepts the whole command for this number of processes."""
        arguments = [word for pair in options.items() for word in pair if pair[0] not in ("--processes", "--config")]
        command = [PROGRAMS["TRAIN_PROGRAM"], *arguments, "--plan", "--device-memory", memory, "--world-size", str(count)]
        plan = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        return plan

    def test_the_program_alone_takes_a_recipe(self):
        for recipe, (_, seq_len, total, most, steps, _) in RECIPES.items():
            for batch_size in ([], ["--batch-size", "auto"], ["-b", "4"]):
                command = [PROGRAMS["TRAIN_PROGRAM"], "--config", RECIPES_FOLDER / f"{recipe}.cfg", *batch_size, "--plan", "--device-memory", "79G"]
                plan = subprocess.run(command, capture_output=True, text=True)
                self.assertEqual(plan.returncode, 0, plan.stderr)
                self.assertIn(f"\nrun: {steps} steps, ", plan.stdout)
                fits = int(re.search(rf"^step: {total} tokens = (\d+) x {seq_len} x ", plan.stdout, re.M)[1])
                self.assertTrue(fits == (4 if "4" in batch_size else most) or ("auto" in batch_size and fits > most), plan.stdout)

    def test_options_stand_for_a_machine_that_is_not_there(self):
        listed, result = self.dry_run("gpt2_124M", gpus=[("NVIDIA H100 80GB HBM3", 81920)])
        given, by_options = self.dry_run("gpt2_124M", "--gpus", 1, "--gpu", "NVIDIA H100 80GB HBM3", "--memory", "80G")
        self.assertEqual(given, listed)
        self.assertEqual(by_options.stdout, result.stdout)

    def test_the_time_is_an_estimate_or_from_a_speed(self):
        def hours(*arguments, gpu):
            _, result = self.dry_run("gpt2_124M", *arguments, gpus=[(gpu, 81920)])
            found = re.search(r"^run: 19073 steps, 10.0 billion tokens\ntime: ([0-9.]+) hours at ([0-9]+) tokens/s \((.*)\)$", result.stdout, re.M)
            self.assertTrue(found, result.stdout)
            return float(found[1]), int(found[2]), found[3]

        time, speed, source = hours(gpu="NVIDIA H100 80GB HBM3")
        # 0.38 * 989.4e12 / (6 N + 6 L C T) of 124M
        self.assertEqual(speed, round(0.38 * 989.4e12 / (6 * 124439808 + 6 * 12 * 768 * 1024)))
        self.assertAlmostEqual(time, 19073 * 524288 / speed / 3600, delta=0.05)
        self.assertIn("an estimate, not measured", source)
        self.assertEqual(hours("--tokens-per-second", 100000, gpu="Any")[1:], (100000, "as given"))
        _, result = self.dry_run("gpt2_124M", gpus=[("Any", 81920)])
        self.assertIn("\nrun: 19073 steps, ", result.stdout)
        self.assertNotIn("time:", result.stdout)

    def test_what_a_person_says_counts(self):
        gpus = [("NVIDIA A100-SXM4-40GB", 40960)]
        options, result = self.dry_run("gpt2_124M", "--train-data", "/x/y_*.bin", "--out", "/o", "--lr", "1e-3", "--steps", 100, gpus=gpus)
        self.assertEqual((options["--lr"], options["--steps"], options["--out"], options["--train-data"]), ("1e-3", "100", "/o", "/x/y_*.bin"))
        self.assertIn("\nrun: 100 steps, 52.429 million tokens\n", result.stdout)
        for words in (["-x", 100], ["-x100"], ["--steps=100"], ["--", "--steps=100"]):
            result = self.run_script("recipe", "gpt2_124M", "--dry-run", *words, gpus=gpus)
            self.assertIn("\nrun: 100 steps, ", result.stdout)
        # Another step, and what the script would choose.
        options, result = self.dry_run("gpt2_124M", "--total-batch", 65536, "--batch-size", 16, "--recompute", "block", gpus=gpus)
        self.assertIn("\nstep: 65536 tokens = 16 x 1024 x 4 micro-steps\n", result.stdout)
        options, _ = self.dry_run("gpt2_124M", "--val-steps", 7, gpus=[("Any", 12288)])
        self.assertEqual((options["--batch-size"], options["--val-steps"]), ("16", "7"))
        self.assert_refused("--config is given 2 times", "recipe", "gpt2_124M", "--config", RECIPES_FOLDER / "overfit.cfg", gpus=gpus)
        self.assert_refused("--device-memory is given 2 times", "recipe", "gpt2_124M", "--device-memory", "9G", gpus=gpus)
        self.assert_refused("--nonsense is not an option", "recipe", "gpt2_124M", "--nonsense", 3, gpus=gpus)
        self.assert_refused("the run needs", "recipe", "gpt2_124M", "--batch-size", 512, gpus=gpus)

    def test_tokens_and_epochs_count_instead_of_steps(self):
        gpus = [("NVIDIA A100-SXM4-40GB", 40960)]
        _, result = self.dry_run("gpt2_124M", "--tokens", 2 * 10**9, gpus=gpus)
        self.assertIn("\nrun: 3815 steps, 2.0 billion tokens\n", result.stdout)
        _, result = self.dry_run("gpt2_124M", "--epochs", 2, gpus=gpus)
        self.assertIn("\nrun: 2 epochs of the training data\n", result.stdout)

    def test_wrong_use_is_one_line(self):
        self.assert_refused("nvidia-smi lists no GPU", "recipe", "gpt2_124M")
        self.assert_refused("expected a recipe", "recipe")
        self.assert_refused("there is no recipe gpt2; expected a file or one of gpt2_124M", "recipe", "gpt2")
        gpus = [("NVIDIA A100-SXM4-40GB", 40960)]
        for arguments, expected in (
            (["--gpu"], "--gpu needs a value"),
            (["--gpus", "0"], "--gpus 0; expected a number from 1"),
            (["--gpus", "9" * 20], f"--gpus {'9' * 20}; expected a number from 1"),
            (["--memory", "9" * 20 + "G"], f"--memory {'9' * 20}G; expected a size like 24G"),
            (["--dry-run", "--steps", "9" * 20], "--steps"),
            (["--memory", "24"], "--memory 24; expected a size like 24G"),
            (["--tokens-per-second", "0"], "--tokens-per-second: 0; expected a number above 0"),
            (["--batch", "3"], "--batch is not an option"),
        ):
            self.assert_refused(expected, "recipe", "gpt2_124M", *arguments, gpus=gpus)
        for script in ("recipe", "finetune", "finetune_shakespeare", "overfit", "quickstart"):
            result = self.run_script(script, "--help")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn(f"  scripts/{script}.sh ", result.stdout)

    def test_missing_data_are_named_with_what_makes_them(self):
        arguments = ("gpt2_124M", "--model", "gpt3:c384", "--seq-len", 64, "--batch-size", 1)
        result = self.run_script("recipe", *arguments, gpus=[("NVIDIA A100-SXM4-40GB", 40960)])
        self.assertEqual(result.returncode, 2)
        self.assertIn("data: made by dev/data/fineweb.py --type classic --size 10B\n", result.stdout)
        missing = f"'dev/data/fineweb10B/fineweb_train_*.bin' in {self.folder}"
        self.assertEqual(result.stderr, f"train_gpt2: no file matches {missing}; expected token shards or texts\n")

    def test_overfit_reaches_zero_with_a_small_model_and_fails_when_it_does_not(self):
        small = ["--layers", 1, "--heads", 2, "--channels", 192, "--context", 64, "--vocab", 50257, "--lr", "2e-3"]
        result = self.run_script("overfit", *small, "--steps", 56, "--out", self.folder / "run")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"overfit: loss 0\.00\d+ at the end; below 0.01 first at step \d+\n$")
        result = self.run_script("overfit", *small, "-x3", "--dtype=fp32", "-o", self.folder / "short")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"^overfit: the loss is \d+\.\d+ at the end; expected less than 0.01\n$")

    def test_overfit_has_its_tokenizers_vocabulary_for_any_sizes(self):
        result = self.run_script("overfit", "--layers", 1, "--heads", 2, "--channels", 16, "--plan")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertRegex(result.stdout, r"(?m)^model: 1 layers.* 50257 ")

    def write_hugging_face_model(self, layers=1, heads=2, channels=16, context=32, vocab=50257):
        """Writes a folder as transformers would save a GPT-2 of random weights."""
        random = numpy.random.default_rng(5)
        C = channels
        shapes = {"transformer.wte.weight": (vocab, C), "transformer.wpe.weight": (context, C)}
        for layer in range(layers):
            block = f"transformer.h.{layer}."
            shapes |= {block + f"ln_{i}.{kind}": (C,) for i in (1, 2) for kind in ("weight", "bias")}
            for name, inputs, outputs in (("attn.c_attn", C, 3 * C), ("attn.c_proj", C, C), ("mlp.c_fc", C, 4 * C), ("mlp.c_proj", 4 * C, C)):
                shapes |= {block + name + ".weight": (inputs, outputs), block + name + ".bias": (outputs,)}
        shapes |= {"transformer.ln_f.weight": (C,), "transformer.ln_f.bias": (C,)}
        header, data = {"__metadata__": {"format": "pt"}}, b""
        for name, shape in shapes.items():
            values = (random.normal(0, 0.02, shape) + ("ln" in name and name.endswith("weight"))).astype("<f4").tobytes()
            header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(values)]}
            data += values
        model = self.folder / "model"
        model.mkdir()
        text = json.dumps(header).encode()
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": layers, "n_head": heads, "n_embd": C, "n_positions": context,
                  "n_ctx": context, "vocab_size": vocab, "_name_or_path": "gpt2", "layer_norm_epsilon": 1e-5}  # fmt: skip
        (model / "config.json").write_text(json.dumps(config))
        return model

    def test_finetuning_starts_from_a_hugging_face_folder(self):
        run = self.folder / "run"
        options = ["--steps", 2, "--val-every", 0, "--sample-every", 0]
        model = self.write_hugging_face_model()
        result = self.run_script("finetune_shakespeare", model, "--out", run, *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        options = metrics(run, "run")[0]["options"]
        self.assertEqual((options["lr"], options["schedule"], options["total-batch"], options["steps"]), (3e-5, "constant", 32 * 32, 2))
        losses = [record["loss"] for record in metrics(run)]
        self.assertEqual(len(losses), 2)
        self.assertTrue(all(10.5 < loss < 11.2 for loss in losses), losses)  # ln 50257 = 10.82
        plan = self.run_script("finetune_shakespeare", model, "--plan")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assert_refused("expected a model", "finetune_shakespeare")
        self.assert_refused("/none", "finetune_shakespeare", "/none")

    def test_finetuning_on_an_own_text_keeps_the_best_checkpoint(self):
        model, text, run = self.write_hugging_face_model(vocab=256), self.folder / "own text.md", self.folder / "run"
        text.write_text("The quick brown fox jumps over the lazy dog.\n" * 40)
        result = self.run_script("finetune", model, text, "--out", run, "--lr=1e-2", "--tokenizer", "byte")
        self.assertEqual(result.returncode, 0, result.stderr)
        options = metrics(run, "run")[0]["options"]
        # 1800 bytes are 56 sequences of 32: 7 of them a step.
        self.assertEqual((options["lr"], options["warmup"], options["total-batch"], options["steps"]), (1e-2, 0, 7 * 32, 20))
        losses = {record["step"]: record["loss"] for record in metrics(run, "val")}
        self.assertEqual(sorted(losses), [5, 10, 15, 20])
        self.assertLess(losses[20], losses[5])
        kept = {int(folder.name[5:]) for folder in (run / "checkpoints").iterdir()}
        self.assertLessEqual({min(losses, key=losses.get), 20}, kept)

    def test_a_short_text_is_cut_into_short_sequences(self):
        model, text = self.write_hugging_face_model(vocab=256), self.folder / "short.txt"
        text.write_text("To be, or not to be. " * 10)  # 210 bytes
        result = self.run_script("finetune", model, text, "--out", self.folder / "run", "--steps", 1)
        self.assertIn("--tokenizer none cannot tokenize", result.stderr)  # the model's tokenizer is not guessed by its size
        result = self.run_script("finetune", model, text, "--out", self.folder / "run", "--steps", 1, "--tokenizer=byte")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("= 1 x 16", result.stdout)

    def test_wrong_use_of_finetune_is_one_line(self):
        model = self.write_hugging_face_model()
        empty = self.folder / "empty.txt"
        empty.write_text("")
        self.assert_refused("expected a model", "finetune")
        self.assert_refused("expected a text behind the model", "finetune", model)
        self.assert_refused("expected a text behind the model", "finetune", model, "--steps", 3)
        self.assert_refused("/none", "finetune", "/none", SCRIPTS / "finetune.sh")
        self.assert_refused("no file matches", "finetune", model, self.folder / "none.txt")
        self.assert_refused("empty.txt: is 1 text of 0 bytes; expected text to finetune on", "finetune", model, empty)
        self.assert_refused("leave --train-data out", "finetune", model, SCRIPTS / "finetune.sh", "--train-data", "x")


if __name__ == "__main__":
    unittest.main()
