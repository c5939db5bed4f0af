// Hugging Face folders of Llama, Qwen3 and nanochat: written folders are read back bit for bit, and every
// form of config.json that transformers writes gives the model that it means, or is refused by the field's
// name.
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>

#include "model_weights.h"
#include "program.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/formats/safetensors.h"

using nlohmann::json;

namespace {

ModelConfig llama(bool tied) {
    return {.V = 131,
            .context = 12,
            .L = 2,
            .NH = 3,
            .C = 24,
            .family = "llama",
            .NKV = 1,
            .H = 20,
            .head_size = 8,
            .rope_theta = 50000,
            .norm_eps = 1e-6,
            .tied = tied};
}

TEST(LlamaFiles, AFolderIsReadBackBitForBit) {
    const TemporaryFolder folder;
    ModelConfig wide = llama(false);
    wide.head_size = 14;  // 3 heads of 14 are not the 24 channels
    for (const ModelConfig& config : {llama(true), llama(false), wide}) {
        write_folder(folder / "model", config);
        const auto file = open_model(folder / "model");
        EXPECT_EQ(file->config(), config);
        const TensorTable table = table_of(config);
        expect_same_weights(*file, table, masters_of(table));
        const SafetensorsFile stored(folder / "model/model.safetensors");
        EXPECT_EQ(stored.contains("lm_head.weight"), !config.tied);
        EXPECT_EQ(stored.tensors().size(), 2 * 9 + (config.tied ? 2u : 3u));
        const size_t HS = static_cast<size_t>(config.HS());
        EXPECT_EQ(stored.at("model.layers.1.self_attn.k_proj.weight").shape, (std::vector<size_t>{HS, 24}));
    }
}

ModelConfig nanochat() {
    ModelConfig config = llama(false);
    config.family = "nanochat";
    return config;
}

TEST(NanochatFiles, AFolderIsReadBackBitForBit) {
    const TemporaryFolder folder;
    write_folder(folder.path(), nanochat());
    const auto file = open_model(folder.path());
    EXPECT_EQ(file->config(), nanochat());
    const TensorTable table = table_of(nanochat());
    expect_same_weights(*file, table, masters_of(table));
    const SafetensorsFile stored(folder / "model.safetensors");
    EXPECT_EQ(stored.tensors().size(), 2 * 6 + 2u) << "no norm has weights";
    EXPECT_EQ(stored.at("model.layers.1.mlp.fc1.weight").shape, (std::vector<size_t>{20, 24}));
    const json config = json::parse(read_file(folder / "config.json"));
    EXPECT_EQ(config.at("architectures"), json::array({"NanoChatForCausalLM"}));
    EXPECT_EQ(config.at("model_type"), "nanochat");
    EXPECT_EQ(config.at("hidden_act"), "relu2");
    EXPECT_EQ(config.at("final_logit_softcapping"), 15.0);
    EXPECT_FALSE(config.contains("mlp_bias"));
    EXPECT_TRUE(config.at("pad_token_id").is_null()) << "token 1 would be padding, and not be trained";
}

// A folder that transformers saved, in several files. test_llama.cu compares its logits.
TEST(NanochatFiles, TheFolderOfTransformersIsRead) {
    const auto file = open_model(relocated(PROJECT_ROOT "/test/reference/hugging_face/nanochat"));
    ModelConfig expected = nanochat();
    expected.V = 41, expected.context = 16;
    EXPECT_EQ(file->config(), expected);
}

TEST(NanochatFiles, WhatTheProgramDoesNotComputeIsRefusedByName) {
    const auto refusal = [](const char* name, const json& value) {
        const TemporaryFolder folder;
        write_folder(folder.path(), nanochat());
        json config = json::parse(read_file(folder / "config.json"));
        config[name] = value;
        std::ofstream(folder / "config.json") << config;
        return message_of<UsageError>([&] { open_model(folder.path()); });
    };
    EXPECT_TRUE(
        says(refusal("tie_word_embeddings", true), "tie_word_embeddings is true, which is not the nanochat"));
    EXPECT_TRUE(says(refusal("final_logit_softcapping", nullptr), "final_logit_softcapping is null"));
    EXPECT_TRUE(says(refusal("final_logit_softcapping", 30), "final_logit_softcapping is 30"));
    EXPECT_TRUE(says(refusal("hidden_act", "silu"), "hidden_act is \"silu\""));
    EXPECT_TRUE(
        says(refusal("rope_parameters", {{"rope_type", "yarn"}}), "rope_parameters.rope_type is \"yarn\""));
    EXPECT_TRUE(says(refusal("attention_bias", true), "attention_bias is true"));
}

ModelConfig qwen3() {
    ModelConfig config = llama(true);
    config.family = "qwen3";
    config.NH = 5, config.head_size = 10;  // 24 channels do not divide into 5 heads
    return config;
}

TEST(Qwen3Files, AFolderIsReadBackBitForBit) {
    const TemporaryFolder folder;
    ModelConfig untied = qwen3();
    untied.tied = false;
    for (const ModelConfig& model : {qwen3(), untied}) {
        write_folder(folder / "model", model);
        const auto file = open_model(folder / "model");
        EXPECT_EQ(file->config(), model);
        const TensorTable table = table_of(model);
        expect_same_weights(*file, table, masters_of(table));
        const SafetensorsFile stored(folder / "model/model.safetensors");
        EXPECT_EQ(stored.tensors().size(), 2 * 11 + (model.tied ? 2u : 3u));
        EXPECT_EQ(stored.at("model.layers.1.self_attn.q_norm.weight").shape, std::vector<size_t>{10});
        EXPECT_EQ(stored.at("model.layers.1.self_attn.o_proj.weight").shape, (std::vector<size_t>{24, 50}));
    }
    const json config = json::parse(read_file(folder / "model/config.json"));
    EXPECT_EQ(config.at("architectures"), json::array({"Qwen3ForCausalLM"}));
    EXPECT_EQ(config.at("model_type"), "qwen3");
    EXPECT_EQ(config.at("head_dim"), 10);
    EXPECT_EQ(config.at("use_sliding_window"), false);
    EXPECT_TRUE(config.at("sliding_window").is_null());
    EXPECT_FALSE(config.contains("mlp_bias"));
}

// A folder that transformers saved: a tied model in several files. test_llama.cu compares its logits.
TEST(Qwen3Files, TheFolderOfTransformersIsRead) {
    const auto file = open_model(relocated(PROJECT_ROOT "/test/reference/hugging_face/qwen3"));
    ModelConfig expected = qwen3();
    expected.V = 41, expected.context = 16, expected.NH = 3;
    EXPECT_EQ(file->config(), expected);
}

// Both readers of transformers 5 and of 4 find RoPE's base.
TEST(LlamaFiles, ConfigSaysWhatTransformersReads) {
    const TemporaryFolder folder;
    write_folder(folder.path(), llama(false));
    const json config = json::parse(read_file(folder / "config.json"));
    EXPECT_EQ(config.at("architectures"), json::array({"LlamaForCausalLM"}));
    EXPECT_EQ(config.at("rope_theta"), 50000.0);
    EXPECT_EQ(config.at("rope_parameters"), (json{{"rope_type", "default"}, {"rope_theta", 50000.0}}));
    EXPECT_EQ(config.at("tie_word_embeddings"), false);
    EXPECT_EQ(config.at("num_key_value_heads"), 1);
    EXPECT_EQ(config.at("head_dim"), 8);
    EXPECT_TRUE(config.at("eos_token_id").is_null()) << "a tokenizer of bytes has no end of text";
}

// A folder that transformers saved: a tied model in several files. test_llama.cu compares its logits.
TEST(LlamaFiles, TheFolderOfTransformersIsRead) {
    const auto file = open_model(relocated(PROJECT_ROOT "/test/reference/hugging_face/llama"));
    ModelConfig expected = llama(true);
    expected.V = 41, expected.context = 16;
    EXPECT_EQ(file->config(), expected);
}

struct Form {
    const char* name;
    std::function<void(json&)> change;
    std::string refusal;  // empty: the model is read
    std::function<void(ModelConfig&)> means = [](ModelConfig&) {};
};

auto field(const char* name, const json& value) {
    return [=](json& config) { config[name] = value; };
}
auto without(std::initializer_list<const char*> names) {
    return [all = std::vector<const char*>(names)](json& config) {
        for (const char* name : all) config.erase(name);
    };
}
auto rope(const json& parameters) {
    return [=](json& config) {
        config.erase("rope_theta");
        config["rope_parameters"] = parameters;
    };
}

const Form llama_forms[] = {
    {"transformers 5", rope({{"rope_type", "default"}, {"rope_theta", 50000}}), ""},
    {"transformers 4", without({"rope_parameters"}), ""},
    {"rope_scaling null", field("rope_scaling", nullptr), ""},
    {"no base of RoPE", without({"rope_parameters", "rope_theta"}), "",
     [](ModelConfig& c) { c.rope_theta = 10000; }},
    {"head_dim null", field("head_dim", nullptr), ""},
    {"no head_dim", without({"head_dim"}), ""},
    {"no heads of keys", without({"num_key_value_heads"}), "has the shape (8, 24); expected (24, 24)"},
    {"no epsilon", without({"rms_norm_eps"}), ""},
    {"no activation", without({"hidden_act"}), ""},
    {"swish", field("hidden_act", "swish"), ""},
    {"another dtype", field("dtype", "bfloat16"), ""},
    {"no tie", without({"tie_word_embeddings"}), "there is no lm_head.weight"},
    {"untied", field("tie_word_embeddings", false), "there is no lm_head.weight"},
    {"rope_scaling for rope_parameters",
     [](json& config) {
         config.erase("rope_parameters");
         config["rope_scaling"] = {{"rope_type", "default"}, {"rope_theta", 777}};
     },
     "", [](ModelConfig& c) { c.rope_theta = 777; }},
    {"both", field("rope_scaling", {{"rope_type", "default"}, {"rope_theta", 777}}), "rope_parameters is {"},
    {"a base below 1", rope({{"rope_theta", 0.5}}), "a RoPE base of 0.5; expected a number from 1 to 1e+30"},
    {"a large epsilon", field("rms_norm_eps", 2.5),
     "an epsilon of 2.5 in norms; expected a number from 1e-30"},
    {"full attention", field("layer_types", {"full_attention", "full_attention"}), ""},
    {"a window in a layer", field("layer_types", {"full_attention", "sliding_attention"}),
     "layer_types is ["},
    {"channels", field("num_attention_heads", 5), "24 channels do not divide into 5 heads"},
    {"llama 3", rope({{"rope_type", "llama3"}, {"rope_theta", 5e5}, {"factor", 32.0}}),
     "rope_parameters.rope_type is \"llama3\", which is not the Llama of this program; expected \"default\""},
    {"yarn in transformers 4", field("rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}),
     "rope_scaling.type is \"yarn\""},
    {"linear", field("rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}),
     "rope_scaling.rope_type is \"linear\""},
    {"rope_scaling a number", field("rope_scaling", 2),
     "rope_scaling is 2; expected fields in braces, or null"},
    {"partial", rope({{"rope_type", "default"}, {"rope_theta", 50000}, {"partial_rotary_factor", 0.5}}),
     "rope_parameters.partial_rotary_factor is 0.5"},
    {"a base below 0", rope({{"rope_theta", -1}}),
     "rope_parameters.rope_theta is -1; expected a positive number"},
    {"attention bias", field("attention_bias", true), "attention_bias is true"},
    {"MLP bias", field("mlp_bias", true), "mlp_bias is true"},
    {"window", field("sliding_window", 4096), "sliding_window is 4096"},
    {"windows", field("use_sliding_window", true), "use_sliding_window is true"},
    {"gelu", field("hidden_act", "gelu"), "hidden_act is \"gelu\", which is not the Llama of this program"},
    {"quantized", field("quantization_config", {{"bits", 4}}), "quantization_config is {\"bits\":4}"},
    {"own code", field("auto_map", {{"AutoModel", "x.Y"}}), "auto_map is "},
    {"tie a word", field("tie_word_embeddings", "yes"),
     "tie_word_embeddings is \"yes\"; expected true or false"},
    {"odd heads", field("head_dim", 7), "heads of 7 channels; expected an even number up to 128"},
    {"long heads", field("head_dim", 256), "heads of 256 channels; expected an even number up to 128"},
    {"heads of keys", field("num_key_value_heads", 2),
     "2 heads of keys and values do not divide the 3 heads"},
    {"no width", without({"intermediate_size"}),
     "has no intermediate_size; expected the config.json of a Llama"},
    {"no family", without({"model_type"}),
     "has num_key_value_heads and no model_type, which only a GPT-2 may lack; expected \"gpt2\" or "},
    {"another family", field("model_type", "mistral"),
     "model_type is \"mistral\", which is not the GPT-2 or Llama or Qwen3 or nanochat of this program; "
     "expected \"gpt2\" or \"llama\" or \"qwen3\" or \"nanochat\""},
};

// Qwen3's class has defaults of its own, and looks at sliding_window only with use_sliding_window.
const Form qwen3_forms[] = {
    {"as published",
     [](json& config) {
         config.erase("rope_parameters");
         config.update({{"rope_theta", 1000000}, {"rope_scaling", nullptr}, {"max_window_layers", 28}});
         config.update({{"sliding_window", nullptr}, {"torch_dtype", "bfloat16"}});
     },
     "", [](ModelConfig& c) { c.rope_theta = 1e6; }},
    {"a window that is not used", field("sliding_window", 4096), ""},
    {"windows", field("use_sliding_window", true), "use_sliding_window is true, which is not the Qwen3"},
    {"a window in a layer", field("layer_types", {"full_attention", "sliding_attention"}),
     "layer_types is ["},
    {"attention bias", field("attention_bias", true), "attention_bias is true, which is not the Qwen3"},
    {"yarn", field("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}),
     "rope_scaling.rope_type is \"yarn\""},
    {"gelu", field("hidden_act", "gelu"), "hidden_act is \"gelu\", which is not the Qwen3 of this program"},
    {"no head_dim", without({"head_dim"}), "has the shape (50, 24); expected (640, 24)"},
    {"no heads of keys", without({"num_key_value_heads"}),
     "32 heads of keys and values do not divide the 5 heads"},
    {"heads of keys null", field("num_key_value_heads", nullptr),
     "has the shape (10, 24); expected (50, 24)"},
    {"no epsilon", without({"rms_norm_eps"}), ""},
    {"no base of RoPE", without({"rope_parameters", "rope_theta"}), "",
     [](ModelConfig& c) { c.rope_theta = 10000; }},
    {"no tie", without({"tie_word_embeddings"}), "there is no lm_head.weight"},
    {"odd heads", field("head_dim", 7), "heads of 7 channels; expected an even number up to 128"},
    {"long heads", field("head_dim", 256), "heads of 256 channels; expected an even number up to 128"},
    {"an experts' model", field("model_type", "qwen3_moe"), "model_type is \"qwen3_moe\""},
    {"a Llama", field("model_type", "llama"), "24 channels do not divide into 5 heads"},
};

void expect_forms(const ModelConfig& model, std::span<const Form> forms) {
    for (const Form& form : forms) {
        SCOPED_TRACE(form.name);
        const TemporaryFolder folder;
        write_folder(folder.path(), model);
        json config = json::parse(read_file(folder / "config.json"));
        form.change(config);
        std::ofstream(folder / "config.json") << config;
        if (form.refusal.empty()) {
            ModelConfig expected = model;
            form.means(expected);
            EXPECT_EQ(open_model(folder.path())->config(), expected);
        } else {
            EXPECT_TRUE(says(message_of<UsageError>([&] { open_model(folder.path()); }), form.refusal));
        }
    }
}
TEST(LlamaFiles, EveryFormOfConfigIsReadOrRefusedByName) { expect_forms(llama(true), llama_forms); }
TEST(Qwen3Files, EveryFormOfConfigIsReadOrRefusedByName) { expect_forms(qwen3(), qwen3_forms); }

// A tied model's file may repeat the embedding as its head, and old files have constants of RoPE.
TEST(LlamaFiles, TensorsThatRepeatAnotherAreRead) {
    const TemporaryFolder folder;
    write_folder(folder.path(), llama(true));
    const TensorTable table = table_of(llama(true));
    const std::vector<float> masters = masters_of(table);
    const auto write = [&](float first_of_head, bool with_prefix) {
        std::vector<std::pair<NamedTensor, std::vector<float>>> all;
        const auto add = [&](const std::string& name, std::vector<size_t> shape, std::vector<float> values) {
            all.push_back({{name, "F32", std::move(shape), nullptr}, std::move(values)});
        };
        for (const Tensor& t : table.tensors()) {
            const auto begin = masters.begin() + static_cast<std::ptrdiff_t>(t.offset);
            add(with_prefix ? t.name : t.name.substr(6), t.shape_in_file(),
                {begin, begin + static_cast<std::ptrdiff_t>(t.unpadded_elements)});
        }
        std::vector<float> head = all.front().second;
        head[0] = first_of_head;
        add("lm_head.weight", {131, 24}, head);
        add("model.layers.0.self_attn.rotary_emb.inv_freq", {4}, {1, 2, 3, 4});
        std::vector<NamedTensor> named;
        for (const auto& [tensor, values] : all) {
            named.push_back(tensor);
            named.back().data = values.data();
        }
        write_safetensors(folder / "model.safetensors", named, {{"format", "pt"}});
    };
    for (const bool with_prefix : {true, false}) {
        write(0x1p-20f, with_prefix);
        expect_same_weights(*open_model(folder.path()), table, masters);
    }
    write(2, true);
    EXPECT_TRUE(says(message_of<UsageError>([&] { open_model(folder.path()); }),
                     "tensor \"lm_head.weight\" differs from \"model.embed_tokens.weight\""));
}

}  // namespace
