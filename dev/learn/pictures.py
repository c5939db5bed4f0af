"""Shared by the experiments of docs/learn: NumPy, and how a picture looks."""
import os
import pathlib
import subprocess
import sys

try:
    import numpy as np  # noqa: F401
except ImportError as error:
    sys.exit(f"{sys.argv[0]}: {error} in {sys.executable}; run scripts/setup.sh plot, then /usr/bin/python3 {' '.join(sys.argv)}")

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from run_metrics import OneLineParser, RunMetrics  # noqa: E402, F401
BLUE, RED, GREEN, GREY = "#1f5fa8", "#c8553d", "#3a7d44", "#777777"


def program(name):
    """The path of an experiment's program, which NAME_PROGRAM may name."""
    return os.environ.get(f"{name.upper()}_PROGRAM", str(ROOT / "build" / "release" / name))


def build(name):
    """Builds it, unless NAME_PROGRAM names it. If nothing could be installed, scripts/setup.sh has put cmake into build/tools."""
    if f"{name.upper()}_PROGRAM" not in os.environ:
        environment = {**os.environ, "PATH": f"{ROOT}/build/tools/bin:{os.environ['PATH']}"}
        subprocess.run(["cmake", "--build", "--preset", "release", "--target", name], cwd=ROOT, env=environment, check=True)


def pyplot():
    """matplotlib.pyplot, which needs no display."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
    return plt


def save(figure, path):
    figure.savefig(path, dpi=110)
    print(f"wrote {path}")
