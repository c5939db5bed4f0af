// The data loader: the tokens of a step depend on (seed, step) alone, every window occurs once an epoch,
// and errors reach the caller.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
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
#include "write_shard.h"

// Token i of shard s is s*10000 + i, so a batch shows its source.
static constexpr int shard_stride = 10'000;
static constexpr int vocabulary = 65'536;

static TokenShard numbered_shard(const TemporaryFolder& folder, int index, size_t count) {
    std::vector<Token> tokens(count);
    for (size_t i = 0; i < count; i++)
        tokens[i] = static_cast<Token>(static_cast<size_t>(index) * shard_stride + i);
    return TokenShard(write_shard(folder, "shard_" + std::to_string(index) + ".bin", tokens));
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
    EXPECT_TRUE(says(message_of<UsageError>([&] { reads.next(); }),
                     "shard_0.mask: byte 12 is 2; expected 1 for a token that counts"));
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
    std::vector<Token> tokens(10'000);
    // one token fills a batch; many repeat
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = static_cast<Token>(i < 200 ? 7 : i * i % 31);
    const std::string shard = write_shard(folder, "a.bin", tokens);
    const std::vector<TokenShard> shards = open_data({shard}, {}, *make_tokenizer("byte")).train;
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
