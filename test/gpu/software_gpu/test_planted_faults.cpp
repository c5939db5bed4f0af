// Every fault planted in planted_faults.cu is found: the finding names the kernel, its source line, the
// block and the thread. The same kernel without the fault passes in every order of blocks and warps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "kernels/simt/bfloat16.h"
#include "queues.h"
#include "software_gpu.h"

using namespace software_gpu;

namespace {

using Order = Settings::Order;

std::string text_of(const std::string& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

// "planted_faults.cu:12", for the line that ends in "finding: KERNEL"
std::string place_of_finding(const std::string& kernel) {
    std::istringstream source(text_of(PROJECT_ROOT "/test/gpu/software_gpu/planted_faults.cu"));
    std::string line;
    for (unsigned number = 1; std::getline(source, line); number++) {
        if (line.ends_with("// finding: " + kernel)) return fmt::format("planted_faults.cu:{}", number);
    }
    ADD_FAILURE() << "no line ends in \"finding: " << kernel << "\"";
    return "";
}

template <class Work>
std::string message_of(const Work& work) {
    try {
        work();
    } catch (const Fault& fault) { return fault.what(); }
    return "";
}

// The finding, and the thread that causes it when blocks and warps run in ascending order.
struct Expected {
    std::string finding;
    unsigned block = 0, thread = 0;
};

class PlantedFaults : public testing::Test {
protected:
    template <class T>
    T* holding(const std::vector<T>& values) {
        T* const to = empty<T>(values.size());
        memory.note_write(to, values.size() * sizeof(T), "the test");
        std::memcpy(to, values.data(), values.size() * sizeof(T));
        return to;
    }
    template <class T = float>
    T* empty(size_t count) {
        return static_cast<T*>(memory.allocate(count * sizeof(T)));
    }
    float* numbers(size_t count) {
        std::vector<float> values(count);
        for (size_t i = 0; i < count; i++) values[i] = static_cast<float>(i + 1);
        return holding(values);
    }

    Kernel& kernel(const std::string& name) {
        for (Kernel* const found : module.kernels()) {
            if (found->name == name) return *found;
        }
        throw std::runtime_error(name + " is not in the PTX");
    }
    template <class... Arguments>
    std::string finding(const std::string& name, Settings settings, Launch launch, Arguments... arguments) {
        const Kernel& found = kernel(name);
        void* addresses[] = {&arguments...};
        launch.arguments = pack_arguments(found, addresses);
        return message_of([&] { run(found, launch, memory, settings); });
    }

    // The kernel passes without its fault, and with it the finding is as expected.
    template <class... Arguments>
    void check(const std::string& name, const Launch& launch, const Expected& expected,
               Arguments... arguments) {
        check_at(place_of_finding(name), name, launch, expected, arguments...);
    }
    // The same for a fault in product(), which the kernel inlines: the message names both places.
    template <class... Arguments>
    void check_in_product(const std::string& name, const Launch& launch, const Expected& expected,
                          Arguments... arguments) {
        check_at(place_of_finding("product") + ", called at " + place_of_finding(name), name, launch,
                 expected, arguments...);
    }
    template <class... Arguments>
    void check_at(const std::string& place, const std::string& name, const Launch& launch,
                  const Expected& expected, Arguments... arguments) {
        for (const Settings& settings : orders())
            EXPECT_EQ(finding(name + "<false>", settings, launch, arguments...), "");
        const std::string planted = name + "<true>";
        const std::string message = finding(planted, {}, launch, arguments...);
        EXPECT_TRUE(message.starts_with(expected.finding)) << message << "\nexpected: " << expected.finding;
        for (const std::string& part :
             {" (" + planted + ", ", place + ", block",
              fmt::format(", block {} 0 0, thread {};", expected.block, expected.thread)})
            EXPECT_NE(message.find(part), std::string::npos) << message << "\nexpected: " << part;
        for (const Settings& settings : orders())
            EXPECT_NE(finding(planted, settings, launch, arguments...).find(planted), std::string::npos);
    }
    static std::vector<Settings> orders() {
        std::vector<Settings> all = {{.order = Order::ascending}, {.order = Order::descending}};
        for (uint64_t seed = 1; seed <= 8; seed++) all.push_back({.order = Order::seeded, .seed = seed});
        return all;
    }

    Memory memory;
    Module module{text_of(PLANTED_FAULTS_PTX), memory};
};

Launch threads(unsigned count) { return {{}, {count}, 0, {}}; }
Launch blocks(unsigned grid, unsigned block) { return {{grid}, {block}, 0, {}}; }

// ---- barriers and fences

TEST_F(PlantedFaults, BarrierThatIsMissing) {
    check("missing_barrier", threads(64),
          {"a race: writes shared memory that thread 31 read without a barrier", 0, 32}, empty(64),
          numbers(64));
}
TEST_F(PlantedFaults, BarrierBeforeATileIsUsedAgain) {
    check("missing_barrier_before_reuse", threads(64),
          {"a race: reads shared memory that thread 31 wrote without a barrier", 0, 32}, empty(128),
          numbers(128));
}
TEST_F(PlantedFaults, BarrierOfAWarpThatIsMissing) {
    check("missing_warp_barrier", threads(32),
          {"a race: reads shared memory that thread 31 wrote without a barrier", 0, 0}, empty(32),
          numbers(32));
}
TEST_F(PlantedFaults, FenceBeforeTheLastBlockAddsUp) {
    check("missing_fence", blocks(4, 32),
          {"a race: reads global memory that thread 0 of block 0 wrote without a barrier", 3, 0}, empty(1),
          empty(4), holding<unsigned>({0}), numbers(4));
}
TEST_F(PlantedFaults, BarrierBeforeTheFence) {
    check("missing_barrier_before_fence", blocks(4, 64),
          {"a race: reads global memory that thread 1 of block 0 wrote without a barrier", 3, 0}, empty(1),
          empty(256), holding<unsigned>({0}), numbers(256));
}
TEST_F(PlantedFaults, TwoBlocksThatWriteOneWord) {
    check("two_blocks_one_word", blocks(2, 32),
          {"a race: writes global memory that thread 0 of block 0 wrote", 1, 0}, empty(64), numbers(64));
}
TEST_F(PlantedFaults, BlockThatReadsAnothersOutput) {
    check("block_reads_anothers_output", blocks(2, 32),
          {"a race: reads global memory that thread 2 of block 0 wrote", 1, 5}, empty(64), numbers(64));
}
TEST_F(PlantedFaults, BarrierThatAWarpDoesNotReach) {
    check("warp_without_barrier", threads(64),
          {"a barrier that warp 1 of the block never reaches: it has ended", 0, 0}, empty(1), numbers(64));
}
TEST_F(PlantedFaults, LaneThatEndedBeforeABarrier) {
    check("lane_ended_before_barrier", threads(64),
          {"lanes 0fffffff of the warp wait for lane 28, which never comes: it has ended", 0, 32}, empty(60),
          numbers(60), 60u);
}

// ---- shuffles

TEST_F(PlantedFaults, ShuffleOfAWholeWarpInABranch) {
    check("shuffle_in_branch", threads(32),
          {"lanes 0000ffff of the warp wait for lane 16, which never comes: it has ended", 0, 0}, empty(32),
          numbers(32));
}
TEST_F(PlantedFaults, ShuffleFromALaneThatIsNotThere) {
    check("shuffle_from_absent_lane", threads(32), {"a shuffle from lane 16, which does not take part", 0, 0},
          empty(32), numbers(32));
}
TEST_F(PlantedFaults, ShuffleByALaneThatItsMaskLeavesOut) {
    check("shuffle_without_oneself", threads(32),
          {"a lane that is not among the members that it names", 0, 16}, empty(32), numbers(32));
}

// ---- tensor cores

struct Factors {
    std::vector<bfloat16> left = std::vector<bfloat16>(256), right = std::vector<bfloat16>(128);
    Factors() {
        std::mt19937 random(5);
        std::uniform_real_distribution<float> values(-1, 1);
        for (bfloat16& value : left) value = bfloat16(values(random));
        for (bfloat16& value : right) value = bfloat16(values(random));
    }
};

TEST_F(PlantedFaults, MatrixAtAnAddressThatIsNoMultipleOf16) {
    const Factors factors;
    check_in_product("misaligned_matrix", threads(32), {"misaligned: 16 bytes of shared memory", 0, 0},
                     empty(128), holding(factors.left), holding(factors.right));
}
TEST_F(PlantedFaults, MatrixThatReachesPastItsTile) {
    const Factors factors;
    check_in_product("matrix_out_of_bounds", threads(32),
                     {"reads 16 bytes of shared memory out of bounds", 0, 15}, empty(128),
                     holding(factors.left), holding(factors.right));
}

// No check can find a wrong operand; the numbers show it.
TEST_F(PlantedFaults, OperandsOfAProductThatAreSwapped) {
    const Factors factors;
    bfloat16* const left = holding(factors.left);
    bfloat16* const right = holding(factors.right);
    float* const out = empty(128);
    for (const bool truncates : {false, true}) {
        // The largest error in units of the possible loss of sums of 16 products: 2^-23 of the sum of
        // their magnitudes for each product.
        const auto error_of = [&](const std::string& name) {
            EXPECT_EQ(finding(name, {.tensor_cores_truncate = truncates}, threads(32), out, left, right), "");
            double largest = 0;
            for (size_t row = 0; row < 16; row++) {
                for (size_t column = 0; column < 8; column++) {
                    double sum = 0, magnitudes = 0;
                    for (size_t k = 0; k < 16; k++) {
                        const double term = double(float(factors.left[row * 16 + k])) *
                                            double(float(factors.right[column * 16 + k]));
                        sum += term, magnitudes += std::abs(term);
                    }
                    largest = std::max(largest,
                                       std::abs(out[row * 8 + column] - sum) / (16 * 0x1p-23 * magnitudes));
                }
            }
            return largest;
        };
        for (const std::string name : {"swapped_left_operand", "swapped_right_operand"}) {
            EXPECT_LE(error_of(name + "<false>"), 1) << name;
            EXPECT_GT(error_of(name + "<true>"), 1000) << name;
        }
    }
}

// ---- places in memory

TEST_F(PlantedFaults, ReadPastARow) {
    check("past_the_row", threads(32),
          {"reads 4 bytes out of bounds, 0 bytes behind the end of an allocation of 128", 0, 31}, empty(32),
          numbers(32));
}
TEST_F(PlantedFaults, WritePastARow) {
    check("write_past_the_row", threads(32),
          {"writes 4 bytes out of bounds, 0 bytes behind the end of an allocation of 128", 0, 31}, empty(32),
          numbers(32));
}
TEST_F(PlantedFaults, LoadOf16BytesThatIsMisaligned) {
    check("misaligned_load", threads(32),
          {"misaligned: 16 bytes of global memory at an address that is a multiple of 8", 0, 3}, empty(32),
          numbers(132));
}
TEST_F(PlantedFaults, GapBetweenTwoTensors) {
    float* const arena = numbers(96);
    memory.poison_gap(arena + 32, 128);
    check("write_into_gap", threads(32), {"writes between two tensors of an arena", 0, 31}, arena);
    check("read_of_gap", threads(32), {"reads between two tensors of an arena", 0, 31}, empty(32), arena);
    memory.unpoison_gap(arena + 32, 128);
    EXPECT_EQ(finding("write_into_gap<true>", {}, threads(32), arena), "");
}
TEST_F(PlantedFaults, ReadPastASharedArray) {
    Launch launch = threads(32);
    launch.dynamic_shared_bytes = 128;
    check("past_a_shared_array", launch, {"reads 4 bytes of shared memory out of bounds", 0, 0}, empty(32),
          numbers(32));
}
TEST_F(PlantedFaults, WritePastDynamicSharedMemory) {
    Launch launch = threads(32);
    launch.dynamic_shared_bytes = 128;
    check("past_dynamic_memory", launch, {"writes 4 bytes of shared memory out of bounds", 0, 31}, empty(32),
          numbers(32));
}
TEST_F(PlantedFaults, PlacePastALocalArray) {
    check("past_a_local_array", threads(32), {"reads 4 bytes of local memory at byte 16 of 16", 0, 7},
          empty(32), holding<unsigned>({0, 1, 2, 3}));
}
TEST_F(PlantedFaults, MemoryThatHasBeenFreed) {
    float *const out = empty(32), *const in = numbers(32);
    EXPECT_EQ(finding("reads<false>", {}, threads(32), out, in), "");
    ASSERT_TRUE(memory.release(in));
    const std::string message = finding("reads<false>", {}, threads(32), out, in);
    EXPECT_TRUE(message.starts_with("reads 4 bytes out of bounds, in memory that has been freed")) << message;
    EXPECT_NE(message.find("(reads<false>, " + place_of_finding("reads") + ", block 0 0 0, thread 0;"),
              std::string::npos)
        << message;
}

// ---- memory that holds nothing yet

TEST_F(PlantedFaults, GlobalMemoryThatWasNeverWritten) {
    check("global_never_written", threads(32),
          {"reads global memory that was never written, at byte 0 of an allocation of 128", 0, 0}, empty(32),
          numbers(32), empty(32));
}
TEST_F(PlantedFaults, CounterThatWasNeverZeroed) {
    check("counter_never_zeroed", threads(32), {"changes global memory that was never written", 0, 0},
          holding<unsigned>({0}), empty<unsigned>(1));
}
TEST_F(PlantedFaults, SharedMemoryThatWasNeverWritten) {
    check("shared_never_written", threads(64), {"reads shared memory that was never written", 0, 54},
          empty(64), numbers(64));
}
TEST_F(PlantedFaults, LocalMemoryThatWasNeverWritten) {
    check("local_never_written", threads(32), {"reads local memory that was never written", 0, 0}, empty(32),
          holding<unsigned>({0, 1, 2, 3}));
}
TEST_F(PlantedFaults, CopyThatNobodyWaitedFor) {
    check("read_before_copy_arrives", threads(32), {"reads shared memory that was never written", 0, 0},
          empty(32), numbers(128));
}
TEST_F(PlantedFaults, WaitThatLeavesTheNewestCopyUnderWay) {
    check("wait_for_older_copy", threads(32), {"reads shared memory that was never written", 0, 0}, empty(32),
          numbers(128));
}
TEST_F(PlantedFaults, CopyOfAnotherThreadWithoutABarrier) {
    check("anothers_copy_without_barrier", threads(32),
          {"a race: reads shared memory that thread 31 wrote without a barrier", 0, 0}, empty(32),
          numbers(128));
}

// ---- two streams

// A kernel in a second stream reads what a kernel in the first one writes.
TEST_F(PlantedFaults, EventBetweenTwoStreams) {
    const auto findings = [&](bool event_between) {
        std::set<std::string> all;
        for (uint64_t seed = 0; seed < 32; seed++) {
            float *const in = numbers(32), *const middle = empty(32), *const out = empty(32);
            Queues& queues = *new Queues(seed);  // never destroyed
            const cudaStream_t a = queues.create(), b = queues.create();
            std::string first, second;
            queues.give(a, Command{.name = "first", .work = [&] {
                                       first = finding("reads<false>", {}, threads(32), middle, in);
                                   }});
            CUevent_st event;
            queues.record(&event, a);
            if (event_between) { EXPECT_EQ(queues.wait(b, &event), cudaSuccess); }
            queues.give(b, Command{.name = "second", .work = [&] {
                                       second = finding("reads<true>", {}, threads(32), out, middle);
                                   }});
            queues.synchronize();
            EXPECT_EQ(first, "");
            all.insert(second.substr(0, second.find(',')));
        }
        return all;
    };
    EXPECT_EQ(findings(true), (std::set<std::string>{""}));
    EXPECT_EQ(findings(false), (std::set<std::string>{"", "reads global memory that was never written"}));
}

// ---- PTX that the software GPU does not support

std::string refusal_of(const std::string& statement) {
    const std::string ptx =
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry mine(.param .u64 "
        "mine_param_0)\n{\n.reg .b32 %r<4>;\n" +
        statement + "\nret;\n}\n";
    Memory memory;
    return message_of([&] {
        Module module(ptx, memory);
        Kernel* const kernel = module.find("mine");
        ASSERT_NE(kernel, nullptr);
        uint64_t nothing = 0;
        void* address = &nothing;
        run(*kernel, {{}, {}, 0, pack_arguments(*kernel, &address)}, memory, {});
    });
}

TEST(PlantedPtx, OpcodeThatIsNotKnown) {
    EXPECT_EQ(refusal_of("mov.u32 %r1, 5;"), "");
    for (const std::string opcode : {"brev.b32", "popc.b32", "mov.q32"}) {
        const std::string message = refusal_of(opcode + " %r1, %r2;");
        EXPECT_NE(message.find(opcode), std::string::npos) << message;
    }
}

}  // namespace
