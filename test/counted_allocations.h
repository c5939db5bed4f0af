// counted_allocations.h: counts all allocations by operator new in this process; included by one source
// file of a test
//   All forms are replaced, because AddressSanitizer rejects memory of its own operator new that our
//   delete frees. None is inlined, or g++ would warn that malloc and delete do not match.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

static std::atomic<size_t> allocations = 0;

[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
    allocations++;
    return std::malloc(bytes ? bytes : 1);
}
[[gnu::noinline]] void* operator new(size_t bytes) {
    if (void* memory = operator new(bytes, std::nothrow)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
