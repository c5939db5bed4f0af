// Models by their name in Hugging Face's cache, in the layout of huggingface_hub.
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "environment.h"
#include "model_weights.h"
#include "program.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/formats/hub_cache.h"
#include "trainer/models/model_file.h"

namespace {

namespace fs = std::filesystem;

// A snapshot whose files are links to blobs, as in a real cache.
std::string write_snapshot(const std::string& cache, const std::string& repository_folder,
                           const ModelConfig& config = small_config) {
    const fs::path folder = fs::path(cache) / repository_folder,
                   snapshot = folder / "snapshots/607a30d783dfa663caf39e06633721c8d4cfcd7e";
    write_folder((folder / "blobs").string(), config);
    fs::create_directories(snapshot);
    for (const auto& entry : fs::directory_iterator(folder / "blobs"))
        fs::create_symlink("../../blobs/" + entry.path().filename().string(),
                           snapshot / entry.path().filename());
    fs::create_directories(folder / "refs");
    std::ofstream(folder / "refs/main") << "607a30d783dfa663caf39e06633721c8d4cfcd7e";
    return snapshot.string();
}

// The environment decides where the cache is.
class HubCache : public testing::Test {
protected:
    TemporaryFolder folder;
    const Variable home{"HOME", folder / "home"}, hub{"HF_HUB_CACHE"}, hf{"HF_HOME"}, xdg{"XDG_CACHE_HOME"};
};

TEST_F(HubCache, IsFoundAsHuggingFacesProgramsFindIt) {
    const std::string home = folder / "home/.cache/huggingface/hub", xdg = folder / "xdg/huggingface/hub",
                      hf = folder / "hf/hub", hub = folder / "hub";
    std::map<std::string, std::string> snapshots;
    for (const std::string& cache : {home, xdg, hf, hub})
        snapshots[cache] = write_snapshot(cache, "models--openai-community--gpt2");
    EXPECT_EQ(cached_model("gpt2"), snapshots[home]);
    setenv("XDG_CACHE_HOME", (folder / "xdg").c_str(), 1);
    EXPECT_EQ(cached_model("gpt2"), snapshots[xdg]);
    setenv("HF_HOME", (folder / "hf").c_str(), 1);
    EXPECT_EQ(cached_model("openai-community/gpt2"), snapshots[hf]);
    setenv("HF_HUB_CACHE", hub.c_str(), 1);
    EXPECT_EQ(cached_model("gpt2"), snapshots[hub]);
    EXPECT_EQ(open_model("gpt2")->config().C, small_config.C);
    unsetenv("HF_HUB_CACHE");
}

TEST_F(HubCache, NamesOfOldAndOfOtherModelsAreFound) {
    const std::string cache = folder / "home/.cache/huggingface/hub";
    const std::string old = write_snapshot(cache, "models--gpt2-medium"),
                      other = write_snapshot(cache, "models--someone--own.model_2");
    EXPECT_EQ(cached_model("gpt2-medium"), old);
    EXPECT_EQ(cached_model("openai-community/gpt2-medium"), old);
    EXPECT_EQ(cached_model("someone/own.model_2"), other);
    for (const char* none : {"unknown", "/tmp/x", "a/b/c", "../gpt2", "", "x y", "someone/"})
        EXPECT_EQ(cached_model(none), "") << none;
}

// With the tokenizer's files; names that a repository does not have are no error for `hf download`.
constexpr char files[] =
    " config.json generation_config.json 'model*.safetensors*' tokenizer.json tokenizer_config.json "
    "special_tokens_map.json added_tokens.json vocab.json merges.txt chat_template.jinja";

TEST_F(HubCache, WhatIsMissingIsFetchedByTheCommandThatIsSaid) {
    const std::string cache = folder / "home/.cache/huggingface/hub";
    EXPECT_EQ(message_of<UsageError>([] { cached_model("gpt2-xl"); }),
              "gpt2-xl: is not there, nor in Hugging Face's cache " + cache +
                  "; fetch it with: hf download openai-community/gpt2-xl" + files);
    EXPECT_EQ(message_of<UsageError>([] { cached_model("someone/else"); }),
              "someone/else: is not there, nor in Hugging Face's cache " + cache +
                  "; if it is a model of the hub, fetch it with: hf download someone/else" + files);
    const std::string snapshot = write_snapshot(cache, "models--openai-community--gpt2-xl");
    fs::remove(snapshot + "/../../blobs/model.safetensors");  // the link stays, as after a failed download
    const std::string message = message_of<UsageError>([] { open_model("gpt2-xl"); });
    EXPECT_TRUE(says(message,
                     "has no config.json or no model.safetensors; expected a whole download: hf "
                     "download openai-community/gpt2-xl"));
}

TEST_F(HubCache, APickleIsSaidToBeOneWithTheCommandThatConvertsIt) {
    const std::string cache = folder / "home/.cache/huggingface/hub",
                      snapshot = write_snapshot(cache, "models--someone--old");
    fs::rename(snapshot + "/model.safetensors", snapshot + "/pytorch_model.bin");
    const std::string message = message_of<UsageError>([] { open_model("someone/old"); });
    EXPECT_TRUE(says(message, "has only a pickle of PyTorch (pytorch_model.bin), which is not read"));
    EXPECT_TRUE(says(message,
                     "GPT2LMHeadModel.from_pretrained('someone/old').save_pretrained('FOLDER', "
                     "safe_serialization=True)"));
}

// The vocabulary's size says nothing about the language.
TEST_F(HubCache, ATokenizerIsNotGuessedBySize) {
    const std::string cache = folder / "home/.cache/huggingface/hub";
    const auto tokenizer_of = [&](const std::string& repository, const std::string& source) {
        const std::string snapshot = write_snapshot(cache, repository, {50'257, 12, 1, 1, 8});
        for (const char* name : {"/tokenizer.json", "/tokenizer_config.json"}) fs::remove(snapshot + name);
        nlohmann::json config = nlohmann::json::parse(read_file(snapshot + "/config.json"));
        if (!source.empty()) config["_name_or_path"] = source;
        fs::remove(snapshot + "/config.json");
        std::ofstream(snapshot + "/config.json") << config;
        testing::internal::CaptureStderr();
        const std::string name = tokenizer_name(*open_model(snapshot));
        const std::string note = testing::internal::GetCapturedStderr();
        EXPECT_EQ(note.empty(), name != "none") << note;
        EXPECT_EQ(note.find("hf download someone/gpt2") != note.npos, name == "none") << note;
        return name;
    };
    EXPECT_EQ(tokenizer_of("models--openai-community--gpt2", ""), "gpt2");
    EXPECT_EQ(tokenizer_of("models--someone--gpt2-french", ""), "none");
    EXPECT_EQ(tokenizer_of("models--someone--gpt2-tuned", "openai-community/gpt2"), "gpt2");
    EXPECT_EQ(tokenizer_of("models--someone--gpt2-dutch", "someone/gpt2-base"), "none");
}

TEST_F(HubCache, AFolderOfTheSameNameComesFirst) {
    write_snapshot(folder / "home/.cache/huggingface/hub", "models--openai-community--gpt2");
    const fs::path before = fs::current_path();
    fs::create_directories(folder / "here");
    fs::current_path(folder / "here");
    write_folder("gpt2");
    EXPECT_EQ(open_model("gpt2")->path(), "gpt2");
    fs::current_path(before);
}

}  // namespace
