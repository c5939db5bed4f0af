#!/usr/bin/env python3
"""Writes the PyTorch dumps of a small Llama, a small Qwen3 and a small nanochat that the C++ tests compare with: llama*.safetensors,
qwen3*.safetensors and nanochat*.safetensors in test/reference/, and folders of these names in its hugging_face/.

    python3 dev/reference_llama.py      # needs torch, transformers and safetensors; writes the same bytes every time

As in reference.py, every input is a float32 number, everything derived from it is computed in float64 and rounded once, and weights
are (out, in) under Hugging Face's names. The formulas below are asserted to be those of transformers' LlamaForCausalLM,
Qwen3ForCausalLM and NanoChatForCausalLM.

llama                a Llama with an untied head and its parameters, x, y (B, T) I32, logits (B, T, V), losses (B, T), loss (1) F64,
                     grad.NAME of every parameter for the mean loss, and activations: act.encoded, act.norm (B, T, C), and for layers
                     N = 0, 1 act.N.{norm1, residual2, norm2, residual3} (B, T, C), .qkv (B, T, NH + 2 NKV, HS) with q and k turned,
                     .att (B, T, NH * HS), .gate_up (B, T, 2, H), .act (B, T, H)
llama_bf16           the parameters of a tied one rounded to bf16 (dtype BF16), and x, y, losses, loss, grad.NAME computed exactly
                     from the rounded ones
qwen3, qwen3_bf16    the same of a Qwen3, whose heads are wider than its channels: q and k are normalised with weights, then turned
nanochat, nanochat_bf16  the same of a nanochat, whose head is always its own: act.embedded (B, T, C) is the normalised embedding, q and k
                     are turned and normalised, there is no .gate_up, and logits are capped
hugging_face/llama   a tied Llama saved by transformers in several files; in llama_expected.safetensors x (T) I32 and its logits (T, V)
hugging_face/qwen3, hugging_face/nanochat  the same of a Qwen3, and of a nanochat
"""
import copy
import math

import torch
from reference import OUT, leaf, normal, save, token_losses, tokens  # beside this file
from transformers import LlamaConfig, LlamaForCausalLM, NanoChatConfig, NanoChatForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.nanochat import modeling_nanochat
from transformers.models.qwen3 import modeling_qwen3

V, CONTEXT, L, NH, NKV, C, H = 131, 32, 2, 4, 2, 48, 80
EPS, THETA, CAP = 1e-5, 10000.0, 15.0
B, T = 2, 19
HEAD_SIZES = {"llama": C // NH, "qwen3": 16, "nanochat": C // NH}
CLASSES = {"llama": (LlamaConfig, LlamaForCausalLM, modeling_llama.LlamaRMSNorm),
           "qwen3": (Qwen3Config, Qwen3ForCausalLM, modeling_qwen3.Qwen3RMSNorm),
           "nanochat": (NanoChatConfig, NanoChatForCausalLM, modeling_nanochat.NanoChatRMSNorm)}  # fmt: skip


def parameters_of(g, tied, family):
    """Random parameters, larger and less even than an initialisation's, so that no gradient is too small to be tested."""
    HS = HEAD_SIZES[family]
    shapes = {"model.embed_tokens.weight": (V, C)}
    for n in range(L):
        block = f"model.layers.{n}"
        shapes |= {
            f"{block}.self_attn.q_proj.weight": (NH * HS, C), f"{block}.self_attn.k_proj.weight": (NKV * HS, C),
            f"{block}.self_attn.v_proj.weight": (NKV * HS, C), f"{block}.self_attn.o_proj.weight": (C, NH * HS),
            f"{block}.mlp.gate_proj.weight": (H, C), f"{block}.mlp.up_proj.weight": (H, C), f"{block}.mlp.down_proj.weight": (C, H),
            f"{block}.input_layernorm.weight": (C,), f"{block}.post_attention_layernorm.weight": (C,),
        }  # fmt: skip
        if family == "qwen3":
            shapes |= {f"{block}.self_attn.q_norm.weight": (HS,), f"{block}.self_attn.k_norm.weight": (HS,)}
    shapes["model.norm.weight"] = (C,)
    if not tied:
        shapes["lm_head.weight"] = (V, C)
    if family == "nanochat":
        names = {"gate_proj": "fc1", "down_proj": "fc2"}
        shapes = {".".join(names.get(part, part) for part in name.split(".")): shape for name, shape in shapes.items()
                  if "norm" not in name and "up_proj" not in name}  # fmt: skip
    return {name: normal(g, *shape, scale=0.2 if len(shape) == 1 else 0.12, mean=1.0 if len(shape) == 1 else 0.0)
            for name, shape in shapes.items()}  # fmt: skip


def rmsnorm(x, weight=1.0):
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight


def rope(x, sign=1):
    """Turns channels i and i + HS/2 of x (B, T, heads, HS) by the angle, or against it. Angles are rounded to float32 as transformers rounds them."""
    HS = x.size(-1)
    half = HS // 2
    frequency = 1.0 / THETA ** (torch.arange(0, HS, 2).float() / HS)
    angle = torch.arange(x.size(1)).float()[:, None] * frequency
    c, s = angle.cos().double()[:, None], sign * angle.sin().double()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def attention(q, k, v):
    """Causal attention of q (B, T, NH, HS) over k and v (B, T, NKV, HS), a head of which NH / NKV heads of q share."""
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(NH // NKV, 2), v.repeat_interleave(NH // NKV, 2)))
    score = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    score = score.masked_fill(torch.ones(score.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return (score.softmax(-1) @ v).transpose(1, 2).flatten(2)


def llama(p, x):
    """Logits (B, T, V) and the activations by name, of a Llama, or of a Qwen3, which has norms of its heads."""
    (B, T), act = x.shape, {}
    HS = p["model.layers.0.self_attn.q_proj.weight"].size(0) // NH
    residual = act["encoded"] = p["model.embed_tokens.weight"][x]
    for n in range(L):

        def of(layer, n=n):
            return p[f"model.layers.{n}.{layer}.weight"]

        norm1 = rmsnorm(residual, of("input_layernorm"))
        q, k, v = ((norm1 @ of(f"self_attn.{which}_proj").T).view(B, T, -1, HS) for which in "qkv")
        if "model.layers.0.self_attn.q_norm.weight" in p:
            q, k = rmsnorm(q, of("self_attn.q_norm")), rmsnorm(k, of("self_attn.k_norm"))
        qkv = torch.cat([rope(q), rope(k), v], 2)
        att = attention(*qkv.split([NH, NKV, NKV], 2))
        residual2 = residual + att @ of("self_attn.o_proj").T
        norm2 = rmsnorm(residual2, of("post_attention_layernorm"))
        gate, up = norm2 @ of("mlp.gate_proj").T, norm2 @ of("mlp.up_proj").T
        swiglu = gate * gate.sigmoid() * up
        residual = residual2 + swiglu @ of("mlp.down_proj").T
        block = dict(norm1=norm1, qkv=qkv, att=att, residual2=residual2, norm2=norm2, gate_up=torch.stack([gate, up], 2), act=swiglu,
                     residual3=residual)  # fmt: skip
        act |= {f"{n}.{key}": value for key, value in block.items()}
    act["norm"] = rmsnorm(residual, p["model.norm.weight"])
    return act["norm"] @ p.get("lm_head.weight", p["model.embed_tokens.weight"]).T, act


def nanochat(p, x):
    """The same."""
    (B, T), act, HS = x.shape, {}, HEAD_SIZES["nanochat"]
    act["encoded"] = p["model.embed_tokens.weight"][x]
    residual = act["embedded"] = rmsnorm(act["encoded"])
    for n in range(L):

        def of(layer, n=n):
            return p[f"model.layers.{n}.{layer}.weight"]

        norm1 = rmsnorm(residual)
        q, k, v = ((norm1 @ of(f"self_attn.{which}_proj").T).view(B, T, -1, HS) for which in "qkv")
        qkv = torch.cat([rmsnorm(rope(q, -1)), rmsnorm(rope(k, -1)), v], 2)
        att = attention(*qkv.split([NH, NKV, NKV], 2))
        residual2 = residual + att @ of("self_attn.o_proj").T
        norm2 = rmsnorm(residual2)
        hidden = (norm2 @ of("mlp.fc1").T).relu().square()
        residual = residual2 + hidden @ of("mlp.fc2").T
        block = dict(norm1=norm1, qkv=qkv, att=att, residual2=residual2, norm2=norm2, act=hidden, residual3=residual)
        act |= {f"{n}.{key}": value for key, value in block.items()}
    act["norm"] = rmsnorm(residual)
    return CAP * torch.tanh(act["norm"] @ p["lm_head.weight"].T / CAP), act


def run(parameters, x, y):
    """One forward and backward pass: logits, losses, activations, gradients by name."""
    p = {name: leaf(value) for name, value in parameters.items()}
    logits, act = (llama if "model.norm.weight" in p else nanochat)(p, x)
    losses = token_losses(logits, y)
    losses.mean().backward()
    return logits, losses, act, {name: value.grad for name, value in p.items()}


def head_size(family, sizes):
    """The argument of the config's class. The others' heads share the channels."""
    return dict(head_dim=sizes[family]) if family == "qwen3" else {}


def check_against_transformers(family, parameters, x, y):
    """Asserts that our formulas and transformers' class are the same function, in double precision: its norm rounds to float32, so
    that line is replaced."""

    def in_double(norm, hidden):
        return norm.weight * (hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon))

    tied = "lm_head.weight" not in parameters
    config_class, model_class, norm = CLASSES[family]
    config = config_class(
        vocab_size=V, hidden_size=C, intermediate_size=H, num_hidden_layers=L, num_attention_heads=NH, num_key_value_heads=NKV,
        max_position_embeddings=CONTEXT, rms_norm_eps=EPS, tie_word_embeddings=tied, attn_implementation="sdpa",
        rope_parameters=dict(rope_type="default", rope_theta=THETA), **head_size(family, HEAD_SIZES))  # fmt: skip
    rounding, norm.forward = norm.forward, (lambda norm, x: norm._norm(x)) if family == "nanochat" else in_double
    model = model_class(config).double().eval()
    missing, unexpected = model.load_state_dict(parameters, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    theirs = model(x).logits
    token_losses(theirs, y).mean().backward()
    norm.forward = rounding
    logits, _, _, gradients = run(parameters, x, y)
    furthest = (theirs - logits).abs().max().item()
    named = dict(model.named_parameters())
    for name, gradient in gradients.items():
        furthest = max(furthest, (named[name].grad - gradient).norm().item() / gradient.norm().item())
    assert furthest < 1e-11, furthest
    print(f"{type(model).__name__}, {'tied' if tied else 'untied'}: within {furthest:.1e} of transformers")


def dump_model(g, family):
    x, y = tokens(g, V, B, T), tokens(g, V, B, T)
    for name, bf16 in ((family, False), (f"{family}_bf16", True)):
        parameters = parameters_of(g, family != "nanochat" and bf16, family)
        if bf16:
            rounded = {key: value.bfloat16() for key, value in parameters.items()}
            parameters = {key: value.double() for key, value in rounded.items()}
        check_against_transformers(family, parameters, x, y)
        logits, losses, act, gradients = run(parameters, x, y)
        dump = dict(x=x, y=y, losses=losses, loss=losses.mean().view(1)) | {f"grad.{key}": value for key, value in gradients.items()}
        if not bf16:
            dump |= dict(logits=logits) | {f"act.{key}": value for key, value in act.items()}
        save(name, (rounded if bf16 else parameters) | dump, keep=("loss",))


def dump_hugging_face(family):
    """Saves a random model by transformers, and its logits, so that our reader is not only tested with our own writer's files."""
    g = torch.Generator().manual_seed(7)
    config_class, model_class, _ = CLASSES[family]
    config = config_class(
        vocab_size=41, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
        max_position_embeddings=16, rms_norm_eps=1e-6, tie_word_embeddings=family != "nanochat", bos_token_id=None, eos_token_id=None, pad_token_id=None,
        rope_parameters=dict(rope_type="default", rope_theta=50000.0), **head_size(family, {"qwen3": 10}))  # fmt: skip
    model = model_class(config).eval()
    for parameter in model.parameters():
        parameter.data = normal(g, *parameter.shape, scale=0.3, mean=1.0 if parameter.dim() == 1 else 0.0).float()
    x = tokens(g, config.vocab_size, 1, config.max_position_embeddings)
    model.save_pretrained(OUT / "hugging_face" / family, max_shard_size="8KB" if family == "nanochat" else "12KB")
    with torch.no_grad():
        save(f"hugging_face/{family}_expected", dict(x=x[0], logits=copy.deepcopy(model).double()(x).logits[0]))


def main():
    for family, seed in (("llama", 1339), ("nanochat", 1340), ("qwen3", 1341)):
        dump_model(torch.Generator().manual_seed(seed), family)
        dump_hugging_face(family)


if __name__ == "__main__":
    main()
