// The patterns of words: the words of a text are the text, and a text that is cut where a word ends for
// certain has the same words.
#include "fuzz.h"
#include "trainer/tokenizer/word_splitter.h"

using Steps = std::vector<SplitPattern>;

static std::vector<std::string_view> words_of(const WordSplitter& splitter, std::string_view text) {
    std::vector<std::string_view> words;
    splitter.split(text, [&](std::string_view word) { words.push_back(word); });
    return words;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const std::vector<Steps> all = {{},
                                           {SplitPattern::gpt2},
                                           {SplitPattern::gpt4},
                                           {SplitPattern::gpt4_number_runs},
                                           {SplitPattern::llama3},
                                           {SplitPattern::nanochat},
                                           {SplitPattern::qwen},
                                           {SplitPattern::digits},
                                           {SplitPattern::digit_runs},
                                           {SplitPattern::digits, SplitPattern::gpt2},
                                           {SplitPattern::digit_runs, SplitPattern::qwen},
                                           {SplitPattern::llama3, SplitPattern::digits}};
    const std::string_view text = as_text(data, size).substr(0, 4096);
    for (const Steps& steps : all) {
        const WordSplitter splitter(steps);
        const std::vector<std::string_view> words = words_of(splitter, text);
        size_t bytes = 0;
        for (const std::string_view word : words) {
            require(!word.empty() && word.data() == text.data() + bytes);
            bytes += word.size();
        }
        require(bytes == text.size());
        const size_t cut = size > 0 ? data[0] % (text.size() + 1) : 0;
        // Behind a cut, a whole character must be in sight.
        if (cut == 0 || cut + 4 > text.size() || !splitter.word_ends_at(text, cut)) continue;
        std::vector<std::string_view> pieces = words_of(splitter, text.substr(0, cut));
        for (const std::string_view word : words_of(splitter, text.substr(cut))) pieces.push_back(word);
        require(pieces == words);
    }
    return 0;
}
