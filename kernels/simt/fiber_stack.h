// fiber_stack.h: the stack of a kernel's thread on the CPU
#pragma once
#include <sys/mman.h>

#include <cstddef>

#include "system/error.h"
#include "system/sanitizer.h"

namespace simt::cpu {

constexpr size_t stack_bytes = 256 * 1024;

// Mapped when it is first needed, because a block that meets no barrier needs one stack only. A page below it
// cannot be read or written, so that an overflow ends the program.
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
