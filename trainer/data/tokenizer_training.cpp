#include "trainer/data/tokenizer_training.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <nlohmann/json.hpp>

#include "system/error.h"
#include "system/json_text.h"
#include "system/utf8_stream.h"
#include "trainer/tokenizer/tokenizer_files.h"

static constexpr size_t counted_at_once = size_t{64} << 20;  // bytes

// A tokenizer that passes the texts on instead of making tokens of them, a piece between two words at a time.
class TokenizerTraining::Collector : public Tokenizer {
public:
    explicit Collector(TokenizerTraining& training) : training_(training) {}
    std::string_view name() const override { return "training"; }
    int vocab_size() const override { return 256; }
    std::optional<int> end_of_text() const override { return std::nullopt; }
    std::string_view token_bytes(int) const override { return {}; }

protected:
    void append_tokens(std::vector<Token>&, std::string_view text, bool) override { training_.take(text); }
    size_t last_cut(std::string_view text, size_t seen) const override {
        constexpr size_t ahead = 4;  // bytes of the character behind a cut
        if (text.size() <= ahead) return 0;
        for (size_t cut = text.size() - ahead; cut > 0 && cut + ahead > seen; cut--)
            if (training_.splitter_.word_ends_at(text, cut)) return cut;
        return 0;
    }

private:
    TokenizerTraining& training_;
};

TokenizerTraining::TokenizerTraining(const TokenizerTrainingOptions& options)
    : options_(options),
      splitter_({options.pattern}),
      collector_(std::make_unique<Collector>(*this)),
      texts_(std::make_unique<JoinedTexts>(*collector_, [](std::span<const Token>) {})),
      counts_(static_cast<size_t>(options.threads)) {
    const size_t least = 256 + options.special.size();
    CHECK(options.vocabulary >= least && options.vocabulary <= static_cast<size_t>(max_vocab_size),
          "--train {}: expected {} to {} tokens: 256 bytes, {} special tokens, and what the texts give",
          options.vocabulary, least, max_vocab_size, options.special.size());
    std::vector<std::string> sorted = options.special;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    CHECK(twice == sorted.end(), "--special {}: is given twice", *twice);
    for (const std::string& token : options.special)
        CHECK(token.size() > 1 && token == replace_invalid_utf8(token),
              "--special {}: expected UTF-8 of more than one byte", shown(token));
}

TokenizerTraining::~TokenizerTraining() = default;

void TokenizerTraining::append(const TextPart& part) { texts_->append(part); }

void TokenizerTraining::append(std::string_view document) { take(document); }

const TextFindings& TokenizerTraining::findings() const { return texts_->findings(); }

void TokenizerTraining::take(std::string_view piece) {
    pieces_.emplace_back(piece);
    waiting_ += piece.size();
    bytes_ += piece.size();
    options_.read(bytes_);
    if (waiting_ >= counted_at_once) count_pieces();
}

// Which words are dropped depends on all words of the pieces so far, and not on the thread that counted them.
void TokenizerTraining::count_pieces() {
    std::atomic<size_t> next = 0;
    const auto count = [&](WordCounts& counts) {
        for (size_t i; (i = next++) < pieces_.size();)
            splitter_.split(pieces_[i], [&](std::string_view word) { counts.add(word); });
    };
    std::vector<std::future<void>> others;
    for (size_t thread = 1; thread < counts_.size(); thread++)
        others.push_back(std::async(std::launch::async, count, std::ref(counts_[thread])));
    count(counts_[0]);
    for (std::future<void>& other : others) other.get();
    pieces_.clear();
    waiting_ = 0;
    size_t words = 0;
    for (const WordCounts& counts : counts_) words += counts.size();
    if (words <= options_.most_words) return;
    for (size_t thread = 1; thread < counts_.size(); thread++) {
        counts_[0].add(counts_[thread]);
        counts_[thread].clear();
    }
    dropped_ += counts_[0].keep(options_.most_words);
}

TokenizerTraining::Result TokenizerTraining::finish() {
    count_pieces();
    for (size_t thread = 1; thread < counts_.size(); thread++) {
        counts_[0].add(counts_[thread]);
        counts_[thread].clear();
    }
    CHECK(bytes_ > 0, "there is no text to train a tokenizer on");
    const size_t wanted = options_.vocabulary - options_.special.size();
    const TrainedMerges trained = train_merges(counts_[0], wanted, options_.made);
    CHECK(trained.tokens.size() == wanted,
          "--train {}: the texts give only {} tokens, with {} special ones; expected more text or a smaller "
          "number",
          options_.vocabulary, trained.tokens.size() + options_.special.size(), options_.special.size());
    const auto [tokenizer, config] = files_of_training(trained, options_.pattern, options_.special);
    return {tokenizer, config, bytes_, counts_[0].size(), dropped_, options_.vocabulary};
}
