"""The environment in which io_faults.cpp makes a program's system calls fail."""
import errno
import os
import pathlib

from common import ROOT  # beside this file

LIBRARY = os.environ.get("IO_FAULTS_LIBRARY", str(ROOT / "build/release/cmake/cpu/libio_faults.so"))


def faults(calls, path, error="EIO", first=1, count=1, log="", **more):
    """calls: names of io_faults.cpp, separated by commas; path: a part of the file's path; error: a name; page: a number."""
    values = {"CALLS": calls, "PATH": path, "ERRNO": getattr(errno, error), "FIRST": first, "COUNT": count, "LOG": log}
    values |= {name.upper(): value for name, value in more.items()}
    return {"LD_PRELOAD": LIBRARY} | {f"IO_FAULT_{name}": str(value) for name, value in values.items()}


def matching_calls(log):
    """The lines that a run with first=0 logged: "CALL PATH"."""
    return pathlib.Path(log).read_text().splitlines() if pathlib.Path(log).exists() else []
