#!/usr/bin/env python3
"""dev/data/: data sets become token shards and eval files, from small local files in the hubs' formats and from a simulated hub.

TOKENIZE_PROGRAM names the program to test with.
"""
import array
import gzip
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
import unittest
import unittest.mock

from common import ROOT, FolderTest  # beside this file
from packages import with_packages

PROGRAM = os.environ.get("TOKENIZE_PROGRAM", str(ROOT / "build" / "release" / "tokenize"))
with_packages("numpy", "pyarrow")
HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None
EOT = 50256

TEXTS = [f"Document {i}: " + "some words, " * (i % 7) + "\u00e9\u6587." for i in range(500)]


def tokens_in(path):
    data = path.read_bytes()
    header = array.array("i", data[:1024])
    assert header[0] == 20240520 and header[1] == 1 and len(data) == 1024 + 2 * header[2], path
    return array.array("H", data[1024:])


def text_of_bytes(path):
    """The text in a shard of the byte tokenizer."""
    return bytes(list(tokens_in(path))).decode()


def write_jsonl(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    opened = gzip.open(path, "wt") if path.suffix == ".gz" else open(path, "w")
    with opened as file:
        for record in records:
            file.write(json.dumps(record) + "\n")


def write_parquet(path, records, rows_per_group):
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path, row_group_size=rows_per_group)


class DataPreparation(FolderTest):
    def setUp(self):
        super().setUp()
        self.source, self.out = self.folder / "source", self.folder / "out"

    def run_program(self, program, *arguments, environment=None):
        command = [sys.executable, ROOT / "dev" / "data" / f"{program}.py", "--out", self.out, "--tokenize", PROGRAM, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})})

    def succeed(self, program, *arguments, **more):
        result = self.run_program(program, *arguments, **more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def assert_refused(self, expected, program, *arguments, **more):
        result = self.run_program(program, *arguments, **more)
        self.assertIn(result.returncode, (1, 2), result.stderr)
        lines = [line for line in result.stderr.splitlines() if not line.startswith(("reading ", "tokenize: interrupted"))]
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn(expected, lines[0])

    def shards(self, prefix):
        """Names and tokens in the order of the stream."""
        return sorted(((path.name, tokens_in(path)) for path in self.out.glob(f"{prefix}*.bin")), key=lambda shard: shard[0][-10:])

    def test_tokens_of_nanogpt_become_a_shard_by_the_command_that_their_refusal_names(self):
        tokens = list(range(3000, 4000))
        nanogpt = self.folder / "train.bin"
        nanogpt.write_bytes(array.array("H", tokens).tobytes())
        train = os.environ.get("TRAIN_PROGRAM", str(ROOT / "build" / "release" / "train_gpt2"))
        refused = subprocess.run([train, "--train-data", nanogpt, "--steps", "1"], capture_output=True, text=True, cwd=self.folder)
        self.assertEqual(refused.returncode, 2)
        command = refused.stderr[refused.stderr.index("python3 -c") : -1]
        done = subprocess.run(command, shell=True, cwd=self.folder, capture_output=True, text=True, env=os.environ | {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(list(tokens_in(self.folder / "shard.bin")), tokens)

    def test_tinyshakespeare_is_llm_c_s(self):
        self.succeed("tinyshakespeare")
        (val_name, val), (train_name, train) = self.shards("tiny_shakespeare_")
        self.assertEqual((val_name, len(val)), ("tiny_shakespeare_val_000000.bin", 32768))
        self.assertEqual((train_name, len(train)), ("tiny_shakespeare_train_000001.bin", 305260))
        self.assertEqual(list(val[:9]), [EOT, 5962, 22307, 25, 198, 8421, 356, 5120, 597])

    def test_fineweb_from_json_lines(self):
        write_jsonl(self.source / "000_00000.jsonl", [{"text": text, "id": "x", "score": 0.5} for text in TEXTS[:200]])
        write_jsonl(self.source / "000_00001.jsonl.gz", [{"text": text} for text in TEXTS[200:]])
        self.succeed("fineweb", "--source", self.source, "--shard-tokens", "3000")
        shards = self.shards("fineweb_")
        self.assertEqual(shards[0][0], "fineweb_val_000000.bin")
        self.assertEqual(shards[1][0], "fineweb_train_000001.bin")
        self.assertTrue(all(len(tokens) == 3000 for _, tokens in shards[:-1]))
        tokens = [token for _, shard in shards for token in shard]
        self.assertEqual(tokens[0], EOT)
        self.assertEqual(tokens.count(EOT), len(TEXTS))

    def assert_all_texts(self, prefix):
        text = b"".join(bytes(list(tokens)) for _, tokens in self.shards(prefix)).decode()
        self.assertEqual(text, "".join(TEXTS))

    @unittest.skipUnless(HAS_PYARROW, "pyarrow cannot be imported")
    def test_fineweb_edu_from_parquet(self):
        records = [{"text": text, "id": str(i), "token_count": i} for i, text in enumerate(TEXTS)]
        write_parquet(self.source / "sample/10BT/000_00000.parquet", records[:300], 64)
        write_parquet(self.source / "sample/10BT/001_00000.parquet", records[300:], 1000)
        self.succeed("fineweb", "--type", "edu", "--source", self.source, "--shard-tokens", "4000", "--tokenizer", "byte")
        self.assert_all_texts("edu_fineweb_")

    @unittest.skipUnless(HAS_PYARROW, "pyarrow cannot be imported")
    def test_damaged_parquet_is_one_line(self):
        self.source.mkdir()
        (self.source / "a.parquet").write_bytes(b"PAR1 but no more")
        self.assert_refused("is no parquet file, or cut short", "fineweb", "--source", self.source)
        write_parquet(self.source / "a.parquet", [{"story": "x"}], 10)
        self.assert_refused("has no column text; it has story", "fineweb", "--source", self.source)

    def test_missing_pyarrow_says_what_to_install(self):
        self.source.mkdir()
        (self.source / "a.parquet").write_bytes(b"PAR1")
        packages = self.folder / "packages"  # before those that are installed
        packages.mkdir()
        for error, expected in (("ModuleNotFoundError", "install it with: pip install pyarrow"),
                                ("ImportError", "pyarrow cannot be imported: it needs NumPy 2")):  # fmt: skip
            (packages / "pyarrow.py").write_text(f"raise {error}('it needs NumPy 2')")
            self.assert_refused(expected, "fineweb", "--source", self.source, environment={"PYTHONPATH": str(packages)})

    def test_tinystories_keeps_the_splits_of_its_source(self):
        write_jsonl(self.source / "data" / "train-00000-of-00001.jsonl", [{"text": f"  {text}\n"} for text in TEXTS])
        write_jsonl(self.source / "data" / "validation-00000-of-00001.jsonl", [{"text": "held"}, {"text": "out"}])
        self.succeed("tinystories", "--source", self.source, "--tokenizer", "byte", "--shard-tokens", "9000")
        self.assertEqual(text_of_bytes(self.out / "TinyStories_val_000000.bin"), "heldout")
        self.assert_all_texts("TinyStories_train")

    def test_tinystories_2_are_texts_with_a_separator(self):
        self.source.mkdir()
        (self.source / "TinyStoriesV2-GPT4-train.txt").write_text("\n<|endoftext|>\n".join(TEXTS) + "\n<|endoftext|>\n")
        (self.source / "TinyStoriesV2-GPT4-valid.txt").write_text("held<|endoftext|>out")
        self.succeed("tinystories", "--stories", "2", "--source", self.source, "--tokenizer", "byte")
        self.assertEqual(text_of_bytes(self.out / "TinyStoriesV2_val_000000.bin"), "heldout")
        self.assert_all_texts("TinyStoriesV2_train")

    def test_a_source_of_which_nothing_came_does_not_block_another_one(self):
        wrong = self.source / "wrong"
        wrong.mkdir(parents=True)
        (wrong / "a.jsonl").write_text("no JSON\n")
        self.assert_refused("", "fineweb", "--source", wrong)
        write_jsonl(self.source / "right" / "a.jsonl", [{"text": text} for text in TEXTS])
        self.succeed("fineweb", "--source", self.source / "right", "--tokenizer", "byte", "--shard-tokens", "9000")
        self.assert_all_texts("fineweb_")
        self.assert_refused("the shards there were begun from", "fineweb", "--source", wrong)

    def test_a_small_source_becomes_shards(self):
        write_jsonl(self.source / "a.jsonl", [{"text": text} for text in TEXTS])
        self.succeed("fineweb", "--source", self.source, "--tokenizer", "byte")
        (_, val), (_, train) = self.shards("fineweb_")
        self.assertEqual(len(val), (len(val) + len(train)) // 10)
        self.assert_all_texts("fineweb_")

    def test_openwebtext_holds_out_the_first_tokens(self):
        write_jsonl(self.source / "train-00000-of-00080.jsonl", [{"text": text} for text in TEXTS])
        self.succeed("openwebtext", "--source", self.source, "--tokenizer", "byte", "--val-tokens", "1234")
        self.assertEqual(len(tokens_in(self.out / "openwebtext_val_000000.bin")), 1234)
        self.assert_all_texts("openwebtext_")

    def test_goes_on_after_sigkill_where_the_finished_shards_end(self):
        for file in range(5):
            write_jsonl(self.source / f"{file:03}.jsonl", [{"text": text} for text in TEXTS[100 * file : 100 * file + 100]])
        arguments = ["--source", self.source, "--tokenizer", "byte", "--shard-tokens", "700"]
        self.succeed("fineweb", *arguments)
        whole = {path.name: path.read_bytes() for path in self.out.iterdir()}

        # Both are killed, tokenize too, when some shards are there; the next run makes none of them again.
        for path in self.out.iterdir():
            path.unlink()
        command = [sys.executable, ROOT / "dev/data/fineweb.py", "--out", self.out, "--tokenize", PROGRAM, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        process.stdout.readline()  # the first shard
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
        time.sleep(0.1)
        before = {path.name: path.stat().st_mtime_ns for path in self.out.glob("*.bin")}
        self.assertGreater(len(before), 0)
        self.succeed("fineweb", *arguments)
        self.assertEqual({path.name: path.read_bytes() for path in self.out.iterdir()}, whole)
        for name, when in before.items():
            self.assertEqual((self.out / name).stat().st_mtime_ns, when, name)

        # With a shard lost near the end, only the file in which it begins, and those after it, are read.
        (self.out / max(name for name in whole if name.startswith("fineweb_train"))).unlink()
        (self.source / "000.jsonl").write_text("never read\n")
        result = self.succeed("fineweb", *arguments)
        self.assertNotIn("reading 000.jsonl", result.stderr)
        self.assertEqual({path.name: path.read_bytes() for path in self.out.iterdir()}, whole)
        # Nothing is missing, so nothing is read.
        self.assertNotIn("reading", self.succeed("fineweb", *arguments).stderr)

    def test_finished_shards_of_more_than_65536_tokens_were_made_again(self):
        sys.path.insert(0, str(ROOT / "dev" / "data"))
        import shards

        self.out.mkdir()
        listed = {"complete": True, "shards": [{"file": "a.bin", "tokens": 5, "document": "x:4"}]}
        (self.out / "a_shards.json").write_text(json.dumps(listed))
        options = unittest.mock.Mock(out=self.out)
        for magic, token_bytes, whole in ((20240520, 2, True), (20240801, 4, True), (20240801, 2, False), (20240520, 4, False)):
            with self.subTest(magic=magic, token_bytes=token_bytes):
                (self.out / "a.bin").write_bytes(magic.to_bytes(4, "little") + bytes(1020 + 5 * token_bytes))
                self.assertEqual(shards.finished(options, "a_", "first"), (True, "x:4") if whole else (False, None))

    def test_a_broken_record_is_one_line_and_a_restart_goes_on(self):
        records = [json.dumps({"text": text}) for text in TEXTS]
        self.source.mkdir()
        for damage, expected in (
            ('{"text": "cut', "a.jsonl, line 401: Invalid control character"),
            ('{"story": "x"}', 'record 401: has no text "text"'),
            ("[]", "a.jsonl, line 401: expected an object"),
        ):
            (self.source / "a.jsonl").write_text("\n".join(records[:400] + [damage] + records[400:]))
            self.assert_refused(expected, "fineweb", "--source", self.source, "--tokenizer", "byte", "--shard-tokens", "5000")
        (self.source / "a.jsonl").write_text("\n".join(records))
        self.succeed("fineweb", "--source", self.source, "--tokenizer", "byte", "--shard-tokens", "5000")
        self.assert_all_texts("fineweb_")

    def test_wrong_sources_are_one_line(self):
        self.assert_refused("is no folder", "fineweb", "--source", self.folder / "none")
        self.source.mkdir()
        self.assert_refused("holds no file", "fineweb", "--source", self.source)
        self.assert_refused("invalid choice", "fineweb", "--size", "1B")
        write_jsonl(self.source / "a.jsonl", [{"text": text} for text in TEXTS])
        self.succeed("fineweb", "--source", self.source, "--tokenizer", "byte", "--shard-tokens", "5000")
        write_jsonl(self.folder / "other" / "a.jsonl", [{"text": text} for text in TEXTS])
        self.assert_refused("were begun from", "fineweb", "--source", self.folder / "other", "--tokenizer", "byte")

    def write_hub(self, repository, files):
        """Writes a replacement of huggingface_hub that reads a local folder and records its calls."""
        packages = self.folder / "packages"
        packages.mkdir()
        for name, records in files.items():
            write_jsonl(self.folder / "hub" / repository / name, records)
        (packages / "huggingface_hub.py").write_text(textwrap.dedent(f"""
            import pathlib
            HUB = pathlib.Path({str(self.folder / "hub")!r})
            def note(*what):
                with open({str(self.folder / "asked")!r}, "a") as file:
                    print(*what, file=file)
            class Info:
                sha = "c0ffee"
            class HfApi:
                def dataset_info(self, repo_id, *, revision=None):
                    note("info", repo_id, revision)
                    if not (HUB / repo_id).is_dir():
                        raise RuntimeError("404 Client Error.\\nRepository Not Found")
                    return Info()
                def list_repo_files(self, repo_id, *, revision=None, repo_type=None):
                    note("list", repo_id, repo_type, revision)
                    return ["README.md"] + [str(p.relative_to(HUB / repo_id)) for p in (HUB / repo_id).rglob("*") if p.is_file()]
            def hf_hub_download(repo_id, filename, *, repo_type=None, revision=None):
                note("download", repo_id, filename, repo_type, revision)
                return str(HUB / repo_id / filename)
            """))  # fmt: skip
        return {"PYTHONPATH": str(packages)}

    def test_the_hub_is_asked_for_the_data_set_at_one_state(self):
        # openwebtext accepts files of any format under its usual names.
        files = {f"data/train-0000{i}-of-00002.parquet": [{"text": text} for text in TEXTS[250 * i : 250 * i + 250]] for i in range(2)}
        environment = self.write_hub("Skylion007/openwebtext", files)
        if not HAS_PYARROW:
            self.assert_refused("pip install pyarrow", "openwebtext", environment=environment)
        else:
            for path in (self.folder / "hub").rglob("*.parquet"):
                write_parquet(path, [json.loads(line) for line in path.read_text().splitlines()], 100)
            arguments = ["--tokenizer", "byte", "--val-tokens", "1000"]
            self.succeed("openwebtext", *arguments, environment=environment)
            self.assert_all_texts("openwebtext_")
        asked = (self.folder / "asked").read_text().splitlines()
        self.assertEqual(asked[0], "info Skylion007/openwebtext None")
        self.assertEqual(asked[1], "list Skylion007/openwebtext dataset c0ffee")
        self.assertEqual(asked[2], "download Skylion007/openwebtext data/train-00000-of-00002.parquet dataset c0ffee")
        # A restart uses the state of the data set with which it began.
        self.run_program("openwebtext", "--tokenizer", "byte", environment=environment)
        self.assertEqual(sum(line.startswith("info") for line in (self.folder / "asked").read_text().splitlines()), 1)

    def test_an_unreachable_hub_is_one_line(self):
        environment = self.write_hub("Some/other", {"a.jsonl": [{"text": "x"}]})
        expected = "HuggingFaceFW/fineweb-edu cannot be reached: 404 Client Error. Repository"
        self.assert_refused(expected, "fineweb", "--type", "edu", environment=environment)
        (self.folder / "packages" / "huggingface_hub.py").write_text("raise ModuleNotFoundError")
        self.assert_refused("install it with: pip install huggingface_hub", "fineweb", environment=environment)

    def test_hellaswag_becomes_json_lines_and_llm_c_s_format(self):
        examples = [json.loads(line) for line in (ROOT / "data" / "hellaswag_val_300.jsonl").read_text().splitlines()[:20]]
        write_jsonl(self.source / "validation.jsonl", [{**example, "label": str(example["label"])} for example in examples])
        result = self.succeed("hellaswag", "--source", self.source)
        self.assertEqual(result.stdout.count("20 examples"), 2)
        written = [json.loads(line) for line in (self.out / "hellaswag_val.jsonl").read_text().splitlines()]
        self.assertEqual(written, examples)

        data = (self.out / "hellaswag_val.bin").read_bytes()
        header, body = array.array("i", data[:1024]), array.array("H", data[1024:])
        self.assertEqual(list(header[:3]), [20240522, 1, 20])
        self.assertEqual(set(header[4:]), {0})
        vocabulary = {number: token for token, number in json.loads((ROOT / "data" / "gpt2_encoder.json").read_text()).items()}
        longest, at = 0, 0
        for index, example in enumerate(examples):
            start, size, number, label, completions = body[at : at + 5]
            self.assertEqual((start, number, label, completions), (65535, index, example["label"], 4))
            longest, end, at = max(longest, size), at + size // 2, at + 5
            for text in [example["ctx"], *(" " + ending for ending in example["endings"])]:
                count = body[at]
                # GPT-2's alphabet shows a space as U+0120; these texts are ASCII otherwise
                found = "".join(vocabulary[token] for token in body[at + 1 : at + 1 + count]).replace("\u0120", " ")
                if text.isascii():
                    self.assertEqual(found, text)
                at += 1 + count
            self.assertEqual(at, end)
        self.assertEqual(at, len(body))
        self.assertEqual(header[3], longest)

    def test_hellaswag_refuses_what_is_no_example(self):
        good = {"ctx": "a", "endings": ["b", "c", "d", "e"], "label": 1}
        for damage in ({"label": "4"}, {"label": ""}, {"endings": ["b"]}, {"ctx": ""}, {"ctx": None}):
            write_jsonl(self.source / "val.jsonl", [good, {**good, **damage}])
            self.assert_refused("record 2: is no HellaSwag example", "hellaswag", "--source", self.source)

    def test_a_missing_program_is_named(self):
        self.assert_refused("/none: is no program", "tinyshakespeare", "--tokenize", "/none")


if __name__ == "__main__":
    unittest.main()
