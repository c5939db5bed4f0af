// GPT-2's vocabulary files, encoder.json and vocab.bpe as the two parts of an input: whatever is taken decodes what it encodes.
#include "fuzz.h"
#include "gpt2_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::vector<std::string_view> parts = parts_of(as_text(data, size), 2);
    const MemoryFile encoder(parts[0]), merges(parts[1]);
    read_or_refuse([&] {
        Gpt2Tokenizer tokenizer(encoder.path(), merges.path());
        for (int token = 0; token < tokenizer.vocab_size(); token++) require(!tokenizer.token_bytes(token).empty());
        for (const std::string_view text : {std::string_view("the theatre, other \xff\n"), parts[1].substr(0, 1000)}) {
            const std::vector<uint16_t> tokens = tokenizer.encode(text);
            require(tokenizer.decode(tokens) == text);
        }
    });
    return 0;
}
