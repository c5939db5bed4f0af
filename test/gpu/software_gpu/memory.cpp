#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>

#include "software_gpu.h"

namespace software_gpu {

namespace {

constexpr size_t page = 4096;
// Freed memory stays unused until this much more has been freed, so that later accesses to it are found.
constexpr size_t quarantine_bytes = size_t{256} << 20;

size_t rounded_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Zeros, which take memory only where they are touched.
void* zeros(size_t bytes) {
    void* const memory = mmap(nullptr, rounded_up(bytes, page), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
}
template <class T>
Zeros<T> zeros_of(size_t count) {
    const size_t bytes = std::max<size_t>(count * sizeof(T), 1);
    return Zeros<T>(static_cast<T*>(zeros(bytes)), Unmap{rounded_up(bytes, page)});
}

std::string place(const Allocation& allocation, const void* address) {
    const auto offset = static_cast<const std::byte*>(address) - allocation.begin;
    return fmt::format("byte {} of an allocation of {}", offset, allocation.bytes);
}

// Throws Fault for the first byte that lies in a gap or, for a read, was never written.
void check_bytes(const Allocation& allocation, const void* address, size_t bytes, bool reads,
                 std::string_view who) {
    const size_t offset = static_cast<size_t>(static_cast<const std::byte*>(address) - allocation.begin);
    const uint8_t* const written = allocation.shadow.written.get() + offset;
    const void* const gap = std::memchr(written, in_gap, bytes);
    const void* const unwritten = reads ? std::memchr(written, 0, bytes) : nullptr;
    const auto name = [&](const void* at, const char* what) {
        const size_t from = static_cast<size_t>(static_cast<const uint8_t*>(at) - written);
        throw Fault(fmt::format("{} {} {} bytes, of which {} {}", who, reads ? "reads" : "writes", bytes,
                                place(allocation, static_cast<const std::byte*>(address) + from), what));
    };
    if (gap) name(gap, "lies between two tensors");
    if (unwritten) name(unwritten, "was never written");
}

}  // namespace

void Unmap::operator()(void* memory) const { munmap(memory, bytes); }

Memory::~Memory() {
    for (auto& [end, allocation] : allocations_) munmap(allocation.begin, rounded_up(allocation.bytes, page));
    for (auto& [memory, bytes] : freed_) munmap(memory, bytes);
}

void* Memory::allocate(size_t bytes) {
    if (bytes == 0) return nullptr;
    // Its own pages, followed by a page that belongs to no allocation.
    const size_t whole = rounded_up(bytes, page);
    auto* const memory = static_cast<std::byte*>(zeros(whole + page));
    if (!memory) return nullptr;
    mprotect(memory + whole, page, PROT_NONE);
    std::memset(memory, 0xFF, bytes);
    Allocation allocation{
        memory,
        bytes,
        {zeros_of<uint8_t>(bytes + 16), zeros_of<Access>(bytes / 4 + 2), zeros_of<Access>(bytes / 4 + 2)}};
    const bool complete = allocation.shadow.written && allocation.shadow.writer && allocation.shadow.reader;
    if (!complete) return munmap(memory, whole + page), nullptr;
    allocations_.emplace(reinterpret_cast<uintptr_t>(memory) + bytes, std::move(allocation));
    allocated_ += bytes;
    generation_++;
    return memory;
}

bool Memory::release(void* memory) {
    if (!memory) return true;
    Allocation* const allocation = find(memory);
    if (!allocation || allocation->begin != memory) return false;
    const size_t bytes = allocation->bytes, whole = rounded_up(bytes, page) + page;
    allocations_.erase(reinterpret_cast<uintptr_t>(memory) + bytes);
    allocated_ -= bytes;
    generation_++;
    // Its addresses stay reserved for a while, its memory does not.
    madvise(memory, whole, MADV_DONTNEED);
    mprotect(memory, whole, PROT_NONE);
    freed_.emplace_back(memory, whole);
    freed_bytes_ += whole;
    while (freed_bytes_ > quarantine_bytes && freed_.size() > 1) {
        munmap(freed_.front().first, freed_.front().second);
        freed_bytes_ -= freed_.front().second;
        freed_.erase(freed_.begin());
    }
    return true;
}

Allocation* Memory::find(const void* address) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    const auto found = allocations_.upper_bound(at);  // the first that ends behind it
    if (found == allocations_.end() || reinterpret_cast<uintptr_t>(found->second.begin) > at) return nullptr;
    return &found->second;
}

std::string Memory::nearest(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address);
    const auto next = allocations_.upper_bound(at);
    std::string text = "in no allocation";
    if (next != allocations_.begin()) {
        const Allocation& before = std::prev(next)->second;
        const size_t behind = at - reinterpret_cast<uintptr_t>(before.end());
        if (behind < page)
            return fmt::format("{} bytes behind the end of an allocation of {} bytes", behind, before.bytes);
    }
    if (next != allocations_.end()) {
        const size_t ahead = reinterpret_cast<uintptr_t>(next->second.begin) - at;
        if (ahead < page)
            return fmt::format("{} bytes before an allocation of {} bytes", ahead, next->second.bytes);
    }
    for (const auto& [memory, bytes] : freed_) {
        if (at - reinterpret_cast<uintptr_t>(memory) < bytes) return "in memory that has been freed";
    }
    return text;
}

Allocation* Memory::whole_range(const void* address, size_t bytes, std::string_view who, const char* does) {
    Allocation* const allocation = find(address);
    if (!allocation) return nullptr;
    if (static_cast<const std::byte*>(address) + bytes > allocation->end()) {
        throw Fault(fmt::format("{} {} {} bytes from {} on, past its end", who, does, bytes,
                                place(*allocation, address)));
    }
    return allocation;
}

bool Memory::check_read(const void* from, size_t bytes, std::string_view who) {
    if (bytes == 0) return true;
    const Allocation* const allocation = whole_range(from, bytes, who, "reads");
    if (allocation) check_bytes(*allocation, from, bytes, true, who);
    return allocation != nullptr;
}

bool Memory::note_write(void* to, size_t bytes, std::string_view who) {
    if (bytes == 0) return true;
    Allocation* const allocation = whole_range(to, bytes, who, "writes");
    if (!allocation) return false;
    check_bytes(*allocation, to, bytes, false, who);
    std::memset(allocation->shadow.written.get() + (static_cast<std::byte*>(to) - allocation->begin), 1,
                bytes);
    return true;
}

void Memory::note_copy(void* to, const void* from, size_t bytes, std::string_view who) {
    if (bytes == 0) return;
    const Allocation* const source = whole_range(from, bytes, who, "reads");
    Allocation* const target = whole_range(to, bytes, who, "writes");
    if (!source || !target)
        throw Fault(
            fmt::format("{} of {} bytes on the device, but one side is not device memory", who, bytes));
    check_bytes(*target, to, bytes, false, who);
    const uint8_t* const known =
        source->shadow.written.get() + (static_cast<const std::byte*>(from) - source->begin);
    uint8_t* const becomes = target->shadow.written.get() + (static_cast<std::byte*>(to) - target->begin);
    for (size_t i = 0; i < bytes; i++) becomes[i] = known[i] == 1;
}

void Memory::poison_gap(void* memory, size_t bytes) {
    Allocation* const allocation = whole_range(memory, bytes, "a gap", "covers");
    if (allocation && bytes > 0)
        std::memset(allocation->shadow.written.get() + (static_cast<std::byte*>(memory) - allocation->begin),
                    in_gap, bytes);
}
void Memory::unpoison_gap(void* memory, size_t bytes) {
    Allocation* const allocation = whole_range(memory, bytes, "a gap", "covers");
    if (allocation && bytes > 0)
        std::memset(allocation->shadow.written.get() + (static_cast<std::byte*>(memory) - allocation->begin),
                    0, bytes);
}

}  // namespace software_gpu
