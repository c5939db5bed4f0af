#include "trainer/engine/arena.h"

#include <algorithm>

#include "kernels/simt/host_device.h"
#include "system/error.h"

namespace {

constexpr size_t alignment = 256;
// No machine has this much memory; larger plans are capped here, so that sums do not overflow.
constexpr size_t most_bytes = size_t{1} << 60;
constexpr size_t gap_bytes = simt::checked ? 256 : 0;

}  // namespace

size_t Arena::reserve_bytes(size_t bytes) {
    const size_t offset = bytes_;
    const size_t padded = simt::ceil_div(bytes, alignment) * alignment;
    bytes_ = std::min(bytes_ + padded + gap_bytes, most_bytes);
    gaps_.push_back({offset + bytes, padded - bytes + gap_bytes});
    return offset;
}

void Arena::allocate() {
    if (memory_.data()) throw Error(name_ + ": allocated twice");
    memory_ = simt::DeviceBuffer<std::byte>(bytes_);
    for (const auto& assign : assign_) assign(memory_.data());
    assign_.clear();
    for (const Gap& gap : gaps_) simt::poison_gap(memory_.data() + gap.offset, gap.bytes);
}

Arena::~Arena() {
    if (!memory_.data()) return;
    for (const Gap& gap : gaps_) simt::unpoison_gap(memory_.data() + gap.offset, gap.bytes);
}

size_t total_bytes(const MemoryPlan& plan) {
    size_t bytes = 0;
    for (const auto& [name, part] : plan) bytes += part;
    return bytes;
}

MemoryPlan Memory::plan() const {
    MemoryPlan plan;
    for (const Arena* arena : all(*this)) {
        if (arena->bytes() > 0) plan.emplace_back(arena->name(), arena->bytes());
    }
    return plan;
}

void Memory::allocate() {
    for (Arena* arena : all(*this)) {
        if (arena->bytes() > 0) arena->allocate();
    }
}
