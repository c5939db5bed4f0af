#!/usr/bin/env python3
"""Compares generate_gpt2 with llama.cpp, ctranslate2 and transformers, alternating in one run: tokens per second of the prompt and of new tokens.

    dev/bench/compare_generate.py --llama-cpp ~/llama.cpp      # GPT-2 124M of random weights, one text, after prompts of 64 and of 512 tokens
    dev/bench/compare_generate.py --tokens 16 --rounds 1 --only "ours,transformers"
    dev/bench/compare_generate.py --model smollm2:135m --rounds 5
    dev/bench/compare_generate.py --llama-cpp ~/llama.cpp --llama-version b6000 --save

transformers makes the model and saves it to build/bench-models, from where all read it: convert_hf_to_gguf.py and llama-quantize of llama.cpp's
folder make f32, bf16 and q8_0 of it, ctranslate2 its own format. Each is compared with its like: fp32 with f32, bf16 with bf16, and int8 weights
with q8_0 and with ctranslate2's int8. All generate greedily, with a cache of keys and values, exactly --tokens tokens after each prompt.

Each contender of transformers and ctranslate2 is a process that lives through the whole run and sleeps while others work; ours and llama-bench
are started anew for every round, and the times that they report are used. A round is every contender once, in a rotating order, after a round
that warms up. The result is the median over the rounds, with the lowest and the highest. The rate of the prompt is that of the longest one, until
the first new token; the rate of new tokens leaves the prompt's pass out. All use the same cores and number of threads.

Our program asks for huge pages and binds its threads by itself; transformers and ctranslate2 get the same by compare_pytorch's PEER_ENVIRONMENT.
llama-bench runs with and without flash attention, each with and without that environment (with it, the model is read instead of mapped, or huge
pages could not be used); of these four the fastest counts, for each figure by itself. Its prompt is made of random tokens, and it chooses none.

In fp32 the tokens of ours and of transformers must be the same. PyTorch, transformers and ctranslate2 are installed into build/pytorch-venv, once;
FLATGPT_PYTORCH_VENV names an environment that has them already. llama.cpp is never downloaded or built here: --llama-cpp names a folder that has
it. A missing one leaves its rows out.
"""
import argparse
import importlib.metadata
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
import tables  # noqa: E402
from compare_pytorch import (PEER_ENVIRONMENT, ROOT, SIZES, Worker, enter_environment, peer_environment, positive, processor, progress,  # noqa: E402
                             reason, use_threads)  # fmt: skip

VOCABULARY, SEED = 50257, 1337
# The Llama of SmolLM2-135M's sizes. It has GPT-2's vocabulary here, so that all models read the same prompts; its own has 49,152 tokens.
SMOLLM2 = "smollm2:135m"
SMOLLM2_SIZES = dict(vocab_size=VOCABULARY, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                     rope_parameters=dict(rope_type="default", rope_theta=100000.0), tie_word_embeddings=True, bos_token_id=VOCABULARY - 1,
                     eos_token_id=VOCABULARY - 1)  # fmt: skip
# our contenders: name and options
OURS = {
    "ours fp32": ["--dtype", "fp32"],
    "ours bf16": ["--dtype", "bf16"],
    "ours fp32 int8": ["--dtype", "fp32", "--quantize", "int8"],
    "ours bf16 int8": ["--dtype", "bf16", "--quantize", "int8"],
}
# what is compared with what: a program and the name that it has for the type
LIKE = {
    "fp32": ["ours fp32", "llama.cpp f32", "ctranslate2 float32", "transformers fp32"],
    "bf16": ["ours bf16", "llama.cpp bf16", "transformers bf16"],
    "int8": ["ours bf16 int8", "ours fp32 int8", "llama.cpp q8_0", "ctranslate2 int8"],
}
REPORT = re.compile(r"prompt: (\d+) tokens in ([\d.]+) s .*generated: (\d+) tokens in ([\d.]+) s")


def fail(message):
    sys.exit(f"compare_generate: {message}")


def leave_out(name, message):
    print(f"compare_generate: {name} is left out: {message}", file=sys.stderr)


# ---------------------------------------------------------------------------------------------------------------------------------------
# The model in every format


def write_tokenizer(folder):
    """GPT-2's tokenizer, without which the other formats cannot be made."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE.from_file(str(ROOT / "data" / "gpt2_encoder.json"), str(ROOT / "data" / "gpt2_vocab.bpe")))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    end = "<|endoftext|>"
    tokenizer.add_special_tokens([end])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = dict(tokenizer_class="GPT2Tokenizer", bos_token=end, eos_token=end, unk_token=end)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def model_folder(arguments):
    """A model of random weights, saved by transformers. They are larger than at the start of training, or the text would repeat one word."""
    folder = ROOT / "build" / "bench-models" / f"{arguments.model.replace(':', '-')}-{arguments.context}"
    if not (folder / "model.safetensors").exists():
        import torch
        from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

        torch.manual_seed(SEED)
        if arguments.model == SMOLLM2:
            config = LlamaConfig(**SMOLLM2_SIZES, max_position_embeddings=arguments.context, initializer_range=0.06)
        else:
            layers, heads, channels = SIZES[arguments.model]
            config = GPT2Config(n_layer=layers, n_head=heads, n_embd=channels, n_positions=arguments.context, initializer_range=0.06)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    if not (folder / "tokenizer.json").exists():
        # llama.cpp's converter reads n_ctx, which OpenAI's files have
        config = json.loads((folder / "config.json").read_text()) | {"n_ctx": arguments.context}
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        write_tokenizer(folder)
    return str(folder)


def make(path, commands):
    """Runs commands in which PATH stands for the file or folder to be made; afterwards it is complete, or absent. Raises RuntimeError with the reason."""
    partial = path.with_name(f"partial-{path.name}")
    for command in commands:
        command = [str(part).replace("PATH", str(partial)) for part in command]
        done = subprocess.run(command, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0 or not partial.exists():
            raise RuntimeError(f"{path.name} could not be made: {reason(done.stdout, done.returncode)}")
    partial.rename(path)
    return path


class LlamaFolder:
    """The parts of llama.cpp that are used: the programs, in `folder` or where its build puts them, and the converter."""

    def __init__(self, folder):
        places = [folder, folder / "bin", folder / "build" / "bin"]
        self.folder = folder

        def program(name):
            found = next((place / name for place in places if os.access(place / name, os.X_OK)), None)
            if not found:
                raise RuntimeError(f"{folder} has no {name}; expected it there, in bin or in build/bin")
            return found

        self.bench, self.quantize = program("llama-bench"), program("llama-quantize")
        usage = subprocess.run([self.bench, "--help"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
        self.on_off = ("on", "off") if "<on|off" in usage else ("1", "0")
        self.unmapped = ["-lm", "none"] if "--load-mode" in usage else ["-mmp", "0"]

    def model(self, folder, kind):
        """The model of transformers' folder as f32, bf16 or q8_0."""
        path = pathlib.Path(folder, f"{kind}.gguf")
        if path.exists():
            return path
        if kind != "f32":
            return make(path, [[self.quantize, self.model(folder, "f32"), "PATH", kind]])
        converter = self.folder / "convert_hf_to_gguf.py"
        if not converter.exists():
            raise RuntimeError(f"{self.folder} has no convert_hf_to_gguf.py, which makes {path.name}")
        return make(path, [[sys.executable, converter, folder, "--outtype", "f32", "--outfile", "PATH"]])


# ---------------------------------------------------------------------------------------------------------------------------------------
# The contenders. run() generates once; it returns {figure: {variant: tokens per second}}, and the tokens after the first prompt.


def figure(prompt_tokens):
    return f"new after {prompt_tokens}"


def rates(options, times):
    """times: seconds of the prompt and of the whole text, by the prompt's length."""
    longest = max(times)
    if any(whole <= first for first, whole in times.values()):
        raise RuntimeError("its prompt took longer than its whole text; use more --tokens, or a quieter machine")
    found = {"prompt": longest / times[longest][0]}
    found |= {figure(length): (options["tokens"] - 1) / (whole - first) for length, (first, whole) in times.items()}
    return {name: {"": rate} for name, rate in found.items()}


def worker(options):
    """The side of transformers or ctranslate2: generates after every prompt for every input line and prints the seconds and the tokens."""
    generate = {"transformers": transformers_generator, "ctranslate2": ctranslate2_generator}[options["library"]](options)
    for _ in sys.stdin:
        times, tokens = {}, None
        for prompt in options["prompts"]:
            seconds = []
            for new in (1, options["tokens"]):
                start = time.perf_counter()
                found = generate(prompt, new)
                seconds.append(time.perf_counter() - start)
            times[len(prompt)], tokens = seconds, tokens or found
        print(json.dumps(dict(times=times, tokens=tokens)), flush=True)


def transformers_generator(options):
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(options["threads"])
    dtype = torch.bfloat16 if options["type"] == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(options["folder"], dtype=dtype).eval()
    model.generation_config.eos_token_id = None

    def generate(prompt, tokens):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, use_cache=True, pad_token_id=0)
        return out[0, len(prompt) :].tolist()

    return generate


def ctranslate2_generator(options):
    import ctranslate2

    model = ctranslate2.Generator(options["converted"], device="cpu", compute_type=options["type"], intra_threads=options["threads"], inter_threads=1)
    words = json.loads(pathlib.Path(options["converted"], "vocabulary.json").read_text())

    def generate(prompt, tokens):
        start = [words[token] for token in prompt]
        return model.generate_batch([start], min_length=tokens, max_length=tokens, include_prompt_in_result=False)[0].sequences_ids[0]

    return generate


class Library(Worker):
    def __init__(self, options, name, environment):
        library, kind = name.split()
        super().__init__(__file__, name, options | {"library": library, "type": kind}, peer_environment(environment))
        self.options = options

    def run(self):
        answer = self.ask()
        return rates(self.options, {int(length): seconds for length, seconds in answer["times"].items()}), answer["tokens"]


class LlamaCpp:
    def __init__(self, options, name, environment, llama, model):
        self.name, self.options, self.llama, self.model = name, options, llama, model
        on, off = llama.on_off
        places = {"": ([], peer_environment(environment, plain=True)), ", huge pages, bound": (llama.unmapped, peer_environment(environment))}
        self.variants = {f"-fa {title}{where}": (["-fa", value, *more], variables)
                         for title, value in (("on", on), ("off", off)) for where, (more, variables) in places.items()}  # fmt: skip
        self.commit = ""

    def bench(self, more, environment):
        command = [self.llama.bench, "-m", self.model, "-t", self.options["threads"], "-r", 1, "-o", "json", *more]
        done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)
        try:
            found = json.loads(done.stdout)
        except ValueError:
            found = []
        if done.returncode != 0 or not found:
            raise RuntimeError(reason(done.stderr, done.returncode))
        self.commit = found[0]["build_commit"]
        return found

    def run(self):
        lengths, answer = [len(prompt) for prompt in self.options["prompts"]], {}
        for variant, (more, environment) in self.variants.items():
            (prompt,) = self.bench(["-p", max(lengths), "-n", 0, *more], environment)
            new = self.bench(["-p", 0, "-n", self.options["tokens"], "-d", ",".join(map(str, lengths)), *more], environment)
            found = {"prompt": prompt["avg_ts"]} | {figure(each["n_depth"]): each["avg_ts"] for each in new}
            for name, rate in found.items():
                answer.setdefault(name, {})[variant] = rate
        return answer, None

    def close(self):
        pass


class Ours:
    def __init__(self, options, name, environment):
        self.name, self.options, self.environment = name, options, environment

    def run(self):
        o, times, tokens = self.options, {}, None
        for prompt in o["prompts"]:
            command = [o["program"], o["folder"], "--tokens", ",".join(map(str, prompt)), "--max-tokens", str(o["tokens"]), "--greedy", "--json",
                       *OURS[self.name]]  # fmt: skip
            result = subprocess.run(command, env=self.environment, capture_output=True, text=True)
            report = REPORT.search(result.stderr)
            if result.returncode != 0 or not report:
                raise RuntimeError(reason(result.stderr, result.returncode))
            if int(report[3]) != o["tokens"] - 1:
                raise RuntimeError(f"{report[3]} tokens after the first, instead of {o['tokens'] - 1}")
            first = float(report[2])
            times[len(prompt)] = first, first + float(report[4])
            tokens = tokens or json.loads(result.stdout)["samples"][0]["tokens"]
        return rates(o, times), tokens

    def close(self):
        pass


# ---------------------------------------------------------------------------------------------------------------------------------------


def measure(contenders, rounds):
    """Runs each contender once to warm up, then the rounds in a rotating order. Returns {name: answers}; a peer that fails is left out."""
    answers = {contender.name: [] for contender in contenders}
    for round_ in range(rounds + 1):
        for k in range(len(contenders)):
            contender = contenders[(k + round_) % len(contenders)]
            if contender.name not in answers:
                continue
            progress(f"round {round_} of {rounds}: {contender.name}")
            try:
                answer = contender.run()
            except RuntimeError as error:
                if contender.name in OURS:
                    fail(f"{contender.name}: {error}")
                leave_out(contender.name, error)
                answers.pop(contender.name)
                continue
            if round_ > 0:
                answers[contender.name].append(answer)
    progress("")
    return answers


def agreement(ours, theirs):
    """The number of equal tokens before the first difference."""
    return next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))


def summary(answers):
    """Each contender's figures: the median, the lowest and the highest of its fastest variant."""
    results = {}
    for kind, names in LIKE.items():
        for name in names:
            if name not in answers:
                continue
            result, rounds = dict(side=name.split()[0], type=kind), answers[name]
            for title in rounds[0][0]:
                by_variant = {variant: [found[title][variant] for found, _ in rounds] for variant in rounds[0][0][title]}
                variant = max(by_variant, key=lambda each: statistics.median(by_variant[each]))
                all_rates = by_variant[variant]
                result[title] = dict(rate=statistics.median(all_rates), low=min(all_rates), high=max(all_rates)) | ({"variant": variant} if variant else {})
            reference = answers.get("transformers bf16" if "bf16" in name else "transformers fp32")
            if name in OURS and reference:
                result["agree"] = agreement(rounds[0][1], reference[0][1])
            results[name] = result
    return results


def rounded(results):
    """As a result file has them."""
    return {name: {key: {k: v if isinstance(v, str) else round(v, 2) for k, v in value.items()} if isinstance(value, dict) else value
                   for key, value in result.items()} for name, result in results.items()}  # fmt: skip


def report(results, arguments):
    options = dict(tokens=arguments.tokens, prompt_tokens=arguments.prompt_tokens)
    print(tables.aligned(tables.generate_table(dict(results=rounded(results), options=options))))


def save(arguments, results, program, versions, threads):
    """Saves the result file for the tables. versions: of the peers, by name."""
    versions = versions | {"flatgpt": result_file.our_version(program), "oneDNN": result_file.onednn_version(program)}
    options = {name: getattr(arguments, name) for name in ("model", "context", "prompt_tokens", "tokens", "rounds")}
    libraries = [side for side in ("transformers", "ctranslate2") if any(result["side"] == side for result in results.values())]
    if any(result["side"] == "llama.cpp" for result in results.values()):
        libraries.append("llama.cpp where it is faster so")
    environment = {", ".join(libraries): PEER_ENVIRONMENT} if libraries else {}
    result_file.save(arguments.save, "compare_generate", f"generation-{arguments.model.replace(':', '-')}", threads, versions, options, rounded(results), environment)


def parse_arguments():
    def lengths(text):
        return sorted({positive(length) for length in text.split(",")})

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"compare_generate: {message}; --help shows the usage\n")
    parser.add_argument("--model", choices=[*SIZES, SMOLLM2], default="d12", help="layers, heads and channels by name (default: %(default)s)")
    parser.add_argument("--context", type=positive, default=1024)
    parser.add_argument("--prompt-tokens", type=lengths, default=[64, 512], help="lengths of the prompts (default: 64,512)")
    parser.add_argument("--tokens", type=positive, default=64, help="generated after each prompt (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=3, help="(default: %(default)s)")
    parser.add_argument("--threads", type=positive, help="default: one for each core this process may use")
    parser.add_argument("--llama-cpp", type=pathlib.Path, metavar="FOLDER", help="llama.cpp's folder, built, with llama-bench and llama-quantize")
    parser.add_argument("--llama-version", metavar="TEXT", help="its version, as the table says it (default: the commit that llama-bench reports)")
    parser.add_argument("--only", help="a list of contenders, by the start of their names: ours, transformers bf16, ...")
    parser.add_argument("--json", metavar="OUT", help="write the results")
    result_file.add_option(parser)
    arguments = parser.parse_args()
    if arguments.tokens < 2 or arguments.prompt_tokens[-1] + arguments.tokens > arguments.context:
        parser.error("--tokens is 2 or more, and prompt and text together at most --context")
    return arguments


def contenders_of(arguments, options, environment):
    """Those that --only names and that are here; a line says which peer is not, and why."""
    wanted = arguments.only.split(",") if arguments.only else [""]

    def chosen(program):
        return [name for names in LIKE.values() for name in names if name.split()[0] == program and any(map(name.startswith, wanted))]

    contenders = [Library(options, name, environment) for name in chosen("transformers")]
    if names := chosen("ctranslate2"):
        try:
            converter, path = pathlib.Path(sys.prefix, "bin", "ct2-transformers-converter"), pathlib.Path(options["folder"], "ctranslate2")
            if not converter.exists():
                raise RuntimeError(f"{sys.prefix} does not have it; it is installed by: pip install ctranslate2")
            if not path.exists():
                make(path, [[converter, "--model", options["folder"], "--output_dir", "PATH", "--force"]])
            contenders += [Library(options | {"converted": str(path)}, name, environment) for name in names]
        except RuntimeError as error:
            leave_out("ctranslate2", error)
    if names := chosen("llama.cpp"):
        try:
            if not arguments.llama_cpp:
                raise RuntimeError("pass --llama-cpp with the folder of a built llama.cpp")
            llama = LlamaFolder(arguments.llama_cpp.expanduser().resolve())
            contenders += [LlamaCpp(options, name, environment, llama, llama.model(options["folder"], name.split()[1])) for name in names]
        except RuntimeError as error:
            leave_out("llama.cpp", error)
    return contenders + [Ours(options, name, environment) for name in chosen("ours")]


def peer_versions(arguments, contenders):
    names = {contender.name.split()[0] for contender in contenders}
    packages = {"PyTorch": "torch", "transformers": "transformers"} if "transformers" in names else {}
    packages |= {"ctranslate2": "ctranslate2"} if "ctranslate2" in names else {}
    versions = {name: importlib.metadata.version(package) for name, package in packages.items()}
    llama = next((contender for contender in contenders if isinstance(contender, LlamaCpp)), None)
    return versions | ({"llama.cpp": arguments.llama_version or llama.commit or "unknown"} if llama else {})


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(json.loads(sys.argv[2]))
    arguments = parse_arguments()
    enter_environment("transformers", optional=["ctranslate2"])
    program = pathlib.Path(os.environ.get("GENERATE_PROGRAM", ROOT / "generate_gpt2"))
    if not program.exists():
        fail("generate_gpt2 is not built; please run: make")
    threads, environment = use_threads(arguments.threads)
    draw = random.Random(SEED)
    prompts = [draw.choices(range(VOCABULARY - 1), k=length) for length in arguments.prompt_tokens]
    options = dict(folder=model_folder(arguments), program=str(program), prompts=prompts, tokens=arguments.tokens, threads=threads)
    machine = f"{processor()}, {threads} threads"
    print(f"{arguments.model}: {arguments.tokens} tokens after prompts of {' and '.join(map(str, arguments.prompt_tokens))} tokens; {machine}")

    contenders = []
    try:
        contenders = contenders_of(arguments, options, environment)
        answers = measure(contenders, arguments.rounds)
    except KeyboardInterrupt:
        fail("interrupted")
    finally:
        for contender in contenders:
            contender.close()
    results, versions = summary(answers), peer_versions(arguments, contenders)
    if not results:
        fail("there is nothing to compare")
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    report(results, arguments)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(dict(machine=machine, versions=versions, options=options, results=results), indent=1) + "\n")
    if arguments.save is not None:
        save(arguments, results, program, versions, threads)
    if results.get("ours fp32", {}).get("agree", arguments.tokens) != arguments.tokens:
        fail("the tokens in fp32 differ from those of transformers")


if __name__ == "__main__":
    main()
