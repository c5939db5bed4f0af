#include "trainer/run/resume.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>

#include "system/atomic_file.h"
#include "system/file_access.h"
#include "system/file_reader.h"
#include "system/json_text.h"
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

// The metrics and the checkpoints that a folder holds. They are compared when the run is found and again
// under the folder's lock, because another process may have trained there in between.
std::vector<std::string> contents_of_run(const std::string& folder) {
    std::vector<std::string> contents;
    if (is_there(metrics_file(folder))) contents.push_back(metrics_file(folder));
    if (is_folder(checkpoints_folder(folder))) contents.push_back(checkpoints_folder(folder));
    for (const fs::path& path : entries_of(checkpoints_folder(folder)))
        if (path.filename().string().starts_with("step_")) contents.push_back(path);
    std::sort(contents.begin(), contents.end());
    return contents;
}

// Names the checksum of texts in a run's identity.
constexpr const char* texts_name = "train-texts";

// Identifies the tokens independently of their files' names: their number, and a checksum of 64 samples of
// each shard.
std::string identity_of(std::span<const TokenShard> shards) {
    constexpr size_t samples = 64, sample_tokens = 256;
    XXH3_state_t* hash = XXH3_createState();
    XXH3_64bits_reset(hash);
    size_t tokens = 0;
    std::array<Token, sample_tokens> sample;
    for (const TokenShard& shard : shards) {
        const size_t size = shard.size();
        XXH3_64bits_update(hash, &size, sizeof(size));
        for (size_t i = 0; i < samples; i++) {
            const size_t begin = size < sample_tokens ? 0 : (size - sample_tokens) / (samples - 1) * i;
            const std::span<Token> read = std::span(sample).first(std::min(size - begin, sample_tokens));
            shard.read(read, begin);
            // The checksum is that of the bytes in the shard.
            std::array<uint16_t, sample_tokens> narrow;
            std::transform(read.begin(), read.end(), narrow.begin(),
                           [](Token token) { return static_cast<uint16_t>(token); });
            const bool wide = shard.token_bytes() == sizeof(Token);
            XXH3_64bits_update(hash, wide ? static_cast<const void*>(read.data()) : narrow.data(),
                               read.size() * shard.token_bytes());
            if (!shard.has_mask()) continue;
            std::array<uint8_t, sample_tokens> sample_mask;
            const std::span<uint8_t> mask = std::span(sample_mask).first(read.size());
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

// True if the run's tokenizer had this name before added tokens were found in texts. If that changes the
// tokens of the run's texts, the data differ, too.
bool is_former_name(const json& name, const Options& options) {
    return make_tokenizer(options.data.tokenizer)->former_name() == name;
}

// The step of a line of metrics.jsonl, or from which it resumed; std::nullopt if that is no step, which
// no program of ours writes. Other programs may write 3 as 3.0.
std::optional<double> step_of(const json& line) {
    if (!line.is_object() || !line.contains("kind")) return std::nullopt;
    const json at = line.value(line["kind"] == "run" ? "resumed_from" : "step", json(0));
    const double step = at.is_number() ? at.get<double>() : -1;
    return step >= 0 && step == std::trunc(step) ? std::optional(step) : std::nullopt;
}

bool belongs(const json& line, double at, int step, bool evaluated) {
    if (at != step) return at < step;
    return evaluated || (line["kind"] != "val" && line["kind"] != "hellaswag" && line["kind"] != "sample");
}

}  // namespace

int ResumePoint::batch_size(const Options& options) const {
    Options same = options;
    same.batch.size = state.batch_size;
    return state.batch_size > 0 && options.batch.total % same.micro_batch_tokens() == 0 ? state.batch_size
                                                                                        : 0;
}

bool ResumePoint::is_complete(int steps) const {
    CHECK(step() <= steps,
          "{} is at step {} already, but the run has {} steps; expected more steps or an earlier checkpoint",
          checkpoint, step(), steps);
    return !checkpoint.empty() && step() == steps && state.evaluated &&
           !is_temporary(fs::path(checkpoint).filename());
}

static ResumePoint new_run(const Options& options) {
    const std::string& out = options.output.folder;
    // if another run has taken the proposed name by now, make_new_folder finds another one
    if (out.empty()) return {.run_folder = new_run_folder(), .is_proposed = true};
    CHECK(!is_checkpoint_folder(out) && !holds_checkpoints(out),
          "--out {} is the checkpoints folder of a run; expected a folder for a new run", out);
    CHECK(!is_run_folder(out),
          "--out {} holds another run; expected a new or empty folder, or --resume auto to continue that run",
          out);
    return {.run_folder = out};
}

static ResumePoint newest_of_run(const std::string& run, const Note& note) {
    ResumePoint point{.run_folder = run, .found = contents_of_run(run), .metrics = metrics_file(run)};
    NewestCheckpoint newest = newest_checkpoint(run, note, CheckpointNames::temporary_too);
    point.checkpoint = std::move(newest.path);
    point.state = std::move(newest.state);
    point.set_aside = std::move(newest.passed_over);
    return point;
}

static ResumePoint given_checkpoint(const std::string& path) {
    ResumePoint point{.run_folder = run_of(path),
                      .checkpoint = fs::path(path + "/").lexically_normal().parent_path(),
                      .state = whole_checkpoint(path)};
    if (point.run_folder.empty()) return point;
    point.found = contents_of_run(point.run_folder);
    point.metrics = metrics_file(point.run_folder);
    for (const CheckpointFolder& folder : checkpoint_folders(point.run_folder))
        if (folder.step > point.step()) point.set_aside.push_back({folder, "superseded"});
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
        return newest_of_run(options.output.folder, note);
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
        ResumePoint branch = new_run(options);
        branch.checkpoint = point.checkpoint;
        branch.state = point.state;
        branch.metrics = point.metrics;
        return branch;
    }
    return point;
}

json run_identity(const Options& o, const Tokenizer& tokenizer, std::span<const TokenShard> train) {
    json identity = {{"tokenizer", tokenizer.name()},         {"seq-len", o.batch.seq_len},
                     {"total-batch", o.batch.total},          {"data-order", o.data.order},
                     {"optimizer", o.values.at("optimizer")}, {"seed", o.system.seed},
                     {"train-data", identity_of(train)},      {texts_name, text_identity_of(train)}};
    identity.update(sizes_of(o.model.config));
    // Runs of GPT-2 do not write their family.
    if (o.model.config.family != families().front().name) identity["family"] = o.model.config.family;
    return identity;
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
    const auto family = [](const json& of) {
        const std::string name = of.value("family", std::string(families().front().name));
        return family_of({.family = name}).title;
    };
    const std::string now = family(identity), then = family(from.state.identity);
    if (now != then) different = fmt::format("a {} instead of a {}", now, then);
    for (const auto& [name, value] : identity.items()) {
        const json before = from.state.identity.value(name, json());
        if (now != then || is_same(from, identity, name) ||
            (name == "tokenizer" && is_former_name(before, options)))
            continue;
        different +=
            fmt::format("{}--{} {} instead of {}", different.empty() ? "" : ", ",
                        name == texts_name ? "train-data" : name, plain_text(value), plain_text(before));
    }
    const auto validates = [](const json& given) {
        return given.contains("val-data") && given["val-data"] != "";
    };
    const char* const held_out =
        validates(from.state.options) != validates(options.values) && train_texts > 0 &&
                !is_same_data(from, identity)
            ? "; without --val-data, the last tenth of the texts is held out of the training data"
            : "";
    // Up to November 2026, each text was a file of tokens by itself.
    const char* const texts = train_texts > 1 && !is_same_data(from, identity)
                                  ? "; if an older version began it: several texts are joined now, so such a "
                                    "run cannot go on"
                                  : "";
    CHECK(different.empty(),
          "{} belongs to another run: {}; expected the same model, data and order of samples{}{}",
          from.checkpoint, different, held_out, texts);
    std::string changed;
    for (const auto& [name, value] : options.values.items()) {
        const json before = from.state.options.value(name, json());
        const auto scope = options.scopes.find(name);
        // --world-size is the number of processes that the launcher started; another number sums in
        // another order.
        const bool is_training =
            name == "world-size" || (scope != options.scopes.end() && scope->second == Scope::training);
        const bool is_said = name == "steps" && value == "";  // by --epochs or --tokens
        if (before != value && !before.is_null() && is_training && !is_said)
            changed += fmt::format("{}--{} {} instead of {}", changed.empty() ? "" : ", ", name,
                                   value == "" ? "none" : plain_text(value),
                                   before == "" ? "none" : plain_text(before));
    }
    if (!changed.empty())
        note(fmt::format("changed options that affect what is computed from here on: {}", changed));
}

std::string metrics_up_to(const std::string& text, int step, bool evaluated, size_t* damaged) {
    std::string kept;
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        const std::string line = text.substr(begin, end + 1 - begin);
        if (line == "\n") continue;
        const json parsed = parse_json(line);
        const std::optional<double> at = step_of(parsed);
        if (!at && damaged) ++*damaged;
        if (at && belongs(parsed, *at, step, evaluated)) kept += line;
    }
    return kept;
}

// The steps from 1 to `step` that have no train line in these metrics, such as "3, 7 to 9"; "" if there
// are none.
static std::string steps_without_line(const std::string& metrics, int step) {
    std::vector<int64_t> with_line{int64_t{step} + 1};
    for (size_t begin = 0, end; (end = metrics.find('\n', begin)) != std::string::npos; begin = end + 1) {
        const json line = parse_json(metrics.substr(begin, end - begin));
        if (line.at("kind") == "train") with_line.push_back(line.value("step", int64_t{0}));
    }
    std::ranges::sort(with_line);
    std::string steps;
    int64_t first = 1;
    for (const int64_t next : with_line) {
        if (next > first) steps += fmt::format("{}{}", steps.empty() ? "" : ", ", first);
        if (next > first + 1) steps += fmt::format(" to {}", next - 1);
        first = std::max(first, next + 1);
    }
    return steps;
}

// metrics: the run's lines up to the checkpoint and beyond; std::nullopt if the file is gone.
static void cut_metrics(const ResumePoint& from, const std::optional<std::string>& metrics,
                        const Note& note) {
    if (from.metrics.empty()) return;
    size_t damaged = 0;
    const std::string kept = metrics_up_to(metrics.value_or(""), from.step(), from.state.evaluated, &damaged);
    if (damaged > 0)
        note(fmt::format("{}: {} line{} left out: no JSON object with a kind and a step", from.metrics,
                         damaged, damaged == 1 ? " is" : "s are"));
    if (metrics) write_atomically(metrics_file(from.run_folder), kept);
    const std::string steps = steps_without_line(kept, from.step());
    if (!steps.empty()) note(fmt::format("{} has no lines for these steps: {}", from.metrics, steps));
}

// Leaves nothing newer than the checkpoint under a checkpoint's name, and the checkpoint under its own.
static void tidy_checkpoints(ResumePoint& from, const Note& note) {
    for (const auto& [folder, word] : from.set_aside)
        note(fmt::format("the {} checkpoint of step {} is now called {}", word, folder.step,
                         set_aside(folder.path, word)));
    const std::string path = checkpoint_folder(from.run_folder, from.step());
    const std::string name = fs::path(from.checkpoint).filename();
    const bool is_branch = from.found.empty();
    if (!is_branch && is_temporary(name)) {
        if (is_there(path)) set_aside(path, "superseded");
        rename_path(from.checkpoint, path);
        note(fmt::format("{} is a whole checkpoint; it is now called {}", from.checkpoint, path));
    }
    if (!is_branch && final_name_of(name).value_or(name) == fs::path(path).filename()) from.checkpoint = path;
    remove_leftovers(checkpoints_folder(from.run_folder), "step_");
    remove_leftovers(path, state_file_name);
    if (is_there(checkpoints_folder(from.run_folder))) sync_folder(checkpoints_folder(from.run_folder));
}

FolderLock prepare_run_folder(ResumePoint& from, const Note& note) {
    if (from.is_proposed) from.run_folder = make_new_folder(from.run_folder);
    std::error_code failure;
    make_folders(from.run_folder, failure);
    CHECK(!failure, "--out {}: {}; expected a folder that can be written", from.run_folder,
          failure.message());
    FolderLock lock(from.run_folder, "training", note);
    CHECK(contents_of_run(from.run_folder) == from.found,
          "{}: another process has written there while this one was starting; nothing was changed, start "
          "again",
          from.run_folder);
    // The metrics are read before anything changes.
    std::optional<std::string> metrics;
    if (!from.checkpoint.empty() && is_there(from.metrics)) metrics = FileReader(from.metrics).text();
    remove_leftovers(from.run_folder, "metrics.jsonl");
    // The metrics are cut only after the renames are durable; otherwise checkpoints of later steps would
    // lack their lines.
    tidy_checkpoints(from, note);
    if (!from.checkpoint.empty()) {
        cut_metrics(from, metrics, note);
        note(fmt::format("continuing from step {} of {}", from.state.step, from.checkpoint));
    } else if (!from.found.empty()) {
        note(
            fmt::format("{} holds a run without a checkpoint; it starts again from step 1", from.run_folder));
        const std::string path = metrics_file(from.run_folder);
        if (is_there(path)) note(fmt::format("its metrics are now called {}", set_aside(path, "superseded")));
    }
    return lock;
}
