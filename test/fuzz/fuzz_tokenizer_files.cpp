// Tokenizers' files: GPT-2's encoder.json and vocab.bpe, a tokenizer.json, and the files beside it
// (tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json) are the parts
// of an input. They are read by themselves, and as a folder with and without the tokenizer.json. Whole texts
// and their pieces become the same tokens.
#include "fuzz.h"
#include "test/pieces.h"
#include "trainer/tokenizer/tokenizer_files.h"

static void check(Tokenizer& tokenizer, std::string_view text) {
    for (int token = 0; token < tokenizer.vocab_size(); token++)
        require(tokenizer.token_bytes(token).size() < (1 << 20));
    for (const std::string_view some :
         {std::string_view("the theatre, other 12 345 \xff\n"), text.substr(0, 1000)}) {
        const std::vector<Token> tokens = tokenizer.encode(some);
        for (const Token token : tokens) require(token < static_cast<Token>(tokenizer.vocab_size()));
        tokenizer.decode(tokens);
        require(encode_in_pieces(tokenizer, some, text.size() % 7 + 1) == tokens);
        for (const Token token : tokenizer.encode_prompt(some))
            require(token < static_cast<Token>(tokenizer.vocab_size()));
    }
    tokenizer.ends();
    tokenizer_files(tokenizer, 8);
}

static void check_folder(const std::vector<std::string_view>& parts) {
    static const FuzzFolder folder("tokenizer");
    const char* const names[] = {"vocab.json",
                                 "merges.txt",
                                 "tokenizer.json",
                                 "tokenizer_config.json",
                                 "special_tokens_map.json",
                                 "added_tokens.json",
                                 "generation_config.json"};
    folder.clear();
    for (size_t i = 0; i < parts.size(); i++)
        if (!parts[i].empty()) folder.write(names[i], parts[i]);
    read_or_refuse([&] { check(*make_tokenizer(folder.path()), parts[1]); });
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::vector<std::string_view> parts = parts_of(as_text(data, size), 7);
    const MemoryFile encoder(parts[0]), merges(parts[1]), tokenizer(parts[2]);
    read_or_refuse([&] { check(*read_gpt2_tokenizer("gpt2", encoder.path(), merges.path()), parts[1]); });
    read_or_refuse([&] { check(*read_tokenizer_file(tokenizer.path()), parts[1]); });
    check_folder(parts);
    parts[2] = {};
    check_folder(parts);
    return 0;
}
