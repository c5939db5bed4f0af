#!/usr/bin/env python3
"""train_gpt2 under mpirun, on real text: the same losses for any number of processes, checkpoints that any number resumes, and faults.

DISTRIBUTED_FAULTS=50 test/test_distributed.py Faults.test_random_faults      # any number of random faults; SEED=n repeats them
DISTRIBUTED_FAULTS=60 test/test_distributed.py StartAndEnd.test_random_faults # the same at any moment from start to end
"""
import contextlib
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import time
import unittest

from common import ROOT, FolderTest, metrics, write_shard  # beside this file
from io_faults import faults

PROGRAM = os.environ.get("TRAIN_PROGRAM", str(ROOT / "build" / "release" / "train_gpt2"))
STOPPING_MPI = os.environ.get("STOPPING_MPI", str(ROOT / "build" / "release" / "cmake" / "cpu" / "libstopping_mpi.so"))
MPIRUN = ROOT / "test" / "mpi" / "mpirun.sh"
ENVIRONMENT = os.environ | {"OMP_WAIT_POLICY": "passive"}
# 12 sequences a step divide among 1 to 4 processes. There are 2 layers whose sizes are not divisible.
DEFAULTS = {"--layers": 2, "--heads": 3, "--channels": 51, "--context": 32, "--total-batch": 12 * 32, "--lr": 3e-4, "--warmup": 5,
            "--val-every": 0, "--sample-every": 0, "--comm-timeout": 60}  # fmt: skip


def launch(processes, *options, before=""):
    """Begins a run. before: shell commands of every process, which may use $OMPI_COMM_WORLD_RANK."""
    command = [MPIRUN, "-np", processes] if processes > 1 else []
    command += ["bash", "-c", before + '\nexec "$0" "$@"', PROGRAM] if before else [PROGRAM]
    values = DEFAULTS | dict(zip(options[::2], options[1::2], strict=True))
    command += [part for option in values.items() for part in option]
    return subprocess.Popen([str(part) for part in command], env=ENVIRONMENT, text=True, start_new_session=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def overwrite(path, content):
    """Writes in place: the processes have mapped the file, which must not become shorter even for a moment."""
    with path.open("r+b") as file:
        file.write(content)


def ranks_of(mpirun):
    """Process ids of the ranks that this mpirun started, in their order."""
    children = {}
    for path in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, KeyError):
            if int((path / "stat").read_text().rsplit(")", 1)[1].split()[1]) != mpirun.pid:
                continue
            variables = dict(entry.split("=", 1) for entry in (path / "environ").read_text().split("\0") if "=" in entry)
            children[int(variables["OMPI_COMM_WORLD_RANK"])] = int(path.name)
    return [children[rank] for rank in sorted(children)]


class Runs(FolderTest):
    def start(self, processes, *options, **more):
        process = launch(processes, *options, **more)
        self.addCleanup(process.communicate)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def run_to_end(self, processes, *options, **more):
        process = self.start(processes, *options, **more)
        output, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, errors + output[-1000:])
        return output

    def wait_for(self, condition, process, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            self.assertIsNone(process.poll(), "it ended too early")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def steps_done(self, folder):
        with contextlib.suppress(OSError, ValueError):
            return len(metrics(folder))
        return 0

    def assert_same_training(self, ours, theirs, loss=1e-5, norm=1e-3):
        self.assertEqual([r["step"] for r in ours], [r["step"] for r in theirs])
        for a, b in zip(ours, theirs):
            self.assertEqual(a["tokens"], b["tokens"])
            self.assertLessEqual(abs(a["loss"] / b["loss"] - 1), loss, f"step {a['step']}")
            self.assertLessEqual(abs(a["grad_norm"] / b["grad_norm"] - 1), norm, f"step {a['step']}")

    def assert_failed(self, process, expected, seconds=30, code=None):
        """The run ends completely and in time; the first line of our programs is this one."""
        begin = time.monotonic()
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.fail(f"it did not end within {seconds} s")
        self.assertNotEqual(process.returncode, 0)
        if code is not None:
            self.assertEqual(process.returncode, code)
        ours = [line for line in errors.splitlines() if line.startswith("train_gpt2: ")]
        if expected:
            self.assertTrue(ours and re.search(expected, ours[0]), errors)
        return errors


class Training(Runs):
    def test_any_number_of_processes_trains_the_same(self):
        for dtype, loss, norm in (("fp32", 1e-5, 1e-3), ("bf16", 2e-3, 2e-2)):
            options = ["--dtype", dtype, "--steps", 50, "--checkpoint-every", 0, "--check-replicas", 1]
            alone = self.folder / f"{dtype}-alone"
            self.run_to_end(1, *options, "--batch-size", 12, "--out", alone)
            for processes, batch, zero in ((2, 6, 0), (2, 1, 1), (3, 4, 1), (3, 2, 0), (4, 3, 0), (4, 1, 1)):
                with self.subTest(dtype=dtype, processes=processes, batch=batch, zero=zero):
                    out = self.folder / f"{dtype}-{processes}-{zero}"
                    output = self.run_to_end(processes, *options, "--batch-size", batch, "--zero", zero, "--out", out)
                    self.assertEqual((output.count("writing to"), len(metrics(out, "run"))), (1, 1))  # rank 0 alone speaks
                    self.assertIn(f"{processes} processes over MPI", output)
                    self.assert_same_training(metrics(out), metrics(alone), loss, norm)

    def test_a_step_without_targets_is_skipped_by_all(self):
        # The masks hide all targets of steps 3 and 7, and the first half of step 5's: all that rank 0 of two processes has.
        data = self.folder / "train.bin"
        write_shard(data, [ord("a") + i * i % 26 for i in range(32 * 12 * 10 + 1)])
        mask = bytearray(b"\1" * (32 * 12 * 10 + 1))
        for step, sequences in ((3, 12), (5, 6), (7, 12)):
            begin = 32 * 12 * (step - 1) + 1
            mask[begin : begin + 32 * sequences] = bytes(32 * sequences)
        data.with_suffix(".mask").write_bytes(mask)
        options = ["--tokenizer", "byte", "--vocab", 256, "--train-data", data, "--data-order", "file", "--steps", 10, "--check-replicas", 1,
                   "--max-skipped", 1]  # fmt: skip
        alone = self.folder / "alone"
        self.run_to_end(1, *options, "--batch-size", 12, "--out", alone)
        for processes, batch, zero, dtype in ((1, 2, 0, "fp32"), (2, 6, 0, "fp32"), (2, 3, 1, "fp32"), (3, 2, 1, "bf16")):
            with self.subTest(processes=processes, zero=zero, dtype=dtype):
                out = self.folder / f"{processes}-{zero}"
                self.run_to_end(processes, *options, "--batch-size", batch, "--zero", zero, "--dtype", dtype, "--out", out)
                self.assertEqual([r["step"] for r in metrics(out) if r["loss"] is None], [3, 7])
                self.assertEqual([(r["step"], r["loss"]) for r in metrics(out, "skipped")], [(3, None), (7, None)])
                trained = [[r for r in metrics(run) if r["loss"] is not None] for run in (out, alone)]
                self.assert_same_training(*trained, *((1e-5, 1e-3) if dtype == "fp32" else (2e-3, 2e-2)))
                state = json.loads((out / "checkpoints" / "step_00000010" / "state.json").read_text())
                self.assertEqual((state["optimizer_step"], state["skipped"]), (8, 0))

    def test_a_profile_shows_what_waits_for_others_and_changes_nothing(self):
        for zero in (0, 1):
            options = ["--steps", 7, "--batch-size", 3, "--zero", zero, "--checkpoint-every", 0]
            plain, profiled = self.folder / f"plain-{zero}", self.folder / f"profiled-{zero}"
            self.run_to_end(2, *options, "--out", plain)
            output = self.run_to_end(2, *options, "--profile", 2, "--out", profiled)
            self.assertEqual(output.count("profile: the mean of 2 steps"), 1)  # that of rank 0
            self.assert_same_training(metrics(profiled), metrics(plain))
            (profile,) = metrics(profiled, "profile")
            rows = {(row["name"], str(row["shape"])): row for row in profile["operations"]}
            self.assertEqual(rows["qkv", "[96, 51, 153]"]["calls"], 2 * 2)  # 12 sequences: 2 processes x 3 x 2 micro-steps, 2 layers
            names = {name for name, shape in rows}
            waits = {"send gradients", "wait for gradients", "loss, norm and flags of all processes"}
            waits |= {"send parameters", "wait for parameters"} if zero else set()
            self.assertLessEqual(waits, names)
            self.assertAlmostEqual(sum(row["ms"] for row in rows.values()), profile["operations_ms"], places=6)
            self.assertLessEqual(profile["operations_ms"], profile["step_ms"])

    def test_validation_counts_every_window_once(self):
        options = ["--steps", 3, "--val-every", 1, "--checkpoint-every", 0]
        for processes in (1, 2, 3):
            self.run_to_end(processes, *options, "--batch-size", 4 if processes == 1 else 2, "--out", self.folder / str(processes))
        alone = [record["loss"] for record in metrics(self.folder / "1", "val")]
        for processes in (2, 3):
            for ours, theirs in zip(metrics(self.folder / str(processes), "val"), alone, strict=True):
                self.assertLessEqual(abs(ours["loss"] / theirs - 1), 1e-5)

    def test_a_checkpoint_of_four_processes_serves_any_number(self):
        fp32, bf16 = (1e-5, 1e-3), (2e-3, 2e-2)
        self.check_a_checkpoint_of_four_processes(["--dtype", "fp32"], fp32, ((1, 0), (2, 0), (2, 1), (3, 1), (4, 1)))
        self.check_a_checkpoint_of_four_processes(["--dtype", "bf16"], bf16, ((1, 0), (3, 1), (4, 1)))

    def test_a_checkpoint_of_four_owners_of_matrices_serves_any_number(self):
        self.check_a_checkpoint_of_four_processes(["--optimizer", "muon"], (1e-5, 1e-3), ((1, 0), (3, 1), (4, 1)))

    def check_a_checkpoint_of_four_processes(self, options, bounds, resumed):
        name = options[-1]
        straight, saved = self.folder / f"{name}-straight", self.folder / f"{name}-saved"
        options = [*options, "--steps", 20]
        self.run_to_end(1, *options, "--batch-size", 12, "--out", straight)
        self.run_to_end(4, *options, "--batch-size", 3, "--zero", 1, "--checkpoint-every", 10, "--keep", 9, "--out", saved)
        checkpoint = saved / "checkpoints" / "step_00000010"
        self.assertEqual(len(list(checkpoint.glob("optimizer_*.safetensors"))), 4)
        for processes, zero in resumed:
            with self.subTest(name=name, processes=processes, zero=zero):
                out = self.folder / f"{name}-resumed-{processes}-{zero}"
                self.run_to_end(processes, *options, "--batch-size", 12 // processes, "--zero", zero, "--resume", checkpoint, "--out", out)
                self.assert_same_training(metrics(out), metrics(straight), *bounds)
        # The same number of processes resumes with the same bits.
        if (4, 1) in resumed:
            last = "checkpoints/step_00000020/model.safetensors"
            self.assertEqual((self.folder / f"{name}-resumed-4-1" / last).read_bytes(), (saved / last).read_bytes())

    def test_a_damaged_shard_of_the_optimizer_is_not_loaded(self):
        out = self.folder / "run"
        self.run_to_end(3, "--steps", 6, "--batch-size", 4, "--zero", 1, "--checkpoint-every", 3, "--out", out)
        shard = out / "checkpoints" / "step_00000006" / "optimizer_0002.safetensors"
        content = bytearray(shard.read_bytes())
        content[-5] ^= 1
        shard.write_bytes(content)
        output = self.run_to_end(2, "--steps", 6, "--batch-size", 6, "--checkpoint-every", 3, "--resume", "auto", "--out", out)
        self.assertIn("optimizer_0002.safetensors: is damaged", output)
        self.assertIn("continuing from step 3", output)


class Faults(Runs):
    options = ["--batch-size", 3, "--zero", 1, "--checkpoint-every", 20, "--keep", 3]

    def test_an_option_that_differs_names_the_process(self):
        process = self.start(3, "--steps", 5, "--batch-size", 4, "--out", self.folder / "run",
                             before='[ "$OMPI_COMM_WORLD_RANK" = 2 ] && set -- "$@" --seed 5')  # fmt: skip
        self.assert_failed(process, r"rank 0: rank 2 was started differently from rank 0: data/seed is 5 instead of 1337", code=2)
        self.assertFalse((self.folder / "run").exists())

    def test_what_all_processes_meet_is_said_once(self):
        for options in (["--channels", 50], ["--train-data", "/none.txt"]):
            errors = self.assert_failed(self.start(4, *options), "", code=2)
            said = [line for line in errors.splitlines() if line.startswith("train_gpt2: ")]
            self.assertTrue(said[0].startswith("train_gpt2: rank 0: "), errors)
            self.assertLess(len(said), 4, errors)  # one line, but on a busy machine mpirun may be slow to end the others

    def test_more_processes_than_sequences(self):
        self.assert_failed(self.start(4, "--total-batch", 3 * 32, "--batch-size", 1), "rank 0: --total-batch 96 is not a multiple", code=2)

    def test_an_error_in_one_process_ends_all(self):
        # An invalid token lies in a window that only one process uses, at some step.
        data = self.folder / "train.bin"
        tokens = [ord("a") + i % 26 for i in range(32 * 600)]
        tokens[32 * 300 + 5] = 999
        write_shard(data, tokens)
        options = [*self.options, "--tokenizer", "byte", "--vocab", 256, "--train-data", data, "--schedule", "constant"]
        out = self.folder / "run"
        process = self.start(4, *options, "--steps", 1000, "--out", out)
        errors = self.assert_failed(process, r"rank \d: .*train\.bin.* 999", code=2)
        # All processes ended with the same step, and saved it.
        last = metrics(out)[-1]["step"]
        self.assertIn(f"the last good checkpoint is {out}/checkpoints/step_{last:08}\n", errors)
        self.run_to_end(4, *options, "--steps", last, "--out", self.folder / "straight")
        for file in ("model.safetensors", *(f"optimizer_{rank:04}.safetensors" for rank in range(4))):
            name = f"checkpoints/step_{last:08}/{file}"
            self.assertEqual((out / name).read_bytes(), (self.folder / "straight" / name).read_bytes(), file)

    def test_validation_data_that_one_process_cannot_read_costs_no_step(self):
        data, out, straight = self.folder / "val.bin", self.folder / "run", self.folder / "straight"
        tokens = [ord("a") + i % 26 for i in range(32 * 60 + 1)]
        write_shard(data, tokens)
        whole = data.read_bytes()
        tokens[4 * 32 + 5] = 999  # in the second batch, which is rank 1's
        options = [*self.options, "--tokenizer", "byte", "--vocab", 256, "--val-data", data, "--val-every", 60, "--schedule", "constant"]
        process = self.start(3, *options, "--batch-size", 4, "--steps", 1000, "--out", out)
        self.wait_for(lambda: self.steps_done(out) > 5, process)
        write_shard(self.folder / "bad.bin", tokens)
        overwrite(data, (self.folder / "bad.bin").read_bytes())
        done = len(metrics(out, "val"))
        errors = self.assert_failed(process, r"rank 0: (rank 1: )?.*val\.bin: token 999 at position 133 .*", code=2)
        last = metrics(out)[-1]["step"]
        self.assertEqual((last, len(metrics(out, "val"))), (60 * (done + 1), done))
        self.assertIn(f"the last good checkpoint is {out}/checkpoints/step_{last:08}\n", errors)
        overwrite(data, whole)
        for run in (out, straight):
            self.run_to_end(3, *options, "--batch-size", 4, "--steps", last + 60, "--resume", "auto", "--out", run)
        for kind in ("train", "val"):
            self.assertEqual([(r["step"], r["loss"]) for r in metrics(out, kind)], [(r["step"], r["loss"]) for r in metrics(straight, kind)])

    def test_a_stopped_process_ends_all_after_the_time_limit(self):
        out = self.folder / "run"
        process = self.start(4, *self.options, "--steps", 100000, "--comm-timeout", 3, "--out", out)
        self.wait_for(lambda: self.steps_done(out) > 5, process)
        os.kill(ranks_of(process)[2], signal.SIGSTOP)
        # Other ranks may be missing too: those that wait for it in an earlier operation.
        self.assert_failed(process, r"rank \d: no response from rank [\d, ]*2[\d, ]* for 3 s \(--comm-timeout\)", code=1)

    def test_a_process_that_is_stopped_for_a_moment_costs_nothing(self):
        out = self.folder / "run"
        process = self.start(3, "--batch-size", 4, "--steps", 200, "--out", out)
        self.wait_for(lambda: self.steps_done(out) > 5, process)
        rank = ranks_of(process)[1]
        os.kill(rank, signal.SIGSTOP)
        time.sleep(1)
        os.kill(rank, signal.SIGCONT)
        _, errors = process.communicate(timeout=120)
        self.assertEqual((process.returncode, len(metrics(out))), (0, 200), errors)

    def test_a_full_disk_of_one_process_costs_the_checkpoint(self):
        out = self.folder / "run"
        for rank in (0, 2):
            with self.subTest(rank=rank):
                # Only writes to the checkpoint's files fail. A limit on the size of all files would also stop MPI.
                environment = faults("write", ".safetensors", error="ENOSPC", count=1 << 30)
                full = f'[ "$OMPI_COMM_WORLD_RANK" = {rank} ] && export ' + " ".join(f"{name}={value}" for name, value in environment.items())
                process = self.start(3, "--batch-size", 4, "--zero", 1, "--steps", 25, "--checkpoint-every", 10, "--out", out / str(rank), before=full)
                output, errors = process.communicate(timeout=120)
                self.assertEqual(len(metrics(out / str(rank))), 25)
                self.assertIn("the checkpoint could not be written, and the run continues without it", output + errors)
                self.assertEqual(process.returncode, 1)  # the last checkpoint could not be written either
                self.assertEqual(list((out / str(rank) / "checkpoints").iterdir()), [])

    def test_a_signal_to_mpirun_or_to_one_process_saves_a_checkpoint(self):
        straight = self.folder / "straight"
        self.run_to_end(3, "--batch-size", 4, "--zero", 1, "--steps", 300, "--out", straight)
        for name, signal_ in (("mpirun", signal.SIGUSR1), ("one", signal.SIGTERM)):
            with self.subTest(to=name):
                out = self.folder / name
                options = ["--batch-size", 4, "--zero", 1, "--steps", 300, "--out", out]
                process = self.start(3, *options)
                self.wait_for(lambda: self.steps_done(out) > 5, process)
                os.kill(process.pid if name == "mpirun" else ranks_of(process)[1], signal_)
                output, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 0, errors)
                self.assertIn("stopped by a signal; everything is written", output)
                done = metrics(out)[-1]["step"]
                self.assertLess(done, 300)
                self.assertTrue((out / "checkpoints" / f"step_{done:08}" / "state.json").exists())
                self.run_to_end(3, *options, "--resume", "auto")
                self.assertEqual([(r["step"], r["loss"]) for r in metrics(out)], [(r["step"], r["loss"]) for r in metrics(straight)])

    def test_random_faults(self):
        """A run of 4 processes that is interrupted by faults and resumed each time ends with the bits of an undisturbed one."""
        seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
        rng = random.Random(seed)
        wanted = int(os.environ.get("DISTRIBUTED_FAULTS", 3))
        steps = 300 if wanted < 20 else 1200
        text = (ROOT / "data" / "tinyshakespeare.txt").read_bytes()[:300_000]
        data = self.folder / "train.bin"
        write_shard(data, list(text))
        intact = data.read_bytes()
        # Steps take longer than a check of the metrics, and a checkpoint is larger than these. A process with an
        # exception waits for its checkpoint on the disk, and must have printed its line before the others time out.
        options = [*self.options, "--tokenizer", "byte", "--vocab", 256, "--train-data", data, "--channels", 120, "--total-batch", 24 * 32,
                   "--steps", steps, "--comm-timeout", 10, "--log-every", 10]  # fmt: skip
        straight, out = self.folder / "straight", self.folder / "run"
        self.run_to_end(4, *options, "--out", straight)

        def after(steps_more, process):
            """Waits. Returns True if all processes still run then."""
            moment = self.steps_done(out) + steps_more
            with contextlib.suppress(AssertionError):  # the run may have ended
                self.wait_for(lambda: self.steps_done(out) > moment, process, 120)
            time.sleep(rng.random() * 0.05)
            return process.poll() is None and len(ranks_of(process)) == 4

        def strike(process, kind):
            """Causes the fault. Returns True if it ended the run."""
            victim = rng.choice(ranks_of(process))
            if kind == "full disk":
                # Applies to rank 0: less than a checkpoint, more than the metrics. It costs only the checkpoints of the
                # next steps.
                rank = ranks_of(process)[0]
                unlimited = resource.prlimit(rank, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
                if after(25, process):
                    resource.prlimit(rank, resource.RLIMIT_FSIZE, unlimited)
                return process.poll() is not None
            if kind == "exception":
                # An invalid token in every twentieth sequence: soon one process meets one of them.
                damaged = bytearray(intact)
                for at in range(1024 + 2 * 32 * rng.randrange(20), len(intact) - 2, 2 * 32 * 20):
                    damaged[at : at + 2] = (999).to_bytes(2, "little")
                overwrite(data, damaged)
            else:
                os.kill(victim, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "abort": signal.SIGABRT}[kind])
            self.assert_failed(process, r"rank \d: .*train\.bin.* 999" if kind == "exception" else "", seconds=60)
            overwrite(data, intact)
            return True

        faults, process = 0, None
        with self.subTest(seed=seed):
            while faults < wanted:
                process = process or self.start(4, *options, "--out", out, "--resume", "auto")
                if not after(rng.randrange(steps // (2 * wanted + 2)), process):
                    break
                kinds = ["kill", "stop", "abort", "exception"]
                if self.steps_done(out) < steps - 100:
                    kinds.append("full disk")  # it must be over before the last checkpoint
                kind = rng.choice(kinds)
                faults += 1
                if os.environ.get("DISTRIBUTED_FAULTS"):
                    print(f"fault {faults}: {kind} after step {self.steps_done(out)}", file=sys.stderr)
                if strike(process, kind):
                    process = None
            process = process or self.start(4, *options, "--out", out, "--resume", "auto")
            _, errors = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 0, errors)
            self.assertEqual(faults, wanted)
            for file in ("model.safetensors", *(f"optimizer_{rank:04}.safetensors" for rank in range(4))):
                last = pathlib.Path("checkpoints", f"step_{steps:08}", file)
                self.assertEqual((out / last).read_bytes(), (straight / last).read_bytes(), file)
            self.assertEqual([(r["step"], r["loss"], r["grad_norm"]) for r in metrics(out)],
                             [(r["step"], r["loss"], r["grad_norm"]) for r in metrics(straight)])  # fmt: skip


class StartAndEnd(Runs):
    """Processes that are stopped, killed or end while the others wait in MPI_Init or in MPI_Finalize."""
    options = ["--steps", 4, "--batch-size", 1, "--total-batch", 192, "--checkpoint-every", 0, "--comm-timeout", 5]
    only_rank_1 = '[ "$OMPI_COMM_WORLD_RANK" = 1 ] && '

    def test_a_process_stopped_at_the_start_or_the_end_is_named_after_the_time_limit(self):
        runs = []
        for place, rank in (("init", 0), ("init", 1), ("finalize", 1), ("end", 0), ("end", 1)):
            before = f'[ "$OMPI_COMM_WORLD_RANK" = {rank} ] && export LD_PRELOAD={STOPPING_MPI} STOP_AT={place}'
            runs.append((place, rank, self.start(2, *self.options, "--out", self.folder / f"{place}-{rank}", before=before)))
        for place, rank, process in runs:  # all of them wait at the same time
            with self.subTest(place=place, rank=rank):
                if place == "end":  # the others have left it: the kernel kills it, and mpirun names it
                    self.assertRegex(self.assert_failed(process, "", seconds=40, code=137), rf"process rank {rank} .* signal 9")
                    continue
                where = f"no response from the other processes for 5 s (--comm-timeout), in MPI_{place.capitalize()}"
                self.assert_failed(process, re.escape(f"rank {1 - rank}: {where}; rank {rank} is stopped"), seconds=40, code=1)

    def test_a_container_that_forbids_copies_between_processes_printed_lines_for_every_message(self):
        forbid = f"export LD_PRELOAD={STOPPING_MPI} FORBID_COPIES=1"
        process = self.start(2, *self.options, "--channels", 255, "--out", self.folder / "run", before=forbid)
        output, errors = process.communicate(timeout=300)
        self.assertEqual((process.returncode, errors), (0, ""), output[-1000:])

    def test_a_process_that_ends_before_the_program_starts_is_named_after_the_time_limit(self):
        process = self.start(2, *self.options, "--out", self.folder / "run", before=self.only_rank_1 + "exit 0")
        self.assert_failed(process, r"rank 0: no response .* in MPI_Init; rank 1 does not run on this machine", code=1)

    def test_a_process_that_only_shows_its_version_ends_all_at_once(self):
        more = {"before": self.only_rank_1 + "set -- --version"}
        process = self.start(3, *self.options, "--comm-timeout", 600, "--out", self.folder / "run", **more)
        expected = r"rank 1: this process only prints a text and exits, but rank [02] has other options"
        self.assert_failed(process, expected, seconds=60, code=2)

    def test_processes_that_all_show_their_version_succeed(self):
        output = self.run_to_end(3, *self.options, before="set -- --version")
        self.assertEqual(output.count("flatgpt "), 3)

    def test_a_script_may_ask_for_the_version_before_it_trains(self):
        slow = self.only_rank_1 + "sleep 2\n"
        self.run_to_end(2, *self.options, "--out", self.folder / "run", before=slow + '"$0" --version || exit 7')

    def test_a_wrong_option_of_one_process_ends_all_at_once(self):
        process = self.start(3, *self.options, "--comm-timeout", 600, "--out", self.folder / "run",
                             before=self.only_rank_1 + 'set -- "$@" --none')  # fmt: skip
        self.assert_failed(process, "rank 1: --none is not an option", seconds=60, code=2)

    def test_random_faults(self):
        """A process is stopped or killed at any moment from start to end: the others do not wait much longer than the limit."""
        seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
        rng = random.Random(seed)
        limit = 5
        begin = time.monotonic()
        self.run_to_end(3, *self.options, "--out", self.folder / "whole")
        whole = time.monotonic() - begin
        with self.subTest(seed=seed):
            for fault in range(int(os.environ.get("DISTRIBUTED_FAULTS", 3))):
                name, moment = rng.choice(["stop", "stop", "kill"]), rng.random() * whole
                process = self.start(3, *self.options, "--out", self.folder / str(fault))
                time.sleep(moment)
                while process.poll() is None and not ranks_of(process):
                    time.sleep(0.001)
                victims = ranks_of(process)
                victim = rng.randrange(3)
                if victim < len(victims):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victims[victim], signal.SIGSTOP if name == "stop" else signal.SIGKILL)
                struck = time.monotonic()
                while process.poll() is None and ranks_of(process) and time.monotonic() - struck < limit + 60:
                    time.sleep(0.1)
                waited = time.monotonic() - struck
                # With all its processes gone, mpirun of Open MPI 4.1.4 may itself hang, if one of them ended in MPI_Init.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)
                self.end(process)
                _, errors = process.communicate()
                if os.environ.get("DISTRIBUTED_FAULTS"):
                    said = [line for line in errors.splitlines() if line.startswith("train_gpt2")]
                    print(f"{name} of rank {victim} after {moment:.2f} of {whole:.2f} s: exit code {process.returncode} after {waited:.1f} s, {said}",
                          file=sys.stderr)  # fmt: skip
                self.assertLess(waited, limit + 25)
                if name == "stop" and process.returncode != 0:
                    self.assertRegex(errors, rf"; rank {victim} is stopped|process rank {victim} .* signal 9")


if __name__ == "__main__":
    unittest.main()
