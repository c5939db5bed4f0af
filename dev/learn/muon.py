#!/usr/bin/env python3
"""Trains the default small model with AdamW and with Muon, and draws docs/learn/6-muon.png.

    python3 dev/learn/muon.py                    # needs: make

Left: the training losses. Right: the singular values of a matrix's momentum as Muon's run keeps it, and of the update that five steps of the
iteration make of it, computed here again. Both runs start from the same weights and see the same batches.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pictures
from pictures import BLUE, GREY, RED, ROOT, OneLineParser, RunMetrics, np

PROGRAM = pathlib.Path(os.environ.get("TRAIN_PROGRAM", ROOT / "train_gpt2"))
A, B, C = 3.4445, -4.7750, 2.0315


def train(optimizer, arguments, folder):
    """A run's folder."""
    run = pathlib.Path(folder) / optimizer
    every = ["--val-every", arguments.steps, "--val-steps", arguments.val_steps, "--sample-every", 0, "--checkpoint-every", arguments.steps]
    command = [PROGRAM, *arguments.model, "--optimizer", optimizer, "--steps", arguments.steps, *every, "--out", run]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"muon: {' '.join(done.stderr.split())}")
    return run


def tensor_of(path, name):
    """A matrix of a safetensors file."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    entry = json.loads(data[8:begin])[name]
    first, last = entry["data_offsets"]
    return np.frombuffer(data[begin + first : begin + last], dtype=np.float32).reshape(entry["shape"]).astype(np.float64)


def orthogonalise(x, steps=5):
    """Five steps of the iteration in kernels/gemm/orthogonalise.h."""
    x = x / np.linalg.norm(x)
    for _ in range(steps):
        gram = x @ x.T
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x


def singular_values(x):
    return np.linalg.svd(x, compute_uv=False)


def draw(runs, before, after, arguments):
    plt = pictures.pyplot()
    figure, (curves, values) = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    for (name, run), color in zip(runs.items(), (GREY, BLUE)):
        losses = np.array(RunMetrics(run).values("train", "loss"))
        width = min(25, len(losses))
        mean = np.convolve(losses, np.ones(width) / width, mode="valid")
        curves.plot(np.arange(width, len(losses) + 1), mean, color=color, label=name)
    curves.set(xlabel="step", ylabel="training loss, nats a byte")
    curves.legend()
    values.semilogy(before / np.linalg.norm(before), color=RED, label="momentum, divided by its norm")
    values.semilogy(after, color=BLUE, label="update")
    values.set(xlabel="singular value, the largest first", ylim=(1e-4, 3))
    values.legend()
    pictures.save(figure, arguments.out)


def main():
    parser = OneLineParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=500, help="of both runs (default: %(default)s)")
    parser.add_argument("--val-steps", type=int, default=0, help="batches of the validation at the end; 0: all (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/learn/6-muon.png")
    parser.add_argument("--tiny", action="store_true", help="a model that trains in no time, to try this out")
    arguments = parser.parse_args()
    arguments.model = "--layers 1 --heads 2 --channels 16 --context 16 --batch-size 8".split() if arguments.tiny else []
    if not PROGRAM.exists():
        sys.exit("muon: train_gpt2 is not built; please run: make")
    with tempfile.TemporaryDirectory() as folder:
        runs = {optimizer: train(optimizer, arguments, folder) for optimizer in ("adamw", "muon")}
        for name, run in runs.items():
            print(f"{name}: validation loss {RunMetrics(run).values('val', 'loss')[-1]:.3f} after {arguments.steps} steps")
        state = next(runs["muon"].glob("checkpoints/*/optimizer_0000.safetensors"))
        momentum = tensor_of(state, "momentum_buffer.transformer.h.0.mlp.c_fc.weight").T
        before, after = singular_values(momentum), singular_values(orthogonalise(momentum))
        print(f"singular values of the momentum {before[0]:.2g} to {before[-1]:.2g}, of the update {after.max():.2f} to {after.min():.2f}")
        draw(runs, before, after, arguments)


if __name__ == "__main__":
    main()
