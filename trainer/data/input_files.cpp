#include "trainer/data/input_files.h"

#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "system/error.h"
#include "trainer/data/file_kinds.h"
#include "trainer/data/progress_notes.h"

namespace fs = std::filesystem;

namespace {

bool is_regular(const fs::path& path) {
    std::error_code unknown;
    return fs::is_regular_file(path, unknown);
}

bool is_directory(const fs::path& path) {
    std::error_code unknown;
    return fs::is_directory(path, unknown);
}

// Device and inode, which two names of one file share; {0, 0} if the system does not say.
using FileId = std::pair<dev_t, ino_t>;
FileId id_of(const std::string& path) {
    struct stat status = {};
    return stat(path.c_str(), &status) == 0 ? FileId(status.st_dev, status.st_ino) : FileId(0, 0);
}

std::vector<std::string> matches_of(const std::string& pattern) {
    // An existing file or folder is taken literally, even if its name contains special characters.
    if (is_regular(pattern) || is_directory(pattern)) return {pattern};
    std::error_code failure;
    (void)fs::status(pattern, failure);
    CHECK(failure != std::errc::permission_denied && failure != std::errc::too_many_symbolic_link_levels,
          "{}: {}", pattern, failure.message());
    glob_t matches = {};
    static thread_local std::string unreadable;  // a folder
    unreadable.clear();
    const auto note_unreadable = [](const char* folder, int error) {
        if (error == EACCES) unreadable = folder;
        return 0;
    };
    const int result = glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, note_unreadable, &matches);
    std::vector<std::string> paths;
    if (result == 0) paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    globfree(&matches);
    CHECK(!paths.empty() || unreadable.empty(), "'{}': {}: Permission denied", pattern, unreadable);
    return paths;
}

// A value for a message. It may have been given in another folder than the present one, by a run that is
// resumed.
std::string in_quotes(const std::string& value) {
    std::error_code unknown;
    const std::string here = fs::path(value).is_relative() ? fs::current_path(unknown).string() : "";
    return here.empty() ? fmt::format("'{}'", value) : fmt::format("'{}' in {}", value, here);
}

bool by_path(const InputFile& a, const InputFile& b) { return a.path < b.path; }

// "a.txt", or "a.txt and 2 others".
std::string first_of(const std::vector<std::string>& paths) {
    if (paths.size() == 1) return paths[0];
    return fmt::format("{} and {} other{}", paths[0], paths.size() - 1, paths.size() == 2 ? "" : "s");
}

// A folder of one of our runs, or of a model, given by mistake: its JSON files would be trained on.
void refuse_other_folders(const std::string& folder) {
    constexpr const char* weights[] = {"/model.safetensors", "/model.safetensors.index.json",
                                       "/pytorch_model.bin", "/pytorch_model.bin.index.json"};
    const bool model = is_regular(folder + "/config.json") &&
                       std::any_of(std::begin(weights), std::end(weights),
                                   [&](const char* name) { return is_regular(folder + name); });
    CHECK(!model, "{}: is the folder of a model; expected token shards or texts", folder);
    CHECK(!is_regular(folder + "/metrics.jsonl") || !is_directory(folder + "/checkpoints"),
          "{}: is the folder of a run; expected token shards or texts", folder);
}

// The split of each file. A name that says val or test needs another that says train and is like it, so
// that ordinary words in the names of texts mean nothing; train/a.txt is like train.txt. Where a name says
// nothing, its folder does.
std::vector<NamedSplit> splits_of(const std::vector<InputFile>& files, const std::string& root) {
    std::vector<SplitName> names;
    std::set<std::string> trained;
    for (const InputFile& file : files) {
        const SplitName& name = names.emplace_back(split_name(file.path, root));
        if (name.by_name == NamedSplit::train) trained.insert(name.rest);
        if (name.by_folder == NamedSplit::train) trained.insert("");
    }
    std::vector<NamedSplit> splits;
    for (const SplitName& name : names) {
        const bool counts = name.by_name != NamedSplit::none && trained.contains(name.rest);
        splits.push_back(counts ? name.by_name : trained.empty() ? NamedSplit::none : name.by_folder);
    }
    return splits;
}

// The innermost folder that holds all of these files, which are at least one.
std::string root_of(const std::vector<InputFile>& files) {
    std::string root = files[0].path;
    for (const InputFile& file : files) {
        const auto [end, other] = std::mismatch(root.begin(), root.end(), file.path.begin(), file.path.end());
        root.erase(end, root.end());
    }
    return root.substr(0, root.find_last_of('/') + 1);
}

// A folder's files by what is done with them, for the notes.
struct FolderContents {
    std::vector<InputFile> files;
    std::vector<std::string> neither, links_to_folders, broken_links, second_names, left_out_texts, named_val,
        named_test, validation_files;
};

class Collector {
public:
    explicit Collector(const InputRules& rules) : rules_(rules) {
        for (const InputFile& file : rules.validation) validation_.insert(id_of(file.path));
    }

    void add(const std::string& value);
    Inputs finish();

private:
    void add_folder(const std::string& folder);
    void add_file(const std::string& path, bool is_literal);
    FolderContents contents_of(const std::string& folder) const;
    void divide(const std::string& folder, FolderContents& contents);
    void note_on_folder(const std::string& folder, const FolderContents& contents) const;
    void note_on_splits(const std::string& pattern, const std::vector<InputFile>& files) const;
    void note_on_repeats() const;
    void note_on_both() const;
    void say_both(const std::string& path) const {
        say(fmt::format(
            "{}: is trained on and validated on, so the validation loss says nothing about other texts",
            path));
    }
    void say(const std::string& line) const {
        if (rules_.note) rules_.note(line);
    }

    const InputRules& rules_;
    std::set<FileId> validation_;
    Inputs inputs_;
};

void Collector::add(const std::string& value) {
    const std::vector<std::string> matches = matches_of(value);
    const size_t before = inputs_.files.size();
    bool passed_over = false;
    for (const std::string& path : matches) {
        if (is_directory(path)) add_folder(path);
        else if (path == value || !belongs_to_others(path)) add_file(path, path == value);
        else passed_over = true;
    }
    CHECK(!matches.empty() && (inputs_.files.size() > before || !passed_over),
          "no file matches {}; expected token shards or texts", in_quotes(value));
    CHECK(inputs_.files.size() > before, "'{}' matches only files that --val-data names; expected others",
          value);
    if (matches.size() > 1)
        note_on_splits(value, {inputs_.files.begin() + ptrdiff_t(before), inputs_.files.end()});
}

// A pattern asks for every file that it matches.
void Collector::note_on_splits(const std::string& pattern, const std::vector<InputFile>& files) const {
    if (!rules_.note || rules_.sorted_once || rules_.split == Split::val) return;
    const std::vector<NamedSplit> splits = splits_of(files, root_of(files));
    std::vector<std::string> others;
    for (size_t i = 0; i < files.size(); i++)
        if (splits[i] == NamedSplit::val || splits[i] == NamedSplit::test) others.push_back(files[i].path);
    if (others.empty()) return;
    say(
        fmt::format("'{}' matches files that are named for validation or tests, and they are trained on like "
                    "the others: {}; to have them held out, name the folder instead of the pattern",
                    pattern, first_of(others)));
}

void Collector::add_file(const std::string& path, bool is_literal) {
    if (validation_.contains(id_of(path)) && !rules_.sorted_once) {
        if (!is_literal) return say(fmt::format("{}: is not trained on, because --val-data names it", path));
        say_both(path);
    }
    // A file named .bin is meant to be a shard; opening it reports what is wrong with it.
    const FileKind kind = path.ends_with(".bin") ? FileKind::shard : kind_of_file(path);
    if (kind == FileKind::other) throw UsageError(refusal_of_file(path));
    inputs_.files.push_back({path, kind == FileKind::text});
    if (kind != FileKind::text || !rules_.note) return;
    if (const std::optional<std::string> line = note_on_syntax(path)) rules_.note(*line);
}

FolderContents Collector::contents_of(const std::string& folder) const {
    FolderContents contents;
    std::vector<std::string> paths;
    std::error_code failed;
    fs::recursive_directory_iterator entry(folder, failed);
    for (const fs::recursive_directory_iterator end; !failed && entry != end; entry.increment(failed)) {
        const std::string path = entry->path();
        std::error_code unknown;
        const bool is_link = entry->is_symlink(unknown);
        if (entry->path().filename().string().starts_with('.')) entry.disable_recursion_pending();
        else if (is_regular(path)) paths.push_back(path);
        else if (is_link && is_directory(path)) contents.links_to_folders.push_back(path);
        else if (is_link) contents.broken_links.push_back(path);
        else if (!is_directory(path)) contents.neither.push_back(path);  // a named pipe, for example
    }
    if (failed) throw Error(fmt::format("{}: the folder cannot be read: {}", folder, failed.message()));
    std::sort(paths.begin(), paths.end());
    std::set<FileId> seen;
    ProgressNotes progress(rules_.note);
    size_t done = 0;
    for (const std::string& path : paths) {
        progress.at([&] { return fmt::format("{}: looking at file {} of {}", folder, done, paths.size()); });
        done++;
        if (belongs_to_others(path)) continue;
        const FileId id = id_of(path);
        if (!rules_.sorted_once && !seen.insert(id).second) {
            contents.second_names.push_back(path);
            continue;
        }
        const FileKind kind = kind_of_file(path);
        if (kind == FileKind::other) contents.neither.push_back(path);
        else if (validation_.contains(id) && !rules_.sorted_once) contents.validation_files.push_back(path);
        else contents.files.push_back({path, kind == FileKind::text});
    }
    for (auto* links : {&contents.links_to_folders, &contents.broken_links})
        std::sort(links->begin(), links->end());
    return contents;
}

// Leaves those files in `contents` that the folder stands for.
void Collector::divide(const std::string& folder, FolderContents& contents) {
    std::vector<InputFile>& files = contents.files;
    const auto is_text = [](const InputFile& file) { return file.text; };
    if (!std::all_of(files.begin(), files.end(), is_text)) {
        for (const InputFile& file : files)
            if (file.text) contents.left_out_texts.push_back(file.path);
        std::erase_if(files, is_text);
    }
    const std::vector<NamedSplit> splits = splits_of(files, folder);
    std::vector<InputFile> val, rest;
    for (size_t i = 0; i < files.size(); i++) {
        if (splits[i] == NamedSplit::val) val.push_back(files[i]);
        else if (splits[i] == NamedSplit::test) contents.named_test.push_back(files[i].path);
        else rest.push_back(files[i]);
    }
    for (const InputFile& file : val) contents.named_val.push_back(file.path);
    inputs_.named_val.insert(inputs_.named_val.end(), val.begin(), val.end());
    files = rules_.split == Split::val && !val.empty() ? std::move(val) : std::move(rest);
}

void Collector::add_folder(const std::string& folder) {
    if (!rules_.sorted_once) refuse_other_folders(folder);
    FolderContents contents = contents_of(folder);
    if (!rules_.sorted_once) divide(folder, contents);
    CHECK(!contents.files.empty() || !contents.validation_files.empty(),
          "{}: the folder holds no token shards or texts", folder);
    CHECK(!contents.files.empty(),
          "{}: --val-data names all files of the folder; expected others to train on", folder);
    inputs_.files.insert(inputs_.files.end(), contents.files.begin(), contents.files.end());
    if (rules_.note && !rules_.sorted_once) note_on_folder(folder, contents);
}

void Collector::note_on_folder(const std::string& folder, const FolderContents& contents) const {
    const auto note = [&](const std::vector<std::string>& paths, const char* one, const char* several,
                          const std::string& what) {
        if (paths.empty()) return;
        say(fmt::format("{}: {} {} {}: {}", folder, paths.size(), paths.size() == 1 ? one : several, what,
                        first_of(paths)));
    };
    note(contents.neither, "of its files is", "of its files are",
         "neither text nor token shard, and left out");
    note(contents.links_to_folders, "link to a folder is", "links to folders are",
         "not followed; to take the folder too, name it after this one");
    note(contents.broken_links, "link leads", "links lead", "nowhere");
    note(contents.second_names, "of its files has", "of its files have",
         "a second name in the folder, and counts once");
    note(contents.left_out_texts, "text is", "texts are",
         "left out beside the token shards; to train on texts too, name them after the folder");
    note(contents.validation_files, "of its files is", "of its files are",
         "named by --val-data, and not trained on");
    note(contents.named_val, "of its files is", "of its files are",
         validation_.empty() ? "for validation, as named"
                             : "for validation, as named, and left out, because --val-data names others");
    note(contents.named_test, "of its files is", "of its files are", "for tests, as named, and left out");
    std::vector<std::string> described;
    std::map<std::string, std::vector<std::string>> with_syntax;  // by the name's ending
    for (const InputFile& file : contents.files) {
        if (!file.text) continue;
        if (describes_folder(file.path)) described.push_back(file.path);
        if (note_on_syntax(file.path)) with_syntax[fs::path(file.path).extension()].push_back(file.path);
    }
    if (described.size() < contents.files.size())
        note(described, "file that describes the folder is", "files that describe the folder are",
             "taken as texts like the others; to leave them out, name the others instead of the folder");
    for (const auto& [ending, paths] : with_syntax) {
        say(*note_on_syntax(paths[0]));
        if (paths.size() > 1)
            say(fmt::format("{}: the same holds for {} other files called *{}", folder, paths.size() - 1,
                            ending));
    }
}

void Collector::note_on_repeats() const {
    std::map<FileId, size_t> times;
    for (const InputFile& file : inputs_.files) times[id_of(file.path)]++;
    std::vector<std::string> repeated;
    for (const InputFile& file : inputs_.files) {
        size_t& count = times[id_of(file.path)];
        if (count > 1) repeated.push_back(fmt::format("{} ({} times)", file.path, count));
        count = 1;
    }
    if (!repeated.empty())
        say(fmt::format("given more than once, and counted as often: {}", first_of(repeated)));
}

// A folder's validation files may be named by themselves, too.
void Collector::note_on_both() const {
    std::set<FileId> trained;
    for (const InputFile& file : inputs_.files) trained.insert(id_of(file.path));
    for (const InputFile& file : inputs_.named_val)
        if (trained.contains(id_of(file.path))) say_both(file.path);
}

Inputs Collector::finish() {
    std::vector<InputFile>& files = inputs_.files;
    if (rules_.sorted_once) {
        std::sort(files.begin(), files.end(), by_path);
        const auto same = [](const InputFile& a, const InputFile& b) { return a.path == b.path; };
        files.erase(std::unique(files.begin(), files.end(), same), files.end());
    } else if (rules_.note) {
        note_on_repeats();
        if (rules_.split == Split::train && validation_.empty()) note_on_both();
    }
    return std::move(inputs_);
}

}  // namespace

void check_matches(const std::vector<std::string>& values) {
    for (const std::string& value : values)
        CHECK(!matches_of(value).empty(), "no file matches {}; expected token shards or texts",
              in_quotes(value));
}

Inputs input_files(const std::vector<std::string>& values, const InputRules& rules) {
    Collector collector(rules);
    for (const std::string& value : values) collector.add(value);
    return collector.finish();
}
