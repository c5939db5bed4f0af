#include "trainer/data/hellaswag.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "system/error.h"
#include "system/file_reader.h"
#include "system/json_text.h"
#include "system/text_encoding.h"

namespace {

constexpr uint32_t eval_magic = 20240522, eval_version = 1;
constexpr size_t header_bytes = 1024;
constexpr uint16_t start_of_example = 65535;

// ----------------------------------------------------------------------------------------------------
// llm.c's eval file

// Reads numbers from bytes and never past their end.
class Numbers {
public:
    Numbers(std::string_view bytes, std::string what) : bytes_(bytes), what_(std::move(what)) {}
    bool done() const { return bytes_.empty(); }
    size_t bytes() const { return bytes_.size(); }
    uint16_t next() {
        need(sizeof(uint16_t));
        uint16_t value = 0;
        std::memcpy(&value, bytes_.data(), sizeof(value));
        bytes_.remove_prefix(sizeof(value));
        return value;
    }
    std::vector<Token> tokens(const char* of) {
        const size_t count = next();
        CHECK(count > 0, "{}: {} without tokens", what_, of);
        need(count * sizeof(uint16_t));
        std::vector<Token> values(count);
        for (Token& value : values) value = next();
        return values;
    }
    Numbers part(size_t bytes, std::string what) {
        need(bytes);
        Numbers numbers(bytes_.substr(0, bytes), std::move(what));
        bytes_.remove_prefix(bytes);
        return numbers;
    }

private:
    void need(size_t bytes) const {
        CHECK(bytes <= bytes_.size(), "{}: {} bytes are missing; the file is damaged", what_,
              bytes - bytes_.size());
    }
    std::string_view bytes_;
    std::string what_;
};

std::vector<HellaSwagExample> parse_eval_file(std::string_view bytes, const std::string& name) {
    CHECK(bytes.size() >= header_bytes,
          "{}: {} bytes are too short for an eval file, whose header alone has {}", name, bytes.size(),
          header_bytes);
    std::array<uint32_t, header_bytes / sizeof(uint32_t)> header;
    std::memcpy(header.data(), bytes.data(), header_bytes);
    CHECK(header[1] == eval_version, "{}: eval file of version {}, expected {}", name, header[1],
          eval_version);
    const size_t count = header[2], longest = header[3];

    std::vector<HellaSwagExample> examples;
    Numbers stream(bytes.substr(header_bytes), name);
    while (!stream.done()) {
        const std::string what = fmt::format("{}: example {}", name, examples.size());
        const uint16_t start = stream.next();
        CHECK(start == start_of_example, "{}: begins with {}, expected {}; the file is damaged", what, start,
              start_of_example);
        constexpr size_t read = 2 * sizeof(uint16_t);  // the marker and the size itself
        const size_t size = stream.next();
        CHECK(size >= read && size <= longest,
              "{}: {} bytes, but the header's longest example has {}; the file is damaged", what, size,
              longest);
        Numbers numbers = stream.part(size - read, what);
        HellaSwagExample example;
        example.index = numbers.next();
        example.label = numbers.next();
        const size_t endings = numbers.next();
        CHECK(endings >= 2, "{}: {} endings; expected 2 or more", what, endings);
        CHECK(example.label < endings, "{}: label {} of {} endings", what, example.label, endings);
        example.context = numbers.tokens("a context");
        for (size_t i = 0; i < endings; i++) example.endings.push_back(numbers.tokens("an ending"));
        CHECK(numbers.done(), "{}: {} bytes are left over; the file is damaged", what, numbers.bytes());
        examples.push_back(std::move(example));
    }
    CHECK(examples.size() == count, "{}: holds {} examples, but its header says {}; the file is damaged",
          name, examples.size(), count);
    return examples;
}

// ----------------------------------------------------------------------------------------------------
// JSONL

const std::string& text_of(const nlohmann::json& object, const char* key, const std::string& what) {
    const auto found = object.find(key);
    CHECK(found != object.end() && found->is_string(),
          "{}: \"{}\" is not a string; expected HellaSwag's {{\"ctx\", \"endings\", \"label\"}}", what, key);
    return found->get_ref<const std::string&>();
}

std::string context_of(const nlohmann::json& object, const std::string& what) {
    if (object.contains("ctx") || !object.contains("ctx_a")) return text_of(object, "ctx", what);
    const std::string &a = text_of(object, "ctx_a", what),
                      &b = object.contains("ctx_b") ? text_of(object, "ctx_b", what) : "";
    return b.empty() ? a : a + " " + b;
}

// The label is a number in the published files, a digit in a string in copies of them, and absent in the
// test split.
size_t label_of(const nlohmann::json& object, size_t endings, const std::string& what) {
    const nlohmann::json label = object.value("label", nlohmann::json());
    const std::string shown = label.is_string()           ? label.get<std::string>()
                              : label.is_number_integer() ? label.dump()
                                                          : "";
    const bool digit = shown.size() == 1 && shown[0] >= '0' && shown[0] <= '9';
    CHECK(digit && static_cast<size_t>(shown[0] - '0') < endings,
          "{}: \"label\" is not the number of one of the {} endings; expected a split with labels", what,
          endings);
    return static_cast<size_t>(shown[0] - '0');
}

// replaced: raised by one if the line has halves of characters.
HellaSwagExample parse_line(std::string_view line, const std::string& what, Tokenizer& tokenizer,
                            size_t& replaced) {
    const auto [object, has_halves, problem] = read_json(line);
    replaced += has_halves;
    CHECK(object.is_object(),
          "{}: is not a JSON object; expected HellaSwag's {{\"ctx\", \"endings\", \"label\"}}{}", what,
          problem.empty() ? "" : "; " + problem);
    HellaSwagExample example;
    const auto index = object.find("ind");
    if (index != object.end() && index->is_number_integer()) example.index = index->get<int64_t>();
    example.context = tokenizer.encode(context_of(object, what));
    CHECK(!example.context.empty(), "{}: the context is empty", what);
    const auto endings = object.find("endings");
    CHECK(endings != object.end() && endings->is_array() && endings->size() >= 2,
          "{}: \"endings\" is not a list of two or more strings", what);
    for (const nlohmann::json& ending : *endings) {
        CHECK(ending.is_string(), "{}: \"endings\" holds something other than strings", what);
        example.endings.push_back(tokenizer.encode(" " + ending.get_ref<const std::string&>()));
    }
    example.label = label_of(object, example.endings.size(), what);
    return example;
}

std::vector<HellaSwagExample> parse_jsonl(std::string_view bytes, const std::string& name,
                                          Tokenizer& tokenizer, const Note& note) {
    std::vector<HellaSwagExample> examples;
    size_t replaced = 0;
    for (size_t number = 1; !bytes.empty(); number++) {
        const size_t end = std::min(bytes.find('\n'), bytes.size());
        const std::string_view line = bytes.substr(0, end);
        if (line.find_first_not_of(" \t\r") != line.npos)
            examples.push_back(
                parse_line(line, fmt::format("{}: line {}", name, number), tokenizer, replaced));
        bytes.remove_prefix(std::min(end + 1, bytes.size()));
    }
    if (note && replaced > 0) note(name + ": " + replaced_halves(replaced, "example"));
    return examples;
}

int rounded_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

std::vector<HellaSwagExample> parse_hellaswag(std::string_view bytes, const std::string& name,
                                              Tokenizer& tokenizer, const Note& note) {
    uint32_t magic = 0;
    if (bytes.size() >= sizeof(magic)) std::memcpy(&magic, bytes.data(), sizeof(magic));
    std::vector<HellaSwagExample> examples =
        magic == eval_magic ? parse_eval_file(bytes, name) : parse_jsonl(bytes, name, tokenizer, note);
    CHECK(!examples.empty(), "{}: holds no example", name);
    return examples;
}

std::vector<HellaSwagExample> read_hellaswag(const std::string& path, Tokenizer& tokenizer,
                                             const Note& note) {
    const std::string text = FileReader(path).text();
    check_fetched(path, text);
    return parse_hellaswag(text, path, tokenizer, note);
}

int longest_row(std::span<const HellaSwagExample> examples) {
    size_t longest = 1;
    for (const HellaSwagExample& example : examples) {
        for (const std::vector<Token>& ending : example.endings)
            longest = std::max(longest, example.context.size() + ending.size() - 1);
    }
    return static_cast<int>(std::min<size_t>(longest, INT32_MAX));
}

size_t likeliest(std::span<const double> log_likelihoods) {
    size_t best = log_likelihoods.size();
    for (size_t i = 0; i < log_likelihoods.size(); i++) {
        if (std::isfinite(log_likelihoods[i]) &&
            (best == log_likelihoods.size() || log_likelihoods[i] > log_likelihoods[best]))
            best = i;
    }
    return best;
}

HellaSwagResult count_right(std::span<const HellaSwagExample> examples,
                            std::span<const EndingScores> scores) {
    size_t by_sum = 0, by_mean = 0;
    for (size_t i = 0; i < examples.size(); i++) {
        by_sum += likeliest(scores[i].sum) == examples[i].label;
        by_mean += likeliest(scores[i].mean) == examples[i].label;
    }
    const auto count = static_cast<double>(examples.size());
    return {static_cast<double>(by_sum) / count, static_cast<double>(by_mean) / count, examples.size()};
}

HellaSwag::HellaSwag(std::vector<HellaSwagExample> examples, int B, int T, int V,
                     const HostAllocator& allocator)
    : examples_(std::move(examples)), B_(B), T_(T), memory_(nullptr, allocator.free) {
    CHECK(B > 0 && T > 0 && B <= INT32_MAX / T,
          "batch of {} x {} tokens; expected positive sizes and fewer than 2^31 tokens", B, T);
    for (size_t e = 0; e < examples_.size(); e++) {
        const HellaSwagExample& example = examples_[e];
        const auto check_tokens = [&](const std::vector<Token>& tokens) {
            const Token largest = *std::max_element(tokens.begin(), tokens.end());
            CHECK(largest < static_cast<Token>(V),
                  "HellaSwag example {}: token {} is outside the model's vocabulary of {}; was the file made "
                  "with another tokenizer?",
                  e, largest, V);
        };
        check_tokens(example.context);
        for (size_t i = 0; i < example.endings.size(); i++) {
            check_tokens(example.endings[i]);
            const size_t ending = example.endings[i].size(), whole = example.context.size() + ending - 1;
            CHECK(ending <= static_cast<size_t>(T),
                  "HellaSwag example {}: an ending of {} tokens does not fit into sequences of {}", e, ending,
                  T);
            const int length = static_cast<int>(std::min(whole, static_cast<size_t>(T))),
                      targets = static_cast<int>(ending);
            shortened_ += whole > static_cast<size_t>(T);
            rows_.push_back({.example = e,
                             .ending = i,
                             .length = length,
                             .first = length - targets,
                             .target_count = targets});
        }
    }
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const Row& a, const Row& b) { return a.length > b.length; });
    batch_.B = B_ = static_cast<int>(std::min(static_cast<size_t>(B), rows_.size()));
    batch_.T = T;
    memory_.reset(allocator.allocate(batch_.bytes()));
    batch_.inputs = static_cast<int32_t*>(memory_.get());
}

void HellaSwag::note_shortened(const Note& note) const {
    if (shortened_ > 0)
        note(fmt::format("{} contexts with an ending have more than {} tokens and are cut at the beginning",
                         shortened_, T_));
}

size_t HellaSwag::batches() const {
    return (rows_.size() + static_cast<size_t>(B_) - 1) / static_cast<size_t>(B_);
}

std::span<const HellaSwag::Row> HellaSwag::rows(size_t batch) const {
    CHECK(batch < batches(), "HellaSwag batch {} does not exist; there are {}", batch, batches());
    const size_t first = batch * static_cast<size_t>(B_);
    return std::span(rows_).subspan(first, std::min(static_cast<size_t>(B_), rows_.size() - first));
}

void HellaSwag::fill(int b, const Row& row) {
    const HellaSwagExample& example = examples_[row.example];
    const std::vector<Token>& ending = example.endings[row.ending];
    int32_t *inputs = batch_.inputs + b * batch_.T, *targets = batch_.targets + b * batch_.T;
    // The inputs are the context's last tokens, then the ending without its last token.
    const auto kept =
        static_cast<std::ptrdiff_t>(row.length + 1) - static_cast<std::ptrdiff_t>(ending.size());
    std::copy(ending.begin(), ending.end() - 1,
              std::copy(example.context.end() - kept, example.context.end(), inputs));
    std::copy(ending.begin(), ending.end(), targets + row.first);
}

const Batch& HellaSwag::at(size_t batch) {
    const std::span<const Row> rows = this->rows(batch);
    // Lengths are multiples of 16, so that libraries plan only a few shapes.
    batch_.T = std::min(rounded_up(rows.front().length, 16), T_);
    const size_t N = static_cast<size_t>(batch_.B) * static_cast<size_t>(batch_.T);
    batch_.targets = batch_.inputs + N;
    batch_.order = batch_.targets + N;
    std::fill(batch_.inputs, batch_.targets, 0);
    std::fill(batch_.targets, batch_.order, Batch::ignored);
    std::iota(batch_.order, batch_.order + N, 0);  // only a backward pass would need it sorted
    batch_.target_count = 0;
    for (size_t b = 0; b < rows.size(); b++) {
        fill(static_cast<int>(b), rows[b]);
        batch_.target_count += rows[b].target_count;
    }
    return batch_;
}
