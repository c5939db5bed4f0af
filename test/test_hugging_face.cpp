// Hugging Face folders: written folders are read back bit for bit, in every variant that transformers
// writes, and a damaged or foreign model is rejected in one line that names it.
#include <xxhash.h>

#include <array>
#include <bit>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/simt/bfloat16.h"
#include "model_weights.h"
#include "system/data_directory.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/formats/safetensors.h"
#include "trainer/models/hugging_face.h"
#include "trainer/tokenizer/tokenizer_files.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

TEST(HuggingFace, AFolderIsReadBackBitForBit) {
    const TemporaryFolder folder;
    for (const ModelConfig& config :
         {small_config, ModelConfig{300, 5, 1, 1, 33}, ModelConfig{128, 1, 3, 2, 2}}) {
        write_folder(folder / "model", config);
        const TensorTable table = table_of(config);
        const auto file = open_model(folder / "model");
        EXPECT_EQ(file->config().V, config.V);
        EXPECT_EQ(file->config().context, config.context);
        EXPECT_EQ(file->config().L, config.L);
        EXPECT_EQ(file->config().NH, config.NH);
        EXPECT_EQ(file->config().C, config.C);
        EXPECT_EQ(file->path(), folder / "model");
        EXPECT_EQ(make_tokenizer(tokenizer_name(*file))->name(), config.V <= 256 ? "byte" : "gpt2");
        expect_same_weights(*file, table, masters_of(table));
    }
}

// Element (in i, out o) of a Conv1D weight is our (o, i); wte has as many rows as there are tokens.
TEST(HuggingFace, TheFileHasHuggingFacesNamesAndLayout) {
    const TemporaryFolder folder;
    write_folder(folder.path());
    const TensorTable table = table_of(small_config);
    const std::vector<float> masters = masters_of(table);
    const SafetensorsFile file(folder / "model.safetensors");
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(file.tensors().size(), 2 + 12 * 2 + 2u);
    EXPECT_EQ(file.at("transformer.wte.weight").shape, (std::vector<size_t>{131, 24}));
    EXPECT_EQ(file.at("transformer.h.1.attn.c_attn.weight").shape, (std::vector<size_t>{24, 72}));
    EXPECT_EQ(file.at("transformer.h.1.mlp.c_proj.weight").shape, (std::vector<size_t>{96, 24}));
    const std::vector<float> weight = file.floats("transformer.h.1.attn.c_attn.weight");
    const size_t offset = table.named("transformer.h.1.attn.c_attn.weight").offset;
    for (size_t i = 0; i < 24; i++) {
        for (size_t o = 0; o < 72; o++) ASSERT_EQ(weight[i * 72 + o], masters[offset + o * 24 + i]);
    }
}

TEST(HuggingFace, ConfigSaysWhatTransformersWouldGuessWrong) {
    const TemporaryFolder folder;
    write_folder(folder / "byte");
    write_folder(folder / "gpt2", {50257, 4, 1, 1, 8});
    const auto config = [&](const std::string& name) { return json::parse(read_file(folder / name)); };
    EXPECT_TRUE(config("byte/config.json").at("eos_token_id").is_null());
    EXPECT_EQ(config("gpt2/config.json").at("eos_token_id"), 50256);
    EXPECT_EQ(config("gpt2/generation_config.json").at("eos_token_id"), 50256);
    EXPECT_EQ(config("gpt2/config.json").at("attn_pdrop"), 0.0);
}

// ----------------------------------------------------------------------------------------------------
// variants and damages of a folder

// A folder in the making: config.json's fields, and tensors by their name with values of any dtype.
// write() writes one file, or, with an index, the files named by `file_of`.
struct ModelFolder {
    struct Data {
        std::string dtype;
        std::vector<size_t> shape;
        std::string bytes;
    };
    json config;
    std::map<std::string, Data> tensors;

    ModelFolder() {
        const TemporaryFolder written;
        write_folder(written.path());
        config = json::parse(read_file(written / "config.json"));
        const SafetensorsFile file(written / "model.safetensors");
        for (const auto& [name, t] : file.tensors()) tensors[name] = {t.dtype, t.shape, file.bytes(name)};
    }
    std::string write(const std::string& path,
                      const std::function<std::string(const std::string&)>& file_of = {}) const {
        fs::remove_all(path);
        fs::create_directories(path);
        std::ofstream(path + "/config.json") << config;
        std::map<std::string, std::vector<NamedTensor>> files;
        json map = json::object();
        for (const auto& [name, data] : tensors) {
            const std::string file = file_of ? file_of(name) : "model.safetensors";
            files[file].push_back({name, data.dtype, data.shape, data.bytes.data()});
            map[name] = file;
        }
        for (const auto& [file, named] : files)
            write_safetensors(path + "/" + file, named, {{"format", "pt"}});
        if (file_of)
            std::ofstream(path + "/model.safetensors.index.json")
                << json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}};
        return path;
    }
    void rename(const std::string& from, const std::string& to) {
        tensors[to] = tensors.at(from);
        tensors.erase(from);
    }
    void without_prefix() {
        const TensorTable table = table_of(small_config);
        for (const Tensor& t : table.tensors())
            rename(t.name, t.name.substr(std::string("transformer.").size()));
    }
    // Values that survive the narrow type, and the tensor in it.
    template <class Narrow, class Convert>
    void narrow(const std::string& dtype, Convert convert) {
        for (auto& [name, data] : tensors) {
            std::string bytes(data.bytes.size() / 2, '\0');
            for (size_t i = 0; i < bytes.size() / 2; i++) {
                float value;
                std::memcpy(&value, data.bytes.data() + 4 * i, 4);
                const Narrow narrow = convert(value);
                std::memcpy(bytes.data() + 2 * i, &narrow, 2);
            }
            data = {dtype, data.shape, bytes};
        }
    }
};

std::string shard_of(const std::string& name) {
    return name.find("h.1.") != name.npos ? "model-00002-of-00002.safetensors"
                                          : "model-00001-of-00002.safetensors";
}

void expect_small_weights(const std::string& path) {
    const TensorTable table = table_of(small_config);
    expect_same_weights(*open_model(path), table, masters_of(table));
}

TEST(HuggingFace, ShardsPrefixHeadAndMasksAreOneModel) {
    const TemporaryFolder temporary;
    ModelFolder folder;
    expect_small_weights(folder.write(temporary / "plain"));
    expect_small_weights(folder.write(temporary / "shards", shard_of));
    folder.tensors["lm_head.weight"] = folder.tensors.at("transformer.wte.weight");
    for (const char* layer : {"0", "1"}) {
        folder.tensors[fmt::format("transformer.h.{}.attn.bias", layer)] = {
            "BOOL", {1, 1, 12, 12}, std::string(144, '\1')};
        folder.tensors[fmt::format("transformer.h.{}.attn.masked_bias", layer)] = {
            "F32", {}, std::string(4, '\0')};
    }
    expect_small_weights(folder.write(temporary / "head"));
    expect_small_weights(folder.write(temporary / "head shards", shard_of));
    for (const char* layer : {"0", "1"}) {
        for (const char* mask : {"bias", "masked_bias"})
            folder.rename(fmt::format("transformer.h.{}.attn.{}", layer, mask),
                          fmt::format("h.{}.attn.{}", layer, mask));
    }
    folder.without_prefix();
    folder.config["tie_word_embeddings"] = false;
    expect_small_weights(folder.write(temporary / "bare"));
    expect_small_weights(folder.write(temporary / "bare shards", shard_of));
}

// Trainers save such folders: a tied weight under the head's name only, and the names of a model inside
// torch.compile or DistributedDataParallel.
TEST(HuggingFace, NamesOfWrappersAndAHeadThatIsTheEmbeddingWereRefused) {
    const TemporaryFolder folder;
    const TensorTable table = table_of(small_config);
    ModelFolder wrapped;
    std::map<std::string, ModelFolder::Data> named;
    for (auto& [name, data] : wrapped.tensors) named["module._orig_mod." + name] = data;
    wrapped.tensors = std::move(named);
    expect_same_weights(*open_model(wrapped.write(folder / "wrapped")), table, masters_of(table));

    ModelFolder head;
    auto embedding = head.tensors.extract("transformer.wte.weight");
    embedding.key() = "lm_head.weight";
    head.tensors.insert(std::move(embedding));
    expect_same_weights(*open_model(head.write(folder / "head")), table, masters_of(table));
    head.config["tie_word_embeddings"] = false;
    EXPECT_TRUE(says(message_of<UsageError>([&] { open_model(head.write(folder / "untied")); }),
                     "has no tensor transformer.wte.weight"));

    for (const char* name :
         {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh"}) {
        ModelFolder other;  // one formula, as activations.py of transformers has it
        other.config["activation_function"] = name;
        expect_same_weights(*open_model(other.write(folder / "gelu")), table, masters_of(table));
    }
}

TEST(HuggingFace, FoldersAndFilesOfOtherProgramsAreNamed) {
    const TemporaryFolder folder;
    const ModelFolder model;
    fs::create_directory(folder / "out");
    for (const char* step : {"checkpoint-500", "checkpoint-1500", "checkpoint-900"})
        model.write(folder / "out/" + step);
    EXPECT_EQ(message_of<UsageError>([&] { open_model(folder / "out"); }),
              folder / "out" +
                  ": is the output folder of a Trainer of transformers; expected one of its checkpoints, "
                  "such as " +
                  folder / "out/checkpoint-1500");
    open_model(folder / "out/checkpoint-500");
    EXPECT_TRUE(says(message_of<UsageError>([&] { open_model(folder.write("ckpt.pt", "PK\3\4 and more")); }),
                     "ckpt.pt: is a pickle of PyTorch, as nanoGPT's ckpt.pt, which is not read"));
    EXPECT_TRUE(says(message_of<UsageError>([&] { open_model(folder.write("m.gguf", "GGUF")); }),
                     "is llama.cpp's GGUF"));
    // git clone leaves this text in the place of a large file if git LFS is not installed.
    const std::string pointer =
        "version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 548105171\n";
    for (const char* name :
         {"out/checkpoint-500/model.safetensors", "out/checkpoint-500/config.json", "m.bin"}) {
        const std::string path = folder.write(name, pointer);
        EXPECT_EQ(message_of<UsageError>(
                      [&] { open_model(path.ends_with("m.bin") ? path : folder / "out/checkpoint-500"); }),
                  path +
                      ": is git LFS's pointer to the file; expected the file itself, which this fetches: git "
                      "lfs pull");
    }
}

TEST(HuggingFace, NarrowWeightsAreReadExactly) {
    const TemporaryFolder temporary;
    const TensorTable table = table_of(small_config);
    ModelFolder bf16, f16;
    bf16.narrow<bfloat16>("BF16", [](float value) { return bfloat16(value); });
    // The values are multiples of 2^-20 below 2^-4; their leading 11 bits fit an f16 of exponent -14 and on.
    const auto half = [](float value) {
        const uint32_t bits = std::bit_cast<uint32_t>(value);
        const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127;
        if (exponent < -14) return static_cast<uint16_t>(value * 0x1p24f);
        return static_cast<uint16_t>((exponent + 15) << 10 | (bits >> 13 & 0x3ff));
    };
    f16.narrow<uint16_t>("F16", half);
    const auto bf16_file = open_model(bf16.write(temporary / "bf16")),
               f16_file = open_model(f16.write(temporary / "f16", shard_of));
    const std::vector<float> masters = masters_of(table);
    for (const Tensor& t : table.tensors()) {
        const std::vector<float> from_bf16 = bf16_file->values(t), from_f16 = f16_file->values(t);
        for (size_t i = 0; i < t.elements; i++) {
            const float value = masters[t.offset + i];
            ASSERT_EQ(from_bf16[i], static_cast<float>(bfloat16(value))) << t.name << " " << i;
            const float step =
                std::max(std::exp2f(std::floor(std::log2f(std::max(value, 1e-30f))) - 10), 0x1p-24f);
            ASSERT_EQ(from_f16[i], std::floor(value / step) * step) << t.name << " " << i;
        }
    }
}

TEST(HuggingFace, SizesMayHaveTheNamesOfOtherModels) {
    const TemporaryFolder temporary;
    const std::string path = temporary / "model";
    ModelFolder folder;
    const std::pair<const char*, const char*> names[] = {{"n_layer", "num_hidden_layers"},
                                                         {"n_head", "num_attention_heads"},
                                                         {"n_embd", "hidden_size"},
                                                         {"n_positions", "max_position_embeddings"}};
    for (const auto& [name, alias] : names) {
        folder.config[alias] = folder.config.at(name);
        folder.config.erase(name);
    }
    folder.write(path);
    const ModelConfig config = open_model(path)->config();
    EXPECT_EQ((std::array{config.L, config.C, config.V, config.context}), (std::array{2, 24, 131, 12}));
}

// A folder with one defect, and the message about it; {} at the start is replaced by the folder.
struct Damaged {
    const char* name;
    std::function<void(ModelFolder&)> damage;
    std::string expected;
};

static auto config_field(const char* name, const json& value) {
    return [=](ModelFolder& f) { f.config[name] = value; };
}

static void expect_refused(const std::vector<Damaged>& cases) {
    const TemporaryFolder temporary;
    const std::string path = temporary / "model";
    for (const Damaged& c : cases) {
        ModelFolder folder;
        c.damage(folder);
        folder.write(path);
        const std::string message = message_of<UsageError>([&] { open_model(path); });
        const std::string expected = c.expected.starts_with("{}") ? path + c.expected.substr(2) : c.expected;
        EXPECT_TRUE(says(message, expected)) << c.name;
        EXPECT_TRUE(message.starts_with(path)) << message;
    }
}

TEST(HuggingFace, AnotherModelIsRefusedByName) {
    const std::string other = "which is not the GPT-2 of this program; expected ";
    expect_refused({
        {"type", config_field("model_type", "mistral"),
         "{}/config.json: model_type is \"mistral\", which is not the GPT-2 or Llama or Qwen3 or nanochat "
         "of this program; expected \"gpt2\" or \"llama\" or \"qwen3\" or \"nanochat\""},
        {"gelu", config_field("activation_function", "gelu"),
         "activation_function is \"gelu\", " + other + "\"gelu_new\" or \"gelu_pytorch_tanh\""},
        {"relu", config_field("activation_function", "relu"), "activation_function is \"relu\""},
        {"epsilon", config_field("layer_norm_epsilon", 1e-6),
         "layer_norm_epsilon is 1e-06, " + other + "1e-05"},
        {"epsilon text", config_field("layer_norm_epsilon", "1e-5"), "layer_norm_epsilon is \"1e-5\""},
        {"scaling", config_field("scale_attn_weights", false),
         "scale_attn_weights is false, " + other + "true"},
        {"layer scaling", config_field("scale_attn_by_inverse_layer_idx", true),
         "scale_attn_by_inverse_layer_idx is true, " + other + "false"},
        {"cross attention", config_field("add_cross_attention", true), "add_cross_attention is true"},
        {"inner", config_field("n_inner", 95), "n_inner is 95, " + other + "null or 96"},
        {"pruned", config_field("pruned_heads", {{"0", {1}}}), "pruned_heads is {\"0\":[1]}"},
        {"quantized", config_field("quantization_config", {{"bits", 8}}),
         "quantization_config is {\"bits\":8}"},
        {"own code", config_field("auto_map", {{"AutoModel", "x.Y"}}), "auto_map is "},
        {"tie", config_field("tie_word_embeddings", "no"), "tie_word_embeddings is \"no\""},
        {"untied without a head", config_field("tie_word_embeddings", false),
         "{}/config.json: tie_word_embeddings is false, but there is no lm_head.weight; expected the head's "
         "weights, or true"},
    });
}

TEST(HuggingFace, SizesThatDoNotFitAreRefusedByName) {
    expect_refused({
        {"two depths", config_field("num_hidden_layers", 3),
         "n_layer is 2, but num_hidden_layers is 3; expected the same number"},
        {"alias 0", [](ModelFolder& f) { f.config.erase("n_layer"), f.config["num_hidden_layers"] = 0; },
         "num_hidden_layers is 0; expected"},
        {"no layers", [](ModelFolder& f) { f.config.erase("n_layer"); }, "{}/config.json: has no n_layer"},
        {"layers 0", config_field("n_layer", 0), "n_layer is 0; expected a whole number from 1 to 4096"},
        {"layers -1", config_field("n_layer", -1), "n_layer is -1"},
        {"layers 2.0", config_field("n_layer", 2.0), "n_layer is 2.0"},
        {"layers big", config_field("n_layer", 18446744073709551615u), "n_layer is 18446744073709551615"},
        {"channels big", config_field("n_embd", 1u << 31), "n_embd is 2147483648"},
        {"heads", config_field("n_head", 5), "{}/config.json: 24 channels do not divide into 5 heads"},
        {"more layers", config_field("n_layer", 3),
         "{}: has no tensor transformer.h.2.attn.c_attn.weight, which a GPT-2 of 3 layers has"},
        {"fewer layers", config_field("n_layer", 1),
         "{}/model.safetensors: tensor \"transformer.h.1.attn.c_attn.bias\" does not belong to a GPT-2 of 1 "
         "layers"},
        {"vocabulary", config_field("vocab_size", 130),
         "tensor \"transformer.wte.weight\" has the shape (131, 24); expected (130, 24) by config.json"},
        {"context", config_field("n_positions", 13),
         "tensor \"transformer.wpe.weight\" has the shape (12, 24); expected (13, 24)"},
    });
}

TEST(HuggingFace, TensorsThatDoNotFitAreRefusedByName) {
    const auto tensor = [](const char* name, const auto& change) {
        return [=](ModelFolder& f) { change(f.tensors.at(name)); };
    };
    expect_refused({
        {"missing", [](ModelFolder& f) { f.tensors.erase("transformer.h.1.mlp.c_fc.bias"); },
         "{}: has no tensor transformer.h.1.mlp.c_fc.bias"},
        {"surplus",
         [](ModelFolder& f) { f.tensors["transformer.h.0.extra"] = f.tensors.at("transformer.ln_f.bias"); },
         "tensor \"transformer.h.0.extra\" does not belong to a GPT-2 of 2 layers"},
        {"mask past the layers",
         [](ModelFolder& f) {
             f.tensors["transformer.h.2.attn.bias"] = f.tensors.at("transformer.ln_f.bias");
         },
         "tensor \"transformer.h.2.attn.bias\" does not belong"},
        {"line break", [](ModelFolder& f) { f.tensors["a\nb"] = f.tensors.at("transformer.ln_f.bias"); },
         "tensor \"a\\nb\" does not belong"},
        {"twice", [](ModelFolder& f) { f.tensors["ln_f.bias"] = f.tensors.at("transformer.ln_f.bias"); },
         "tensor \"transformer.ln_f.bias\" is present twice: also as \"ln_f.bias\""},
        {"transposed",
         tensor("transformer.h.0.attn.c_attn.weight",
                [](ModelFolder::Data& d) {
                    d.shape = {72, 24};
                }),
         "tensor \"transformer.h.0.attn.c_attn.weight\" has the shape (72, 24); expected (24, 72) by "
         "config.json"},
        {"flat", tensor("transformer.h.0.attn.c_proj.weight", [](ModelFolder::Data& d) { d.shape = {576}; }),
         "has the shape (576); expected (24, 24)"},
        {"integers", tensor("transformer.ln_f.weight", [](ModelFolder::Data& d) { d.dtype = "I32"; }),
         "tensor \"transformer.ln_f.weight\" is I32; expected F32, F16, BF16 or F64"},
        {"own head",
         [](ModelFolder& f) {
             f.tensors["lm_head.weight"] = f.tensors.at("transformer.wte.weight");
             f.tensors["lm_head.weight"].bytes[7] ^= 1;
         },
         "tensor \"lm_head.weight\" differs from \"transformer.wte.weight\"; expected a GPT-2 whose head is "
         "its token embedding"},
        {"padded head",
         [](ModelFolder& f) {
             f.tensors["lm_head.weight"] = {"F32", {132, 24}, std::string(132 * 24 * 4, '\0')};
         },
         "tensor \"lm_head.weight\" has the shape (132, 24)"},
    });
}

TEST(HuggingFace, ADamagedIndexIsRefusedByName) {
    const TemporaryFolder temporary;
    const std::string path = temporary / "model", index = path + "/model.safetensors.index.json",
                      second = "model-00002-of-00002.safetensors";
    const auto refusal = [&](const std::function<void(json&)>& damage) {
        ModelFolder().write(path, shard_of);
        json root = json::parse(read_file(index));
        damage(root);
        std::ofstream(index) << root;
        return message_of<UsageError>([&] { open_model(path); });
    };
    const std::string tensor = "transformer.h.1.ln_1.bias";
    EXPECT_EQ(refusal([&](json& root) { root.at("weight_map").erase(tensor); }),
              path + "/" + second + ": tensor \"" + tensor + "\" is not in " + index);
    EXPECT_EQ(refusal([&](json& root) { root.at("weight_map")["new"] = second; }),
              path + "/" + second + ": has no tensor \"new\", which " + index + " lists for it");
    EXPECT_TRUE(says(refusal([&](json& root) { root.at("weight_map")[tensor] = "gone.safetensors"; }),
                     "gone.safetensors: cannot be opened"));
    for (const json& file : {json("../model.safetensors"), json("/etc/passwd"), json(""), json(7),
                             json("a\nb"), json(std::string("a\0.safetensors", 14))}) {
        EXPECT_TRUE(refusal([&](json& root) {
                        root.at("weight_map")[tensor] = file;
                    }).starts_with(index + ": the file of tensor \"" + tensor + "\""))
            << file;
    }
    EXPECT_TRUE(says(refusal([&](json& root) { root.erase("weight_map"); }), "has no weight_map"));
    EXPECT_TRUE(says(refusal([&](json& root) { root = json::array(); }), "is not a JSON object"));
    EXPECT_TRUE(says(refusal([&](json& root) { root["weight_map"] = {1, 2}; }), "has no weight_map"));
}

TEST(HuggingFace, FoldersThatHoldNoModelSayWhatIsMissing) {
    const TemporaryFolder temporary;
    const auto refusal = [&](const std::string& path) {
        return message_of<UsageError>([&] { open_model(path); });
    };
    EXPECT_TRUE(says(refusal(temporary / "nothing"), "is not there; expected a checkpoint"));
    EXPECT_EQ(
        refusal(temporary.path()),
        temporary.path() +
            ": has no config.json; expected the folder of a Hugging Face GPT-2, Llama, Qwen3 or nanochat, a "
            "run or a checkpoint");
    fs::create_directory(temporary / "adapter");
    temporary.write("adapter/adapter_config.json", "{}");
    EXPECT_TRUE(says(refusal(temporary / "adapter"), "is an adapter of PEFT"));
    const std::string path = ModelFolder().write(temporary / "model");
    EXPECT_TRUE(says(refusal(path + "/model.safetensors"), "expected the folder of a Hugging Face GPT-2"));
    EXPECT_TRUE(says(refusal(path + "/config.json"), "too short for a model of llm.c"));
    const std::string whole = read_file(path + "/model.safetensors");
    for (const size_t size : {size_t{0}, size_t{7}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
        std::ofstream(path + "/model.safetensors", std::ios::binary) << whole.substr(0, size);
        EXPECT_TRUE(refusal(path).starts_with(path + "/model.safetensors: ")) << size;
    }
    fs::rename(path + "/model.safetensors", path + "/pytorch_model.bin");
    EXPECT_TRUE(says(refusal(path), "has only a pickle of PyTorch (pytorch_model.bin), which is not read"));
    for (const char* text : {"", "[]", "{", "\xff", "{\"n_layer\":"}) {
        std::ofstream(path + "/config.json") << text;
        EXPECT_EQ(refusal(path), path + "/config.json: is not a JSON object");
    }
}

// ----------------------------------------------------------------------------------------------------
// tokenizer files

// Golden files: transformers 5.24.0 and tokenizers 0.23.3 opened these in dev/check_outside.sh, split all
// real texts into our tokens, and computed our likelihoods. After an intended change of a file, run that
// again and put the test's output here.
TEST(TokenizerFiles, AndConfigurationAreThoseThatTransformersWasSeenToLoad) {
    const TemporaryFolder temporary;
    const struct {
        std::string tokenizer;
        ModelConfig config;
        std::map<std::string, uint64_t> hashes;
    } folders[] = {{"gpt2",
                    named_model("gpt2"),
                    {{"config.json", 0x78981e3acca054b4},
                     {"generation_config.json", 0x86a5b5891f2a683e},
                     {"tokenizer.json", 0x4ca9495e0dd199c4},
                     {"tokenizer_config.json", 0xce49af29039c07ad}}},
                   {"byte",
                    ModelConfig{},
                    {{"config.json", 0xa02adb0f0d39f866},
                     {"generation_config.json", 0xdaa13e4f205dc5ba},
                     {"tokenizer.json", 0x0cec64c32c146c6b},
                     {"tokenizer_config.json", 0x9ad044cf033d988a}}}};
    for (const auto& [tokenizer, config, hashes] : folders) {
        const std::string folder = temporary / tokenizer;
        fs::create_directory(folder);
        write_hugging_face_metadata(folder, config, *make_tokenizer(tokenizer));
        std::map<std::string, uint64_t> written;
        for (const auto& entry : fs::directory_iterator(folder)) {
            const std::string text = read_file(entry.path());
            written[entry.path().filename()] = XXH3_64bits(text.data(), text.size());
        }
        EXPECT_EQ(written.size(), hashes.size());
        for (const auto& [name, hash] : written)
            EXPECT_TRUE(hashes.contains(name) && hashes.at(name) == hash)
                << fmt::format("{{\"{}\", 0x{:016x}}}", name, hash);
    }
}

// The numbers of a model's folder go into its copies; those that the model does not have are replaced.
TEST(TokenizerFiles, NumbersOfSpecialTokensAreKept) {
    const TemporaryFolder temporary;
    struct Numbers {
        std::string config, generation;  // of the folder that is read
        json copied_config, copied_generation;
    };
    const json null;
    const Numbers cases[] = {
        // GPT-2's own, as transformers saves it
        {R"({"bos_token_id": 50256, "eos_token_id": 50256})",
         R"({"_from_model_config": true, "bos_token_id": 50256, "eos_token_id": 50256, "use_cache": true})",
         {50256, 50256, null},
         {{"bos_token_id", 50256}, {"eos_token_id", 50256}, {"pad_token_id", 50256}}},
        {R"({"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 4})",
         "",
         {1, {2, 3}, 4},
         {{"bos_token_id", 1}, {"eos_token_id", {2, 3}}, {"pad_token_id", 4}}},
        {R"({"eos_token_id": null})",
         R"({"eos_token_id": [9, 8], "temperature": 0.5})",
         {9, {9, 8}, null},
         {{"eos_token_id", {9, 8}}, {"temperature", 0.5}}},
        {R"({"bos_token_id": 60000, "eos_token_id": 7})",
         R"({"eos_token_id": 60000, "top_k": 5})",
         {7, 7, null},
         {{"bos_token_id", 7}, {"eos_token_id", 7}, {"pad_token_id", 7}, {"top_k", 5}}}};
    for (const auto& [config, generation, copied_config, copied_generation] : cases) {
        SCOPED_TRACE(config + generation);
        for (const char* name : {"from", "to"}) {
            fs::remove_all(temporary / name);
            fs::create_directory(temporary / name);
        }
        std::ofstream(temporary / "from/config.json") << config;
        if (!generation.empty()) std::ofstream(temporary / "from/generation_config.json") << generation;
        const auto tokenizer = make_tokenizer_for(temporary / "from", 50257, "gpt2");
        write_hugging_face_metadata(temporary / "to", {50257, 4, 1, 1, 8}, *tokenizer);
        const json model = json::parse(read_file(temporary / "to/config.json"));
        EXPECT_EQ((json{model["bos_token_id"], model["eos_token_id"], model.value("pad_token_id", null)}),
                  copied_config);
        EXPECT_EQ(json::parse(read_file(temporary / "to/generation_config.json")), copied_generation);
    }
}

TEST(TokenizerFiles, AreRecognisedAndOthersRefused) {
    const TemporaryFolder temporary;
    write_folder(temporary / "byte");
    write_folder(temporary / "gpt2", {50257, 4, 1, 1, 8});
    EXPECT_EQ(make_tokenizer(temporary / "byte")->name(), "byte");
    EXPECT_EQ(make_tokenizer(temporary / "gpt2")->name(), "gpt2");
    EXPECT_EQ(tokenizer_in(temporary.path()), "");
    EXPECT_EQ(tokenizer_name(*open_model(temporary / "gpt2")), temporary / "gpt2/tokenizer.json");
    // GPT-2's vocabulary in transformers' old tokenizer files.
    fs::remove(temporary / "gpt2/tokenizer.json");
    fs::copy_file(data_directory() + "/gpt2_encoder.json", temporary / "gpt2/vocab.json");
    EXPECT_EQ(tokenizer_in(temporary / "gpt2"), temporary / "gpt2/vocab.json");
    EXPECT_EQ(make_tokenizer(temporary / "gpt2")->name(), "gpt2");
    std::ofstream(temporary / "gpt2/vocab.json") << R"({"a": 0})";
    EXPECT_EQ(message_of<UsageError>([&] { make_tokenizer(temporary / "gpt2"); }),
              temporary / "gpt2/vocab.json: has no merges.txt beside it, which a byte-level BPE needs");
    // Foreign tokenizers: another vocabulary, another splitting, other merges.
    const json byte = json::parse(read_file(temporary / "byte/tokenizer.json"));
    for (const char* change :
         {R"([{"op": "add", "path": "/model/vocab/ab", "value": 256}])",
          R"([{"op": "replace", "path": "/pre_tokenizer/add_prefix_space", "value": true}])",
          R"([{"op": "add", "path": "/model/merges/-", "value": "a b"}])"}) {
        std::ofstream(temporary / "byte/tokenizer.json") << byte.patch(json::parse(change));
        const std::string name = tokenizer_name(*open_model(temporary / "byte"));
        EXPECT_EQ(name, temporary / "byte/tokenizer.json") << change;
        // its pre_tokenizer makes no words, within which merges would be
        if (std::string(change).find("merges") != std::string::npos) {
            EXPECT_THROW(make_tokenizer(name), UsageError);
        } else {
            EXPECT_TRUE(make_tokenizer(name)->name().starts_with("bpe-")) << change;
        }
    }
    for (const char* text : {"", "[]", "{}", "{\"model\":7}", "{\"model\":{\"vocab\":[1]}}"}) {
        std::ofstream(temporary / "byte/tokenizer.json") << text;
        EXPECT_TRUE(message_of<UsageError>([&] {
                        make_tokenizer(temporary / "byte");
                    }).starts_with(temporary / "byte/tokenizer.json: "))
            << text;
    }
    fs::remove(temporary / "byte/tokenizer.json");
    EXPECT_EQ(tokenizer_name(*open_model(temporary / "byte")), "none");  // its vocabulary says nothing
}

}  // namespace
