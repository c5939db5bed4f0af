// words: how the tokenizers' patterns cut a text, for test_patterns.py.
//   words PATTERN FILE    writes the length of every word in bytes, as uint32
//   words nfc FILE        writes the text in normal form C
#include <cstdio>
#include <map>
#include <vector>

#include "system/error.h"
#include "system/file_reader.h"
#include "system/unicode_nfc.h"
#include "trainer/tokenizer/word_splitter.h"

int main(int argc, char** argv) {
    const std::map<std::string, SplitPattern> patterns = {
        {"gpt2", SplitPattern::gpt2},
        {"gpt4", SplitPattern::gpt4},
        {"gpt4_number_runs", SplitPattern::gpt4_number_runs},
        {"llama3", SplitPattern::llama3},
        {"nanochat", SplitPattern::nanochat},
        {"qwen", SplitPattern::qwen},
        {"digits", SplitPattern::digits},
        {"digit_runs", SplitPattern::digit_runs},
    };
    if (argc != 3) return 2;
    const std::string pattern = argv[1];
    try {
        const std::string text = FileReader(argv[2]).text();
        if (pattern == "nfc") {
            const std::string normalized = normalized_nfc(text);
            return std::fwrite(normalized.data(), 1, normalized.size(), stdout) == normalized.size() ? 0 : 1;
        }
        std::vector<uint32_t> lengths;
        WordSplitter({patterns.at(pattern)}).split(text, [&](std::string_view word) {
            lengths.push_back(static_cast<uint32_t>(word.size()));
        });
        return std::fwrite(lengths.data(), 4, lengths.size(), stdout) == lengths.size() ? 0 : 1;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "words: %s\n", error.what());
        return 1;
    }
}
