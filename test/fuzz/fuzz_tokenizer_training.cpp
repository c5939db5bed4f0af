// The training of a tokenizer on any bytes: its files are read again, and encode the text to tokens that
// decode to it.
#include "fuzz.h"
#include "trainer/data/tokenizer_training.h"
#include "trainer/tokenizer/tokenizer_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const FuzzFolder folder("training");
    const std::string_view text = as_text(data, size).substr(0, 4096);
    constexpr SplitPattern patterns[] = {SplitPattern::gpt2, SplitPattern::gpt4, SplitPattern::llama3,
                                         SplitPattern::nanochat, SplitPattern::qwen};
    read_or_refuse([&] {
        TokenizerTraining training({.vocabulary = 257 + size % 40,
                                    .pattern = patterns[size % 5],
                                    .special = {"<|endoftext|>"},
                                    .most_words = 20,
                                    .read = [](size_t) {},
                                    .made = [](size_t) {}});
        training.append(text);
        const TokenizerTraining::Result result = training.finish();
        folder.write("tokenizer.json", result.tokenizer);
        folder.write("tokenizer_config.json", result.config);
        const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(folder.path());
        require(tokenizer->vocab_size() == static_cast<int>(257 + size % 40));
        require(tokenizer->decode(tokenizer->encode(text)) == text);
    });
    return 0;
}
