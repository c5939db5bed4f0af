// warp.h: the state of a grid during its execution; blocks run one after another, the warps of a block in
// turns
#pragma once
#include <fmt/format.h>

#include <bit>
#include <deque>
#include <random>

#include "ptx.h"

namespace software_gpu {

struct Grid;
struct Block;

// Lanes of a warp that proceed from the same instruction together.
struct Group {
    uint32_t pc = 0, mask = 0;
    bool waits = false;  // for other lanes, at an instruction that all of them must reach together
};

// A copy that has begun (cp.async) and not yet arrived.
struct PendingCopy {
    uint32_t to = 0, bytes = 0, group = 0;
    std::array<std::byte, 16> data{};
};

struct Warp {
    enum class State { runs, at_barrier, ended };
    Block* block = nullptr;
    std::byte* registers = nullptr;
    uint32_t index = 0, present = 0, ended = 0;  // in the block; lanes that it has, and those that have ended
    uint32_t mask = 0;                           // lanes that execute the current instruction
    State state = State::runs;
    uint32_t barrier_pc = 0;
    uint16_t barriers = 0;  // bar.warp.sync and bar.sync until now
    std::vector<Group> groups;
    std::vector<std::byte> local, local_written;
    std::array<std::deque<PendingCopy>, lanes> copies;
    std::array<uint32_t, lanes> copy_groups{};

    template <class T>
    T* at(int32_t place) {
        return reinterpret_cast<T*>(registers + place);
    }
    uint32_t& predicate(int32_t place) { return *at<uint32_t>(place); }
};

struct Block {
    Grid* grid = nullptr;
    uint32_t index = 0, x = 0, y = 0, z = 0;
    uint32_t barriers = 0;
    uint32_t serial = 0;  // in place of a launch's number for its shared memory
    bool acquired =
        false;  // has executed an atomic operation, so that it sees what others published before theirs
    std::vector<std::byte> shared;
    std::vector<uint8_t> owner, written;
    std::vector<Access> writer, reader;
    std::vector<Warp> warps;
};

// The intervals between its barriers up to which a block has published its writes (membar): as a whole, by
// thread and by warp.
struct Published {
    uint32_t block_until = 0;
    std::vector<uint32_t> thread_until;
    std::array<std::pair<uint32_t, uint16_t>, 32>
        warp_until{};       // of each warp at its last fence: the interval, and its own barriers
    bool released = false;  // an atomic operation has followed a fence
};

struct Grid {
    const Function* function = nullptr;
    const Launch* launch = nullptr;
    Memory* memory = nullptr;
    Settings settings;
    Counters* counters = nullptr;
    uint32_t number = 0;
    std::mt19937_64 random;
    std::map<uint32_t, Published> published;
    Allocation* allocation = nullptr;  // the last one that was found
    uint64_t generation = 0;
    std::vector<uint64_t> executed;  // by instruction, when counting
};

// Visits the lanes of a mask in ascending order.
template <class Visit>
void each_lane(uint32_t mask, const Visit& visit) {
    for (; mask; mask &= mask - 1) visit(static_cast<uint32_t>(std::countr_zero(mask)));
}

[[noreturn]] void fault(const Warp& warp, const Instruction& instruction, uint32_t lane,
                        const std::string& what);

// memory_access.cpp
void commit_copies(Warp& warp);
void wait_for_copies(Warp& warp, const Instruction& instruction, uint32_t newest);
void load_matrices(Warp& warp, const Instruction& instruction, bool transposed);
void begin_copy(Warp& warp, const Instruction& instruction);
void note_fence(Warp& warp);
// The 4 or 8 bytes of a lane in global memory, checked, for an atomic operation.
void* atomic_word(Warp& warp, const Instruction& instruction, uint32_t lane, uint64_t address,
                  uint32_t bytes);

}  // namespace software_gpu
