// HellaSwag's examples, as JSON lines and as llm.c's eval file: accepted examples make batches.
#include "fuzz.h"
#include "trainer/data/hellaswag.h"

static void read(std::string_view bytes) {
    static const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("byte");
    const MemoryFile file(bytes);
    for (const int T : {8, 200}) {
        read_or_refuse([&] {
            HellaSwag batches(read_hellaswag(file.path(), *tokenizer), 3, T, 300);
            for (size_t i = 0; i < batches.batches(); i++) {
                const Batch& batch = batches.at(i);
                int targets = 0;
                for (int at = 0; at < batch.B * batch.T; at++) targets += batch.targets[at] != Batch::ignored;
                require(targets == batch.target_count);
            }
        });
    }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view bytes = as_text(data, size);
    read(bytes);
    if (size < 1024) return 0;
    // The rest again, with the header of the smallest file: one example of any length.
    std::string eval_file(bytes);
    const uint32_t header[] = {20240522, 1, 1, 1 << 20};
    std::memcpy(eval_file.data(), header, sizeof(header));
    read(eval_file);
    return 0;
}
