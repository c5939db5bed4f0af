#!/usr/bin/env python3
"""Writes the PyTorch dumps that the C++ tests compare with: test/reference/*.safetensors and hellaswag.jsonl.

    python3 dev/reference.py            # needs torch, transformers and safetensors; writes the same bytes every time

Every input is a float32 number. Everything derived from it is computed in float64 and rounded once to float32, so a dump is
exact to half a unit in its last place. Weights are (out, in), as in our kernels, under Hugging Face's names.
V is the vocabulary, Vp its padded size, N = B*T. dX is the gradient of X; a dout is an upstream gradient and an input. I32
tensors are tokens or targets, F64 tensors the numbers of a trajectory; everything else is F32 unless stated otherwise.

encoder              inp (B, T) I32, wte (V, C), wpe (maxT, C), out, dout (B, T, C), dwte (V, C), dwpe (maxT, C); T < maxT, tokens repeat
layernorm            inp, out, dout, dinp (N, C), weight, bias, dweight, dbias (C), mean, rstd (N)
residual_layernorm   inp1, inp2 (N, C), residual = inp1 + inp2, out = layernorm(residual), weight, bias (C), mean, rstd (N);
                     dout and dresidual arrive from the two outputs, dinp (N, C) is the gradient of inp1 and of inp2; dweight, dbias (C)
matmul               inp, dinp (N, C), weight, dweight (OC, C), bias, dbias (OC), out, dout (N, OC)
matmul_gelu          pre_gelu = inp weight^T + bias, out = gelu(pre_gelu) (N, OC); then a projection weight_proj (C2, OC), whose upstream
                     gradient is dout_proj (N, C2): dout = dout_proj weight_proj, dpre_gelu (N, OC), and dinp, dweight, dbias
gelu                 inp, out, dout, dinp (n), far tails included
attention            qkv, dqkv (B, T, 3, NH, HS), out, dout (B, T, NH, HS), lse (B, NH, T) natural log
cross_entropy        logits, dlogits (N, Vp), targets (N) I32 with -1 where ignored, losses (N), dloss (1): the gradient of every loss;
                     logits past V are large and must have no influence: their probability and gradient are 0
adamw                weight (5, 7) with weight decay, bias (7) without; ten steps: grad.weight (10, 5, 7), grad.bias (10, 7), lr (10) F64,
                     grad_norm (10) F64 of both before clipping; weight.after, bias.after, and exp_avg.X, exp_avg_sq.X for both (10, ...)
model                a GPT-2 with its parameters, x, y (B, T) I32, logits (B, T, V), losses (B, T), loss (1) F64, grad.NAME of every
                     parameter for the mean loss, and activations: act.encoder, act.ln_f (B, T, C), and for layers N = 0, 1
                     act.h.N.{ln_1, attention, residual_attention, ln_2, residual_mlp} (B, T, C), .qkv (B, T, 3, NH, HS), .{fc, gelu} (B, T, 4C)
model_bf16           the same parameters rounded to bf16 (dtype BF16), and x, y, losses, loss, grad.NAME computed exactly from the rounded ones
hellaswag.jsonl      examples in HellaSwag's format; their bytes are model's tokens. Each has the sum and the mean of the log-likelihoods of each
                     ending's bytes, with a space before them, after the context's last bytes: at most T positions in all
trajectory           ten AdamW steps from model's parameters on ten batches: x, y (10, B, T) I32; loss.fp32, loss.fp64, grad_norm.fp32,
                     grad_norm.fp64 (10) F64, final.NAME: a few parameters after step ten
optimizers           twenty steps of each torch.optim optimizer NAME (adamw, adam, sgd, sgd_momentum, sgd_nesterov, rmsprop, rmsprop_momentum):
                     weight (5, 7) with weight decay, bias (7) without, grad.weight (20, 5, 7), grad.bias (20, 7), grad_norm (20) before
                     clipping; NAME.weight.after (20, 5, 7), NAME.bias.after (20, 7), and at the end NAME.BUFFER.weight, NAME.BUFFER.bias;
                     the model on trajectory's ten batches, twice: model.NAME.loss, model.NAME.grad_norm (20) F64
hugging_face/        folders saved by transformers: sharded/ in fp32, bare_bf16/ without the prefix "transformer."; expected.safetensors:
                     x (T) I32 and the logits (T, V) of each
"""
import copy
import json
import math
import pathlib
import sys

try:
    import torch
    import torch.nn.functional as F
    from safetensors.torch import save_file
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError as error:
    sys.exit(f"reference.py: {error}; please install them: pip install torch transformers safetensors")

OUT = pathlib.Path(__file__).resolve().parent.parent / "test" / "reference"
EPS = 1e-5
V, MAX_T, L, NH, C = 131, 32, 2, 3, 48
B, T = 3, 19
LR, BETAS, ADAM_EPS, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0

torch.set_num_threads(1)  # the order of sums must not depend on the machine
torch.use_deterministic_algorithms(True)


def normal(generator, *shape, scale=1.0, mean=0.0):
    """Random float32 numbers as float64, in which everything derived from them is computed."""
    return (torch.randn(*shape, generator=generator) * scale + mean).double()


def tokens(generator, vocabulary, *shape):
    return torch.randint(0, vocabulary, shape, generator=generator)


def leaf(tensor):
    return tensor.clone().requires_grad_()


def save(name, dump, keep=()):
    """Writes a dump in float32 and int32; the tensors named in `keep` keep their types."""
    stored = {}
    for key, value in dump.items():
        narrow = {torch.int64: torch.int32, torch.float64: torch.float32}
        kept = key in keep
        stored[key] = value.detach().to(value.dtype if kept else narrow.get(value.dtype, value.dtype)).contiguous()
    save_file(stored, OUT / f"{name}.safetensors", metadata={"layout": "weights are (out, in)"})


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def layernorm(x, weight, bias):
    """Returns the output, and the mean and 1/deviation of every row."""
    mean = x.mean(-1, keepdim=True)
    rstd = ((x - mean).square().mean(-1, keepdim=True) + EPS).rsqrt()
    return (x - mean) * rstd * weight + bias, mean.squeeze(-1), rstd.squeeze(-1)


def attention(qkv):
    """Causal attention over (B, T, 3, NH, HS). Returns (B, T, NH, HS) and the log of each row's sum of exp(score), (B, NH, T)."""
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    score = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    score = score.masked_fill(torch.ones(score.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return (score.softmax(-1) @ v).transpose(1, 2), score.logsumexp(-1)


def dump_encoder(g):
    B, T, V, C, maxT = 3, 7, 11, 9, 10
    inp, wte, wpe, dout = tokens(g, V, B, T), leaf(normal(g, V, C)), leaf(normal(g, maxT, C)), normal(g, B, T, C)
    inp[1] = 4  # one token fills a sequence
    out = wte[inp] + wpe[:T]
    out.backward(dout)
    save("encoder", dict(inp=inp, wte=wte, wpe=wpe, out=out, dout=dout, dwte=wte.grad, dwpe=wpe.grad))


def dump_layernorm(g):
    N, C = 13, 37
    inp, weight, bias = leaf(normal(g, N, C, scale=2, mean=1)), leaf(normal(g, C, mean=1)), leaf(normal(g, C))
    dout = normal(g, N, C)
    out, mean, rstd = layernorm(inp, weight, bias)
    out.backward(dout)
    save("layernorm", dict(inp=inp, weight=weight, bias=bias, out=out, mean=mean, rstd=rstd, dout=dout, dinp=inp.grad,
                           dweight=weight.grad, dbias=bias.grad))


def dump_residual_layernorm(g):
    N, C = 11, 40
    inp1, inp2, weight, bias = leaf(normal(g, N, C)), leaf(normal(g, N, C, scale=3)), leaf(normal(g, C, mean=1)), leaf(normal(g, C))
    dout, dresidual = normal(g, N, C), normal(g, N, C)
    residual = inp1 + inp2
    out, mean, rstd = layernorm(residual, weight, bias)
    torch.autograd.backward([out, residual], [dout, dresidual])
    save("residual_layernorm", dict(inp1=inp1, inp2=inp2, residual=residual, weight=weight, bias=bias, out=out, mean=mean, rstd=rstd, dout=dout,
                                    dresidual=dresidual, dinp=inp1.grad, dweight=weight.grad, dbias=bias.grad))


def dump_matmul(g):
    N, C, OC = 15, 21, 33
    inp, weight, bias, dout = leaf(normal(g, N, C)), leaf(normal(g, OC, C)), leaf(normal(g, OC)), normal(g, N, OC)
    out = inp @ weight.T + bias
    out.backward(dout)
    save("matmul", dict(inp=inp, weight=weight, bias=bias, out=out, dout=dout, dinp=inp.grad, dweight=weight.grad, dbias=bias.grad))


def dump_matmul_gelu(g):
    N, C, OC, C2 = 15, 21, 34, 19
    inp, weight, bias = leaf(normal(g, N, C)), leaf(normal(g, OC, C, scale=0.4)), leaf(normal(g, OC))
    weight_proj, dout_proj = normal(g, C2, OC), normal(g, N, C2)
    pre_gelu = inp @ weight.T + bias
    out = gelu(pre_gelu)
    for x in (pre_gelu, out):
        x.retain_grad()
    (out @ weight_proj.T).backward(dout_proj)
    save("matmul_gelu", dict(inp=inp, weight=weight, bias=bias, pre_gelu=pre_gelu, out=out, weight_proj=weight_proj, dout_proj=dout_proj,
                             dout=out.grad, dpre_gelu=pre_gelu.grad, dinp=inp.grad, dweight=weight.grad, dbias=bias.grad))


def dump_gelu(g):
    tails = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 5, -5, 9, -9, 30, -30, 1e4, -1e4])  # cosh overflows past 89
    inp = leaf(torch.cat([normal(g, 501, scale=2), tails.float().double()]))
    dout = normal(g, inp.numel())
    out = F.gelu(inp, approximate="tanh")
    assert torch.allclose(out, gelu(inp), rtol=1e-12, atol=1e-300)
    out.backward(dout)
    save("gelu", dict(inp=inp, out=out, dout=dout, dinp=inp.grad))


def dump_attention(g):
    B, T, NH, HS = 2, 67, 2, 10  # T crosses a tile of 64
    qkv, dout = leaf(normal(g, B, T, 3, NH, HS, scale=1.5)), normal(g, B, T, NH, HS)
    out, lse = attention(qkv)
    out.backward(dout)
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    assert torch.allclose(out.transpose(1, 2), F.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-12)
    save("attention", dict(qkv=qkv, out=out, lse=lse, dout=dout, dqkv=qkv.grad))


def dump_cross_entropy(g):
    N, V, Vp, dloss = 17, 51, 128, 0.0625
    logits, targets = normal(g, N, Vp, scale=3), tokens(g, V, N)
    logits[:, V:] = 50 + normal(g, N, Vp - V)
    logits.requires_grad_()
    targets[[2, 9]] = -1
    losses = F.cross_entropy(logits[:, :V], targets, ignore_index=-1, reduction="none")
    losses.backward(torch.full_like(losses, dloss))
    save("cross_entropy", dict(logits=logits, targets=targets, losses=losses, dloss=torch.tensor([dloss]), dlogits=logits.grad))


def adamw(decayed, others, lr):
    groups = [dict(params=decayed, weight_decay=WEIGHT_DECAY), dict(params=others, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=lr, betas=BETAS, eps=ADAM_EPS, foreach=False)


def dump_adamw(g):
    steps = 10
    dump = dict(weight=normal(g, 5, 7), bias=normal(g, 7), lr=1e-3 * torch.arange(steps, 0, -1).double() / steps)
    for name in ("weight", "bias"):  # norms on both sides of the clip
        dump[f"grad.{name}"] = torch.stack([normal(g, *dump[name].shape, scale=0.02 * 2**step) for step in range(steps)])
    weight, bias = leaf(dump["weight"]), leaf(dump["bias"])
    optimizer = adamw([weight], [bias], LR)
    history = {}
    for step in range(steps):
        weight.grad, bias.grad = dump["grad.weight"][step].clone(), dump["grad.bias"][step].clone()
        for group in optimizer.param_groups:
            group["lr"] = dump["lr"][step].item()
        history.setdefault("grad_norm", []).append(torch.nn.utils.clip_grad_norm_([weight, bias], CLIP))
        optimizer.step()
        for name, parameter in (("weight", weight), ("bias", bias)):
            history.setdefault(f"{name}.after", []).append(parameter.detach().clone())
            for moment in ("exp_avg", "exp_avg_sq"):
                history.setdefault(f"{moment}.{name}", []).append(optimizer.state[parameter][moment].clone())
    assert history["grad_norm"][0] < CLIP < history["grad_norm"][-1]
    save("adamw", dump | {key: torch.stack(values) for key, values in history.items()}, keep=("lr", "grad_norm"))


def model_parameters(g):
    """Random parameters, larger and less even than an initialisation's, so that no gradient is too small to be tested."""
    shapes = {"transformer.wte.weight": (V, C), "transformer.wpe.weight": (MAX_T, C)}
    for n in range(L):
        block = f"transformer.h.{n}"
        shapes |= {
            f"{block}.ln_1.weight": (C,), f"{block}.ln_1.bias": (C,),
            f"{block}.attn.c_attn.weight": (3 * C, C), f"{block}.attn.c_attn.bias": (3 * C,),
            f"{block}.attn.c_proj.weight": (C, C), f"{block}.attn.c_proj.bias": (C,),
            f"{block}.ln_2.weight": (C,), f"{block}.ln_2.bias": (C,),
            f"{block}.mlp.c_fc.weight": (4 * C, C), f"{block}.mlp.c_fc.bias": (4 * C,),
            f"{block}.mlp.c_proj.weight": (C, 4 * C), f"{block}.mlp.c_proj.bias": (C,),
        }  # fmt: skip
    shapes |= {"transformer.ln_f.weight": (C,), "transformer.ln_f.bias": (C,)}
    parameters = {}
    for name, shape in shapes.items():
        if "ln_" in name:
            parameters[name] = normal(g, *shape, scale=0.2, mean=1.0 if name.endswith("weight") else 0.0)
        else:
            parameters[name] = normal(g, *shape, scale=0.12)
    return parameters


def gpt2(p, x):
    """Logits (B, T, V) and the activations by name. p has our (out, in) layout."""
    (B, T), act = x.shape, {}
    residual = act["encoder"] = p["transformer.wte.weight"][x] + p["transformer.wpe.weight"][:T]
    for n in range(L):

        def named(layer, n=n):
            return p[f"transformer.h.{n}.{layer}.weight"], p[f"transformer.h.{n}.{layer}.bias"]

        def linear(layer, inp):
            weight, bias = named(layer)
            return inp @ weight.T + bias

        ln_1, _, _ = layernorm(residual, *named("ln_1"))
        qkv = linear("attn.c_attn", ln_1).view(B, T, 3, NH, C // NH)
        att = attention(qkv)[0].reshape(B, T, C)
        residual_attention = residual + linear("attn.c_proj", att)
        ln_2, _, _ = layernorm(residual_attention, *named("ln_2"))
        fc = linear("mlp.c_fc", ln_2)
        residual = residual_attention + linear("mlp.c_proj", gelu(fc))
        block = dict(ln_1=ln_1, qkv=qkv, attention=att, residual_attention=residual_attention, ln_2=ln_2, fc=fc, gelu=gelu(fc), residual_mlp=residual)
        act |= {f"h.{n}.{key}": value for key, value in block.items()}
    act["ln_f"], _, _ = layernorm(residual, p["transformer.ln_f.weight"], p["transformer.ln_f.bias"])
    return act["ln_f"] @ p["transformer.wte.weight"].T, act


def token_losses(logits, y):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y)


def run_model(parameters, x, y):
    """One forward and backward pass: logits, losses, activations, gradients by name."""
    p = {name: leaf(value) for name, value in parameters.items()}
    logits, act = gpt2(p, x)
    losses = token_losses(logits, y)
    losses.mean().backward()
    return logits, losses, act, {name: value.grad for name, value in p.items()}


def check_against_transformers(parameters, x, y):
    """Asserts that our formulas and Hugging Face's model are the same function; otherwise every dump would be wrong."""
    config = GPT2Config(vocab_size=V, n_positions=MAX_T, n_embd=C, n_layer=L, n_head=NH, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                        bos_token_id=0, eos_token_id=0, attn_implementation="eager", use_cache=False)  # fmt: skip
    model = GPT2LMHeadModel(config).double()
    conv1d = {name for name in parameters if name.endswith("weight") and (".attn." in name or ".mlp." in name)}  # (in, out) there
    state = {name: value.T if name in conv1d else value for name, value in parameters.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    logits = model(x).logits
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    loss.backward()
    ours_logits, ours_losses, _, ours_gradients = run_model(parameters, x, y)
    assert torch.allclose(logits, ours_logits, rtol=0, atol=1e-11)
    assert abs(loss.item() - ours_losses.mean().item()) < 1e-12
    for name, parameter in model.named_parameters():
        theirs = parameter.grad.T if name in conv1d else parameter.grad
        error = (theirs - ours_gradients[name]).norm() / theirs.norm()
        assert error < 1e-11, (name, error)


def dump_model(g):
    """Returns the parameters, for dump_trajectory."""
    parameters, x, y = model_parameters(g), tokens(g, V, B, T), tokens(g, V, B, T)
    check_against_transformers(parameters, x, y)
    logits, losses, act, gradients = run_model(parameters, x, y)
    dump = parameters | dict(x=x, y=y, logits=logits, losses=losses, loss=losses.mean().view(1))
    dump |= {f"act.{name}": value for name, value in act.items()} | {f"grad.{name}": value for name, value in gradients.items()}
    save("model", dump, keep=("loss",))
    rounded = {name: value.bfloat16() for name, value in parameters.items()}
    _, losses, _, gradients = run_model({name: value.double() for name, value in rounded.items()}, x, y)
    save("model_bf16", rounded | dict(x=x, y=y, losses=losses, loss=losses.mean().view(1))
         | {f"grad.{name}": value for name, value in gradients.items()}, keep=("loss",))
    return parameters


def train(parameters, x, y, dtype):
    """Ten steps; returns losses, gradient norms (before clipping) and the parameters."""
    p = {name: leaf(value.to(dtype)) for name, value in parameters.items()}
    optimizer = adamw([q for q in p.values() if q.dim() >= 2], [q for q in p.values() if q.dim() < 2], LR)
    losses, norms = [], []
    for step_x, step_y in zip(x, y):
        loss = token_losses(gpt2(p, step_x)[0], step_y).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), CLIP).double())
        losses.append(loss.detach().double())
        optimizer.step()
    return torch.stack(losses), torch.stack(norms), p


def dump_trajectory(g, parameters):
    x, y = tokens(g, V, 10, B, T), tokens(g, V, 10, B, T)
    loss32, norm32, _ = train(parameters, x, y, torch.float32)
    loss64, norm64, final = train(parameters, x, y, torch.float64)
    assert torch.allclose(loss32, loss64, rtol=1e-5) and torch.allclose(norm32, norm64, rtol=1e-4)
    # c_attn.bias is left out: the gradient of its key part is only rounding error, which Adam scales up to a full step.
    names = ["transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.ln_1.weight", "transformer.h.0.attn.c_proj.weight",
             "transformer.h.1.mlp.c_fc.bias", "transformer.ln_f.bias"]  # fmt: skip
    dump = {"x": x, "y": y, "loss.fp32": loss32, "loss.fp64": loss64, "grad_norm.fp32": norm32, "grad_norm.fp64": norm64}
    save("trajectory", dump | {f"final.{name}": final[name] for name in names}, keep=[key for key in dump if "." in key])
    return x, y


# torch.optim's class and its arguments besides lr and weight decay
OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, dict(betas=BETAS, eps=ADAM_EPS)),
    "adam": (torch.optim.Adam, dict(betas=BETAS, eps=ADAM_EPS)),
    "sgd": (torch.optim.SGD, dict()),
    "sgd_momentum": (torch.optim.SGD, dict(momentum=0.9)),
    "sgd_nesterov": (torch.optim.SGD, dict(momentum=0.9, nesterov=True)),
    "rmsprop": (torch.optim.RMSprop, dict(alpha=BETAS[1], eps=ADAM_EPS)),
    "rmsprop_momentum": (torch.optim.RMSprop, dict(alpha=BETAS[1], eps=ADAM_EPS, momentum=0.9)),
}


def make_optimizer(name, parameters, lr):
    kind, arguments = OPTIMIZERS[name]
    groups = [dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=WEIGHT_DECAY),
              dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0)]  # fmt: skip
    return kind(groups, lr=lr, foreach=False, **arguments)


def dump_optimizers(g, parameters, x, y):
    steps = 20
    dump = dict(weight=normal(g, 5, 7), bias=normal(g, 7))
    for name in ("weight", "bias"):  # norms on both sides of the clip
        dump[f"grad.{name}"] = torch.stack([normal(g, *dump[name].shape, scale=0.01 * 1.5**step) for step in range(steps)])
    for name in OPTIMIZERS:
        leaves = {key: leaf(dump[key]) for key in ("weight", "bias")}
        optimizer = make_optimizer(name, list(leaves.values()), 1e-2)
        norms, after = [], {key: [] for key in leaves}
        for step in range(steps):
            for key, parameter in leaves.items():
                parameter.grad = dump[f"grad.{key}"][step].clone()
            norms.append(torch.nn.utils.clip_grad_norm_(leaves.values(), CLIP))
            optimizer.step()
            for key, parameter in leaves.items():
                after[key].append(parameter.detach().clone())
        dump["grad_norm"] = torch.stack(norms)
        assert norms[0] < CLIP < norms[-1]
        for key, parameter in leaves.items():
            dump[f"{name}.{key}.after"] = torch.stack(after[key])
            for buffer, value in optimizer.state[parameter].items():
                if buffer != "step" and value is not None:
                    dump[f"{name}.{buffer}.{key}"] = value
    trajectories = {}
    for name in OPTIMIZERS:
        p = {key: leaf(value) for key, value in parameters.items()}
        optimizer = make_optimizer(name, list(p.values()), 0.1 if name.startswith("sgd") else LR)
        losses, norms = [], []
        for step in range(steps):
            loss = token_losses(gpt2(p, x[step % len(x)])[0], y[step % len(y)]).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(p.values(), CLIP))
            losses.append(loss.detach())
            optimizer.step()
        trajectories |= {f"model.{name}.loss": torch.stack(losses), f"model.{name}.grad_norm": torch.stack(norms)}
    save("optimizers", dump | trajectories, keep=trajectories)


def score(parameters, context, ending):
    """Log-likelihoods of the ending's bytes."""
    window = torch.tensor([list((context + ending).encode())[-(T + 1) :]])
    logits, _ = gpt2(parameters, window[:, :-1])
    return -token_losses(logits, window[:, 1:])[0, -len(ending) :]


def dump_hellaswag(g, parameters):
    """Writes examples with lengths from one token on, some contexts longer than T, one ending of length T, and every position as label."""
    letters = "abcdefghijklmnopqrstuvwxyz  ,.AEIOU"

    def text(length):
        return "".join(letters[i] for i in tokens(g, len(letters), length))

    lines = []
    for index, (context, endings) in enumerate([(1, (0, 1, 2, 3)), (10, (8, 7, 6, 5)), (14, (4, 4, 4, 4)), (15, (4, 9, 1, 4)), (40, (3, 17, 18, 2)),
                                                (16, (2, 3)), (7, (6, 11, 2, 9, 5)), (3, (5, 12, 7, 10)), (22, (14, 3, 8, 1))]):  # fmt: skip
        example = dict(ind=100 + index, ctx=text(context), endings=[text(length) for length in endings], label=index % len(endings))
        scores = [score(parameters, example["ctx"], " " + ending) for ending in example["endings"]]
        example |= dict(sum=[round(s.sum().item(), 8) for s in scores], mean=[round(s.mean().item(), 8) for s in scores])
        lines.append(json.dumps(example))
    (OUT / "hellaswag.jsonl").write_text("\n".join(lines) + "\n")


def dump_hugging_face():
    """Saves one random model by transformers, and its logits, so that our readers are not only tested with our own writer's files."""
    out = OUT / "hugging_face"
    g = torch.Generator().manual_seed(7)
    config = GPT2Config(vocab_size=41, n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        is_layernorm = "ln_" in name and name.endswith("weight")
        parameter.data = normal(g, *parameter.shape, scale=0.3, mean=1.0 if is_layernorm else 0.0).float()
    x = tokens(g, config.vocab_size, 1, config.n_positions)

    def logits(model):
        with torch.no_grad():
            return copy.deepcopy(model).double()(x).logits[0]

    narrow = copy.deepcopy(model).bfloat16()
    model.save_pretrained(out / "sharded", max_shard_size="5KB")
    narrow.transformer.save_pretrained(out / "bare_bf16")  # no prefix "transformer.", no head
    save("hugging_face/expected", dict(x=x[0], sharded=logits(model), bare_bf16=logits(narrow)))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(1337)
    for dump in (dump_encoder, dump_layernorm, dump_residual_layernorm, dump_matmul, dump_matmul_gelu, dump_gelu, dump_attention, dump_cross_entropy,
                 dump_adamw):  # fmt: skip
        dump(g)
    parameters = dump_model(g)
    x, y = dump_trajectory(g, parameters)
    dump_hellaswag(g, parameters)
    dump_optimizers(torch.Generator().manual_seed(1338), parameters, x, y)
    dump_hugging_face()
    files = sorted([*OUT.rglob("*.safetensors"), *OUT.glob("*.jsonl")])
    for file in files:
        print(f"{file.relative_to(OUT)!s:<60}{file.stat().st_size:>10,} bytes")
    print(f"{'together':<60}{sum(file.stat().st_size for file in files):>10,} bytes")


if __name__ == "__main__":
    main()
