// Token shards: they are read back as written, other files are rejected by name, and a shard is complete
// or absent.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "temporary_folder.h"
#include "trainer/data/token_shard.h"

static std::vector<Token> some_tokens(size_t count) {
    std::vector<Token> tokens(count);
    for (size_t i = 0; i < count; i++) tokens[i] = static_cast<Token>(i * 2654435761u >> 7 & 0xFFFF);
    return tokens;
}

// The bytes of a shard, written from the format's description and not by the code under test.
static std::string shard_bytes(int32_t magic, int32_t version, int32_t count, size_t body_bytes) {
    std::string bytes(1024 + body_bytes, '\0');
    const int32_t header[3] = {magic, version, count};
    std::memcpy(bytes.data(), header, sizeof(header));
    return bytes;
}

TEST(TokenShard, ReadsWhatWasWritten) {
    const TemporaryFolder folder;
    // the last is larger than the writer's buffer
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1'000'003}}) {
        const std::vector<Token> tokens = some_tokens(count);
        TokenShardWriter writer(folder / "a.bin", 0x0123456789ABCDEF);
        writer.append(std::span(tokens).first(count / 2));
        writer.append(std::span(tokens).subspan(count / 2));
        writer.commit();
        const TokenShard shard(folder / "a.bin");
        EXPECT_EQ(shard.tokens(), tokens);
        EXPECT_EQ(shard.source_hash(), 0x0123456789ABCDEFu);
    }
}

TEST(TokenShard, HasTheBytesOfTheFormat) {
    const TemporaryFolder folder;
    const std::vector<Token> tokens = {1, 0xABCD};
    TokenShardWriter writer(folder / "a.bin");
    writer.append(tokens);
    writer.commit();
    std::string expected = shard_bytes(20240520, 1, 2, 4);
    expected.replace(1024, 4, "\x01\x00\xCD\xAB", 4);
    EXPECT_EQ(read_file(folder / "a.bin"), expected);
}

TEST(TokenShard, LargeVocabulariesHaveTheBytesOfTheSecondFormat) {
    const TemporaryFolder folder;
    const std::vector<Token> tokens = {1, 0xABCD, 0x12345};
    TokenShardWriter writer(folder / "a.bin", 0, 65'537);
    writer.append(tokens);
    writer.commit();
    std::string expected = shard_bytes(20240801, 7, 3, 12);
    expected.replace(1024, 12, "\x01\0\0\0\xCD\xAB\0\0\x45\x23\x01\0", 12);
    EXPECT_EQ(read_file(folder / "a.bin"), expected);
    const TokenShard shard(folder / "a.bin");
    EXPECT_EQ(shard.token_bytes(), 4u);
    EXPECT_EQ(shard.tokens(), tokens);
    std::vector<Token> last(1);
    shard.read(last, 2);
    EXPECT_EQ(last, std::vector<Token>{0x12345});
}

TEST(TokenShard, RefusesWhatIsNotAShardByName) {
    const TemporaryFolder folder;
    const auto message = [&](const std::string& bytes) {
        const std::string path = folder.write("bad.bin", bytes);
        const std::string text = message_of<UsageError>([&] { TokenShard shard(path); });
        EXPECT_TRUE(text.starts_with(path)) << text;
        return text.substr(path.size());
    };
    EXPECT_EQ(message(""), ": 0 bytes are too short for a token shard, whose header alone has 1024");
    EXPECT_EQ(message(std::string(1023, 'x')),
              ": 1023 bytes are too short for a token shard, whose header alone has 1024");
    const std::string foreign = message(shard_bytes(20240326, 1, 2, 4));
    EXPECT_TRUE(
        foreign.starts_with(": is not a token shard: magic number 20240326, expected 20240520; make "
                            "shards with tokenize; the name of a text must not end in .bin; "))
        << foreign;
    EXPECT_EQ(message(shard_bytes(20240801, 1, 2, 8)), ": token shard of version 1, expected 7");
    EXPECT_EQ(message(shard_bytes(20240801, 7, 2, 4)),
              ": 1028 bytes, expected 1032 for the 2 tokens of its header; the file is damaged");
    EXPECT_EQ(message(shard_bytes(20240520, 2, 2, 4)), ": token shard of version 2, expected 1");
    EXPECT_EQ(message(shard_bytes(20240520, 1, 3, 4)),
              ": 1028 bytes, expected 1030 for the 3 tokens of its header; the file is damaged");
    EXPECT_EQ(message(shard_bytes(20240520, 1, 1, 4)),
              ": 1028 bytes, expected 1026 for the 1 tokens of its header; the file is damaged");
    EXPECT_EQ(message(shard_bytes(20240520, 1, 1, 3)),
              ": 1027 bytes, expected 1026 for the 1 tokens of its header; the file is damaged");
    EXPECT_EQ(
        message(shard_bytes(20240520, 1, -1, 4)),
        ": 1028 bytes, expected 8589935614 for the 4294967295 tokens of its header; the file is damaged");

    EXPECT_EQ(message_of<UsageError>([&] { TokenShard shard(folder / "none.bin"); }),
              folder / "none.bin" + ": cannot be opened: No such file or directory");
    EXPECT_EQ(message_of<UsageError>([&] { TokenShard shard(folder.path()); }),
              folder.path() + ": is not a regular file");
}

TEST(TokenShard, LargerThanTwoGigabytesAndTwoBillionTokens) {  // a sparse file: it takes no room on the disk
    const TemporaryFolder folder;
    const size_t count = (size_t{1} << 31) + 1000;
    const std::string path = folder.write(
        "large.bin", shard_bytes(20240520, 1, static_cast<int32_t>(static_cast<uint32_t>(count)), 0));
    std::filesystem::resize_file(path, 1024 + 2 * count);
    const int file = open(path.c_str(), O_WRONLY);
    const uint16_t last = 4321;
    ASSERT_EQ(pwrite(file, &last, sizeof(last), static_cast<off_t>(1024 + 2 * (count - 1))), 2);
    close(file);
    const TokenShard shard(path);
    ASSERT_EQ(shard.size(), count);
    std::vector<Token> end(2);
    shard.read(end, count - 2);
    EXPECT_EQ(end, (std::vector<Token>{0, last}));
}

TEST(TokenShardWriter, LeavesNothingBehindWithoutCommit) {
    const TemporaryFolder folder;
    folder.write("a.bin", "the file of before");
    {
        TokenShardWriter writer(folder / "a.bin");
        writer.append(some_tokens(2'000'000));
        writer.close();
    }
    EXPECT_EQ(folder.files(), std::vector<std::string>{"a.bin"});
    EXPECT_EQ(read_file(folder / "a.bin"), "the file of before");
}

// A limit on the size of files stops the writer like a full disk: write() fails half-way.
TEST(TokenShardWriter, AFullDiskIsAnErrorThatNamesTheFile) {
    const TemporaryFolder folder;
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {100'000, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const std::string message = message_of<Error>([&] {
        TokenShardWriter writer(folder / "a.bin");
        writer.append(some_tokens(1'000'000));
        writer.commit();
    });
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    EXPECT_EQ(message, folder / "a.bin" + ": cannot be written: File too large");
    EXPECT_EQ(folder.files(), std::vector<std::string>{});
}

TEST(TokenShardWriter, AFolderThatIsNotThereIsAnErrorThatNamesTheFile) {
    EXPECT_EQ(message_of<Error>([] { TokenShardWriter writer("/nonexistent/a.bin"); }),
              "/nonexistent/a.bin: cannot be created: No such file or directory");
}

TEST(TokenShardSeries, SplitsTheStreamAtTheGivenNumberOfTokens) {
    const TemporaryFolder folder;
    const std::vector<Token> tokens = some_tokens(2500);
    {
        TokenShardSeries series(folder.path(), "train", 1000);
        for (size_t i = 0; i < tokens.size(); i += 700)
            series.append(std::span(tokens).subspan(i, std::min<size_t>(700, tokens.size() - i)));
        EXPECT_EQ(series.shards().size(), 3u);
        EXPECT_FALSE(std::filesystem::exists(folder / "train_000000.bin"));  // full, but not committed
        series.commit();
    }
    std::vector<Token> read;
    for (const auto& [name, size] :
         {std::pair("train_000000.bin", 1000), {"train_000001.bin", 1000}, {"train_000002.bin", 500}}) {
        const TokenShard shard(folder / name);
        EXPECT_EQ(shard.size(), static_cast<size_t>(size));
        for (const Token token : shard.tokens()) read.push_back(token);
    }
    EXPECT_EQ(read, tokens);
    EXPECT_EQ(folder.files().size(), 3u);
}

TEST(TokenShardSeries, AShardThatCannotGetItsNameTakesTheOthersWithIt) {
    const TemporaryFolder folder;
    std::filesystem::create_directories(folder / "a_000002.bin/taken");
    TokenShardSeries series(folder.path(), "a", 2);
    const std::vector<Token> tokens = {1, 2, 3, 4, 5};
    series.append(tokens);
    EXPECT_TRUE(says(message_of<Error>([&] { series.commit(); }), "a_000002.bin: cannot be given its name"));
    EXPECT_FALSE(std::filesystem::exists(folder / "a_000000.bin"));
    EXPECT_FALSE(std::filesystem::exists(folder / "a_000001.bin"));
}
