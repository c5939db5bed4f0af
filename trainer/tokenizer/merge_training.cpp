#include "trainer/tokenizer/merge_training.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

namespace {

uint64_t pair_of(Token left, Token right) { return uint64_t{left} << 32 | right; }

// How often pairs stand in all words, by open addressing. Pairs are never removed.
class PairCounts {
public:
    PairCounts() : slots_(size_t{1} << 16) {}
    int64_t& operator[](uint64_t pair) {
        if (2 * used_ >= slots_.size()) make_room();
        Slot& slot = slots_[slot_of(pair)];
        if (slot.pair == free) used_++, slot.pair = pair;
        return slot.count;
    }

private:
    static constexpr uint64_t free = ~uint64_t{0};
    struct Slot {
        uint64_t pair = free;
        int64_t count = 0;
    };
    size_t slot_of(uint64_t pair) const {
        const size_t last = slots_.size() - 1;
        size_t slot = (pair * 0x9E3779B97F4A7C15 >> 20) & last;
        while (slots_[slot].pair != free && slots_[slot].pair != pair) slot = (slot + 1) & last;
        return slot;
    }
    void make_room() {
        const std::vector<Slot> before = std::move(slots_);
        slots_ = std::vector<Slot>(2 * before.size());
        for (const Slot& slot : before)
            if (slot.pair != free) slots_[slot_of(slot.pair)] = slot;
    }
    std::vector<Slot> slots_;
    size_t used_ = 0;
};

class MergeTraining {
public:
    explicit MergeTraining(const WordCounts& words);
    TrainedMerges run(size_t tokens, const std::function<void(size_t)>& made);

private:
    struct Word {
        size_t begin;    // of its tokens in tokens_
        uint32_t size;   // tokens
        uint64_t count;  // how often it stands in the texts
    };
    using Words = std::vector<uint32_t>;  // their indices; one may come twice
    // A pair with some of the words in which it stands: those in which it came to stand at the same time.
    struct Candidate {
        int64_t count;
        uint64_t pair;
        size_t words;  // in words_of_
        bool operator<(const Candidate& other) const {
            return count != other.count ? count < other.count : pair > other.pair;
        }
    };
    // The tokens that stand on one side of a merged pair.
    struct Side {
        std::vector<int64_t> counts;  // by token
        std::vector<Words> words;     // by token
        std::vector<Token> touched;
    };

    void count_pairs();
    void merge(const Candidate& candidate, Token merged);
    void merge_in(uint32_t word, Token left, Token right, Token merged);
    void note(Side& side, Token token, uint32_t word);
    void offer(uint64_t pair, Words&& words);

    std::vector<Token> tokens_;
    std::vector<Word> words_;
    PairCounts counts_;
    std::vector<Words> words_of_;
    std::priority_queue<Candidate> candidates_;
    Side before_, after_;
};

MergeTraining::MergeTraining(const WordCounts& words) {
    std::array<Token, 256> token_of = {};
    const std::array<unsigned char, 256> order = byte_order();
    for (Token token = 0; token < order.size(); token++) token_of[order[token]] = token;
    words_.reserve(words.size());
    words.for_each([&](std::string_view word, uint64_t count) {
        if (word.size() < 2) return;
        words_.push_back({tokens_.size(), static_cast<uint32_t>(word.size()), count});
        for (const char byte : word) tokens_.push_back(token_of[static_cast<unsigned char>(byte)]);
    });
    count_pairs();
}

void MergeTraining::count_pairs() {
    std::vector<uint32_t> words(size_t{1} << 16);  // how many, by pair
    const auto for_each_pair = [&](const auto& consume) {
        for (size_t i = 0; i < words_.size(); i++) {
            const Token* const tokens = &tokens_[words_[i].begin];
            for (uint32_t at = 0; at + 1 < words_[i].size; at++)
                consume(static_cast<uint32_t>(i), tokens[at] << 8 | tokens[at + 1]);
        }
    };
    for_each_pair([&](uint32_t, Token pair) { words[pair]++; });
    std::vector<Words> all(words.size());
    for (size_t pair = 0; pair < all.size(); pair++) all[pair].reserve(words[pair]);
    for_each_pair([&](uint32_t word, Token pair) {
        counts_[pair_of(pair >> 8, pair & 0xFF)] += static_cast<int64_t>(words_[word].count);
        if (all[pair].empty() || all[pair].back() != word) all[pair].push_back(word);
    });
    for (size_t pair = 0; pair < all.size(); pair++)
        if (!all[pair].empty())
            offer(pair_of(static_cast<Token>(pair >> 8), static_cast<Token>(pair & 0xFF)),
                  std::move(all[pair]));
}

void MergeTraining::offer(uint64_t pair, Words&& words) {
    if (const int64_t count = counts_[pair]; count > 0) {
        candidates_.push({count, pair, words_of_.size()});
        words_of_.push_back(std::move(words));
    }
}

TrainedMerges MergeTraining::run(size_t tokens, const std::function<void(size_t)>& made) {
    TrainedMerges trained;
    std::unordered_map<std::string, Token> numbers;
    const auto add = [&](const std::string& token) {
        const auto [found, is_new] = numbers.emplace(token, static_cast<Token>(trained.tokens.size()));
        if (is_new) trained.tokens.push_back(token);
        return found->second;
    };
    for (const unsigned char byte : byte_order()) add(std::string(1, static_cast<char>(byte)));
    while (trained.tokens.size() < tokens && !candidates_.empty()) {
        Candidate first = candidates_.top();
        candidates_.pop();
        const int64_t count = counts_[first.pair];
        if (first.count != count) {  // since it was offered, neighbours of the pair have merged
            first.count = count;
            if (count > 0) candidates_.push(first);
            continue;
        }
        const auto left = static_cast<Token>(first.pair >> 32), right = static_cast<Token>(first.pair);
        const Token merged = add(trained.tokens[left] + trained.tokens[right]);
        trained.merges.emplace_back(left, right);
        merge(first, merged);
        made(trained.tokens.size());
    }
    return trained;
}

// Replaces the pair in its words, and counts the pairs that come and go.
void MergeTraining::merge(const Candidate& candidate, Token merged) {
    const auto left = static_cast<Token>(candidate.pair >> 32), right = static_cast<Token>(candidate.pair);
    for (Side* side : {&before_, &after_}) {
        const size_t size = std::max({side->counts.size(), merged + size_t{1}, size_t{256}});
        side->counts.resize(size);
        side->words.resize(size);
    }
    const Words words = std::move(words_of_[candidate.words]);
    for (const uint32_t word : words) merge_in(word, left, right, merged);
    for (const Token token : before_.touched) {
        const int64_t count = std::exchange(before_.counts[token], 0);
        counts_[pair_of(token, left)] -= count;
        counts_[pair_of(token, merged)] += count;
    }
    for (const Token token : after_.touched) {
        const int64_t count = std::exchange(after_.counts[token], 0);
        counts_[pair_of(right, token)] -= count;
        counts_[pair_of(merged, token)] += count;
    }
    // A merged token beside another one is the same pair on either side.
    if (!after_.words[merged].empty()) {
        Words& both = before_.words[merged];
        if (both.empty()) before_.touched.push_back(merged);
        both.insert(both.end(), after_.words[merged].begin(), after_.words[merged].end());
        after_.words[merged].clear();
    }
    for (const Token token : before_.touched)
        offer(pair_of(token, merged), std::exchange(before_.words[token], {}));
    for (const Token token : after_.touched)
        if (token != merged) offer(pair_of(merged, token), std::exchange(after_.words[token], {}));
    before_.touched.clear();
    after_.touched.clear();
}

void MergeTraining::merge_in(uint32_t word, Token left, Token right, Token merged) {
    Token* const tokens = &tokens_[words_[word].begin];
    const uint32_t size = words_[word].size;
    uint32_t end = 0;  // of what is written
    for (uint32_t at = 0; at < size; at++) {
        if (tokens[at] != left || at + 1 == size || tokens[at + 1] != right) {
            tokens[end++] = tokens[at];
            continue;
        }
        if (end > 0) note(before_, tokens[end - 1], word);
        if (at + 2 < size) note(after_, tokens[at + 2], word);
        tokens[end++] = merged;
        at++;
    }
    words_[word].size = end;
}

void MergeTraining::note(Side& side, Token token, uint32_t word) {
    Words& words = side.words[token];
    if (words.empty()) side.touched.push_back(token);
    if (words.empty() || words.back() != word) words.push_back(word);
    side.counts[token] += static_cast<int64_t>(words_[word].count);
}

}  // namespace

std::array<unsigned char, 256> byte_order() {
    std::array<unsigned char, 256> order = {};
    size_t next = 0;
    for (const bool printable : {true, false}) {
        for (int byte = 0; byte < 256; byte++) {
            const bool is = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
            if (is == printable) order[next++] = static_cast<unsigned char>(byte);
        }
    }
    return order;
}

TrainedMerges train_merges(const WordCounts& words, size_t tokens, const std::function<void(size_t)>& made) {
    return MergeTraining(words).run(tokens, made);
}
