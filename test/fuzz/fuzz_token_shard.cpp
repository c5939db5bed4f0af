// A token shard: header and size agree, every token can be read, and a loader accepts it if it fits the
// vocabulary.
#include "fuzz.h"
#include "trainer/data/data_loader.h"
#include "trainer/data/token_shard.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const MemoryFile file(as_text(data, size));
    read_or_refuse([&] {
        std::vector<TokenShard> shards;
        shards.emplace_back(file.path());
        require(1024 + shards[0].token_bytes() * shards[0].tokens().size() == size);
        const int T = 1 + static_cast<int>(shards[0].source_hash() % 64);
        const TokenWindows windows(shards, T, 50'257);
        std::vector<int32_t> inputs(T), targets(T);
        for (uint64_t window = 0; window < windows.count(); window++)
            windows.read(inputs.data(), targets.data(), window);
    });
    return 0;
}
