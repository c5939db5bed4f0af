// restartable_shards.h: token shards from a stream of documents that can be interrupted and resumed at
// any time.
//   The first val_tokens tokens of the stream are for validation: FOLDER/PREFIXval_000000.bin, then
//   FOLDER/PREFIXtrain_000001.bin and so on. FOLDER/PREFIXshards.json (for a stream of one split:
//   PREFIXtrain_shards.json or PREFIXval_shards.json) records the options and where in the stream each
//   shard ends:
//     {"tokenizer": "gpt2", "place_field": null, "shard_tokens": 100000000, "val_tokens": 100000000,
//      "complete": false,
//      "shards": [{"file": "val_000000.bin", "tokens": 100000000,
//                  "document": "place of the last document in it", "document_tokens": 17}]}
//   place_field is the key under which documents have their places; null: they are numbered. Earlier versions
//   wrote none: there a document's place was its field "place" or, without one, its number.
//   Without --val-tokens, val_tokens is one shard, or a tenth of an input that is shorter than a shard.
//   document_tokens is the number of tokens of that document, from its start, that are in this shard and
//   earlier ones. An entry is on the disk before its shard gets its final name. So a finished shard is
//   never made again, and a missing or truncated one is.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "system/folder_lock.h"
#include "trainer/data/token_shard.h"

struct StreamPlace {
    std::string document;
    size_t tokens = 0;  // tokens of that document before this place
};

struct RestartableShardsOptions {
    std::string folder, prefix{};
    // first: val_tokens for validation, the rest for training; train or val: all for that split
    std::string split = "first";
    std::string tokenizer;
    std::string place_field{};  // empty: documents are numbered
    size_t shard_tokens = 100'000'000;
    // Default: the value of the earlier run that is resumed, else shard_tokens, or a tenth of a shorter
    // input.
    std::optional<size_t> val_tokens{};
};

class RestartableShards {
public:
    // Resumes after the finished shards of an earlier run. UsageError if that run had other options, if
    // the folder holds shards that the list does not name, or if another process is writing shards there.
    explicit RestartableShards(const RestartableShardsOptions& options);
    RestartableShards(const RestartableShards&) = delete;

    bool complete() const { return complete_; }
    // True for a stream that an earlier version began and that is resumed without place_field.
    bool takes_places_as_before() const { return takes_places_as_before_; }
    // Where in the stream the finished shards end; std::nullopt at its beginning.
    std::optional<StreamPlace> place() const;

    // Appends the tokens of the next document. from_token is the number of its tokens that are left out
    // because finished shards hold them. Returns the paths of the shards that this call finished. Errors
    // as AtomicFile's.
    std::vector<std::string> append(const std::string& document, std::span<const uint16_t> tokens,
                                    size_t from_token = 0);
    // Ends the stream and finishes the last shard, which may be short. Returns the paths of the shards
    // that this call finished. UsageError if the stream was empty, or left nothing for training; shards
    // of it are removed, so that another attempt can start.
    std::vector<std::string> finish();

private:
    struct Shard {
        std::string file;
        size_t tokens = 0;
        StreamPlace end;
    };

    void read_manifest();
    void write_manifest() const;
    void refuse_foreign_shards() const;
    void split_short_input();
    void remove_shards();
    bool is_finished(const Shard& shard) const;
    bool is_val() const { return tokens_ < val_tokens_; }
    size_t room() const;  // tokens that the shard being written will hold when full
    void finish_shard();

    RestartableShardsOptions options_;
    size_t val_tokens_;                         // resolved from options_.split and options_.val_tokens
    std::vector<StreamPlace> first_documents_;  // documents of a first shard that may be the only one
    std::string manifest_;                      // path of the JSON file
    FolderLock lock_;
    std::vector<Shard> shards_;  // finished
    size_t tokens_ = 0;          // tokens in the finished shards
    bool complete_ = false, takes_places_as_before_ = false;
    std::optional<TokenShardWriter> writer_;
    StreamPlace end_;  // where in the stream the appended tokens end
};
