// stream_tokenizer.h: documents to token shards, on several threads. Each document becomes the
// end-of-text token (if the tokenizer has one) and then its own tokens. The shards depend neither on the
// number of threads nor on how often the work was interrupted.
#pragma once
#include <functional>
#include <string>

#include "trainer/data/document_stream.h"
#include "trainer/data/restartable_shards.h"

// Reads all documents and finishes the shards. Documents that are already in finished shards (up to
// shards.place()) and empty ones are skipped. finished(path) is called for each shard as soon as it has
// its final name. UsageError if the input ends before shards.place(), or if the document there has fewer
// tokens than before. Other errors come from `documents` and `shards`. Returns how often the documents
// contain "<|endoftext|>" as ordinary text (Tokenizer::unread_ends).
size_t tokenize_stream(DocumentStream& documents, RestartableShards& shards, const std::string& tokenizer,
                       int threads, const std::function<void(const std::string& path)>& finished);
