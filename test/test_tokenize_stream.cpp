// tokenize --stream, run as the programs for data sets run it: documents on standard input become shards,
// however often it is interrupted.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "program.h"
#include "trainer/data/document_stream.h"
#include "trainer/data/token_shard.h"
#include "trainer/tokenizer/tokenizer.h"
#include "write_shard.h"

// Document i of the test's stream: i words, in several writing systems; the first is empty.
static std::string document(int i) {
    std::string text;
    for (int word = 0; word < i; word++)
        text += (word % 3 ? " \"w\u00f6rd\"\n" : "\u6587\U0001F600 ") + std::to_string(word * i);
    return text;
}

static constexpr int document_count = 60;

static std::string lines(int from = 0, bool with_places = false) {
    std::string lines;
    for (int i = from; i < document_count; i++) {
        nlohmann::json line = {{"text", document(i)}, {"url", {{"deep", i}}}};
        if (with_places) line["place"] = "file.parquet:" + std::to_string(i);
        lines += line.dump() + "\n";
    }
    return lines;
}

static std::vector<Token> all_tokens() {
    std::vector<Token> tokens;
    const auto gpt2 = make_tokenizer("gpt2");
    for (int i = 1; i < document_count; i++) {  // a document without text is skipped
        tokens.push_back(50256);
        for (const Token token : gpt2->encode(document(i))) tokens.push_back(token);
    }
    return tokens;
}

class TokenizeStream : public testing::Test {
protected:
    ProgramResult stream(const std::string& lines, const std::string& arguments = "",
                         const std::string& before = "cd /") const {
        const std::string input = folder_.write("input.jsonl", lines);
        return run_program(TOKENIZE_PROGRAM, "--stream --out " + out_ + " " + arguments + " <" + input,
                           before);
    }
    // The one line of a rejected run.
    std::string errors(int exit_code, const std::string& lines, const std::string& arguments = "") const {
        const ProgramResult result = stream(lines, arguments);
        EXPECT_EQ(result.exit_code, exit_code) << result.errors;
        EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
        return result.errors;
    }
    // Everything in the output folder, by name.
    std::map<std::string, std::string> contents() const {
        std::map<std::string, std::string> contents;
        if (!std::filesystem::exists(out_)) return contents;
        for (const auto& entry : std::filesystem::directory_iterator(out_))
            contents[entry.path().filename()] = read_file(entry.path());
        return contents;
    }
    std::vector<Token> concatenated(const std::string& prefix = "") const {
        std::vector<std::pair<std::string, std::string>> shards;  // by number
        for (const auto& [name, bytes] : contents()) {
            if (name.starts_with(prefix) && name.ends_with(".bin"))
                shards.emplace_back(name.substr(name.size() - 10), out_ + "/" + name);
        }
        std::ranges::sort(shards);
        std::vector<Token> tokens;
        for (const auto& [number, path] : shards) {
            for (const Token token : tokens_in(path)) tokens.push_back(token);
        }
        return tokens;
    }

    // 1.6 MB of bytes, so that several shards are done before the input ends.
    static std::string long_lines() {
        std::string lines;
        for (int i = 0; i < 200; i++)
            lines += nlohmann::json{{"text",
                                     std::to_string(i) + std::string(8000, static_cast<char>('a' + i % 26))}}
                         .dump() +
                     "\n";
        return lines;
    }

    TemporaryFolder folder_;
    const std::string out_ = folder_ / "new/shards";
    const std::string small_ = "--tokenizer byte --shard-tokens 4000 --val-tokens 6000 ";
    const std::string long_ = "--tokenizer byte --shard-tokens 100000 --val-tokens 150000 ";
};

TEST_F(TokenizeStream, EqualsTheFilesTokenizedTogether) {
    std::string files;
    for (int i = 0; i < document_count; i++)
        files += " " + folder_.write("document" + std::to_string(i), document(i));
    ASSERT_TRUE(succeeded(run_program(TOKENIZE_PROGRAM, "--out " + folder_ / "files" + files)));
    const ProgramResult result = stream(lines(), "--val-tokens 0 --threads 3");
    ASSERT_TRUE(succeeded(result));
    const std::vector<Token> tokens = tokens_in(out_ + "/train_000000.bin");
    EXPECT_EQ(result.output, out_ + "/train_000000.bin: " + std::to_string(tokens.size()) + " tokens\n");
    EXPECT_EQ(tokens, all_tokens());
    ASSERT_EQ(tokens.front(), 50256);  // end-of-text stands before every document, in files only between them
    EXPECT_EQ(std::vector(tokens.begin() + 1, tokens.end()), tokens_in(folder_ / "files/train_000000.bin"));
}

TEST_F(TokenizeStream, BytesHaveNoEndOfTextAndTheFieldHasAnyName) {
    ASSERT_TRUE(succeeded(stream("{\"story\":\"one\"}\r\n\n  \n{\"story\":\"tw\\u00f6\"}",
                                 "--tokenizer byte --field story --val-tokens 2")));
    EXPECT_EQ(make_tokenizer("byte")->decode(tokens_in(out_ + "/val_000000.bin")), "on");
    EXPECT_EQ(make_tokenizer("byte")->decode(tokens_in(out_ + "/train_000001.bin")), "etw\u00f6");
}

TEST_F(TokenizeStream, EndOfTextInADocumentIsATokenOrIsSaid) {
    const std::string documents =
        "{\"text\":\"a<|endoftext|>b\"}\n{\"text\":\"b\"}\n{\"text\":\"<|endoftext|>a\"}\n";
    const ProgramResult counted = stream(documents, "--val-tokens 0 --threads 2");
    EXPECT_TRUE(succeeded(counted));
    EXPECT_TRUE(says(counted.errors,
                     "note: the texts contain <|endoftext|> 2 times, which gpt2 reads as ordinary "
                     "text; with --tokenizer gpt2-eot"));
    const ProgramResult read = stream(documents, "--val-tokens 0 --tokenizer gpt2-eot --prefix read_");
    EXPECT_TRUE(succeeded(read));
    EXPECT_FALSE(says(read.errors, "endoftext"));  // it may say how far it is
    EXPECT_EQ(tokens_in(out_ + "/read_train_000000.bin"),
              (std::vector<Token>{50256, 64, 50256, 65, 50256, 65, 50256, 50256, 64}));
}

TEST_F(TokenizeStream, ValidationComesFirstAndShardsHaveTheirSize) {
    const std::vector<Token> tokens = all_tokens();
    ASSERT_GT(tokens.size(), 5000);
    const ProgramResult result =
        stream(lines(), "--threads 2 --shard-tokens 1000 --val-tokens 1500 --prefix fineweb_");
    ASSERT_TRUE(succeeded(result));
    EXPECT_EQ(concatenated("fineweb_"), tokens);
    std::vector<std::string> names;
    for (const auto& [name, bytes] : contents()) names.push_back(name);
    EXPECT_TRUE(std::ranges::count(names, "fineweb_shards.json") == 1);
    EXPECT_EQ(tokens_in(out_ + "/fineweb_val_000000.bin").size(), 1000);
    EXPECT_EQ(tokens_in(out_ + "/fineweb_val_000001.bin").size(), 500);
    EXPECT_EQ(tokens_in(out_ + "/fineweb_train_000002.bin").size(), 1000);
    const size_t shards = 2 + (tokens.size() - 1500 + 999) / 1000;
    EXPECT_EQ(names.size(), shards + 1);
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), static_cast<long>(shards));
}

TEST_F(TokenizeStream, SplitsOfTheirOwnShareAFolder) {
    ASSERT_TRUE(succeeded(
        stream(lines(), "--threads 1 --tokenizer byte --shard-tokens 4000 --prefix s_ --split val")));
    ASSERT_TRUE(succeeded(
        stream(lines(30), "--threads 1 --tokenizer byte --shard-tokens 4000 --prefix s_ --split train")));
    std::string text;
    for (int i = 0; i < document_count; i++) text += document(i);
    EXPECT_EQ(make_tokenizer("byte")->decode(concatenated("s_val")), text);
    EXPECT_TRUE(std::filesystem::exists(out_ + "/s_train_000000.bin"));
    EXPECT_TRUE(std::filesystem::exists(out_ + "/s_train_shards.json"));
    EXPECT_TRUE(std::filesystem::exists(out_ + "/s_val_shards.json"));
}

// The input ends early at many places in turn: the result is the same as of an uninterrupted run, and
// finished shards are not written again.
TEST_F(TokenizeStream, GoesOnAfterEveryBreakAndNeverMakesAShardAgain) {
    const std::string all = long_lines();
    ASSERT_TRUE(succeeded(stream(all, long_)));
    const auto whole = contents();
    std::filesystem::remove_all(folder_ / "new");

    std::map<std::string, std::filesystem::file_time_type> written;
    for (size_t bytes = 0; bytes < all.size(); bytes += all.size() / 12) {
        const ProgramResult result = stream(all.substr(0, all.rfind('\n', bytes) + 1), long_ + "--until-end");
        EXPECT_EQ(result.exit_code, 1);
        EXPECT_TRUE(says(result.errors, "ended after line"));
        for (const auto& [name, bytes] : contents()) {
            EXPECT_FALSE(says(name, ".tmp-"));
            if (!name.ends_with(".bin")) continue;
            EXPECT_EQ(bytes, whole.at(name)) << name;
            const auto time = std::filesystem::last_write_time(out_ + "/" + name);
            EXPECT_EQ(written.emplace(name, time).first->second, time) << name;
        }
    }
    EXPECT_GT(written.size(), 8u);
    ASSERT_TRUE(succeeded(stream(all + "{\"end\": true}\n", long_ + "--until-end")));
    EXPECT_EQ(contents(), whole);
    const ProgramResult again = stream("this is not even read", long_);
    EXPECT_TRUE(succeeded(again));
    EXPECT_EQ(again.output, out_ + ": all shards are finished already\n");
    EXPECT_EQ(contents(), whole);
}

TEST_F(TokenizeStream, SigkillLosesOnlyTheShardBeingWritten) {
    const std::string all = long_lines();
    ASSERT_TRUE(succeeded(stream(all, long_)));
    const auto whole = contents();
    std::filesystem::remove_all(folder_ / "new");

    // The input stays open after its first two thirds; the program is killed when it is in the middle of a
    // shard there.
    const std::string part =
                          folder_.write("part.jsonl", all.substr(0, all.rfind('\n', all.size() * 2 / 3) + 1)),
                      fifo = folder_ / "fifo";
    const std::string wait =
        "for i in $(seq 4000); do sleep 0.05; test -e " + out_ + "/train_000006.bin && break; done; ";
    const std::string before = "mkfifo " + fifo + "; (cat " + part + "; " + wait +
                               "sleep 0.1; kill -9 $$; sleep 0.1) >" + fifo + " & true";
    const ProgramResult killed =
        run_program(TOKENIZE_PROGRAM, "--stream --out " + out_ + " " + long_ + "<" + fifo, before);
    EXPECT_EQ(killed.exit_code, -1);
    size_t finished = 0, left_over = 0;
    for (const auto& [name, bytes] : contents()) {
        left_over += name.find(".tmp-") != std::string::npos;
        if (!name.ends_with(".bin")) continue;
        EXPECT_EQ(bytes, whole.at(name)) << name;
        finished++;
    }
    EXPECT_GE(finished, 7u);
    EXPECT_EQ(left_over, 1u);
    const ProgramResult result = stream(all, long_);
    ASSERT_TRUE(succeeded(result));
    EXPECT_EQ(contents(), whole);
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'),
              static_cast<long>(whole.size() - 1 - finished));
}

TEST_F(TokenizeStream, DamagedAndMissingShardsAreMadeAgain) {
    ASSERT_TRUE(succeeded(stream(lines(), small_)));
    const auto whole = contents();
    std::filesystem::remove(out_ + "/train_000003.bin");
    EXPECT_TRUE(succeeded(stream(lines(), small_)));
    EXPECT_EQ(contents(), whole);
    std::filesystem::resize_file(out_ + "/val_000001.bin", 1100);
    EXPECT_TRUE(succeeded(stream(lines(), small_)));
    EXPECT_EQ(contents(), whole);
}

// A source that can begin in the middle gives each document's place, and sends none of the earlier ones.
TEST_F(TokenizeStream, PlacesLetTheInputBeginWhereTheShardsEnd) {
    const std::string places = small_ + "--place-field place ";
    ASSERT_TRUE(succeeded(stream(lines(0, true), places)));
    const auto whole = contents();
    const auto manifest = nlohmann::json::parse(whole.at("shards.json"));
    const std::string place = manifest["shards"][2]["document"];
    ASSERT_TRUE(place.starts_with("file.parquet:"));
    for (const auto& [name, bytes] : whole) {
        if (name >= "train_000003" && name.ends_with(".bin") && name.starts_with("train"))
            std::filesystem::remove(out_ + "/" + name);
    }
    const std::string rest = lines(std::stoi(place.substr(place.find(':') + 1)), true);
    ASSERT_TRUE(succeeded(stream(rest, places)));
    EXPECT_EQ(contents(), whole);
}

// Documents of a source whose own field "place" has two values, of about 16,000 bytes each.
static std::string stories(int count) {
    std::string lines;
    for (int i = 0; i < count; i++)
        lines += nlohmann::json{{"text", "story " + std::to_string(i) + std::string(16000, '.')},
                                {"place", i % 2 ? "Oslo" : "Lagos"},
                                {"id", 1000 - i}}
                     .dump() +
                 "\n";
    return lines;
}

// The numbers of the stories in the shards, in order.
static std::vector<int> stories_in(const std::vector<Token>& bytes) {
    const std::string text(bytes.begin(), bytes.end());
    std::vector<int> numbers;
    for (size_t at = text.find("story "); at != std::string::npos; at = text.find("story ", at + 1))
        numbers.push_back(std::stoi(text.substr(at + 6)));
    return numbers;
}

TEST_F(TokenizeStream, ADataSetsOwnFieldPlaceWasTakenForOurs) {
    std::vector<int> all(60);
    std::iota(all.begin(), all.end(), 0);
    const std::string options = "--tokenizer byte --shard-tokens 50000 --val-tokens 0 --until-end ";
    for (const char* place : {"", "--place-field id"}) {
        EXPECT_EQ(stream(stories(45), options + place).exit_code, 1);
        ASSERT_TRUE(std::filesystem::exists(out_ + "/train_000004.bin"));
        ASSERT_TRUE(succeeded(stream(stories(60) + "{\"end\": true}\n", options + place)));
        EXPECT_EQ(stories_in(concatenated()), all);
        std::filesystem::remove_all(folder_ / "new");
    }
    EXPECT_TRUE(succeeded(
        stream("{\"text\":\"abc\",\"place\":null}\n{\"text\":\"d\",\"place\":\"\"}", "--tokenizer byte")));
}

TEST_F(TokenizeStream, APlaceThatComesTwiceIsAnError) {
    const auto line = [&](const std::string& lines, const std::string& key) {
        return errors(2, lines, "--tokenizer byte --place-field " + key);
    };
    EXPECT_EQ(
        line(stories(5), "place"),
        "tokenize: standard input, line 3: the place \"Lagos\" (--place-field place) comes for the second "
        "time; expected a field that differs between documents\n");
    EXPECT_TRUE(says(line(stories(1) + "{\"text\":\"a\"}\n", "id"), "line 2: expected \"id\""));
    for (const char* place : {"null", "\"\"", "1.5", "[1]"}) {
        EXPECT_TRUE(says(line(std::string("{\"text\":\"a\",\"id\":") + place + "}", "id"),
                         "line 1: \"id\" is neither a whole number nor a string with a character"))
            << place;
    }
    EXPECT_TRUE(says(line("", "text"), "--place-field text: is the key of the text"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
}

// The lists of earlier versions name no place_field; those took "place" if a document had it.
TEST_F(TokenizeStream, StreamsOfEarlierVersionsGoOnOrAreRefusedByName) {
    const std::string options = "--tokenizer byte --shard-tokens 50000 --val-tokens 0 --until-end ";
    const auto interrupt = [&](const std::string& lines, const std::string& place) {
        std::filesystem::remove_all(folder_ / "new");
        EXPECT_EQ(stream(lines, options + place).exit_code, 1);
        auto list = nlohmann::json::parse(read_file(out_ + "/shards.json"));
        list.erase("place_field");
        std::ofstream(out_ + "/shards.json") << list;
    };
    const auto go_on = [&](const std::string& lines, const std::string& place) {
        const ProgramResult result = stream(lines + "{\"end\": true}\n", options + place);
        return result.exit_code == 0 ? "" : result.errors;
    };
    std::vector<int> all(60);
    std::iota(all.begin(), all.end(), 0);
    const std::string without_places = [] {
        std::string lines;
        for (int i = 0; i < 60; i++)
            lines += "{\"text\":\"story " + std::to_string(i) + std::string(16000, '.') + "\"}\n";
        return lines;
    }();
    interrupt(without_places.substr(0, without_places.rfind('\n', without_places.size() * 3 / 4) + 1), "");
    EXPECT_EQ(go_on(without_places, ""), "");
    EXPECT_EQ(stories_in(concatenated()), all);

    std::string with_places = stories(60);
    for (size_t i = 0, at = 0; (at = with_places.find("Lagos", at)) != std::string::npos; i += 2)
        with_places.replace(at, 5, "row " + std::to_string(i));
    for (size_t i = 1, at = 0; (at = with_places.find("Oslo", at)) != std::string::npos; i += 2)
        with_places.replace(at, 4, "row " + std::to_string(i));
    for (const char* place : {"", "--place-field place"}) {
        interrupt(with_places.substr(0, with_places.rfind('\n', with_places.size() * 3 / 4) + 1),
                  "--place-field place");
        EXPECT_TRUE(says(go_on(with_places, "--place-field id"), "what is now --place-field place"));
        EXPECT_EQ(go_on(with_places, place), "");
        EXPECT_EQ(stories_in(concatenated()), all);
    }
    interrupt(stories(45), "");
    EXPECT_TRUE(
        says(go_on(stories(60), ""), "the place \"Lagos\" (--place-field place) comes for the second time"));
}

TEST(PlaceMemory, RemembersTheLatestPlacesInBoundedMemory) {
    PlaceMemory memory(1024);
    for (int i = 0; i < 100'000; i++) {
        ASSERT_TRUE(memory.add(std::to_string(i)));
        ASSERT_FALSE(memory.add(std::to_string(std::max(0, i - 2047)))) << i;
    }
    EXPECT_TRUE(memory.add("0"));  // forgotten
}

TEST_F(TokenizeStream, BrokenInputIsOneLine) {
    const auto line = [&](const std::string& lines) { return errors(2, lines, "--tokenizer byte"); };
    const std::string good = "{\"text\":\"good\"}\n";
    EXPECT_EQ(
        line(good + "{\"text\":\"cut of"),
        "tokenize: standard input, line 2: expected a JSON object such as {\"text\": \"...\"} in "
        "UTF-8, found '{\"text\":\"cut of'; not JSON at column 16: missing closing quote; --skip-bad leaves "
        "such documents out and counts them\n");
    EXPECT_TRUE(says(line(good + "\n[1]\n"), "line 3: expected a JSON object"));
    EXPECT_TRUE(says(line(good + "{\"text\":\"\xff\"}\n"), "line 2: expected a JSON object"));
    EXPECT_TRUE(says(line(good + "{\"text\":7}\n"),
                     "line 2: expected a string, but \"text\" is 7 in '{\"text\":7}'"));
    EXPECT_TRUE(says(line("{\"txt\":\"a\"}\n"), "line 1: expected the string \"text\""));
    EXPECT_TRUE(says(line("{\"end\":true}\n" + good), "line 2: expected nothing after"));
    EXPECT_TRUE(says(line(""), "the input holds no text"));
    EXPECT_TRUE(says(line("{\"text\":\"a\"}\n"), "all 1 tokens of the input would be for validation"));
    EXPECT_TRUE(says(line(std::string(1 << 16, '[')), "expected a JSON object"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));  // none of them left anything behind
}

// The stream takes everything that Python's json.dumps writes and json.loads reads.
TEST_F(TokenizeStream, LinesOfPythonThatAreNoStrictJsonWereRefused) {
    const std::string lines = R"({"text": "a\ud83db", "score": NaN, "least": -Infinity, "NaN": "NaN"})"
                              "\n"
                              R"({"text": "\ud83d\ude00 \\ud83d \udc00\ud83d", "score": [Infinity, 1]})"
                              "\n";
    const ProgramResult result = stream(lines, "--tokenizer byte --val-tokens 0");
    ASSERT_TRUE(succeeded(result));
    EXPECT_EQ(
        result.errors,
        "tokenize: halves of characters (lone surrogates, such as \\ud83d) in 2 documents were replaced by "
        "U+FFFD\n");
    EXPECT_EQ(make_tokenizer("byte")->decode(TokenShard(out_ + "/train_000000.bin").tokens()),
              "a\uFFFDb\U0001F600 \\ud83d \uFFFD\uFFFD");
}

TEST_F(TokenizeStream, BadDocumentsAreLeftOutAndCountedOnRequest) {
    const std::string lines =
        "{\"text\":\"one \"}\n{\"text\":null}\n{\"txt\":\"a\"}\nno "
        "JSON\n{\"text\":\"caf\xE9\"}\n{\"text\":\"two\"}\n";
    EXPECT_EQ(
        errors(2, lines, "--tokenizer byte"),
        "tokenize: standard input, line 2: expected a string, but \"text\" is null in '{\"text\":null}'; "
        "--skip-bad leaves such documents out and counts them\n");
    const ProgramResult result = stream(lines, "--tokenizer byte --val-tokens 0 --skip-bad");
    ASSERT_TRUE(succeeded(result));
    EXPECT_EQ(
        result.errors,
        "tokenize: 4 documents were left out (--skip-bad); the first: standard input, line 2: expected a "
        "string, but \"text\" is null in '{\"text\":null}'\n");
    EXPECT_EQ(make_tokenizer("byte")->decode(TokenShard(out_ + "/train_000000.bin").tokens()), "one two");
    std::filesystem::remove_all(out_);
    EXPECT_EQ(stream("{\"txt\":\"a\"}\n", "--tokenizer byte --skip-bad").errors,
              "tokenize: 1 document was left out (--skip-bad); the first: standard input, line 1: expected "
              "the string "
              "\"text\" in '{\"txt\":\"a\"}'\ntokenize: the input holds no text; expected documents\n");
    // A place that comes twice is a fault of the whole input.
    std::filesystem::remove_all(out_);
    EXPECT_TRUE(says(errors(2, "{\"text\":\"a\",\"id\":1}\n{\"text\":\"b\",\"id\":1}\n",
                            "--tokenizer byte --val-tokens 0 --place-field id --skip-bad"),
                     "comes for the second time"));
}

TEST_F(TokenizeStream, AnotherStreamOrOtherOptionsAreRefused) {
    ASSERT_TRUE(succeeded(stream(lines(), small_)));
    EXPECT_TRUE(says(errors(2, lines(), "--tokenizer byte --shard-tokens 4001 --val-tokens 6000"),
                     "was begun with --shard-tokens 4000"));
    EXPECT_TRUE(says(errors(2, lines(), "--tokenizer byte --shard-tokens 4000 --val-tokens 4000"),
                     "was begun with --val-tokens 6000"));
    EXPECT_EQ(stream(lines(), "--tokenizer byte --shard-tokens 4000").output,
              out_ + ": all shards are finished already\n");
    EXPECT_TRUE(says(errors(2, lines(), "--tokenizer gpt2 --shard-tokens 4000 --val-tokens 6000"),
                     "was begun with --tokenizer byte"));
    EXPECT_TRUE(says(errors(2, lines(), small_ + "--field url"), "was begun with --field text"));
    EXPECT_TRUE(says(errors(2, lines(), small_ + "--place-field url"), "was begun without --place-field"));
    std::filesystem::remove(out_ + "/train_000003.bin");
    EXPECT_TRUE(
        says(errors(2, "{\"text\":\"a\"}\n", small_), "where the finished shards end, is not in the input"));
    std::string others;
    for (int i = 0; i < document_count; i++) others += "{\"text\":\"b\"}\n";
    EXPECT_TRUE(says(errors(2, others, small_), "expected the same documents as before"));
    for (const char* damage : {"", "{", "[]", "{\"tokenizer\":\"gpt2\"}"}) {
        std::ofstream(out_ + "/shards.json") << damage;
        EXPECT_TRUE(says(errors(2, lines(), small_), "is not a list of shards")) << damage;
    }
    std::filesystem::remove(out_ + "/shards.json");
    EXPECT_TRUE(says(errors(2, lines(), small_), "which no shards.json lists"));
}

TEST_F(TokenizeStream, AnInputShorterThanAShardBecomesShards) {
    const auto byte = make_tokenizer("byte");
    std::string text;
    for (int i = 0; i < document_count; i++) text += document(i);
    for (const std::string& shard_tokens : {std::string("100000000"), std::to_string(text.size())}) {
        const std::string options = "--tokenizer byte --shard-tokens " + shard_tokens;
        const ProgramResult result = stream(lines(), options);
        ASSERT_TRUE(succeeded(result));
        const size_t val = text.size() / 10;
        const std::string finished = out_ + "/val_000000.bin: " + std::to_string(val) + " tokens\n" + out_ +
                                     "/train_000001.bin: " + std::to_string(text.size() - val) + " tokens\n";
        // after that of a shard that was full and is missing now
        EXPECT_TRUE(result.output.ends_with(finished)) << result.output;
        EXPECT_EQ(byte->decode(tokens_in(out_ + "/val_000000.bin")), text.substr(0, val));
        EXPECT_EQ(byte->decode(tokens_in(out_ + "/train_000001.bin")), text.substr(val));
        // The same command finds the complete shards, and writes the missing ones again.
        const auto whole = contents();
        EXPECT_EQ(whole.size(), 3u);
        EXPECT_EQ(stream(lines(), options).output, out_ + ": all shards are finished already\n");
        for (const char* lost : {"/train_000001.bin", "/val_000000.bin"}) {
            std::filesystem::remove(out_ + lost);
            EXPECT_TRUE(succeeded(stream(lines(), options)));
            EXPECT_EQ(contents(), whole) << lost;
        }
        std::filesystem::remove_all(folder_ / "new");
    }
    const ProgramResult least = stream("{\"text\":\"ab\"}", "--tokenizer byte");
    EXPECT_EQ(least.output, out_ + "/val_000000.bin: 1 tokens\n" + out_ + "/train_000001.bin: 1 tokens\n")
        << least.errors;
}

// Three validation shards are finished before the lack of training data shows.
TEST_F(TokenizeStream, TooLargeAValidationLeavesNothingThatBlocksAnotherTry) {
    const std::string wrong = "--tokenizer byte --shard-tokens 1000 --val-tokens 1000000";
    EXPECT_TRUE(says(errors(2, lines(), wrong),
                     "tokens of the input would be for validation; expected more text, or fewer than "
                     "--val-tokens 1000000"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
    EXPECT_TRUE(succeeded(stream(lines(), "--tokenizer byte --shard-tokens 2000 --val-tokens 1000")));
}

// The state after a failure between the list and its first shard.
TEST_F(TokenizeStream, AListWithoutAnyOfItsShardsBlocksNothing) {
    ASSERT_TRUE(succeeded(stream(lines(), small_)));
    const auto whole = contents();
    for (const auto& [name, bytes] : whole) {
        if (name.ends_with(".bin")) std::filesystem::remove(out_ + "/" + name);
    }
    std::ofstream(out_ + "/train_000077.bin") << "not one of the list";
    EXPECT_TRUE(says(errors(2, lines(), "--tokenizer gpt2 --val-tokens 100"),
                     "already holds train_000077.bin, which no shards.json lists"));
    std::filesystem::remove(out_ + "/train_000077.bin");
    ASSERT_TRUE(succeeded(stream(lines(), "--tokenizer gpt2 --val-tokens 100")));
    EXPECT_EQ(concatenated(), all_tokens());
}

TEST_F(TokenizeStream, APrefixThatIsNoBeginningOfANameIsRefused) {
    for (const char* prefix : {"a/b_", "/", "'\xff_'"}) {
        EXPECT_TRUE(says(errors(2, lines(), std::string("--prefix ") + prefix),
                         "expected the beginning of a file's name, in UTF-8 and without /"));
        EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
    }
}

TEST_F(TokenizeStream, OptionsOfFilesAndOfStreamsDoNotMix) {
    EXPECT_TRUE(says(errors(2, "", "--val-fraction 0.1"), "--val-fraction excludes --stream"));
    EXPECT_TRUE(says(errors(2, "", "/etc/hostname"), "FILE excludes --stream"));
    EXPECT_TRUE(says(errors(2, "", "--split test"), "--split"));
    EXPECT_TRUE(says(errors(2, "", "--shard-tokens 0"), "--shard-tokens"));
    EXPECT_TRUE(says(errors(2, "", "--threads 0"), "--threads"));
    const ProgramResult result = run_program(TOKENIZE_PROGRAM, "--prefix x --out " + out_ + " /etc/hostname");
    EXPECT_EQ(result.errors, "tokenize: --prefix needs --stream\n");
}

TEST_F(TokenizeStream, ASignalWhileWaitingForInputIsOneLine) {
    const std::string fifo = folder_ / "fifo";
    // Sent, twice as by `timeout`, once the program, which replaces the shell, catches the signal (bit 14 of
    // SigCgt); it then gets no input for a while.
    const std::string wait =
        "for i in $(seq 1200); do grep -q 'SigCgt:.*[4567cdef]...$' /proc/$$/status && break; sleep 0.05; "
        "done; ";
    const std::string before = "mkfifo " + fifo + "; (" + wait +
                               "sleep 0.2; kill -TERM $$; kill -TERM $$; sleep 0.5) >" + fifo + " & true";
    const ProgramResult result =
        run_program(TOKENIZE_PROGRAM, "--tokenizer byte --stream --out " + out_ + " <" + fifo, before);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.errors, "tokenize: interrupted; the same command continues after the finished shards\n");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
}
