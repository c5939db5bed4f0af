#!/usr/bin/env python3
"""dev/bench/tables.py, result_file.py: the published tables match the results."""

import argparse
import contextlib
import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLES = ROOT / "dev" / "bench" / "tables.py"
sys.path.insert(0, str(ROOT / "dev" / "bench"))
import compare_generate  # noqa: E402
import compare_pytorch  # noqa: E402
import result_file  # noqa: E402
import tables  # noqa: E402

PAGE = "Before.\n\n{}\nAfter.\n"


def block(name, text=""):
    return f"<!-- table: {name} -->\n{text}<!-- end -->\n"


def contender(side, dtype, ms, peak=1024):
    return dict(side=side, dtype=dtype, median_ms=ms, p10_ms=ms * 0.9, p90_ms=ms * 1.1, peak_mib=peak)


def training(ours, pytorch):
    return {
        "PyTorch fp32, B 4": contender("pytorch", "fp32", pytorch * 2, 4096),
        "PyTorch fp32 compiled, B 4": contender("pytorch", "fp32", pytorch, 3072),
        "ours fp32, B 4": contender("ours", "fp32", ours, 2048),
    }


def rate(value):
    return dict(rate=value, low=value * 0.9, high=value * 1.1)


def generated(side, kind, prompt, new, **more):
    return {"side": side, "type": kind, "prompt": rate(prompt), "new after 4": rate(new)} | more


def generation(ours_prompt=2000):
    peer = generated("llama.cpp", "fp32", 1000, 120)
    peer["prompt"]["variant"] = "-fa on"
    return {
        "ours fp32": generated("ours", "fp32", ours_prompt, 100, agree=31),
        "transformers fp32": generated("transformers", "fp32", 1500, 30),
        "llama.cpp f32": peer,
        "ours bf16 int8": generated("ours", "int8", 3000, 300),
    }


def png(**texts):
    """A picture without pixels, with these texts."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + b"----"

    chunks = [chunk(b"tEXt", key.encode() + b"\0" + text.encode()) for key, text in texts.items()]
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes(13)) + b"".join(chunks) + chunk(b"IEND", b"")


def result(what, machine="Fast", date="2026-03-01 10:00", commit="aaaaaaa", results=None, **more):
    return (
        dict(
            tool="made_up",
            what=what,
            commit=commit,
            date=date,
            source="measured",
            machine=dict(name=machine, cores=2),
            versions={"PyTorch": "3.0"},
            command="measure",
            options=dict(dtype=what[-4:], tokens=32, prompt_tokens=[4, 512]),
            results=results or training(50, 100),
        )
        | more
    )


class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "docs").mkdir()
        (self.root / "dev" / "bench" / "results").mkdir(parents=True)
        (self.root / "README.md").write_text("No tables.\n")
        self.page = self.root / "docs" / "performance.md"

    def write(self, name, content):
        (self.root / "dev" / "bench" / "results" / f"{name}.json").write_text(json.dumps(content))

    def run_tables(self, *arguments):
        return subprocess.run(
            [sys.executable, TABLES, "--root", self.root, *arguments], capture_output=True, text=True
        )

    def made(self, name):
        self.page.write_text(PAGE.format(block(name)))
        done = self.run_tables()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, f"docs/performance.md: {name}\n")
        text = self.page.read_text()
        self.assertTrue(
            text.startswith("Before.\n\n<!-- table:") and text.endswith("<!-- end -->\n\nAfter.\n"), text
        )
        return text

    def test_a_training_table_has_every_contender_and_the_ratio_to_the_faster_of_pytorchs(self):
        self.write("a", result("training-d12"))
        text = self.made("training-d12")
        self.assertIn("**Fast, 2 cores** (2026-03-01, commit aaaaaaa, PyTorch 3.0;\n`measure`);\n", text)
        self.assertIn("| PyTorch fp32 | 200.0 | 180 to 220 | 4096 |", text)
        self.assertIn("| **ours fp32** | **50.0** | 45.0 to 55.0 | 2048 |", text)
        self.assertIn("Ours / PyTorch's best: 0.50 in fp32, 0.50 the best of each.", text)

    def test_the_caption_has_the_environment_that_the_peers_were_given(self):
        for environment, expected in (
            (
                {"environment": {"PyTorch": {"A": "1", "B": "x" * 153}}},
                f"PyTorch with `A=1`\n`B={'x' * 153}`:\n",
            ),
            ({"environment": {"PyTorch": {}}}, "PyTorch in its plain environment:\n"),
            ({}, "peers in their plain environment:\n"),
        ):
            self.write("a", result("training-d12", **environment))
            self.assertIn(expected, self.made("training-d12"))

    def test_rows_with_another_library_stay_out_of_the_ratio_to_pytorch(self):
        rows = training(50, 100) | {
            "PyTorch fp32 oneDNN compiled, B 4": contender("pytorch_onednn", "fp32", 40)
        }
        self.write("a", result("training-d12", results=rows))
        text = self.made("training-d12")
        self.assertIn("| PyTorch fp32, oneDNN's products, compiled | 40.0 |", text)
        self.assertIn("Ours / PyTorch's best: 0.50 in fp32, 0.50 the best of each.", text)
        self.assertIn("Ours / PyTorch's best with oneDNN's products: 1.25 in fp32.", text)

    def test_all_tables_show_the_machine_and_commit_with_the_most_benchmarks_the_newest_among_equals(self):
        self.write("a", result("training-d12"))
        self.write("b", result("training-d12", "Slow", "2026-03-02", "bbbbbbb", results=training(80, 100)))
        text = self.made("training-d12")
        self.assertIn("**Slow, 2 cores** (2026-03-02, commit bbbbbbb", text)
        self.assertNotIn("aaaaaaa", text)
        # the same machine at two commits: never one table of each
        self.write("c", result("training-shakespeare", commit="aaaaaaa"))
        self.write("d", result("training-shakespeare", date="2026-03-03", commit="ccccccc"))
        self.assertIn("commit aaaaaaa", self.made("training-shakespeare"))
        self.assertIn("commit aaaaaaa", self.made("training-d12"))
        self.assertIn("Not measured on Fast, 2 cores, commit aaaaaaa, 2026-03-01.", self.made("generate"))
        # another benchmark there, of a kind that is not shown, changes nothing
        for number in range(3):
            self.write(f"e{number}", result(f"training-other-{number}", "Slow", "2026-03-04", "bbbbbbb"))
        self.assertIn("commit aaaaaaa", self.made("training-d12"))

    def test_the_newest_result_of_a_machine_counts(self):
        self.write("z", result("training-d12", date="2026-02-28", results=training(70, 100)))
        self.write("b", result("training-d12", date="2026-03-01 09:59", results=training(60, 100)))
        self.write("a", result("training-d12"))
        text = self.made("training-d12")
        self.assertIn("**50.0**", text)
        self.assertNotIn("**60.0**", text)
        self.assertNotIn("**70.0**", text)

    def test_reports_of_other_kinds_in_the_folder_are_passed_over(self):
        self.write("gpu", {"gpu": "H100", "verdicts": []})
        self.write("a", result("training-d12"))
        self.assertIn("**ours fp32**", self.made("training-d12"))

    def test_several_processes_and_generation(self):
        rates = {
            "1 process": {"ratio": 1.0},
            "2 processes, --zero 0": {"ratio": 1.25},
            "2 processes, --zero 1": {"ratio": 1.5},
        }
        for dtype in ("fp32", "bf16"):
            self.write(dtype, result(f"processes-d12-{dtype}", results=rates))
        self.assertIn("| Fast, 2 cores, 2026-03-01, aaaaaaa | fp32 | 1.25 | 1.50 |", self.made("processes"))
        self.write("generate", result("generation-d12", results=generation()))
        text = self.made("generate")
        self.assertIn("| | tokens/s: prompt of 512 | tokens/s: new after 4 | tokens agree |", text)
        self.assertIn(
            "| **ours fp32** | **2,000** (1,800 to 2,200) | **100** (90.0 to 110) | 31 of 32 |", text
        )
        self.assertIn("| llama.cpp f32 | 1,000 (900 to 1,100) | 120 (108 to 132) | |", text)
        self.assertIn("- llama.cpp f32 was fastest with `-fa on` (prompt of 512).", text)
        self.assertIn("| **ours bf16, int8 weights** | **3,000** (2,700 to 3,300) |", text)

    def test_the_readme_has_every_peer_beside_ours(self):
        self.write("a", result("training-d12"))
        rows = training(30, 100) | {"llm.c fp32, B 4": contender("llmc", "fp32", 400)}
        self.write("b", result("training-shakespeare", results=rows))
        self.write("c", result("training-d12", "Slow", "2026-02-01", "bbbbbbb", results=training(80, 100)))
        self.write("d", result("generation-d12", results=generation()))
        text = self.made("speed")
        self.assertIn("Fast, 2 cores, commit aaaaaaa, 2026-03-01; PyTorch without the huge pages", text)
        self.assertIn("| a training step, ms | | flatgpt | PyTorch | llm.c | flatgpt / PyTorch |", text)
        self.assertIn("| 4 layers, C 128, bytes, 12 x 64 | fp32 | 30.0 | 100 | 400 | 0.30 |", text)
        self.assertIn("| GPT-2 124M, 4 x 64 | fp32 | 50.0 | 100 | | 0.50 |", text)
        self.assertIn("GPT-2 124M takes 2.0 GiB where PyTorch takes 3.0 to 4.0.", text)
        self.assertIn("| generating with GPT-2 124M, tokens/s | flatgpt | llama.cpp | transformers |", text)
        self.assertIn("| fp32: prompt of 512 | **2,000** | 1,000 | 1,500 |", text)
        self.assertIn("| int8: new after 4 | **300** | | |", text)
        self.assertNotIn("Slow", text)

    def test_a_sentence_says_where_a_peer_is_faster(self):
        rows = training(50, 100) | {"PyTorch fp32 oneDNN, B 4": contender("pytorch_onednn", "fp32", 40)}
        self.write("a", result("training-d12", results=rows))
        self.write("d", result("generation-d12", results=generation()))
        text = self.made("slower")
        self.assertIn(
            "**Where flatgpt is slower than a peer** (2 of 4 comparisons, "
            "Fast, 2 cores, commit aaaaaaa, 2026-03-01):\n"
            "a training step of GPT-2 124M, 4 x 64 in fp32 "
            "(0.80 of the speed of PyTorch with oneDNN's products);\n"
            "generating, new after 4 tokens in fp32 (0.83 of the speed of llama.cpp f32).\n",
            text,
        )
        self.assertIn("Not compared there: 4 layers, C 128, bytes, 12 x 64; GPT-2 124M, 1 x 1024.", text)
        self.write("a", result("training-d12"))
        faster = generation() | {"llama.cpp f32": generated("llama.cpp", "fp32", 1000, 99)}
        self.write("d", result("generation-d12", results=faster))
        self.assertIn("flatgpt is slower than a peer in none of 3 comparisons", self.made("slower"))
        del faster["ours fp32"]
        faster["llama.cpp q8_0"] = generated("llama.cpp", "int8", 1000, 400)
        self.write("d", result("generation-d12", results=faster))
        self.assertIn("new after 4 tokens in int8 (0.75 of the speed of llama.cpp q8_0)", self.made("slower"))

    def test_which_variables_matter_comes_from_the_newest_comparison(self):
        self.write("a", result("training-d12"))
        self.assertIn("Not measured yet.", self.made("variables"))
        rows = {
            f"PyTorch bf16 compiled, {part}, B 4": contender("pytorch", "bf16", ms) | {"variables": part}
            for part, ms in {
                "none": 500,
                "all": 400,
                "A alone": 490,
                "B alone": 420,
                "all without B": 480,
            }.items()
        }
        self.write("b", result("variables-d12", "Slow", "2026-02-01", "bbbbbbb", results=rows))
        text = self.made("variables")
        self.assertIn("| variables | ms a step, bf16 compiled |", text)
        self.assertIn("| all without B | 480.0 |", text)
        self.assertIn("In bf16 compiled all of them together change the time by -20 %; "
                      "the most effective one alone, `B`, by -16 %.", text)  # fmt: skip

    def test_a_picture_of_other_figures_than_the_tables_is_named(self):
        self.write("a", result("training-d12"))
        self.made("picture")
        picture = self.root / "docs" / "speed.png"
        self.assertIn("docs/speed.png shows other figures", self.run_tables("--check").stderr)
        figures = tables.panels(tables.Results(self.root / "dev" / "bench" / "results"))
        self.assertEqual(
            figures["panels"][0][2], [["flatgpt fp32", "ours", 50], ["PyTorch fp32", "pytorch", 100]]
        )
        picture.write_bytes(png(Software="x", figures=json.dumps(figures)))
        self.assertEqual(self.run_tables("--check").returncode, 0)
        older = figures | {"place": "Fast, 2 cores, commit 0000000, 2026-02-01"}
        for content in (png(figures=json.dumps(older)), png(Software="x")):
            picture.write_bytes(content)
            done = self.run_tables("--check")
            self.assertEqual(done.returncode, 1)
            self.assertIn("docs/speed.png shows other figures than dev/bench/results", done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_check_names_the_page_and_the_table_whose_figure_was_changed_by_hand(self):
        self.write("a", result("training-d12"))
        text = self.made("training-d12")
        self.assertEqual(self.run_tables("--check").returncode, 0)
        self.page.write_text(text.replace("**50.0**", "**49.0**"))
        done = self.run_tables("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("docs/performance.md: table training-d12 differs from dev/bench/results", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("**49.0**", self.page.read_text())

    def test_tables_are_made_of_what_the_tools_save(self):
        program = self.root / "program"
        program.write_text("#!/bin/sh\necho flatgpt 1.2.3\n")
        program.chmod(0o755)
        folder = self.root / "dev" / "bench" / "results"
        arguments = argparse.Namespace(
            save=folder / "training.json",
            preset="d12",
            batch_size=[4],
            rounds=1,
            steps=3,
            device="cpu",
            plain_environment=False,
            which_variables=False,
        )
        timed = dict(
            side="ours",
            dtype="fp32",
            ms=[9.0, 10.0, 30.0],
            median_ms=10.0,
            peak_bytes=5 << 20,
            loss=4.5,
            losses=[4.5],
        )
        slower = timed | dict(side="pytorch", ms=[20.0, 20.0, 20.0], median_ms=20.0)
        never = timed | dict(ms=[], median_ms=None)
        options = dict(layers=12, program=str(program), data="text", init_from="weights")
        generated = argparse.Namespace(
            save=folder / "generate.json",
            model="d12",
            context=1024,
            prompt_tokens=[4, 8],
            tokens=32,
            rounds=1,
        )
        one_rate = dict(rate=100.04, low=99.0, high=101.0)
        rates = {
            "ours fp32": {
                "side": "ours",
                "type": "fp32",
                "prompt": one_rate,
                "new after 4": one_rate,
                "agree": 32,
            }
        }
        with contextlib.redirect_stdout(io.StringIO()):
            results = {"ours fp32, B 4": timed, "PyTorch fp32, B 4": slower, "ours bf16, B 4": never}
            compare_pytorch.save(arguments, options, results, "3.0", 2)
            compare_generate.save(generated, rates, program, {"PyTorch": "3.0", "transformers": "6.1"}, 2)
        saved = json.loads((folder / "training.json").read_text())
        keys = "tool what commit date source machine versions environment command options results"
        self.assertEqual(set(saved), set(keys.split()))
        self.assertEqual(
            (saved["tool"], saved["what"], saved["source"]), ("compare_pytorch", "training-d12", "measured")
        )
        self.assertEqual(saved["versions"], {"PyTorch": "3.0", "flatgpt": "1.2.3"})
        self.assertEqual(saved["machine"]["cores"], 2)
        self.assertEqual(saved["environment"], {"PyTorch": compare_pytorch.PEER_ENVIRONMENT})
        self.assertEqual(saved["options"], {"layers": 12, "batch_size": [4], "rounds": 1, "steps": 3})
        self.assertEqual(list(saved["results"]), ["ours fp32, B 4", "PyTorch fp32, B 4"])
        text = self.made("training-d12")
        self.assertIn("| **ours fp32** | **10.0** |", text)
        self.assertIn("| 5 | 4.5000 |", text)
        self.assertIn("0.50 in fp32", text)
        self.assertIn("PyTorch 3.0, transformers 6.1", self.made("generate"))
        other = argparse.Namespace(**vars(arguments) | {"save": folder / "other.json"})
        with contextlib.redirect_stdout(io.StringIO()):
            compare_pytorch.save(other, options | {"layers": 2}, {"ours fp32, B 4": timed}, "3.0", 2)
        self.assertEqual(json.loads(other.save.read_text())["what"], "training-other")  # in no table
        self.assertIn(
            "| **ours fp32** | **100** (99.0 to 101) | **100** (99.0 to 101) | 32 of 32 |",
            self.made("generate"),
        )

    def test_what_cannot_be_made_is_one_line(self):
        self.page.write_text(block("training-d12"))
        done = self.run_tables("--check")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("has no result of training-shakespeare, training-d12", done.stderr)
        self.write("a", result("training-d12"))
        for page, expected in (
            ("<!-- table: mystery -->\n<!-- end -->\n", "no table mystery"),
            ("<!-- table: speed -->\n", "has no <!-- end -->"),
        ):
            self.page.write_text(page)
            done = self.run_tables("--check")
            self.assertEqual(done.returncode, 1)
            self.assertIn(expected, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_a_broken_result_ended_in_a_traceback(self):
        self.page.write_text(PAGE.format(block("training-d12")))
        results = self.root / "dev" / "bench" / "results"
        for text in ("{", "[" * 100_000, '{"what":"x"}', '{"what":"x","machine":[]}', "\ufffd"):
            (results / "broken.json").write_text(text)
            done = self.run_tables()
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
            self.assertIn("broken.json: is no result of a benchmark", done.stderr)
        self.assertEqual(self.run_tables("--root", "/none").stderr.count("\n"), 1)

    def test_a_wrong_option_printed_the_whole_usage(self):
        for name in (
            "compare_generate",
            "compare_processes",
            "compare_pytorch",
            "markov_text",
            "speed_ladder",
            "tables",
        ):
            done = subprocess.run(
                [sys.executable, TABLES.with_name(f"{name}.py"), "--nonsense"], capture_output=True, text=True
            )
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertTrue(done.stderr.startswith(f"{name}: "), done.stderr)

    def test_the_published_tables_and_the_picture_are_what_the_results_give(self):
        done = subprocess.run([sys.executable, TABLES, "--check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        for page, names in {
            "README.md": ("picture", "speed", "slower"),
            "docs/performance.md": ("slower", *tables.MODELS),
        }.items():
            for name in names:
                self.assertIn(f"<!-- table: {name} -->", (ROOT / page).read_text())


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


class Peers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.options = dict(folder=folder.name, prompts=[[1] * 64, [1] * 512], tokens=8, threads=2)

    def contenders(self, only, llama_cpp):
        arguments, said = (
            argparse.Namespace(only=only, llama_cpp=llama_cpp, llama_version=None),
            io.StringIO(),
        )
        with contextlib.redirect_stderr(said), unittest.mock.patch.object(sys, "prefix", "/none"):
            found = compare_generate.contenders_of(arguments, self.options, dict(os.environ))
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

    def test_the_fastest_way_to_run_llama_cpp_counts_and_is_named(self):
        programs = self.folder / "build" / "bin"
        programs.mkdir(parents=True)
        for name in ("llama-bench", "llama-quantize"):
            (programs / name).write_text(LLAMA_BENCH)
            (programs / name).chmod(0o755)
        for kind in ("f32", "bf16", "q8_0"):
            (self.folder / f"{kind}.gguf").touch()
        (contender,), said = self.contenders("llama.cpp f32", self.folder)
        self.assertEqual(said, "")
        answers = {contender.name: [contender.run() for _ in range(2)]}
        result = compare_generate.summary(answers)["llama.cpp f32"]
        self.assertEqual((result["side"], result["type"]), ("llama.cpp", "fp32"))
        self.assertEqual(result["prompt"], dict(rate=150, low=150, high=150, variant="-fa on"))
        self.assertEqual(result["new after 512"]["rate"], 15)
        self.assertEqual(result["new after 64"]["variant"], "-fa on, huge pages, bound")
        self.assertEqual(
            compare_generate.peer_versions(argparse.Namespace(llama_version=None), [contender]),
            {"llama.cpp": "abc"},
        )

    def test_the_environment_of_peers_is_whole_or_in_parts_and_never_inherited(self):
        inherited = {"PATH": "/bin", "OMP_PROC_BIND": "close"}
        every = compare_pytorch.PEER_ENVIRONMENT
        self.assertEqual(compare_pytorch.peer_environment(inherited), {"PATH": "/bin"} | every)
        self.assertEqual(compare_pytorch.peer_environment(inherited, plain=True), {"PATH": "/bin"})
        for title, names in compare_pytorch.parts_of_environment().items():
            found = compare_pytorch.peer_environment(inherited, names=names)
            self.assertEqual(found, {"PATH": "/bin"} | {name: every[name] for name in names}, title)


class ResultFile(unittest.TestCase):
    def test_a_command_shows_no_path_of_the_machine(self):
        with tempfile.TemporaryDirectory() as folder:
            tool, saved = pathlib.Path(folder, "llama.cpp"), pathlib.Path(folder, "saved.json")
            tool.mkdir()
            command = ["x", "--llama-cpp", str(tool), "--rounds", "3", "--save", str(saved)]
            with unittest.mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(io.StringIO()):
                result_file.save(str(saved), "tool", "what", 2, {}, {}, {}, {})
            text = saved.read_text()
        self.assertEqual(json.loads(text)["command"], "dev/bench/tool.py --llama-cpp llama.cpp --rounds 3")
        self.assertNotIn(folder, text)

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
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            self.assertEqual(result_file.commit(root), "unknown")

            def git(*arguments):
                identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
                subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)

            git("init")
            for name in ("kernel.cuh", "README.md"):
                (root / name).write_text("one\n")
            git("add", ".")
            git("commit", "-m", "one")
            self.assertRegex(result_file.commit(root), r"^[0-9a-f]{7}$")
            (root / "README.md").write_text("two\n")
            self.assertRegex(result_file.commit(root), r"^[0-9a-f]{7}$")
            (root / "kernel.cuh").write_text("two\n")
            self.assertRegex(result_file.commit(root), r"^[0-9a-f]{7}-dirty$")

    def test_the_files_name_says_what_where_and_when(self):
        path = result_file.default_path("training-d12", "AMD EPYC, AVX512_BF16", "2026-11-22")
        self.assertEqual(path.parent, ROOT / "dev" / "bench" / "results")
        self.assertEqual(path.name, "training-d12-amd-epyc-avx512-bf16-2026-11-22.json")


if __name__ == "__main__":
    unittest.main()
