// restartable_shards.h: token shards from a stream of documents that may break off and start again at any
// moment.
//   FOLDER/PREFIXval_000000.bin, FOLDER/PREFIXtrain_000001.bin and on: the first val_tokens of the stream are
//   for validation. FOLDER/PREFIXshards.json (PREFIXtrain_shards.json, PREFIXval_shards.json for a stream of
//   one split) says how they were made and where
//   in the stream each shard ends:
//     {"tokenizer": "gpt2", "shard_tokens": 100000000, "val_tokens": 100000000, "complete": false,
//      "shards": [{"file": "val_000000.bin", "tokens": 100000000, "document": "place of the last document in
//      it", "document_tokens": 17}]}
//   val_tokens is a shard if nobody says it, and a tenth of an input that is shorter than that.
//   document_tokens of that document, counted from its start, are in this shard or those before. An entry is
//   durable before its shard has its name, so a shard that is there is never made again, and one that is
//   missing or cut short is.
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
    size_t tokens = 0;  // of that document
};

struct RestartableShardsOptions {
    std::string folder, prefix{};
    // first: val_tokens for validation, then training; train or val: all of one kind
    std::string split = "first";
    std::string tokenizer;
    size_t shard_tokens = 100'000'000;
    // None: what an earlier run began with, else shard_tokens, or a tenth of a shorter input.
    std::optional<size_t> val_tokens{};
};

class RestartableShards {
public:
    // Takes up what an earlier run has finished. UsageError if that run had other options, if shards are
    // there that no run accounts for, or if another process is writing shards to the folder.
    explicit RestartableShards(const RestartableShardsOptions& options);
    RestartableShards(const RestartableShards&) = delete;

    bool complete() const { return complete_; }
    // Where in the stream the finished shards end; none at its beginning.
    std::optional<StreamPlace> place() const;

    // The tokens of the next document, or those that do not stand in finished shards yet: from_token counts
    // the ones left out.
    // Returns the shards that this finished. Errors as AtomicFile's.
    std::vector<std::string> append(const std::string& document, std::span<const uint16_t> tokens,
                                    size_t from_token = 0);
    // The end of the stream: the last shard is finished short. UsageError if there was nothing, or nothing to
    // train on, which leaves no shards that would be in the way of another try.
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
    size_t room() const;  // of the shard being written
    void finish_shard();

    RestartableShardsOptions options_;
    size_t val_tokens_;                         // what the split makes of options_.val_tokens
    std::vector<StreamPlace> first_documents_;  // those of a first shard that may be all there is
    std::string manifest_;                      // its path
    FolderLock lock_;
    std::vector<Shard> shards_;  // finished
    size_t tokens_ = 0;          // in them
    bool complete_ = false;
    std::optional<TokenShardWriter> writer_;
    StreamPlace end_;  // of what has been appended
};
