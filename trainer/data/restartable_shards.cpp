#include "trainer/data/restartable_shards.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "system/atomic_file.h"
#include "system/error.h"
#include "system/file_access.h"
#include "system/json_text.h"

namespace fs = std::filesystem;

static size_t val_tokens_of(const RestartableShardsOptions& options) {
    if (options.split == "train") return 0;
    return options.split == "val" ? std::numeric_limits<size_t>::max()
                                  : options.val_tokens.value_or(options.shard_tokens);
}

RestartableShards::RestartableShards(const RestartableShardsOptions& options, Finished finished)
    : options_(options),
      finished_(std::move(finished)),
      val_tokens_(val_tokens_of(options)),
      manifest_(
          path_of(options.prefix + (options.split == "first" ? "" : options.split + "_") + "shards.json")),
      lock_(options.folder, "writing shards") {
    if (fs::exists(manifest_)) read_manifest();
    else refuse_foreign_shards();
    if (!shards_.empty()) from_ = shards_.back().end;
    // A killed process leaves the shard that it was writing under a temporary name.
    for (const char* split : {"train_", "val_"})
        remove_leftovers(options.folder, options.prefix + split, ".bin");
    remove_leftovers(options.folder, fs::path(manifest_).filename());
}

bool RestartableShards::needs(const std::string& document) {
    if (from_ && !reached_) reached_ = document == from_->document;
    return !from_ || reached_;
}

void RestartableShards::append(const std::string& document, std::span<const Token> tokens) {
    end_ = {document, 0};
    if (from_ && document == from_->document) {
        CHECK(tokens.size() >= from_->tokens,
              "document '{}' has {} tokens, of which {} are in the finished shards; expected the same "
              "documents as before",
              document, tokens.size(), from_->tokens);
        end_ = *from_;
        tokens = tokens.subspan(from_->tokens);
    }
    from_.reset();
    const bool may_be_all = options_.split == "first" && !options_.val_tokens && tokens_ < val_tokens_;
    if (may_be_all) first_documents_.push_back({document, tokens.size()});
    while (!tokens.empty()) {
        if (!writer_)
            writer_.emplace(path_of(fmt::format("{}{}_{:06}.bin", options_.prefix, is_val() ? "val" : "train",
                                                shards_.size())),
                            0, options_.vocabulary);
        const size_t part = std::min(tokens.size(), room() - writer_->size());
        writer_->append(tokens.first(part));
        tokens = tokens.subspan(part);
        end_.tokens += part;
        if (writer_->size() == room()) finish_shard();
    }
}

void RestartableShards::finish() {
    CHECK(!from_ || reached_,
          "document '{}', where the finished shards end, is not in the input; expected the same documents as "
          "before",
          from_->document);
    const size_t tokens = tokens_ + (writer_ ? writer_->size() : 0);
    CHECK(tokens > 0, "the input holds no text; expected documents");
    if (options_.split == "first" && tokens <= val_tokens_) {
        size_t known = 0;
        for (const StreamPlace& document : first_documents_) known += document.tokens;
        if (options_.val_tokens || known < tokens || tokens < 2) {
            remove_shards();
            throw UsageError(fmt::format(
                "all {} tokens of the input would be for validation; expected more text, or fewer "
                "than --val-tokens {}",
                tokens, val_tokens_));
        }
        split_short_input();
    }
    if (writer_) finish_shard();
    complete_ = true;
    write_manifest();
}

// The whole input is in one validation shard, which leaves none for training: divides it into two.
void RestartableShards::split_short_input() {
    if (writer_) writer_->close();
    const std::vector<Token> whole =
        TokenShard(writer_ ? writer_->temporary_path() : path_of(shards_.back().file)).tokens();
    std::span<const Token> rest = whole;
    const std::vector<StreamPlace> documents = std::move(first_documents_);
    writer_.reset();
    shards_.clear();
    tokens_ = 0;
    val_tokens_ = std::max<size_t>(1, whole.size() / 10);
    for (const StreamPlace& document : documents) {
        append(document.document, rest.first(document.tokens));
        rest = rest.subspan(document.tokens);
    }
}

// Leaves the folder as if there had been no stream.
void RestartableShards::remove_shards() {
    writer_.reset();
    std::error_code ignored;
    fs::remove(manifest_, ignored);
    for (const Shard& shard : shards_) fs::remove(path_of(shard.file), ignored);
    shards_.clear();
}

size_t RestartableShards::room() const {
    return is_val() ? std::min(options_.shard_tokens, val_tokens_ - tokens_) : options_.shard_tokens;
}

void RestartableShards::finish_shard() {
    writer_->close();
    shards_.push_back({fs::path(writer_->path()).filename(), writer_->size(), end_});
    write_manifest();
    writer_->commit();
    tokens_ += writer_->size();
    writer_.reset();
    if (finished_) finished_(path_of(shards_.back().file), shards_.back().tokens);
}

bool RestartableShards::is_finished(const Shard& shard) const {
    try {
        return fs::exists(path_of(shard.file)) && TokenShard(path_of(shard.file)).size() == shard.tokens;
    } catch (const UsageError&) { return false; }  // truncated or overwritten: it is made again
}

void RestartableShards::write_manifest() const {
    nlohmann::ordered_json shards = nlohmann::ordered_json::array();
    for (const Shard& shard : shards_) {
        shards.push_back({{"file", shard.file},
                          {"tokens", shard.tokens},
                          {"document", shard.end.document},
                          {"document_tokens", shard.end.tokens}});
    }
    nlohmann::ordered_json manifest = {{"tokenizer", options_.tokenizer}, {"field", options_.field}};
    if (!takes_places_as_before_) {
        manifest["place_field"] = nullptr;
        if (!options_.place_field.empty()) manifest["place_field"] = options_.place_field;
    }
    manifest.update(nlohmann::ordered_json{{"shard_tokens", options_.shard_tokens},
                                           {"val_tokens", options_.split == "first" ? val_tokens_ : 0},
                                           {"complete", complete_},
                                           {"shards", shards}});
    write_atomically(manifest_,
                     manifest.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void RestartableShards::read_manifest() {
    const std::string text = FileReader(manifest_).text();
    nlohmann::json manifest;
    std::vector<Shard> shards;
    std::string tokenizer, field = options_.field, place_field;
    bool names_place_field = false;
    size_t shard_tokens = 0, val_tokens = 0;
    try {
        manifest = parse_json(text);
        tokenizer = manifest.at("tokenizer").get<std::string>();
        if (manifest.contains("field")) field = manifest["field"].get<std::string>();
        names_place_field = manifest.contains("place_field");
        if (names_place_field && !manifest["place_field"].is_null())
            place_field = manifest["place_field"].get<std::string>();
        shard_tokens = whole_number<size_t>(manifest.at("shard_tokens"));
        val_tokens = whole_number<size_t>(manifest.at("val_tokens"));
        complete_ = manifest.at("complete").get<bool>();
        for (const nlohmann::json& shard : manifest.at("shards")) {
            shards.push_back({shard.at("file").get<std::string>(),
                              whole_number<size_t>(shard.at("tokens")),
                              {shard.at("document").get<std::string>(),
                               whole_number<size_t>(shard.at("document_tokens"))}});
        }
    } catch (const nlohmann::json::exception&) {
        throw UsageError(
            fmt::format("{}: is not a list of shards; remove it and its shards to start again", manifest_));
    }
    const auto is_there = [&](const Shard& shard) { return fs::exists(path_of(shard.file)); };
    if (std::none_of(shards.begin(), shards.end(), is_there)) {  // the earlier run finished no shard
        complete_ = false;
        return refuse_foreign_shards();
    }
    const auto check_begun = [&](bool same, const std::string& how) {
        CHECK(same,
              "{}: was begun {}; expected the same; choose another folder, or remove the list and its shards",
              manifest_, how);
    };
    const auto begun_with = [&](bool same, const char* option, const auto& value) {
        check_begun(same, fmt::format("with {} {}", option, value));
    };
    begun_with(tokenizer == options_.tokenizer, "--tokenizer", tokenizer);
    begun_with(field == options_.field, "--field", field);
    begun_with(shard_tokens == options_.shard_tokens, "--shard-tokens", shard_tokens);
    if (options_.split == "first") {
        begun_with(!options_.val_tokens || val_tokens == *options_.val_tokens, "--val-tokens", val_tokens);
        val_tokens_ = val_tokens;
    }
    const bool same_field = place_field == options_.place_field;
    if (!place_field.empty()) begun_with(same_field, "--place-field", place_field);
    else if (names_place_field) check_begun(same_field, "without --place-field");
    else begun_with(same_field || options_.place_field == "place", "what is now --place-field", "place");
    takes_places_as_before_ = !names_place_field && same_field;
    for (const Shard& shard : shards) {
        if (!is_finished(shard)) {
            complete_ = false;
            break;
        }
        tokens_ += shard.tokens;
        shards_.push_back(shard);
    }
}

void RestartableShards::refuse_foreign_shards() const {
    for (const fs::path& path : entries_of(options_.folder)) {
        const std::string name = path.filename();
        for (const std::string split : {"train", "val"}) {
            if (options_.split != "first" && options_.split != split) continue;
            CHECK(!(name.starts_with(options_.prefix + split + "_") && name.ends_with(".bin")),
                  "{}: already holds {}, which no {} lists; choose another folder or remove its shards",
                  options_.folder, name, fs::path(manifest_).filename().string());
        }
    }
}
