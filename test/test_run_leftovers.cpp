// Continuing shards: the files of a killed tokenize that are removed, and those that are kept.
#include "temporary_folder.h"
#include "trainer/data/restartable_shards.h"

namespace fs = std::filesystem;

TEST(RunLeftovers, OnlyWhatTokenizeLeftHalfWrittenIsRemoved) {
    const TemporaryFolder folder;
    const std::vector<std::string> ours = {"a_train_000003.bin.tmp-0123abcd", "a_val_000000.bin.tmp-00ff00ff",
                                           "a_shards.json.tmp-76543210"};
    const std::vector<std::string> others = {"a_train_000003.bin.tmp-old", "a_train_notes.tmp-0123abcd",
                                             "b_train_000003.bin.tmp-0123abcd",
                                             "a_train_000003.bin.tmp-0123abcd.txt"};
    for (const auto* names : {&ours, &others}) {
        for (const std::string& name : *names) folder.write(name, "x");
    }
    RestartableShardsOptions options;
    options.folder = folder.path();
    options.prefix = "a_";
    const RestartableShards shards(options);
    for (const std::string& name : ours) EXPECT_FALSE(fs::exists(folder / name)) << name;
    for (const std::string& name : others) EXPECT_TRUE(fs::exists(folder / name)) << name;
    EXPECT_TRUE(says(message_of<UsageError>([&] { RestartableShards{options}; }),
                     "another process is writing shards there"));
}
