// The data loader: the tokens of a step depend on (seed, step) alone, every window occurs once an epoch,
// and errors reach the caller.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "counted_allocations.h"
#include "system/host_allocator.h"
#include "temporary_folder.h"
#include "trainer/data/data_files.h"
#include "trainer/data/data_loader.h"
#include "trainer/data/input_files.h"
#include "trainer/data/permutation.h"

// Token i of shard s is s*10000 + i, so a batch shows its source.
static constexpr int shard_stride = 10'000;
static constexpr int vocabulary = 65'536;

static TokenShard numbered_shard(const TemporaryFolder& folder, int index, size_t count) {
    std::vector<uint16_t> tokens(count);
    for (size_t i = 0; i < count; i++)
        tokens[i] = static_cast<uint16_t>(static_cast<size_t>(index) * shard_stride + i);
    const std::string path = folder / ("shard_" + std::to_string(index) + ".bin");
    TokenShardWriter writer(path);
    writer.append(tokens);
    writer.commit();
    return TokenShard(path);
}

static std::vector<TokenShard> numbered_shards(const TemporaryFolder& folder,
                                               std::initializer_list<size_t> counts) {
    std::vector<TokenShard> shards;
    for (const size_t count : counts)
        shards.push_back(numbered_shard(folder, static_cast<int>(shards.size()), count));
    return shards;
}

// The first token of each row: with numbered shards it names the window.
static std::vector<int> windows_of(const Batch& batch, int rows) {
    std::vector<int> first;
    for (int b = 0; b < rows; b++) first.push_back(batch.inputs[b * batch.T]);
    return first;
}
static std::vector<int> windows_of(const Batch& batch) { return windows_of(batch, batch.B); }

// The windows of a step in the order of its samples, gathered from every rank.
static std::vector<int> step_of_all_ranks(std::span<const TokenShard> shards, int B, int ranks, int T,
                                          size_t total_batch, int step, bool shuffle = true) {
    std::vector<int> samples;
    std::vector<std::unique_ptr<DataLoader>> loaders;
    for (int rank = 0; rank < ranks; rank++) {
        loaders.push_back(std::make_unique<DataLoader>(shards, DataLoaderOptions{.B = B,
                                                                                 .T = T,
                                                                                 .V = vocabulary,
                                                                                 .total_batch = total_batch,
                                                                                 .rank = rank,
                                                                                 .world_size = ranks,
                                                                                 .seed = 7,
                                                                                 .shuffle = shuffle}));
    }
    for (int micro = 0; micro < loaders[0]->micro_steps(); micro++)
        for (const auto& loader : loaders)
            for (const int window : windows_of(loader->at(step, micro))) samples.push_back(window);
    return samples;
}

TEST(Permutation, IsABijectionThatDependsOnSeedAndEpoch) {
    for (const uint64_t size : {1, 2, 3, 10, 255, 256, 257, 1000, 65'536, 100'003}) {
        std::vector<uint64_t> image;
        for (uint64_t i = 0; i < size; i++) image.push_back(Permutation(size, 1, 2)(i));
        std::vector<uint64_t> sorted = image, identity(size);
        std::sort(sorted.begin(), sorted.end());
        std::iota(identity.begin(), identity.end(), 0);
        EXPECT_EQ(sorted, identity) << size;
        if (size < 100) continue;
        int same_seed = 0, same_epoch = 0;
        for (uint64_t i = 0; i < size; i++) {
            same_seed += Permutation(size, 2, 2)(i) == image[i];
            same_epoch += Permutation(size, 1, 3)(i) == image[i];
        }
        // of two random permutations one point agrees on average; 12 has a probability below 1e-8
        EXPECT_LT(same_seed, 12) << size;
        EXPECT_LT(same_epoch, 12) << size;
    }
    const uint64_t large = (uint64_t{1} << 40) + 12'345;
    EXPECT_LT(Permutation(large, 1, 2)(large - 1), large);
}

TEST(Permutation, SmallOnesAreUniform) {
    // All 24 orders of four things, 24,000 epochs: a count's standard deviation is sqrt(24000 * 1/24 * 23/24)
    // = 31; five of them.
    std::map<std::vector<uint64_t>, int> counts;
    for (uint64_t epoch = 0; epoch < 24'000; epoch++) {
        const Permutation permutation(4, 5, epoch);
        counts[{permutation(0), permutation(1), permutation(2), permutation(3)}]++;
    }
    EXPECT_EQ(counts.size(), 24u);
    for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 155);
}

TEST(DataLoader, AWindowIsTTokensAndTheNext) {
    const TemporaryFolder folder;
    const auto shards = numbered_shards(folder, {23, 4, 17});  // T = 8: windows 0 8 | none | 20000 20008
    DataLoader loader(shards, {.B = 2, .T = 8, .V = vocabulary, .total_batch = 16, .shuffle = false});
    EXPECT_EQ(loader.windows(), 4u);
    // then the next epoch
    for (const std::vector<int>& expected : {std::vector<int>{0, 8}, {20'000, 20'008}, {0, 8}}) {
        const Batch& batch = loader.next();
        for (int b = 0; b < 2; b++)
            for (int t = 0; t < 8; t++) {
                EXPECT_EQ(batch.inputs[b * 8 + t], expected[b] + t);
                EXPECT_EQ(batch.targets[b * 8 + t], expected[b] + t + 1);
            }
        EXPECT_EQ(batch.target_count, 16);
    }
}

// A byte for each token: the first target of a window is its second token.
TEST(DataLoader, AMaskHidesTargets) {
    const TemporaryFolder folder;
    numbered_shard(folder, 0, 33);
    std::string mask(33, 1);
    for (const size_t token : {0, 3, 8, 9, 25, 26, 27, 28, 29, 30, 31, 32}) mask[token] = 0;
    folder.write("shard_0.mask", mask);
    std::vector<TokenShard> shards;
    shards.emplace_back(folder / "shard_0.bin");
    shards.push_back(numbered_shard(folder, 1, 17));  // windows 0 8 16 24 | 10000 10008
    ASSERT_TRUE(shards[0].has_mask());
    ASSERT_FALSE(shards[1].has_mask());
    const std::map<int, int> counts = {
        {0, 6}, {8, 7}, {16, 8}, {24, 0}, {shard_stride, 8}, {shard_stride + 8, 8}};
    for (const auto& [B, ranks] : {std::pair{1, 1}, {4, 1}, {2, 2}, {1, 4}}) {
        // by step: the number of targets counted, and the number that each batch reports
        std::map<int, int64_t> counted, told;
        for (int rank = 0; rank < ranks; rank++) {
            DataLoader loader(shards, {.B = B,
                                       .T = 8,
                                       .V = vocabulary,
                                       .total_batch = 32,
                                       .rank = rank,
                                       .world_size = ranks,
                                       .seed = 3});
            for (int step = 1; step <= 3; step++) {
                for (int micro = 0; micro < loader.micro_steps(); micro++) {
                    const Batch& batch = loader.at(step, micro);
                    int targets = 0;
                    for (int b = 0; b < B; b++) {
                        const int window = batch.inputs[b * 8];
                        targets += counts.at(window);
                        for (int t = 0; t < 8; t++) {
                            const bool hidden =
                                window < shard_stride && mask[static_cast<size_t>(window + t + 1)] == 0;
                            EXPECT_EQ(batch.targets[b * 8 + t], hidden ? Batch::ignored : window + t + 1);
                        }
                    }
                    EXPECT_EQ(batch.target_count, targets);
                    counted[step] += targets;
                    EXPECT_EQ(told.emplace(step, batch.step_targets).first->second, batch.step_targets)
                        << "others said otherwise";
                }
            }
        }
        EXPECT_EQ(told, counted) << B << " x " << ranks;
    }
    ValidationLoader validation(shards, 3, 8, vocabulary);
    EXPECT_EQ(validation.at(0).target_count, 6 + 7 + 8);
    EXPECT_EQ(validation.at(1).target_count, 0 + 8 + 8);

    DataLoader loader(shards, {.B = 6, .T = 8, .V = vocabulary, .total_batch = 48});
    EXPECT_EQ(loader.next().step_targets, 6 + 7 + 8 + 0 + 8 + 8);
    // A wrong number of bytes, and a value other than 0 and 1.
    EXPECT_EQ(message_of<UsageError>([&] { numbered_shard(folder, 0, 17); }),
              folder / "shard_0.mask: 33 bytes, expected one for each of the 17 tokens of " +
                  folder / "shard_0.bin");
    folder.write("shard_0.mask", std::string(12, '\1') + std::string(5, '\2'));
    std::vector<TokenShard> wrong;
    wrong.push_back(numbered_shard(folder, 0, 17));
    DataLoader reads(wrong, {.B = 2, .T = 8, .V = vocabulary, .total_batch = 16});
    EXPECT_NE(message_of<UsageError>([&] {
                  reads.next();
              }).find("shard_0.mask: byte 12 is 2; expected 1 for a token that counts"),
              std::string::npos);
}

TEST(DataLoader, EachWindowComesOnceAnEpoch) {
    const TemporaryFolder folder;
    const auto shards = numbered_shards(folder, {1001, 500, 8, 9, 3000});
    std::set<int> all;
    for (int shard = 0; shard < 5; shard++)
        for (size_t w = 0; w < (shards[shard].size() - 1) / 8; w++)
            all.insert(shard * shard_stride + static_cast<int>(w) * 8);
    const int W = 125 + 62 + 0 + 1 + 374;
    DataLoader loader(shards, {.B = 1, .T = 8, .V = vocabulary, .total_batch = 8, .seed = 3});
    ASSERT_EQ(loader.windows(), static_cast<uint64_t>(W));
    std::vector<std::vector<int>> epochs(3);
    for (std::vector<int>& epoch : epochs) {
        for (int i = 0; i < W; i++) epoch.push_back(loader.next().inputs[0]);
        EXPECT_EQ(std::set<int>(epoch.begin(), epoch.end()), all);
        EXPECT_FALSE(std::is_sorted(epoch.begin(), epoch.end()));
    }
    EXPECT_NE(epochs[0], epochs[1]);
    EXPECT_NE(epochs[1], epochs[2]);
}

TEST(DataLoader, TheSplitOfAStepDoesNotChangeItsSamples) {
    const TemporaryFolder folder;
    const auto shards = numbered_shards(folder, {1000, 777});  // 221 windows: steps of 16 straddle epochs
    for (const bool shuffle : {true, false}) {
        for (const int step : {1, 2, 14, 100}) {
            const std::vector<int> whole = step_of_all_ranks(shards, 16, 1, 8, 128, step, shuffle);
            ASSERT_EQ(whole.size(), 16u);
            for (const auto& [B, ranks] : {std::pair(8, 1), {4, 1}, {1, 1}, {4, 4}, {2, 4}, {1, 16}, {8, 2}})
                EXPECT_EQ(step_of_all_ranks(shards, B, ranks, 8, 128, step, shuffle), whole)
                    << "B " << B << " ranks " << ranks << " step " << step;
        }
    }
}

TEST(DataLoader, AStepIsTheSameHoweverOneGetsThere) {
    const TemporaryFolder folder;
    const auto shards = numbered_shards(folder, {5000});
    const DataLoaderOptions options{.B = 2, .T = 8, .V = vocabulary, .total_batch = 64, .seed = 11};
    std::vector<std::vector<int>> sequence;
    DataLoader first(shards, options);
    ASSERT_EQ(first.micro_steps(), 4);
    for (int i = 0; i < 40; i++) sequence.push_back(windows_of(first.next()));

    DataLoader again(shards, options);
    for (int i = 0; i < 40; i++) EXPECT_EQ(windows_of(again.at(1 + i / 4, i % 4)), sequence[i]) << i;
    for (const int i : {39, 0, 17, 17, 18, 3})
        EXPECT_EQ(windows_of(again.at(1 + i / 4, i % 4)), sequence[i]) << i;
    EXPECT_EQ(windows_of(again.next()), sequence[4]);

    DataLoaderOptions later = options;
    later.first_step = 6;
    DataLoader resumed(shards, later);
    for (int i = 20; i < 40; i++) EXPECT_EQ(windows_of(resumed.next()), sequence[i]) << i;

    DataLoaderOptions other = options;
    other.seed = 12;
    DataLoader reseeded(shards, other);
    EXPECT_NE(windows_of(reseeded.next()), sequence[0]);
}

TEST(DataLoader, ABatchStaysUntilTheSecondCallAfterIt) {
    const TemporaryFolder folder;
    const auto shards = numbered_shards(folder, {5000});
    DataLoader loader(shards, {.B = 2, .T = 8, .V = vocabulary, .total_batch = 16});
    std::vector<int> before;
    const Batch* previous = nullptr;
    for (int i = 0; i < 200; i++) {
        // a jump must not overwrite it either
        const Batch& batch = i % 50 == 49 ? loader.at(1, 0) : loader.next();
        // the thread has done all the work it may do
        if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        if (previous) { EXPECT_EQ(windows_of(*previous), before); }
        previous = &batch;
        before = windows_of(batch);
    }
}

TEST(DataLoader, AllocatesNothingAfterConstruction) {
    const TemporaryFolder folder;
    const auto shards = numbered_shards(folder, {5000, 400});
    DataLoader loader(shards, {.B = 2, .T = 8, .V = vocabulary, .total_batch = 64});
    ValidationLoader validation(shards, 4, 8, vocabulary);
    loader.next();  // the thread has started
    const size_t before = allocations;
    for (int i = 0; i < 1000; i++) loader.next();
    loader.at(1, 0);
    for (size_t i = 0; i < validation.batches(); i++) validation.at(i);
    EXPECT_EQ(allocations, before);
}

TEST(DataLoader, OrderSortsPositionsByTokenStably) {
    const TemporaryFolder folder;
    std::vector<uint16_t> tokens(10'000);
    // one token fills a batch; many repeat
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = static_cast<uint16_t>(i < 200 ? 7 : i * i % 31);
    {
        TokenShardWriter writer(folder / "a.bin");
        writer.append(tokens);
        writer.commit();
    }
    const std::vector<TokenShard> shards = open_data(folder / "a.bin", "", *make_tokenizer("byte")).train;
    DataLoader loader(shards, {.B = 3, .T = 33, .V = 31, .total_batch = 99, .shuffle = false});
    for (int i = 0; i < 20; i++) {
        const Batch& batch = loader.next();
        std::vector<int32_t> expected(99);
        std::iota(expected.begin(), expected.end(), 0);
        std::stable_sort(expected.begin(), expected.end(),
                         [&](int32_t a, int32_t b) { return batch.inputs[a] < batch.inputs[b]; });
        EXPECT_EQ(std::vector<int32_t>(batch.order, batch.order + 99), expected);
    }
}

TEST(DataLoader, BatchesLieWhereTheAllocatorPutsThem) {
    const TemporaryFolder folder;
    const auto shards = numbered_shards(folder, {500});
    std::map<void*, size_t> blocks;
    int freed = 0;
    const HostAllocator allocator = {[&](size_t bytes) {
                                         void* memory = std::malloc(bytes);
                                         blocks[memory] = bytes;
                                         return memory;
                                     },
                                     [&](void* memory) {
                                         freed++;
                                         std::free(memory);
                                     }};
    {
        DataLoader loader(shards, {.B = 2, .T = 8, .V = vocabulary, .total_batch = 16}, allocator);
        for (int i = 0; i < 10; i++) {
            const Batch& batch = loader.next();
            ASSERT_TRUE(blocks.contains(batch.inputs));
            EXPECT_EQ(blocks[batch.inputs], batch.bytes());
            EXPECT_EQ(batch.targets, batch.inputs + 16);
            EXPECT_EQ(batch.order, batch.targets + 16);
        }
        EXPECT_EQ(blocks.size(), BatchRing::slots);
    }
    EXPECT_EQ(freed, 3);
}

TEST(DataLoader, ReadsPastTwoGigabytes) {  // a sparse file: it takes no room on the disk
    const TemporaryFolder folder;
    const size_t count = (size_t{1} << 31) + 1'000'001;
    std::string header(1024, '\0');
    const uint32_t words[3] = {20240520, 1, static_cast<uint32_t>(count)};
    std::memcpy(header.data(), words, sizeof(words));
    const std::string path = folder.write("large.bin", header);
    std::filesystem::resize_file(path, 1024 + 2 * count);
    const size_t W = (count - 1) / 1000;
    const int file = open(path.c_str(), O_WRONLY);
    const uint16_t marks[1001] = {11, 12, 13};
    ASSERT_EQ(pwrite(file, marks, sizeof(marks), static_cast<off_t>(1024 + 2 * 1000 * (W - 1))),
              static_cast<ssize_t>(sizeof(marks)));
    close(file);

    std::vector<TokenShard> shards;
    shards.emplace_back(path);
    DataLoader loader(shards, {.B = 1, .T = 1000, .V = 50'257, .total_batch = 1000, .shuffle = false});
    ASSERT_EQ(loader.windows(), W);
    const Batch& batch = loader.at(static_cast<int>(W), 0);
    EXPECT_EQ(batch.inputs[0], 11);
    EXPECT_EQ(batch.inputs[1], 12);
    EXPECT_EQ(batch.targets[1], 13);
    EXPECT_EQ(loader.next().inputs[0], 0);  // the next epoch
}

TEST(DataLoader, ATokenOutsideTheVocabularyReachesTheCallerWithItsPlace) {
    const TemporaryFolder folder;
    const auto shards = numbered_shards(folder, {100});
    DataLoader loader(shards, {.B = 1, .T = 8, .V = 50, .total_batch = 8, .shuffle = false});
    for (int i = 0; i < 6; i++) EXPECT_EQ(loader.next().inputs[0], i * 8);  // tokens 0 to 48
    const std::string expected = shards[0].name() +
                                 ": token 56 at position 56 is outside the vocabulary of 50; was the file "
                                 "made with another tokenizer?";
    EXPECT_EQ(message_of<UsageError>([&] { loader.next(); }), expected);
    EXPECT_EQ(message_of<UsageError>([&] { loader.next(); }), expected);
    EXPECT_EQ(loader.at(1, 0).inputs[0], 0);  // other windows are still read
}

TEST(DataLoader, RefusesSizesThatDoNotFit) {
    const TemporaryFolder folder;
    const auto shards = numbered_shards(folder, {100, 50});
    const auto message = [&](const DataLoaderOptions& options) {
        return message_of<UsageError>([&] { DataLoader loader(shards, options); });
    };
    EXPECT_EQ(message({.B = 3, .T = 8, .V = vocabulary, .total_batch = 64}),
              "total batch of 64 tokens is not a multiple of 24 = 3 x 8 x 1 ranks");
    EXPECT_EQ(message({.B = 2, .T = 8, .V = vocabulary, .total_batch = 16, .world_size = 4}),
              "total batch of 16 tokens is not a multiple of 64 = 2 x 8 x 4 ranks");
    EXPECT_EQ(message({.B = 1, .T = 8, .V = vocabulary}),
              "total batch of 0 tokens is not a multiple of 8 = 1 x 8 x 1 ranks");
    EXPECT_EQ(message({.B = 0, .T = 8, .V = vocabulary, .total_batch = 8}),
              "batch size 0 must be positive, and 0 x 8 tokens fewer than 2^31");
    EXPECT_EQ(message({.B = 1, .T = -8, .V = vocabulary, .total_batch = 8}),
              "sequence length -8 and vocabulary 65536 must be positive");
    EXPECT_EQ(message({.B = 1, .T = 8, .V = vocabulary, .total_batch = 8, .rank = 2, .world_size = 2}),
              "rank 2 of 2 processes does not exist");
    EXPECT_EQ(message({.B = 1, .T = 100, .V = vocabulary, .total_batch = 100}),
              shards[0].name() +
                  ": 100 tokens are too few for a sequence of 100 and its next token; use a longer text or a "
                  "shorter sequence");
}

TEST(DataLoader, EndsAtOnce) {
    const TemporaryFolder folder;
    const auto shards = numbered_shards(folder, {5000});
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 200; i++) {
        DataLoader loader(shards, {.B = 2, .T = 8, .V = vocabulary, .total_batch = 16});
        if (i % 2) loader.next();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(ValidationLoader, GoesThroughEveryWindowInFileOrderAndPadsTheLastBatch) {
    const TemporaryFolder folder;
    const auto shards = numbered_shards(folder, {41, 17});  // 5 + 2 windows of 8
    ValidationLoader loader(shards, 3, 8, vocabulary);
    ASSERT_EQ(loader.batches(), 3u);
    for (int pass = 0; pass < 2; pass++) {
        EXPECT_EQ(windows_of(loader.at(0)), (std::vector<int>{0, 8, 16}));
        EXPECT_EQ(windows_of(loader.at(1)), (std::vector<int>{24, 32, 10'000}));
        const Batch& last = loader.at(2);
        EXPECT_EQ(windows_of(last, 1), std::vector<int>{10'008});
        EXPECT_EQ(last.target_count, 8);
        EXPECT_EQ(last.targets[7], 10'016);
        for (int i = 8; i < 24; i++) {
            EXPECT_EQ(last.inputs[i], 0);
            EXPECT_EQ(last.targets[i], Batch::ignored);
        }
    }
    EXPECT_EQ(ValidationLoader(shards, 3, 8, vocabulary, 2).batches(), 2u);
    EXPECT_EQ(ValidationLoader(shards, 3, 8, vocabulary, 100).batches(), 3u);
}

static std::string text_of(const std::vector<TokenShard>& shards, const Tokenizer& tokenizer) {
    std::string text;
    for (const TokenShard& shard : shards) text += tokenizer.decode(shard.tokens());
    return text;
}

TEST(DataFiles, ShardsAreTakenInTheOrderOfTheirNames) {
    const TemporaryFolder folder;
    for (const int index : {2, 0, 1}) numbered_shard(folder, index, 20);
    const DataSplits data =
        open_data(folder / "shard_*.bin", folder / "shard_1.bin", *make_tokenizer("byte"));
    ASSERT_EQ(data.train.size(), 3u);
    for (int i = 0; i < 3; i++) EXPECT_EQ(data.train[i].tokens()[0], i * shard_stride);
    ASSERT_EQ(data.val.size(), 1u);
    EXPECT_EQ(data.val[0].tokens()[0], shard_stride);
    EXPECT_TRUE(open_data(folder / "shard_*.bin", "", *make_tokenizer("byte")).val.empty());
}

TEST(DataFiles, APatternPassesOverCaches) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    folder.write("a.txt", "one");
    folder.write("b.txt", "two");
    for (int run = 0; run < 2; run++) EXPECT_EQ(text_of(open_split(folder / "*", *byte), *byte), "onetwo");
    // unless it is named
    EXPECT_EQ(text_of(open_data(folder / "a.txt.byte.cache.bin", "", *byte).train, *byte), "one");
}

TEST(DataFiles, ATextIsATextWhateverItsName) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    for (const char* name : {"notes.md", "README", "page.html", "upper.TXT"}) {
        const std::string path = folder.write(name, "text of nine words, held out by its last tenth");
        EXPECT_EQ(text_of(open_split(path, *byte), *byte), "text of nine words, held out by its last tenth")
            << name;
        EXPECT_EQ(open_data(path, "", *byte).val.size(), 1u) << name;
    }
    // A file without the usual ending is a shard, too, but one called .txt is read as a text.
    const std::string shard = read_file(numbered_shard(folder, 0, 20).name());
    EXPECT_EQ(open_split(folder.write("tokens", shard), *byte)[0].size(), 20u);
    EXPECT_EQ(open_split(folder.write("tokens.txt", shard), *byte)[0].size(), shard.size());
    const std::string picture =
        folder.write("picture.png", std::string("\x89PNG\r\n\x1A\n\0\0\0\rIHDR\0\0\1\0", 20));
    EXPECT_EQ(
        message_of<UsageError>([&] { open_data(picture, "", *byte); }),
        picture +
            ": is neither text nor a token shard; expected a file of UTF-8 text, or what tokenize wrote");
}

TEST(DataFiles, AFolderIsTheTextsInIt) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    for (const char* name : {"docs", "docs/deep", "docs/.git"})
        std::filesystem::create_directory(folder / name);
    folder.write("docs/a.md", "one, ");
    folder.write("docs/deep/b", "two, ");
    folder.write("docs/z.txt", "three");
    folder.write("docs/.git/config", "hidden");
    folder.write("docs/.hidden", "hidden");
    folder.write("docs/model.bin", std::string(2000, '\1'));
    folder.write("docs/picture.png", std::string(100, '\0'));
    std::vector<std::string> notes;
    const DataOptions options{.note = [&](const std::string& line) { notes.push_back(line); }};
    // caches once
    for (int run = 0; run < 2; run++)
        EXPECT_EQ(text_of(open_split(folder / "docs", *byte, options), *byte), "one, two, three");
    ASSERT_EQ(notes.size(), 2u);
    EXPECT_EQ(notes[0], folder / "docs" +
                            ": 2 of its files are neither text nor token shard, and left out: " +
                            folder / "docs/model.bin" + " and others");
    // A file that is named twice is read once.
    EXPECT_EQ(text_of(open_split("{" + folder / "docs" + "," + folder / "docs/a.md" + "}", *byte), *byte),
              "one, two, three");
}

TEST(DataFiles, SeveralValuesAreOnePattern) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    folder.write("a,b{c}.md", "one, ");
    folder.write("d[1]*~.md", "two, ");
    folder.write("e\\f.md", "three, ");
    folder.write("plain.txt", "four");
    const std::vector<std::string> values = {folder / "a,b{c}.md", folder / "d[1]*~.md", folder / "e\\f.md",
                                             folder / "p*.txt"};
    EXPECT_EQ(text_of(open_split(one_pattern("--train-data", values), *byte), *byte),
              "one, two, three, four");
    EXPECT_EQ(one_pattern("--train-data", {"not there"}), "not there");  // opening it gives the error
    EXPECT_EQ(message_of<UsageError>([&] {
                  one_pattern("--train-data", {folder / "plain.txt", "no.bin"});
              }),
              "--train-data: no.bin is not there; expected files, folders, or patterns in quotes");
}

TEST(DataFiles, ALoneTextHoldsOutItsLastTenth) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    std::string text;
    for (int i = 0; i < 1000; i++) text += std::to_string(i) + ' ';
    const std::string path = folder.write("a.txt", text);
    const DataSplits lone = open_data(path, "", *byte);
    const size_t cut = text.size() * 9 / 10;
    EXPECT_EQ(text_of(lone.train, *byte), text.substr(0, cut));
    EXPECT_EQ(text_of(lone.val, *byte), text.substr(cut));

    const DataSplits given = open_data(path, folder.write("b.txt", "other"), *byte);
    EXPECT_EQ(text_of(given.train, *byte), text);
    EXPECT_EQ(text_of(given.val, *byte), "other");
    const DataSplits two = open_data(folder / "*.txt", "", *byte);
    EXPECT_EQ(text_of(two.train, *byte) + text_of(two.val, *byte), text + "other");
    const TokenShard shard = numbered_shard(folder, 0, 20);
    EXPECT_TRUE(open_data("{" + path + "," + shard.name() + "}", "", *byte).val.empty());

    // 9 of 10 bytes would cut the last character in two.
    const DataSplits unicode = open_data(folder.write("c.txt", "1234567\xE2\x82\xAC"), "", *byte);
    EXPECT_EQ(text_of(unicode.train, *byte), "1234567");
    EXPECT_EQ(text_of(unicode.val, *byte), "\xE2\x82\xAC");
}

TEST(DataFiles, SeveralTextsHoldOutTheLastTenthOfAllOfThem) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    const auto split = [&](const std::vector<size_t>& sizes) {
        const std::string texts = folder / fmt::format("{}", sizes.size());
        std::filesystem::create_directory(texts);
        for (size_t i = 0; i < sizes.size(); i++)
            std::ofstream(fmt::format("{}/{}.md", texts, i))
                << std::string(sizes[i], static_cast<char>('a' + i));
        const DataSplits data = open_data(texts, "", *byte);
        return text_of(data.train, *byte) + "|" + text_of(data.val, *byte);
    };
    EXPECT_EQ(split({10, 9, 1}), std::string(10, 'a') + std::string(8, 'b') + "|bc");
    EXPECT_EQ(split({18, 2}), std::string(18, 'a') + "|bb");
    EXPECT_EQ(split({0, 5, 0, 5}), "bbbbbdddd|d");
    // Nine tenths end within the second of these characters.
    const DataSplits between =
        open_data("{" + folder.write("p", "12345€€") + "," + folder.write("q", "z") + "}", "", *byte);
    EXPECT_EQ(text_of(between.train, *byte) + "|" + text_of(between.val, *byte), "12345€|€z");
    for (const char* name : {"x", "y"}) folder.write(name, "");
    EXPECT_EQ(
        message_of<UsageError>([&] { open_data("{" + folder / "x" + "," + folder / "y" + "}", "", *byte); }),
        folder / "x" + ": 0 bytes of text are too few to hold out a tenth of them");
}

TEST(DataFiles, ATextIsTokenizedOnceAndAgainWhenItChanges) {
    const TemporaryFolder folder;
    const auto gpt2 = make_tokenizer("gpt2"), byte = make_tokenizer("byte");
    const std::string path = folder.write("a.txt", "some words of a text"), cache = path + ".gpt2.cache.bin";
    const std::string val = folder.write("val.txt", "validation");
    EXPECT_EQ(text_of(open_data(path, val, *gpt2).train, *gpt2), "some words of a text");
    ASSERT_TRUE(std::filesystem::exists(cache));
    // The cache is read and not made again: its last token is changed under it.
    std::string bytes = read_file(cache);
    bytes[bytes.size() - 2] ^= 1;
    folder.write("a.txt.gpt2.cache.bin", bytes);
    EXPECT_NE(text_of(open_data(path, val, *gpt2).train, *gpt2), "some words of a text");
    // another tokenizer has another cache
    EXPECT_EQ(text_of(open_data(path, val, *byte).train, *byte), "some words of a text");

    folder.write("a.txt", "some words of b text");  // the same size, perhaps the same second
    EXPECT_EQ(text_of(open_data(path, val, *gpt2).train, *gpt2), "some words of b text");
    folder.write("a.txt.gpt2.cache.bin", "damaged");
    EXPECT_EQ(text_of(open_data(path, val, *gpt2).train, *gpt2), "some words of b text");
    EXPECT_EQ(text_of(open_data(path, val, *gpt2).train, *gpt2), "some words of b text");
}

TEST(DataFiles, RefusesWhatItCannotRead) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    const auto message = [&](const std::string& train, const std::string& val) {
        return message_of<UsageError>([&] { open_data(train, val, *byte); });
    };
    EXPECT_EQ(message(folder / "*.bin", ""),
              "no file matches '" + folder / "*.bin" + "'; expected token shards or texts");
    const std::string text = folder.write("a.txt", "text");
    EXPECT_EQ(message(text, folder / "none"),
              "no file matches '" + folder / "none" + "'; expected token shards or texts");
    std::filesystem::create_directory(folder / "empty");
    EXPECT_EQ(message(folder / "empty", ""),
              folder / "empty" + ": the folder holds no token shards or texts");
    EXPECT_EQ(message(folder.write("b.bin", "no shard"), ""),
              folder / "b.bin" + ": 8 bytes are too short for a token shard, whose header alone has 1024");

    const DataSplits data = open_data(text, "", *byte);
    EXPECT_EQ(message_of<UsageError>([&] { ValidationLoader(data.val, 1, 8, 256); }),
              text +
                  " (its last tenth): 1 tokens are too few for a sequence of 8 and its next token; use a "
                  "longer text or a shorter sequence");
    const DataSplits empty = open_data(folder.write("empty.txt", ""), "", *byte);
    EXPECT_EQ(message_of<UsageError>(
                  [&] { DataLoader(empty.train, {.B = 1, .T = 8, .V = 256, .total_batch = 8}); }),
              folder / "empty.txt" +
                  " (without its last tenth): 0 tokens are too few for a sequence of 8 and its next token; "
                  "use a longer text or a shorter sequence");
}

TEST(DataFiles, ATextThatIsTooShortLeavesNoCacheBehind) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    const std::string path = folder.write("a.txt", std::string(50, 'x')),
                      other = folder.write("b.txt", std::string(8, 'x'));
    const auto refuse = [&](const std::string& train, const std::string& val, const DataOptions& options,
                            const std::string& expected) {
        EXPECT_EQ(message_of<UsageError>([&] { open_data(train, val, *byte, options); }), expected);
        EXPECT_EQ(folder.files().size(), 2u) << expected;
    };
    const std::string too_few =
        " tokens are too few for a sequence of {} and its next token; use a longer text or a shorter "
        "sequence";
    refuse(path, "", {.train_T = 45},
           path + " (without its last tenth): 45" + fmt::format(fmt::runtime(too_few), 45));
    refuse(path, "", {.train_T = 8, .val_T = 8},
           path + " (its last tenth): 5" + fmt::format(fmt::runtime(too_few), 8));
    refuse(folder / "*.txt", "", {.train_T = 50}, path + ": 50" + fmt::format(fmt::runtime(too_few), 50));
    refuse(path, other, {.train_T = 8, .val_T = 8}, other + ": 8" + fmt::format(fmt::runtime(too_few), 8));

    // without validation its tokens are not needed
    EXPECT_EQ(open_data(path, "", *byte, {.train_T = 44}).train[0].size(), 45u);
    EXPECT_EQ(open_data(folder / "*.txt", "", *byte, {.train_T = 49}).train.size(), 2u);
    // two texts, two caches of each text that is divided, and one of the text that is whole
    EXPECT_EQ(folder.files().size(), 7u);
}

TEST(DataFiles, ALongTextSaysThatItIsBeingTokenized) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    const std::string path = folder.write("a.txt", std::string(size_t{9} << 20, 'x')),
                      val = folder.write("b.txt", "short");
    std::vector<std::string> lines;
    const DataOptions options{.note = [&](const std::string& line) { lines.push_back(line); },
                              .note_seconds = 0};
    open_data(path, val, *byte, options);
    const std::string rest = " of 9 MiB; this is done once, and kept in " + path + ".byte.cache.bin";
    ASSERT_EQ(lines.size(), 4u);  // three pieces of four MiB at most, and the short text
    EXPECT_EQ(lines[0], "tokenizing " + path + ": 4" + rest);
    EXPECT_EQ(lines[1], "tokenizing " + path + ": 8" + rest);
    lines.clear();
    open_data(path, val, *byte, options);
    EXPECT_TRUE(lines.empty());  // the cache is there
}

TEST(DataFiles, ATextInAFolderThatCannotBeWrittenIsCachedElsewhere) {
    const TemporaryFolder folder, cache;
    const auto byte = make_tokenizer("byte");
    const std::string path = folder.write("a.txt", "some words"), val = folder.write("b.txt", "other words");
    std::filesystem::permissions(folder.path(), static_cast<std::filesystem::perms>(0555));
    std::filesystem::permissions(cache.path(), static_cast<std::filesystem::perms>(0777));
    setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
    // Root may write anywhere, so as root the test continues as another user.
    const uid_t user = geteuid();
    ASSERT_EQ(seteuid(user == 0 ? 65534 : user), 0);
    EXPECT_EQ(text_of(open_data(path, val, *byte).train, *byte), "some words");
    ASSERT_EQ(seteuid(user), 0);
    unsetenv("XDG_CACHE_HOME");
    std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
    EXPECT_EQ(folder.files().size(), 2u);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(cache / "flatgpt"), {}), 2);
}

// Sets a variable of the environment for as long as it lives.
class Variable {
public:
    Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
    ~Variable() { unsetenv(name_); }

private:
    const char* name_;
};

struct Notes {
    std::vector<std::string> lines;
    DataOptions options{.note = [this](const std::string& line) { lines.push_back(line); }};
};

TEST(DataFiles, ATextWhoseCacheHasTooLongANameIsCachedUnderAShorterOneOrNotAtAll) {
    const TemporaryFolder folder, cache;
    const auto byte = make_tokenizer("byte");
    const std::string name = std::string(245, 'n') + ".txt", path = folder.write(name, "some words");
    Notes notes;
    {
        const Variable home("XDG_CACHE_HOME", cache.path());
        EXPECT_EQ(text_of(open_data(path, path, *byte, notes.options).train, *byte), "some words");
        EXPECT_EQ(std::distance(std::filesystem::directory_iterator(cache / "flatgpt"), {}), 1);
        EXPECT_TRUE(notes.lines.empty());
    }
    // Neither place for a cache is writable here.
    const std::string lone =
        folder.write(std::string(244, 'm') + ".txt", "some words, ten for training and one for validation");
    const Variable home("XDG_CACHE_HOME", "/dev/null");
    for (int run = 0; run < 2; run++) {
        notes.lines.clear();
        const DataSplits data = open_data(lone, "", *byte, notes.options);
        EXPECT_EQ(text_of(data.train, *byte) + text_of(data.val, *byte),
                  "some words, ten for training and one for validation");
        ASSERT_EQ(notes.lines.size(), 1u);  // not one for every part
        EXPECT_NE(notes.lines[0].find("File name too long; the tokens of " + lone), std::string::npos)
            << notes.lines[0];
        EXPECT_NE(notes.lines[0].find("are kept in memory, and made again by the next run"),
                  std::string::npos)
            << notes.lines[0];
    }
    EXPECT_EQ(folder.files().size(), 2u);
}

// A limit on the size of files stops writing a cache like a full disk.
TEST(DataFiles, ATextIsReadWhenItsCacheFillsTheDisk) {
    const TemporaryFolder folder, cache;
    const auto byte = make_tokenizer("byte");
    const std::string text(100'000, 'x'), path = folder.write("a.txt", text);
    const Variable home("XDG_CACHE_HOME", cache.path());
    Notes notes;
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit small{4096, before.rlim_max};
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const DataSplits data = open_data(path, path, *byte, notes.options);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    std::signal(SIGXFSZ, handler);
    EXPECT_EQ(text_of(data.train, *byte), text);
    EXPECT_EQ(text_of(data.val, *byte), text);
    ASSERT_EQ(notes.lines.size(), 1u);
    EXPECT_EQ(notes.lines[0], path + ".byte.cache.bin: cannot be written: File too large; the tokens of " +
                                  path + " are kept in memory, and made again by the next run");
    EXPECT_EQ(folder.files().size(), 1u);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(cache / "flatgpt"), {}), 0);
}

TEST(DataFiles, ATextIsReadWhenItsCacheCannotGetItsName) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    const std::string path = folder.write("a.txt", "some words"), val = folder.write("b.txt", "other words");
    std::filesystem::create_directories(folder / "a.txt.byte.cache.bin/taken");
    Notes notes;
    const DataSplits data = open_data(path, val, *byte, notes.options);
    EXPECT_EQ(text_of(data.train, *byte), "some words");
    EXPECT_EQ(text_of(data.val, *byte), "other words");
    ASSERT_EQ(notes.lines.size(), 1u);
    EXPECT_NE(notes.lines[0].find("a.txt.byte.cache.bin: cannot be given its name"), std::string::npos)
        << notes.lines[0];
    // two texts, the folder in the way, and the other text's cache
    EXPECT_EQ(folder.files().size(), 4u);
}

TEST(DataFiles, APatternPassesOverWhatAnotherProcessIsWriting) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    folder.write("a.txt", "one");
    folder.write("a.txt.byte.cache.bin.tmp-0123abcd", std::string(2000, '\0'));
    folder.write("train_000000.bin.tmp-89abcdef", "");
    EXPECT_EQ(text_of(open_split(folder / "*", *byte), *byte), "one");
    folder.write("train.tmp-89abcdeg", " and not one of ours");
    EXPECT_EQ(text_of(open_split(folder / "*", *byte), *byte), "one and not one of ours");
}

TEST(DataFiles, WhatAKilledProcessLeftOfACacheIsRemovedWhenItIsOld) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    const std::string path = folder.write("a.txt", "one"),
                      left = folder.write("a.txt.byte.cache.bin.tmp-0123abcd", "half"),
                      live = folder.write("a.txt.byte.cache.bin.tmp-89abcdef", "half"),
                      other = folder.write("b.txt.byte.cache.bin.tmp-00000000", "b");
    const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(2);
    for (const std::string& file : {left, other}) std::filesystem::last_write_time(file, old);
    open_data(path, path, *byte);
    EXPECT_FALSE(std::filesystem::exists(left));
    EXPECT_TRUE(std::filesystem::exists(live));
    EXPECT_TRUE(std::filesystem::exists(other));
}

TEST(DataFiles, AnInterruptEndsTheTokenizingOfALongText) {
    const TemporaryFolder folder;
    const std::string path = folder.write("a.txt", std::string(size_t{9} << 20, 'x'));
    int asked = 0;
    const DataOptions options{.stop = [&] { return ++asked > 1; }};
    EXPECT_EQ(message_of<Error>([&] { open_data(path, path, *make_tokenizer("byte"), options); }),
              "interrupted while " + path + " was being tokenized; nothing was written");
    EXPECT_EQ(folder.files().size(), 1u);
    EXPECT_LE(asked, 3);
}

// As iconv writes it, for ASCII; big-endian on request.
static std::string utf16(const std::string& text, bool big = false) {
    std::string wide;
    for (const char character : text)
        wide += big ? std::string{'\0', character} : std::string{character, '\0'};
    return wide;
}

TEST(DataFiles, Utf16IsRefusedWithTheCommandThatConvertsIt) {
    const TemporaryFolder folder;
    const auto byte = make_tokenizer("byte");
    const std::string text = "First Citizen:\nBefore we proceed any further, hear me speak.\n";
    folder.write("a.txt", text);
    const auto refused = [&](const std::string& bytes, const std::string& encoding) {
        const std::string path = folder.write("b.txt", bytes);
        const std::string expected = path + ": is " + encoding +
                                     " text; expected UTF-8; convert it with: iconv -f " + encoding +
                                     " -t UTF-8 '" + path + "' > utf8.txt";
        EXPECT_EQ(message_of<UsageError>([&] { open_data(path, "", *byte); }), expected);
        EXPECT_EQ(message_of<UsageError>([&] { open_data(folder / "a.txt", path, *byte); }), expected);
        EXPECT_EQ(message_of<UsageError>([&] { open_split(folder / "*.txt", *byte); }), expected);
        EXPECT_EQ(folder.files().size(), 2u);  // no cache of the other text
    };
    refused("\xFF\xFE" + utf16(text), "UTF-16");
    refused("\xFE\xFF" + utf16(text, true), "UTF-16");
    refused(utf16(text), "UTF-16LE");
    refused(utf16(text, true), "UTF-16BE");
    refused(std::string("\xFF\xFE\0\0F\0\0\0", 8), "UTF-32");
    // Greek, whose letters have no zero byte in UTF-16, and occasional spaces.
    std::string greek;
    for (int i = 0; i < 40; i++) greek += "\xB1\x03\xB2\x03\xB3\x03\xB4\x03" + std::string(" \0", 2);
    refused(greek, "UTF-16LE");
    // Data with zeros at both even and odd places is accepted, and so is any text without zeros.
    for (const std::string& accepted :
         {text, std::string(1000, '\0'), "\xEF\xBB\xBF" + text, text + std::string(1, '\0')})
        EXPECT_EQ(text_of(open_split(folder.write("b.txt", accepted), *byte), *byte), accepted);
}
