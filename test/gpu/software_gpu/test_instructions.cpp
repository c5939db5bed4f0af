// Instructions that nvcc 12.4 writes for our kernels and nvcc 13.0 does not, in hand-written PTX, because
// continuous integration compiles with 13.0.
//   PTX ISA, "Data Movement and Conversion Instructions: prmt" and "Parallel Synchronization and
//   Communication Instructions: red"
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "software_gpu.h"

using namespace software_gpu;

namespace {

class Instructions : public testing::Test {
protected:
    // The kernel `mine` has three pointers as parameters, which it finds in %rd1 to %rd3; %rd4 is 4 times the
    // thread's number.
    static std::string kernel_of(const std::string& statements) {
        return R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry mine(.param .u64 mine_param_0, .param .u64 mine_param_1, .param .u64 mine_param_2)
{
.reg .pred %p<2>;
.reg .b32 %r<9>;
.reg .b64 %rd<9>;
ld.param.u64 %rd1, [mine_param_0];
ld.param.u64 %rd2, [mine_param_1];
ld.param.u64 %rd3, [mine_param_2];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd4, %r1, 4;
)" + statements +
               "ret;\n}\n";
    }
    // The finding, or nothing.
    std::string run_blocks(const std::string& statements, unsigned blocks, unsigned threads,
                           std::array<void*, 3> pointers) {
        try {
            Module module(kernel_of(statements), memory);
            const Kernel& kernel = *module.find("mine");
            void* const arguments[] = {&pointers[0], &pointers[1], &pointers[2]};
            run(kernel, {{blocks}, {threads}, 0, pack_arguments(kernel, arguments)}, memory, {});
        } catch (const Fault& fault) { return fault.what(); }
        return "";
    }
    template <class T>
    T* holding(const std::vector<T>& values) {
        T* const to = static_cast<T*>(memory.allocate(values.size() * sizeof(T)));
        memory.note_write(to, values.size() * sizeof(T), "the test");
        std::memcpy(to, values.data(), values.size() * sizeof(T));
        return to;
    }
    uint32_t* empty(size_t count) { return static_cast<uint32_t*>(memory.allocate(count * 4)); }

    Memory memory;
};

// ---- prmt

constexpr uint32_t low = 0x03820100, high = 0x87060584;  // bytes 0 to 7; 2, 4 and 7 have their highest bit
struct Permutation {
    uint32_t selector, expected;
};
// Beside single bytes: the lower and the upper halves of both, as two bf16 are put into one register; the
// signs of all bytes, eight times each; bytes beside signs; selectors with more than the four digits that
// count.
constexpr auto permutations = std::to_array<Permutation>({
    {0x3210, low},
    {0x7654, high},
    {0x0123, 0x00018203},
    {0x4567, 0x84050687},
    {0x4444, 0x84848484},
    {0x5410, 0x05840100},
    {0x7632, 0x87060382},
    {0x7604, 0x87060084},
    {0xba98, 0x00ff0000},
    {0xfedc, 0xff0000ff},
    {0x1a7c, 0x01ff87ff},
    {0xffff3210, low},
    {0x89ab7654, high},
});

TEST_F(Instructions, PrmtPicksBytesAndSigns) {
    std::vector<uint32_t> selectors;
    for (const Permutation& permutation : permutations) selectors.push_back(permutation.selector);
    uint32_t* const out = empty(selectors.size());
    const std::string statements = R"(
add.s64 %rd5, %rd1, %rd4;
add.s64 %rd6, %rd2, %rd4;
ld.global.u32 %r2, [%rd3];
ld.global.u32 %r3, [%rd3+4];
ld.global.u32 %r4, [%rd6];
prmt.b32 %r5, %r2, %r3, %r4;
st.global.u32 [%rd5], %r5;
)";
    const auto threads = static_cast<unsigned>(selectors.size());
    ASSERT_EQ(run_blocks(statements, 1, threads, {out, holding(selectors), holding<uint32_t>({low, high})}),
              "");
    for (size_t k = 0; k < permutations.size(); k++)
        EXPECT_EQ(out[k], permutations[k].expected) << std::hex << permutations[k].selector;
}

TEST_F(Instructions, PrmtChangesNoLaneThatItsGuardLeavesOut) {
    uint32_t* const out = empty(32);
    const std::string statements = R"(
add.s64 %rd5, %rd1, %rd4;
ld.global.u32 %r2, [%rd3];
ld.global.u32 %r3, [%rd3+4];
mov.u32 %r5, 7;
setp.lt.u32 %p1, %r1, 11;
@%p1 prmt.b32 %r5, %r2, %r3, 30212;
st.global.u32 [%rd5], %r5;
)";
    ASSERT_EQ(run_blocks(statements, 1, 32, {out, nullptr, holding<uint32_t>({low, high})}), "");
    for (uint32_t lane = 0; lane < 32; lane++) EXPECT_EQ(out[lane], lane < 11 ? 0x87060084 : 7) << lane;
}

// ---- red

TEST_F(Instructions, RedAddsEveryThreadsValue) {
    auto* const words = holding<uint32_t>({9, 100, 5});
    auto* const wide = holding<uint64_t>({0xfffffff0});
    const std::string statements = R"(
add.s32 %r2, %r1, 1;
cvt.u64.u32 %rd5, %r2;
red.global.add.u32 [%rd1+4], %r2;
red.global.add.u64 [%rd2], %rd5;
)";
    // Twice the sum of 1 to 40, of which the second warp has a part.
    ASSERT_EQ(run_blocks(statements, 2, 40, {words, wide, nullptr}), "");
    EXPECT_EQ(words[0], 9u);
    EXPECT_EQ(words[1], 100u + 1640);
    EXPECT_EQ(words[2], 5u);
    EXPECT_EQ(*wide, 0xfffffff0u + uint64_t{1640});
}

TEST_F(Instructions, RedAddsNothingForALaneThatItsGuardLeavesOut) {
    auto* const word = holding<uint32_t>({0});
    const std::string statements = R"(
setp.lt.u32 %p1, %r1, 11;
@%p1 red.global.add.u32 [%rd1], 1;
)";
    ASSERT_EQ(run_blocks(statements, 1, 32, {word, nullptr, nullptr}), "");
    EXPECT_EQ(*word, 11u);
}

TEST_F(Instructions, RedIncrementsUpToItsOperandAndBeginsAnew) {
    auto* const word = holding<uint32_t>({0});
    // 0 to 6 and 0 again: after 32 threads, 32 modulo 7.
    ASSERT_EQ(run_blocks("red.global.inc.u32 [%rd1], 6;\n", 1, 32, {word, nullptr, nullptr}), "");
    EXPECT_EQ(*word, 32u % 7);
}

TEST_F(Instructions, RedOfWhatWasNeverWrittenIsFound) {
    const std::string message =
        run_blocks("red.global.add.u32 [%rd1], 1;\n", 1, 1, {empty(1), nullptr, nullptr});
    EXPECT_TRUE(message.starts_with("changes global memory that was never written")) << message;
}

// A block that reads what another one has published must have read the counter. `red` returns nothing, so
// it orders no later read; `atom` does.
TEST_F(Instructions, RedPublishesButDoesNotLetItsBlockSeeWhatOthersPublish) {
    const auto finding = [&](const std::string& counting) {
        const std::string statements = R"(
mov.u32 %r2, %ctaid.x;
mul.wide.u32 %rd5, %r2, 4;
add.s64 %rd6, %rd1, %rd5;
st.global.u32 [%rd6], %r2;
membar.gl;
)" + counting + R"(
ld.global.u32 %r4, [%rd1];
)";
        return run_blocks(statements, 2, 1, {empty(2), holding<uint32_t>({0}), nullptr});
    };
    EXPECT_EQ(finding("atom.global.add.u32 %r3, [%rd2], 1;"), "");
    // Block 0's `red` publishes, and block 1's `atom` sees it.
    EXPECT_EQ(finding("setp.eq.s32 %p1, %r2, 0;\n@%p1 red.global.add.u32 [%rd2], 1;\n"
                      "@!%p1 atom.global.add.u32 %r3, [%rd2], 1;"),
              "");
    const std::string message = finding("red.global.add.u32 [%rd2], 1;");
    EXPECT_TRUE(message.starts_with("a race: reads global memory that thread 0 of block 0 wrote")) << message;
}

}  // namespace
