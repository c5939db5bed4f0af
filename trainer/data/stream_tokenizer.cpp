#include "trainer/data/stream_tokenizer.h"

#include <csignal>
#include <deque>
#include <future>
#include <vector>

#include "trainer/tokenizer/tokenizer.h"

namespace {

constexpr size_t batch_bytes = size_t{64} << 10;  // text that a thread takes at a time

using Tokens = std::vector<uint16_t>;

// Documents, and a thread that makes tokens of them.
struct Batch {
    std::vector<Document> documents;
    std::future<std::vector<Tokens>> tokens{};
};

std::vector<Tokens> tokens_of(Tokenizer& tokenizer, const std::vector<Document>& documents) {
    std::vector<Tokens> all;
    for (const Document& document : documents) {
        Tokens& tokens = all.emplace_back();
        if (const std::optional<int> end = tokenizer.end_of_text())
            tokens.push_back(static_cast<uint16_t>(*end));
        const Tokens text = tokenizer.encode(document.text);
        tokens.insert(tokens.end(), text.begin(), text.end());
    }
    return all;
}

// Starts a thread that no signal reaches: signals must interrupt the reading thread's wait for input.
std::future<std::vector<Tokens>> start(Tokenizer& tokenizer, const std::vector<Document>& documents) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    auto tokens =
        std::async(std::launch::async, [&tokenizer, &documents] { return tokens_of(tokenizer, documents); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return tokens;
}

}  // namespace

size_t tokenize_stream(DocumentStream& input, RestartableShards& shards, const std::string& tokenizer,
                       int threads) {
    std::vector<std::unique_ptr<Tokenizer>> tokenizers;
    for (int i = 0; i < threads; i++) tokenizers.push_back(make_tokenizer(tokenizer));
    std::deque<Batch> running;  // in the order of the documents

    const auto next_documents = [&] {
        std::vector<Document> documents;
        for (size_t bytes = 0; bytes < batch_bytes;) {
            std::optional<Document> document = input.next();
            if (!document) break;
            if (!shards.needs(document->place) || document->text.empty()) continue;
            bytes += document->text.size();
            documents.push_back(std::move(*document));
        }
        return documents;
    };
    const auto write_oldest = [&] {
        const std::vector<Tokens> tokens = running.front().tokens.get();
        for (size_t i = 0; i < tokens.size(); i++)
            shards.append(running.front().documents[i].place, tokens[i]);
        running.pop_front();
    };
    for (size_t number = 0;; number++) {
        std::vector<Document> documents = next_documents();
        if (documents.empty()) break;
        // The batch that had this tokenizer before is the oldest.
        if (running.size() == tokenizers.size()) write_oldest();
        running.push_back({.documents = std::move(documents)});
        Batch& batch = running.back();
        batch.tokens = start(*tokenizers[number % tokenizers.size()], batch.documents);
    }
    while (!running.empty()) write_oldest();
    shards.finish();
    size_t unread_ends = 0;
    for (const auto& each : tokenizers) unread_ends += each->unread_ends();
    return unread_ends;
}
