// The files beside token shards that name their tokenizer, and the bytes of text of each token.
#include <gtest/gtest.h>

#include <algorithm>

#include "program.h"
#include "temporary_folder.h"
#include "trainer/data/shard_tokenizer.h"
#include "write_shard.h"

namespace {

class ShardTokenizer : public testing::Test {
protected:
    // True if the tokens of the shard are taken to be bytes. Otherwise the note must name `maker`.
    bool are_bytes(const std::string& shard, const std::string& maker = "") {
        write_shard(folder_, shard, {1, 2, 3});
        std::vector<TokenShard> shards;
        shards.emplace_back(folder_ / shard);
        std::string notes;
        const std::vector<int> bytes = text_bytes_of_tokens(*make_tokenizer("byte"), shards,
                                                            [&](const std::string& line) { notes += line; });
        if (maker.empty()) {
            EXPECT_EQ(notes, "");
        } else {
            EXPECT_TRUE(says(notes, shard + " was made by the tokenizer " + maker + ", not by byte"));
        }
        return bytes == std::vector<int>(256, 1);
    }
    TemporaryFolder folder_;
};

TEST_F(ShardTokenizer, IsThatOfTheRunUnlessAFileSaysOtherwise) {
    EXPECT_TRUE(are_bytes("train_000000.bin"));
    EXPECT_TRUE(are_bytes("anything.bin"));
    EXPECT_EQ(write_shard_tokenizer(folder_.path(), *make_tokenizer("byte")),
              folder_ / "tokenizer_of_shards.json");
    EXPECT_TRUE(are_bytes("train_000000.bin"));
    folder_.write("tokenizer_of_shards.json", R"({"tokenizer": "gpt2"})");
    EXPECT_FALSE(are_bytes("val_000000.bin", "gpt2"));
    EXPECT_TRUE(are_bytes("fineweb_val_000000.bin")) << "of another program";
}

TEST_F(ShardTokenizer, ADamagedFileIsNotTakenForNone) {
    for (const char* const damaged :
         {"damaged", R"({"tokenizer": 7})", R"({"tokenizer": "byte", "shards": [7]})"}) {
        folder_.write("tokenizer_of_shards.json", damaged);
        write_shard(folder_, "val_000000.bin", {1, 2, 3});
        std::vector<TokenShard> shards;
        shards.emplace_back(folder_ / "val_000000.bin");
        std::string notes;
        EXPECT_TRUE(text_bytes_of_tokens(*make_tokenizer("byte"), shards, [&](const std::string& line) {
                        notes += line;
                    }).empty());
        EXPECT_TRUE(says(notes, "tokenizer_of_shards.json")) << damaged;
        EXPECT_TRUE(says(notes, "bits per byte are not known")) << damaged;
    }
}

// tokenize --stream keeps a list, whose tokenizer may be followed by an option.
TEST_F(ShardTokenizer, AListOfShardsComesFirstIfItNamesTheShard) {
    const auto list = [](const char* tokenizer, const char* file) {
        return fmt::format(R"({{"tokenizer": "{}", "shards": [{{"file": "{}"}}]}})", tokenizer, file);
    };
    folder_.write("tokenizer_of_shards.json", R"({"tokenizer": "byte"})");
    folder_.write("shards.json", list("bpe-0123 --bos", "train_000001.bin"));
    EXPECT_TRUE(are_bytes("train_000000.bin")) << "the list is of other shards";
    EXPECT_FALSE(are_bytes("train_000001.bin", "bpe-0123"));
    folder_.write("x_val_shards.json", list("gpt2", "x_val_000000.bin"));
    EXPECT_FALSE(are_bytes("x_val_000000.bin", "gpt2"));
    EXPECT_TRUE(are_bytes("x_train_000000.bin"));
}

// gpt2 and gpt2-eot have the same tokens, of which only the end of text stands for no text.
TEST(TextBytes, OfGpt2) {
    const TemporaryFolder folder;
    write_shard(folder, "train_000000.bin", {1, 2, 3});
    write_shard_tokenizer(folder.path(), *make_tokenizer("gpt2-eot"));
    std::vector<TokenShard> shards;
    shards.emplace_back(folder / "train_000000.bin");
    const auto gpt2 = make_tokenizer("gpt2");
    const std::vector<int> bytes = text_bytes_of_tokens(*gpt2, shards, [](const std::string&) { FAIL(); });
    ASSERT_EQ(bytes.size(), 50257u);
    EXPECT_EQ(bytes[50256], 0);
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0), 1);
    EXPECT_EQ(bytes[262], 4) << "\" the\"";
    EXPECT_TRUE(
        text_bytes_of_tokens(*make_tokenizer("none"), shards, [](const std::string&) { FAIL(); }).empty());
}

}  // namespace
