#include "trainer/tokenizer/word_counts.h"

#include <xxhash.h>

#include <algorithm>
#include <functional>

#include "system/error.h"

void WordCounts::add(std::string_view word, uint64_t count) {
    if (2 * words_.size() >= slots_.size()) make_room();
    const auto hash = static_cast<uint32_t>(XXH3_64bits(word.data(), word.size()));
    size_t slot = hash & (slots_.size() - 1);
    for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1)) {
        Word& known = words_[slots_[slot] - 1];
        if (known.hash != hash || std::string_view(bytes_).substr(known.begin, known.size) != word) continue;
        known.count += count;
        return;
    }
    CHECK(word.size() <= UINT32_MAX && words_.size() < UINT32_MAX - 1, "a word of {} bytes, or 2^32 words",
          word.size());
    words_.push_back({bytes_.size(), count, static_cast<uint32_t>(word.size()), hash});
    bytes_ += word;
    slots_[slot] = static_cast<uint32_t>(words_.size());
}

void WordCounts::make_room() {
    slots_.assign(std::max<size_t>(1024, 2 * slots_.size()), 0);
    for (size_t i = 0; i < words_.size(); i++) {
        size_t slot = words_[i].hash & (slots_.size() - 1);
        while (slots_[slot] != 0) slot = (slot + 1) & (slots_.size() - 1);
        slots_[slot] = static_cast<uint32_t>(i + 1);
    }
}

void WordCounts::add(const WordCounts& others) {
    others.for_each([&](std::string_view word, uint64_t count) { add(word, count); });
}

size_t WordCounts::keep(size_t most) {
    if (size() <= most) return 0;
    std::vector<uint64_t> counts;
    for (const Word& word : words_) counts.push_back(word.count);
    const auto first_dropped = counts.begin() + static_cast<std::ptrdiff_t>(most);
    std::nth_element(counts.begin(), first_dropped, counts.end(), std::greater<>());
    const uint64_t least = *first_dropped + 1;
    WordCounts kept;
    for_each([&](std::string_view word, uint64_t count) {
        if (count >= least) kept.add(word, count);
    });
    const size_t dropped = size() - kept.size();
    *this = std::move(kept);
    return dropped;
}
