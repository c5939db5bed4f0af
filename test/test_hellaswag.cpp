// HellaSwag's files and batches: both formats give the same examples, damaged files are rejected in one
// line, and every ending is scored exactly once.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "system/data_directory.h"
#include "temporary_folder.h"
#include "trainer/data/hellaswag.h"

namespace {

using Examples = std::vector<HellaSwagExample>;

Examples parse(const std::string& bytes, const std::string& tokenizer = "byte") {
    return parse_hellaswag(bytes, "file", *make_tokenizer(tokenizer));
}

void append(std::string& bytes, const std::vector<uint16_t>& numbers) {
    bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(uint16_t));
}

// The format that llm.c's dev/data/data_common.py writes.
std::string eval_file(const Examples& examples) {
    std::string body;
    size_t longest = 0;
    for (const HellaSwagExample& example : examples) {
        std::vector<uint16_t> stream = {65535, 0, static_cast<uint16_t>(example.index),
                                        static_cast<uint16_t>(example.label),
                                        static_cast<uint16_t>(example.endings.size())};
        const auto add = [&](const std::vector<Token>& tokens) {
            stream.push_back(static_cast<uint16_t>(tokens.size()));
            for (const Token token : tokens) stream.push_back(static_cast<uint16_t>(token));
        };
        add(example.context);
        for (const auto& ending : example.endings) add(ending);
        stream[1] = static_cast<uint16_t>(stream.size() * sizeof(uint16_t));
        longest = std::max<size_t>(longest, stream[1]);
        append(body, stream);
    }
    std::vector<uint32_t> header(256);
    header[0] = 20240522;
    header[1] = 1;
    header[2] = static_cast<uint32_t>(examples.size());
    header[3] = static_cast<uint32_t>(longest);
    return std::string(reinterpret_cast<const char*>(header.data()), 1024) + body;
}

const Examples two_examples = {{7, 2, {10, 11, 12}, {{1}, {2, 3}, {4, 5, 6}, {7}}},
                               {9, 0, {20}, {{8, 9}, {1}, {2}, {3}}}};

void expect_equal(const Examples& actual, const Examples& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); i++) {
        EXPECT_EQ(actual[i].index, expected[i].index) << i;
        EXPECT_EQ(actual[i].label, expected[i].label) << i;
        EXPECT_EQ(actual[i].context, expected[i].context) << i;
        EXPECT_EQ(actual[i].endings, expected[i].endings) << i;
    }
}

// ----------------------------------------------------------------------------------------------------
// reading

// Token ids from transformers' GPT2Tokenizer: the context as it stands, endings with a space before them.
TEST(HellaSwagFile, PublishedLineBecomesGpt2Tokens) {
    const std::string line =
        R"({"ind": 24, "activity_label": "Roof shingle removal",)"
        R"( "ctx_a": "A man is sitting on a roof.", "ctx_b": "he", )"
        R"("ctx": "A man is sitting on a roof. he", "split": "val", "split_type": "indomain", "label": 1, )"
        R"("endings": ["is using wrap to wrap a pair of skis.", "starts pulling up roofing."],)"
        R"( "source_id": "activitynet~v_-JhWjGDPHMY"})";
    const Examples expected = {
        {24,
         1,
         {32, 582, 318, 5586, 319, 257, 9753, 13, 339},
         {{318, 1262, 14441, 284, 14441, 257, 5166, 286, 1341, 271, 13}, {4940, 10427, 510, 9753, 278, 13}}}};
    expect_equal(parse(line, "gpt2"), expected);
}

TEST(HellaSwagFile, ContextComesInTwoPartsToo) {
    const auto context = [](const std::string& fields) {
        return make_tokenizer("byte")->decode(
            parse("{" + fields + R"(, "endings": ["x", "y"], "label": "1"})")[0].context);
    };
    EXPECT_EQ(context(R"("ctx_a": "A man sits.", "ctx_b": "he")"), "A man sits. he");
    EXPECT_EQ(context(R"("ctx_a": "A man sits.", "ctx_b": "")"), "A man sits.");
    EXPECT_EQ(context(R"("ctx_a": "A man sits.")"), "A man sits.");
    EXPECT_EQ(context(R"("ctx_a": "A man sits.", "ctx": "whole")"), "whole");
}

TEST(HellaSwagFile, RealExamplesSayTheSameInBothFormats) {
    const TemporaryFolder folder;
    const auto tokenizer = make_tokenizer("gpt2");
    const Examples examples = read_hellaswag(data_directory() + "/hellaswag_val_300.jsonl", *tokenizer);
    ASSERT_EQ(examples.size(), 300U);
    EXPECT_EQ(examples[0].index, 11);
    EXPECT_EQ(examples[0].label, 3U);
    EXPECT_EQ(tokenizer->decode(examples[0].endings[2]), " writes on the board again.");
    expect_equal(read_hellaswag(folder.write("val.bin", eval_file(examples)), *make_tokenizer("byte")),
                 examples);
}

TEST(HellaSwagFile, BlankLinesAndWindowsLinesAreNoExamples) {
    const std::string line = R"({"ctx": "c", "endings": ["x", "y"], "label": 0})";
    EXPECT_EQ(parse(line + "\r\n\r\n\n" + line).size(), 2U);
}

// They became U+FFFD without a word.
TEST(HellaSwagFile, HalvesOfCharactersAreCounted) {
    std::vector<std::string> notes;
    const auto note = [&](const std::string& line) { notes.push_back(line); };
    const std::string whole = R"({"ctx": "\ud83d\ude00", "endings": ["x", "y"], "label": 0})"
                              "\n",
                      half = R"({"ctx": "c\ud83d", "endings": ["\ud83d", "y"], "label": 0})"
                             "\n";
    const auto tokenizer = make_tokenizer("byte");
    EXPECT_EQ(parse_hellaswag(whole + half + whole + half, "file", *tokenizer, note).size(), 4U);
    EXPECT_EQ(notes, std::vector<std::string>{
                         "file: halves of characters (lone surrogates, such as \\ud83d) in 2 examples were "
                         "replaced by U+FFFD"});
    notes.clear();
    parse_hellaswag(whole, "file", *tokenizer, note);
    EXPECT_TRUE(notes.empty());
}

struct BadFile {
    const char* name;
    std::string bytes;
    const char* complaint;
};
void PrintTo(const BadFile& file, std::ostream* out) { *out << file.name; }

class DamagedHellaSwagFile : public testing::TestWithParam<BadFile> {};
TEST_P(DamagedHellaSwagFile, IsRefusedInOneLine) {
    const std::string message = message_of<UsageError>([&] { parse(GetParam().bytes); });
    EXPECT_EQ(message.find("file: "), 0U) << message;
    EXPECT_TRUE(says(message, GetParam().complaint));
}

// The eval file of two_examples with number i of the stream, or of the header, changed.
std::string with_number(size_t i, uint16_t value) {
    std::string bytes = eval_file(two_examples);
    return bytes.replace(1024 + 2 * i, 2, reinterpret_cast<const char*>(&value), 2);
}
std::string with_header(size_t i, uint32_t value) {
    std::string bytes = eval_file(two_examples);
    return bytes.replace(4 * i, 4, reinterpret_cast<const char*>(&value), 4);
}
std::string json_line(const std::string& rest) {
    return R"({"ctx": "c", "endings": ["x", "y"], "label": 1})"
           "\n{" +
           rest + "}";
}

// The first example's stream: 0 marker, 1 bytes, 2 index, 3 label, 4 endings, 5 length of the context, 6-8, 9
// length of an ending, 10, 11 ...
INSTANTIATE_TEST_SUITE_P(
    EvalFiles, DamagedHellaSwagFile,
    testing::Values(
        BadFile{"HeaderOnlyInPart", eval_file(two_examples).substr(0, 1000), "too short"},
        BadFile{"Version", with_header(1, 2), "version 2, expected 1"},
        BadFile{"MoreExamplesThanThere", with_header(2, 0xffffffff),
                "holds 2 examples, but its header says 4294967295"},
        BadFile{"FewerExamplesThanThere", with_header(2, 1), "holds 2 examples, but its header says 1"},
        BadFile{"LongestTooShort", with_header(3, 20), "the header's longest example has 20"},
        BadFile{"NoMarker", with_number(0, 65534), "example 0: begins with 65534"},
        BadFile{"ExampleOfNoBytes", with_number(1, 0), "example 0: 0 bytes"},
        BadFile{"ExampleLongerThanTheLongest", with_number(1, 65534), "example 0: 65534 bytes"},
        BadFile{"ExampleShorterThanItsTokens", with_number(1, 20), "example 0: "},
        BadFile{"ExampleOfOddBytes", with_number(1, 37), "example 0: "},
        BadFile{"LabelOfNoEnding", with_number(3, 4), "example 0: label 4 of 4 endings"},
        BadFile{"OneEnding", with_number(4, 1), "example 0: 1 endings; expected 2 or more"},
        BadFile{"MoreEndingsThanThere", with_number(4, 60000), "example 0: "},
        BadFile{"LessEndingsThanThere", with_number(4, 3), "example 0: 4 bytes are left over"},
        BadFile{"EmptyContext", with_number(5, 0), "example 0: a context without tokens"},
        BadFile{"EndlessContext", with_number(5, 65535), "example 0: "},
        BadFile{"EmptyEnding", with_number(9, 0), "example 0: an ending without tokens"},
        BadFile{"CutInTheLastExample", eval_file(two_examples).substr(0, eval_file(two_examples).size() - 2),
                "2 bytes are missing"},
        BadFile{"BytesAfterTheLast", eval_file(two_examples) + std::string(1, '\0'), "1 bytes are missing"},
        BadFile{"NoExamples", eval_file({}), "holds no example"}),
    testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(
    Jsonl, DamagedHellaSwagFile,
    testing::Values(
        BadFile{"Empty", "", "holds no example"}, BadFile{"NotJson", "hello", "line 1: is not a JSON object"},
        BadFile{"AnArray", "[1]", "line 1: is not a JSON object"},
        BadFile{"Nested", std::string(1'000'000, '['), "line 1: is not"},
        BadFile{"InvalidUtf8", "{\"ctx\": \"\xff\"}", "line 1: is not a JSON object"},
        BadFile{"NoContext", json_line(R"("endings": ["x", "y"], "label": 0)"),
                "line 2: \"ctx\" is not a string"},
        BadFile{"ContextOfNumbers", json_line(R"("ctx": 3, "endings": ["x", "y"], "label": 0)"),
                "line 2: \"ctx\" is not a string"},
        BadFile{"EmptyContext", json_line(R"("ctx": "", "endings": ["x", "y"], "label": 0)"),
                "line 2: the context is empty"},
        BadFile{"NoEndings", json_line(R"("ctx": "c", "label": 0)"), "line 2: \"endings\" is not a list"},
        BadFile{"OneEnding", json_line(R"("ctx": "c", "endings": ["x"], "label": 0)"),
                "line 2: \"endings\" is not a list"},
        BadFile{"EndingsOfNumbers", json_line(R"("ctx": "c", "endings": ["x", 2], "label": 0)"),
                "line 2: \"endings\" holds"},
        BadFile{"NoLabel", json_line(R"("ctx": "c", "endings": ["x", "y"])"),
                "line 2: \"label\" is not the number"},
        BadFile{"LabelOfTheTestSplit", json_line(R"("ctx": "c", "endings": ["x", "y"], "label": "")"),
                "line 2: \"label\""},
        BadFile{"LabelOutOfRange", json_line(R"("ctx": "c", "endings": ["x", "y"], "label": 2)"),
                "line 2: \"label\""},
        BadFile{"NegativeLabel", json_line(R"("ctx": "c", "endings": ["x", "y"], "label": -1)"),
                "line 2: \"label\""},
        BadFile{"LabelWithJunk", json_line(R"("ctx": "c", "endings": ["x", "y"], "label": "1x")"),
                "line 2: \"label\""}),
    testing::PrintToStringParamName());

TEST(HellaSwagFile, NoPrefixOfAFileIsReadBeyondItsEnd) {
    const std::string whole = eval_file(two_examples);
    for (size_t size = 0; size < whole.size(); size++) {
        // AddressSanitizer watches its end
        const std::vector<char> exact(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
        EXPECT_THROW(parse_hellaswag({exact.data(), exact.size()}, "file", *make_tokenizer("byte")),
                     UsageError)
            << size;
    }
}

// ----------------------------------------------------------------------------------------------------
// batches

// Each example's endings as they arrive in the batches: inputs and (position, target) pairs of every row.
struct Arrived {
    std::vector<int> inputs;
    std::vector<std::pair<int, int>> targets;
    bool operator==(const Arrived&) const = default;
};
std::map<std::pair<size_t, size_t>, Arrived> arrivals(HellaSwag& hellaswag) {
    std::map<std::pair<size_t, size_t>, Arrived> found;
    for (size_t i = 0; i < hellaswag.batches(); i++) {
        const Batch& batch = hellaswag.at(i);
        int targets = 0;
        for (int b = 0; b < batch.B; b++) {
            const int *inputs = batch.inputs + b * batch.T, *target = batch.targets + b * batch.T;
            Arrived arrived;
            for (int t = 0; t < batch.T; t++) {
                if (target[t] != Batch::ignored) arrived.targets.emplace_back(t, target[t]);
            }
            targets += static_cast<int>(arrived.targets.size());
            if (static_cast<size_t>(b) >= hellaswag.rows(i).size()) {
                EXPECT_TRUE(arrived.targets.empty());
                continue;
            }
            const HellaSwag::Row& row = hellaswag.rows(i)[static_cast<size_t>(b)];
            EXPECT_EQ(row.first, arrived.targets.front().first);
            EXPECT_EQ(row.target_count, static_cast<int>(arrived.targets.size()));
            arrived.inputs.assign(inputs, inputs + row.length);
            for (int t = row.length; t < batch.T; t++) EXPECT_EQ(inputs[t], 0);
            EXPECT_TRUE(found.emplace(std::pair{row.example, row.ending}, arrived).second) << "twice";
        }
        EXPECT_EQ(batch.target_count, targets);
        std::set<int> order(batch.order, batch.order + batch.B * batch.T);
        EXPECT_EQ(order.size(), static_cast<size_t>(batch.B * batch.T));
    }
    return found;
}

TEST(HellaSwagBatches, EveryEndingComesOnceWithItsContextAtAnyBatchSize) {
    for (const int B : {1, 2, 3, 5, 8, 100}) {
        HellaSwag hellaswag(two_examples, B, 32, 100);
        EXPECT_EQ(hellaswag.shortened(), 0U);
        const auto found = arrivals(hellaswag);
        EXPECT_EQ(found.size(), 8U);
        EXPECT_EQ(found.at({0, 0}), (Arrived{{10, 11, 12}, {{2, 1}}})) << B;
        EXPECT_EQ(found.at({0, 2}), (Arrived{{10, 11, 12, 4, 5}, {{2, 4}, {3, 5}, {4, 6}}})) << B;
        EXPECT_EQ(found.at({1, 0}), (Arrived{{20, 8}, {{0, 8}, {1, 9}}})) << B;
        EXPECT_EQ(found.at({1, 3}), (Arrived{{20}, {{0, 3}}})) << B;
    }
}

TEST(HellaSwagBatches, ALongContextLosesItsBeginning) {
    HellaSwag hellaswag(two_examples, 3, 3, 100);
    EXPECT_EQ(hellaswag.shortened(), 2U);
    const auto found = arrivals(hellaswag);
    EXPECT_EQ(found.at({0, 0}), (Arrived{{10, 11, 12}, {{2, 1}}}));
    EXPECT_EQ(found.at({0, 1}), (Arrived{{11, 12, 2}, {{1, 2}, {2, 3}}}));
    EXPECT_EQ(found.at({0, 2}), (Arrived{{12, 4, 5}, {{0, 4}, {1, 5}, {2, 6}}}));
}

TEST(HellaSwagBatches, RefuseWhatTheModelCannotTake) {
    const std::string ending = message_of<UsageError>([] { HellaSwag(two_examples, 4, 2, 100); });
    EXPECT_EQ(ending, "HellaSwag example 0: an ending of 3 tokens does not fit into sequences of 2");
    const std::string context = message_of<UsageError>([] { HellaSwag(two_examples, 4, 8, 20); });
    EXPECT_TRUE(says(context, "HellaSwag example 1: token 20 is outside the model's vocabulary of 20"));
    EXPECT_NO_THROW(HellaSwag(two_examples, 4, 8, 21));
    message_of<UsageError>([] { HellaSwag(two_examples, 0, 8, 100); });
    message_of<UsageError>([] { HellaSwag(two_examples, 1 << 30, 8, 100); });
}

// ----------------------------------------------------------------------------------------------------
// choices

TEST(HellaSwagChoice, IsTheFirstOfTheGreatestAndNeverANaN) {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN(),
                     infinity = std::numeric_limits<double>::infinity();
    EXPECT_EQ(likeliest(std::vector{-3.0, -1.0, -2.0}), 1U);
    EXPECT_EQ(likeliest(std::vector{-3.0, -1.0, -1.0}), 1U);
    EXPECT_EQ(likeliest(std::vector{nan, -9.0, nan}), 1U);
    EXPECT_EQ(likeliest(std::vector{-infinity, -9.0}), 1U);
    EXPECT_EQ(likeliest(std::vector{nan, nan}), 2U);
}

TEST(HellaSwagChoice, SumAndMeanAreCountedApart) {
    const std::vector<EndingScores> scores = {{{-5, -6, -4, -9}, {-5, -3, -2, -9}},
                                              {{-5, -3, -8, -8}, {-1, -2, -8, -8}}};
    const HellaSwagResult result = count_right(two_examples, scores);
    EXPECT_EQ(result.accuracy, 0.5);
    EXPECT_EQ(result.accuracy_norm, 1.0);
    EXPECT_EQ(result.examples, 2U);
}

}  // namespace
