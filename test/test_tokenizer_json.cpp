// Byte-level BPEs from a tokenizer.json: the tokens are those of Hugging Face's tokenizers, and
// unsupported files are rejected.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "reference_strings.h"
#include "system/data_directory.h"
#include "temporary_folder.h"
#include "trainer/tokenizer/tokenizer_files.h"

using nlohmann::json;

static std::string reference(const std::string& name) {
    return PROJECT_ROOT "/test/reference/bpe/" + name + ".json";
}

// Made by dev/reference_bpe.py, which also compares whole texts.
TEST(TokenizerJson, AgreesWithHuggingFaceOnRandomUnicode) {
    for (const char* name : {"plain", "prefix_space", "digits", "number_runs", "merges_out_of_order"}) {
        SCOPED_TRACE(name);
        const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(reference(name));
        const size_t strings = for_each_reference_string(
            std::string("bpe/") + name + ".bin", [&](const std::string& text, const auto& tokens) {
                EXPECT_EQ(tokenizer->encode(text), tokens);
                const bool prefixed =
                    std::string(name) == "prefix_space" && !text.empty() && text.front() != ' ';
                EXPECT_EQ(tokenizer->decode(tokens), (prefixed ? " " : "") + text);
                std::vector<uint16_t> in_pieces;
                tokenizer->encode_in_pieces(text, 1, [&](std::span<const uint16_t> piece) {
                    in_pieces.insert(in_pieces.end(), piece.begin(), piece.end());
                });
                EXPECT_EQ(in_pieces, tokens);
            });
        EXPECT_EQ(strings, 300u);
    }
}

TEST(TokenizerJson, HasTheNumbersOfItsFile) {
    const std::unique_ptr<Tokenizer> plain = make_tokenizer(reference("plain")),
                                     gaps = make_tokenizer(reference("merges_out_of_order"));
    EXPECT_EQ(plain->vocab_size(), 600);
    EXPECT_EQ(plain->end_of_text(), 0);
    EXPECT_EQ(plain->token_bytes(0), "<|endoftext|>");
    EXPECT_EQ(plain->token_bytes(1), "<｜pad｜>");  // not written as bytes
    EXPECT_EQ(gaps->vocab_size(), 1001);
    EXPECT_EQ(gaps->token_bytes(500), "");  // no token
    EXPECT_EQ(gaps->token_bytes(*gaps->end_of_text()), "</s>");
    EXPECT_THROW(gaps->token_bytes(1001), UsageError);
}

TEST(TokenizerJson, NamesTellTokenizersApartButNotTheirFiles) {
    const TemporaryFolder folder;
    const json plain = json::parse(read_file(reference("plain")));
    const auto name_of = [&](const json& tokenizer) {
        return std::string(make_tokenizer(folder.write("tokenizer.json", tokenizer.dump(1)))->name());
    };
    const std::string name = name_of(plain);
    EXPECT_TRUE(name.starts_with("bpe-")) << name;
    EXPECT_EQ(name.size(), 20u) << name;
    EXPECT_EQ(make_tokenizer(folder.path())->name(), name);  // a folder is equivalent to the file in it
    EXPECT_EQ(make_tokenizer(reference("plain"))->name(), name);
    json list = plain;
    for (json& merge : list["model"]["merges"])
        // in the format of older versions
        merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    EXPECT_EQ(name_of(list), name);
    for (const char* change :
         {R"([{"op": "remove", "path": "/model/merges/0"}])",
          R"([{"op": "add", "path": "/added_tokens/-", "value": {"id": 600, "content": "<x>"}}])",
          R"([{"op": "replace", "path": "/pre_tokenizer/add_prefix_space", "value": true}])"})
        EXPECT_NE(name_of(plain.patch(json::parse(change))), name) << change;
    // Another end of text gives other shards.
    folder.write("tokenizer_config.json", R"({"eos_token": {"content": "Ġthe"}})");
    EXPECT_NE(name_of(plain), name);
    EXPECT_EQ(make_tokenizer(folder.path())->token_bytes(*make_tokenizer(folder.path())->end_of_text()),
              " the");
    folder.write("tokenizer_config.json", R"({"eos_token": null})");
    EXPECT_EQ(name_of(plain), name);
}

TEST(TokenizerJson, GivesAModelTheFilesItCameFrom) {
    const TemporaryFolder folder;
    const std::string text = read_file(reference("plain")),
                      config = R"({"eos_token": "Ġthe", "anything": 1})";
    folder.write("tokenizer.json", text);
    std::vector<TextFile> files = tokenizer_files(*make_tokenizer(folder.path()), 64);
    ASSERT_EQ(files.size(), 2u);
    EXPECT_EQ(files[0].text, text);
    EXPECT_EQ(json::parse(files[1].text), (json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                                {"model_max_length", 64},
                                                {"clean_up_tokenization_spaces", false},
                                                {"eos_token", "<|endoftext|>"}}));
    folder.write("tokenizer_config.json", config);
    files = tokenizer_files(*make_tokenizer(folder.path()), 64);
    ASSERT_EQ(files.size(), 2u);
    EXPECT_EQ(files[1].text, config);
    EXPECT_TRUE(tokenizer_files(*make_tokenizer("none"), 64).empty());
}

TEST(TokenizerJson, Gpt2sIsGpt2WithWhateverTokensWereAdded) {
    const TemporaryFolder folder;
    json tokenizer = json::parse(tokenizer_files(*make_tokenizer("gpt2"), 1024)[0].text);
    tokenizer["added_tokens"].push_back({{"id", 50257}, {"content", "[PAD]"}});
    EXPECT_EQ(make_tokenizer(folder.write("tokenizer.json", tokenizer.dump()))->name(), "gpt2");
    tokenizer["pre_tokenizer"]["add_prefix_space"] = true;
    const std::unique_ptr<Tokenizer> spaced =
                                         make_tokenizer(folder.write("tokenizer.json", tokenizer.dump())),
                                     gpt2 = make_tokenizer("gpt2");
    EXPECT_TRUE(spaced->name().starts_with("bpe-"));
    EXPECT_EQ(spaced->encode("Hello"), gpt2->encode(" Hello"));
    EXPECT_EQ(spaced->end_of_text(), 50256);
    tokenizer["pre_tokenizer"]["add_prefix_space"] = false;
    std::swap(tokenizer["model"]["merges"][100], tokenizer["model"]["merges"][101]);
    EXPECT_TRUE(make_tokenizer(folder.write("tokenizer.json", tokenizer.dump()))->name().starts_with("bpe-"));
}

TEST(TokenizerJson, WhatIsNotUnderstoodIsRefused) {
    const TemporaryFolder folder;
    const std::string file = folder / "tokenizer.json";
    const json plain = json::parse(read_file(reference("plain")));
    const std::pair<const char*, const char*> cases[] = {
        {R"([{"op": "replace", "path": "/model/type", "value": "WordPiece"}])",
         "is a model of type \"WordPiece\"; expected a byte-level BPE"},
        {R"([{"op": "remove", "path": "/model/vocab"}])", "has no model with a vocabulary"},
        {R"([{"op": "replace", "path": "/model/vocab/a", "value": 1.5}])",
         "token 'a' has number 1.5, expected a whole number below 65536"},
        {R"([{"op": "replace", "path": "/model/vocab/a", "value": 65536}])",
         "token 'a' has number 65536, expected a whole number below 65536"},
        {R"([{"op": "replace", "path": "/model/vocab/a", "value": 300}])",
         "with number 300 is not part of a byte-level vocabulary"},
        {R"([{"op": "add", "path": "/model/vocab/語", "value": 700}])",
         "token '語' with number 700 is not part of a byte-level vocabulary"},
        {R"([{"op": "remove", "path": "/model/vocab/!"}])",
         "has no token for byte 0x21; expected one for each of the 256"},
        {R"([{"op": "add", "path": "/model/merges/0", "value": ["a", "zzz"]}])",
         "'zzz' is not in the vocabulary"},
        {R"([{"op": "add", "path": "/model/merges/0", "value": ["a"]}])",
         "[\"a\"] is not a merge of two tokens"},
        {R"([{"op": "add", "path": "/model/merges/0", "value": "ab"}])", "'ab' is not a merge of two tokens"},
        {R"([{"op": "replace", "path": "/model/merges", "value": {}}])", "has no list of merges"},
        {R"([{"op": "replace", "path": "/model/ignore_merges", "value": true}])",
         "has ignore_merges true; expected none"},
        {R"([{"op": "replace", "path": "/model/byte_fallback", "value": true}])",
         "has byte_fallback true; expected none"},
        {R"([{"op": "replace", "path": "/model/dropout", "value": 0.1}])", "has dropout 0.1; expected none"},
        {R"([{"op": "replace", "path": "/normalizer", "value": {"type": "NFC"}}])",
         "has a normalizer of type \"NFC\"; expected none"},
        {R"([{"op": "replace", "path": "/pre_tokenizer", "value": null}])",
         "its pre_tokenizer has a step null; expected ByteLevel, or Digits and ByteLevel"},
        {R"([{"op": "replace", "path": "/pre_tokenizer/type", "value": "Metaspace"}])",
         "its pre_tokenizer has a step \"Metaspace\""},
        {R"([{"op": "replace", "path": "/pre_tokenizer/use_regex", "value": false}])",
         "its pre_tokenizer does not split texts into words"},
        {R"([{"op": "replace", "path": "/pre_tokenizer", "value": {"type": "Sequence",)"
         R"( "pretokenizers": []}}])",
         "its pre_tokenizer is not ByteLevel"},
        {R"([{"op": "replace", "path": "/pre_tokenizer", "value": {"type": "Sequence",)"
         R"( "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel"}]}}])",
         "puts a space before every number"},
        {R"([{"op": "replace", "path": "/added_tokens/0/id", "value": -1}])",
         "added token \"<|endoftext|>\" has number -1"},
        {R"([{"op": "replace", "path": "/added_tokens/0/id", "value": 7}])",
         "token '<|endoftext|>' has the numbers 0 and 7"},
    };
    for (const auto& [change, expected] : cases) {
        folder.write("tokenizer.json", plain.patch(json::parse(change)).dump());
        const std::string message = message_of<UsageError>([&] { make_tokenizer(file); });
        EXPECT_TRUE(message.starts_with(file + ": ")) << message;
        EXPECT_NE(message.find(expected), std::string::npos) << message;
    }
    folder.write("tokenizer.json", plain.dump());
    folder.write("tokenizer_config.json", R"({"eos_token": "zzz"})");
    EXPECT_EQ(message_of<UsageError>([&] { make_tokenizer(file); }), file + ": has no token zzz");
}

TEST(NoTokenizer, ShowsTokensAsNumbersAndTakesNoText) {
    const std::unique_ptr<Tokenizer> none = make_tokenizer("none");
    EXPECT_EQ(none->decode(std::vector<uint16_t>{0, 17, 65535}), "0 17 65535 ");
    EXPECT_TRUE(none->encode("").empty());
    EXPECT_NE(message_of<UsageError>([&] { none->encode("a"); }).find("--tokenizer none makes no tokens"),
              std::string::npos);
    for (const int V : {1, 257, 50'000, 65'536})
        EXPECT_EQ(make_tokenizer_for("the model", V, "none")->name(), "none");
}
