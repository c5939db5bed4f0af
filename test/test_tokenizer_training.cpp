// Training of tokenizers: the merges are those of Hugging Face's BpeTrainer, whatever the number of threads,
// and tokenize --train writes files that --tokenizer takes.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "program.h"
#include "system/data_directory.h"
#include "trainer/data/token_shard.h"
#include "trainer/data/tokenizer_training.h"
#include "trainer/tokenizer/tokenizer_files.h"

using nlohmann::json;

static ProgramResult run_tokenize(const std::string& arguments, const std::string& before = "cd /") {
    return run_program(TOKENIZE_PROGRAM, arguments, before);
}

// Merges by their texts, "left right".
static std::vector<std::string> merges_in(const std::string& tokenizer) {
    const json object = json::parse(tokenizer);
    std::vector<std::string> merges;
    for (const json& merge : object.at("model").at("merges"))
        merges.push_back(merge.is_string() ? merge.get<std::string>()
                                           : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    return merges;
}

static TokenizerTrainingOptions options_of(size_t vocabulary, int threads = 1) {
    return {.vocabulary = vocabulary,
            .special = {"<|endoftext|>"},
            .threads = threads,
            .read = [](size_t) {},
            .made = [](size_t) {}};
}

// test/reference/bpe/plain.json and the others are trained by tokenizers on the lines of wikitext2_valid.txt
// (dev/reference_tokenizer.py), with one special token more.
TEST(TokenizerTraining, MergesAreThoseOfHuggingFace) {
    const std::string text = read_file(data_directory() + "/wikitext2_valid.txt");
    const std::pair<const char*, SplitPattern> references[] = {{"plain", SplitPattern::gpt2},
                                                               {"gpt4", SplitPattern::gpt4},
                                                               {"nanochat", SplitPattern::nanochat},
                                                               {"qwen", SplitPattern::qwen}};
    for (const auto& [name, pattern] : references) {
        SCOPED_TRACE(name);
        TokenizerTrainingOptions options = options_of(599);
        options.pattern = pattern;
        TokenizerTraining training(options);
        for (size_t begin = 0; begin < text.size();) {
            const size_t end = std::min(text.find('\n', begin), text.size());
            training.append(std::string_view(text).substr(begin, end - begin));
            begin = end + 1;
        }
        EXPECT_EQ(merges_in(training.finish().tokenizer),
                  merges_in(read_file(PROJECT_ROOT "/test/reference/bpe/" + std::string(name) + ".json")));
    }
}

// The pairs "b c" and "a b" stand equally often; "a" has the lower number. Later, "ab c" and "a bc" spell one
// token, which both merges make.
TEST(TokenizerTraining, OfEqualPairsTheLowerNumbersComeFirst) {
    WordCounts words;
    words.add("abc", 2);
    EXPECT_EQ(train_merges(words, 258, [](size_t) {}).merges,
              (std::vector<std::pair<Token, Token>>{{'a' - '!', 'b' - '!'}, {256, 'c' - '!'}}));
    WordCounts two;
    two.add("xabc", 3);
    two.add("xab", 9);
    two.add("bcbc", 8);
    two.add("abc", 4);
    const TrainedMerges trained = train_merges(two, 262, [](size_t) {});
    for (size_t i = 256; i < trained.tokens.size(); i++)
        EXPECT_EQ(std::count(trained.tokens.begin(), trained.tokens.end(), trained.tokens[i]), 1);
    EXPECT_EQ(train_merges(WordCounts(), 300, [](size_t) {}).tokens.size(), 256u);
}

TEST(TokenizerTraining, DependsNeitherOnThreadsNorOnPieces) {
    const std::string path = data_directory() + "/tinyshakespeare.txt", text = read_file(path);
    TokenizerTraining whole(options_of(1000)), file(options_of(1000, 3));
    whole.append(text);
    file.append(TextPart{path});
    const TokenizerTraining::Result one = whole.finish(), other = file.finish();
    EXPECT_EQ(one.tokenizer, other.tokenizer);
    EXPECT_EQ(one.words, other.words);
    EXPECT_EQ(one.bytes, text.size());
}

TEST(TokenizerTraining, RareWordsAreDroppedBeyondTheLimit) {
    WordCounts words;
    for (int i = 0; i < 100; i++) words.add(std::to_string(i), i < 10 ? 5 : 1);
    EXPECT_EQ(words.keep(100), 0u);
    EXPECT_EQ(words.keep(50), 90u);  // those of one count go together
    EXPECT_EQ(words.size(), 10u);
    words.for_each([](std::string_view, uint64_t count) { EXPECT_EQ(count, 5u); });
}

TEST(TokenizeProgram, TrainsATokenizerThatItTakes) {
    const TemporaryFolder folder;
    const std::string text = data_directory() + "/tinyshakespeare.txt", out = folder / "new/tokenizer.json";
    const ProgramResult result = run_tokenize(
        "--train 600 --pattern nanochat --special '<|bos|>' --special '<|x|>' "
        "--out " +
        out + " " + text);
    ASSERT_TRUE(succeeded(result));
    EXPECT_TRUE(result.output.starts_with(out + ": 600 tokens from 1.1 MB of text with ")) << result.output;
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(folder / "new");
    EXPECT_EQ(tokenizer->vocab_size(), 600);
    EXPECT_EQ(tokenizer->end_of_text(), 598);
    EXPECT_EQ(tokenizer->begin_of_text(), 598);
    EXPECT_EQ(tokenizer->token_bytes(599), "<|x|>");
    const std::string whole = read_file(text);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(whole)), whole);
    EXPECT_EQ(tokenizer->encode("<|x|>"), std::vector<Token>{599});
    EXPECT_TRUE(is_refused(run_tokenize("--train 600 --out " + out + " " + text), {"exists already"}));
    EXPECT_TRUE(is_refused(run_tokenize("--train 600 --out " + folder / "x.json" + " " + text),
                           {"expected the path of a file tokenizer.json"}));
    const std::string another = " --out " + folder / "b/tokenizer.json" + " " + text;
    EXPECT_TRUE(
        is_refused(run_tokenize("--train 60000" + another), {"--train 60000", "the texts give only"}));
    EXPECT_TRUE(
        is_refused(run_tokenize("--train 256" + another), {"--train 256", "expected 257 to 4194304"}));
    EXPECT_TRUE(
        is_refused(run_tokenize("--train 600 --tokenizer gpt2" + another), {"--tokenizer excludes --train"}));
    EXPECT_TRUE(is_refused(run_tokenize("--pattern gpt4" + another), {"--pattern needs --train"}));
    EXPECT_FALSE(std::filesystem::exists(folder / "b"));
}

TEST(TokenizeProgram, TrainsATokenizerOnDocuments) {
    const TemporaryFolder folder;
    const std::string lines = folder.write("lines", "{\"text\": \"hello hello\"}\n{\"text\": \"hello\"}\n");
    ASSERT_TRUE(
        succeeded(run_tokenize("--train 262 --stream --out " + folder / "tokenizer.json" + " < " + lines)));
    EXPECT_EQ(make_tokenizer(folder / "tokenizer.json")->encode("hello").size(), 1u);
}

TEST(TokenizeProgram, AnInterruptedTrainingLeavesNothing) {
    const TemporaryFolder folder, scripts;
    // The input is open for longer than the three seconds after which the signal comes.
    const std::string script = scripts.write(
        "script", "(echo '{\"text\": \"hello\"}'; sleep 5) | timeout --preserve-status -s INT 3 '" +
                      std::string(TOKENIZE_PROGRAM) + "' --train 300 --stream --out " +
                      folder / "new/tokenizer.json" + "\n");
    const ProgramResult result = run_program("sh", script);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_TRUE(says(result.errors, "interrupted; nothing was written\n"));
    EXPECT_TRUE(folder.files().empty());
}

TEST(TokenizeProgram, TheBeginningTokenStandsBeforeEachText) {
    const TemporaryFolder folder;
    const std::string files = folder.write("a", "one") + " " + folder.write("b", "two");
    const auto tokens = [&](const std::string& options, const std::string& out, const std::string& input) {
        EXPECT_TRUE(succeeded(run_tokenize("--bos " + options + " --out " + folder / out + input)));
        return TokenShard(folder / out + "/train_000000.bin").tokens();
    };
    EXPECT_EQ(tokens("", "gpt2", " " + files), (std::vector<Token>{50256, 505, 50256, 11545}));
    const std::string lines = folder.write("lines", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
    EXPECT_EQ(tokens("--stream --split train", "stream", " < " + lines),
              (std::vector<Token>{50256, 505, 50256, 11545}));
    std::filesystem::copy_file(PROJECT_ROOT "/test/reference/bpe/plain.json", folder / "tokenizer.json");
    folder.write("tokenizer_config.json", R"({"bos_token": "<｜pad｜>", "eos_token": "<|endoftext|>"})");
    const std::unique_ptr<Tokenizer> plain = make_tokenizer(folder / "tokenizer.json");
    std::vector<Token> expected = {1};
    for (const Token token : plain->encode("one")) expected.push_back(token);
    expected.insert(expected.end(), {0, 1});
    for (const Token token : plain->encode("two")) expected.push_back(token);
    EXPECT_EQ(tokens("--tokenizer " + folder / "tokenizer.json", "own", " " + files), expected);
    EXPECT_TRUE(is_refused(run_tokenize("--bos --tokenizer byte --out " + folder / "byte" + " " + files),
                           {"--bos: the tokenizer byte has no token that begins a text"}));
}
