"""PyTorch's side of compare_pytorch.py: the same models and the same training step, written for speed.

compare_pytorch.py starts these functions in processes of their own, so that neither PyTorch nor its memory is in its own process. What they
need is in `options`, a dictionary of the sizes, rates and choices that compare_pytorch.py makes of its command line.
"""
import contextlib
import glob
import json
import math
import pathlib
import sys
import time

SHARD_MAGIC, SHARD_HEADER_BYTES = 20240520, 1024
EPS, WEIGHT_DECAY, CLIP, SEED, MOMENTUM = 1e-8, 0.1, 1.0, 1337, 0.95
# As in our families: the number that is added to the mean of squares, the base of the rotations, and the bound of nanochat's logits.
RMS_EPS, THETA, CAP = {"llama": 1e-5, "nanochat": 1e-6}, 10000.0, 15.0
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def fail(message):
    sys.exit(f"compare_pytorch: {message}")


def padded(vocab):
    return (vocab + 127) // 128 * 128


def onednn_linear():
    """F.linear in fp32 with oneDNN's products in both directions. PyTorch has them as an operation without a gradient, made for inference."""
    import torch

    # An operation of ours around it, because torch.compile takes PyTorch's for weights that never change.
    library = torch.library.Library("flatgpt", "DEF")
    library.define("onednn_product(Tensor x, Tensor w, Tensor? b) -> Tensor")
    library.impl("onednn_product", lambda x, w, b: torch.ops.mkldnn._linear_pointwise(x, w, b, "none", [], ""), "CPU")
    torch.library.register_fake("flatgpt::onednn_product", lambda x, w, b: x.new_empty(*x.shape[:-1], w.shape[0]), lib=library)
    product = torch.ops.flatgpt.onednn_product

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(context, x, w, b):
            context.save_for_backward(x, w)
            context.has_bias = b is not None
            return product(x, w, b)

        @staticmethod
        def backward(context, dout):
            x, w = context.saved_tensors
            rows = dout.reshape(-1, dout.size(-1))
            dw = product(rows.t(), x.reshape(-1, x.size(-1)).t(), None)
            return product(dout, w.t(), None), dw, rows.sum(0) if context.has_bias else None

    Linear.library = library  # which would be forgotten otherwise
    return Linear.apply


def build_model(options):
    import torch
    import torch.nn.functional as F
    from torch import nn

    family, C, NH, H, Vp = options["family"], options["channels"], options["heads"], options["hidden"], padded(options["vocab"])
    HS, KV, nanochat = C // NH, options["kv_heads"] * C // NH, family == "nanochat"
    linear = onednn_linear() if options.get("onednn") else F.linear

    class Linear(nn.Linear):
        def forward(self, x):
            return linear(x, self.weight, self.bias)

    def norm():
        return nn.LayerNorm(C) if family == "gpt2" else nn.RMSNorm(C, RMS_EPS[family], elementwise_affine=not nanochat)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = norm(), norm()
            self.qkv, self.attention_projection = Linear(C, 3 * C), Linear(C, C)
            self.fc, self.projection = Linear(C, 4 * C), Linear(4 * C, C)

        def forward(self, x):
            B, T, _ = x.shape
            q, k, v = (u.view(B, T, NH, HS).transpose(1, 2) for u in self.qkv(self.ln_1(x)).split(C, dim=2))
            attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attention_projection(attention.transpose(1, 2).reshape(B, T, C))
            return x + self.projection(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))

    class LlamaBlock(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = norm(), norm()
            self.qkv, self.attention_projection = Linear(C, C + 2 * KV, bias=False), Linear(C, C, bias=False)
            self.up, self.projection = Linear(C, H if nanochat else 2 * H, bias=False), Linear(H, C, bias=False)

        def forward(self, x, cosines, sines):
            B, T, _ = x.shape
            q, k, v = (u.view(B, T, -1, HS).transpose(1, 2) for u in self.qkv(self.ln_1(x)).split([C, KV, KV], dim=2))

            def turned(u):
                a, b = u.chunk(2, dim=-1)
                u = u * cosines + torch.cat((-b, a), -1) * sines
                return F.rms_norm(u, (HS,), eps=RMS_EPS[family]) if nanochat else u

            attention = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True, enable_gqa=KV < C)
            x = x + self.attention_projection(attention.transpose(1, 2).reshape(B, T, C))
            up = self.up(self.ln_2(x))
            if nanochat:
                return x + self.projection(F.relu(up).square())
            gate, up = up.split(H, dim=2)
            return x + self.projection(F.silu(gate) * up)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(Vp, C)
            if family == "gpt2":
                self.wpe = nn.Embedding(options["context"], C)
            self.blocks = nn.ModuleList((Block if family == "gpt2" else LlamaBlock)() for _ in range(options["layers"]))
            self.ln_f = norm()
            if nanochat:
                self.head = Linear(C, Vp, bias=False)
            # as our families begin
            wte, head, matrix, projection = (1, 0.001, C**-0.5, 0) if nanochat else (0.02, 0, 0.02, 0.02 / math.sqrt(2 * options["layers"]))
            for name, parameter in self.named_parameters():
                if parameter.dim() >= 2:
                    nn.init.normal_(parameter, 0, {"wte": wte, "head": head}.get(name.split(".")[0], projection if "projection" in name else matrix))
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)
            if family != "gpt2":
                angles = torch.arange(options["context"])[:, None] / THETA ** (torch.arange(0, HS, 2) / HS)
                angles = torch.cat((angles, angles), -1) * (-1 if nanochat else 1)
                # Products round q and k to bf16; turned in fp32 they would slow attention down.
                kind = torch.bfloat16 if options["dtype"] == "bf16" else torch.float32
                self.register_buffer("cosines", angles.cos().to(kind))
                self.register_buffer("sines", angles.sin().to(kind))

        def forward(self, x, y):
            T, h = x.size(1), self.wte(x)
            if family == "gpt2":
                h = h + self.wpe(torch.arange(T, device=x.device))
            elif nanochat:
                h = self.ln_f(h)
            for block in self.blocks:
                h = block(h) if family == "gpt2" else block(h, self.cosines[:T], self.sines[:T])
            logits = linear(self.ln_f(h), self.head.weight if nanochat else self.wte.weight, None)
            if nanochat:
                logits = CAP * torch.tanh(logits / CAP)
            if "init_from" in options:  # --loss-check: as in ours, the columns that pad the vocabulary get no probability
                logits = logits[..., : options["vocab"]]
            return F.cross_entropy(logits.reshape(-1, logits.size(-1)), y.view(-1))

    torch.manual_seed(SEED)
    return Model()


def matrices_of(name, options):
    """The rows of each matrix in this parameter of build_model: q, k and v, or gate and up, lie in one."""
    C, KV, H = options["channels"], options["kv_heads"] * options["channels"] // options["heads"], options["hidden"]
    if name.endswith("qkv.weight"):
        return [C, C, C] if options["family"] == "gpt2" else [C, KV, KV]
    return [H, H] if name.endswith("up.weight") and options["family"] == "llama" else None


# Hugging Face's names of the modules of a block, and of the parts of those that it keeps apart.
GPT2_NAMES = {"ln_1": ["ln_1"], "ln_2": ["ln_2"], "qkv": ["attn.c_attn"], "attention_projection": ["attn.c_proj"], "fc": ["mlp.c_fc"],
              "projection": ["mlp.c_proj"]}  # fmt: skip
LLAMA_NAMES = {"ln_1": ["input_layernorm"], "ln_2": ["post_attention_layernorm"], "attention_projection": ["self_attn.o_proj"],
               "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], "up": ["mlp.gate_proj", "mlp.up_proj"],
               "projection": ["mlp.down_proj"]}  # fmt: skip
NAMES = {"gpt2": GPT2_NAMES, "llama": LLAMA_NAMES, "nanochat": LLAMA_NAMES | {"up": ["mlp.fc1"], "projection": ["mlp.fc2"]}}
OUTSIDE = {"wte.weight": "model.embed_tokens.weight", "ln_f.weight": "model.norm.weight", "head.weight": "lm_head.weight"}


def hugging_face_config(options):
    family, sizes = options["family"], {name: options[name] for name in ("layers", "heads", "channels", "context")}
    config = dict(model_type=family, vocab_size=options["vocab"])
    if family == "gpt2":
        return config | dict(zip(("n_layer", "n_head", "n_embd", "n_positions"), sizes.values()))
    config |= dict(zip(("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings"), sizes.values()))
    config |= dict(num_key_value_heads=options["kv_heads"], intermediate_size=options["hidden"], rms_norm_eps=RMS_EPS[family], rope_theta=THETA)
    config |= dict(tie_word_embeddings=family == "llama")
    return config | (dict(hidden_act="relu2", final_logit_softcapping=CAP) if family == "nanochat" else {})


def write_initial_weights(options):
    """Writes build_model's weights as the Hugging Face folder options["init_from"], from which ours starts: names, Conv1D layout, V rows of wte."""
    import numpy as np

    folder, V, gpt2, tensors = pathlib.Path(options["init_from"]), options["vocab"], options["family"] == "gpt2", {}
    for name, parameter in build_model(options | {"dtype": "fp32"}).named_parameters():
        value = parameter.detach().numpy()
        if not name.startswith("blocks."):
            tensors[f"transformer.{name}" if gpt2 else OUTSIDE[name]] = value[:V] if name in ("wte.weight", "head.weight") else value
            continue
        _, layer, module, kind = name.split(".")
        names, parts = NAMES[options["family"]][module], matrices_of(name, options)
        if gpt2:
            tensors[f"transformer.h.{layer}.{names[0]}.{kind}"] = np.ascontiguousarray(value.T)
            continue
        for part, rows in zip(names, parts or [len(value)]):
            tensors[f"model.layers.{layer}.{part}.weight"], value = value[:rows], value[rows:]
    header, offset = {}, 0
    for name, value in tensors.items():
        header[name] = dict(dtype="F32", shape=value.shape, data_offsets=[offset, offset + value.nbytes])
        offset += value.nbytes
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            file.write(value.tobytes())
    (folder / "config.json").write_text(json.dumps(hugging_face_config(options)))


def orthogonal(x):
    """Five steps of Newton-Schulz for each matrix of x (matrices, rows, columns)."""
    import torch

    a, b, c = NEWTON_SCHULZ
    tall = x.size(1) > x.size(2)
    if tall:
        x = x.transpose(1, 2)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if tall else x


class Muon:
    """torch.optim.Muon of matrices that may be parts of a parameter, all of one shape as one batch. torch's class orthogonalises in bf16, whatever
    the parameters are; this one in `dtype`, as ours."""

    def __init__(self, parameters, options, dtype, compiled):
        import torch

        self.torch, self.dtype, self.orthogonal, shapes = torch, dtype, torch.compile(orthogonal) if compiled else orthogonal, {}
        for name, parameter in parameters:
            for part in parameter.detach().split(matrices_of(name, options) or [len(parameter)]):
                shapes.setdefault(tuple(part.shape), []).append((parameter, part, part.storage_offset() // part.size(1)))
        self.groups = [(shape, parts, torch.zeros(len(parts), *shape, device=parts[0][1].device)) for shape, parts in shapes.items()]

    def step(self, lr):
        for (rows, columns), parts, buffer in self.groups:
            gradients = self.torch.stack([parameter.grad[first : first + rows] for parameter, _, first in parts])
            buffer.lerp_(gradients, 1 - MOMENTUM)
            updates = self.orthogonal(gradients.lerp_(buffer, MOMENTUM).to(self.dtype)).float()
            weights = [part for _, part, _ in parts]
            self.torch._foreach_mul_(weights, 1 - lr * WEIGHT_DECAY)
            self.torch._foreach_add_(weights, list(updates.unbind()), alpha=-lr * math.sqrt(max(1, rows / columns)))


def make_update(model, options):
    """A function that updates the model's parameters; its argument is the fraction of the learning rates."""
    import torch

    named = list(model.named_parameters())
    is_matrix = {name: parameter.dim() >= 2 and name.startswith("blocks.") for name, parameter in named}
    if options["optimizer"] == "muon":
        dtype = torch.bfloat16 if options["dtype"] == "bf16" else torch.float32
        muon = Muon([(name, parameter) for name, parameter in named if is_matrix[name]], options, dtype, options["compile"])

        def rate(name):
            role = "vector" if name.endswith("bias") or "ln_" in name else "embedding" if name in embeddings else "head"
            return options[f"{role}_lr"]

        embeddings = {"wpe.weight", *(["wte.weight"] if options["family"] == "nanochat" else [])}
        groups = [dict(params=[parameter], lr=rate(name), weight_decay=0.0) for name, parameter in named if not is_matrix[name]]
    else:
        groups = [dict(params=[p for _, p in named if p.dim() >= 2], lr=options["lr"], weight_decay=WEIGHT_DECAY),
                  dict(params=[p for _, p in named if p.dim() < 2], lr=options["lr"], weight_decay=0.0)]  # fmt: skip
        groups = [group for group in groups if group["params"]]  # nanochat has no vectors
    adamw = torch.optim.AdamW(groups, betas=(options["beta1"], options["beta2"]), eps=EPS, fused=True)
    peaks = [group["lr"] for group in adamw.param_groups]

    def update(fraction):
        for group, peak in zip(adamw.param_groups, peaks):
            group["lr"] = peak * fraction
        adamw.step()
        if options["optimizer"] == "muon":
            muon.step(options["lr"] * fraction)
        model.zero_grad(set_to_none=True)

    return update


def read_shards(pattern):
    """The tokens of every shard, in the order of their names."""
    import numpy as np

    shards = []
    for path in sorted(glob.glob(pattern)):
        header = np.fromfile(path, dtype="<i4", count=SHARD_HEADER_BYTES // 4)
        if header.size < SHARD_HEADER_BYTES // 4 or header[0] != SHARD_MAGIC or header[1] != 1:
            fail(f"{path} is not a token shard (magic {SHARD_MAGIC}, version 1)")
        shards.append(np.memmap(path, dtype="<u2", mode="r", offset=SHARD_HEADER_BYTES))
    if not shards:
        fail(f"no file matches --data {pattern}")
    return shards


def batches(pattern, B, T):
    """x and y in file order, as in ours: window w is tokens w*T to w*T+T, and none crosses a shard."""
    import numpy as np
    import torch

    windows = [(shard, start * T) for shard in read_shards(pattern) for start in range((len(shard) - 1) // T)]
    if not windows:
        fail(f"{pattern} holds fewer than {T + 1} tokens")
    item = 0
    while True:
        rows = [windows[(item + k) % len(windows)] for k in range(B)]
        item += B
        batch = torch.from_numpy(np.stack([shard[start : start + T + 1] for shard, start in rows]).astype(np.int64))
        yield batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def worker(options):
    import resource

    import torch

    cuda = options["device"] == "cuda"
    if not cuda:
        torch.set_num_threads(options["threads"])
    torch.set_float32_matmul_precision("high" if options["dtype"] == "tf32" else "highest")
    model = build_model(options).to(options["device"])
    update = make_update(model, options)
    autocast = torch.autocast(options["device"], dtype=torch.bfloat16) if options["dtype"] == "bf16" else contextlib.nullcontext()
    forward = torch.compile(model) if options["compile"] else model
    loader = batches(options["data"], options["batch_size"], options["seq_len"])
    micro_steps, done = options["total_batch"] // (options["batch_size"] * options["seq_len"]), 0

    def step():
        nonlocal done
        done += 1
        losses = []
        for _ in range(micro_steps):
            x, y = next(loader)
            if cuda:
                x, y = x.pin_memory().to("cuda", non_blocking=True), y.pin_memory().to("cuda", non_blocking=True)
            with autocast:
                loss = forward(x, y) / micro_steps
            loss.backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        update(min(1, done / max(1, options["warmup"])))
        return sum(losses)

    def run(steps):
        """Milliseconds of each step. On a GPU the host runs ahead, so that only their mean is meaningful."""
        losses, times = [], [time.perf_counter()]
        for _ in range(steps):
            losses.append(step())
            times.append(time.perf_counter())
        if cuda:
            torch.cuda.synchronize()
            times = [times[0] + (time.perf_counter() - times[0]) * k / max(1, steps) for k in range(steps + 1)]
        return [1e3 * (b - a) for a, b in zip(times, times[1:])], torch.stack(losses).tolist() if losses else []

    for line in sys.stdin:
        request = json.loads(line)
        _, skipped = run(request["discard"])
        ms, losses = run(request["steps"])
        peak = torch.cuda.max_memory_reserved() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(dict(ms=ms, losses=skipped + losses, peak_bytes=peak)), flush=True)