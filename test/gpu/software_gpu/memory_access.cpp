// memory_access.cpp: loads, stores and copies, with their checks.
#include <algorithm>
#include <cstring>

#include "warp.h"

namespace software_gpu {

namespace {

constexpr uint32_t many_blocks = 0xFFFFFFFF;
constexpr uint8_t ones[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// True if no barrier, end of a launch, or fence with an atomic operation orders the earlier access before
// this one.
bool unordered(const Warp& warp, const Access& earlier, const Access& now) {
    if (earlier.launch != now.launch || !(earlier.bytes & now.bytes)) return false;
    if (earlier.block == now.block) {
        if (earlier.barriers != now.barriers) return false;
        if (earlier.several_warps) return true;
        if (earlier.thread / lanes != now.thread / lanes) return true;
        if (earlier.warp_barriers != now.warp_barriers) return false;
        return earlier.several_lanes || earlier.thread != now.thread;
    }
    if (!warp.block->acquired) return true;
    // The blocks are not recorded, so each may have published its access.
    if (earlier.block == many_blocks) return false;
    const auto& all = warp.block->grid->published;
    const auto published = all.find(earlier.block);
    if (published == all.end() || !published->second.released) return true;
    const auto& [interval, until] = published->second.warp_until[earlier.thread / lanes];
    if (interval == earlier.barriers && static_cast<int16_t>(earlier.warp_barriers - until) < 0) return false;
    return published->second.block_until <= earlier.barriers &&
           published->second.thread_until[earlier.thread] <= earlier.barriers;
}

// There is one entry per word. Where several threads read parts of a word, accesses are lost, but none is
// invented.
void note_reader(Access& last, const Access& now) {
    const bool same_interval =
        last.launch == now.launch && last.block == now.block && last.barriers == now.barriers;
    if (same_interval && last.thread == now.thread && last.warp_barriers == now.warp_barriers) {
        if (!last.several_lanes && !last.several_warps) last.bytes |= now.bytes;
    } else if (last.launch != now.launch || !(last.bytes & now.bytes)) {
        last = now;
    } else if (last.block != now.block) {
        last.block = many_blocks;
        last.bytes &= now.bytes;
    } else if (!same_interval) {
        last = now;
    } else if (last.thread / lanes != now.thread / lanes) {
        last.several_warps = 1;
        last.bytes &= now.bytes;
    } else if (last.warp_barriers != now.warp_barriers) {
        const bool several_warps = last.several_warps;
        const uint16_t both = last.bytes & now.bytes;
        last = now;
        if (several_warps) last.several_warps = 1, last.bytes = both;
    } else {
        last.several_lanes = 1;
        last.bytes &= now.bytes;
    }
}

void note_writer(Access& last, const Access& now) {
    const bool same = last.launch == now.launch && last.block == now.block && last.barriers == now.barriers &&
                      last.thread == now.thread && last.warp_barriers == now.warp_barriers;
    const unsigned bytes = same ? last.bytes : 0u;
    last = now;
    last.bytes |= bytes & 15u;
}

std::string described(const Warp& warp, const Access& earlier) {
    if (earlier.block == many_blocks) return "several blocks";
    const std::string block =
        earlier.block == warp.block->index ? "" : fmt::format(" of block {}", earlier.block);
    if (earlier.several_warps) return "several warps" + block;
    if (earlier.several_lanes)
        return fmt::format("several threads of warp {}{}", earlier.thread / lanes, block);
    return fmt::format("thread {}{}", static_cast<unsigned>(earlier.thread), block);
}

struct Shadows {
    Access *writer, *reader;
};

[[gnu::noinline]] void check_word(Warp& warp, const Instruction& instruction, uint32_t lane, Access& writer,
                                  Access& reader, bool writes, const Access& now, const char* space) {
    const bool after_write = unordered(warp, writer, now),
               after_read = writes && unordered(warp, reader, now);
    if (after_write || after_read) {
        fault(warp, instruction, lane,
              fmt::format("a race: {} {} memory that {} {} without a barrier between them",
                          writes ? "writes" : "reads", space, described(warp, after_write ? writer : reader),
                          after_write ? "wrote" : "read"));
    }
    if (writes) note_writer(writer, now);
    else note_reader(reader, now);
}

// Records an access of bytes that begin offset bytes behind the start of the shadows; Fault if it races
// with another.
void check_race(Warp& warp, const Instruction& instruction, uint32_t lane, Shadows shadows, size_t offset,
                uint32_t bytes, bool writes, Access now, const char* space) {
    for (size_t word = offset / 4; word * 4 < offset + bytes; word++) {
        Access &writer = shadows.writer[word], &reader = shadows.reader[word];
        const size_t from = std::max(offset, word * 4), to = std::min(offset + bytes, word * 4 + 4);
        now.bytes = static_cast<uint16_t>(((1u << (to - from)) - 1) << (from - word * 4)) & 15u;
        // Most often no thread has touched the word in this launch.
        if (writer.launch != now.launch && reader.launch != now.launch) (writes ? writer : reader) = now;
        else check_word(warp, instruction, lane, writer, reader, writes, now, space);
    }
}

Access access_of(const Warp& warp, uint32_t lane, uint32_t launch, uint32_t block) {
    Access now;
    now.launch = launch;
    now.block = block;
    now.barriers = warp.block->barriers;
    now.warp_barriers = warp.barriers;
    now.thread = static_cast<uint16_t>((warp.index * lanes + lane) & 1023u);
    return now;
}

// ---- counters

// 32-byte sectors of global memory that a request touches, and those touched for the first time in this
// launch.
void count_sectors(Warp& warp, const uint64_t (&addresses)[lanes], uint32_t bytes, bool writes) {
    Grid& grid = *warp.block->grid;
    Counters::Transfers& transfers = writes ? grid.counters->stores : grid.counters->loads;
    std::vector<uint64_t> sectors, places;
    each_lane(warp.mask, [&](uint32_t lane) {
        places.push_back(addresses[lane]);
        for (uint64_t sector = addresses[lane] / 32; sector * 32 < addresses[lane] + bytes; sector++)
            sectors.push_back(sector);
    });
    const auto unique = [](std::vector<uint64_t>& values) {
        std::sort(values.begin(), values.end());
        values.erase(std::unique(values.begin(), values.end()), values.end());
        return values.size();
    };
    transfers.requests++;
    transfers.sectors += unique(sectors);
    const size_t distinct = unique(places) * bytes;
    transfers.least_sectors += (distinct + 31) / 32;
    transfers.bytes += static_cast<uint64_t>(__builtin_popcount(warp.mask)) * bytes;
    for (const uint64_t sector : sectors) {
        const Allocation* const allocation = grid.memory->find(reinterpret_cast<const void*>(sector * 32));
        if (!allocation) continue;
        const size_t word = (sector * 32 - reinterpret_cast<uint64_t>(allocation->begin)) / 4;
        bool is_new = true;
        for (size_t k = word; k < word + 8 && k * 4 < allocation->bytes; k++) {
            is_new &= allocation->shadow.writer[k].launch != grid.number;
            if (!writes) is_new &= allocation->shadow.reader[k].launch != grid.number;
        }
        if (is_new) transfers.distinct_bytes += 32;
    }
}

// Shared memory has 32 banks of 4 bytes. Requests of 8 bytes a lane are served by half-warps, those of 16
// by quarters.
void count_banks(Warp& warp, const uint64_t (&addresses)[lanes], uint32_t bytes) {
    Counters& counters = *warp.block->grid->counters;
    const uint32_t together = bytes >= 16 ? 8 : bytes == 8 ? 16 : 32;
    counters.shared_requests++;
    for (uint32_t first = 0; first < lanes; first += together) {
        std::vector<uint64_t> words;
        for (uint32_t lane = first; lane < first + together; lane++) {
            if (!(warp.mask >> lane & 1)) continue;
            for (uint64_t word = addresses[lane] / 4; word * 4 < addresses[lane] + bytes; word++)
                words.push_back(word);
        }
        if (words.empty()) continue;
        std::sort(words.begin(), words.end());
        words.erase(std::unique(words.begin(), words.end()), words.end());
        uint32_t in_bank[32] = {}, most = 0;
        for (const uint64_t word : words) most = std::max(most, ++in_bank[word % 32]);
        counters.shared_wavefronts += most;
        counters.least_shared_wavefronts++;
    }
}

// ---- address resolution

Allocation& allocation_of(Warp& warp, const Instruction& instruction, uint32_t lane, uint64_t address,
                          uint32_t bytes, const char* does) {
    Grid& grid = *warp.block->grid;
    const auto* const at = reinterpret_cast<const std::byte*>(address);
    if (!grid.allocation || grid.generation != grid.memory->generation() || at < grid.allocation->begin ||
        at + bytes > grid.allocation->end()) {
        grid.allocation = grid.memory->find(at);
        grid.generation = grid.memory->generation();
        if (!grid.allocation)
            fault(warp, instruction, lane,
                  fmt::format("{} {} bytes out of bounds, {}", does, bytes, grid.memory->nearest(at)));
        if (at + bytes > grid.allocation->end()) {
            const size_t offset = static_cast<size_t>(at - grid.allocation->begin),
                         whole = grid.allocation->bytes;
            grid.allocation = nullptr;
            fault(warp, instruction, lane,
                  fmt::format("{} {} bytes out of bounds, at byte {} of an allocation of {}", does, bytes,
                              offset, whole));
        }
    }
    return *grid.allocation;
}

void check_alignment(Warp& warp, const Instruction& instruction, uint32_t lane, uint64_t address,
                     uint32_t bytes, const char* space) {
    if (address % bytes != 0)
        fault(warp, instruction, lane,
              fmt::format("misaligned: {} bytes of {} memory at an address that is a multiple of {}", bytes,
                          space, address & (~address + 1)));
}

// The bytes of global memory, after the checks; the access is recorded.
std::byte* global_bytes(Warp& warp, const Instruction& instruction, uint32_t lane, uint64_t address,
                        uint32_t bytes, bool writes) {
    check_alignment(warp, instruction, lane, address, bytes, "global");
    const Allocation& allocation =
        allocation_of(warp, instruction, lane, address, bytes, writes ? "writes" : "reads");
    auto* const memory = reinterpret_cast<std::byte*>(address);
    const size_t offset = static_cast<size_t>(memory - allocation.begin);
    uint8_t* const written = allocation.shadow.written.get() + offset;
    if (writes) {
        for (uint32_t k = 0; k < bytes; k++) {
            if (written[k] == in_gap)
                fault(warp, instruction, lane, "writes between two tensors of an arena");
        }
        std::memset(written, 1, bytes);
    } else if (std::memcmp(written, ones, bytes) != 0) {
        const bool gap = std::memchr(written, in_gap, bytes) != nullptr;
        fault(
            warp, instruction, lane,
            gap ? "reads between two tensors of an arena"
                : fmt::format("reads global memory that was never written, at byte {} of an allocation of {}",
                              offset, allocation.bytes));
    }
    const Access now = access_of(warp, lane, warp.block->grid->number, warp.block->index);
    check_race(warp, instruction, lane, {allocation.shadow.writer.get(), allocation.shadow.reader.get()},
               offset, bytes, writes, now, "global");
    return memory;
}

std::byte* shared_bytes(Warp& warp, const Instruction& instruction, uint32_t lane, uint64_t address,
                        uint32_t bytes, bool writes, uint32_t aligned_to) {
    if (address >> 56 == 1) address &= ~generic_shared;
    Block& block = *warp.block;
    check_alignment(warp, instruction, lane, address, aligned_to, "shared");
    const uint64_t offset = address - shared_base;
    const bool inside = address >= shared_base && offset + bytes <= block.shared.size();
    if (!inside || block.owner[offset] == 0 || block.owner[offset + bytes - 1] != block.owner[offset]) {
        fault(warp, instruction, lane,
              fmt::format(
                  "{} {} bytes of shared memory out of bounds, {} bytes from where the dynamic block of {} "
                  "begins",
                  writes ? "writes" : "reads", bytes,
                  static_cast<int64_t>(address) - static_cast<int64_t>(block.grid->function->dynamic_shared),
                  block.grid->launch->dynamic_shared_bytes));
    }
    uint8_t* const written = block.written.data() + offset;
    if (writes) std::memset(written, 1, bytes);
    else if (std::memcmp(written, ones, bytes) != 0)
        fault(warp, instruction, lane, "reads shared memory that was never written");
    const Access now = access_of(warp, lane, block.serial, 0);
    check_race(warp, instruction, lane, {block.writer.data(), block.reader.data()}, offset, bytes, writes,
               now, "shared");
    return block.shared.data() + offset;
}

std::byte* local_bytes(Warp& warp, const Instruction& instruction, uint32_t lane, uint64_t address,
                       uint32_t bytes, bool writes) {
    const uint32_t size = warp.block->grid->function->local_bytes;
    check_alignment(warp, instruction, lane, address, bytes, "local");
    const uint64_t offset = address - local_base;
    if (address < local_base || offset + bytes > size)
        fault(warp, instruction, lane,
              fmt::format("{} {} bytes of local memory at byte {} of {}", writes ? "writes" : "reads", bytes,
                          offset, size));
    std::byte* const written = warp.local_written.data() + lane * size + offset;
    if (writes) std::memset(written, 1, bytes);
    else if (std::memcmp(written, ones, bytes) != 0)
        fault(warp, instruction, lane, "reads local memory that was never written");
    return warp.local.data() + lane * size + offset;
}

// A register that is wider than the value is sign- or zero-extended.
void put_in_register(std::byte* place, uint32_t width, const std::byte* value, const Instruction& i) {
    const bool negative = i.is_signed && static_cast<int8_t>(value[i.bytes - 1]) < 0;
    if (width > i.bytes) std::memset(place + i.bytes, negative ? 0xFF : 0, width - i.bytes);
    std::memcpy(place, value, std::min<uint32_t>(width, i.bytes));
}

template <Space space, bool writes>
void access(Warp& warp, const Instruction& i) {
    const uint32_t bytes = i.bytes * i.count;
    uint64_t addresses[lanes];
    const bool wide = i.width[0] == 8;
    const uint64_t offset = static_cast<uint64_t>(i.offset);
    if (wide) {
        const uint64_t* const base = warp.at<uint64_t>(i.operand[0]);
        for (uint32_t lane = 0; lane < lanes; lane++) addresses[lane] = base[lane] + offset;
    } else {
        const uint32_t* const base = warp.at<uint32_t>(i.operand[0]);
        for (uint32_t lane = 0; lane < lanes; lane++)
            addresses[lane] = static_cast<uint32_t>(base[lane] + offset);
    }
    if (warp.block->grid->counters) {
        if (space == Space::global) count_sectors(warp, addresses, bytes, writes);
        if (space == Space::shared) count_banks(warp, addresses, bytes);
    }
    each_lane(warp.mask, [&](uint32_t lane) {
        std::byte* memory = nullptr;
        if (space == Space::global) memory = global_bytes(warp, i, lane, addresses[lane], bytes, writes);
        else if (space == Space::shared)
            memory = shared_bytes(warp, i, lane, addresses[lane], bytes, writes, bytes);
        else memory = local_bytes(warp, i, lane, addresses[lane], bytes, writes);
        for (uint32_t k = 0; k < i.count; k++, memory += i.bytes) {
            const uint32_t width = i.width[k + 1];
            std::byte* const place = warp.registers + i.operand[k + 1] + lane * width;
            if (writes) {
                std::memcpy(memory, place, i.bytes);
            } else {
                put_in_register(place, width, memory, i);
            }
        }
    });
}

// ld.param: the same value for every lane.
void load_parameter(Warp& warp, const Instruction& i) {
    const std::vector<std::byte>& arguments = warp.block->grid->launch->arguments;
    for (uint32_t k = 0; k < i.count; k++) {
        const size_t from = static_cast<size_t>(i.offset) + k * i.bytes;
        if (from + i.bytes > arguments.size()) fault(warp, i, 0, "reads behind the kernel's arguments");
        const uint32_t width = i.width[k + 1];
        each_lane(warp.mask, [&](uint32_t lane) {
            std::byte* const place = warp.registers + i.operand[k + 1] + lane * width;
            put_in_register(place, width, arguments.data() + from, i);
        });
    }
}

}  // namespace

Handler load_handler(Space space) {
    return space == Space::global   ? access<Space::global, false>
           : space == Space::shared ? access<Space::shared, false>
                                    : access<Space::local, false>;
}
Handler store_handler(Space space) {
    return space == Space::global   ? access<Space::global, true>
           : space == Space::shared ? access<Space::shared, true>
                                    : access<Space::local, true>;
}
Handler parameter_handler() { return load_parameter; }

// ---- cp.async: the source is read at once and stored at the wait; until then the destination in shared
// memory counts as never written.

void begin_copy(Warp& warp, const Instruction& i) {
    const uint32_t* const to = warp.at<uint32_t>(i.operand[0]);
    const uint64_t* const from = warp.at<uint64_t>(i.operand[1]);
    const uint32_t* const bytes = warp.at<uint32_t>(i.operand[2]);
    const uint32_t* const from_bytes = warp.at<uint32_t>(i.operand[3]);
    Grid& grid = *warp.block->grid;
    if (grid.counters) {
        uint64_t addresses[lanes];
        const uint32_t mask = warp.mask;
        each_lane(mask, [&](uint32_t lane) {
            addresses[lane] = from[lane];
            if (from_bytes[lane] == 0) warp.mask &= ~(1u << lane);
        });
        if (warp.mask) count_sectors(warp, addresses, bytes[__builtin_ctz(mask)], false);
        warp.mask = mask;
    }
    each_lane(warp.mask, [&](uint32_t lane) {
        PendingCopy copy;
        copy.to = to[lane], copy.bytes = bytes[lane], copy.group = warp.copy_groups[lane];
        if (copy.bytes != 4 && copy.bytes != 8 && copy.bytes != 16)
            fault(warp, i, lane, fmt::format("cp.async of {} bytes", copy.bytes));
        if (from_bytes[lane] > copy.bytes)
            fault(warp, i, lane, fmt::format("cp.async of {} bytes from {}", copy.bytes, from_bytes[lane]));
        if (from_bytes[lane] > 0) {
            check_alignment(warp, i, lane, from[lane], copy.bytes, "global");
            // Whole words at their own alignment; a request may need only a part of them.
            for (uint32_t k = 0; k < from_bytes[lane]; k += 4)
                std::memcpy(copy.data.data() + k, global_bytes(warp, i, lane, from[lane] + k, 4, false), 4);
        }
        std::byte* const place = shared_bytes(warp, i, lane, copy.to, copy.bytes, true, copy.bytes);
        std::memset(place, 0xFF, copy.bytes);
        std::memset(warp.block->written.data() + (copy.to - shared_base), 0, copy.bytes);
        warp.copies[lane].push_back(copy);
    });
}

void commit_copies(Warp& warp) {
    each_lane(warp.mask, [&](uint32_t lane) { warp.copy_groups[lane]++; });
}

void wait_for_copies(Warp& warp, const Instruction& i, uint32_t newest) {
    each_lane(warp.mask, [&](uint32_t lane) {
        auto& copies = warp.copies[lane];
        while (!copies.empty() && copies.front().group + newest < warp.copy_groups[lane]) {
            const PendingCopy copy = copies.front();
            copies.pop_front();
            std::memcpy(shared_bytes(warp, i, lane, copy.to, copy.bytes, true, copy.bytes), copy.data.data(),
                        copy.bytes);
        }
    });
}

// ---- ldmatrix.x4: lane 8 m + r gives the address of row r of matrix m.
void load_matrices(Warp& warp, const Instruction& i, bool transposed) {
    const uint32_t* const rows = warp.at<uint32_t>(i.operand[4]);
    uint64_t addresses[lanes];
    for (uint32_t lane = 0; lane < lanes; lane++)
        addresses[lane] = static_cast<uint32_t>(rows[lane] + static_cast<uint64_t>(i.offset));
    if (warp.block->grid->counters) count_banks(warp, addresses, 16);
    uint16_t matrices[4][8][8];
    for (uint32_t lane = 0; lane < lanes; lane++)
        std::memcpy(matrices[lane / 8][lane % 8], shared_bytes(warp, i, lane, addresses[lane], 16, false, 16),
                    16);
    for (uint32_t m = 0; m < 4; m++) {
        uint32_t* const result = warp.at<uint32_t>(i.operand[m]);
        for (uint32_t lane = 0; lane < lanes; lane++) {
            const uint32_t a = lane / 4, b = lane % 4 * 2;
            const uint32_t low = transposed ? matrices[m][b][a] : matrices[m][a][b];
            const uint32_t high = transposed ? matrices[m][b + 1][a] : matrices[m][a][b + 1];
            result[lane] = high << 16 | low;
        }
    }
}

void note_fence(Warp& warp) {
    Published& published = warp.block->grid->published[warp.block->index];
    published.thread_until.resize(1024);
    published.block_until = warp.block->barriers;
    published.warp_until[warp.index] = {warp.block->barriers, warp.barriers};
    each_lane(warp.mask, [&](uint32_t lane) {
        published.thread_until[warp.index * lanes + lane] = warp.block->barriers + 1;
    });
}

void* atomic_word(Warp& warp, const Instruction& i, uint32_t lane, uint64_t address, uint32_t bytes) {
    check_alignment(warp, i, lane, address, bytes, "global");
    const Allocation& allocation = allocation_of(warp, i, lane, address, bytes, "changes");
    const uint8_t* const written =
        allocation.shadow.written.get() + (reinterpret_cast<std::byte*>(address) - allocation.begin);
    if (std::memcmp(written, ones, bytes) != 0)
        fault(warp, i, lane, "changes global memory that was never written");
    warp.block->acquired = true;
    auto& published = warp.block->grid->published;
    if (const auto own = published.find(warp.block->index); own != published.end())
        own->second.released = true;
    return reinterpret_cast<void*>(address);
}

}  // namespace software_gpu
