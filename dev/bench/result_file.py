"""Result files: figures of a comparison, kept in dev/bench/results/, from which tables.py writes tables.

    {"tool": "compare_pytorch", "what": "training-d12", "commit": "0123abc", "date": "2026-11-22 20:31",
     "source": "measured",
     "machine": {"name": "Intel Xeon, AVX-512", "processor": "Intel(R) Xeon(R) Processor @ 2.80GHz",
                 "cores": 2, "memory_gib": 23.5},
     "versions": {"flatgpt": "0.1.0", "PyTorch": "2.15.0"},
     "environment": {"PyTorch": {"OMP_PROC_BIND": "true"}},
     "command": "dev/bench/compare_pytorch.py --preset d12", "options": {...}, "results": {...}}

"environment" has the variables that a peer was given beyond ours; {} says that it had none. The date is UTC. The commit is that of the tree, with "-dirty" if sources differ from it. Results are
medians and quantiles, not every step's time.
"""

import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "dev" / "bench" / "results"
# The instructions that decide how fast a processor multiplies, the best first: Linux's name, ours.
INSTRUCTIONS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512_BF16", "avx512f": "AVX-512", "avx2": "AVX2"}


def cpuinfo(key):
    """The first value of a line of /proc/cpuinfo, or ""."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == key), "")


def machine_name(processor, flags):
    """Maker, family and the decisive instructions; machines of one name share a column of a table."""
    family = re.search(r"(Intel|AMD)\W.*?\b(Xeon|EPYC|Core|Ryzen)\b", processor)
    best = next((name for flag, name in INSTRUCTIONS.items() if flag in flags.split()), "")
    return ", ".join(part for part in (" ".join(family.groups()) if family else processor, best) if part)


def huge_pages():
    """Linux's setting for transparent huge pages: always, madvise, never; "" if it is unknown."""
    try:
        text = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return ""
    return re.search(r"\[(\w+)\]|$", text)[1] or ""


def processor():
    return cpuinfo("model name") or platform.machine()


def machine(threads):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return dict(
        name=machine_name(processor(), cpuinfo("flags")),
        processor=processor(),
        cores=threads,
        memory_gib=round(memory, 1),
        huge_pages=huge_pages(),
    )


def commit(root=ROOT):
    """The short commit, with "-dirty" if sources differ from it; "unknown" outside a clone."""

    def git(*arguments):
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)

    head = git("rev-parse", "--short=7", "HEAD")
    if head.returncode != 0:
        return "unknown"
    changed = git(
        "status", "--porcelain", "--untracked-files=no", "--", ".", ":!*.md", ":!*.png", ":!dev/bench/results"
    ).stdout.strip()
    return head.stdout.strip() + ("-dirty" if changed else "")


def our_version(program):
    """The version that one of our programs prints; "unknown" if it prints none."""
    try:
        words = subprocess.run([str(program), "--version"], capture_output=True, text=True).stdout.split()
    except OSError:
        words = []
    return words[-1] if words else "unknown"


def onednn_version(program):
    """The version of the oneDNN that one of our programs loads; "" if none is found."""
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
    found = re.search(r"libdnnl\S* => (\S+)", listed)
    name = pathlib.Path(found[1]).resolve().name if found else ""
    return name.split(".so.")[-1]


def default_path(what, name, date, folder=RESULTS):
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return folder / f"{what}-{slug}-{date}.json"


def add_option(parser):
    parser.add_argument(
        "--save",
        nargs="?",
        const="",
        metavar="OUT",
        help="keep the figures for the tables (default: dev/bench/results/WHAT-MACHINE-DATE.json)",
    )


def shown_environment(variables):
    """As one writes it in front of a command."""
    return " ".join(f"{name}={value}" for name, value in variables.items())


def save(out, tool, what, threads, versions, options, results, environment):
    """Writes the file and prints its path. out: --save's value, "" for the default place."""
    here, date = machine(threads), f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M}"
    # A path of this machine is shown by its last part.
    arguments = [pathlib.Path(argument).name if "/" in argument and pathlib.Path(argument).exists() else argument
                 for argument in sys.argv[1:] if argument not in ("--save", str(out))]  # fmt: skip
    whole = dict(
        tool=tool,
        what=what,
        commit=commit(),
        date=date,
        source="measured",
        machine=here,
        versions={name: version for name, version in versions.items() if version},
        environment=environment,
        command=shlex.join([f"dev/bench/{tool}.py", *arguments]),
        options=options,
        results=results,
    )
    path = pathlib.Path(out) if out else default_path(what, here["name"], date[:10])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n")
    print(f"saved to {path}")
