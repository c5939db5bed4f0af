#include "trainer/models/llama/llama_table.h"

#include <fmt/format.h>

#include <cmath>

#include "system/error.h"
#include "trainer/tokenizer/token.h"

ModelConfig complete_llama(ModelConfig config) {
    if (config.NKV == 0) config.NKV = config.NH;
    if (config.head_size == 0 && config.NH > 0 && config.C % config.NH == 0)
        config.head_size = config.C / config.NH;
    if (config.H == 0) config.H = (8 * config.C + 95) / 96 * 32;
    if (config.rope_theta == 0) config.rope_theta = 10000;
    if (config.norm_eps == 0) config.norm_eps = 1e-5;
    return config;
}

void check_llama(const ModelConfig& c) {
    CHECK(c.V > 0, "a vocabulary of {} tokens; expected 1 or more", c.V);
    CHECK(c.V <= max_vocab_size, "a vocabulary of {} tokens; expected at most {}", c.V, max_vocab_size);
    CHECK(c.context > 0, "a context of {} tokens; expected 1 or more", c.context);
    CHECK(c.L > 0, "{} layers; expected 1 or more", c.L);
    CHECK(c.NH > 0, "{} heads; expected 1 or more", c.NH);
    CHECK(c.NKV > 0 && c.NH % c.NKV == 0,
          "{} heads of keys and values do not divide the {} heads; expected a divisor", c.NKV, c.NH);
    // The rows that are joined in one matrix then all begin at a multiple of 16 bytes.
    CHECK(c.C > 0 && c.C % 4 == 0, "{} channels; expected a multiple of 4", c.C);
    // transformers refuses such a model, although with a head size of its own it could compute.
    CHECK(c.C % c.NH == 0, "{} channels do not divide into {} heads; expected a multiple", c.C, c.NH);
    CHECK(c.HS() % 2 == 0, "heads of {} channels; expected an even number, since rotations take pairs",
          c.HS());
    CHECK(c.HS() <= 128, "heads of {} channels; expected at most 128", c.HS());
    CHECK(c.H > 0, "an MLP of {} channels; expected 1 or more", c.H);
    CHECK(c.H % 2 == 0 || c.C % 8 == 0,
          "an MLP of {} channels in a model of {}; expected an even number, unless the model's is a multiple "
          "of 8",
          c.H, c.C);
    CHECK(c.rope_theta >= least_rope_theta && c.rope_theta <= most_rope_theta,
          "a RoPE base of {}; expected a number from {} to {}", c.rope_theta, least_rope_theta,
          most_rope_theta);
    CHECK(c.norm_eps >= least_norm_eps && c.norm_eps <= most_norm_eps,
          "an epsilon of {} in norms; expected a number from {} to {}", c.norm_eps, least_norm_eps,
          most_norm_eps);
}

LlamaParameters add_llama(TensorTable& table, const ModelConfig& config) {
    const size_t C = static_cast<size_t>(config.C), V = static_cast<size_t>(config.V),
                 Vp = static_cast<size_t>(config.Vp()), H = static_cast<size_t>(config.H),
                 HS = static_cast<size_t>(config.HS()), A = static_cast<size_t>(config.NH) * HS,
                 KV = static_cast<size_t>(config.NKV) * HS;
    const Init ones = Init::constant(1), normal = Init::normal(0.02f),
               // 2 L outputs are summed in the residual stream
        residual = Init::normal(0.02f / std::sqrt(2.0f * static_cast<float>(config.L)));
    LlamaParameters all;
    all.wte = table.add(table.embedding(), {.name = "model.embed_tokens.weight",
                                            .shape = {Vp, C},
                                            .init = normal,
                                            .from_matmul = config.tied,
                                            .int8 = true,
                                            .unpadded_rows = V,
                                            .role = config.tied ? Role::head : Role::embedding});
    for (int l = 0; l < config.L; l++) {
        LlamaParameters::Layer& p = all.layers.emplace_back();
        const auto name = [&](const char* of) { return fmt::format("model.layers.{}.{}.weight", l, of); };
        const auto matrix = [&](const char* of, size_t out, size_t in, Init init, bool joined = false) {
            return table.add(table.block(l), {.name = name(of),
                                              .shape = {out, in},
                                              .init = init,
                                              .from_matmul = true,
                                              .int8 = true,
                                              .joined = joined,
                                              .role = Role::matrix});
        };
        p.qkv = {matrix("self_attn.q_proj", A, C, normal)};
        matrix("self_attn.k_proj", KV, C, normal, true);
        matrix("self_attn.v_proj", KV, C, normal, true);
        p.attproj = {matrix("self_attn.o_proj", C, A, residual)};
        p.gate_up = {matrix("mlp.gate_proj", H, C, normal)};
        matrix("mlp.up_proj", H, C, normal, true);
        p.down = {matrix("mlp.down_proj", C, H, residual)};
        p.norm1 = {table.add(table.block(l), {name("input_layernorm"), {C}, ones})};
        p.norm2 = {table.add(table.block(l), {name("post_attention_layernorm"), {C}, ones})};
    }
    all.norm = {table.add(table.head(), {"model.norm.weight", {C}, ones})};
    all.head = config.tied ? all.wte
                           : table.add(table.head(), {.name = "lm_head.weight",
                                                      .shape = {Vp, C},
                                                      .init = normal,
                                                      .from_matmul = true,
                                                      .int8 = true,
                                                      .unpadded_rows = V,
                                                      .role = Role::head});
    table.complete();
    return all;
}
