#!/usr/bin/env python3
"""Trains a small GPT-2 here and in PyTorch, from the same weights on the same tokens, and draws both losses: docs/loss-beside-pytorch.png.

    make && dev/compare_loss.py              # 1000 steps on each side in fp32; some minutes on 2 cores
    dev/compare_loss.py --steps 300 --out loss.png
    dev/compare_loss.py --draw               # draws the saved losses again, without training

dev/bench/compare_pytorch.py --loss-check does the training: PyTorch draws the initial weights, writes them as a Hugging Face folder, which --init-from
reads, and both sides take the batches in the order of the file. The losses are kept in dev/bench/results/loss-shakespeare.json.
The picture's caption in docs/performance.md, and README.md, state the largest difference, which this program prints.

PyTorch and matplotlib are installed into build/pytorch-venv, once; FLATGPT_PYTORCH_VENV names an environment that has both.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "dev" / "bench"))
import compare_pytorch  # noqa: E402
import result_file  # noqa: E402

SAVED = ROOT / "dev" / "bench" / "results" / "loss-shakespeare.json"
COMPARE = ROOT / "dev" / "bench" / "compare_pytorch.py"
OPTIONS = "--preset shakespeare --dtype fp32 --mode plain --rounds 0 --lr 1e-3 --warmup 100 --loss-check".split()
OURS, PYTORCH = "#c8553d", "#1f5fa8"


def train(steps):
    """Both sides' losses, and what they were measured with, in the form of a result file."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "losses.json")
        subprocess.run([sys.executable, COMPARE, *OPTIONS, "--loss-steps", str(steps), "--json", out], check=True)
        found = json.loads(out.read_text())
    by_side = {result["side"]: result for result in found["results"].values()}
    options = found["options"]
    kept = {name: options[name] for name in ("layers", "heads", "channels", "context", "vocab", "total_batch", "lr", "warmup")}
    ours = {"flatgpt": result_file.our_version(options["program"]), "oneDNN": result_file.onednn_version(options["program"])}
    return dict(tool="compare_loss", commit=result_file.commit(), source="measured", machine=result_file.machine(options["threads"]),
                versions=ours | {"PyTorch": found["pytorch"]}, options=kept,
                losses={side: [round(loss, 6) for loss in result["losses"]] for side, result in by_side.items()})  # fmt: skip


def draw(saved, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ours, pytorch = saved["losses"]["ours"], saved["losses"]["pytorch"]
    steps = range(1, len(ours) + 1)
    differences = [a - b for a, b in zip(ours, pytorch)]
    largest = max(differences, key=abs)
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 4.6), sharex=True, constrained_layout=True, height_ratios=[2.3, 1])
    above.plot(steps, pytorch, color=PYTORCH, alpha=0.35, linewidth=5, solid_capstyle="round", label="PyTorch")
    above.plot(steps, ours, color=OURS, linewidth=0.9, label="flatgpt")
    above.set_ylabel("training loss\n(nats a byte)")
    above.legend(frameon=False, loc="upper right", fontsize=12)
    below.axhline(0, color="#999999", linewidth=0.8)
    below.plot(steps, [1e6 * difference for difference in differences], color="#333333", linewidth=0.9)
    worst = differences.index(largest) + 1
    below.plot([worst], [1e6 * largest], "o", color=OURS, markersize=5)
    below.annotate(f"largest difference: {abs(largest):.6f}, at step {worst}", (worst, 1e6 * largest), (-8, 0), textcoords="offset points", ha="right", va="center", fontsize=10)
    below.set_ylabel("difference,\nmillionths")
    below.set_xlabel("step")
    figure.align_ylabels()
    below.set_xlim(0, len(ours) * 1.005)
    figure.savefig(path, dpi=110)
    mean = sum(map(abs, differences)) / len(differences)
    print(f"{len(ours)} steps: at most {abs(largest):.6f} apart, at step {worst}, and {mean:.6f} in the mean; last losses {ours[-1]:.4f} and {pytorch[-1]:.4f}")
    print(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"compare_loss: {message}; --help shows the usage\n")
    parser.add_argument("--steps", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--draw", action="store_true", help="draw the saved losses without training")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "loss-beside-pytorch.png")
    arguments = parser.parse_args()
    if not arguments.draw:
        compare_pytorch.enter_environment("matplotlib")
        SAVED.write_text(json.dumps(train(arguments.steps), separators=(",", ":")) + "\n")
    draw(json.loads(SAVED.read_text()), arguments.out)


if __name__ == "__main__":
    main()
