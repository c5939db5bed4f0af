#!/usr/bin/env python3
"""Output in a terminal, a log and under mpirun: the line of a training run fits the window, and Ctrl-C is answered.

TRAIN_PROGRAM and TOKENIZE_PROGRAM name the programs to test with.
"""
import fcntl
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest

from common import ROOT, FolderTest  # beside this file

TRAIN = os.environ.get("TRAIN_PROGRAM", str(ROOT / "build/release/train_gpt2"))
TOKENIZE = os.environ.get("TOKENIZE_PROGRAM", str(ROOT / "build/release/tokenize"))
GENERATE = str(pathlib.Path(os.environ.get("BUILD", ROOT / "build/release")) / "generate_gpt2")
EDITS_LINES = "libedit" in subprocess.run(["ldd", GENERATE], capture_output=True, text=True).stdout
TINY = {"--layers": 1, "--heads": 2, "--channels": 16, "--context": 16, "--batch-size": 2, "--warmup": 0, "--sample-every": 0, "--val-steps": 2,
        "--checkpoint-every": 0}  # fmt: skip


def tiny(out, **options):
    """The command of a very short run; steps=5 is --steps 5."""
    given = {"--" + name.replace("_", "-"): value for name, value in options.items()}
    return [str(word) for option in {**TINY, "--out": out, **given}.items() for word in option]


class Screen:
    """A terminal with a given number of columns: all rows that it ever showed, and the colours used."""

    def __init__(self, columns):
        self.columns, self.rows, self.column, self.colours = columns, [""], 0, set()

    def feed(self, text):
        for escape, other in re.findall(r"(\x1b\[[0-9;]*[A-Za-z])|([^\x1b])", text, re.S):
            if escape:
                self.obey(escape)
            elif other == "\r":
                self.column = 0
            elif other == "\n":
                self.rows.append("")
            elif other >= " ":
                if self.column == self.columns:  # the line is broken and continues in the next row
                    self.rows.append("")
                    self.column = 0
                row = self.rows[-1].ljust(self.column)
                self.rows[-1] = row[: self.column] + other + row[self.column + 1 :]
                self.column += 1

    def obey(self, escape):
        if escape == "\x1b[2K":
            self.rows[-1] = ""
        elif escape.endswith("m"):
            self.colours.add(escape)
        else:
            raise AssertionError(f"unknown escape {escape!r}")


class AnyScreen:
    """A program's output, without the escapes that move the cursor, in one row."""

    def __init__(self):
        self.rows = [""]

    def feed(self, text):
        self.rows[0] += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def clean_environment(**more):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "NO_COLOR", "COLUMNS"))}
    return {**environment, "TERM": "xterm-256color", **more}


class Program:
    """A program whose standard output and error are a terminal."""

    def __init__(self, command, columns=80, stdin=None, **environment):
        self.screen, self.raw = Screen(columns), ""
        self.own, other = pty.openpty()
        self.resize(columns)
        self.process = subprocess.Popen([str(word) for word in command], stdin=stdin or other, stdout=other, stderr=other,
                                        env=clean_environment(**environment), start_new_session=True)  # fmt: skip
        os.close(other)

    def resize(self, columns):
        fcntl.ioctl(self.own, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.screen.columns = columns

    def read(self, seconds=60, until=None):
        """Reads until the end, or until the pattern is on the screen; False if the time was too short."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not select.select([self.own], [], [], 0.05)[0]:
                continue
            try:
                text = os.read(self.own, 65536).decode(errors="replace")
            except OSError:  # the program has ended
                self.process.wait()
                return until is None
            self.raw += text
            self.screen.feed(text)
            if until and re.search(until, "\n".join(self.screen.rows)):
                return True
        return False

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.own)


class Terminal(FolderTest):
    def start(self, *command, **more):
        program = Program(command, **more)
        self.addCleanup(program.close)
        return program

    def train(self, out="run", columns=80, environment=None, **options):
        return self.start(TRAIN, *tiny(self.folder / out, **options), columns=columns, **(environment or {}))

    def test_the_line_of_a_run_fits_every_window(self):
        for columns in (132, 100, 80, 60, 40, 20):
            with self.subTest(columns=columns):
                program = self.train(str(columns), columns, steps=60, val_every=20)
                self.assertTrue(program.read())
                self.assertEqual(program.process.returncode, 0, program.raw)
                painted = re.findall(r"\r\x1b\[2K([^\r\n]*)", program.raw)
                lines = [re.sub(r"\x1b\[\d*m", "", line) for line in painted]
                # If a validation takes long, the program paints its progress, and erases it before it prints the loss.
                lines = [line for line in lines if ": validation loss" not in line]
                self.assertEqual(len([line for line in lines if re.match(r"step +\d+/", line)]), 60)
                self.assertLess(max(map(len, lines)), columns)
                steps = [row for row in program.screen.rows if re.match(r"step +\d+/60", row)]
                self.assertEqual([int(re.search(r"\d+", row)[0]) for row in steps], [20, 40, 60], program.screen.rows)

    def test_a_wide_window_shows_bar_colour_and_the_best_validation(self):
        program = self.train(columns=160, steps=40, val_every=10)
        self.assertTrue(program.read())
        last = [row for row in program.screen.rows if row.startswith("step 40/40")][0]
        for part in (r"\[##########\]", r"loss \d+\.\d{4}", r"best val \d+\.\d{4}", r"\d+ tok/s", r"norm +\d+\.\d{3}", r"lr \d\.\d\de-\d\d", r"0s left"):
            self.assertRegex(last, part)
        self.assertIn("\x1b[32m", program.screen.colours)
        losses = [float(loss) for loss in re.findall(r"validation loss (\d+\.\d{4})", program.raw)]
        self.assertEqual(float(re.search(r"best val (\d+\.\d{4})", last)[1]), min(losses[:-1]))

        plain = self.train("plain", 160, {"NO_COLOR": "1"}, steps=3)
        self.assertTrue(plain.read())
        self.assertEqual(plain.screen.colours, set())
        self.assertRegex(plain.raw, r"\[\.+\]|\[#+\.*\]")

    def test_a_window_that_gets_narrower_is_respected(self):
        program = self.train(columns=120, steps=100000, val_every=0)
        self.assertTrue(program.read(until=r"step +\d+/100000"))
        program.read(seconds=0.3)
        program.resize(50)
        program.read(seconds=0.2)
        begin = len(program.raw)
        program.read(seconds=0.3)
        program.process.send_signal(signal.SIGTERM)
        self.assertTrue(program.read())
        lines = [re.sub(r"\x1b\[\d*m", "", line) for line in re.findall(r"\r\x1b\[2K([^\r\n]*)", program.raw[begin:])]
        self.assertGreater(len(lines), 1)
        self.assertLess(max(map(len, lines[1:])), 50)

    def test_the_start_says_data_and_schedule(self):
        program = self.train(steps=20, val_every=0, lr=0.002, warmup=5)
        self.assertTrue(program.read())
        self.assertIn("data: 1003854 tokens to train on, 111540 to validate", program.raw)
        self.assertIn("schedule: 20 steps (0.000638 epochs), lr 0.002, warmup 5, cosine to 0.0002", program.raw)

    def assert_plain(self, text, steps):
        self.assertNotIn("\x1b", text)
        self.assertEqual(len(re.findall(rf"^step +\d+/{steps} \| loss .* left\r?$", text, re.M)), steps, text)

    def test_where_nobody_watches_every_line_is_plain(self):
        dumb = self.train("dumb", environment={"TERM": "dumb"}, steps=5)
        self.assertTrue(dumb.read())
        self.assert_plain(dumb.raw, 5)
        pipe = subprocess.run([TRAIN, *tiny(self.folder / "pipe", steps=5)], capture_output=True, text=True, env=clean_environment())
        self.assertEqual(pipe.returncode, 0, pipe.stderr)
        self.assert_plain(pipe.stdout, 5)

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_mpirun_gives_plain_lines_although_its_processes_have_a_terminal(self):
        mpirun = ROOT / "test" / "mpi" / "mpirun.sh"
        program = self.start(mpirun, "-np", 2, TRAIN, *tiny(self.folder / "mpi", batch_size=1, steps=5))
        self.assertTrue(program.read())
        self.assertEqual(program.process.returncode, 0, program.raw)
        self.assert_plain(program.raw, 5)

    def test_ctrl_c_is_answered_at_once_and_the_run_ends(self):
        # Steps take seconds; the answer does not wait for one.
        program = self.train(total_batch=2 * 16 * 8000, val_every=0, steps=100)
        self.assertTrue(program.read(until="writing to"), program.raw)
        program.read(seconds=0.5)
        program.process.send_signal(signal.SIGINT)
        self.assertTrue(program.read(seconds=5, until="stopping after this step"), program.raw)
        self.assertTrue(program.read(seconds=180))
        self.assertEqual(program.process.returncode, 0)
        self.assertIn("stopped by a signal", program.raw)

    def test_tokenizing_shows_how_far_it_is_and_answers_ctrl_c(self):
        read, write = os.pipe()
        self.addCleanup(os.close, write)
        program = self.start(TOKENIZE, "--stream", "--out", self.folder / "shards", stdin=read)
        os.close(read)
        # The status is painted when a document is read, and not again before some time has passed.
        shown = False
        for _ in range(120):
            os.write(write, b'{"text": "a document"}\n')
            if shown := program.read(seconds=0.5, until=r"tokenize: [1-9][0-9]* documents read"):
                break
        self.assertTrue(shown, program.raw)
        program.process.send_signal(signal.SIGINT)
        self.assertTrue(program.read(seconds=10, until="stopping"), program.raw)
        self.assertTrue(program.read())
        self.assertIn("interrupted; the same command continues", program.raw)
        self.assertEqual(program.process.returncode, 1)

    @unittest.skipUnless(EDITS_LINES, "this build has no libedit")
    def test_a_prompt_is_edited_with_the_keys_and_ctrl_c_at_it_ends_the_program(self):
        self.assertTrue(self.train(steps=1, val_every=0, checkpoint_every=1).read())
        asked = []

        def ask(*keys):
            """The text that is shown after a prompt typed with these keys."""
            asked.append(self.start(GENERATE, self.folder / "run", "--interactive", "--greedy", "--max-tokens", 4))
            program = asked[-1]
            program.screen = AnyScreen()
            self.assertTrue(program.read(until="> "), program.raw)
            for key in keys:
                os.write(program.own, key.encode())
                program.read(seconds=0.3)
            shown = program.screen.rows[0]
            self.assertNotIn("^[", shown)
            before = len(shown)
            os.write(program.own, b"\r")
            self.assertTrue(program.read(until="(?s)^.{%d}.*> $" % before), program.raw)
            return program.screen.rows[0][before:]

        straight = ask("ROmeo é!")
        self.assertEqual(ask("ROeo é!", *["\x1b[D"] * 5, "m"), straight)  # five times to the left
        self.assertEqual(ask("ROmeo ü", "\x7f", "é!"), straight)  # a character of two bytes is deleted as one
        program = asked[-1]
        os.write(program.own, b"\x1b[A\r")  # the prompt before
        program.screen.rows = [""]
        self.assertTrue(program.read(until="(?s)> .*> "), program.raw)
        self.assertIn("ROmeo é!", program.screen.rows[0])
        program.process.send_signal(signal.SIGINT)
        self.assertTrue(program.read(), program.raw)
        self.assertEqual(program.process.returncode, 0)

    def test_a_long_validation_shows_how_far_it_is(self):
        program = self.train(columns=70, steps=1, val_steps=0, channels=512, context=64, batch_size=1, layers=8, heads=8)
        self.assertTrue(program.read(until=r"validating: \d+ of \d+ batches \| \["), program.raw)
        program.process.send_signal(signal.SIGINT)
        self.assertTrue(program.read())
        painted = re.findall(r"validating: [^\r\n]*", re.sub(r"\x1b\[\d+m", "", program.raw))
        self.assertLess(max(len(line) for line in painted), 70)


if __name__ == "__main__":
    sys.exit(unittest.main())
