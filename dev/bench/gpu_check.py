#!/usr/bin/env python3
"""Checks the project's claims for GPUs on a GPU: speed, tests, losses, kernels, sanitizers; writes a report.

    scripts/gpu_check.sh OUTDIR                              # everything, in an hour or two
    scripts/gpu_check.sh OUTDIR --time-limit 540             # at most nine minutes, the most decisive parts first
    scripts/gpu_check.sh OUTDIR --time-limit 540 --continue  # continues, on this machine or another one like it
    scripts/gpu_check.sh OUTDIR --llmc ~/llm.c --parts speed-124M,curve-bf16
    scripts/gpu_check.sh OUTDIR --device software            # rehearses it over the software GPU, in minutes
    scripts/gpu_check.sh OUTDIR --device cpu                 # rehearses it with the CPU's programs

OUTDIR has report.json, report.md, loss.svg, logs.tar.gz (the output of every program) and
matmul_algorithms.json (the algorithms timed for our products). They are replaced whenever a program has ended,
so they are complete however the check ends, and --continue needs nothing else: it keeps the findings of
unchanged programs, runs the rest, and then repeats what failed. A part that fails does not stop the others.
Exit code 0: every requested part is complete and every judged criterion is met; 1: otherwise, or stopped;
2: wrong use.

A rehearsal runs every part at tiny sizes, with the programs of make software-gpu or make. It finds missing
libraries, wrong paths and unreadable files before they cost an hour on a GPU. It judges no criterion.

PyTorch is searched for in $FLATGPT_PYTORCH_VENV, in python3 and in build/pytorch-venv; nothing is installed.
Without it only our own speeds are measured.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpu_report  # noqa: E402
from check_units import Failed, Files, NotRun, Runner, Stopped, read_json, without_nan  # noqa: E402
from compare_pytorch import ROOT, processor, reason  # noqa: E402
from gpu_parts import Parts  # noqa: E402

BUILDS = {"cuda": "cuda", "software": "software-gpu", "cpu": "release"}  # --device: its folder in build/


class Check(Parts):
    def __init__(self, options):
        self.options, self.folder = options, pathlib.Path(options.outdir).resolve()
        self.rehearsal, self.suffix = options.device != "cuda", "" if options.device == "cpu" else "cu"
        self.build = pathlib.Path(options.build or ROOT / "build" / BUILDS[options.device]).resolve()
        self.train = self.own_program("TRAIN_PROGRAM", f"train_gpt2{self.suffix}")
        self.tokenizer = self.own_program("TOKENIZE_PROGRAM", "tokenize")
        self.pytorch = self.text = None  # the python that has PyTorch; the pattern of the curve's shards
        self.machine, self.ran, self.environment = {}, set(), {}
        self.report = dict(
            date=datetime.date.today().isoformat(),
            device=options.device,
            gpu=None,
            machines=[],
            stopped=None,
            parts={},
            criteria=[],
            training=[],
            kernels=[],
            curves={},
            deterministic=None,
            ladder=None,
        )
        before = self.folder / "report.json"
        self.go_on = options.go_on and before.exists()
        if self.go_on:
            try:
                self.report |= read_json(before) | {"stopped": None}
            except Failed as error:
                sys.exit(f"gpu_check: {self.folder}: {error}; without --continue the check begins anew")
            if self.report["device"] != options.device:
                sys.exit(
                    f"gpu_check: {self.folder}'s report is of --device {self.report['device']}; "
                    "expected the same, or another OUTDIR"
                )

    def open(self):
        """Examines the machine, and writes the first report."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.files = Files(self.folder, self.go_on)
        self.runner = Runner(self.files, self.options.time_limit, self.save, ROOT)
        matmuls = self.folder / "matmul_algorithms.json"
        # compare_pytorch and speed_ladder take their programs from these variables. Each product is timed in one run only.
        self.environment = dict(
            TRAIN_PROGRAM=str(self.train),
            TOKENIZE_PROGRAM=str(self.tokenizer),
            FLATGPT_MATMULS=str(matmuls),
            FLATGPT_BENCH_DATA=str(self.runner.folder / "tokens"),
        )
        if self.rehearsal:
            self.environment["FLATGPT_MATMUL_SECONDS"] = "1"
        if not self.go_on:
            for name in ("loss.svg", matmuls.name):
                (self.folder / name).unlink(missing_ok=True)
        self.machine["pytorch"] = self.find_pytorch()
        if self.machine not in self.report["machines"]:
            self.report["machines"].append(self.machine)

    def own_program(self, variable, name):
        # The software GPU's build has no tokenize of its own, and ./train_gpt2cu does not belong to it.
        software = self.options.device == "software"
        places = [self.build / name, *([ROOT / "build" / "cuda" / name] if software else []), ROOT / name]
        if software and variable == "TRAIN_PROGRAM":
            places = places[:1]
        built = next((path for path in places if path.exists()), places[0 if software else -1])
        return pathlib.Path(os.environ.get(variable) or built)

    # -- the machine

    def look_at_machine(self):
        machine = self.machine
        if self.options.device == "cpu":
            machine["name"] = processor()
        elif self.options.device == "software":
            machine |= {"name": "software GPU", "on": processor(), "gpus": 2}
        else:
            fields = ("name", "driver_version", "memory.total", "compute_cap", "power.limit", "clocks.max.sm")
            query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
            listed = subprocess.run(query, capture_output=True, text=True)
            gpus = [line for line in listed.stdout.splitlines() if line.strip()]
            values = [value.strip() for value in gpus[0].split(",")] if gpus else []
            if listed.returncode != 0 or len(values) != len(fields):
                sys.exit(
                    "gpu_check: nvidia-smi does not say what the GPU is: "
                    + reason(listed.stdout + listed.stderr)
                )
            gib = int(values[2]) / 1024 if values[2].isdigit() else 0  # some GPUs report "[N/A]"
            machine |= dict(zip(fields, values)) | {"memory_gib": gib, "gpus": len(gpus)}
        version = ROOT / "VERSION"  # present in a bundle
        described = ["git", "-C", ROOT, "describe", "--always", "--dirty"]
        commit = (
            ""
            if version.exists()
            else subprocess.run(described, capture_output=True, text=True).stdout.strip()
        )
        machine["version"] = version.read_text().strip() if version.exists() else commit or None
        if self.report["gpu"] not in (None, machine["name"]):
            sys.exit(
                f"gpu_check: {self.folder}'s report is of {self.report['gpu']}, and this is "
                f"{machine['name']}; expected another OUTDIR"
            )
        self.report["gpu"] = machine["name"]

    def find_pytorch(self):
        """Returns PyTorch's version; sets self.pytorch to the python that has it."""
        seen = "torch.cuda.is_available()" if not self.rehearsal else "True"
        numpy = "importlib.util.find_spec('numpy') is not None"
        code = f"import importlib.util, torch; print(torch.__version__, {seen}, {numpy})"
        places = (
            [pathlib.Path(os.environ["FLATGPT_PYTORCH_VENV"], "bin", "python")]
            if "FLATGPT_PYTORCH_VENV" in os.environ
            else []
        )
        places += [
            sys.executable,
            shutil.which("python3"),
            "/usr/bin/python3",
            ROOT / "build" / "pytorch-venv" / "bin" / "python",
        ]
        blind, tried = None, set()
        for python in map(str, filter(None, places)):
            if python in tried or not os.access(python, os.X_OK):
                continue
            tried.add(python)
            words = subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.split()
            if words[1:] == ["True", "True"]:
                self.pytorch = python
                return words[0]
            blind = blind or (
                words and f"PyTorch {words[0]} {'sees no GPU' if words[1:2] == ['False'] else 'has no numpy'}"
            )
        self.machine["pytorch_missing"] = (
            blind or "PyTorch is not installed; pip install torch, or set FLATGPT_PYTORCH_VENV"
        )
        return None

    # -- running them

    def all_parts(self):
        """Runs the requested parts. True if all are complete and no criterion failed."""
        wanted, before = self.options.parts or list(self.PARTS), self.report["parts"]
        self.report["parts"] = {
            name: before.get(name)
            or dict(title=title, status="not run", reason="the check has not come to it", units={})
            for name, (title, *_) in self.PARTS.items()
            if name in wanted or name in before
        }
        if self.go_on:
            self.drop_what_others_found()
        self.save()
        try:
            for again in (
                (False, True) if self.go_on else (False,)
            ):  # units that failed before are repeated last
                for name in self.PARTS:
                    if name in wanted:
                        self.one_part(name, again)
            self.runner.heed_signal()
        except Stopped as error:
            self.report["stopped"] = str(error)
        self.save()
        judged = [criterion["met"] for criterion in self.report["criteria"] if criterion["met"] is not None]
        return (
            not self.report["stopped"]
            and all(judged)
            and all(self.report["parts"][name]["status"] == "passed" for name in wanted)
        )

    def drop_what_others_found(self):
        """Removes the findings of other programs than the present ones from the report."""
        for name, part in self.report["parts"].items():
            records, dropped = part["units"], []
            for record in records.values():
                if record["status"] == "running":  # the check was killed
                    record |= dict(status="stopped", reason="the check was killed")
            try:
                planned = {unit.name: unit for unit in self.PARTS[name][1](self)}
                for unit in planned.values():
                    record = records.get(unit.name)
                    if record and not unit.missing and record["program"] != unit.program:
                        dropped.append(unit.name)
                        del records[unit.name]
                if name == "deterministic" and len(self.results(name)) < 2:
                    records.clear()  # both runs belong to one machine
                planned = {
                    unit.name for unit in self.PARTS[name][1](self)
                }  # units that depended on those are no longer planned
            except NotRun:
                continue
            for left in [record for record in records if record not in planned]:
                dropped.append(left)
                del records[left]
            if dropped:
                part |= dict(status="not run", reason="found out with other programs")
                print(
                    f"{name}: the report's results are of other programs than these, and are not kept: "
                    + ", ".join(dropped),
                    flush=True,
                )

    def one_part(self, name, again):
        self.runner.heed_signal()
        title, plan, judge = self.PARTS[name]
        part, start = self.report["parts"][name], time.monotonic()
        records, ran = part["units"], False
        try:
            while todo := self.to_do(name, list(plan(self)), records, again):
                self.ran |= {(name, unit.name) for unit in todo}
                part["status"], ran = "running", True
                left = self.runner.run(name, todo, records, self.lanes())
                if left:
                    break
            self.settle(part, list(plan(self)), judge)
        except NotRun as error:
            part |= dict(status="not run", reason=str(error))
        except Stopped as error:
            part |= dict(status="unfinished", reason=f"stopped by {error}")
            raise
        finally:
            part["seconds"] = round(part.get("seconds", 0) + time.monotonic() - start, 1)
        self.save()
        if ran or not again:
            print(f"{name:16}{part['status']:11}{part.get('reason', '')}", flush=True)

    def to_do(self, name, planned, records, again):
        """The units without a verdict, or, with `again`, those that failed in an earlier call."""
        todo = []
        for unit in planned:
            status = records.get(unit.name, {}).get("status")
            if unit.missing:
                if status != "passed":
                    records[unit.name] = dict(
                        status="missing", program="", reason=unit.missing, optional=unit.optional
                    )
            elif status == "failed" if again else status not in ("passed", "failed"):
                todo += [unit] if (name, unit.name) not in self.ran else []
        return todo

    def settle(self, part, planned, judge):
        """Derives the part's status from its units'."""
        gpu_report.derive(self.report)
        by_status = {}
        for unit in planned:
            record = part["units"].get(unit.name, {"status": "left"})
            if not (unit.optional and record["status"] in ("failed", "missing")):
                by_status.setdefault(
                    "left" if record["status"] == "stopped" else record["status"], []
                ).append(unit.name)
        failed, left, missing = (by_status.get(status, []) for status in ("failed", "left", "missing"))
        reasons = [f"{len(failed)} of {len(planned)} failed: {', '.join(failed)}"] if failed else []
        reasons += [f"{len(left)} of {len(planned)} are left for --continue: too little time"] if left else []
        reasons += sorted({part["units"][name]["reason"] for name in missing})
        status = (
            "failed"
            if failed
            else (
                "unfinished"
                if left
                else (
                    "not run"
                    if missing and len(missing) == len(planned)
                    else "unfinished" if missing else "passed"
                )
            )
        )
        if judge and not left:
            try:
                judge(self)
            except Failed as error:
                status, reasons = "failed", [*reasons, str(error)]
        part |= dict(status=status, reason="; ".join(reasons))

    def save(self):
        gpu_report.derive(self.report)
        if "ladder" in self.report["parts"]:
            self.report["ladder"] = self.ladder_rows()
        report = without_nan(self.report)
        self.files.write_logs()
        self.files.write("report.json", (json.dumps(report, indent=1) + "\n").encode())
        self.files.write("report.md", gpu_report.markdown(self.report).encode())
        if self.report["curves"]:
            self.files.write("loss.svg", gpu_report.loss_plot(report["curves"]).encode())


def parse_arguments():
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"gpu_check: {message}; --help shows the usage\n")
    parser.add_argument("outdir", metavar="OUTDIR")
    parser.add_argument("--llmc", metavar="PATH", help="a built llm.c to compare with as well")
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", default=math.inf, help="run what fits into this time"
    )
    parser.add_argument(
        "--parts", type=lambda text: text.split(","), help=f"only these of: {','.join(Check.PARTS)}"
    )
    parser.add_argument(
        "--continue",
        dest="go_on",
        action="store_true",
        help="keep what OUTDIR's report has, and run what is left",
    )
    texts, shards = str(ROOT / "data" / "*.txt"), sorted((ROOT / "dev" / "data").glob("*/*_train_*.bin"))
    data = str(shards[0].parent / "*_train_*.bin") if shards else texts
    parser.add_argument(
        "--data", help=f"token shards, or texts, a glob; rehearsals need texts (default: {data})"
    )
    parser.add_argument(
        "--device",
        choices=BUILDS,
        default="cuda",
        help="software, cpu: rehearses the check at tiny sizes over the software GPU, or on the CPU",
    )
    parser.add_argument(
        "--build",
        metavar="DIR",
        help=f"of programs, tests and benchmarks (default, by --device: build/{'|'.join(BUILDS.values())})",
    )
    options = parser.parse_args()
    unknown = [name for name in options.parts or [] if name not in Check.PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]}; expected some of {','.join(Check.PARTS)}")
    if not options.time_limit > 0:
        parser.error(f"--time-limit {options.time_limit:g}; expected a positive number of seconds")
    if options.device == "cuda" and (
        not shutil.which("nvidia-smi")
        or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode != 0
    ):
        parser.exit(
            2, "gpu_check: nvidia-smi lists no GPU; --device software rehearses the check without one\n"
        )
    rehearsal = options.device != "cuda"
    if rehearsal and options.data and not options.data.endswith(".txt"):
        parser.error(f"--data {options.data}; expected texts (*.txt) with --device {options.device}")
    options.data = os.path.abspath(options.data or (texts if rehearsal else data))
    if options.llmc and rehearsal:
        parser.error(f"--llmc with --device {options.device}; llm.c is compared with on a GPU only")
    if options.llmc:
        path = pathlib.Path(options.llmc).expanduser().resolve()
        options.llmc = str(path / "train_gpt2cu" if path.is_dir() else path)
        if not os.access(options.llmc, os.X_OK):
            parser.error(f"--llmc: {options.llmc} is no program; build llm.c with: make train_gpt2cu")
    return options


def main():
    check = Check(parse_arguments())
    check.look_at_machine()
    check.open()
    try:
        complete = check.all_parts()
    finally:
        check.runner.close()
    for criterion in check.report["criteria"]:
        verdict = "not judged" if criterion["met"] is None else "met" if criterion["met"] else "NOT met"
        print(f"{verdict:11}{criterion['criterion']}: {criterion['found']}")
    left = [
        name
        for name, part in check.report["parts"].items()
        if part["status"] in ("unfinished", "not run", "running")
    ]
    if left:
        print(f"left: {', '.join(left)}; the same command with --continue goes on")
    print(f"{check.folder}/report.md")
    if not check.rehearsal:
        name = re.sub(r"\W+", "-", check.report["gpu"] or "gpu")
        print(
            f"worth keeping? mkdir -p dev/bench/results; cp {shlex.quote(str(check.folder / 'report.json'))} "
            f"dev/bench/results/{name}-{check.report['date']}.json"
        )
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
