// shards.json, from which `tokenize --stream` continues, and a shard that it names: the two parts of an
// input.
#include "fuzz.h"
#include "trainer/data/restartable_shards.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const FuzzFolder folder("shards");
    folder.clear();
    const std::vector<std::string_view> parts = parts_of(as_text(data, size), 2);
    folder.write("shards.json", parts[0]);
    folder.write("train_000000.bin", parts[1]);
    read_or_refuse([&] {
        RestartableShards shards(
            {.folder = folder.path(), .tokenizer = "byte", .shard_tokens = 4, .val_tokens = 0});
        if (shards.complete()) return;
        const std::vector<Token> tokens = {1, 2, 3, 4, 5, 6};
        // Also the document where the finished shards end, if it is that of the corpus.
        for (const std::string document : {"a:1", "document"})
            if (shards.needs(document)) shards.append(document, tokens);
        shards.finish();
        require(shards.complete());
    });
    return 0;
}
