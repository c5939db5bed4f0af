#include "trainer/data/data_files.h"

#include <algorithm>
#include <utility>

#include "system/error.h"
#include "system/mapped_file.h"
#include "trainer/data/input_files.h"
#include "trainer/data/joined_texts.h"
#include "trainer/data/token_cache.h"

static constexpr double holdout_fraction = 0.1;

namespace {

// The shards of a split. Those of its texts may have no final names yet, which they get in open().
class PreparedSplit {
public:
    PreparedSplit(const std::vector<InputFile>& files, TextReader& reader);
    PreparedSplit(const TextStream& texts, TextReader& reader) { stream_.emplace(texts, reader); }

    // UsageError unless a shard has T+1 tokens; T = 0: no requirement.
    void check(int T) const;
    std::vector<TokenShard> open(TextReader& reader) &&;

private:
    std::vector<TokenShard> shards_;
    std::optional<StreamTokens> stream_;
    size_t before_stream_ = 0;  // shards that come before the stream
};

PreparedSplit::PreparedSplit(const std::vector<InputFile>& files, TextReader& reader) {
    TextStream texts;
    for (const InputFile& file : files) {
        if (file.text) {
            if (texts.parts.empty()) before_stream_ = shards_.size();
            texts.parts.push_back({file.path});
        } else {
            shards_.emplace_back(file.path);
        }
    }
    if (texts.parts.empty()) return;
    texts.name = name_of_texts(texts.parts);
    stream_.emplace(texts, reader);
}

void PreparedSplit::check(int T) const {
    if (T == 0) return;
    const auto least = static_cast<size_t>(T);
    const bool enough =
        (stream_ && stream_->longest() > least) ||
        std::any_of(shards_.begin(), shards_.end(), [&](const TokenShard& s) { return s.size() > least; });
    if (enough) return;
    if (stream_ && before_stream_ == 0) throw too_few_tokens(stream_->name(), stream_->longest(), T);
    throw too_few_tokens(shards_[0].name(), shards_[0].size(), T);
}

std::vector<TokenShard> PreparedSplit::open(TextReader& reader) && {
    if (!stream_) return std::move(shards_);
    std::vector<TokenShard> all;
    for (size_t i = 0; i <= shards_.size(); i++) {
        if (i == before_stream_)
            for (TokenShard& shard : std::move(*stream_).open(reader)) all.push_back(std::move(shard));
        if (i < shards_.size()) all.push_back(std::move(shards_[i]));
    }
    return all;
}

bool all_texts(const std::vector<InputFile>& files) {
    return std::all_of(files.begin(), files.end(), [](const InputFile& file) { return file.text; });
}

DataSplits open_checked(PreparedSplit train, std::optional<PreparedSplit> val, TextReader& reader) {
    train.check(reader.options.train_T);
    if (val) val->check(reader.options.val_T);
    DataSplits data;
    data.train = std::move(train).open(reader);
    if (val) data.val = std::move(*val).open(reader);
    return data;
}

// Holds out the last tenth of all texts together, so one text may be divided between both splits.
DataSplits hold_out(const std::vector<InputFile>& files, TextReader& reader) {
    std::vector<std::string> paths;
    for (const InputFile& file : files) paths.push_back(file.path);
    DividedTexts divided = divide_texts(paths, holdout_fraction);
    CHECK(!divided.train.empty() && !divided.val.empty(),
          "{}: there is too little text to hold out a tenth of it", paths[0]);
    const bool alone = files.size() == 1;
    const auto stream = [&](std::vector<TextPart>& parts, const char* part, const char* one,
                            const char* several) {
        const std::string name = name_of_texts(parts) + (alone ? one : several);
        return TextStream{.parts = std::move(parts), .name = name, .part = part};
    };
    PreparedSplit train(
        stream(divided.train, "train", " (without its last tenth)", " (without the last tenth of all)"),
        reader);
    PreparedSplit val(stream(divided.val, "val", " (its last tenth)", " (the last tenth of all)"), reader);
    return open_checked(std::move(train), std::move(val), reader);
}

struct AllInputs {
    std::vector<InputFile> train, val;
    bool divides_texts = false;  // validation data are the last tenth of `train`
};

AllInputs find_inputs(const std::vector<std::string>& train_data, const std::vector<std::string>& val_data,
                      const DataOptions& options) {
    AllInputs all;
    check_matches(train_data);  // before the validation data, whose files training may leave out
    if (!val_data.empty()) all.val = input_files(val_data, {.split = Split::val, .note = options.note}).files;
    Inputs train = input_files(
        train_data, {.validation = all.val, .sorted_once = options.sorted_once, .note = options.note});
    all.train = std::move(train.files);
    if (val_data.empty()) all.val = std::move(train.named_val);
    all.divides_texts = all.val.empty() && all_texts(all.train);
    return all;
}

}  // namespace

UsageError too_few_tokens(const std::string& name, size_t tokens, int T) {
    return UsageError(
        fmt::format("{}: {} tokens are too few for a sequence of {} and its next token; use a longer text or "
                    "a shorter sequence",
                    name, tokens, T));
}

std::vector<TokenShard> open_split(const std::vector<std::string>& values, Tokenizer& tokenizer,
                                   const DataOptions& options) {
    TextReader reader{tokenizer, options};
    PreparedSplit split(input_files(values, {.split = Split::val, .note = options.note}).files, reader);
    split.check(options.val_T);
    reader.say_findings();
    return std::move(split).open(reader);
}

DataSplits open_data(const std::vector<std::string>& train_data, const std::vector<std::string>& val_data,
                     Tokenizer& tokenizer, const DataOptions& options) {
    TextReader reader{tokenizer, options};
    const AllInputs inputs = find_inputs(train_data, val_data, options);
    DataSplits data;
    if (inputs.divides_texts) {
        data = hold_out(inputs.train, reader);
    } else {
        PreparedSplit train(inputs.train, reader);
        std::optional<PreparedSplit> val;
        if (!inputs.val.empty()) val.emplace(inputs.val, reader);
        data = open_checked(std::move(train), std::move(val), reader);
    }
    reader.say_findings();
    data.train_texts = static_cast<size_t>(std::count_if(inputs.train.begin(), inputs.train.end(),
                                                         [](const InputFile& file) { return file.text; }));
    return data;
}

std::string describe_data(const std::vector<std::string>& train_data,
                          const std::vector<std::string>& val_data, const Note& note) {
    size_t texts = 0, bytes = 0, shards = 0, tokens = 0;
    for (const auto& [path, is_text] : find_inputs(train_data, val_data, {.note = note}).train) {
        if (is_text) texts++, bytes += MappedFile(path).bytes().size();
        else shards++, tokens += TokenShard(path).size();
    }
    const auto plural = [](size_t count, const char* what) {
        return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
    };
    std::string line = texts > 0 ? fmt::format("{} of {} bytes", plural(texts, "text"), bytes) : "";
    if (shards > 0)
        line += fmt::format("{}{} of {} tokens", line.empty() ? "" : ", ", plural(shards, "shard"), tokens);
    return line;
}
