#!/usr/bin/env python3
"""Read errors: train_gpt2 ends with one line that names the file, or resumes from readable files; nothing is lost.

READ_ERRORS=500 test/test_read_errors.py RandomReadErrors    # any number of random errors; SEED=n repeats them
"""
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from common import ROOT, metrics, write_shard  # beside this file
from io_faults import faults, matching_calls

PROGRAM = os.environ.get("TRAIN_PROGRAM", str(ROOT / "build" / "release" / "train_gpt2"))
GENERATE = str(pathlib.Path(PROGRAM).with_name("generate_gpt2"))
MPIRUN = [str(ROOT / "test" / "mpi" / "mpirun.sh"), "-np", "2"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
# A tiny model. Its data is large enough that most pages are not read before the first step.
DEFAULTS = {"--layers": 1, "--heads": 2, "--channels": 16, "--context": 16, "--batch-size": 8, "--total-batch": 256,
            "--tokenizer": "byte", "--vocab": 256, "--warmup": 2, "--schedule": "constant", "--sample-every": 0, "--val-every": 0,
            "--checkpoint-every": 3, "--keep": 9}  # fmt: skip


def lines_of(run, kind="train"):
    return [(r["step"], r["loss"], r.get("grad_norm")) for r in metrics(run, kind)]


def contents(folder):
    """The contents of a folder by name: the bytes of files, the targets of links."""
    return {str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            for path in sorted(folder.rglob("*"))}  # fmt: skip


class Runs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.data = cls.folder / "train.bin"
        text = (ROOT / "data" / "tinyshakespeare.txt").read_bytes()[:600_000]
        write_shard(cls.data, list(text))
        write_shard(cls.folder / "val.bin", list(text[:200_000]))
        # A run of 9 steps, with checkpoints at 3, 6 and 9; and its beginning, as an interrupted run leaves it.
        cls.straight, cls.begun = cls.folder / "straight", cls.folder / "begun"
        assert cls.train("--steps", 9, "--out", cls.straight).returncode == 0
        assert cls.train("--steps", 6, "--out", cls.begun).returncode == 0

    def setUp(self):
        self.out = self.folder / self.id().rsplit(".", 1)[1]
        shutil.copytree(self.begun, self.out)
        self.addCleanup(shutil.rmtree, self.out)

    @classmethod
    def command(cls, *options):
        values = DEFAULTS | {"--train-data": cls.data} | dict(zip(options[::2], options[1::2], strict=True))
        return [PROGRAM, *(str(part) for option in values.items() for part in option)]

    @classmethod
    def train(cls, *options, before=(), failing=None):
        return subprocess.run([*before, *cls.command(*options)], env=ENVIRONMENT | (failing or {}), capture_output=True, text=True, timeout=120)

    def resume(self, failing=None, **more):
        return self.train("--steps", 9, "--out", self.out, "--resume", "auto", failing=failing, **more)

    def assert_one_line(self, result, *words, code=None):
        self.assertGreater(result.returncode, 0, result.stdout)
        if code is not None:
            self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("train_gpt2: "), result.stderr)
        for word in (*words,):
            self.assertIn(str(word), result.stderr)
        self.assertNotIn("filesystem error", result.stderr)

    def assert_refused(self, result, *words):
        """The run ends with one line, and no file has changed."""
        self.assert_one_line(result, *words, code=2)
        self.assertEqual(contents(self.out), contents(self.begun))

    def assert_same_end(self):
        last = "checkpoints/step_00000009"
        for file in ("model.safetensors", "optimizer_0000.safetensors"):
            self.assertEqual((self.out / last / file).read_bytes(), (self.straight / last / file).read_bytes(), file)
        self.assertEqual(lines_of(self.out), lines_of(self.straight))

    def assert_goes_on(self):
        result = self.resume()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_same_end()


class Checkpoints(Runs):
    files = ["model.safetensors", "optimizer_0000.safetensors", "config.json", "state.json"]

    def test_what_cannot_be_opened_is_not_damaged(self):
        for file in self.files:
            for calls, error, text in (("open", "EACCES", "Permission denied"), ("open", "EIO", "Input/output error"),
                                       ("open", "EMFILE", "Too many open files"), ("open", "ENOMEM", "Cannot allocate memory"),
                                       ("stat", "ESTALE", "Stale file handle")):  # fmt: skip
                with self.subTest(file=file, error=error):
                    path = self.out / "checkpoints" / "step_00000006" / file
                    self.assert_refused(self.resume(faults(calls, f"step_00000006/{file}", error)), f"{path}: ", text)
        self.assert_goes_on()

    def test_a_checkpoint_on_bytes_that_cannot_be_read_is_passed_over_by_name(self):
        path = self.out / "checkpoints" / "step_00000006" / "model.safetensors"
        result = self.resume(faults("page", "step_00000006/model.safetensors", page=3))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"the checkpoint of step 6 is passed over: {path}: cannot be read at byte {3 * 4096}: ", result.stdout)
        self.assertIn("continuing from step 3", result.stdout)
        self.assertEqual(sorted(p.name for p in (self.out / "checkpoints").iterdir()),
                         ["step_00000003", "step_00000006", "step_00000006.unreadable", "step_00000009"])  # fmt: skip
        self.assert_same_end()

    def test_no_checkpoint_that_can_be_read_is_not_no_checkpoint(self):
        result = self.resume(faults("page", "model.safetensors", count=9))
        self.assert_refused(result, "none of its 2 checkpoints is whole")
        self.assert_goes_on()

    def test_weights_that_cannot_be_read_end_with_one_line(self):
        weights = self.out / "checkpoints" / "step_00000006" / "model.safetensors"
        # The first read is compared with the checksum; the second one is loaded.
        result = self.resume(faults("page", "step_00000006/model.safetensors", first=2))
        self.assert_one_line(result, f"{weights}: cannot be read at byte ", code=1)
        self.assertEqual(contents(self.out), contents(self.begun))
        result = subprocess.run([GENERATE, str(self.out), "--max-tokens", "3"], text=True, capture_output=True, timeout=60,
                                env=ENVIRONMENT | faults("page", "step_00000006/model.safetensors", first=2))  # fmt: skip
        self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1), result.stderr)
        self.assertIn(f"generate_gpt2: {weights}: cannot be read at byte ", result.stderr)


class Folders(Runs):
    def test_a_checkpoints_folder_that_cannot_be_seen_is_not_no_checkpoint(self):
        folder = self.out / "checkpoints"
        for calls, error, text in (("stat", "EACCES", "Permission denied"), ("stat", "ESTALE", "Stale file handle"),
                                   ("opendir", "EACCES", "Permission denied"), ("opendir", "EIO", "Input/output error"),
                                   ("opendir", "EMFILE", "Too many open files"), ("readdir", "EIO", "Input/output error")):  # fmt: skip
            for options in (["--out", self.out, "--resume", "auto"], ["--resume", self.out]):
                with self.subTest(calls=calls, error=error, options=options[0]):
                    result = self.train("--steps", 9, *options, failing=faults(calls, folder, error, count=99))
                    self.assert_refused(result, f"{folder}", text)
        self.assert_goes_on()

    def test_a_loop_of_links_is_not_no_checkpoint(self):
        shutil.rmtree(self.out / "checkpoints")
        (self.out / "checkpoints").symlink_to("checkpoints")
        before = contents(self.out)
        result = self.resume()
        self.assert_one_line(result, f"{self.out / 'checkpoints'}: ", "Too many levels of symbolic links", code=2)
        self.assertEqual(contents(self.out), before)

    def test_the_metrics_of_a_run_that_starts_again_are_kept(self):
        shutil.rmtree(self.out / "checkpoints")
        lines = (self.out / "metrics.jsonl").read_bytes()
        result = self.resume()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"its metrics are now called {self.out / 'metrics.jsonl.superseded'}", result.stdout)
        self.assertEqual((self.out / "metrics.jsonl.superseded").read_bytes(), lines)
        self.assert_same_end()
        # The run is repeated: nothing is overwritten.
        second = (self.out / "metrics.jsonl").read_bytes()
        shutil.rmtree(self.out / "checkpoints")
        self.assertEqual(self.resume().returncode, 0)
        self.assertEqual((self.out / "metrics.jsonl.superseded").read_bytes(), lines)
        self.assertEqual((self.out / "metrics.jsonl.superseded-2").read_bytes(), second)

    def test_metrics_that_cannot_be_read_are_left_alone(self):
        file = self.out / "metrics.jsonl"
        self.assert_refused(self.resume(faults("open", file, "EACCES")), f"{file}: cannot be opened: Permission denied")
        result = self.resume(faults("page", file))
        self.assert_one_line(result, f"{file}: cannot be read at byte 0", code=1)
        self.assertEqual(contents(self.out), contents(self.begun))
        self.assert_goes_on()


class TrainingData(Runs):
    def assert_names_the_last_good_checkpoint(self, errors, run, file):
        line = next(line for line in errors.splitlines() if line.startswith("train_gpt2: "))
        self.assertRegex(line, rf"{file}: cannot be read at byte \d+: .*; the last good checkpoint is {run}/checkpoints/step_\d+$")
        checkpoint = pathlib.Path(line.rsplit(" ", 1)[1])
        self.assertTrue((checkpoint / "state.json").exists(), line)

    def test_a_page_that_cannot_be_read_names_the_last_good_checkpoint(self):
        result = self.train("--steps", 999, "--out", self.out, "--resume", "auto", failing=faults("page", self.data))
        self.assert_one_line(result, code=1)
        self.assert_names_the_last_good_checkpoint(result.stderr, self.out, self.data)

    def test_a_page_of_the_validation_data_that_cannot_be_read_is_found_before_the_first_step(self):
        result = self.train("--steps", 60, "--out", self.out, "--resume", "auto", "--val-data", self.folder / "val.bin", "--val-every", 50,
                            failing=faults("page", self.folder / "val.bin"))  # fmt: skip
        self.assert_one_line(result, f"{self.folder}/val.bin: cannot be read at byte ", code=1)
        self.assertEqual(contents(self.out), contents(self.begun))

    def end_of_a_run_whose_data_is_cut(self, before, option="--train-data", *options):
        """Standard error of a run whose shard becomes shorter, for all of its processes. The last finished step is saved, and
        with the whole shard the run goes on as if nothing had happened."""
        data = self.folder / f"{self.out.name}.bin"
        whole = (self.data if option == "--train-data" else self.folder / "val.bin").read_bytes()
        data.write_bytes(whole)
        run, straight = (self.folder / f"{self.out.name}-{name}" for name in ("cut", "straight"))
        self.addCleanup(shutil.rmtree, run)
        command = self.command("--steps", 1_000_000, option, data, "--out", run, *options)
        process = subprocess.Popen([*before, *command], text=True,
                                   env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)  # fmt: skip
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        end = time.monotonic() + 60
        while not (run / "checkpoints" / "step_00000006").exists():
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        os.truncate(data, 8192)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, errors)
        self.assertIn("the file has become shorter", errors)
        self.assert_names_the_last_good_checkpoint(errors, run, data)
        last = lines_of(run)[-1][0]
        saved = run / "checkpoints" / f"step_{last:08}"
        self.assertRegex(errors, f"{saved}\n")
        state = json.loads((saved / "state.json").read_text())
        self.assertEqual(state["evaluated"], option == "--train-data")
        self.assertEqual(lines_of(run, "val")[-1:], [] if option == "--train-data" else [(last - 6, *lines_of(run, "val")[-1][1:])])

        data.write_bytes(whole)
        self.addCleanup(shutil.rmtree, straight)
        for out in (run, straight):
            result = self.train("--steps", last + 6, option, data, "--out", out, "--resume", "auto", *options, before=before)
            self.assertEqual(result.returncode, 0, result.stderr)
        for kind in ("train", "val"):
            self.assertEqual(lines_of(run, kind), lines_of(straight, kind))
        for file in ("model.safetensors", "optimizer_0000.safetensors"):
            end = f"checkpoints/step_{last + 6:08}/{file}"
            self.assertEqual((run / end).read_bytes(), (straight / end).read_bytes())
        return errors

    def test_a_data_set_of_more_shards_than_the_soft_limit_of_open_files(self):
        folder, run = self.folder / "shards", self.folder / "many"
        folder.mkdir()
        for number in range(80):
            write_shard(folder / f"train_{number:06}.bin", list(self.data.read_bytes()[1024 + 100 * number : 1124 + 100 * number]))
        result = self.train("--steps", 1, "--out", run, "--train-data", folder, before=["sh", "-c", 'ulimit -Sn 40; exec "$0" "$@"'])
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_shard_that_is_cut_under_a_run_ends_it_with_one_line(self):
        errors = self.end_of_a_run_whose_data_is_cut([])
        self.assertEqual(errors.count("\n"), 1, errors)

    def test_a_validation_shard_that_is_cut_costs_no_step(self):
        errors = self.end_of_a_run_whose_data_is_cut([], "--val-data", "--val-every", 6, "--val-steps", 0)
        self.assertEqual(errors.count("\n"), 1, errors)
        if shutil.which("mpirun"):
            self.doCleanups()
            self.setUp()
            self.end_of_a_run_whose_data_is_cut(MPIRUN, "--val-data", "--val-every", 6, "--val-steps", 0)

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_a_shard_that_is_cut_ends_all_processes(self):
        begin = time.monotonic()
        self.end_of_a_run_whose_data_is_cut(MPIRUN)
        self.assertLess(time.monotonic() - begin, 50)


class RandomReadErrors(Runs):
    def test_nothing_is_lost_and_every_end_is_one_line(self):
        seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
        rng = random.Random(seed)
        wanted = int(os.environ.get("READ_ERRORS", 12))
        calls, log = "open,stat,opendir,readdir,read,page", self.folder / "calls"
        self.assertEqual(self.resume(faults(calls, self.folder, first=0, log=log)).returncode, 0)
        total = len(matching_calls(log))
        self.assertGreater(total, 50)
        outcomes = {}
        for number in range(wanted):
            first, count = rng.randrange(1, total + 1), rng.choice([1, 1, 1, 2, 50])
            error = rng.choice(["EIO", "EACCES", "EMFILE", "ENOMEM", "ESTALE"])
            with self.subTest(seed=seed, number=number, first=first, count=count, error=error):
                shutil.rmtree(self.out)
                shutil.copytree(self.begun, self.out)
                failed = self.folder / "failed"
                failed.unlink(missing_ok=True)
                result = self.resume(faults(calls, self.folder, error, first, count, failed, page=rng.randrange(1000)))
                # The loader reads ahead by as much as it has time for, so a run may end before its call number `first`.
                calls_failed = matching_calls(failed)
                if result.returncode != 0:
                    self.assertTrue(calls_failed, result.stderr)
                    self.assert_one_line(result)
                    self.assert_goes_on()
                else:
                    self.assert_same_end()
                call = calls_failed[0].split()[0] if calls_failed else "no call"
                what = f"{call}: {'ended' if result.returncode else 'went on'}"
                outcomes[what] = outcomes.get(what, 0) + 1
        self.assertLess(outcomes.get("no call: went on", 0), 1 + wanted / 2, outcomes)
        if "READ_ERRORS" in os.environ:
            print(f"seed {seed}: {total} calls; {outcomes}", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
