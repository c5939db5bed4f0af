"""Python packages that a test needs and most machines do not have."""
import fcntl
import importlib.util
import os
import pathlib
import subprocess
import sys

BUILD = pathlib.Path(os.environ.get("BUILD", pathlib.Path(__file__).resolve().parent.parent / "build" / "release"))


def with_packages(*names):
    """Unless the packages can be imported, restarts the test in an environment in the build folder that has them; it is created once.

    If pip cannot install them, the test continues without them. It must then skip the parts that need them, and ctest counts it as skipped.
    """
    if all(importlib.util.find_spec(name) for name in names) or "FLATGPT_TEST_PACKAGES" in os.environ:
        return
    folder = BUILD / "test-packages"
    python = folder / "bin" / "python3"
    commands = [[python, "-m", "pip", "install", "--quiet", *names]]
    if not python.exists():
        commands.insert(0, [sys.executable, "-m", "venv", folder])
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in commands:
            result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if result.returncode != 0:
                print(f"{' '.join(names)} cannot be installed: {result.stderr.strip()[-500:]}", file=sys.stderr)
                return
    os.environ["FLATGPT_TEST_PACKAGES"] = "1"
    os.execv(python, [python, *sys.argv])
