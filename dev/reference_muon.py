#!/usr/bin/env python3
"""Writes test/reference/muon.safetensors, which test/test_muon.cu compares with: Muon in double precision.

    python3 dev/reference_muon.py       # needs torch 2.15 and safetensors; writes the same bytes every time

torch.optim.Muon orthogonalises in bfloat16 whatever it is given, so it cannot be the oracle of an update in fp32. Muon is
therefore written again below, in any type. In bfloat16 it must do what torch.optim.Muon does, bit for bit; in float64 it writes
the dump:

SHAPE.weight               (rows, columns) at the start, for SHAPE of 48x48, 96x48, 48x96 and 1x48; the gradients are gradient(step, ..)
SHAPE.after.N              the weight after N steps, N = 1, 2, 20
SHAPE.momentum_buffer      after 20 steps
model.NAME                 the orthogonal matrix that the first step makes of the gradient of this tensor in model.safetensors,
                           c_attn's for q, k and v apart
"""
import math
import pathlib
import sys

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as error:
    sys.exit(f"reference_muon.py: {error}; please install them: pip install torch safetensors")

OUT = pathlib.Path(__file__).resolve().parent.parent / "test" / "reference"
SHAPES = [(48, 48), (96, 48), (48, 96), (1, 48)]
STEPS, LR, WEIGHT_DECAY, MOMENTUM = 20, 0.05, 0.1, 0.95
A, B, C = 3.4445, -4.7750, 2.0315

torch.set_num_threads(1)  # the order of sums must not depend on the machine
torch.use_deterministic_algorithms(True)


def gradient(step, rows, columns):
    """Numbers from -0.5 to 0.5 that any language computes exactly; steps count from 1."""
    i = torch.arange(rows * columns, dtype=torch.int64) + step * 1000003
    x = (i * 2654435761) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 2246822519) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 3266489917) & 0xFFFFFFFF
    return ((x ^ (x >> 16)) >> 8).to(torch.float32).reshape(rows, columns) / 2**24 - 0.5


def orthogonal(u, dtype):
    """Five steps of Newton-Schulz in this type."""
    x = u.to(dtype, copy=True)
    tall = x.size(0) > x.size(1)
    if tall:
        x = x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        polynomial = torch.addmm(gram, gram, gram, beta=B, alpha=C)
        x = torch.addmm(x, polynomial, x, beta=A)
    return x.T if tall else x


def muon_step(p, buffer, g, dtype, scale="original"):
    """One update of p and its momentum, in place."""
    buffer.lerp_(g, 1 - MOMENTUM)
    x = orthogonal(g.lerp(buffer, MOMENTUM), dtype)
    rows, columns = p.shape
    factor = math.sqrt(max(1, rows / columns)) if scale == "original" else 0.2 * math.sqrt(max(rows, columns))
    p.mul_(1 - LR * WEIGHT_DECAY)
    p.add_(x.to(p.dtype), alpha=-LR * factor)


def start(rows, columns):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * 1000 + columns)) * 0.2


def check_against_torch():
    for rows, columns in SHAPES:
        for scale in ("original", "match_rms_adamw"):
            theirs = torch.nn.Parameter(start(rows, columns))
            optimizer = torch.optim.Muon([theirs], lr=LR, weight_decay=WEIGHT_DECAY, momentum=MOMENTUM, adjust_lr_fn=scale)
            ours, buffer = start(rows, columns), torch.zeros(rows, columns)
            for step in range(1, STEPS + 1):
                theirs.grad = gradient(step, rows, columns)
                optimizer.step()
                muon_step(ours, buffer, gradient(step, rows, columns), torch.bfloat16, scale)
                assert torch.equal(ours, theirs.detach()), (rows, columns, scale, step)
                assert torch.equal(buffer, optimizer.state[theirs]["momentum_buffer"])


def main():
    check_against_torch()
    dump = {}
    for rows, columns in SHAPES:
        name, p, buffer = f"{rows}x{columns}", start(rows, columns).double(), torch.zeros(rows, columns).double()
        dump[f"{name}.weight"] = p.clone()
        for step in range(1, STEPS + 1):
            muon_step(p, buffer, gradient(step, rows, columns).double(), torch.float64)
            if step in (1, 2, STEPS):
                dump[f"{name}.after.{step}"] = p.clone()
        dump[f"{name}.momentum_buffer"] = buffer
    model = load_file(OUT / "model.safetensors")
    for name, matrices in (("attn.c_attn", 3), ("attn.c_proj", 1), ("mlp.c_fc", 1), ("mlp.c_proj", 1)):
        name = f"transformer.h.0.{name}.weight"
        parts = model[f"grad.{name}"].double().chunk(matrices)
        # the first momentum is a multiple of the gradient, which the normalisation takes away
        dump[f"model.{name}"] = torch.cat([orthogonal(part, torch.float64) for part in parts])
    save_file({name: value.float().contiguous() for name, value in dump.items()}, OUT / "muon.safetensors")
    print(f"muon.safetensors, {(OUT / 'muon.safetensors').stat().st_size:,} bytes; in bfloat16 equal to torch.optim.Muon {torch.__version__}")


if __name__ == "__main__":
    main()
