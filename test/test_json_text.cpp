// JSON from outside: texts that are nested too deeply, and numbers that are not whole, are rejected by
// every reader of JSON.
#include "system/json_text.h"
#include "temporary_folder.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/data/document_stream.h"
#include "trainer/data/hellaswag.h"
#include "trainer/data/restartable_shards.h"
#include "trainer/models/model_file.h"
#include "trainer/tokenizer/tokenizer.h"

static std::string nested(int levels) { return std::string(levels, '[') + std::string(levels, ']'); }
static const std::string deep = nested(1'000'000);

TEST(ParseJson, TakesSixtyFourLevelsAndNoMore) {
    EXPECT_TRUE(parse_json(nested(64)).is_array());
    EXPECT_TRUE(parse_json(nested(65)).is_discarded());
    EXPECT_TRUE(parse_json("{\"a\": " + nested(64) + "}").is_discarded());
    EXPECT_TRUE(parse_json("{\"a\": \"" + nested(65) + "\"}").is_object());  // brackets in a text are text
    EXPECT_TRUE(parse_json("{\"a\": 1").is_discarded());
    EXPECT_TRUE(parse_json("").is_discarded());
}

// Neither the line of a text nor the folder of a model is then said to be something else.
TEST(ReadJson, NamesANumberThatIsOutOfRange) {
    EXPECT_EQ(read_json("{\"text\": 1e400}").problem, "a number is out of range");
    EXPECT_EQ(read_json(nested(65)).problem, "nested more than 64 levels deep");
    const TemporaryFolder folder;
    folder.write("config.json", "{\"model_type\": \"llama\", \"rope_theta\": 1e400}");
    EXPECT_EQ(message_of<UsageError>([&] { open_model(folder.path()); }),
              folder / "config.json" + ": a number is out of range");
    for (const char* text : {R"({"a": NaN})", R"({"a": [-Infinity]})", R"({"a": "\ud83d"})"}) {
        folder.write("config.json", text);
        EXPECT_EQ(message_of<UsageError>([&] { read_json_object(folder / "config.json"); }),
                  folder / "config.json" +
                      ": has NaN, Infinity or half a character (a lone surrogate), which JSON does not have")
            << text;
    }
}

TEST(WholeNumber, IsNeverMadeOfSomethingElse) {
    EXPECT_EQ(whole_number<int>(nlohmann::json::parse("2147483647")), 2147483647);
    EXPECT_EQ(whole_number<size_t>(nlohmann::json::parse("18446744073709551615")), ~size_t{0});
    for (const char* text : {"2147483648", "-1", "1.0", "1.5", "1e300", "\"1\"", "null", "true", "[1]"})
        EXPECT_THROW(whole_number<int>(nlohmann::json::parse(text)), nlohmann::json::type_error) << text;
}

// Copying or printing a value nested a million deep overflows the stack.
TEST(ParseJson, ReadersRefuseDeepNestingInsteadOfOverflowingTheStack) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    EXPECT_THROW(parse_hellaswag("{\"ctx\": \"x\", \"endings\": [\"a\", \"b\"], \"label\": " + deep + "}",
                                 "file", *byte),
                 UsageError);
    EXPECT_THROW(parse_document("{\"text\": " + deep + "}", {}), UsageError);
    EXPECT_THROW(parse_state("state.json", deep), UsageError);

    folder.write("config.json", "{\"model_type\": " + deep + "}");
    EXPECT_THROW(open_model(folder.path()), UsageError);
    folder.write("tokenizer.json", "{\"model\": {\"vocab\": " + deep + "}}");
    EXPECT_THROW(make_tokenizer(folder.path()), UsageError);
    folder.write("gpt2_encoder.json", "{\"a\": " + deep + "}");
    EXPECT_THROW(make_tokenizer("gpt2", folder.path()), UsageError);
}

TEST(RestartableShards, AManifestThatIsRefusedLeavesTheFolderUnlocked) {
    const TemporaryFolder folder;
    RestartableShardsOptions options;
    options.folder = folder.path();
    options.tokenizer = "byte";
    const auto open = [&] { RestartableShards{options}; };
    folder.write(
        "shards.json",
        R"({"tokenizer": "byte", "shard_tokens": 1e300, "val_tokens": 0, "complete": false, "shards": []})");
    for (int i = 0; i < 2; i++) EXPECT_TRUE(says(message_of<UsageError>(open), "is not a list of shards"));
}

TEST(HellaSwag, AnEmptyFileHoldsNoExample) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    EXPECT_TRUE(says(message_of<UsageError>([&] { read_hellaswag(folder.write("empty", ""), *byte); }),
                     "holds no example"));
}
