#include "trainer/data/data_loader.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "kernels/simt/device.h"
#include "system/error.h"
#include "trainer/data/data_files.h"
#include "trainer/data/permutation.h"

TokenWindows::TokenWindows(std::span<const TokenShard> shards, int T, int V)
    : shards_(shards), first_{0}, T_(T), V_(V) {
    CHECK(T > 0 && V > 0, "sequence length {} and vocabulary {} must be positive", T, V);
    CHECK(!shards.empty(), "there are no tokens to read: the list of shards is empty");
    for (const TokenShard& shard : shards)
        first_.push_back(first_.back() +
                         (shard.size() > 0 ? (shard.size() - 1) / static_cast<size_t>(T) : 0));
    if (count() == 0) throw too_few_tokens(shards[0].name(), shards[0].size(), T);
}

TokenWindows::Start TokenWindows::start_of(uint64_t window) const {
    const auto after = std::upper_bound(first_.begin(), first_.end(), window);
    const size_t index = static_cast<size_t>(after - first_.begin()) - 1;
    return {shards_[index], (window - first_[index]) * static_cast<size_t>(T_)};
}

bool TokenWindows::has_masks() const {
    return std::any_of(shards_.begin(), shards_.end(),
                       [](const TokenShard& shard) { return shard.has_mask(); });
}

std::vector<uint8_t> TokenWindows::mask_at(const Start& start) const {
    std::vector<uint8_t> mask(static_cast<size_t>(T_));
    start.shard.read_mask(mask, start.token + 1);
    return mask;
}

int TokenWindows::targets_in(uint64_t window) const {
    const Start start = start_of(window);
    if (!start.shard.has_mask()) return T_;
    const std::vector<uint8_t> mask = mask_at(start);
    return static_cast<int>(std::count(mask.begin(), mask.end(), 1));
}

int TokenWindows::read(int32_t* inputs, int32_t* targets, uint64_t window) const {
    const Start start = start_of(window);
    const auto& [shard, first] = start;
    std::array<Token, 1025> part;
    const size_t T = static_cast<size_t>(T_);
    for (size_t t = 0; t < T; t += part.size() - 1) {
        const std::span<Token> tokens(part.data(), std::min(part.size(), T - t + 1));
        shard.read(tokens, first + t);
        const auto largest = std::max_element(tokens.begin(), tokens.end());
        if (*largest >= static_cast<Token>(V_)) {
            const size_t position = first + t + static_cast<size_t>(largest - tokens.begin());
            throw UsageError(
                fmt::format("{}: token {} at position {} is outside the vocabulary of {}; was the file made "
                            "with another tokenizer?",
                            shard.name(), *largest, position, V_));
        }
        std::copy(tokens.begin(), tokens.end() - 1, inputs + t);
        std::copy(tokens.begin() + 1, tokens.end(), targets + t);
    }
    if (!shard.has_mask()) return T_;
    const std::vector<uint8_t> mask = mask_at(start);
    for (size_t t = 0; t < T; t++) {
        if (mask[t] == 0) targets[t] = Batch::ignored;
    }
    return static_cast<int>(std::count(mask.begin(), mask.end(), 1));
}

// Sums targets_in(window) over `windows` windows. UsageError if the sum is 0.
template <class Targets>
static void check_targets(const char* data, uint64_t windows, const ReadingProgress& progress,
                          const Targets& targets_in) {
    constexpr uint64_t windows_at_once = 256;
    uint64_t targets = 0;
    for (uint64_t window = 0; window < windows; window++) {
        if (window % windows_at_once == 0)
            progress(static_cast<double>(window) / static_cast<double>(windows));
        targets += static_cast<uint64_t>(targets_in(window));
    }
    CHECK(targets > 0, "the masks of the {} data hide every target; expected some that count", data);
}

BatchRing::BatchRing(int B, int T, int V, const HostAllocator& allocator)
    : counts_(static_cast<size_t>(V) + 1) {
    CHECK(B > 0 && B <= INT32_MAX / T, "batch size {} must be positive, and {} x {} tokens fewer than 2^31",
          B, B, T);
    for (Batch& batch : batches_) {
        batch.B = B;
        batch.T = T;
        memory_.emplace_back(allocator.allocate(batch.bytes()), allocator.free);
        const size_t N = static_cast<size_t>(B) * T;
        batch.inputs = static_cast<int32_t*>(memory_.back().get());
        batch.targets = batch.inputs + N;
        batch.order = batch.targets + N;
    }
}

template <class WindowOfRow>
Batch& BatchRing::fill(size_t slot, const TokenWindows& windows, int rows, WindowOfRow window_of_row) {
    Batch& batch = batches_[slot];
    const size_t T = batch.T;
    batch.target_count = 0;
    for (int b = 0; b < rows; b++)
        batch.target_count += windows.read(batch.inputs + b * T, batch.targets + b * T, window_of_row(b));
    std::fill(batch.inputs + rows * T, batch.inputs + batch.B * T, 0);
    std::fill(batch.targets + rows * T, batch.targets + batch.B * T, Batch::ignored);
    sort_by_token(batch);
    return batch;
}

// Stable counting sort: counts_[v] becomes the first place of token v and advances with each one placed.
void BatchRing::sort_by_token(const Batch& batch) {
    const int32_t N = batch.B * batch.T;
    std::fill(counts_.begin(), counts_.end(), 0);
    for (int32_t i = 0; i < N; i++) counts_[batch.inputs[i] + 1]++;
    for (size_t v = 1; v < counts_.size(); v++) counts_[v] += counts_[v - 1];
    for (int32_t i = 0; i < N; i++) batch.order[counts_[batch.inputs[i]]++] = i;
}

DataLoader::DataLoader(std::span<const TokenShard> shards, const DataLoaderOptions& options,
                       const HostAllocator& allocator)
    : options_(options),
      windows_(shards, options.T, options.V),
      ring_(options.B, options.T, options.V, allocator) {
    const int ranks = options.world_size;
    CHECK(ranks > 0 && options.rank >= 0 && options.rank < ranks, "rank {} of {} processes does not exist",
          options.rank, ranks);
    const size_t micro_step = static_cast<size_t>(options.B) * options.T * ranks;
    CHECK(options.total_batch > 0 && options.total_batch % micro_step == 0,
          "total batch of {} tokens is not a multiple of {} = {} x {} x {} ranks", options.total_batch,
          micro_step, options.B, options.T, ranks);
    CHECK(options.first_step > 0, "step {} does not exist; steps count from 1", options.first_step);
    micro_steps_ = options.total_batch / micro_step;
    samples_per_step_ = options.total_batch / static_cast<size_t>(options.T);
    next_position_ = static_cast<uint64_t>(options.first_step - 1) * micro_steps_;
    thread_ = std::thread(&DataLoader::prepare_batches, this);
}

DataLoader::~DataLoader() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

const Batch& DataLoader::next() {
    std::unique_lock lock(mutex_);
    return take(lock);
}

const Batch& DataLoader::at(int step, int micro) {
    CHECK(step > 0 && micro >= 0 && micro < micro_steps(),
          "micro-step {} of step {} does not exist; a step has {}", micro, step, micro_steps());
    const uint64_t position = static_cast<uint64_t>(step - 1) * micro_steps_ + static_cast<uint64_t>(micro);
    std::unique_lock lock(mutex_);
    if (position != next_position_) {
        // Drops a prepared batch, which belongs to another position.
        changed_.wait(lock, [&] { return !filling_; });
        filled_ = delivered_;
        next_position_ = position;
        failure_ = nullptr;
        changed_.notify_all();
    }
    return take(lock);
}

const Batch& DataLoader::take(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return filled_ > delivered_ || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    const size_t slot = delivered_++ % BatchRing::slots;
    next_position_++;
    changed_.notify_all();
    return ring_[slot];
}

void DataLoader::check_masks(const ReadingProgress& progress) const {
    if (!windows_.has_masks()) return;
    check_targets("training", windows_.count(), progress,
                  [&](uint64_t window) { return windows_.targets_in(window); });
}

void DataLoader::prepare_batches() {
    simt::unpin_this_thread();  // otherwise it would share the main thread's core
    std::unique_lock lock(mutex_);
    for (;;) {
        // Only one batch is prepared ahead: the caller still uses the other two slots.
        changed_.wait(lock, [&] { return stop_ || (filled_ == delivered_ && !failure_); });
        if (stop_) return;
        const size_t slot = filled_ % BatchRing::slots;
        const uint64_t position = next_position_;
        filling_ = true;
        lock.unlock();
        std::exception_ptr failure;
        try {
            fill(slot, position);
        } catch (...) { failure = std::current_exception(); }
        lock.lock();
        filling_ = false;
        if (failure) failure_ = failure;
        else filled_++;
        changed_.notify_all();
    }
}

void DataLoader::fill(size_t slot, uint64_t position) {
    const uint64_t step = position / micro_steps_, micro = position % micro_steps_;
    const uint64_t first_sample =
        (micro * static_cast<uint64_t>(options_.world_size) + static_cast<uint64_t>(options_.rank)) *
        static_cast<uint64_t>(options_.B);
    Batch& batch = ring_.fill(slot, windows_, options_.B, [&](int b) {
        return window_of(step * samples_per_step_ + first_sample + static_cast<uint64_t>(b));
    });
    if (!windows_.has_masks()) return;
    if (step != counted_step_) {
        counted_targets_ = targets_of(step);
        counted_step_ = step;
    }
    batch.step_targets = counted_targets_;
}

// The targets of a step over all ranks. Each process reads all masks itself, which costs less than a
// collective.
int64_t DataLoader::targets_of(uint64_t step) const {
    int64_t targets = 0;
    for (uint64_t sample = 0; sample < samples_per_step_; sample++)
        targets += windows_.targets_in(window_of(step * samples_per_step_ + sample));
    return targets;
}

uint64_t DataLoader::window_of(uint64_t item) const {
    const uint64_t epoch = item / windows_.count(), index = item % windows_.count();
    return options_.shuffle ? Permutation(windows_.count(), options_.seed, epoch)(index) : index;
}

ValidationLoader::ValidationLoader(std::span<const TokenShard> shards, int B, int T, int V,
                                   size_t max_batches, const HostAllocator& allocator)
    : windows_(shards, T, V),
      ring_(B, T, V, allocator),
      T_(T),
      batches_((windows_.count() + static_cast<size_t>(B) - 1) / static_cast<size_t>(B)) {
    if (max_batches > 0) batches_ = std::min(batches_, max_batches);
}

// The windows of all batches.
uint64_t ValidationLoader::windows_used() const {
    return std::min(windows_.count(), static_cast<uint64_t>(batches_) * static_cast<uint64_t>(ring_.rows()));
}

void ValidationLoader::check(const ReadingProgress& progress) const {
    std::vector<int32_t> inputs(static_cast<size_t>(T_)), targets(inputs.size());
    check_targets("validation", windows_used(), progress,
                  [&](uint64_t window) { return windows_.read(inputs.data(), targets.data(), window); });
}

const Batch& ValidationLoader::at(size_t index) {
    CHECK(index < batches_, "validation batch {} does not exist; there are {}", index, batches_);
    const uint64_t first = static_cast<uint64_t>(index) * static_cast<uint64_t>(ring_.rows());
    const int rows =
        static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(ring_.rows()), windows_used() - first));
    return ring_.fill(calls_++ % BatchRing::slots, windows_, rows,
                      [&](int b) { return first + static_cast<uint64_t>(b); });
}
