#include "trainer/command_line/near_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/command_line/command_line.h"

namespace {

constexpr size_t most_shown = 3, shortest_beginning = 3, longest_name = 40;

const std::map<std::string_view, std::string_view> elsewhere = {
    {"dataset", "train-data"},
    {"input", "train-data"},
    {"train-file", "train-data"},
    {"val-file", "val-data"},
    {"block-size", "seq-len"},
    {"sequence-length", "seq-len"},
    {"max-length", "seq-len"},
    {"n-layer", "layers"},
    {"n-head", "heads"},
    {"n-embd", "channels"},
    {"vocab-size", "vocab"},
    {"gradient-accumulation-steps", "total-batch"},
    {"total-batch-size", "total-batch"},
    {"learning-rate", "lr"},
    {"min-lr", "min-lr-fraction"},
    {"warmup-iters", "warmup"},
    {"warmup-steps", "warmup"},
    {"lr-scheduler-type", "schedule"},
    {"decay-lr", "schedule"},
    {"grad-clip", "clip"},
    {"max-grad-norm", "clip"},
    {"max-iters", "steps"},
    {"max-steps", "steps"},
    {"num-iterations", "steps"},
    {"num-train-epochs", "epochs"},
    {"eval-interval", "val-every"},
    {"eval-steps", "val-every"},
    {"eval-iters", "val-steps"},
    {"log-interval", "log-every"},
    {"logging-steps", "log-every"},
    {"out-dir", "out"},
    {"output-dir", "out"},
    {"save-steps", "checkpoint-every"},
    {"save-total-limit", "keep"},
    {"gradient-checkpointing", "recompute"},
    {"max-new-tokens", "max-tokens"},
    {"num-samples", "samples"},
    {"start", "prompt"},
};

// Edit distance: letters to insert, delete, replace, or swap with a neighbour, to turn a into b.
int edits(std::string_view a, std::string_view b) {
    std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
    std::iota(last.begin(), last.end(), 0);
    for (size_t i = 1; i <= a.size(); i++) {
        row[0] = static_cast<int>(i);
        for (size_t j = 1; j <= b.size(); j++) {
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before[j - 2] + 1);
        }
        before = std::exchange(last, row);
    }
    return last[b.size()];
}

std::vector<std::string> nearest(const std::vector<std::string>& names, const std::string& name) {
    int fewest = name.size() < 4 ? 1 : name.size() < 9 ? 2 : 3;
    std::vector<std::string> found;
    for (const std::string& other : names) {
        const int needed = edits(name, other);
        if (needed > fewest || needed >= static_cast<int>(std::min(name.size(), other.size()))) continue;
        if (needed < fewest) found.clear();
        fewest = needed;
        found.push_back(other);
    }
    return found;
}

std::vector<std::string> meant(const CLI::App& app, const std::string& name) {
    std::vector<std::string> names;
    for (const CLI::Option* option : options_of(app)) {
        for (const std::string& long_name : option->get_lnames()) names.push_back(long_name);
    }
    const auto is_one = [&](std::string_view other) {
        return std::find(names.begin(), names.end(), other) != names.end();
    };
    if (is_one(name)) return {name};
    if (const auto same = elsewhere.find(name); same != elsewhere.end() && is_one(same->second))
        return {std::string(same->second)};
    if (std::vector<std::string> near = nearest(names, name); !near.empty()) return near;
    if (name.size() >= shortest_beginning)
        std::erase_if(names, [&](const std::string& other) { return !other.starts_with(name); });
    else names.clear();
    return names;
}

}  // namespace

std::string did_you_mean(const CLI::App& app, const std::string& word) {
    const size_t dashes = std::min(word.find_first_not_of('-'), word.size());
    std::string name = word.substr(dashes, word.find('=', dashes) - dashes);
    if (name.empty() || name.size() > longest_name) return "";
    for (char& c : name) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    std::vector<std::string> options = meant(app, name);
    if (options.empty() || options.size() > most_shown) return "";
    for (std::string& option : options) option.insert(0, dashes > 0 ? "--" : "");
    const std::string last = options.back();
    options.pop_back();
    return fmt::format("; did you mean {}{}{}?", joined(options, ", "), options.empty() ? "" : " or ", last);
}
