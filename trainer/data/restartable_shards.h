// restartable_shards.h: token shards from a stream of documents that can be interrupted and resumed at
// any time.
//   The first val_tokens tokens of the stream are for validation: FOLDER/PREFIXval_000000.bin, then
//   FOLDER/PREFIXtrain_000001.bin and so on. FOLDER/PREFIXshards.json (for a stream of one split:
//   PREFIXtrain_shards.json or PREFIXval_shards.json) records the options and where in the stream each
//   shard ends:
//     {"tokenizer": "gpt2", "field": "text", "place_field": null, "shard_tokens": 100000000,
//      "val_tokens": 100000000, "complete": false,
//      "shards": [{"file": "val_000000.bin", "tokens": 100000000,
//                  "document": "place of the last document in it", "document_tokens": 17}]}
//   field is the key of the texts; earlier versions wrote none. place_field is the key under which documents
//   have their places; null: they are numbered. Earlier versions wrote none: there a document's place was its
//   field "place" or, without one, its number.
//   Without --val-tokens, val_tokens is one shard, or a tenth of an input that is shorter than a shard.
//   document_tokens is the number of tokens of that document, from its start, that are in this shard and
//   earlier ones. An entry is on the disk before its shard gets its final name. So a finished shard is
//   never made again, and a missing or truncated one is.
#pragma once
#include <cstddef>
#include <functional>
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
    std::string field = "text";  // under which documents have their texts
    std::string place_field{};   // empty: documents are numbered
    size_t shard_tokens = 100'000'000;
    int vocabulary = max_vocab_of_16_bits;  // as TokenShardWriter takes it
    // Default: the value of the earlier run that is resumed, else shard_tokens, or a tenth of a shorter
    // input.
    std::optional<size_t> val_tokens{};
};

class RestartableShards {
public:
    // Called for each shard as soon as it has its final name.
    using Finished = std::function<void(const std::string& path, size_t tokens)>;

    // Resumes after the finished shards of an earlier run. UsageError if that run had other options, if
    // the folder holds shards that the list does not name, or if another process is writing shards there.
    explicit RestartableShards(const RestartableShardsOptions& options, Finished finished = {});
    RestartableShards(const RestartableShards&) = delete;

    bool complete() const { return complete_; }
    // True for a stream that an earlier version began and that is resumed without place_field.
    bool takes_places_as_before() const { return takes_places_as_before_; }

    // Called for every document of the input in turn. False if finished shards hold all of it, so that it
    // must not be appended.
    bool needs(const std::string& document);
    // Appends the tokens of the next document. Those that finished shards hold are left out. UsageError if
    // these are more than the document has. Other errors as AtomicFile's.
    void append(const std::string& document, std::span<const Token> tokens);
    // Ends the stream and finishes the last shard, which may be short. UsageError if the finished shards end
    // at a document that was not in the input, and if the stream was empty or left nothing for training;
    // shards of it are then removed, so that another attempt can start.
    void finish();

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
    std::string path_of(const std::string& file) const { return options_.folder + "/" + file; }
    void finish_shard();

    RestartableShardsOptions options_;
    Finished finished_;
    size_t val_tokens_;                         // resolved from options_.split and options_.val_tokens
    std::vector<StreamPlace> first_documents_;  // documents of a first shard that may be the only one
    std::string manifest_;                      // path of the JSON file
    FolderLock lock_;
    std::vector<Shard> shards_;  // finished
    size_t tokens_ = 0;          // tokens in the finished shards
    bool complete_ = false, takes_places_as_before_ = false;
    std::optional<StreamPlace> from_;  // where the finished shards end, until a document is appended
    bool reached_ = false;             // from_ was in the input
    std::optional<TokenShardWriter> writer_;
    StreamPlace end_;  // where in the stream the appended tokens end
};
