"""The units of a long check: programs that run one by one or side by side within a time limit.

Results are kept per unit: when the time limit or SIGKILL ends the check, only the units that were running are
lost, and a later call continues with the others. The report stores a unit's findings with the identity of the
program that it ran; when the program has changed, they are dropped.
"""

import dataclasses
import hashlib
import io
import json
import math
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import typing
import zlib

LONGEST_LOG = 200_000  # bytes; of a longer log the end is kept


class Stopped(Exception):
    """A signal ends the check."""


class Failed(Exception):
    """The reason why a unit or a part failed, and what it found nevertheless."""

    def __init__(self, reason, **found):
        super().__init__(reason)
        self.found = found


class NotRun(Exception):
    """The reason why a part cannot be run here."""


@dataclasses.dataclass
class Unit:
    name: str
    command: typing.Callable[[pathlib.Path], list] = None  # argument: an empty folder for its files
    read: typing.Callable[[int, pathlib.Path, str], dict] = (
        None  # arguments: exit code, folder, output; returns the findings or raises Failed
    )
    program: str = ""  # identity of the program or programs
    seconds: float = 20  # not begun if less time is left
    limit: float = 300  # seconds after which it has failed
    environment: dict = dataclasses.field(default_factory=dict)
    alone: bool = True  # nothing else runs at the same time
    missing: str = ""  # the reason why it cannot be run here
    optional: bool = False  # if missing, the part is complete without it


def identity(path, known={}):
    """Identifies a program by its bytes; "" if there is none."""
    path = pathlib.Path(path)
    if path not in known:
        known[path] = hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else ""
    return known[path]


def without_nan(value):
    """Replaces NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path):
    """Reads a file written by a program. Raises Failed if it is missing or incomplete."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise Failed(f"{path.name} was not written: {error.strerror}") from None
    except ValueError as error:
        raise Failed(f"{path.name} is not whole: {error}") from None


class Guardian:
    """A process that outlives a killed check, ends the programs it had started, and removes its folder."""

    def __init__(self, folder):
        ends, self.pipe = os.pipe()
        if os.fork() == 0:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.close(self.pipe)
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(nothing, standard)
            groups = set()
            with os.fdopen(ends) as lines:
                for line in lines:
                    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
            for group in groups:
                kill_group(group)
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)
        os.close(ends)

    def begun(self):
        """Called in the new process before its program."""
        os.write(self.pipe, f"+{os.getpid()}\n".encode())

    def ended(self, group):
        os.write(self.pipe, f"-{group}\n".encode())


def kill_group(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Files:
    """OUTDIR: a few files, each replaced atomically. Logs are in logs.tar.gz."""

    def __init__(self, folder, go_on):
        self.folder, self.logs = folder, {}
        self.archive = folder / "logs.tar.gz"
        if go_on and self.archive.exists():
            try:
                with tarfile.open(self.archive) as archive:
                    for member in archive:
                        self.logs[member.name] = archive.extractfile(member).read()
            except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
                kept = f"{len(self.logs)} logs are kept"
                print(f"gpu_check: {self.archive} is not whole, {kept}: {error}", flush=True)
        self.changed = not go_on

    def write(self, name, data):
        new = self.folder / ".new"
        new.write_bytes(data)
        new.replace(self.folder / name)

    def add_log(self, name, data):
        self.logs[name] = data if len(data) <= LONGEST_LOG else b"[...]\n" + data[-LONGEST_LOG:]
        self.changed = True

    def write_logs(self):
        if not self.changed:
            return
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as archive:
            for name, data in self.logs.items():
                member = tarfile.TarInfo(name)
                member.size, member.mtime = len(data), int(time.time())
                archive.addfile(member, io.BytesIO(data))
        self.write("logs.tar.gz", packed.getvalue())
        self.changed = False


@dataclasses.dataclass
class Running:
    unit: Unit
    record: dict
    process: subprocess.Popen
    folder: pathlib.Path
    start: float
    log_name: str
    before: dict  # the record of an earlier run


class Runner:
    """Runs units within the time limit, records their findings, and calls save() after each change."""

    def __init__(self, files, time_limit, save, root):
        self.files, self.time_limit, self.save, self.root = files, time_limit, save, root
        self.deadline = time.monotonic() + time_limit * 0.98  # the rest is for ending programs and the report
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpu_check-"))
        self.guardian = Guardian(self.folder)
        self.running, self.signal = [], None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)

    def on_signal(self, number, _):
        """The signal takes effect between two units or while waiting for one, never within a report."""
        self.signal = signal.Signals(number).name

    def heed_signal(self):
        if self.signal:
            raise Stopped(self.signal)

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def left(self):
        return self.deadline - time.monotonic()

    def fits(self, unit, record):
        """False if too little time is left: less than the unit's expected time, or than 3/4 of the time limit if that is shorter."""
        seconds = max(
            unit.seconds, 1.3 * record.get("seconds", 0) if record.get("status") == "stopped" else 0
        )
        return self.left() >= min(seconds, 0.75 * self.time_limit)

    def run(self, part, units, records, lanes):
        """Runs the units in order, several at a time unless one must run alone. Returns those that did not fit."""
        waiting = list(units)
        try:
            while waiting or self.running:
                self.heed_signal()
                unit = self.next_of(waiting, records, lanes)
                if unit:
                    waiting.remove(unit)
                    self.begin(part, unit, records)
                elif not self.running:
                    break
                else:
                    self.wait()
        finally:
            for running in list(self.running):
                self.finish(running, "stopped", f"by {self.signal}" if self.signal else "by an error")
        return waiting

    def next_of(self, waiting, records, lanes):
        if len(self.running) >= lanes or any(running.unit.alone for running in self.running):
            return None
        return next(
            (
                unit
                for unit in waiting
                if not (unit.alone and self.running) and self.fits(unit, records.get(unit.name, {}))
            ),
            None,
        )

    def begin(self, part, unit, records):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        before, record = records.get(unit.name, {}), dict(status="running", program=unit.program)
        records[unit.name] = record
        self.save()
        log_name = f"{part}/{unit.name.replace('/', ' of ')}.log"
        start = time.monotonic()
        try:
            command = [str(word) for word in unit.command(folder)]
            with (folder / "log").open("wb") as log:
                log.write(f"$ {shlex.join(command)}\n".encode())
                log.flush()
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.root,
                    start_new_session=True,
                    env=os.environ | unit.environment,
                    preexec_fn=self.guardian.begun,
                )
        except (OSError, Failed, subprocess.SubprocessError) as error:
            record |= dict(status="failed", reason=str(error), seconds=0)
            print(f"        0 s  failed  {part}/{unit.name}: {error}", flush=True)
            return
        self.running.append(Running(unit, record, process, folder, start, log_name, before))

    def wait(self):
        """Waits until a unit has ended or must be ended."""
        while True:
            self.heed_signal()
            for running in self.running:
                if running.process.poll() is not None:
                    return self.finish(running)
                if time.monotonic() - running.start > running.unit.limit:
                    return self.finish(running, "failed", f"it took longer than {running.unit.limit:g} s")
                if self.left() <= 0:
                    return self.finish(
                        running, "stopped", f"by the check's time limit of {self.time_limit:g} s"
                    )
            time.sleep(0.02)

    def finish(self, running, status=None, reason=None):
        """Ends the unit's remaining processes and records its findings."""
        self.running.remove(running)
        process, record = running.process, running.record
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                pass
        kill_group(process.pid)
        code = process.wait()
        self.guardian.ended(process.pid)
        output = (running.folder / "log").read_bytes()
        self.files.add_log(running.log_name, output)
        found = {}
        if status is None:
            status = "passed"
            try:
                found = running.unit.read(
                    code, running.folder, output.decode(errors="replace").split("\n", 1)[1]
                )
            except Failed as error:
                status, reason, found = "failed", str(error), error.found
            except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
                status, reason = "failed", f"{type(error).__name__}: {error}"
        record |= without_nan(found) | dict(status=status, seconds=round(time.monotonic() - running.start, 1))
        if reason:
            record["reason"] = reason
        if status == "stopped" and running.before.get("status") == "failed":
            record.clear()
            record |= running.before  # a verdict stays until there is another
        shutil.rmtree(running.folder, ignore_errors=True)
        self.save()
        seconds, name = time.monotonic() - running.start, running.log_name.removesuffix(".log")
        print(f"  {seconds:7.1f} s  {status:8}{name}{f': {reason}' if reason else ''}", flush=True)
