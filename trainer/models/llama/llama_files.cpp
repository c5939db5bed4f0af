#include "trainer/models/llama/llama_files.h"

#include <fmt/format.h>

#include "trainer/formats/config_fields.h"
#include "trainer/models/llama/llama_table.h"
#include "trainer/tokenizer/token.h"

using nlohmann::json;

namespace {

struct Size {
    const char* name;
    int V, context, L, NH, C, NKV, H;  // 0: complete_llama
    double rope_theta;
    int head_size = 0;
};
std::map<std::string, ModelConfig> sizes_of(std::string_view family, const std::vector<Size>& all) {
    std::map<std::string, ModelConfig> by_name;
    for (const Size& s : all)
        by_name[s.name] = complete_llama({.V = s.V,
                                          .context = s.context,
                                          .L = s.L,
                                          .NH = s.NH,
                                          .C = s.C,
                                          .family = family,
                                          .NKV = s.NKV,
                                          .H = s.H,
                                          .head_size = s.head_size,
                                          .rope_theta = s.rope_theta});
    return by_name;
}

// llama:dN has the layers, heads and channels of GPT-2's dN; SmolLM2 is as published (arXiv:2502.02737).
const std::vector<Size> llama_sizes = {
    {"llama:d6", 50257, 1024, 6, 6, 384, 0, 0, 0},
    {"llama:d12", 50257, 1024, 12, 12, 768, 0, 0, 0},
    {"llama:d24", 50257, 1024, 24, 16, 1024, 0, 0, 0},
    {"llama:d36", 50257, 1024, 36, 20, 1280, 0, 0, 0},
    {"llama:d48", 50257, 1024, 48, 25, 1600, 0, 0, 0},
    {"smollm2:135m", 49152, 8192, 30, 9, 576, 3, 1536, 100000},
    {"smollm2:360m", 49152, 8192, 32, 15, 960, 5, 2560, 100000},
};

// As published (arXiv:2505.09388).
const std::vector<Size> qwen3_sizes = {
    {"qwen3:0.6b", 151936, 40960, 28, 16, 1024, 8, 3072, 1e6, 128},
};

// nanochat's depth sets the width: 64 channels a layer, in heads of 128.
const std::vector<Size> nanochat_sizes = {
    {"nanochat:d12", 50257, 2048, 12, 6, 768, 0, 0, 0},
    {"nanochat:d20", 50257, 2048, 20, 10, 1280, 0, 0, 0},
    {"nanochat:d32", 65536, 2048, 32, 16, 2048, 0, 0, 0},
};

// 6 for each parameter that a product takes, which an embedding beside an untied head is not, and 6 L A T
// for causal attention, A = NH * HS.
double llama_flops_per_token(const ModelConfig& c, int seq_len) {
    const double embedding = c.tied ? 0 : static_cast<double>(c.V) * c.C;
    return 6.0 * (static_cast<double>(table_of(c).parameters()) - embedding) +
           6.0 * c.L * c.NH * c.HS() * seq_len;
}

// RoPE's base: transformers 5 writes rope_parameters, 4 wrote rope_theta and, for scaled positions,
// rope_scaling, which 5 takes for rope_parameters.
double read_rope_theta(const ConfigFields& fields) {
    double theta = fields.positive_or("rope_theta", 10000);
    for (const char* name : {"rope_parameters", "rope_scaling"}) {
        const ConfigFields rope = fields.inside(name);
        for (const char* type : {"rope_type", "type"}) rope.check(type, {"default"});
        rope.check("factor", {nullptr, 1.0});
        rope.check("partial_rotary_factor", {nullptr, 1.0});
        theta = rope.positive_or("rope_theta", theta);
    }
    fields.check("partial_rotary_factor", {nullptr, 1.0});
    if (!fields.inside("rope_scaling").all().empty()) fields.check("rope_parameters", {nullptr});
    return theta;
}

// The fields that the classes of all these families have.
ModelConfig read_shape(const ConfigFields& fields, std::string_view family) {
    ModelConfig shape{.V = fields.size("vocab_size", max_vocab_size),
                      .context = fields.size("max_position_embeddings", 1 << 20),
                      .L = fields.size("num_hidden_layers", 4096),
                      .NH = fields.size("num_attention_heads", 4096),
                      .C = fields.size("hidden_size", 1 << 17),
                      .family = family,
                      .H = fields.size("intermediate_size", 1 << 20)};
    shape.NKV = fields.size_or("num_key_value_heads", 4096, shape.NH);
    shape.head_size = fields.size_or("head_dim", 1 << 17, 0);
    shape.rope_theta = read_rope_theta(fields);
    shape.norm_eps = fields.positive_or("rms_norm_eps", 1e-6);
    shape.tied = fields.flag_or("tie_word_embeddings", false);
    fields.check("attention_bias", {false});
    fields.check("use_sliding_window", {false});
    fields.check("layer_types", {nullptr, json(static_cast<size_t>(shape.L), "full_attention")});
    return complete_llama(shape);
}

ModelConfig read_llama_config(const ConfigFields& fields) {
    fields.check("hidden_act", {"silu", "swish"});
    fields.check("mlp_bias", {false});
    fields.check("sliding_window", {nullptr});
    return read_shape(fields, "llama");
}

// The class ignores sliding_window without use_sliding_window. It has sizes of its own for fields that are
// left out.
ModelConfig read_qwen3_config(const ConfigFields& fields) {
    fields.check("hidden_act", {"silu", "swish"});
    ModelConfig shape = read_shape(fields, "qwen3");
    if (!fields.all().contains("num_key_value_heads")) shape.NKV = 32;
    shape.head_size = fields.size_or("head_dim", 1 << 17, 128);
    return shape;
}

ModelConfig read_nanochat_config(const ConfigFields& fields) {
    fields.check("hidden_act", {"relu2"});
    fields.check("tie_word_embeddings", {false});
    fields.check("final_logit_softcapping", {llama_traits({.family = "nanochat"}).logit_cap});
    fields.check("sliding_window", {nullptr});
    return read_shape(fields, "nanochat");
}

// The fields that are not sizes have the class's defaults.
json common_config(const ModelConfig& config) {
    return {{"model_type", config.family},
            {"vocab_size", config.V},
            {"max_position_embeddings", config.context},
            {"num_hidden_layers", config.L},
            {"num_attention_heads", config.NH},
            {"num_key_value_heads", config.NKV},
            {"hidden_size", config.C},
            {"intermediate_size", config.H},
            {"head_dim", config.HS()},
            {"rms_norm_eps", config.norm_eps},
            {"rope_theta", config.rope_theta},
            {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", config.rope_theta}}},
            {"attention_bias", false},
            {"attention_dropout", 0.0},
            {"initializer_range", 0.02},
            {"tie_word_embeddings", config.tied},
            {"use_cache", true},
            {"torch_dtype", "float32"}};
}

json write_llama_config(const ModelConfig& config) {
    json fields = common_config(config);
    fields.update({{"architectures", {"LlamaForCausalLM"}}, {"hidden_act", "silu"}, {"mlp_bias", false}});
    return fields;
}

json write_qwen3_config(const ModelConfig& config) {
    json fields = common_config(config);
    fields.update({{"architectures", {"Qwen3ForCausalLM"}},
                   {"hidden_act", "silu"},
                   {"use_sliding_window", false},
                   {"sliding_window", nullptr}});
    return fields;
}

json write_nanochat_config(const ModelConfig& config) {
    json fields = common_config(config);
    fields.update(
        {{"architectures", {"NanoChatForCausalLM"}},
         {"hidden_act", "relu2"},
         {"pad_token_id", nullptr},  // the class's default is 1, whose embedding would not be trained
         {"final_logit_softcapping", llama_traits(config).logit_cap}});
    return fields;
}

// True for layers.N.self_attn.rotary_emb.inv_freq, constants that old versions of transformers saved.
bool is_frequency(const std::string& name, const ModelConfig& config) {
    for (int l = 0; l < config.L; l++)
        if (name == fmt::format("layers.{}.self_attn.rotary_emb.inv_freq", l)) return true;
    return false;
}

}  // namespace

FamilyDescription llama_family() {
    return {.name = "llama",
            .title = "Llama",
            .complete = complete_llama,
            .check = check_llama,
            .add_rows = [](TensorTable& table, const ModelConfig& config) { add_llama(table, config); },
            .flops_per_token = llama_flops_per_token,
            .sizes = sizes_of("llama", llama_sizes),
            .prefix = "model.",
            .read_config = read_llama_config,
            .write_config = write_llama_config,
            .is_ignored = is_frequency,
            .tied_head = "model.embed_tokens.weight",
            .llmc_order = nullptr};
}

FamilyDescription qwen3_family() {
    FamilyDescription family = llama_family();
    family.name = "qwen3";
    family.title = "Qwen3";
    family.sizes = sizes_of("qwen3", qwen3_sizes);
    family.has_flag = true;
    family.read_config = read_qwen3_config;
    family.write_config = write_qwen3_config;
    return family;
}

// The embedding is normalised at once, so that its deviation may be 1, and its rates are higher by as much.
FamilyDescription nanochat_family() {
    FamilyDescription family = llama_family();
    family.name = "nanochat";
    family.title = "nanochat";
    family.sizes = sizes_of("nanochat", nanochat_sizes);
    family.has_flag = true;
    family.muon = {.embedding_lr = 0.1, .vector_lr = 0.01, .beta1 = 0.8, .eps = 1e-10};
    family.muon_finetuning.embedding_lr = 0.001;
    family.muon_finetuning.beta1 = 0.8, family.muon_finetuning.eps = 1e-10;
    family.read_config = read_nanochat_config;
    family.write_config = write_nanochat_config;
    return family;
}
