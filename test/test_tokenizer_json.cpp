// Byte-level BPEs from a tokenizer.json: the tokens are those of Hugging Face's tokenizers, and
// unsupported files are rejected.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/simt/host_device.h"
#include "pieces.h"
#include "reference_strings.h"
#include "system/unicode_nfc.h"
#include "temporary_folder.h"
#include "trainer/tokenizer/special_ids.h"
#include "trainer/tokenizer/tokenizer_files.h"
#include "trainer/tokenizer/word_splitter.h"

using nlohmann::json;

static std::string reference_file(const std::string& name) {
    return PROJECT_ROOT "/test/reference/bpe/" + name + ".json";
}

// Made by dev/reference_tokenizer.py.
TEST(TokenizerJson, AgreesWithHuggingFaceOnRandomUnicode) {
    for (const char* name : {"plain", "prefix_space", "digits", "number_runs", "merges_out_of_order",
                             "llama3", "qwen", "nanochat", "gpt4", "no_words"}) {
        SCOPED_TRACE(name);
        if (name == std::string("qwen") && !can_normalize()) continue;
        const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(reference_file(name));
        const size_t strings = for_each_reference_string(
            std::string("bpe/") + name + ".bin", [&](const std::string& text, const auto& tokens) {
                EXPECT_EQ(tokenizer->encode(text), tokens);
                // with prefix_space, each piece between added tokens gets one
                if (name != std::string("prefix_space") && name != std::string("qwen")) {
                    EXPECT_EQ(tokenizer->decode(tokens), text);
                }
                EXPECT_EQ(encode_in_pieces(*tokenizer, text, 1), tokens);
            });
        EXPECT_EQ(strings, 300u);
    }
}

// Added tokens of every kind (dev/reference_tokenizer.py), in strings that consist of them and of what may
// stand beside them.
TEST(TokenizerJson, AddedTokensAreFoundAsHuggingFaceFindsThem) {
    for (const char* name :
         {"added_tokens_plain", "added_tokens_prefix_space", "added_tokens_digits", "added_tokens_qwen"}) {
        SCOPED_TRACE(name);
        if (name == std::string("added_tokens_qwen") && !can_normalize()) continue;
        const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(reference_file(name));
        size_t added = 0;
        const size_t strings = for_each_reference_string(
            std::string("bpe/") + name + ".bin", [&](const std::string& text, const auto& tokens) {
                EXPECT_EQ(tokenizer->encode(text), tokens);
                for (const size_t piece_bytes : {1, 7})
                    EXPECT_EQ(encode_in_pieces(*tokenizer, text, piece_bytes), tokens);
                for (const Token token : tokens) added += token >= 600;
            });
        EXPECT_EQ(strings, 300u);
        EXPECT_GT(added, 300u);
    }
}

// The reference strings are random; here every pattern's kinds of words stand side by side.
TEST(WordSplitter, PatternsDifferWhereTheirRegularExpressionsDo) {
    const auto words = [](SplitPattern pattern, std::string_view text) {
        std::string shown;
        WordSplitter({pattern}).split(
            text, [&](std::string_view word) { shown += (shown.empty() ? "" : "|") + std::string(word); });
        return shown;
    };
    const std::string text = "It'S 12345 .x\n (y)\n\n  z'\xC5\xBFt \n ";
    EXPECT_EQ(words(SplitPattern::gpt2, text), "It|'|S| 12345| .|x|\n| (|y|)|\n\n | z|'|\xC5\xBFt| \n ");
    EXPECT_EQ(words(SplitPattern::llama3, text), "It|'S| |123|45| .|x|\n| (|y|)\n\n| | z|'\xC5\xBF|t| \n| ");
    EXPECT_EQ(words(SplitPattern::gpt4, text), "It|'S| |123|45| .|x|\n| (|y|)\n\n| | z|'\xC5\xBF|t| \n ");
    EXPECT_EQ(words(SplitPattern::nanochat, "12345'Ve"), "12|34|5|'Ve");
    EXPECT_EQ(words(SplitPattern::qwen, "123"), "1|2|3");
    EXPECT_EQ(words(SplitPattern::gpt4_number_runs, "12345"), "12345");
    EXPECT_EQ(words(SplitPattern::digits, "ab12c"), "ab|1|2|c");
    EXPECT_EQ(words(SplitPattern::digit_runs,
                    "ab12c\xFF\xE2\x82"
                    "3"),
              "ab|12|c\xFF\xE2\x82|3");
    for (const SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::gpt4, SplitPattern::llama3,
                                       SplitPattern::nanochat, SplitPattern::qwen})
        EXPECT_TRUE(pattern_of_regex(regex_of(pattern)) == pattern);
    EXPECT_FALSE(pattern_of_regex("\\w+").has_value());
}

TEST(TokenizerJson, OtherSplitsAreRefusedByTheirRegularExpression) {
    const TemporaryFolder folder;
    const json qwen = json::parse(read_file(reference_file("qwen")));
    const std::pair<const char*, const char*> cases[] = {
        {R"([{"op": "replace", "path": "/pre_tokenizer/pretokenizers/0/pattern/Regex", "value": "\\w+"}])",
         R"(its pre_tokenizer splits by "\\w+"; expected the pattern of GPT-2, GPT-4, Llama 3, Qwen or)"},
        {R"([{"op": "replace", "path": "/pre_tokenizer/pretokenizers/0/pattern", "value": {"String": " "}}])",
         R"(its pre_tokenizer splits at {"String":" "}; expected a regular expression)"},
        {R"([{"op": "replace", "path": "/pre_tokenizer/pretokenizers/0/behavior", "value": "Removed"}])",
         "has a Split with the behavior \"Removed\"; expected Isolated, or Removed with invert"},
        {R"([{"op": "replace", "path": "/pre_tokenizer/pretokenizers/1/add_prefix_space", "value": true}])",
         "puts a space before every piece (Split and add_prefix_space)"},
    };
    for (const auto& [change, expected] : cases) {
        const std::string file = folder.write("tokenizer.json", qwen.patch(json::parse(change)).dump());
        EXPECT_TRUE(says(message_of<UsageError>([&] { make_tokenizer(file); }), expected));
    }
}

TEST(TokenizerJson, HasTheNumbersOfItsFile) {
    const std::unique_ptr<Tokenizer> plain = make_tokenizer(reference_file("plain")),
                                     gaps = make_tokenizer(reference_file("merges_out_of_order"));
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
    const json plain = json::parse(read_file(reference_file("plain")));
    const auto name_of = [&](const json& tokenizer) {
        return std::string(make_tokenizer(folder.write("tokenizer.json", tokenizer.dump(1)))->name());
    };
    const std::string name = name_of(plain);
    EXPECT_TRUE(name.starts_with("bpe-")) << name;
    EXPECT_EQ(name.size(), 20u) << name;
    EXPECT_EQ(make_tokenizer(folder.path())->name(), name);  // a folder is equivalent to the file in it
    EXPECT_EQ(make_tokenizer(reference_file("plain"))->name(), name);
    json list = plain;
    for (json& merge : list["model"]["merges"])
        // in the format of older versions
        merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    EXPECT_EQ(name_of(list), name);
    for (const char* change :
         {R"([{"op": "remove", "path": "/model/merges/0"}])",
          R"([{"op": "add", "path": "/added_tokens/-", "value": {"id": 600, "content": "<x>"}}])",
          R"([{"op": "replace", "path": "/added_tokens/1/lstrip", "value": true}])",
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
    const std::string text = read_file(reference_file("plain")),
                      config = R"({"tokenizer_class": "TokenizersBackend", "anything": 1})";
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
    // Beside another model this would be opened with that model's class.
    folder.write("tokenizer_config.json", R"({"anything": 1})");
    files = tokenizer_files(*make_tokenizer(folder.path()), 64);
    EXPECT_EQ(json::parse(files[1].text),
              (json{{"anything", 1}, {"tokenizer_class", "PreTrainedTokenizerFast"}}));
    EXPECT_TRUE(tokenizer_files(*make_tokenizer("none"), 64).empty());
    // The other files come along unchanged.
    const std::map<std::string, std::string> others = {
        {"special_tokens_map.json", R"({"pad_token":  "<p>"})"},
        {"added_tokens.json", R"({"<p>":600})"},
        {"chat_template.jinja", "{{ messages }}"},
        {"vocab.json", "{}"},
        {"merges.txt", "a b\n"}};
    for (const auto& [name, content] : others) folder.write(name, content);
    files = tokenizer_files(*make_tokenizer(folder.path()), 64);
    ASSERT_EQ(files.size(), 7u);
    for (const auto& [name, content] : files)
        EXPECT_TRUE(!others.contains(name) || others.at(name) == content) << name;
}

// In a file without added tokens nothing else is found in a text, so its tokens and its name, under which
// caches and runs know it, stay as they were.
TEST(TokenizerJson, NamesOfFilesWithoutAddedTokensStay) {
    const TemporaryFolder folder;
    json plain = json::parse(read_file(reference_file("merges_out_of_order")));
    const std::unique_ptr<Tokenizer> with = make_tokenizer(folder.write("tokenizer.json", plain.dump()));
    EXPECT_EQ(with->former_name(), "bpe-0333120c13668c38");
    EXPECT_NE(with->name(), with->former_name());
    plain["added_tokens"] = json::array();
    const std::unique_ptr<Tokenizer> without = make_tokenizer(folder.write("tokenizer.json", plain.dump()));
    EXPECT_EQ(without->name(), "bpe-6712c82a5ff13675");
    EXPECT_EQ(without->former_name(), without->name());
}

static json gpt2_json() { return json::parse(tokenizer_files(*make_tokenizer("gpt2"), 1024)[0].text); }

TEST(TokenizerJson, Gpt2sIsGpt2UnlessItSaysMore) {
    const TemporaryFolder folder;
    const std::string file = folder / "tokenizer.json";
    const json gpt2 = gpt2_json();
    const auto name_of = [&](const json& changes, const std::string& config) {
        folder.write("tokenizer.json", gpt2.patch(changes).dump());
        folder.write("tokenizer_config.json", config);
        return std::string(make_tokenizer(file)->name());
    };
    const json
        none = json::array(),
        token = json::parse(R"([{"op": "add", "path": "/added_tokens/-",
                                        "value": {"id": 50257, "content": "[PAD]"}}])"),
        strip = json::parse(R"([{"op": "replace", "path": "/added_tokens/0/lstrip", "value": true}])"),
        order = {{{"op", "replace"}, {"path", "/model/merges/100"}, {"value", gpt2["model"]["merges"][101]}},
                 {{"op", "replace"}, {"path", "/model/merges/101"}, {"value", gpt2["model"]["merges"][100]}}},
        prefix =
            json::parse(R"([{"op": "replace", "path": "/pre_tokenizer/add_prefix_space", "value": true}])"),
        digits = json::parse(R"([{"op": "replace", "path": "/pre_tokenizer", "value": {"type": "Sequence",
                   "pretokenizers": [{"type": "Digits", "individual_digits": true},
                                     {"type": "ByteLevel", "add_prefix_space": false}]}}])");
    const std::string plain =
        R"({"tokenizer_class": "GPT2Tokenizer", "model_max_length": 1024, "pad_token": null,
        "eos_token": {"content": "<|endoftext|>"}, "add_prefix_space": false, "errors": "replace"})";
    EXPECT_EQ(name_of(none, plain), "gpt2");
    EXPECT_EQ(name_of(none, "{}"), "gpt2");
    const std::pair<json, std::string> others[] = {{token, plain},
                                                   {strip, plain},
                                                   {order, plain},
                                                   {prefix, "{}"},
                                                   {digits, "{}"},
                                                   {none, R"({"pad_token": "<|endoftext|>"})"},
                                                   {none, R"({"eos_token": "<|im_end|>"})"},
                                                   {none, R"({"chat_template": "{{ messages }}"})"},
                                                   {none, R"({"padding_side": "left"})"}};
    // A checked build takes six seconds for each, and the same code reads them: it is given two.
    for (size_t i = 0; i < std::size(others); i += simt::checked ? 5 : 1) {
        const auto& [changes, config] = others[i];
        EXPECT_TRUE(name_of(changes, config).starts_with("bpe-")) << changes << config;
    }
    EXPECT_EQ(name_of(none, R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true})").substr(0, 4),
              "bpe-");
    EXPECT_EQ(make_tokenizer(file)->encode("Hello"), make_tokenizer("gpt2")->encode(" Hello"));
    EXPECT_EQ(make_tokenizer(file)->end_of_text(), 50256);
    EXPECT_EQ(name_of(none, R"({"pad_token": "<|endoftext|>"})").substr(0, 4), "bpe-");
    EXPECT_EQ(make_tokenizer(file)->former_name(), "gpt2");
    EXPECT_EQ(make_tokenizer(file)->encode("a<|endoftext|>"), (std::vector<Token>{64, 50256}));
}

// A checkpoint's folder says which of the two its texts were read with.
TEST(TokenizerJson, Gpt2sFilesSayWhetherTextsContainItsEndOfText) {
    for (const char* name : {"gpt2", "gpt2-eot"}) {
        const TemporaryFolder folder;
        for (const TextFile& file : tokenizer_files(*make_tokenizer(name), 1024))
            folder.write(file.name, file.text);
        EXPECT_EQ(make_tokenizer(folder.path())->name(), name);
    }
}

TEST(TokenizerJson, WhatIsNotUnderstoodIsRefused) {
    const TemporaryFolder folder;
    const std::string file = folder / "tokenizer.json";
    const json plain = json::parse(read_file(reference_file("plain")));
    const std::pair<const char*, const char*> cases[] = {
        {R"([{"op": "replace", "path": "/model/type", "value": "WordPiece"}])",
         "is a model of type \"WordPiece\"; expected a byte-level BPE"},
        {R"([{"op": "remove", "path": "/model/vocab"}])", "has no model with a vocabulary"},
        {R"([{"op": "replace", "path": "/model/vocab/a", "value": 1.5}])",
         "token 'a' has number 1.5, expected a whole number below 4194304"},
        {R"([{"op": "replace", "path": "/model/vocab/a", "value": 4194304}])",
         "token 'a' has number 4194304, expected a whole number below 4194304"},
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
        {R"([{"op": "replace", "path": "/model/dropout", "value": 0.1}])", "has dropout 0.1; expected none"},
        {R"([{"op": "replace", "path": "/normalizer", "value": {"type": "NFKC"}}])",
         "has a normalizer of type \"NFKC\"; expected NFC or none"},
        {R"([{"op": "replace", "path": "/pre_tokenizer", "value": null}])",
         "its pre_tokenizer has a step null; expected ByteLevel, or Digits or Split and then ByteLevel"},
        {R"([{"op": "replace", "path": "/pre_tokenizer/type", "value": "Metaspace"}])",
         "its pre_tokenizer has a step \"Metaspace\""},
        {R"([{"op": "replace", "path": "/pre_tokenizer", "value": {"type": "Sequence",)"
         R"( "pretokenizers": []}}])",
         "its pre_tokenizer is not ByteLevel"},
        {R"([{"op": "replace", "path": "/pre_tokenizer", "value": {"type": "Sequence",)"
         R"( "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel"}]}}])",
         "puts a space before every piece (Digits and add_prefix_space)"},
        {R"([{"op": "add", "path": "/decoder", "value": {"type": "WordPiece"}}])",
         "has a decoder of type \"WordPiece\"; expected ByteLevel"},
        {R"([{"op": "add", "path": "/post_processor", "value": {"type": "New"}}])",
         "has a post_processor of type \"New\""},
        {R"([{"op": "add", "path": "/post_processor", "value": {"type": "TemplateProcessing",)"
         R"( "single": []}}])",
         "its post_processor leaves the text out"},
        {R"([{"op": "add", "path": "/post_processor", "value": {"type": "BertProcessing", "cls": ["a", 0],)"
         R"( "sep": ["b", 600]}}])",
         "its post_processor has the token number 600; expected one of the 600 tokens"},
        {R"([{"op": "replace", "path": "/added_tokens/0/id", "value": -1}])",
         "added token \"<|endoftext|>\" has number -1"},
        {R"([{"op": "remove", "path": "/added_tokens/0/id"}])", "added token \"<|endoftext|>\" has no id"},
        {R"([{"op": "replace", "path": "/added_tokens/0/id", "value": 7}])",
         "token '<|endoftext|>' has the numbers 0 and 7"},
    };
    for (const auto& [change, expected] : cases) {
        folder.write("tokenizer.json", plain.patch(json::parse(change)).dump());
        const std::string message = message_of<UsageError>([&] { make_tokenizer(file); });
        EXPECT_TRUE(message.starts_with(file + ": ")) << message;
        EXPECT_TRUE(says(message, expected));
    }
    folder.write("tokenizer.json", plain.dump());
    const std::pair<const char*, const char*> configs[] = {
        {R"({"auto_map": {"AutoTokenizer": ["a.B", null]}})", "has an auto_map"},
        {R"({"added_tokens_decoder": {"700": {"content": "<x>"}}})",
         "token '<x>' has the numbers 600 and 700"},
        {R"({"added_tokens_decoder": {"x": {"content": "<x>"}}})", "added token \"<x>\" has number \"x\""},
        {R"({"pad_token": 7})", "an added token has the content null"}};
    for (const auto& [config, expected] : configs) {
        folder.write("tokenizer_config.json", config);
        const std::string message = message_of<UsageError>([&] { make_tokenizer(file); });
        EXPECT_TRUE(says(message, expected));
    }
    folder.write("tokenizer_config.json", "[]");
    EXPECT_EQ(message_of<UsageError>([&] { make_tokenizer(file); }),
              folder / "tokenizer_config.json" + ": is not a JSON object");
}

TEST(TokenizerJson, FilesOfOtherTokenizersAreRefusedByTheirKind) {
    const TemporaryFolder folder;
    const std::string pieces = folder.write("tokenizer.model", "\n\x0E\n\5<unk>");
    EXPECT_EQ(
        message_of<UsageError>([&] { make_tokenizer(pieces); }),
        pieces +
            ": is not a JSON object; expected the tokenizer.json of a byte-level BPE, or its vocab.json "
            "beside merges.txt; files of SentencePiece, WordPiece and tiktoken are not read");
}

// ----------------------------------------------------------------------------------------------------
// folders; the expected values are those of transformers 5.24.0 (test/outside/test_folders.py)

// Writes a folder with plain.json (600 tokens: 0 is <|endoftext|>, 1 is <｜pad｜>) and other files.
static std::string write_folder(const TemporaryFolder& folder,
                                const std::map<std::string, std::string>& files,
                                const std::string& changes = "[]") {
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
        std::filesystem::remove(entry.path());
    folder.write("tokenizer.json",
                 json::parse(read_file(reference_file("plain"))).patch(json::parse(changes)).dump());
    for (const auto& [name, text] : files) folder.write(name, text);
    return folder.path();
}
static constexpr char fast_class[] = R"({"tokenizer_class": "PreTrainedTokenizerFast"})";

TEST(TokenizerFolder, AddedTokensOfEveryFileAreFound) {
    const TemporaryFolder folder;
    const auto encoded = [&](const std::map<std::string, std::string>& files, const std::string& text) {
        return make_tokenizer(write_folder(folder, files))->encode(text);
    };
    using Tokens = std::vector<Token>;
    const Tokens space_h = make_tokenizer(reference_file("plain"))->encode(" h"), h = {73};
    ASSERT_EQ(space_h.size(), 1u);
    const auto joined = [](const Tokens& a, const Tokens& b) {
        Tokens both = a;
        both.insert(both.end(), b.begin(), b.end());
        return both;
    };
    const std::string config = R"({"tokenizer_class": "PreTrainedTokenizerFast", )";
    EXPECT_EQ(
        encoded({{"tokenizer_config.json", fast_class}, {"added_tokens.json", R"({"<b>": 601, "<a>": 600})"}},
                "<a><b> h"),
        joined({600, 601}, space_h));
    EXPECT_EQ(
        encoded({{"tokenizer_config.json", config + R"("pad_token": "<p>", "eos_token": "<e>"})"}}, "<p><e>"),
        (Tokens{601, 600}));  // the end of text is numbered before padding
    EXPECT_EQ(encoded({{"tokenizer_config.json", fast_class},
                       {"special_tokens_map.json", R"({"mask_token": {"content": "<m>", "rstrip": true}})"}},
                      "<m>  h"),
              joined({600}, h));
    EXPECT_EQ(encoded({{"tokenizer_config.json",
                        config + R"("added_tokens_decoder": {"600": {"content": "<m>", "lstrip": true}}})"}},
                      "h  <m>"),
              joined(h, {600}));
    EXPECT_EQ(encoded({{"tokenizer_config.json",
                        config + R"("extra_special_tokens": ["<x>"], "user_token": "<u>"})"}},
                      "<x><u>"),
              (Tokens{601, 600}));
    EXPECT_EQ(encoded({{"tokenizer_config.json",
                        config + R"("model_specific_special_tokens": {"user_token": "<u>"}})"}},
                      "<u>"),
              (Tokens{600}));
    EXPECT_EQ(encoded({{"tokenizer_config.json", config + R"("model_specific_special_tokens": {"user": "<u>",
                            "bot": {"content": "<b>", "rstrip": true, "__type": "AddedToken"}}})"}},
                      "<u><b> h"),
              (Tokens{600, 601, 73}));
    // New tokens are numbered in the order of the file; those with fields of their own replace the object's.
    EXPECT_EQ(
        encoded({{"tokenizer_config.json", config + R"("model_specific_special_tokens": {"bot_token": "<b>"},
                            "user_token": "<u>", "bot_token": "<c>"})"}},
                "<u><c>"),
        (Tokens{600, 601}));
    EXPECT_EQ(encoded({{"tokenizer_config.json", fast_class},
                       {"special_tokens_map.json", R"({"user_token": "<u>", "bot_token": "<b>"})"}},
                      "<u><b>"),
              (Tokens{600, 601}));
    EXPECT_EQ(
        encoded({{"tokenizer_config.json", config + R"("additional_special_tokens": ["<x>"]})"}}, "<x>"),
        (Tokens{600}));
    EXPECT_EQ(
        encoded({{"tokenizer_config.json", config + R"("split_special_tokens": true, "pad_token": "<p>"})"}},
                "<p>"),
        make_tokenizer(reference_file("plain"))->encode("<p>"));
}

static std::vector<Token> encoded_with(const std::string& config, const std::string& text,
                                       const std::string& map = "{}", const std::string& added = "") {
    const TemporaryFolder folder;
    const std::string change =
        added.empty() ? "[]" : R"([{"op": "add", "path": "/added_tokens/-", "value": )" + added + "}]";
    return make_tokenizer(write_folder(folder,
                                       {{"tokenizer_config.json",
                                         R"({"tokenizer_class": "PreTrainedTokenizerFast", )" + config + "}"},
                                        {"special_tokens_map.json", map}},
                                       change))
        ->encode(text);
}

TEST(TokenizerFolder, TheSpecialTokensMapIsNotReadBesideAnAddedTokensDecoder) {
    const std::string map = R"({"eos_token": "<x>", "pad_token": "<p>"})",
                      decoder = R"("added_tokens_decoder": {"600": {"content": "<x>", "special": true}})";
    EXPECT_EQ(encoded_with(decoder, "<x><p>h", map), (std::vector<Token>{600, 29, 81, 31, 73}));
    EXPECT_EQ(encoded_with(R"("model_max_length": 64)", "<x><p>h", map), (std::vector<Token>{600, 601, 73}));
    const TemporaryFolder folder;
    const auto tokenizer = make_tokenizer(
        write_folder(folder, {{"tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast",
                                "eos_token": "<｜pad｜>", )" +
                                                            decoder + "}"},
                              {"special_tokens_map.json", map}}));
    EXPECT_EQ(tokenizer->end_of_text(), 1);
}

// A token of white space was repeated for the white space that it had itself taken away.
TEST(TokenizerFolder, ATokenOfSpacesWithBothStripsIsFoundOnce) {
    const auto encoded = [](const std::string& flags) {
        return encoded_with(R"("added_tokens_decoder": {"600": {"content": "  ", )" + flags + "}}",
                            "a      b");
    };
    EXPECT_EQ(encoded(R"("lstrip": true, "rstrip": true)"), (std::vector<Token>{66, 600, 67}));
    for (const char* one : {R"("lstrip": true)", R"("rstrip": true)"})
        EXPECT_EQ(encoded(one), (std::vector<Token>{66, 600, 600, 600, 67})) << one;
}

TEST(TokenizerFolder, OfTasksWithOneContentTheLastSaysItsFlags) {
    using Tokens = std::vector<Token>;
    const std::string alone = R"({"content": "<q>", "single_word": true, "__type": "AddedToken"})";
    const Tokens found = {66, 600, 67}, spelled = {66, 29, 82, 31, 67};
    EXPECT_EQ(encoded_with(R"("bos_token": )" + alone + R"(, "eos_token": "<q>")", "a<q>b"), found);
    EXPECT_EQ(encoded_with(R"("bos_token": "<q>", "eos_token": )" + alone, "a<q>b"), spelled);
    EXPECT_EQ(  // the third is known
        encoded_with(R"("bos_token": "<q>", "eos_token": )" + alone + R"(, "pad_token": "<q>")", "a<q>b"),
        spelled);
}

// With split_special_tokens, a special token is spelled.
TEST(TokenizerFolder, ATokenIsSpecialByItsTaskOrIfItSaysSo) {
    using Tokens = std::vector<Token>;
    const std::string split = R"(, "split_special_tokens": true)";
    const auto listed = [&](const std::string& special) {
        return encoded_with(R"("additional_special_tokens": [{"content": "word", "normalized": true,
            "special": )" + special +
                                R"(, "__type": "AddedToken"}])" + split,
                            "wordh");
    };
    EXPECT_EQ(listed("false"), (Tokens{600, 73}));
    EXPECT_EQ(listed("true"), (Tokens{88, 503, 73}));

    const Tokens kept = {600, 73}, spelled = {29, 89, 31, 73};
    const std::string plain = R"({"id": 600, "content": "<x>", "special": false})",
                      special = R"({"id": 600, "content": "<x>", "special": true})",
                      decoder = R"("added_tokens_decoder": {"600": {"content": "<x>", "special": false}})",
                      task = R"("eos_token": "<x>")";
    EXPECT_EQ(encoded_with(decoder + split, "<x>h"), kept);
    EXPECT_EQ(encoded_with(decoder + ", " + task + split, "<x>h"), spelled);
    EXPECT_EQ(encoded_with(task + split, "<x>h", "{}", plain), spelled);
    // Once it has been special, it stays so.
    EXPECT_EQ(encoded_with(decoder + split, "<x>h", "{}", special), spelled);
    // With added_tokens_decoder, a task makes only those special that it lists.
    EXPECT_EQ(encoded_with(R"("added_tokens_decoder": {}, )" + task + split, "<x>h", "{}", plain), kept);
}

TEST(TokenizerFolder, ThePrefixSpaceIsThatOfTheClass) {
    const TemporaryFolder folder;
    const std::string prefix =
                          R"([{"op": "replace", "path": "/pre_tokenizer/add_prefix_space", "value": true}])",
                      gpt2 = R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": )";
    const auto has_space = [&](const std::string& config, const std::string& changes) {
        const auto tokenizer =
            make_tokenizer(write_folder(folder, {{"tokenizer_config.json", config}}, changes));
        return tokenizer->decode(tokenizer->encode("h")) == " h";
    };
    EXPECT_TRUE(has_space(fast_class, prefix));
    EXPECT_FALSE(has_space(gpt2 + "false}", prefix));
    EXPECT_TRUE(has_space(gpt2 + "true}", "[]"));
    const std::string digits = R"([{"op": "replace", "path": "/pre_tokenizer", "value": {"type": "Sequence",
        "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel", "add_prefix_space": false}]}}])";
    EXPECT_FALSE(has_space(fast_class, digits));
    EXPECT_TRUE(says(message_of<UsageError>([&] { has_space(gpt2 + "false}", digits); }), "GPT2Tokenizer"));
}

TEST(TokenizerFolder, PromptsGetWhatThePostProcessorAddsAndTextsDoNot) {
    const TemporaryFolder folder;
    const auto added = [&](const std::string& processor) {
        const auto tokenizer = make_tokenizer(write_folder(
            folder, {}, R"([{"op": "replace", "path": "/post_processor", "value": )" + processor + "}]"));
        EXPECT_EQ(tokenizer->encode("h"), (std::vector<Token>{73}));
        return tokenizer->encode_prompt("h");
    };
    const std::string pieces = R"({"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "end"}}])";
    EXPECT_EQ(added(R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "two"}}, )" +
                    pieces + R"(, "special_tokens": {"end": {"ids": [0]}, "two": {"ids": [1, 1]}}})"),
              (std::vector<Token>{1, 1, 73, 0}));
    EXPECT_EQ(added(R"({"type": "RobertaProcessing", "sep": ["x", 0], "cls": ["y", 1]})"),
              (std::vector<Token>{1, 73, 0}));
    EXPECT_EQ(added(R"({"type": "ByteLevel", "trim_offsets": false})"), (std::vector<Token>{73}));
}

TEST(TokenizerFolder, VocabJsonWithMergesIsReadAsGpt2Tokenizer) {
    const TemporaryFolder folder;
    const json plain = json::parse(read_file(reference_file("plain")));
    json vocabulary = plain["model"]["vocab"];
    std::string merges = "#version: 0.2\r\n\n";
    for (const json& merge : plain["model"]["merges"])
        merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\r\n";
    vocabulary.erase("<｜pad｜>");
    vocabulary["<pad>"] = 1;
    folder.write("vocab.json", vocabulary.dump());
    EXPECT_TRUE(
        says(message_of<UsageError>([&] { make_tokenizer(folder.path()); }), "has no merges.txt beside it"));
    folder.write("merges.txt", merges);
    const auto tokenizer = make_tokenizer(folder.path());
    const std::string text = "the theatre <|endoftext|> in 12";
    EXPECT_EQ(tokenizer->encode(text), make_tokenizer(reference_file("plain"))->encode(text));
    EXPECT_EQ(tokenizer->end_of_text(), 0);
    // The third names the class, by which the files are read in the folder of any model.
    EXPECT_EQ(tokenizer->files().size(), 3u);
    folder.write("tokenizer.json", "of another tokenizer");  // vocab.json can be named beside it
    const auto named = make_tokenizer(folder / "vocab.json");
    EXPECT_EQ(named->encode(text), tokenizer->encode(text));
    EXPECT_EQ(named->files().size(), 3u);
    std::filesystem::remove(folder / "tokenizer.json");
    folder.write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<b>"})");
    const auto begins = make_tokenizer(folder.path());
    EXPECT_EQ(begins->encode_prompt("h"), (std::vector<Token>{600, 73}));
}

// transformers 5 takes the vocabulary and the merges from the files, and all else from these classes.
TEST(TokenizerFolder, AClassHasItsOwnWords) {
    if (!can_normalize()) GTEST_SKIP() << "built without utf8proc, which Qwen's tokenizers need";
    const TemporaryFolder folder;
    const json plain = json::parse(read_file(reference_file("plain")));
    json vocabulary = plain["model"]["vocab"];
    vocabulary.erase("<｜pad｜>");
    vocabulary["<pad>"] = 1;
    std::string merges;
    for (const json& merge : plain["model"]["merges"])
        merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
    const std::string text = "in 1999 IT'S cafe\u0301\n\n  x", qwen(regex_of(SplitPattern::qwen));
    const json split = {
        {"type", "Split"}, {"pattern", {{"Regex", qwen}}}, {"behavior", "Isolated"}, {"invert", false}};
    const json words = {
        {"type", "Sequence"},
        {"pretokenizers",
         {split, {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    const std::string as_qwen =
        json{{{"op", "replace"}, {"path", "/pre_tokenizer"}, {"value", words}},
             {{"op", "replace"}, {"path", "/normalizer"}, {"value", {{"type", "NFC"}}}}}
            .dump();
    const std::vector<Token> expected =
        make_tokenizer(write_folder(folder, {{"tokenizer_config.json", fast_class}}, as_qwen))->encode(text);
    ASSERT_NE(expected, make_tokenizer(reference_file("plain"))->encode(text));

    const auto of_files = [&](const std::map<std::string, std::string>& files) {
        const TemporaryFolder slow;
        slow.write("vocab.json", vocabulary.dump());
        slow.write("merges.txt", merges);
        for (const auto& [name, content] : files) slow.write(name, content);
        return make_tokenizer(slow.path())->encode(text);
    };
    const auto class_of = [](const std::string& name) {
        return std::map<std::string, std::string>{
            {"tokenizer_config.json", json{{"tokenizer_class", name}}.dump()}};
    };
    EXPECT_EQ(of_files(class_of("Qwen2Tokenizer")), expected);
    EXPECT_EQ(of_files({{"config.json", R"({"model_type": "qwen3"})"}}), expected);
    EXPECT_EQ(of_files({{"config.json", R"({"model_type": "qwen3", "rope_theta": Infinity})"}}), expected);
    EXPECT_EQ(
        of_files({{"config.json", R"({"model_type": "llama", "tokenizer_class": "Qwen2TokenizerFast"})"}}),
        expected);
    EXPECT_EQ(of_files(class_of("CodeGenTokenizer")), of_files({}));
    for (const char* other : {"PreTrainedTokenizerFast", "CLIPTokenizer"})
        EXPECT_TRUE(says(message_of<UsageError>([&] { of_files(class_of(other)); }), other));

    for (const char* own : {"Qwen2Tokenizer", "Qwen2TokenizerFast"})
        EXPECT_EQ(make_tokenizer(write_folder(folder, class_of(own), as_qwen))->encode(text), expected);
    for (const char* other : {"GPT2Tokenizer", "GPTNeoXTokenizerFast", "RobertaTokenizer"})
        EXPECT_TRUE(says(
            message_of<UsageError>([&] { make_tokenizer(write_folder(folder, class_of(other), as_qwen)); }),
            other == std::string("GPTNeoXTokenizerFast") ? "GPTNeoXTokenizer" : other))
            << other;
    EXPECT_THROW(make_tokenizer(write_folder(folder, class_of("Qwen2Tokenizer"))), UsageError);
    std::filesystem::remove(folder / "tokenizer_config.json");
    EXPECT_THROW(make_tokenizer(write_folder(folder, {{"config.json", R"({"model_type": "qwen3"})"}})),
                 UsageError);
    const auto alone =
        make_tokenizer(write_folder(folder, {{"config.json", R"({"model_type": "qwen3"})"}}, as_qwen));
    EXPECT_EQ(alone->encode(text), expected);
    for (const char* model : {"codegen", "gpt_neox"})
        EXPECT_THROW(make_tokenizer(write_folder(
                         folder, {{"config.json", json{{"model_type", model}}.dump()}}, as_qwen)),
                     UsageError)
            << model;
    // Whatever class the files of a Qwen 2 name, it is opened with Qwen2Tokenizer.
    const std::map<std::string, std::string> of_qwen2 = {{"config.json", R"({"model_type": "qwen2"})"},
                                                         {"tokenizer_config.json", fast_class}};
    EXPECT_EQ(make_tokenizer(write_folder(folder, of_qwen2, as_qwen))->encode(text), expected);
    EXPECT_THROW(make_tokenizer(write_folder(folder, of_qwen2)), UsageError);
    EXPECT_EQ(json::parse(alone->files().back().text), (json{{"tokenizer_class", "Qwen2Tokenizer"}}));
}

// A copy beside another model's config.json must not be opened with the class of that model.
TEST(TokenizerFolder, ACopyNamesTheClassThatTheFolderImplied) {
    const TemporaryFolder folder;
    const auto copied = [&](const std::map<std::string, std::string>& files) {
        const auto tokenizer = make_tokenizer(write_folder(folder, files));
        for (const TextFile& file : tokenizer->files())
            if (file.name == "tokenizer_config.json") return json::parse(file.text);
        return json();
    };
    const std::string gpt2 = R"({"model_type": "gpt2"})", pad = R"({"pad_token": "<p>"})";
    EXPECT_EQ(copied({{"tokenizer_config.json", pad}}),
              (json{{"pad_token", "<p>"}, {"tokenizer_class", "PreTrainedTokenizerFast"}}));
    EXPECT_EQ(copied({{"tokenizer_config.json", pad}, {"config.json", gpt2}}),
              (json{{"pad_token", "<p>"}, {"tokenizer_class", "GPT2Tokenizer"}}));
    EXPECT_EQ(copied({{"config.json", gpt2}}), (json{{"tokenizer_class", "GPT2Tokenizer"}}));
    const std::string named = R"({"pad_token": "<p>", "tokenizer_class": "LlamaTokenizerFast"})";
    EXPECT_EQ(copied({{"tokenizer_config.json", named}}), json::parse(named));
}

TEST(TokenizerFolder, AClassHasItsOwnSpecialTokens) {
    const TemporaryFolder folder;
    const auto opened = [&](const std::string& name, const std::string& more, const std::string& changes) {
        return make_tokenizer(write_folder(
            folder, {{"tokenizer_config.json", R"({"tokenizer_class": ")" + name + "\"" + more + "}"}},
            changes));
    };
    const std::string user =
        R"([{"op": "add", "path": "/added_tokens/-", "value": {"id": 600, "content": "<u>"}}])";
    const std::string listed =
        R"(, "added_tokens_decoder": {"0": {"content": "<|endoftext|>"}, "1": {"content": "<｜pad｜>"}})";
    using Tokens = std::vector<Token>;
    EXPECT_EQ(opened("PreTrainedTokenizerFast", listed, user)->encode("<u>"), (Tokens{600}));
    EXPECT_EQ(opened("GPT2Tokenizer", "", user)->encode("<u>"), (Tokens{600}));
    EXPECT_EQ(opened("GPT2Tokenizer", listed, user)->encode("<u>"),
              make_tokenizer(reference_file("plain"))->encode("<u>"));

    if (!can_normalize()) GTEST_SKIP() << "built without utf8proc, which the other classes need";
    const json nfc = {{"op", "replace"}, {"path", "/normalizer"}, {"value", {{"type", "NFC"}}}};
    const json begin = {{"op", "replace"},
                        {"path", "/post_processor"},
                        {"value", {{"type", "RobertaProcessing"}, {"sep", {"x", 1}}, {"cls", {"y", 0}}}}};
    EXPECT_EQ(opened("GPT2Tokenizer", "", json{begin}.dump())->encode_prompt("h"), (Tokens{0, 73, 1}));
    EXPECT_EQ(opened("GPTNeoXTokenizer", "", json{nfc, begin}.dump())->encode_prompt("h"), (Tokens{73}));

    const json words = json::parse(R"({"type": "Sequence", "pretokenizers": [{"type": "Split",
        "behavior": "Isolated", "invert": false, "pattern": {}},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})");
    json qwen = {{"op", "replace"}, {"path", "/pre_tokenizer"}, {"value", words}};
    qwen["value"]["pretokenizers"][0]["pattern"]["Regex"] = regex_of(SplitPattern::qwen);
    const std::string changes = json{nfc, qwen}.dump(),
                      mask = R"(, "mask_token": {"content": "<m>", "rstrip": true, "__type": "AddedToken"})";
    const Tokens with_space = opened("Qwen2Tokenizer", mask, changes)->encode("<m> h"),
                 without = opened("PreTrainedTokenizerFast", mask, changes)->encode("<m> h");
    EXPECT_EQ(without, (Tokens{600, 73}));
    EXPECT_NE(with_space, without);
}

TEST(TokenizerFolder, EndsComeFromTheModelsFilesThenFromTheTokenizers) {
    const TemporaryFolder folder;
    struct Case {
        std::map<std::string, std::string> files;
        std::vector<int> ends;  // that end a generated text
        std::optional<int> between;
    };
    const std::string config = R"({"model_type": "gpt2", "vocab_size": 600, "eos_token_id": )",
                      none = config + "null}";
    const Case cases[] = {
        {{{"config.json", config + "7}"}}, {7}, 7},
        {{{"config.json", none}, {"generation_config.json", R"({"eos_token_id": [9, 8]})"}}, {9, 8}, 9},
        {{{"config.json", config + "7}"}, {"generation_config.json", R"({"eos_token_id": 8})"}}, {8}, 8},
        {{{"config.json", none}, {"special_tokens_map.json", R"({"eos_token": "<｜pad｜>"})"}}, {1}, 1},
        {{{"config.json", config + "7}"}, {"special_tokens_map.json", R"({"eos_token": "<｜pad｜>"})"}},
         {7},
         1},
        {{{"config.json", config + "50256}"}}, {0}, 0},  // a number that the model does not have
        {{}, {0}, 0}};
    for (const auto& [files, ends, between] : cases) {
        auto all = files;
        all["tokenizer_config.json"] = fast_class;
        const auto tokenizer = make_tokenizer_for("the model", 600, write_folder(folder, all));
        SCOPED_TRACE(json(files).dump());
        EXPECT_EQ(tokenizer->ends(), ends);
        EXPECT_EQ(tokenizer->end_of_text(), between);
    }
}

// Numbers past 16 bits were passed over without a word, and so was a damaged file.
TEST(TokenizerFolder, AModelsIdsMayBePast16BitsAndAreNotLost) {
    const TemporaryFolder folder;
    folder.write("config.json", R"({"vocab_size": 151936, "eos_token_id": 151643})");
    const std::string file =
        folder.write("generation_config.json", R"({"eos_token_id": [151645, 65536], "top_k": 20})");
    const ModelIds ids = read_model_ids(folder.path());
    EXPECT_EQ(ids.vocab_size, 151936);
    EXPECT_EQ(ids.config.ends, std::vector{151643});
    EXPECT_EQ(ids.generation.ends, (std::vector{151645, 65536}));
    EXPECT_EQ(ids.generation_settings, "\"top_k\"");
    folder.write("generation_config.json", R"({"eos_token_id": [298.0, -1, null], "pad_token_id": null})");
    EXPECT_EQ(read_model_ids(folder.path()).generation.ends, std::vector{298});
    for (const char* odd : {R"("298")", "true", "[[298]]", R"({"a": 1})", "298.5", "-2"}) {
        folder.write("generation_config.json", fmt::format(R"({{"eos_token_id": {}}})", odd));
        EXPECT_TRUE(
            says(message_of<UsageError>([&] { read_model_ids(folder.path()); }), file + ": eos_token_id is "))
            << odd;
    }
    folder.write("config.json", R"({"eos_token_id": 7, "loss": NaN})");  // as Python's json module writes it
    folder.write("generation_config.json", "{}");
    EXPECT_EQ(read_model_ids(folder.path()).config.ends, std::vector{7});
    for (const char* damaged : {R"({"eos_token_id": 1516)", "[151645]", ""}) {
        folder.write("generation_config.json", damaged);
        EXPECT_EQ(message_of<UsageError>([&] { read_model_ids(folder.path()); }),
                  file + ": is not a JSON object")
            << damaged;
    }
}

// A model that was trained further may have moved its end; a tokenizer given in its place has its own.
TEST(TokenizerFolder, AModelsEndsCountForItsOwnTokenizerOnly) {
    const TemporaryFolder tokenizer, model;
    const std::string path =
        write_folder(tokenizer, {{"tokenizer_config.json", fast_class},
                                 {"config.json", R"({"vocab_size": 600, "eos_token_id": 7})"}});
    model.write("config.json", R"({"model_type": "gpt2", "vocab_size": 600, "eos_token_id": 9})");
    const auto ends = [&] { return make_tokenizer_for(model.path(), 600, path)->ends(); };
    EXPECT_EQ(ends(), std::vector{9});
    model.write("tokenizer.json", read_file(reference_file("plain")));
    model.write("tokenizer_config.json", fast_class);
    EXPECT_EQ(ends(), std::vector{9});
    model.write("tokenizer.json", read_file(reference_file("merges_out_of_order")));
    EXPECT_EQ(ends(), std::vector{7});
}

TEST(TokenizerFolder, AModelMayLackAddedTokensButNotOthers) {
    const TemporaryFolder folder;
    const std::string path = write_folder(
        folder,
        {{"tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<p>"})"}});
    const auto tokenizer = make_tokenizer_for("the model", 600, path);
    EXPECT_EQ(tokenizer->vocab_size(), 601);
    EXPECT_EQ(tokenizer->encode("h"), (std::vector<Token>{73}));
    EXPECT_EQ(
        message_of<UsageError>([&] { tokenizer->encode("h<p>"); }),
        "a text contains the added token \"<p>\" with the number 600, but the model has a vocabulary of 600; "
        "expected texts without it, or a model with a row for it");
    EXPECT_EQ(make_tokenizer_for("the model", 640, path)->encode("<p>"), (std::vector<Token>{600}));
    EXPECT_THROW(make_tokenizer_for("the model", 599, path), UsageError);
    EXPECT_THROW(make_tokenizer_for("the model", 641, path), UsageError);
    folder.write("config.json", R"({"vocab_size": 50257})");  // the model that the tokenizer belongs to
    EXPECT_EQ(make_tokenizer_for("the model", 50257, path)->vocab_size(), 601);
}

TEST(NoTokenizer, ShowsTokensAsNumbersAndTakesNoText) {
    const std::unique_ptr<Tokenizer> none = make_tokenizer("none");
    EXPECT_EQ(none->decode(std::vector<Token>{0, 17, 65535}), "0 17 65535 ");
    EXPECT_TRUE(none->encode("").empty());
    EXPECT_TRUE(
        says(message_of<UsageError>([&] { none->encode("a"); }), "--tokenizer none tokenizes no text"));
    for (const int V : {1, 257, 50'000, 65'536})
        EXPECT_EQ(make_tokenizer_for("the model", V, "none")->name(), "none");
}
