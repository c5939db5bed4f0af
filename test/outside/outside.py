"""Shared by the tests of this folder: our programs, the tokens that they write, and GPT-2's tokenizer by transformers."""
import array
import os
import pathlib
import shutil
import subprocess
import tempfile

# Nothing is downloaded, and transformers says nothing that is no error.
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
import transformers  # noqa: E402

transformers.utils.logging.disable_progress_bar()
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "data"


def run(program, *words):
    """The output of one of our programs. Fails the test with the program's message."""
    done = subprocess.run([ROOT / program, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{program}: {done.stderr.strip()}")
    return done.stdout


def tokens_of(tokenizer, *texts):
    """The tokens that ./tokenize writes for these texts, one file each."""
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder, f"{number}.txt") for number in range(len(texts))]
        for file, text in zip(files, texts):
            file.write_bytes(text.encode())
        run("tokenize", "--tokenizer", tokenizer, "--out", f"{folder}/shards", *files)
        return array.array("H", pathlib.Path(folder, "shards", "train_000000.bin").read_bytes()[1024:]).tolist()


def gpt2_files(folder):
    """GPT-2's vocab.json and merges.txt."""
    folder.mkdir(exist_ok=True, parents=True)
    shutil.copy(DATA / "gpt2_encoder.json", folder / "vocab.json")
    shutil.copy(DATA / "gpt2_vocab.bpe", folder / "merges.txt")


def gpt2_tokenizer(**more):
    with tempfile.TemporaryDirectory() as folder:
        gpt2_files(pathlib.Path(folder))
        return transformers.GPT2TokenizerFast(vocab=f"{folder}/vocab.json", merges=f"{folder}/merges.txt", **more)
