// software_gpu.h: executes the PTX that nvcc made of the kernels on a CPU, and stops at errors that a GPU
// would silently ignore
//   PTX ISA: https://docs.nvidia.com/cuda/parallel-thread-execution/. Every check throws Fault, with one
//   line that names the finding, the kernel, its source line, the block and the thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace software_gpu {

struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Dim {
    unsigned x = 1, y = 1, z = 1;
    size_t count() const { return size_t{x} * y * z; }
};

// The choices in executing a launch that a GPU is free to make.
struct Settings {
    enum class Order {
        ascending,
        descending,
        seeded
    } order = Order::ascending;  // of the blocks of a grid, and of the warps of a block
    uint64_t seed = 1;
    // Moves each result of an approximate instruction by the largest error that the PTX ISA documents:
    // upwards, downwards, or by the seed.
    enum class Approximation { nearest, up, down, seeded } approximation = Approximation::nearest;
    bool tensor_cores_truncate =
        false;                  // the aligned products are cut off before they are added, as tensor cores do
    bool count = false;         // keeps Counters
    int multiprocessors = 132;  // the number that the device reports; kernels divide their work by it

    // "order=descending,seed=3,approximation=seeded,truncate,count,multiprocessors=4"; Fault names an
    // unknown setting.
    static Settings parse(std::string_view text);
};

// ----------------------------------------------------------------------------------------------------
// global memory

// One access of a thread, for the race check. 16 bytes; all zero: none.
struct Access {
    uint32_t launch = 0;         // number of the launch; accesses of other launches are ordered
    uint32_t block = 0;          // linear index in the grid
    uint32_t barriers = 0;       // barriers of the block so far
    uint16_t warp_barriers = 0;  // warp barriers of the warp so far, modulo 2^16
    uint16_t thread : 10 = 0;    // linear index in the block
    uint16_t bytes : 4 = 0;      // mask of the word's bytes
    uint16_t several_lanes : 1 = 0,
                             several_warps : 1 = 0;  // readers besides that thread, of its warp and of others
};

struct Unmap {
    size_t bytes = 0;
    void operator()(void* memory) const;
};
template <class T>
using Zeros = std::unique_ptr<T[], Unmap>;

// An allocation's bytes and words, and the recorded accesses to them.
constexpr uint8_t in_gap = 2;
struct Shadow {
    Zeros<uint8_t> written;  // of each byte: 1 if it has been written, in_gap if it lies between two tensors
    Zeros<Access> writer, reader;  // of each 4 bytes
};

struct Allocation {
    std::byte* begin;
    size_t bytes;
    Shadow shadow;
    std::byte* end() const { return begin + bytes; }
};

// The device's memory. Addresses are those of the host, so that replaced libraries read and write it
// directly and report that by check_read and note_write. Not thread-safe.
class Memory {
public:
    Memory() = default;
    Memory(const Memory&) = delete;
    ~Memory();
    // Returns memory that is aligned to 4096, apart from every other allocation, at an address that was
    // not freed recently, filled with bytes 0xFF; nullptr if there is not enough.
    void* allocate(size_t bytes);
    // False if no allocation begins there.
    bool release(void* memory);
    // The allocation that holds the address; nullptr if none does.
    Allocation* find(const void* address);
    size_t allocated() const { return allocated_; }
    // Changes with every allocation and release; cached allocations are invalid then.
    uint64_t generation() const { return generation_; }
    // "12 bytes behind the end of an allocation of 4096 bytes"
    std::string nearest(const void* address) const;

    // Checks a whole range that a library or a copy reads: Fault "WHO reads N bytes ...", unless it lies
    // in one allocation and every byte has been written. A range that begins in no allocation is the
    // host's memory; it is not checked, and the result is false.
    bool check_read(const void* from, size_t bytes, std::string_view who);
    // Fault unless the range lies in one allocation; its bytes then count as written. False for the host's
    // memory.
    bool note_write(void* to, size_t bytes, std::string_view who);
    // A copy on the device also copies which bytes have been written.
    void note_copy(void* to, const void* from, size_t bytes, std::string_view who);

    void poison_gap(void* memory, size_t bytes);  // any access to these bytes is a finding
    void unpoison_gap(void* memory, size_t bytes);

private:
    Allocation* whole_range(const void* address, size_t bytes, std::string_view who, const char* does);

    std::map<uintptr_t, Allocation> allocations_;  // by their end
    std::vector<std::pair<void*, size_t>> freed_;
    size_t allocated_ = 0, freed_bytes_ = 0;
    uint64_t generation_ = 0;
};

// ----------------------------------------------------------------------------------------------------
// kernels

struct Parameter {
    size_t offset, bytes;
};
struct Function;  // decoded (ptx.h)

struct Kernel {
    std::string mangled, name;  // name: demangled, without parameters
    std::vector<Parameter> parameters;
    size_t parameter_bytes = 0;
    size_t static_shared_bytes = 0;
    unsigned max_threads = 1024;                  // by __launch_bounds__
    size_t max_dynamic_shared_bytes = 48 * 1024;  // less the static ones; cudaFuncSetAttribute raises it
    std::shared_ptr<const Function> function;
};

// A module of PTX, as nvcc embeds it.
class Module {
public:
    // Fault names a line that it cannot read. Variables of the module (.global, .const) are put in memory.
    Module(std::string_view ptx, Memory& memory);
    Module(Module&&) noexcept;
    ~Module();
    Kernel* find(std::string_view mangled);  // nullptr if it is not there
    std::vector<Kernel*> kernels();
    struct Content;

private:
    std::unique_ptr<Content> content_;
};

// Counts of whole grids, as in Nsight Compute; instructions are those of warps.
struct Counters {
    uint64_t launches = 0, blocks = 0, warps = 0;
    uint64_t threads_a_block = 0, dynamic_shared_bytes = 0;  // of a block; the most of any launch
    std::map<std::string, uint64_t> instructions;  // by class: "fp32", "int", "mma", "global load", ...
    struct Transfers {
        uint64_t requests = 0, sectors = 0, least_sectors = 0,
                 bytes = 0;           // least_sectors: the sectors if the same bytes were adjacent
        uint64_t distinct_bytes = 0;  // bytes of sectors that are touched for the first time in this launch
    } loads, stores;
    uint64_t shared_requests = 0, shared_wavefronts = 0,
             least_shared_wavefronts = 0;  // their difference: bank conflicts
};

struct Launch {
    Dim grid, block;
    size_t dynamic_shared_bytes = 0;
    std::vector<std::byte> arguments;  // as laid out by Kernel::parameters
};

// Executes the whole grid. Throws Fault for a finding of a check.
void run(const Kernel& kernel, const Launch& launch, Memory& memory, const Settings& settings,
         Counters* counters = nullptr);

// The arguments of a launch as CUDA gives them: the address of each.
std::vector<std::byte> pack_arguments(const Kernel& kernel, void* const* arguments);

}  // namespace software_gpu
