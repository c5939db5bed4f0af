#include "trainer/models/gpt2/gpt2_table.h"

#include <fmt/format.h>

#include <cmath>

#include "system/error.h"

void check_gpt2(const ModelConfig& c) {
    check_sizes(c);
    CHECK(c.C % c.NH == 0, "{} channels do not divide into {} heads; expected a multiple", c.C, c.NH);
    CHECK(c.HS() <= 128, "{} channels over {} heads are {} a head; expected at most 128: use more heads", c.C,
          c.NH, c.HS());
}

GPT2Parameters add_gpt2(TensorTable& table, const ModelConfig& config) {
    const size_t C = static_cast<size_t>(config.C), V = static_cast<size_t>(config.V),
                 Vp = static_cast<size_t>(config.Vp()), context = static_cast<size_t>(config.context);
    const Init zeros = Init::constant(0), ones = Init::constant(1), normal = Init::normal(0.02f),
               // 2 L outputs are summed in the residual stream
        residual = Init::normal(0.02f / std::sqrt(2.0f * static_cast<float>(config.L)));
    GPT2Parameters all;
    all.wte = table.add(table.embedding(), {.name = "transformer.wte.weight",
                                            .shape = {Vp, C},
                                            .init = normal,
                                            .from_matmul = true,
                                            .int8 = true,
                                            .unpadded_rows = V,
                                            .role = Role::head});
    all.wpe = table.add(
        table.embedding(),
        {.name = "transformer.wpe.weight", .shape = {context, C}, .init = normal, .role = Role::embedding});
    for (int l = 0; l < config.L; l++) {
        GPT2Parameters::Layer& p = all.layers.emplace_back();
        const auto name = [&](const char* of) { return fmt::format("transformer.h.{}.{}", l, of); };
        const auto matrix = [&](const char* of, size_t out, size_t in, Init init, size_t matrices = 1) {
            return table.add(table.block(l), {.name = name(of),
                                              .shape = {out, in},
                                              .init = init,
                                              .from_matmul = true,
                                              .transposed = true,
                                              .int8 = true,
                                              .role = Role::matrix,
                                              .matrices = matrices});
        };
        const auto vector = [&](const char* of, size_t elements, Init init) {
            return table.add(table.block(l), {name(of), {elements}, init});
        };
        // The matrices come first, so that tensors with weight decay are contiguous and so are the others.
        p.qkv.weight = matrix("attn.c_attn.weight", 3 * C, C, normal, 3);  // of q, k and v
        p.attproj.weight = matrix("attn.c_proj.weight", C, C, residual);
        p.fc.weight = matrix("mlp.c_fc.weight", 4 * C, C, normal);
        p.fcproj.weight = matrix("mlp.c_proj.weight", C, 4 * C, residual);
        p.ln1 = {vector("ln_1.weight", C, ones), vector("ln_1.bias", C, zeros)};
        p.qkv.bias = vector("attn.c_attn.bias", 3 * C, zeros);
        p.attproj.bias = vector("attn.c_proj.bias", C, zeros);
        p.ln2 = {vector("ln_2.weight", C, ones), vector("ln_2.bias", C, zeros)};
        p.fc.bias = vector("mlp.c_fc.bias", 4 * C, zeros);
        p.fcproj.bias = vector("mlp.c_proj.bias", C, zeros);
    }
    all.lnf = {table.add(table.head(), {"transformer.ln_f.weight", {C}, ones}),
               table.add(table.head(), {"transformer.ln_f.bias", {C}, zeros})};
    return all;
}
