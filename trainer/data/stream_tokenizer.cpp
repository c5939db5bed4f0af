#include "trainer/data/stream_tokenizer.h"

#include <condition_variable>
#include <csignal>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "system/error.h"
#include "trainer/tokenizer/tokenizer.h"

namespace {

constexpr size_t batch_bytes = size_t{64} << 10;  // text that a thread takes at a time

struct TokenizedDocument {
    std::string place;
    std::vector<uint16_t> tokens;
};
using DocumentBatch = std::vector<Document>;
using TokenizedBatch = std::vector<TokenizedDocument>;

// Threads, each with its own tokenizer.
class TokenizerPool {
public:
    TokenizerPool(const std::string& tokenizer, int threads) {
        for (int i = 0; i < threads; i++) tokenizers_.push_back(make_tokenizer(tokenizer));
        // Only the reading thread handles signals, which interrupt its wait for input.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        for (const auto& own : tokenizers_) threads_.emplace_back([this, &own] { work(*own); });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    ~TokenizerPool() {
        {
            const std::lock_guard lock(mutex_);
            closed_ = true;
            waiting_.clear();
        }
        changed_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    std::future<TokenizedBatch> submit(DocumentBatch batch) {
        Task task([batch = std::move(batch)](Tokenizer& tokenizer) { return tokenized(tokenizer, batch); });
        std::future<TokenizedBatch> result = task.get_future();
        {
            const std::lock_guard lock(mutex_);
            waiting_.push_back(std::move(task));
        }
        changed_.notify_one();
        return result;
    }

    // Called when all results have been taken.
    size_t unread_ends() const {
        size_t count = 0;
        for (const auto& tokenizer : tokenizers_) count += tokenizer->unread_ends();
        return count;
    }

private:
    using Task = std::packaged_task<TokenizedBatch(Tokenizer&)>;

    static TokenizedBatch tokenized(Tokenizer& tokenizer, const DocumentBatch& batch) {
        TokenizedBatch result;
        for (const Document& document : batch) {
            std::vector<uint16_t> tokens;
            if (const std::optional<int> end = tokenizer.end_of_text())
                tokens.push_back(static_cast<uint16_t>(*end));
            const std::vector<uint16_t> text = tokenizer.encode(document.text);
            tokens.insert(tokens.end(), text.begin(), text.end());
            result.push_back({document.place, std::move(tokens)});
        }
        return result;
    }

    void work(Tokenizer& tokenizer) {
        for (;;) {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
            if (closed_) return;
            Task task = std::move(waiting_.front());
            waiting_.pop_front();
            lock.unlock();
            task(tokenizer);
        }
    }

    std::vector<std::unique_ptr<Tokenizer>> tokenizers_;
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Task> waiting_;
    bool closed_ = false;
};

// Skips the documents that are already in finished shards.
class Resumption {
public:
    explicit Resumption(std::optional<StreamPlace> place) : place_(std::move(place)) {}

    bool passes_over(const Document& document) {
        if (!place_ || reached_) return false;
        reached_ = document.place == place_->document;
        return !reached_;
    }
    // The number of a document's tokens that are already in finished shards: above 0 only for the first
    // one not skipped.
    size_t finished_tokens(const TokenizedDocument& document) const {
        if (!place_ || document.place != place_->document) return 0;
        CHECK(document.tokens.size() >= place_->tokens,
              "document '{}' has {} tokens, of which {} are in the finished shards; expected the same "
              "documents as before",
              place_->document, document.tokens.size(), place_->tokens);
        return place_->tokens;
    }
    void check_reached() const {
        CHECK(!place_ || reached_,
              "document '{}', where the finished shards end, is not in the input; expected the same "
              "documents as before",
              place_->document);
    }

private:
    std::optional<StreamPlace> place_;
    bool reached_ = false;
};

}  // namespace

size_t tokenize_stream(DocumentStream& documents, RestartableShards& shards, const std::string& tokenizer,
                       int threads, const std::function<void(const std::string& path)>& finished) {
    Resumption resumption(shards.place());
    TokenizerPool pool(tokenizer, threads);
    std::deque<std::future<TokenizedBatch>> running;  // in the order of the documents

    const auto next_batch = [&] {
        DocumentBatch batch;
        for (size_t bytes = 0; bytes < batch_bytes;) {
            std::optional<Document> document = documents.next();
            if (!document) break;
            if (resumption.passes_over(*document) || document->text.empty()) continue;
            bytes += document->text.size();
            batch.push_back(std::move(*document));
        }
        return batch;
    };
    bool first = true;
    const auto write_oldest = [&] {
        const TokenizedBatch batch = running.front().get();
        running.pop_front();
        for (const TokenizedDocument& document : batch) {
            const size_t done = first ? resumption.finished_tokens(document) : 0;
            first = false;
            for (const std::string& path :
                 shards.append(document.place, std::span(document.tokens).subspan(done), done))
                finished(path);
        }
    };
    for (DocumentBatch batch = next_batch(); !batch.empty(); batch = next_batch()) {
        running.push_back(pool.submit(std::move(batch)));
        if (running.size() > 2 * static_cast<size_t>(threads)) write_oldest();
    }
    resumption.check_reached();
    while (!running.empty()) write_oldest();
    for (const std::string& path : shards.finish()) finished(path);
    return pool.unread_ends();
}
