// Tokenizers' files: GPT-2's encoder.json and vocab.bpe, and a tokenizer.json, are the parts of an input;
// an accepted tokenizer decodes what it encodes.
#include "fuzz.h"
#include "trainer/tokenizer/tokenizer_files.h"

static void check(Tokenizer& tokenizer, std::string_view text) {
    for (int token = 0; token < tokenizer.vocab_size(); token++)
        require(tokenizer.token_bytes(token).size() < (1 << 20));
    for (const std::string_view some :
         {std::string_view("the theatre, other 12 345 \xff\n"), text.substr(0, 1000)}) {
        const std::vector<uint16_t> tokens = tokenizer.encode(some);
        for (const uint16_t token : tokens) require(token < tokenizer.vocab_size());
        const std::string decoded = tokenizer.decode(tokens);
        require(decoded == some || decoded == " " + std::string(some));
    }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::vector<std::string_view> parts = parts_of(as_text(data, size), 3);
    const MemoryFile encoder(parts[0]), merges(parts[1]), tokenizer(parts[2]);
    read_or_refuse([&] { check(*read_gpt2_tokenizer(encoder.path(), merges.path()), parts[1]); });
    read_or_refuse([&] { check(*read_tokenizer_json(tokenizer.path()), parts[1]); });
    return 0;
}
