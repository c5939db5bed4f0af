// stream_tokenizer.h: documents to shards, on several threads: end-of-text (where the tokenizer has one),
// then the document's tokens.
// The shards are the same however many threads there are and however often the work broke off.
#pragma once
#include <functional>
#include <string>

#include "trainer/data/document_stream.h"
#include "trainer/data/restartable_shards.h"

// Reads documents to the end and finishes the shards; documents up to shards.place() are passed over.
// Documents without text are too. finished(path) is called for every shard that has its name now.
// UsageError if documents ends before shards.place(), or if the document there has another text; others from
// documents and shards.
void tokenize_stream(DocumentStream& documents, RestartableShards& shards, const std::string& tokenizer,
                     int threads, const std::function<void(const std::string& path)>& finished);
