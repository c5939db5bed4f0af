#include "trainer/data/data_files.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "system/error.h"
#include "system/file_reader.h"
#include "trainer/data/input_files.h"
#include "trainer/data/joined_texts.h"
#include "trainer/data/token_cache.h"

static constexpr double holdout_fraction = 0.1;

namespace {

// The shards of a split. Its texts are one stream of tokens, where the first of them stands.
std::vector<TokenShard> open_files(const std::vector<InputFile>& files, TextReader& reader) {
    TextStream texts;
    std::vector<TokenShard> shards;
    std::ptrdiff_t before = 0;  // shards that come before the stream
    for (const InputFile& file : files) {
        if (!file.text) {
            shards.emplace_back(file.path);
            continue;
        }
        if (texts.parts.empty()) before = std::ssize(shards);
        texts.parts.push_back({file.path});
    }
    if (texts.parts.empty()) return shards;
    texts.name = name_of_texts(texts.parts);
    std::vector<TokenShard> stream = tokens_of(texts, reader);
    shards.insert(shards.begin() + before, std::move_iterator(stream.begin()),
                  std::move_iterator(stream.end()));
    return shards;
}

// UsageError unless a shard has T+1 tokens; T = 0: no requirement.
std::vector<TokenShard> checked(std::vector<TokenShard> shards, int T) {
    const auto is_long = [&](const TokenShard& shard) { return shard.size() > static_cast<size_t>(T); };
    if (T > 0 && std::none_of(shards.begin(), shards.end(), is_long))
        throw too_few_tokens(shards[0].name(), shards[0].size(), T);
    return shards;
}

bool all_texts(const std::vector<InputFile>& files) {
    return std::all_of(files.begin(), files.end(), [](const InputFile& file) { return file.text; });
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
        return tokens_of({.parts = std::move(parts), .name = name, .part = part}, reader);
    };
    DataSplits data;
    data.train = checked(
        stream(divided.train, "train", " (without its last tenth)", " (without the last tenth of all)"),
        reader.options.train_T);
    data.val = checked(stream(divided.val, "val", " (its last tenth)", " (the last tenth of all)"),
                       reader.options.val_T);
    return data;
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
    const Inputs inputs = input_files(values, {.split = Split::val, .note = options.note});
    std::vector<TokenShard> shards = checked(open_files(inputs.files, reader), options.val_T);
    reader.say_findings();
    return shards;
}

DataSplits open_data(const std::vector<std::string>& train_data, const std::vector<std::string>& val_data,
                     Tokenizer& tokenizer, const DataOptions& options) {
    TextReader reader{tokenizer, options};
    const AllInputs inputs = find_inputs(train_data, val_data, options);
    DataSplits data;
    if (inputs.divides_texts) {
        data = hold_out(inputs.train, reader);
    } else {
        data.train = checked(open_files(inputs.train, reader), options.train_T);
        if (!inputs.val.empty()) data.val = checked(open_files(inputs.val, reader), options.val_T);
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
        if (is_text) texts++, bytes += FileReader(path).size();
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
