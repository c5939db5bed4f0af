#include "trainer/data/file_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <initializer_list>
#include <set>
#include <vector>

#include "system/atomic_file.h"
#include "system/error.h"
#include "system/file_reader.h"
#include "system/printable.h"
#include "system/text_encoding.h"
#include "trainer/data/input_files.h"
#include "trainer/data/token_shard.h"

namespace fs = std::filesystem;
using namespace std::string_view_literals;

namespace {

constexpr size_t looked_at = 4096;

// A format whose files contain text in a form that nobody means to train on. ? in `magic` is any byte, and {}
// in `advice` the path as a word for the shell.
struct Container {
    std::string_view magic, name, advice;
};
constexpr Container containers[] = {
    {"%PDF-"sv, "a PDF document", "convert it with: pdftotext {} document.txt"},
    {"\x1F\x8B"sv, "compressed by gzip", "unpack it with: zcat {} > unpacked.txt"},
    {"\x28\xB5\x2F\xFD"sv, "compressed by zstd", "unpack it with: zstdcat {} > unpacked.txt"},
    {"\xFD"
     "7zXZ"sv,
     "compressed by xz", "unpack it with: xzcat {} > unpacked.txt"},
    {"BZh?1AY&SY"sv, "compressed by bzip2", "unpack it with: bzcat {} > unpacked.txt"},
    {"\x04\x22\x4D\x18"sv, "compressed by lz4", "unpack it with: lz4cat {} > unpacked.txt"},
    {"PK\3\4"sv, "a zip archive or an office document", "unpack it, or save the document as plain text"},
    {"{\\rtf"sv, "a document in rich text format", "save it as plain text"},
    {"version https://git-lfs"sv, "git LFS's pointer to a file", "fetch the file with: git lfs pull"},
    {"PAR1"sv, "a Parquet file",
     "write its documents as JSON lines and pipe them into: tokenize --stream --out shards"},
};

std::string first_bytes(const std::string& path) { return FileReader(path).text(0, looked_at); }

const Container* container_of(std::string_view first) {
    const auto found = std::find_if(std::begin(containers), std::end(containers), [&](const Container& c) {
        const std::string_view begin = first.substr(0, c.magic.size());
        return std::ranges::equal(c.magic, begin,
                                  [](char wanted, char is) { return wanted == '?' || wanted == is; });
    });
    return found == std::end(containers) ? nullptr : found;
}

std::string in_lower_case(std::string text) {
    for (char& letter : text) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    return text;
}

bool is_one_of(const std::string& text, std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), text) != words.end();
}

}  // namespace

FileKind kind_of_file(const std::string& path) {
    const std::string ending = fs::path(path).extension();
    const std::string first = first_bytes(path);
    if (ending != ".txt" && begins_as_shard(first)) return FileKind::shard;
    if (ending == ".bin" || ending == ".txt") check_fetched(path, first);
    if (ending == ".bin" || container_of(first) != nullptr) return FileKind::other;
    check_encoding(path, first);
    return ending == ".txt" || first.find('\0') == first.npos ? FileKind::text : FileKind::other;
}

bool belongs_to_others(const std::string& path) {
    const fs::path name = fs::path(path).filename();
    try {
        if (name.string().ends_with(cache_suffix)) return begins_as_shard(first_bytes(path));
        if (name.string().ends_with("shards.json"))
            return first_bytes(path).find("\"tokenizer\"") != std::string::npos;
    } catch (const Error&) { return true; }  // one that may not be read is another user's
    std::error_code unknown;
    return is_temporary(name) || (name.extension() == ".mask" &&
                                  fs::is_regular_file(fs::path(path).replace_extension(".bin"), unknown));
}

std::string refusal_of_file(const std::string& path) {
    const Container* const container = container_of(first_bytes(path));
    if (container == nullptr)
        return fmt::format(
            "{}: is neither text nor a token shard; expected a file of UTF-8 text, or what tokenize wrote",
            path);
    return fmt::format("{}: is {}; expected a file of UTF-8 text, or what tokenize wrote; {}", path,
                       container->name, fmt::format(fmt::runtime(container->advice), in_shell(path)));
}

std::optional<std::string> note_on_syntax(const std::string& path) {
    const std::string ending = in_lower_case(fs::path(path).extension());
    if (is_one_of(ending, {".jsonl", ".ndjson"}))
        return fmt::format(
            "{}: is taken as it stands, JSON included; if its documents are meant: "
            "tokenize --stream --out shards < {}, and --train-data shards",
            path, in_shell(path));
    const char* syntax = is_one_of(ending, {".json", ".ipynb"})           ? "JSON"
                         : is_one_of(ending, {".csv", ".tsv"})            ? "separators and quotes"
                         : is_one_of(ending, {".html", ".htm", ".xhtml"}) ? "tags"
                         : is_one_of(ending, {".xml", ".svg", ".epub"})   ? "markup"
                                                                          : nullptr;
    if (syntax == nullptr) return std::nullopt;
    return fmt::format(
        "{}: is taken as it stands, {} included; if only its texts are meant, write them to a "
        ".txt file",
        path, syntax);
}

bool describes_folder(const std::string& path) {
    return is_one_of(in_lower_case(fs::path(path).stem()),
                     {"readme", "license", "licence", "copying", "notice", "changelog", "authors"});
}

static NamedSplit split_of_word(const std::string& word) {
    return is_one_of(word, {"train", "training"})                   ? NamedSplit::train
           : is_one_of(word, {"val", "valid", "validation", "dev"}) ? NamedSplit::val
           : is_one_of(word, {"test"})                              ? NamedSplit::test
                                                                    : NamedSplit::none;
}

SplitName split_name(const std::string& path, const std::string& root) {
    const fs::path below = fs::path(path).lexically_relative(root.empty() ? "." : root);
    SplitName name;
    for (const fs::path& folder : below.parent_path())
        if (const NamedSplit split = split_of_word(in_lower_case(folder)); split != NamedSplit::none)
            name.by_folder = split;
    std::vector<std::string> words{""};
    for (const char character : in_lower_case(below.filename()))
        if (std::string_view("_.- ").find(character) == std::string_view::npos) words.back() += character;
        else words.emplace_back();
    std::set<NamedSplit> said;
    for (const std::string& word : words) said.insert(split_of_word(word));
    said.erase(NamedSplit::none);
    if (said.size() == 1) name.by_name = *said.begin();
    if (path.ends_with(".bin")) return name;
    if (below.has_extension() && split_of_word(words.back()) == NamedSplit::none) words.pop_back();
    for (const std::string& word : words)
        if (split_of_word(word) == NamedSplit::none && word != "of" &&
            word.find_first_not_of("0123456789") != std::string::npos)
            name.rest += word + ' ';
    return name;
}
