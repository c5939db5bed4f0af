// block_memory.h: the memory of a block on the CPU: shared memory, the asynchronous copies to it, and the
//   stacks of its threads
#pragma once
#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/simt/target.h"
#include "system/error.h"
#include "system/sanitizer.h"

namespace simt::cpu {

constexpr size_t cache_line = 64;

// Shared memory, from which a kernel takes its arrays one after the other (shared.cuh). In checked builds
// there are gaps behind the arrays, to which AddressSanitizer refuses access, and the arrays begin as NaN.
// There is room for the largest launch from the start, because a launch must not allocate; the system
// provides memory only for what is used.
class SharedArrays {
public:
    SharedArrays() {
        if (!memory_) throw Error(fmt::format("simt: no memory for {} bytes of shared memory", capacity));
        asan_poison(memory_.get(), capacity);
    }
    // Call before a block runs.
    void prepare(size_t bytes) {
        given_ = bytes;
        if (checked) {
            const size_t used = bytes + gaps, used_before = std::exchange(used_, used);
            asan_unpoison(memory_.get(), used);
            std::memset(memory_.get(), 0xff, used);  // every float is NaN
            asan_poison(memory_.get(), std::max(used, used_before));
        }
    }
    // The arguments are those of simt::cpu::shared_take. Error if a kernel takes more than its launch gave.
    void* take(size_t& offset, size_t& taken, size_t padded_bytes, size_t bytes) {
        taken += padded_bytes;
        if (taken > given_) {
            throw Error(fmt::format("simt: a kernel takes {} bytes of shared memory, but its launch gave {}",
                                    taken, given_));
        }
        std::byte* array = memory_.get() + offset;
        offset += padded_bytes;
        if (checked) {
            offset = ceil_div(offset + gap, cache_line) * cache_line;
            if (offset > used_)
                throw Error(fmt::format("simt: a kernel takes more than {} shared arrays", max_arrays));
            asan_unpoison(array, bytes);
        }
        return array;
    }
    bool contains(const void* address) const {
        return address >= memory_.get() && address < memory_.get() + capacity;
    }

private:
    static constexpr size_t gap = cache_line;  // the least gap behind an array in checked builds
    static constexpr int max_arrays = 32;
    static constexpr size_t gaps = checked ? max_arrays * 2 * gap : 0;
    static constexpr size_t capacity = max_shared_bytes + gaps;
    std::unique_ptr<std::byte[], decltype(&std::free)> memory_{
        static_cast<std::byte*>(std::aligned_alloc(cache_line, capacity)), &std::free};
    size_t given_ = 0, used_ = 0;
};

// The asynchronous copies of one thread (async_copy.cuh).
class AsyncCopies {
public:
    // The destination holds NaN until the copy arrives, which exposes reads that come too early and reads of
    // the old contents. If not `inside`, zeros arrive and `global` is not read.
    void begin(void* shared, const void* global, size_t bytes, bool inside) {
        std::memset(shared, 0xff, bytes);
        in_flight_.push_back({shared, inside ? global : nullptr, bytes, groups_});
    }
    void commit() { groups_++; }
    // The copies of all committed groups but the last groups_left arrive.
    void wait(unsigned groups_left) {
        auto copy = in_flight_.begin();
        for (; copy != in_flight_.end() && copy->group + groups_left < groups_; ++copy) {
            if (copy->global) std::memcpy(copy->shared, copy->global, copy->bytes);
            else std::memset(copy->shared, 0, copy->bytes);
        }
        in_flight_.erase(in_flight_.begin(), copy);
    }
    void clear() {
        in_flight_.clear();
        groups_ = 0;
    }

private:
    struct Copy {
        void* shared;
        const void* global;  // null for zeros
        size_t bytes;
        unsigned group;
    };
    std::vector<Copy> in_flight_;
    unsigned groups_ = 0;  // committed so far
};

constexpr size_t stack_bytes = 256 * 1024;

// The stack of a thread. It is mapped when it is first needed, because a block that meets no barrier needs
// one stack only. A page below it cannot be read or written, so that an overflow ends the program.
class Stack {
public:
    Stack() = default;
    Stack(const Stack&) = delete;
    ~Stack() {
        if (!mapped_) return;
        asan_unpoison(mapped_, guard_bytes + stack_bytes);
        munmap(mapped_, guard_bytes + stack_bytes);
    }
    std::byte* bottom() {
        if (!mapped_) {
            void* mapped = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
            if (mapped == MAP_FAILED) throw Error("simt: no memory for the stack of a kernel's thread");
            // if this fails, a stack overflow goes unnoticed
            mprotect(mapped, guard_bytes, PROT_NONE);
            mapped_ = static_cast<std::byte*>(mapped);
        }
        return mapped_ + guard_bytes;
    }

private:
    static constexpr size_t guard_bytes = 4096;
    std::byte* mapped_ = nullptr;
};

}  // namespace simt::cpu
