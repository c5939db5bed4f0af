// stream_tokenizer.h: documents to token shards, on several threads. Each document becomes the
// end-of-text token (if the tokenizer has one) and then its own tokens. The shards depend neither on the
// number of threads nor on how often the work was interrupted.
#pragma once
#include <string>

#include "trainer/data/document_stream.h"
#include "trainer/data/restartable_shards.h"

// Reads all documents and finishes the shards. Documents that finished shards hold and empty ones are
// skipped. Errors come from `input` and `shards`. Returns how often the documents contain "<|endoftext|>" as
// ordinary text (Tokenizer::unread_ends).
size_t tokenize_stream(DocumentStream& input, RestartableShards& shards, const std::string& tokenizer,
                       int threads);
