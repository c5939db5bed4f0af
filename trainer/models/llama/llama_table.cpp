#include "trainer/models/llama/llama_table.h"

#include <fmt/format.h>

#include <cmath>

#include "system/error.h"

const LlamaTraits& llama_traits(const ModelConfig& config) {
    static const LlamaTraits llama,
        nanochat{.norm_weights = false,
                 .embedding_norm = true,
                 .head_norm = true,
                 .rope_sign = -1,
                 .gated = false,
                 .logit_cap = 15,
                 .norm_eps = 1e-6,
                 .tied = false},
        qwen3{.head_norm = true, .head_weights = true, .rope_theta = 1e6, .norm_eps = 1e-6};
    return config.family == "nanochat" ? nanochat : config.family == "qwen3" ? qwen3 : llama;
}

ModelConfig complete_llama(ModelConfig config) {
    const LlamaTraits& traits = llama_traits(config);
    if (config.NKV == 0) config.NKV = config.NH;
    if (config.NH > 0 && config.C % config.NH == 0) config.head_size = config.HS();
    if (config.H == 0) config.H = traits.gated ? (8 * config.C + 95) / 96 * 32 : 4 * config.C;
    if (config.rope_theta == 0) config.rope_theta = traits.rope_theta;
    if (config.norm_eps == 0) config.norm_eps = traits.norm_eps;
    if (!traits.tied) config.tied = false;
    return config;
}

void check_llama(const ModelConfig& c) {
    check_sizes(c);
    CHECK(c.NKV > 0 && c.NH % c.NKV == 0,
          "{} heads of keys and values do not divide the {} heads; expected a divisor", c.NKV, c.NH);
    // The rows that are joined in one matrix then all begin at a multiple of 16 bytes.
    CHECK(c.C % 4 == 0, "{} channels; expected a multiple of 4", c.C);
    // With a head size of its own such a model could compute, too, but only transformers' Qwen3 does.
    CHECK(c.C % c.NH == 0 || (c.family == "qwen3" && c.head_size > 0),
          "{} channels do not divide into {} heads; expected a multiple", c.C, c.NH);
    CHECK(c.HS() % 2 == 0 && c.HS() <= 128, "heads of {} channels; expected an even number up to 128",
          c.HS());
    CHECK(c.H > 0, "an MLP of {} channels; expected 1 or more", c.H);
    CHECK(c.H % 2 == 0 || c.C % 8 == 0,
          "an MLP of {} channels; expected an even number, as {} are no multiple of 8", c.H, c.C);
    CHECK(c.rope_theta >= least_rope_theta && c.rope_theta <= most_rope_theta,
          "a RoPE base of {}; expected a number from {} to {}", c.rope_theta, least_rope_theta,
          most_rope_theta);
    CHECK(c.norm_eps >= least_norm_eps && c.norm_eps <= most_norm_eps,
          "an epsilon of {} in norms; expected a number from {} to {}", c.norm_eps, least_norm_eps,
          most_norm_eps);
}

namespace {

LlamaParameters::Layer add_layer(TensorTable& table, const ModelConfig& config, int l) {
    const size_t C = static_cast<size_t>(config.C), H = static_cast<size_t>(config.H),
                 HS = static_cast<size_t>(config.HS()), A = static_cast<size_t>(config.NH) * HS,
                 KV = static_cast<size_t>(config.NKV) * HS;
    // nanochat's outputs keep their variance through a matrix and a norm, and what is added to its residual
    // stream starts at 0. In the other families 2 L outputs of equal variance are summed there.
    const bool nanochat = config.family == "nanochat";
    const Init inner = Init::normal(nanochat ? 1 / std::sqrt(static_cast<float>(C)) : 0.02f),
               residual = nanochat ? Init::constant(0)
                                   : Init::normal(0.02f / std::sqrt(2.0f * static_cast<float>(config.L)));
    const auto name = [=](const char* of) { return fmt::format("model.layers.{}.{}.weight", l, of); };
    const auto matrix = [&](const char* of, size_t out, size_t in, Init init, bool joined = false) {
        return table.add(table.block(l), {.name = name(of),
                                          .shape = {out, in},
                                          .init = init,
                                          .from_matmul = true,
                                          .int8 = true,
                                          .joined = joined,
                                          .role = Role::matrix});
    };
    LlamaParameters::Layer p{};
    p.qkv = {matrix("self_attn.q_proj", A, C, inner)};
    matrix("self_attn.k_proj", KV, C, inner, true);
    matrix("self_attn.v_proj", KV, C, inner, true);
    p.attproj = {matrix("self_attn.o_proj", C, A, residual)};
    const LlamaTraits& traits = llama_traits(config);
    p.up = {matrix(traits.gated ? "mlp.gate_proj" : "mlp.fc1", H, C, inner)};
    if (traits.gated) matrix("mlp.up_proj", H, C, inner, true);
    p.down = {matrix(traits.gated ? "mlp.down_proj" : "mlp.fc2", C, H, residual)};
    const auto vector = [&](bool exists, const char* of, size_t elements) -> Affine {
        return {exists ? table.add(table.block(l), {name(of), {elements}, Init::constant(1)}) : no_tensor};
    };
    p.norm1 = vector(traits.norm_weights, "input_layernorm", C);
    p.norm2 = vector(traits.norm_weights, "post_attention_layernorm", C);
    p.q_norm = vector(traits.head_weights, "self_attn.q_norm", HS);
    p.k_norm = vector(traits.head_weights, "self_attn.k_norm", HS);
    return p;
}

}  // namespace

LlamaParameters add_llama(TensorTable& table, const ModelConfig& config) {
    const size_t C = static_cast<size_t>(config.C), V = static_cast<size_t>(config.V),
                 Vp = static_cast<size_t>(config.Vp());
    const bool nanochat = config.family == "nanochat";
    LlamaParameters all;
    const auto vocabulary = [&](size_t group, const char* name, float std, bool is_head) {
        return table.add(group, {.name = name,
                                 .shape = {Vp, C},
                                 .init = Init::normal(std),
                                 .from_matmul = is_head,
                                 .int8 = true,
                                 .unpadded_rows = V,
                                 .role = is_head ? Role::head : Role::embedding});
    };
    all.wte = vocabulary(table.embedding(), "model.embed_tokens.weight", nanochat ? 1 : 0.02f, config.tied);
    for (int l = 0; l < config.L; l++) all.layers.push_back(add_layer(table, config, l));
    if (llama_traits(config).norm_weights)
        all.norm.weight = table.add(table.head(), {"model.norm.weight", {C}, Init::constant(1)});
    all.head =
        config.tied ? all.wte : vocabulary(table.head(), "lm_head.weight", nanochat ? 0.001f : 0.02f, true);
    return all;
}
