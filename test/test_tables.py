#!/usr/bin/env python3
"""dev/bench/tables.py, result_file.py: the published tables match the results, and show one commit on one machine.

README.md and docs/performance.md, with the results in dev/bench/results, are the oracle of what every table looks
like. The made-up results here are for what those do not have.
"""

import argparse
import contextlib
import io
import json
import os
import struct
import subprocess
import sys
import unittest
import unittest.mock

from common import ROOT, FolderTest  # beside this file

TABLES = ROOT / "dev" / "bench" / "tables.py"
sys.path.insert(0, str(ROOT / "dev" / "bench"))
import compare_generate  # noqa: E402
import compare_pytorch  # noqa: E402
import gpu_tables  # noqa: E402
import result_file  # noqa: E402
import tables  # noqa: E402


def block(name, text=""):
    return f"<!-- table: {name} -->\n{text}<!-- end -->\n"


def contender(side, ms):
    return dict(side=side, dtype="fp32", median_ms=ms, p10_ms=ms * 0.9, p90_ms=ms * 1.1, peak_mib=1024)


def training(ours, pytorch):
    return {"PyTorch fp32, B 4": contender("pytorch", pytorch), "ours fp32, B 4": contender("ours", ours)}


def png(**texts):
    """A picture without pixels, with these texts."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + b"----"

    chunks = [chunk(b"tEXt", key.encode() + b"\0" + text.encode()) for key, text in texts.items()]
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes(13)) + b"".join(chunks) + chunk(b"IEND", b"")


def result(what, machine="Fast", date="2026-03-01 10:00", commit="aaaaaaa", results=None):
    return dict(
        what=what,
        commit=commit,
        date=date,
        machine=dict(name=machine, cores=2),
        versions={"PyTorch": "3.0"},
        command="measure",
        options=dict(tokens=32, prompt_tokens=[4, 512], total_batch=256),
        results=results or training(50, 100),
    )


class Tables(FolderTest):
    def setUp(self):
        super().setUp()
        self.results, self.page = self.folder / "dev" / "bench" / "results", self.folder / "docs" / "performance.md"
        self.results.mkdir(parents=True)
        self.page.parent.mkdir()
        (self.folder / "README.md").write_text("No tables.\n")

    def write(self, name, content):
        (self.results / f"{name}.json").write_text(json.dumps(content))

    def run_tables(self, *arguments):
        command = [sys.executable, TABLES, "--root", self.folder, *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    def refused(self, expected, *arguments):
        self.assert_one_line(self.run_tables(*arguments), expected, code=1)

    def made(self, name):
        self.page.write_text(f"Before.\n\n{block(name)}\nAfter.\n")
        done = self.run_tables()
        self.assertEqual((done.returncode, done.stdout), (0, f"docs/performance.md: {name}\n"), done.stderr)
        text = self.page.read_text()
        self.assertTrue(text.startswith("Before.\n\n<!-- table:") and text.endswith("<!-- end -->\n\nAfter.\n"))
        return text

    def test_the_published_tables_and_the_picture_are_what_the_results_give(self):
        done = subprocess.run([sys.executable, TABLES, "--check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        for page, names in {
            "README.md": ("forward", "backward", "picture", *gpu_tables.SENTENCES),
            "docs/performance.md": (
                *("slower", "training", "memory", "generate", "processes", "variables"),
                *gpu_tables.TABLES,
            ),
        }.items():
            for name in names:
                self.assertIn(f"<!-- table: {name} -->", (ROOT / page).read_text())

    def test_all_tables_show_the_machine_and_commit_with_the_most_benchmarks_the_newest_among_equals(self):
        self.write("a", result("training-d12"))
        self.write("b", result("training-d12", "Slow", "2026-03-02", "bbbbbbb", training(80, 100)))
        text = self.made("training")
        self.assertIn("**Slow, 2 cores** (2026-03-02, commit bbbbbbb", text)
        self.assertNotIn("aaaaaaa", text)
        # the same machine at two commits: never one table of each
        self.write("c", result("training-shakespeare", commit="aaaaaaa"))
        self.write("d", result("training-shakespeare", date="2026-03-03", commit="ccccccc"))
        text = self.made("training")
        self.assertIn("commit aaaaaaa", text)
        self.assertIn("| **flatgpt fp32** | **50.0** (45.0 to 55.0) | **50.0** (45.0 to 55.0) |", text)
        self.assertIn("Not measured on Fast, 2 cores, commit aaaaaaa, 2026-03-01.", self.made("generate"))
        # another benchmark there, of a kind that is not shown, changes nothing
        for number in range(3):
            self.write(f"e{number}", result(f"training-other-{number}", "Slow", "2026-03-04", "bbbbbbb"))
        self.assertIn("commit aaaaaaa", self.made("training"))
        # of a benchmark that was measured several times there, the newest result
        self.write("0", result("training-d12", date="2026-03-01 10:01", results=training(60, 100)))
        self.write("z", result("training-d12", date="2026-02-28", results=training(70, 100)))
        self.assertIn("| **50.0** (45.0 to 55.0) | **60.0** (54.0 to 66.0) |", self.made("training"))

    def test_what_the_published_tables_do_not_say(self):
        self.write("a", result("training-d12"))
        text = self.made("slower")
        self.assertIn("flatgpt is slower than a peer in none of 1 comparisons", text)
        absent = "4 layers, C 128, bytes, 12 x 64; GPT-2 124M, 1 x 1024; generation"
        self.assertIn(f"Not compared there: {absent}.", text)
        self.assertIn("Not measured yet.", self.made("variables"))
        text = self.made("picture")
        self.assertIn("The peers train without the huge pages", text.replace("\n", " "))
        self.assertIn("In training flatgpt is faster than each peer in all 1 comparisons on that machine.", text.replace("\n", " "))
        self.assertNotIn("llm.c's", text)  # which was not measured
        self.assertIn("| ms a step: median (10 % to 90 %) | GPT-2 124M, 4 x 64 |\n", self.made("training"))  # no column of what was not measured
        for environment, expected in (
            ({"PyTorch": {"A": "1", "B": "x" * 153}}, f"PyTorch with `A=1`\n`B={'x' * 153}`"),
            ({"PyTorch": {}}, "PyTorch in its plain environment"),
            ({}, "peers in their plain environment"),
        ):
            self.assertEqual(tables.peers_environment({"environment": environment}), expected)

    def test_ratios_are_right(self):
        onednn = {"PyTorch fp32 oneDNN compiled, B 4": contender("pytorch_onednn", 40)}
        self.write("a", result("training-d12", results=training(50, 100) | onednn))
        text = self.made("training")
        self.assertIn("| flatgpt / the better PyTorch, fp32 | 0.50 |", text)
        self.assertIn("| flatgpt / the better PyTorch with oneDNN's products, fp32 | 1.25 |", text)
        printed = tables.training_table(result("training-d12", results=training(50, 100) | onednn))
        self.assertIn("Ours / PyTorch's best: 0.50 in fp32, 0.50 the best of each.", printed)
        self.assertIn("Ours / PyTorch's best with oneDNN's products: 1.25 in fp32.", printed)
        self.assertIn("| **flatgpt fp32** | **1,024** |", self.made("memory"))
        text = self.made("picture").replace("\n", " ")
        self.assertIn("In training it is slower in 1 of 2, where it has 0.80 times the speed of PyTorch. [", text)
        text = self.made("slower")
        self.assertIn("(1 of 2 comparisons, Fast", text)
        self.assertIn("124M, 4 x 64 in fp32 (0.80 of the speed of PyTorch with oneDNN's products).", text)
        rates = {"1 process": {"ratio": 1.0}, "2 processes, --zero 0": {"ratio": 1.25}, "2 processes, --zero 1": {"ratio": 1.5}}
        for dtype in ("fp32", "bf16"):
            self.write(dtype, result(f"processes-d12-{dtype}", results=rates) | dict(options=dict(dtype=dtype)))
        self.assertIn("| Fast, 2 cores, 2026-03-01, aaaaaaa | fp32 | 1.25 | 1.50 |", self.made("processes"))
        times = {"none": 500, "all": 400, "A alone": 490, "B alone": 420, "all without B": 480}
        rows = {f"PyTorch bf16 compiled, {part}, B 4": contender("pytorch", ms) | dict(dtype="bf16", variables=part) for part, ms in times.items()}
        self.write("b", result("variables-d12", "Slow", "2026-02-01", "bbbbbbb", rows))
        self.assertIn("all of them together change the time by -20 %; the most effective one alone, `B`, by -16 %.", self.made("variables"))

    def test_a_picture_of_other_figures_than_the_tables_is_named(self):
        self.write("a", result("training-d12"))
        self.made("picture")
        picture, named = self.folder / "docs" / "speed.png", "docs/speed.png shows other figures than dev/bench/results"
        self.refused(named, "--check")
        figures = tables.bars(tables.Results(self.results))
        # 256 tokens in 100 and in 50 ms
        self.assertEqual(figures["bars"], [["PyTorch", "pytorch", 2560.0, 100], ["flatgpt", "ours", 5120.0, 50]])
        picture.write_bytes(png(Software="x", figures=json.dumps(figures)))
        self.assertEqual(self.run_tables("--check").returncode, 0)
        older = figures | {"place": "Fast, 2 cores, commit 0000000, 2026-02-01"}
        for content in (png(figures=json.dumps(older)), png(Software="x")):
            picture.write_bytes(content)
            self.refused(named, "--check")

    def test_check_names_the_page_and_the_table_whose_figure_was_changed_by_hand(self):
        self.write("a", result("training-d12"))
        text = self.made("training")
        self.assertEqual(self.run_tables("--check").returncode, 0)
        self.page.write_text(text.replace("**50.0**", "**49.0**"))
        self.refused("docs/performance.md: table training differs from dev/bench/results", "--check")
        self.assertIn("**49.0**", self.page.read_text())

    def test_code_that_was_changed_is_quoted_anew_and_code_that_is_gone_is_named(self):
        self.write("a", result("training-d12"))
        source = self.folder / tables.BLOCK_OF_GPT2
        source.parent.mkdir(parents=True)
        _, first, last = tables.QUOTED["backward"]
        source.write_text(f"void f() {{\n    {first}, a);\n    g(1);\n    {last}, b);\n}}\n")
        self.assertIn(f"```cpp\n{first}, a);\ng(1);\n{last}, b);\n```\n", self.made("backward"))
        self.assertEqual(self.run_tables("--check").returncode, 0)
        source.write_text(source.read_text().replace("g(1)", "g(2)"))
        self.refused("docs/performance.md: table backward differs", "--check")
        source.write_text("void f() {}\n")
        self.refused(f"{tables.BLOCK_OF_GPT2} has no lines from {first} to {last}", "--check")

    def test_tables_are_made_of_what_the_tools_save(self):
        program = self.folder / "program"
        program.write_text("#!/bin/sh\necho flatgpt 1.2.3\n")
        program.chmod(0o755)
        arguments = argparse.Namespace(save=self.results / "training.json", preset="d12", rounds=1, steps=3,
                                       device="cpu", plain_environment=False, which_variables=False)  # fmt: skip
        timed = dict(side="ours", dtype="fp32", ms=[9.0, 10.0, 30.0], median_ms=10.0, peak_bytes=5 << 20, loss=4.5)
        slower = timed | dict(side="pytorch", ms=[20.0, 20.0, 20.0], median_ms=20.0)
        results = {"ours fp32, B 4": timed, "PyTorch fp32, B 4": slower, "ours bf16, B 4": timed | dict(ms=[])}
        options = dict(layers=12, batch_size=4, program=str(program), data="text", init_from="weights")
        generated = argparse.Namespace(save=self.results / "generate.json", model="d12", context=1024, prompt_tokens=[4, 8],
                                       tokens=32, rounds=1)  # fmt: skip
        rate = dict(rate=100.04, low=99.0, high=101.0)
        rates = {"ours fp32": {"side": "ours", "type": "fp32", "prompt": rate, "new after 4": rate, "agree": 32}}
        other = argparse.Namespace(**vars(arguments) | {"save": self.results / "other.json"})
        with contextlib.redirect_stdout(io.StringIO()):
            compare_pytorch.save(arguments, options, results, "3.0", 2)
            compare_generate.save(generated, rates, program, {"PyTorch": "3.0", "transformers": "6.1"}, 2)
            compare_pytorch.save(other, options | {"layers": 2}, {"ours fp32, B 4": timed}, "3.0", 2)
        saved = json.loads(arguments.save.read_text())
        keys = "tool what commit date source machine versions environment command options results"
        self.assertEqual(set(saved), set(keys.split()))
        self.assertEqual((saved["tool"], saved["what"]), ("compare_pytorch", "training-d12"))
        self.assertEqual(saved["versions"], {"PyTorch": "3.0", "flatgpt": "1.2.3"})
        self.assertEqual(saved["machine"]["cores"], 2)
        self.assertEqual(saved["environment"], {"PyTorch": compare_pytorch.PEER_ENVIRONMENT})
        self.assertEqual(saved["options"], {"layers": 12, "batch_size": 4, "rounds": 1, "steps": 3})
        self.assertEqual(list(saved["results"]), ["ours fp32, B 4", "PyTorch fp32, B 4"])  # what was never timed is left out
        self.assertEqual(json.loads(other.save.read_text())["what"], "training-other")  # in no table
        text = self.made("training")
        self.assertIn("| **flatgpt fp32** | **10.0** (", text)
        self.assertIn("| flatgpt / the better PyTorch, fp32 | 0.50 |", text)
        self.assertIn("| 5 | 4.5000 |", tables.training_table(saved))
        text = self.made("generate")
        self.assertIn("PyTorch 3.0, transformers 6.1", text)
        self.assertIn("| **ours fp32** | **100** (99.0 to 101) | **100** (99.0 to 101) | 32 of 32 |", text)

    def test_what_cannot_be_made_is_one_line(self):
        self.page.write_text(block("training"))
        self.refused("has no result of training-shakespeare, training-d12", "--check")
        self.write("a", result("training-d12"))
        for page, expected in (
            (block("mystery"), "no table mystery"),
            ("<!-- table: memory -->\n", "has no <!-- end -->"),
        ):
            self.page.write_text(page)
            self.refused(expected, "--check")
        self.refused("has no result of", "--root", "/none")

    def test_a_gpus_table_is_of_the_newest_report_that_has_what_it_shows(self):
        def report(device, date, name, **more):
            row = dict(name=name, bound="memory", ms=1.0, share_of_peak=0.9)
            return dict(gpu="A GPU", device=device, date=date, kernels=[row], **more)

        results = unittest.mock.Mock()
        results.gpus = dict(
            a=report("cuda", "2026-01-02", "gelu", generation={"aaaaaaa": {"--dtype bf16": 100.4}}),
            b=report("cuda", "2026-02-01", "adamw"),
            c=report("software", "2026-03-01", "encoder"),
        )
        self.assertIn("\n| adamw | 1.000 | 90% |\n", tables.TABLES["gpu-kernels"](results))
        self.assertIn("\n| bf16 | 100 |\n", tables.TABLES["gpu-generation"](results))
        self.assertEqual(tables.TABLES["gpu-step"](results), "Not measured yet.\n")
        results.gpus["b"]["runs"] = {"124M": {}}
        with self.assertRaises(SystemExit) as refused:
            tables.TABLES["gpu-step"](results)
        self.assertEqual(refused.exception.code, "tables: b: is no report of a GPU: KeyError: 'profile'")

    def test_a_broken_result_ended_in_a_traceback(self):
        self.page.write_text(block("training"))
        for text in ("{", "[" * 100_000, '{"what":"x"}', '{"what":"x","machine":[]}', '{"gpu":"x"}', "\ufffd"):
            (self.results / "broken.json").write_text(text)
            self.refused("broken.json: is no result of a benchmark")

    def test_a_wrong_option_printed_the_whole_usage(self):
        names = "compare_generate compare_llmc compare_processes compare_pytorch markov_text speed_ladder tables"
        for name in names.split():
            program = TABLES.with_name(f"{name}.py")
            done = subprocess.run([sys.executable, program, "--nonsense"], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertTrue(done.stderr.startswith(f"{name}: "), done.stderr)


LLAMA_BENCH = """#!/usr/bin/env python3
# Stands in for llama-bench: flash attention is faster for the prompt, huge pages for new tokens.
import json, os, sys
if "--help" in sys.argv:
    sys.exit("-fa, --flash-attn <on|off|auto>  -lm, --load-mode <none|mmap>")
value = lambda name: sys.argv[sys.argv.index(name) + 1]
huge = "GLIBC_TUNABLES" in os.environ
assert huge == ("-lm" in sys.argv)
prompt, new = int(value("-p")), int(value("-n"))
rate = 100 + 50 * (value("-fa") == "on") if prompt else 10 + 5 * huge
depths = value("-d").split(",") if new else ["0"]
print(json.dumps([dict(build_commit="abc", n_depth=int(depth), avg_ts=rate) for depth in depths]))
"""


class Peers(FolderTest):
    def contenders(self, only, llama_cpp):
        options = dict(folder=str(self.folder), prompts=[[1] * 64, [1] * 512], tokens=8, threads=2)
        arguments, said = argparse.Namespace(only=only, llama_cpp=llama_cpp, llama_version=None), io.StringIO()
        with contextlib.redirect_stderr(said), unittest.mock.patch.object(sys, "prefix", "/none"):
            found = compare_generate.contenders_of(arguments, options, dict(os.environ))
        return found, said.getvalue()

    def test_a_missing_peer_leaves_its_rows_out_with_one_line(self):
        for only, llama_cpp, expected in (
            ("llama.cpp", None, "llama.cpp is left out: pass --llama-cpp with the folder"),
            ("llama.cpp", self.folder, "has no llama-bench; expected it there, in bin or in build/bin"),
            ("ctranslate2", None, "ctranslate2 is left out: /none does not have it"),
        ):
            found, said = self.contenders(only, llama_cpp)
            self.assertEqual((found, said.count("\n")), ([], 1), said)
            self.assertIn(expected, said)

    def llama_cpp(self, bench):
        programs = self.folder / "build" / "bin"
        programs.mkdir(parents=True)
        for name in ("llama-bench", "llama-quantize"):
            (programs / name).write_text(bench)
            (programs / name).chmod(0o755)
        (self.folder / "f32.gguf").touch()
        (contender,), said = self.contenders("llama.cpp f32", self.folder)
        self.assertEqual(said, "")
        return contender

    def test_a_peer_that_a_signal_killed_had_no_message(self):
        contender = self.llama_cpp(LLAMA_BENCH.replace("value =", "os.kill(os.getpid(), 4)\nvalue ="))
        with self.assertRaises(RuntimeError) as raised:
            contender.run()
        self.assertEqual(str(raised.exception), "no message (killed by signal 4, Illegal instruction)")
        self.assertEqual(compare_pytorch.reason("a\nb: c\n", 3), "b: c (exit code 3)")

    def test_the_fastest_way_to_run_llama_cpp_counts_and_is_named(self):
        contender = self.llama_cpp(LLAMA_BENCH)
        answers = {contender.name: [contender.run() for _ in range(2)]}
        found = compare_generate.summary(answers)["llama.cpp f32"]
        self.assertEqual((found["side"], found["type"]), ("llama.cpp", "fp32"))
        self.assertEqual(found["prompt"], dict(rate=150, low=150, high=150, variant="-fa on"))
        self.assertEqual(found["new after 512"]["rate"], 15)
        self.assertEqual(found["new after 64"]["variant"], "-fa on, huge pages, bound")
        versions = compare_generate.peer_versions(argparse.Namespace(llama_version=None), [contender])
        self.assertEqual(versions, {"llama.cpp": "abc"})

    def test_the_environment_of_peers_is_whole_or_in_parts_and_never_inherited(self):
        inherited = {"PATH": "/bin", "OMP_PROC_BIND": "close"}
        every = compare_pytorch.PEER_ENVIRONMENT
        self.assertEqual(compare_pytorch.peer_environment(inherited), {"PATH": "/bin"} | every)
        self.assertEqual(compare_pytorch.peer_environment(inherited, plain=True), {"PATH": "/bin"})
        for title, names in compare_pytorch.parts_of_environment().items():
            found = compare_pytorch.peer_environment(inherited, names=names)
            self.assertEqual(found, {"PATH": "/bin"} | {name: every[name] for name in names}, title)


class ComparedModels(unittest.TestCase):
    def parse(self, *words):
        return compare_pytorch.parse_arguments(["--device", "cpu", *words], "compare_pytorch")

    def test_each_family_gets_the_sizes_and_rates_of_our_program(self):
        for words, family, kv_heads, hidden, lr, vector_lr in (
            ([], "gpt2", 4, 512, 3e-4, None),
            (["--optimizer", "muon"], "gpt2", 4, 512, 0.02, 0.003),
            (["--preset", "llama"], "llama", 2, 352, 3e-4, None),
            (["--preset", "llama-d12"], "llama", 12, 2048, 3e-4, None),
            (["--kv-heads", "2", "--hidden", "96"], "llama", 2, 96, 3e-4, None),
            (["--preset", "nanochat", "--optimizer", "muon"], "nanochat", 4, 512, 0.02, 0.01),
            (["--model", "nanochat:d12", "--optimizer", "muon", "--lr", "0.1"], "nanochat", 12, 3072, 0.1, 0.01),
        ):
            found = self.parse(*words)
            shown = (found.family, found.kv_heads, found.hidden, found.lr, getattr(found, "vector_lr", None))
            self.assertEqual(shown, (family, kv_heads, hidden, lr, vector_lr), words)

    def test_what_fits_no_model_is_refused(self):
        for words, reason in (
            (["--kv-heads", "3", "--hidden", "96"], "--kv-heads must divide --heads"),
            (["--hidden", "96"], "a Llama has both --kv-heads and --hidden"),
            (["--model", "nanochat:d11"], "invalid choice"),
            (["--llmc", "x", "--preset", "nanochat"], "llm.c trains GPT-2 with AdamW only"),
        ):
            error = io.StringIO()
            with self.assertRaises(SystemExit) as refused, contextlib.redirect_stderr(error):
                self.parse(*words)
            self.assertEqual(refused.exception.code, 2)
            self.assertIn(reason, error.getvalue())

    def test_losses_are_compared_step_by_step_with_pytorch_of_the_same_type(self):
        def result(side, dtype, *losses):
            return dict(side=side, dtype=dtype, losses=list(losses))

        results = {"PyTorch fp32, B 4": result("pytorch", "fp32", 5, 4, 3), "PyTorch fp32 compiled, B 4": result("pytorch", "fp32", 0, 0, 0),
                   "ours fp32, B 4": result("ours", "fp32", 5, 4.5, 3.25), "ours bf16, B 4": result("ours", "bf16", 1, 1, 1)}  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()) as said:
            compare_pytorch.report_losses(results)
        expected = "fp32: the losses of 3 steps differ by at most 5.0e-01 (step 2), by 2.5e-01 in the mean\n"
        self.assertEqual(said.getvalue(), expected)


class ResultFile(FolderTest):
    def test_a_command_shows_no_path_of_the_machine(self):
        tool, saved = self.folder / "llama.cpp", self.folder / "saved.json"
        tool.mkdir()
        command = ["x", "--llama-cpp", str(tool), "--rounds", "3", "--save", str(saved)]
        with unittest.mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(io.StringIO()):
            result_file.save(str(saved), "tool", "what", 2, {}, {}, {}, {})
        found = json.loads(saved.read_text())
        self.assertEqual(found["command"], "dev/bench/tool.py --llama-cpp llama.cpp --rounds 3")
        self.assertNotIn(str(self.folder), saved.read_text())

    def test_a_machine_is_named_by_what_decides_its_speed(self):
        for processor, flags, name in (
            ("Intel(R) Xeon(R) Processor @ 2.80GHz", "fpu avx2 avx512f", "Intel Xeon, AVX-512"),
            ("Intel(R) Xeon(R) Platinum 8488C", "avx512f avx512_bf16 amx_bf16", "Intel Xeon, AMX"),
            ("AMD EPYC 9R14", "avx2 avx512f avx512_bf16", "AMD EPYC, AVX512_BF16"),
            ("AMD Ryzen 9 3900X 12-Core Processor", "sse2 avx2", "AMD Ryzen, AVX2"),
            ("aarch64", "", "aarch64"),
        ):
            self.assertEqual(result_file.machine_name(processor, flags), name)

    def test_a_changed_source_makes_the_commit_dirty_and_a_changed_table_does_not(self):
        self.assertEqual(result_file.commit(self.folder), "unknown")

        def git(*arguments):
            identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
            subprocess.run(["git", "-C", self.folder, *identity, *arguments], check=True, capture_output=True)

        git("init")
        for name in ("kernel.cuh", "README.md"):
            (self.folder / name).write_text("one\n")
        git("add", ".")
        git("commit", "-m", "one")
        self.assertRegex(result_file.commit(self.folder), r"^[0-9a-f]{7}$")
        for name, expected in (("README.md", r"^[0-9a-f]{7}$"), ("kernel.cuh", r"^[0-9a-f]{7}-dirty$")):
            (self.folder / name).write_text("two\n")
            self.assertRegex(result_file.commit(self.folder), expected)

    def test_the_files_name_says_what_where_and_when(self):
        path = result_file.default_path("training-d12", "AMD EPYC, AVX512_BF16", "2026-11-22")
        self.assertEqual(path.parent, ROOT / "dev" / "bench" / "results")
        self.assertEqual(path.name, "training-d12-amd-epyc-avx512-bf16-2026-11-22.json")


if __name__ == "__main__":
    unittest.main()
