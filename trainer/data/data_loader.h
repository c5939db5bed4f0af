// data_loader.h: batches of windows of T tokens. Each batch is a function of (seed, step, micro-step,
// rank) alone.
//   Window w of a shard is its tokens w*T .. w*T+T: the first T are inputs, the last T targets. There are
//   W windows in all shards together; no window crosses from one shard to the next.
//   A step takes S = total_batch / T samples. Sample k of step s (from 1) is item i = (s-1)*S + k of an
//   endless sequence: window permutation(i mod W) of epoch i div W or, in file order, window i mod W.
//   Row b of micro-step m on rank r is sample k = (m*world_size + r)*B + b: ranks and micro-steps only
//   divide the samples of a step.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "system/host_allocator.h"
#include "trainer/data/batch.h"
#include "trainer/data/token_shard.h"

// Called now and then with the share that is done, from 0 to 1; may throw to end the work.
using ReadingProgress = std::function<void(double done)>;

// All windows of a list of shards. The shards must outlive this object.
class TokenWindows {
public:
    // UsageError, naming the first file, if no shard has T+1 tokens. Shorter shards beside longer ones
    // have no window.
    TokenWindows(std::span<const TokenShard> shards, int T, int V);

    uint64_t count() const { return first_.back(); }
    // inputs (T), targets (T). Returns the number of targets that count; targets hidden by a mask become
    // Batch::ignored. UsageError, naming file and position, for a token not below V, and for a damaged
    // mask.
    int read(int32_t* inputs, int32_t* targets, uint64_t window) const;
    bool has_masks() const;
    // The number of targets of a window that count. UsageError for a damaged mask.
    int targets_in(uint64_t window) const;

private:
    struct Start {
        const TokenShard& shard;
        size_t token;  // the window's first, counted from the shard's
    };
    Start start_of(uint64_t window) const;
    // The mask (T) of the targets of the window that starts here.
    std::vector<uint8_t> mask_at(const Start& start) const;

    std::span<const TokenShard> shards_;
    std::vector<uint64_t> first_;  // first_[i]: windows before shard i; the last entry is W
    int T_, V_;
};

// Three batches used in turn: the last two returned to the caller, and the one being filled.
class BatchRing {
public:
    static constexpr size_t slots = 3;
    BatchRing(int B, int T, int V, const HostAllocator& allocator);

    int rows() const { return batches_[0].B; }
    // Fills row b of a slot with window window_of_row(b). Rows from `rows` on are padding: token 0, all
    // targets ignored.
    template <class WindowOfRow>
    Batch& fill(size_t slot, const TokenWindows& windows, int rows, WindowOfRow window_of_row);
    const Batch& operator[](size_t slot) const { return batches_[slot]; }

private:
    void sort_by_token(const Batch& batch);

    std::vector<std::unique_ptr<void, std::function<void(void*)>>> memory_;
    Batch batches_[slots];
    std::vector<int32_t> counts_;  // counters of the counting sort
};

struct DataLoaderOptions {
    int B = 0, T = 0;
    int V = 0;               // tokens must be below it
    size_t total_batch = 0;  // tokens a step, over all ranks and micro-steps
    int rank = 0, world_size = 1;
    uint64_t seed = 0;
    bool shuffle = true;  // false: file order
    int first_step = 1;   // where next() starts
};

// Training batches. A thread prepares the next batch while the model works on the current one. Nothing is
// allocated after construction, except for masks.
class DataLoader {
public:
    // The shards must outlive the loader. UsageError if total_batch is not a multiple of B * T *
    // world_size, if an option is out of range, or if there are too few tokens.
    DataLoader(std::span<const TokenShard> shards, const DataLoaderOptions& options,
               const HostAllocator& allocator = HostAllocator::standard());
    ~DataLoader();
    DataLoader(const DataLoader&) = delete;
    DataLoader& operator=(const DataLoader&) = delete;

    // The next batch in order: the micro-steps of a step, then those of the next step. It stays valid
    // until the second call after this one, so that it may still be copied to the GPU while the next
    // batch is requested. Throws the error met while reading the batch (UsageError for a token >= V).
    const Batch& next();
    // The batch of a given micro-step; next() continues from there. Calls in order find their batch
    // prepared.
    const Batch& at(int step, int micro);

    // Reads all masks through. UsageError, as at() throws it for a damaged mask, and if the masks hide every
    // target. Bound by reading a byte for each token.
    void check_masks(const ReadingProgress& progress) const;

    int micro_steps() const { return static_cast<int>(micro_steps_); }
    uint64_t windows() const { return windows_.count(); }  // samples in an epoch

private:
    const Batch& take(std::unique_lock<std::mutex>& lock);
    void prepare_batches();
    void fill(size_t slot, uint64_t position);
    uint64_t window_of(uint64_t item) const;
    int64_t targets_of(uint64_t step) const;

    const DataLoaderOptions options_;
    TokenWindows windows_;
    BatchRing ring_;
    uint64_t micro_steps_ = 0, samples_per_step_ = 0;
    uint64_t counted_step_ = UINT64_MAX;  // used by the thread: the step, from 0, that has counted_targets_
    int64_t counted_targets_ = -1;

    std::mutex mutex_;
    std::condition_variable changed_;
    // Guarded by mutex_. The position of a micro-step is its number, counted from 0 at step 1. Batch n is
    // in slot n mod 3.
    uint64_t delivered_ = 0;      // batches returned to the caller
    uint64_t filled_ = 0;         // batches filled: delivered_, or one more
    uint64_t next_position_ = 0;  // position of batch delivered_
    bool filling_ = false, stop_ = false;
    std::exception_ptr failure_;
    std::thread thread_;  // declared last, because it uses all of the above
};

// Each window of a split once, in file order: batches 0 .. batches()-1, the last one padded. It can be
// read any number of times.
class ValidationLoader {
public:
    // max_batches = 0 means the whole split. The shards must outlive the loader. Errors as for
    // DataLoader.
    ValidationLoader(std::span<const TokenShard> shards, int B, int T, int V, size_t max_batches = 0,
                     const HostAllocator& allocator = HostAllocator::standard());

    size_t batches() const { return batches_; }
    // Reads all batches through, without making any. Errors as at() throws them; UsageError if masks hide
    // every target. Bound by reading two bytes for each token, and one for its mask.
    void check(const ReadingProgress& progress) const;
    // The batch stays valid until the second call after this one.
    const Batch& at(size_t index);

private:
    uint64_t windows_used() const;

    TokenWindows windows_;
    BatchRing ring_;
    int T_;
    size_t batches_;
    size_t calls_ = 0;
};
