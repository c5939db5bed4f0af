#include "trainer/models/gpt2/gpt2_files.h"

#include <fmt/format.h>

#include "trainer/formats/config_fields.h"
#include "trainer/models/gpt2/gpt2_table.h"
#include "trainer/tokenizer/token.h"

using nlohmann::json;

namespace {

// GPT-2 is named by depth (Radford et al. 2019, table 2, and llm.c's sizes in between), GPT-3 by width
// (Brown et al. 2020, table 2.1).
std::map<std::string, ModelConfig> sizes() {
    struct Size {
        const char* name;
        int context, L, NH, C;
    };
    constexpr Size all[] = {
        {"d6", 1024, 6, 6, 384},
        {"d12", 1024, 12, 12, 768},
        {"d24", 1024, 24, 16, 1024},
        {"d36", 1024, 36, 20, 1280},
        {"d48", 1024, 48, 25, 1600},
        {"d60", 1024, 60, 30, 1920},
        {"d72", 1024, 72, 30, 2880},
        {"d84", 1024, 84, 36, 3456},
        {"gpt2", 1024, 12, 12, 768},
        {"gpt2-medium", 1024, 24, 16, 1024},
        {"gpt2-large", 1024, 36, 20, 1280},
        {"gpt2-xl", 1024, 48, 25, 1600},
        {"gpt3:c384", 2048, 6, 6, 384},
        {"gpt3:c768", 2048, 12, 12, 768},
        {"gpt3:c1024", 2048, 24, 16, 1024},
        {"gpt3:c1536", 2048, 24, 16, 1536},
        {"gpt3:c2048", 2048, 24, 16, 2048},
        {"gpt3:c2560", 2048, 32, 32, 2560},
        {"gpt3:c4096", 2048, 32, 32, 4096},
        {"gpt3:c5120", 2048, 40, 40, 5120},
        {"gpt3:c12288", 2048, 96, 96, 12288},
    };
    std::map<std::string, ModelConfig> by_name;
    for (const Size& s : all) by_name[s.name] = {50257, s.context, s.L, s.NH, s.C};
    return by_name;
}

// 6 for each parameter, and 6 L C T for causal attention.
double flops_per_token(const ModelConfig& c, int seq_len) {
    return 6.0 * static_cast<double>(table_of(c).parameters()) + 6.0 * c.L * c.C * seq_len;
}

ModelConfig read_config(const ConfigFields& fields) {
    const ModelConfig shape{fields.size("vocab_size", max_vocab_size),
                            fields.size("n_positions", "max_position_embeddings", 1 << 20),
                            fields.size("n_layer", "num_hidden_layers", 4096),
                            fields.size("n_head", "num_attention_heads", 4096),
                            fields.size("n_embd", "hidden_size", 1 << 17)};
    fields.check("n_inner", {nullptr, 4 * shape.C});
    // names of one formula, the tanh approximation
    fields.check("activation_function",
                 {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh"});
    fields.check("scale_attn_weights", {true});
    fields.check("scale_attn_by_inverse_layer_idx", {false});
    fields.check("add_cross_attention", {false});
    fields.check("pruned_heads", {nullptr, json::object()});
    fields.check("tie_word_embeddings", {true, false});  // the reader compares the weights
    fields.check_number("layer_norm_epsilon", 1e-5);
    return shape;
}

// Everything but the shape is as GPT2LMHeadModel has it by default, without dropout.
json write_config(const ModelConfig& config) {
    return {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"vocab_size", config.V},
            {"n_positions", config.context},
            {"n_ctx", config.context},
            {"n_layer", config.L},
            {"n_head", config.NH},
            {"n_embd", config.C},
            {"n_inner", nullptr},
            {"activation_function", "gelu_new"},
            {"layer_norm_epsilon", 1e-5},
            {"initializer_range", 0.02},
            {"attn_pdrop", 0.0},
            {"embd_pdrop", 0.0},
            {"resid_pdrop", 0.0},
            {"scale_attn_weights", true},
            {"scale_attn_by_inverse_layer_idx", false},
            {"reorder_and_upcast_attn", false},
            {"tie_word_embeddings", true},
            {"use_cache", true},
            {"torch_dtype", "float32"}};
}

// True for the causal masks h.N.attn.bias and h.N.attn.masked_bias, constants that old versions of
// transformers saved.
bool is_causal_mask(const std::string& name, const ModelConfig& config) {
    for (int l = 0; l < config.L; l++) {
        const std::string attention = fmt::format("h.{}.attn.", l);
        if (name == attention + "bias" || name == attention + "masked_bias") return true;
    }
    return false;
}

// wte, wpe, then each kind of tensor for all layers in turn, then the last layernorm (train_gpt2.py:
// write_model).
std::vector<TensorId> llmc_order(const ModelConfig& config) {
    using Layer = GPT2Parameters::Layer;
    TensorTable table(config.L);
    const GPT2Parameters p = add_gpt2(table, config);
    std::vector<TensorId> order = {p.wte, p.wpe};
    for (const auto kind :
         {&Layer::ln1, &Layer::qkv, &Layer::attproj, &Layer::ln2, &Layer::fc, &Layer::fcproj}) {
        for (const Layer& layer : p.layers) order.push_back((layer.*kind).weight);
        for (const Layer& layer : p.layers) order.push_back((layer.*kind).bias);
    }
    order.insert(order.end(), {p.lnf.weight, p.lnf.bias});
    return order;
}

}  // namespace

FamilyDescription gpt2_family() {
    return {.name = "gpt2",
            .title = "GPT-2",
            .complete = [](ModelConfig config) { return config; },
            .check = check_gpt2,
            .add_rows = [](TensorTable& table, const ModelConfig& config) { add_gpt2(table, config); },
            .flops_per_token = flops_per_token,
            .sizes = sizes(),
            .prefix = "transformer.",
            .read_config = read_config,
            .write_config = write_config,
            .is_ignored = is_causal_mask,
            .tied_head = "transformer.wte.weight",
            .llmc_order = llmc_order};
}
