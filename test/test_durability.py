#!/usr/bin/env python3
"""Checkpoints that a training run reports as written are on the disk: power cuts and failing writes lose none of them.

POWER_CUTS=300 WRITE_ERRORS=500 test/test_durability.py    # any number of each; SEED=n repeats them
"""
import collections
import io_faults
import json
import os
import pathlib
import power_cuts
import random
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("TRAIN_PROGRAM", str(ROOT / "build/release/train_gpt2"))
TRACER = os.environ.get("FILE_TRACE_LIBRARY", str(ROOT / "build/release/cmake/cpu/libfile_trace.so"))
# A tiny model, every kind of line, and few steps between checkpoints.
OPTIONS = {"--layers": 1, "--heads": 2, "--channels": 16, "--context": 16, "--batch-size": 2, "--total-batch": 64, "--warmup": 2,
           "--val-every": 3, "--val-steps": 2, "--sample-every": 5, "--sample-tokens": 3, "--checkpoint-every": 2}  # fmt: skip
STEPS = 8
WRITING = "write,fsync,syncdir,close,rename,mkdir,unlink"


def metrics(run):
    """Lines without the varying parts: times, the peaks that a busy machine measures again, and the marks of runs."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    times = ("step_ms", "tokens_per_second", "mfu")
    return [{key: record[key] for key in record if key not in times} for record in records if record["kind"] not in ("run", "mfu_peak")]


def model_of(run, step):
    return [(run / f"checkpoints/step_{step:08}" / f"{name}.safetensors").read_bytes() for name in ("model", "optimizer_0000")]


def last_saved(output):
    """The last step whose checkpoint the run reported as written; 0 if there is none."""
    return max(map(int, re.findall(r"step (\d+): checkpoint written", output)), default=0)


class Durability(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # In memory if there is such a file system: the tests do not depend on disks.
        folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name).resolve()
        cls.options = {}
        cls.expected = cls.straight_run("straight")

    def setUp(self):
        self.seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
        self.rng = random.Random(self.seed)

    @staticmethod
    def command(run, options):
        values = OPTIONS | options | {"--steps": STEPS} | ({"--resume": "auto", "--out": run} if run else {})
        return [PROGRAM, "--deterministic", *(str(part) for option in values.items() for part in option)]

    @staticmethod
    def environment(**more):
        return os.environ | {"OMP_NUM_THREADS": "1"} | more

    @classmethod
    def train(cls, run, options={}, cwd=None, **environment):
        """run: its folder; None: a new one under runs/ in cwd."""
        with open(cls.folder / "output", "w+") as output:
            result = subprocess.run(cls.command(run, options), stdout=output, stderr=subprocess.PIPE, text=True, timeout=300,
                                    cwd=cwd, env=cls.environment(**environment))  # fmt: skip
            output.seek(0)
            result.stdout = output.read()
        return result

    @staticmethod
    def finished(result):
        assert result.returncode == 0, result.stderr + result.stdout
        return result

    @classmethod
    def straight_run(cls, name, options={}):
        """The results of a run without faults."""
        cls.finished(cls.train(cls.folder / name, options))
        return metrics(cls.folder / name), model_of(cls.folder / name, STEPS)

    def new_root(self):
        return pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def traced(self, root, run="new/run"):
        """Trains in root/run; returns its trace and result."""
        trace = power_cuts.Trace(root, self.folder / f"{root.name}.trace")
        return trace, self.train(run and root / run, self.options, cwd=root, **trace.environment, LD_PRELOAD=TRACER)

    def check_end(self, run, result, saved):
        """A run resumed after a fault has lost nothing, and ended with the results of a run without faults."""
        self.assertEqual(result.returncode, 0, result.stderr)
        going_on = re.search(r"continuing from step (\d+)", result.stdout)
        complete = "nothing is left to do" in result.stdout
        self.assertGreaterEqual(int(going_on[1]) if going_on else STEPS if complete else 0, saved, result.stdout)
        self.assertNotRegex(result.stdout + result.stderr, "passed over|damaged|has no lines")
        self.assertTrue((run / f"checkpoints/step_{STEPS:08}").exists(), result.stdout + result.stderr)
        self.assertEqual((metrics(run), model_of(run, STEPS)), self.expected)
        if not complete:
            self.assertEqual([path for path in run.rglob("*") if ".tmp-" in path.name], [])


class PowerCuts(Durability):
    def recover(self, disk, kind, saved):
        """Resumes from the state after a cut. Returns the new run's trace and result. saved: a step whose checkpoint must be there."""
        root = self.new_root()
        disk.write_state(root, kind, self.rng)
        left = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
        trace, result = self.traced(root)
        with self.subTest(seed=self.seed, kind=kind, saved=saved, left=left):
            self.check_end(root / "new/run", result, saved)
        shutil.rmtree(root)
        return trace, result

    def test_the_trace_is_whole(self):
        root = self.new_root()
        trace, result = self.traced(root)
        self.finished(result)
        then = self.new_root()
        trace.disk_after(None).write_state(then, "everything", self.rng)
        names = [sorted(path.relative_to(folder) for path in folder.rglob("*")) for folder in (root, then)]
        self.assertEqual(*names)
        for path in root.rglob("*"):
            self.assertTrue(path.is_dir() or path.read_bytes() == (then / path.relative_to(root)).read_bytes(), path)

    def test_a_checkpoint_that_was_said_to_be_written_is_on_the_disk(self):
        trace, result = self.traced(self.new_root())
        self.finished(result)
        operations, saved = trace.operations(), 0
        for i, (operation, *fields) in enumerate(operations):
            if operation == "said" and (now := last_saved(result.stdout[: int(fields[0])])) > saved:
                saved = now
                self.recover(trace.disk_after(i + 1), "nothing", saved)
        self.assertEqual(saved, STEPS)

    def test_a_new_folder_under_runs_is_on_the_disk(self):
        root, then = self.new_root(), self.new_root()
        trace, result = self.traced(root, None)
        self.finished(result)
        trace.disk_after(None).write_state(then, "nothing", self.rng)
        runs = list(then.glob("runs/*"))
        self.assertEqual([model_of(run, STEPS) for run in runs], [self.expected[1]])

    def test_without_any_of_its_syncs_a_run_is_lost(self):
        """Shows that the syncs are needed, and that the other tests find missing ones."""
        trace, result = self.traced(self.new_root())
        self.finished(result)
        whole = self.new_root()
        trace.disk_after(None).write_state(whole, "nothing", self.rng)
        self.check_end(whole / "new/run", self.train(whole / "new/run"), STEPS)
        without = {
            "all": ".*", "the root": "$", "the parent of --out": "new", "the run's folder": "run", "checkpoints": "checkpoints",
            "the checkpoint's folder": "step_", "metrics": "metrics", "model": "model", "optimizer": "optimizer", "state": "state",
        }  # fmt: skip
        for what, name in without.items():
            root = self.new_root()
            trace.disk_after(None, lambda first: not re.match(name, first)).write_state(root, "nothing", self.rng)
            with self.subTest(without=what), self.assertRaises(AssertionError):
                self.check_end(root / "new/run", self.train(root / "new/run"), STEPS)

    def random_cuts(self, trace, result, floor, wanted):
        """Random cuts of this run, and of the runs that resume it. floor: a step whose checkpoint was there when it began."""
        first = trace, result, floor
        for _ in range(wanted):
            disk = trace.disk_after(self.rng.randint(0, len(trace.operations())))
            saved = max(floor, last_saved(result.stdout[: disk.said]))
            kind = self.rng.choice(["nothing", "everything", "prefix", "subset", "subset"])
            trace, result = self.recover(disk, kind, saved)
            floor = saved
            if saved == STEPS or self.rng.random() < 0.3:
                trace, result, floor = first

    def test_random_cuts(self):
        trace, result = self.traced(self.new_root())
        self.random_cuts(trace, self.finished(result), 0, int(os.environ.get("POWER_CUTS", 5)))

    def test_cuts_while_an_evaluation_is_added_to_a_checkpoint(self):
        """The last validation was interrupted, and a resumed run repeats it."""
        self.options = {"--val-every": 1000, "--sample-every": 1000}
        self.expected = self.straight_run("repeated", self.options)
        root = self.new_root()
        command = self.command(root / "new/run", self.options | {"--val-steps": 0})
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment())
        self.addCleanup(process.stdout.close)
        for line in process.stdout:
            if line.startswith(f"step {STEPS}/"):
                process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)
        self.assertEqual([record["kind"] for record in metrics(root / "new/run")], ["train"] * STEPS)
        trace, result = self.traced(root)
        self.random_cuts(trace, self.finished(result), STEPS, int(os.environ.get("POWER_CUTS", 5)))


class WriteErrors(Durability):
    def test_without_locks_a_line_says_that_others_would_not_be_noticed(self):
        for error in ("ENOLCK", "ENOSYS", "EOPNOTSUPP"):
            run = self.new_root() / "run"
            result = self.finished(self.train(run, **io_faults.faults("flock", str(run), error)))
            self.assertRegex(result.stdout, f"{run}: cannot be locked: .*; another process training there would not be noticed")
            self.assertEqual((metrics(run), model_of(run, STEPS)), self.expected)

    def test_a_file_system_that_does_not_sync_folders_is_used_all_the_same(self):
        run = self.new_root() / "run"
        result = self.finished(self.train(run, **io_faults.faults("syncdir", "", "EINVAL", count=10**9)))
        self.assertEqual(last_saved(result.stdout), STEPS)
        self.assertEqual((metrics(run), model_of(run, STEPS)), self.expected)

    def test_a_checkpoint_that_cannot_be_synced_does_not_count(self):
        """If any part of it cannot be synced, older ones stay, and no line reports it as written."""
        for family, path in (("syncdir", "checkpoints"), ("fsync", "model.safetensors"), ("fsync", "metrics.jsonl")):
            with self.subTest(path=path):
                run = self.new_root() / "run"
                log = self.folder / "calls"
                log.unlink(missing_ok=True)
                self.finished(self.train(run, **io_faults.faults(family, path, first=0, log=log)))
                third = len(io_faults.matching_calls(log)) // 2
                run = self.new_root() / "run"
                result = self.train(run, **io_faults.faults(family, path, first=third, count=10**9))
                saved = last_saved(result.stdout)
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertIn(saved, range(2, STEPS))
                self.assertRegex(result.stdout, r"step \d+: the checkpoint could not be written, .*cannot be")
                self.assertIn("the last checkpoint could not be written", result.stderr)
                self.check_end(run, self.train(run), saved)

    def calls(self, root):
        """The number of calls of each family in a run."""
        log = self.folder / "calls"
        self.finished(self.train(root / "run", **io_faults.faults(WRITING, str(root), first=0, log=log)))
        return collections.Counter(line.split()[0] for line in io_faults.matching_calls(log))

    def test_failing_writes(self):
        """Calls fail one at a time, some in a row, or all from one on; a resumed run may fail again."""
        calls, run, saved = self.calls(self.new_root()), None, 0
        self.assertEqual(sorted(calls), sorted(WRITING.split(",")))
        for _ in range(int(os.environ.get("WRITE_ERRORS", 12))):
            if run is None:
                run, saved = self.new_root() / "run", 0
            family = self.rng.choice([*calls])
            fault = (self.rng.choice(["EIO", "ENOSPC", "EDQUOT"]), self.rng.randint(1, calls[family]), self.rng.choice([1, 1, 2, 10**9]))
            result = self.train(run, **io_faults.faults(family, str(run.parent), *fault))
            with self.subTest(seed=self.seed, fault=(family, *fault), errors=result.stderr):
                self.assertIn(result.returncode, (0, 1, 2))
                self.assertEqual(result.stderr.count("\n"), result.returncode != 0)
                going_on = re.search(r"continuing from step (\d+)", result.stdout)
                self.assertTrue(saved == 0 or result.returncode != 0 or going_on is None or int(going_on[1]) >= saved)
                saved = max(saved, last_saved(result.stdout))
                if result.returncode == 0 or self.rng.random() < 0.5:
                    self.check_end(run, self.train(run), saved)
                    shutil.rmtree(run.parent)
                    run = None


if __name__ == "__main__":
    unittest.main()
