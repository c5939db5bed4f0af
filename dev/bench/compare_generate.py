#!/usr/bin/env python3
"""Compares generate_gpt2 with transformers' generate on the same text, alternating in one run: the ratio of their tokens per second.

    dev/bench/compare_generate.py                       # GPT-2 124M of random weights, 64 tokens of prompt, 128 generated, one sample
    dev/bench/compare_generate.py --samples 8 --json result.json
    dev/bench/compare_generate.py --model d6 --tokens 900

transformers makes the model and saves it to build/bench-models, from where both read it. Both generate greedily, with a cache of keys and
values, exactly --tokens tokens (nothing ends the text). Each PyTorch contender is a process that lives through the whole run and sleeps
while others work. Ours is started anew for every round, and the time that it reports is used: prompt and generation, without loading. All
use the same cores and number of threads. The result is the median over the rounds of new tokens per second, including the prompt's pass,
and the time per token after the prompt. In fp32 the tokens of both must be the same.

PyTorch and transformers are installed into build/pytorch-venv, once; FLATGPT_PYTORCH_VENV names an environment that has them already.
"""
import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import result_file  # noqa: E402
from compare_pytorch import ROOT, SIZES, Worker, enter_environment, processor, progress, reason  # noqa: E402

VOCABULARY, SEED = 50257, 1337
# our contenders: name and options
OURS = {
    "ours fp32": ["--dtype", "fp32"],
    "ours bf16": ["--dtype", "bf16"],
    "ours fp32 int8": ["--dtype", "fp32", "--quantize", "int8"],
    "ours bf16 int8": ["--dtype", "bf16", "--quantize", "int8"],
}
REPORT = re.compile(r"prompt: (\d+) tokens in ([\d.]+) s .*generated: (\d+) tokens in ([\d.]+) s")


def fail(message):
    sys.exit(f"compare_generate: {message}")


def model_folder(arguments):
    """A GPT-2 of random weights, saved by transformers. They are larger than at the start of training, or the text would repeat one word."""
    layers, heads, channels = SIZES[arguments.model]
    folder = ROOT / "build" / "bench-models" / f"{arguments.model}-{arguments.context}"
    if not (folder / "model.safetensors").exists():
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(SEED)
        config = GPT2Config(n_layer=layers, n_head=heads, n_embd=channels, n_positions=arguments.context, initializer_range=0.06)
        GPT2LMHeadModel(config).save_pretrained(folder)
    return str(folder)


def worker(options):
    """transformers' side: generates once for every input line and prints the seconds and the tokens."""
    import torch
    from transformers import GPT2LMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(options["threads"])
    dtype = torch.bfloat16 if options["dtype"] == "bf16" else torch.float32
    model = GPT2LMHeadModel.from_pretrained(options["folder"], dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    prompt = torch.tensor([options["prompt"]] * options["samples"])

    def generate(tokens):
        start = time.perf_counter()
        with torch.no_grad():
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False, use_cache=True, pad_token_id=0)
        return time.perf_counter() - start, out[:, prompt.shape[1] :].tolist()

    for _ in sys.stdin:
        first, _ = generate(1)
        whole, tokens = generate(options["tokens"])
        print(json.dumps(dict(first=first, whole=whole, tokens=tokens)), flush=True)


class Transformers(Worker):
    def __init__(self, options, dtype, environment):
        super().__init__(__file__, f"transformers {dtype}", options | {"dtype": dtype}, environment)

    def run(self):
        try:
            return self.ask()
        except RuntimeError as error:
            fail(f"{self.name}: {error}")


class Ours:
    def __init__(self, options, name, environment):
        self.name, self.options, self.environment = name, options, environment

    def run(self):
        o = self.options
        command = [o["program"], o["folder"], "--tokens", ",".join(map(str, o["prompt"])), "--max-tokens", str(o["tokens"]),
                   "--samples", str(o["samples"]), "--greedy", "--json", *OURS[self.name]]  # fmt: skip
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        report = REPORT.search(result.stderr)
        if result.returncode != 0 or not report:
            fail(f"{self.name}: {reason(result.stderr)}")
        first, rest = float(report[2]), float(report[4])
        return dict(first=first, whole=first + rest, tokens=[sample["tokens"] for sample in json.loads(result.stdout)["samples"]])

    def close(self):
        pass


def measure(contenders, rounds):
    """Runs each contender once to warm up, then the rounds in a rotating order. Returns the answers by name."""
    answers = {contender.name: [] for contender in contenders}
    for round_ in range(rounds + 1):
        for k in range(len(contenders)):
            contender = contenders[(k + round_) % len(contenders)]
            progress(f"round {round_} of {rounds}: {contender.name}")
            answer = contender.run()
            if round_ > 0:
                answers[contender.name].append(answer)
    progress("")
    return answers


def agreement(ours, theirs):
    """The least number over the samples of equal tokens before the first difference."""
    return min(next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), min(len(x), len(y))) for x, y in zip(ours, theirs))


def summary(answers, options):
    new, results = options["samples"] * options["tokens"], {}
    for name, rounds in answers.items():
        rates = [new / r["whole"] for r in rounds]
        step = [(r["whole"] - r["first"]) / (options["tokens"] - 1) * 1e3 for r in rounds]
        results[name] = dict(tokens_per_second=statistics.median(rates), low=min(rates), high=max(rates),
                             prompt_ms=statistics.median(r["first"] for r in rounds) * 1e3, step_ms=statistics.median(step))  # fmt: skip
        reference = answers.get("transformers bf16" if "bf16" in name else "transformers fp32")
        if name in OURS and reference:
            results[name]["agree"] = agreement(rounds[0]["tokens"], reference[0]["tokens"])
            results[name]["ratio"] = results[name]["tokens_per_second"] / statistics.median(new / r["whole"] for r in reference)
    return results


def report(results, tokens):
    row = "{:20}{:>10}{:>18}{:>12}{:>10}{:>9}{:>18}"
    print(row.format("", "tokens/s", "lowest to highest", "prompt ms", "step ms", "ratio", "tokens agree"))
    for name, r in results.items():
        print(row.format(name, f"{r['tokens_per_second']:.1f}", f"{r['low']:.1f} to {r['high']:.1f}", f"{r['prompt_ms']:.1f}", f"{r['step_ms']:.2f}",
                         f"{r['ratio']:.2f}" if "ratio" in r else "", f"{r['agree']} of {tokens}" if "agree" in r else "").rstrip())  # fmt: skip
    print("ratio: tokens/s over those of transformers in the same type")


def save(arguments, results, program, version, threads):
    """Saves the result file for the tables. version: "PyTorch 2.15.0, transformers 5.23"."""
    kept = {name: {key: round(value, 3) for key, value in result.items()} for name, result in results.items()}
    versions = dict(part.split(" ", 1) for part in version.split(", ") if " " in part)
    versions |= {"flatgpt": result_file.our_version(program), "oneDNN": result_file.onednn_version(program)}
    options = {name: getattr(arguments, name) for name in ("model", "context", "prompt_tokens", "tokens", "samples", "rounds")}
    result_file.save(arguments.save, "compare_generate", f"generate-{arguments.model}", threads, versions, options, kept)


def parse_arguments():
    def positive(text):
        if int(text) < 1:
            raise argparse.ArgumentTypeError(f"{text} must be positive")
        return int(text)

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"compare_generate: {message}; --help shows the usage\n")
    parser.add_argument("--model", choices=SIZES, default="d12", help="layers, heads and channels by name (default: %(default)s)")
    parser.add_argument("--context", type=positive, default=1024)
    parser.add_argument("--prompt-tokens", type=positive, default=64)
    parser.add_argument("--tokens", type=positive, default=128, help="generated after the prompt (default: %(default)s)")
    parser.add_argument("--samples", type=positive, default=1, help="generated side by side (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=5, help="(default: %(default)s)")
    parser.add_argument("--threads", type=positive, help="default: one for each core this process may use")
    parser.add_argument("--only", help="a list of contenders, by the start of their names: ours, transformers bf16, ...")
    parser.add_argument("--json", metavar="OUT", help="write the results")
    result_file.add_option(parser)
    arguments = parser.parse_args()
    if arguments.tokens < 2 or arguments.prompt_tokens + arguments.tokens > arguments.context:
        parser.error("--tokens is 2 or more, and prompt and text together at most --context")
    return arguments


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(json.loads(sys.argv[2]))
    arguments = parse_arguments()
    enter_environment("transformers")
    program = ROOT / "generate_gpt2"
    if not program.exists():
        fail("generate_gpt2 is not built; please run: make")
    cores = sorted(os.sched_getaffinity(0))
    threads = arguments.threads or len(cores)
    os.sched_setaffinity(0, cores[:threads])  # inherited by every contender
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    prompt = random.Random(SEED).choices(range(VOCABULARY - 1), k=arguments.prompt_tokens)
    options = dict(folder=model_folder(arguments), program=str(program), prompt=prompt, tokens=arguments.tokens, samples=arguments.samples,
                   threads=threads)  # fmt: skip
    wanted = arguments.only.split(",") if arguments.only else [""]
    version = subprocess.run([sys.executable, "-c", "import torch, transformers; print(f'PyTorch {torch.__version__}, transformers {transformers.__version__}')"],
                             capture_output=True, text=True).stdout.strip()  # fmt: skip
    machine = f"{processor()}, {threads} threads"
    print(f"{arguments.model}: {arguments.prompt_tokens} tokens of prompt, {arguments.tokens} generated, {arguments.samples} side by side")
    print(f"{machine}; {version}")

    contenders = []
    try:
        for name in ["transformers fp32", "transformers bf16", *OURS]:
            if not any(name.startswith(start) for start in wanted):
                continue
            contenders.append(Ours(options, name, environment) if name in OURS else Transformers(options, name.split()[1], environment))
        answers = measure(contenders, arguments.rounds)
    except KeyboardInterrupt:
        fail("interrupted")
    finally:
        for contender in contenders:
            contender.close()
    results = summary(answers, options)
    report(results, arguments.tokens)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(dict(machine=machine, versions=version, options=options, results=results), indent=1) + "\n")
    if arguments.save is not None:
        save(arguments, results, program, version, threads)
    if results.get("ours fp32", {}).get("agree", arguments.tokens) != arguments.tokens:
        fail("the tokens in fp32 differ from those of transformers")


if __name__ == "__main__":
    main()
