#include "trainer/run/resume.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <set>
#include <span>

#include "system/atomic_file.h"
#include "system/file_access.h"
#include "system/file_reader.h"
#include "system/json_text.h"
#include "system/note.h"
#include "trainer/run/logger.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// The folder of the run that the checkpoint belongs to; "" if it is not in a run's folder.
std::string run_of(const std::string& checkpoint) {
    const fs::path checkpoints =
        fs::absolute(checkpoint + "/").lexically_normal().parent_path().parent_path();
    return checkpoints.filename() == "checkpoints" ? checkpoints.parent_path().string() : "";
}

bool same_folder(const std::string& a, const std::string& b) {
    std::error_code absent;
    return fs::equivalent(a, b, absent);
}

// The run's checkpoints of later steps: damaged and passed over, or left behind on purpose.
std::vector<CheckpointFolder> newer_than(const std::string& run, int step) {
    std::vector<CheckpointFolder> folders = checkpoint_folders(run);
    std::erase_if(folders, [&](const CheckpointFolder& folder) { return folder.step <= step; });
    return folders;
}

std::string value_text(const json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
}

// Names the checksum of texts in a run's identity.
constexpr const char* texts_name = "train-texts";

// Identifies the tokens independently of their files' names: their number, and a checksum of 64 places in
// each shard.
std::string identity_of(std::span<const TokenShard> shards) {
    constexpr size_t places = 64, tokens_a_place = 256;
    XXH3_state_t* hash = XXH3_createState();
    XXH3_64bits_reset(hash);
    size_t tokens = 0;
    std::array<uint16_t, tokens_a_place> place_tokens;
    for (const TokenShard& shard : shards) {
        const size_t size = shard.size();
        XXH3_64bits_update(hash, &size, sizeof(size));
        for (size_t place = 0; place < places; place++) {
            const size_t begin = size < tokens_a_place ? 0 : (size - tokens_a_place) / (places - 1) * place;
            const std::span<uint16_t> read =
                std::span(place_tokens).first(std::min(size - begin, tokens_a_place));
            shard.read(read, begin);
            XXH3_64bits_update(hash, read.data(), read.size_bytes());
            if (!shard.has_mask()) continue;
            std::array<uint8_t, tokens_a_place> place_mask;
            const std::span<uint8_t> mask = std::span(place_mask).first(read.size());
            shard.read_mask(mask, begin);
            XXH3_64bits_update(hash, mask.data(), mask.size());
        }
        tokens += size;
    }
    const uint64_t digest = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return fmt::format("{} tokens in {} file{}, checksum {:016x}", tokens, shards.size(),
                       shards.size() == 1 ? "" : "s", digest);
}

// A checksum of every byte of the texts, because texts are edited more easily than shards; null if the data
// has none.
json text_identity_of(std::span<const TokenShard> shards) {
    for (const TokenShard& shard : shards)
        if (shard.content_hash() != 0) return fmt::format("texts, checksum {:016x}", shard.content_hash());
    return json();
}

// Renames path to a free name with the suffix `word` and returns that name.
std::string set_aside(const std::string& path, const std::string& word) {
    const std::string aside = free_name(path, word);
    std::error_code failure;
    fs::rename(path, aside, failure);
    if (failure) throw Error(fmt::format("{}: cannot be renamed: {}", path, failure.message()));
    return aside;
}

void set_aside(const std::vector<CheckpointFolder>& folders, const std::string& word, const Note& note) {
    for (const CheckpointFolder& folder : folders)
        note(fmt::format("the {} checkpoint of step {} is now called {}", word, folder.step,
                         set_aside(folder.path, word)));
}

// True if the folder is still as find_resume_point found it. Another process may have trained there
// before this one held its lock.
bool is_as_found(const ResumePoint& from) {
    if (from.is_new) return !is_run_folder(from.run_folder);
    std::vector<CheckpointFolder> known;
    for (const auto* folders : {&from.damaged, &from.unreadable, &from.later})
        known.insert(known.end(), folders->begin(), folders->end());
    std::sort(known.begin(), known.end(),
              [](const CheckpointFolder& a, const CheckpointFolder& b) { return a.step < b.step; });
    return newer_than(from.run_folder, from.step()) == known &&
           (from.checkpoint.empty() || is_there(from.checkpoint));
}

// True if the run's tokenizer had this name before added tokens were found in texts. If that changes the
// tokens of the run's texts, the data differ, too.
bool is_former_name(const json& name, const Options& options) {
    return make_tokenizer(options.data.tokenizer)->former_name() == name;
}

bool belongs(const json& line, int step, bool evaluated) {
    if (!line.is_object() || !line.contains("kind")) return false;
    const json at = line.value(line["kind"] == "run" ? "resumed_from" : "step", json(0));
    if (!at.is_number_integer() || at > step) return false;
    return at < step || evaluated ||
           (line["kind"] != "val" && line["kind"] != "hellaswag" && line["kind"] != "sample");
}

}  // namespace

int ResumePoint::batch_size(const Options& options) const {
    Options same = options;
    same.batch.size = state.batch_size;
    return state.batch_size > 0 && options.batch.total % same.micro_batch_tokens() == 0 ? state.batch_size
                                                                                        : 0;
}

bool ResumePoint::is_unnamed() const { return is_temporary(fs::path(checkpoint).filename()); }

bool ResumePoint::is_complete(int steps) const {
    CHECK(step() <= steps,
          "{} is at step {} already, but the run has {} steps; expected more steps or an earlier checkpoint",
          checkpoint, step(), steps);
    return !checkpoint.empty() && step() == steps && state.evaluated && !is_unnamed();
}

static ResumePoint new_run(const Options& options) {
    ResumePoint point;
    point.is_proposed = options.output.folder.empty();
    point.run_folder = point.is_proposed ? new_run_folder() : options.output.folder;
    point.is_new = true;
    // if another run has taken the name by now, make_new_folder finds another one
    if (point.is_proposed) return point;
    CHECK(!is_checkpoint_folder(point.run_folder) && !holds_checkpoints(point.run_folder),
          "--out {} is the checkpoints folder of a run; expected a folder for a new run",
          options.output.folder);
    CHECK(!is_run_folder(point.run_folder),
          "--out {} holds another run; expected a new or empty folder, or --resume auto to continue "
          "that run",
          options.output.folder);
    return point;
}

static ResumePoint newest_of_run(const std::string& run, const Note& note) {
    ResumePoint point;
    point.run_folder = run;
    NewestCheckpoint newest = find_newest_checkpoint(run, note);
    const std::vector<CheckpointFolder> unnamed =
        unnamed_checkpoints(run, newest.path.empty() ? 0 : newest.state.step);
    if (!unnamed.empty()) {
        newest.path = unnamed.front().path;
        newest.state = read_state(newest.path);
    }
    if (newest.path.empty()) return point;
    point.checkpoint = newest.path;
    point.state = std::move(newest.state);
    point.metrics = metrics_file(run);
    point.damaged = std::move(newest.damaged);
    point.unreadable = std::move(newest.unreadable);
    for (auto* others : {&point.damaged, &point.unreadable})
        std::erase_if(*others, [&](const CheckpointFolder& folder) { return folder.step <= point.step(); });
    return point;
}

static ResumePoint given_checkpoint(const std::string& path) {
    ResumePoint point;
    point.run_folder = run_of(path);
    point.checkpoint = path;
    point.state = whole_checkpoint(path);
    if (!point.run_folder.empty()) {
        point.metrics = metrics_file(point.run_folder);
        point.later = newer_than(point.run_folder, point.state.step);
    }
    return point;
}

// A link to a disk that is not mounted must not look like a run without checkpoints.
static void check_link_to_checkpoints(const std::string& run) {
    const std::string path = checkpoints_folder(run);
    std::error_code absent;
    const bool is_link = !run.empty() && fs::is_symlink(fs::symlink_status(path, absent));
    CHECK(!is_link || is_there(path),
          "{}: is a link to {}, which is not there; expected a folder; is its disk mounted?", path,
          fs::read_symlink(path, absent).string());
}

ResumePoint find_resume_point(const Options& options, const Note& note) {
    for (const std::string& run : {options.output.folder, options.output.resume})
        check_link_to_checkpoints(run);
    if (options.output.resume == "none") return new_run(options);
    if (options.output.resume == "auto") {
        CHECK(!options.output.folder.empty(), "--resume auto needs --out, the folder of the run to continue");
        if (!is_run_folder(options.output.folder)) return new_run(options);
        ResumePoint point = newest_of_run(options.output.folder, note);
        point.over_again = point.checkpoint.empty();
        return point;
    }
    const std::string& path = options.output.resume;
    CHECK(is_run_folder(path) || is_checkpoint_folder(path),
          "--resume {}: is neither a checkpoint nor a run's folder; expected one of them, none or auto",
          path);
    ResumePoint point = is_run_folder(path) ? newest_of_run(path, note) : given_checkpoint(path);
    CHECK(!point.checkpoint.empty(),
          "--resume {}: the run has no checkpoint yet; --resume auto --out {} starts it from step 1", path,
          path);
    if (point.run_folder.empty() ||
        (!options.output.folder.empty() && !same_folder(options.output.folder, point.run_folder))) {
        // The run branches off: everything beside the checkpoint stays as it is.
        const ResumePoint branch = new_run(options);
        point.run_folder = branch.run_folder;
        point.is_proposed = branch.is_proposed;
        point.is_new = true;
        point.damaged.clear();
        point.unreadable.clear();
        point.later.clear();
    }
    return point;
}

json run_identity(const Options& o, const Tokenizer& tokenizer, std::span<const TokenShard> train) {
    return {{"layers", o.model.config.L},
            {"heads", o.model.config.NH},
            {"channels", o.model.config.C},
            {"context", o.model.config.context},
            {"vocab", o.model.config.V},
            {"tokenizer", tokenizer.name()},
            {"seq-len", o.batch.seq_len},
            {"total-batch", o.batch.total},
            {"data-order", o.data.order},
            {"optimizer", o.values.at("optimizer")},
            {"seed", o.system.seed},
            {"train-data", identity_of(train)},
            {texts_name, text_identity_of(train)}};
}

// Checkpoints of versions up to November 2026 have no checksum of texts, nor has a run that goes on with the
// shards that tokenize made of its texts.
static bool is_same(const ResumePoint& from, const json& identity, const std::string& name) {
    const json before = from.state.identity.value(name, json()), now = identity.value(name, json());
    return before == now || (name == texts_name && (before.is_null() || now.is_null()));
}

bool is_same_data(const ResumePoint& from, const json& identity) {
    return from.checkpoint.empty() ||
           (is_same(from, identity, "train-data") && is_same(from, identity, texts_name));
}

void check_same_run(const ResumePoint& from, const json& identity, size_t train_texts, const Options& options,
                    const Note& note) {
    if (from.checkpoint.empty()) return;
    std::string different;
    for (const auto& [name, value] : identity.items()) {
        const json before = from.state.identity.value(name, json());
        if (is_same(from, identity, name) || (name == "tokenizer" && is_former_name(before, options)))
            continue;
        different +=
            fmt::format("{}--{} {} instead of {}", different.empty() ? "" : ", ",
                        name == texts_name ? "train-data" : name, value_text(value), value_text(before));
    }
    // Up to November 2026, each text was a file of tokens by itself.
    const char* const texts = train_texts > 1 && !is_same_data(from, identity)
                                  ? "; if an older version began it: several texts are joined now, so such a "
                                    "run cannot go on"
                                  : "";
    CHECK(different.empty(),
          "{} belongs to another run: {}; expected the same model, data and order of samples{}",
          from.checkpoint, different, texts);
    std::string changed;
    for (const auto& [name, value] : options.values.items()) {
        const json before = from.state.options.value(name, json());
        const auto scope = options.scopes.find(name);
        // --world-size is the number of processes that the launcher started; another number sums in
        // another order.
        const bool is_training =
            name == "world-size" || (scope != options.scopes.end() && scope->second == Scope::training);
        if (before != value && !before.is_null() && is_training)
            changed += fmt::format("{}--{} {} instead of {}", changed.empty() ? "" : ", ", name,
                                   value_text(value), value_text(before));
    }
    if (!changed.empty())
        note(fmt::format("changed options that affect what is computed from here on: {}", changed));
}

std::string metrics_up_to(const std::string& text, int step, bool evaluated) {
    std::string kept;
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        const std::string line = text.substr(begin, end + 1 - begin);
        if (belongs(parse_json(line), step, evaluated)) kept += line;
    }
    return kept;
}

// Names a whole checkpoint that a killed process left under a temporary name.
static void take_back(ResumePoint& from, const Note& note) {
    const std::string path = checkpoint_folder(from.run_folder, from.step());
    std::error_code failure;
    fs::rename(from.checkpoint, path, failure);
    if (failure) throw Error(fmt::format("{}: cannot be renamed: {}", from.checkpoint, failure.message()));
    note(fmt::format("{} is a whole checkpoint; it is now called {}", from.checkpoint, path));
    from.checkpoint = path;
}

// The steps from 1 to `step` that have no train line in these metrics, such as "3, 7 to 9"; "" if there
// are none.
static std::string steps_without_line(const std::string& metrics, int step) {
    std::vector<bool> has_line(static_cast<size_t>(step) + 1);
    for (size_t begin = 0, end; (end = metrics.find('\n', begin)) != std::string::npos; begin = end + 1) {
        const json line = parse_json(metrics.substr(begin, end - begin));
        if (line.at("kind") != "train") continue;
        const auto number = line.value("step", int64_t{0});
        if (number > 0) has_line[static_cast<size_t>(number)] = true;
    }
    std::string steps;
    for (size_t first = 1, last; first < has_line.size(); first = last + 1) {
        last = first;
        if (has_line[first]) continue;
        while (last + 1 < has_line.size() && !has_line[last + 1]) last++;
        steps += fmt::format("{}{}", steps.empty() ? "" : ", ", first);
        if (last > first) steps += fmt::format(" to {}", last);
    }
    return steps;
}

// metrics: the run's lines up to the checkpoint and beyond; std::nullopt if the file is gone.
static void cut_metrics(const ResumePoint& from, const std::optional<std::string>& metrics,
                        const Note& note) {
    if (from.metrics.empty()) return;
    const std::string kept = metrics_up_to(metrics.value_or(""), from.step(), from.state.evaluated);
    if (metrics) write_atomically(metrics_file(from.run_folder), kept);
    const std::string steps = steps_without_line(kept, from.step());
    if (!steps.empty()) note(fmt::format("{} has no lines for these steps: {}", from.metrics, steps));
}

FolderLock prepare_run_folder(ResumePoint& from, const Note& note) {
    std::error_code failure;
    make_folders(from.run_folder, failure);
    CHECK(!failure, "--out {}: {}; expected a folder that can be written", from.run_folder,
          failure.message());
    FolderLock lock(from.run_folder, "training", note);
    CHECK(is_as_found(from),
          "{}: another process has written there while this one was starting; nothing was changed, start "
          "again",
          from.run_folder);
    remove_leftovers(from.run_folder, "metrics.jsonl");
    const std::string path = metrics_file(from.run_folder), checkpoints = checkpoints_folder(from.run_folder);
    // The metrics are read before anything changes.
    std::optional<std::string> metrics;
    if (!from.checkpoint.empty() && is_there(from.metrics)) metrics = FileReader(from.metrics).text();
    if (from.is_unnamed() && !from.is_new) take_back(from, note);
    remove_leftovers(checkpoints, "step_");
    set_aside(from.damaged, "damaged", note);
    set_aside(from.unreadable, "unreadable", note);
    set_aside(from.later, "superseded", note);
    // The metrics are cut only after the renames are durable; otherwise checkpoints of later steps would
    // lack their lines.
    if (is_there(checkpoints)) sync_folder(checkpoints);
    if (from.over_again) {
        note(
            fmt::format("{} holds a run without a checkpoint; it starts again from step 1", from.run_folder));
        if (is_there(path)) note(fmt::format("its metrics are now called {}", set_aside(path, "superseded")));
    } else if (!from.checkpoint.empty()) {
        cut_metrics(from, metrics, note);
        note(fmt::format("continuing from step {} of {}", from.state.step, from.checkpoint));
    }
    return lock;
}
