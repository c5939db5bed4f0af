#include "trainer/data/input_files.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include "system/atomic_file.h"
#include "system/error.h"
#include "system/mapped_file.h"
#include "system/text_encoding.h"
#include "trainer/data/token_shard.h"

namespace fs = std::filesystem;

namespace {

constexpr char special_characters[] = "\\*?[]{},~";  // characters that are special in patterns

bool is_regular(const fs::path& path) {
    std::error_code unknown;
    return fs::is_regular_file(path, unknown);
}

bool is_directory(const fs::path& path) {
    std::error_code unknown;
    return fs::is_directory(path, unknown);
}

std::vector<std::string> matches_of(const std::string& pattern) {
    // An existing file or folder is taken literally, even if its name contains special characters.
    if (is_regular(pattern) || is_directory(pattern)) return {pattern};
    glob_t matches = {};
    const int result = glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &matches);
    std::vector<std::string> paths;
    if (result == 0) paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    globfree(&matches);
    return paths;
}

// A cache holds the same tokens as the text beside it. A temporary file is still being written, or its
// process was killed. A mask belongs to the shard beside it (token_shard.h).
bool is_passed_over(const fs::path& path) {
    const std::string name = path.filename();
    const bool mask = path.extension() == ".mask" && is_regular(fs::path(path).replace_extension(".bin"));
    return name.ends_with(cache_suffix) || is_temporary(name) || mask;
}

// std::nullopt: neither text nor shard.
std::optional<InputFile> input_file(const std::string& path) {
    const std::string ending = fs::path(path).extension();
    const MappedFile file(path);
    std::string first(std::min<size_t>(file.bytes().size(), 4096), '\0');
    file.copy(first.data(), 0, first.size());
    const bool shard = begins_as_shard(first);
    if (ending != ".txt" && shard) return InputFile{path, false};
    if (ending == ".bin") return std::nullopt;
    check_encoding(path, first);
    const bool text = ending == ".txt" || first.find('\0') == first.npos;
    return text ? std::optional(InputFile{path, true}) : std::nullopt;
}

std::vector<std::string> files_in(const std::string& folder) {
    std::vector<std::string> files;
    std::error_code failed;
    fs::recursive_directory_iterator entry(folder, failed);
    for (const fs::recursive_directory_iterator end; !failed && entry != end; entry.increment(failed)) {
        const fs::path& path = entry->path();
        if (path.filename().string().starts_with('.')) entry.disable_recursion_pending();
        else if (is_regular(path)) files.push_back(path);
    }
    if (failed) throw Error(fmt::format("{}: the folder cannot be read: {}", folder, failed.message()));
    return files;
}

std::vector<InputFile> inputs_in(const std::string& folder,
                                 const std::function<void(const std::string&)>& note) {
    std::vector<InputFile> inputs;
    std::vector<std::string> others;
    for (const std::string& path : files_in(folder)) {
        if (is_passed_over(path)) continue;
        if (const std::optional<InputFile> input = input_file(path)) inputs.push_back(*input);
        else others.push_back(path);
    }
    std::sort(others.begin(), others.end());
    CHECK(!inputs.empty(), "{}: the folder holds no token shards or texts", folder);
    if (note && !others.empty()) {
        note(fmt::format("{}: {} of its files {} neither text nor token shard, and left out: {}{}", folder,
                         others.size(), others.size() == 1 ? "is" : "are", others[0],
                         others.size() == 1 ? "" : " and others"));
    }
    return inputs;
}

}  // namespace

std::vector<InputFile> input_files(const std::string& pattern,
                                   const std::function<void(const std::string&)>& note) {
    std::vector<InputFile> inputs;
    for (const std::string& path : matches_of(pattern)) {
        if (is_directory(path)) {
            const std::vector<InputFile> more = inputs_in(path, note);
            inputs.insert(inputs.end(), more.begin(), more.end());
        } else if (path == pattern || !is_passed_over(path)) {
            // A file named .bin is meant to be a shard; opening it reports what is wrong with it.
            const std::optional<InputFile> input =
                path.ends_with(".bin") ? InputFile{path, false} : input_file(path);
            CHECK(input,
                  "{}: is neither text nor a token shard; expected a file of UTF-8 text, or what tokenize "
                  "wrote",
                  path);
            inputs.push_back(*input);
        }
    }
    CHECK(!inputs.empty(), "no file matches '{}'; expected token shards or texts", pattern);
    std::sort(inputs.begin(), inputs.end(),
              [](const InputFile& a, const InputFile& b) { return a.path < b.path; });
    // Overlapping patterns, or a folder and a file in it, give some files twice.
    const auto same = [](const InputFile& a, const InputFile& b) { return a.path == b.path; };
    inputs.erase(std::unique(inputs.begin(), inputs.end(), same), inputs.end());
    return inputs;
}

std::string one_pattern(const std::string& option, const std::vector<std::string>& values) {
    if (values.size() == 1) return values[0];
    std::string pattern;
    for (const std::string& value : values) {
        const bool exists = is_regular(value) || is_directory(value);
        CHECK(exists || value.find_first_of("*?[{~") != value.npos,
              "{}: {} is not there; expected files, folders, or patterns in quotes", option, value);
        pattern += pattern.empty() ? '{' : ',';
        for (const char character : value) {
            if (exists && std::string_view(special_characters).find(character) != std::string_view::npos)
                pattern += '\\';
            pattern += character;
        }
    }
    return pattern + '}';
}
