// Causal attention, forward and backward, by every implementation this build has, against plain_gpt2.h; where
// heads share keys and values, against the attention in which each has them to itself.
#include <algorithm>
#include <cstring>
#include <functional>

#include "common.cuh"
#include "kernels/attention/attention.cuh"
#include "plain_llama.h"

namespace {

// The bound of an element of lse: this many units of 2^-24 of its magnitude, plus an absolute part.
struct LseBound {
    double units = 8, beside = 0;
};
LseBound own_lse_bound(AttentionShape) { return {}; }

template <class T>
struct Implementation {
    std::string name;
    std::function<void(T* out, float* lse, const T* qkv, AttentionShape shape)> forward;
    std::function<void(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse,
                       AttentionShape shape)>
        backward;
    bool computes_every_shape = true, deterministic = true;
    LseBound (*lse_bound)(AttentionShape) = own_lse_bound;

    bool computes(AttentionShape s) const { return computes_every_shape || (s.HS % 8 == 0 && s.T > 1); }
};

template <class T, class... Widths>
void add_kernels(std::vector<Implementation<T>>& all, std::tuple<Widths...>) {
    (all.push_back(
         {fmt::format("kernel at {} thread(s) a row", int{Widths::threads}),
          [](T* out, float* lse, const T* qkv, AttentionShape shape) {
              attention_forward<Widths>(out, lse, qkv, shape, nullptr);
          },
          [](T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse, AttentionShape shape) {
              simt::DeviceBuffer<float> scratch =
                  poisoned<float>(attention_scratch_bytes(shape) / sizeof(float));
              attention_backward<Widths>(dqkv, dout, qkv, out, lse, scratch.data(), shape, nullptr);
          }}),
     ...);
}

// cuDNN computes the statistics in fp32, with instructions whose errors the PTX ISA bounds, and in an
// undocumented order.
//   scores: tensor cores add 16 products at a time and truncate instead of rounding: 2^-23 of the magnitude
//   within each of HS / 16 sums of 16, and as much when it is added to those before, which makes HS / 4 units
//   of 2^-24 beside the 8 that every implementation may take
//   exponentials: 2^-22 (ex2.approx) in each term, and in the factor by which a sum is scaled after each tile
//   of 64 keys
//   their sum: T roundings of 2^-24 at most, in any order
//   its logarithm: 2^-22 (lg2.approx), of the result where that is more than 1; the sum lies between 1 and T
LseBound cudnn_lse_bound(AttentionShape s) {
    const double exponentials = (1 + ceil_div(s.T, 64)) * 0x1p-22, sum = s.T * 0x1p-24;
    const double logarithm = std::log(2.0) * std::max(1.0, std::log2(s.T)) * 0x1p-22;
    return {8 + s.HS / 4.0, exponentials + sum + logarithm};
}

template <class T>
Implementation<T> offered(AttentionBackend backend, bool deterministic = false) {
    auto attention = std::make_shared<Attention>(backend, deterministic);
    const auto workspace = [attention](AttentionShape shape) {
        return poisoned<char>(attention->workspace_bytes<T>(shape));
    };
    return {fmt::format("--attention {}{}", attention_backend_name(backend),
                        deterministic ? " --deterministic" : ""),
            [=](T* out, float* lse, const T* qkv, AttentionShape shape) {
                const auto memory = workspace(shape);
                attention->forward(out, lse, qkv, shape, memory.data(), nullptr);
                simt::stream_synchronize(nullptr);
            },
            [=](T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse, AttentionShape shape) {
                const auto memory = workspace(shape);
                attention->backward(dqkv, dout, qkv, out, lse, shape, memory.data(), nullptr);
                simt::stream_synchronize(nullptr);
            },
            backend != AttentionBackend::cudnn,
            backend != AttentionBackend::cudnn || deterministic,
            backend == AttentionBackend::cudnn ? cudnn_lse_bound : own_lse_bound};
}

// The kernel at every width, and the libraries.
template <class T>
std::vector<Implementation<T>> implementations() {
    std::vector<Implementation<T>> all;
    add_kernels(all, simt::TestWidths<std::tuple, 32>{});
    for (AttentionBackend backend : Attention::available<T>()) {
        if (backend != AttentionBackend::kernel) all.push_back(offered<T>(backend));
        if (backend == AttentionBackend::cudnn) all.push_back(offered<T>(backend, true));
    }
    return all;
}

std::string describe(AttentionShape s) {
    return fmt::format("B={} T={} NH={} NKV={} HS={}", s.B, s.T, s.NH, s.NKV, s.HS);
}
size_t elements(AttentionShape s) { return static_cast<size_t>(s.B) * s.T * s.NH * s.HS; }
size_t packed(AttentionShape s) { return static_cast<size_t>(s.B) * s.T * (s.NH + 2 * s.NKV) * s.HS; }
size_t statistics(AttentionShape s) { return static_cast<size_t>(s.B) * s.NH * s.T; }

struct Expected {
    std::vector<Bounded> out, lse, dqkv;

    Expected(const std::vector<float>& qkv, const std::vector<float>& dout, AttentionShape s)
        : out(elements(s)), lse(statistics(s)) {
        const size_t B = s.B, T = s.T, NH = s.NH, NKV = s.NKV, HS = s.HS;
        const std::vector<Bounded> all = plain::repeat_heads(exact(qkv), NH, NKV, HS);
        std::vector<Bounded> gradient(all.size());
        plain::attention_forward(out.data(), lse.data(), all.data(), B, T, NH, HS);
        plain::attention_backward(gradient.data(), exact(dout).data(), all.data(), out.data(), lse.data(), B,
                                  T, NH, HS);
        dqkv = plain::add_heads(gradient, NH, NKV, HS);
    }
};

struct Computed {
    std::vector<float> out, lse, dqkv;
};

template <class T>
Computed compute(const Implementation<T>& implementation, const std::vector<float>& qkv,
                 const std::vector<float>& dout, AttentionShape s) {
    const auto device_qkv = upload<T>(qkv);
    const auto device_dout = upload<T>(dout);
    const auto out = poisoned<T>(elements(s));
    const auto dqkv = poisoned<T>(packed(s));
    const auto lse = poisoned<float>(statistics(s));
    implementation.forward(out.data(), lse.data(), device_qkv.data(), s);
    implementation.backward(dqkv.data(), device_dout.data(), device_qkv.data(), out.data(), lse.data(), s);
    return {download(out), download(lse), download(dqkv)};
}

void expect_same_bits(const Computed& a, const Computed& b) {
    const auto same = [](const std::vector<float>& x, const std::vector<float>& y) {
        return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
    };
    EXPECT_TRUE(same(a.out, b.out));
    EXPECT_TRUE(same(a.lse, b.lse));
    EXPECT_TRUE(same(a.dqkv, b.dqkv));
}

// fp32: a few dozen roundings of 2^-24; bf16: 2^-9 each in P, in dS, in what is stored of out, and in the
// result
template <class T>
constexpr double tolerance = std::is_same_v<T, float> ? 1e-5 : 1e-2;

template <class T>
void expect_each_near(const Computed& computed, const Expected& expected, LseBound bound = {}) {
    expect_elements(computed.out, expected.out, epsilon<T>);
    expect_within(computed.lse, expected.lse,
                  [&](Bounded e) { return bound.units * epsilon<float> * e.size() + bound.beside; });
    expect_elements(computed.dqkv, expected.dqkv, epsilon<T>);
}
// A bound on the whole tensor. An output that is the mean of hundreds of values is so small that zeros would
// pass the bound of each element. lse is never rounded to T.
template <class T>
void expect_near(const Computed& computed, const Expected& expected, LseBound bound = {}) {
    EXPECT_LE(relative_error(computed.out, expected.out), tolerance<T>);
    EXPECT_LE(relative_error(computed.lse, expected.lse), tolerance<T>);
    EXPECT_LE(relative_error(computed.dqkv, expected.dqkv), tolerance<T>);
    expect_each_near<T>(computed, expected, bound);
}

template <class T>
void expect_all_near(AttentionShape s, unsigned seed, const std::vector<Implementation<T>>& implementations) {
    const std::vector<float> qkv = random_values<T>(packed(s), seed),
                             dout = random_values<T>(elements(s), seed + 1000);
    const Expected expected(qkv, dout, s);
    for (const Implementation<T>& implementation : implementations) {
        SCOPED_TRACE(fmt::format("{}, {}, seed {}", implementation.name, describe(s), seed));
        if (implementation.computes(s)) {
            expect_near<T>(compute<T>(implementation, qkv, dout, s), expected, implementation.lse_bound(s));
        } else if (s.HS % 8 != 0) {
            EXPECT_THROW(compute<T>(implementation, qkv, dout, s), UsageError);
        }
    }
}

template <class T>
class AttentionTest : public testing::Test {};
using Types = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(AttentionTest, Types);

TYPED_TEST(AttentionTest, MatchesDoublePrecision) {
    using T = TypeParam;
    std::vector<AttentionShape> shapes = {{1, 1, 1, 1},    {2, 1, 3, 8},   {1, 2, 1, 32},   {3, 33, 1, 5},
                                          {1, 65, 2, 33},  {2, 17, 5, 64}, {1, 130, 1, 32}, {1, 65, 3, 64},
                                          {1, 70, 1, 128}, {1, 35, 2, 80}, {2, 16, 1, 127}, {1, 48, 2, 16},
                                          {2, 64, 2, 32},  {1, 64, 1, 64}, {1, 63, 2, 50},  {1, 32, 2, 128}};
    if (simt::is_gpu())
        shapes.insert(shapes.end(),
                      {{3, 128, 3, 64}, {2, 192, 5, 64}, {1, 257, 3, 96}, {3, 320, 1, 128}, {2, 511, 2, 40}});
    unsigned seed = 100;
    for (const AttentionShape& s : shapes) expect_all_near<T>(s, ++seed, implementations<T>());
}

// A head of k and v for all heads of q, for a third of them, and for two; tiles and blocks as above.
TYPED_TEST(AttentionTest, HeadsThatShareKeysAndValuesMatchDoublePrecision) {
    using T = TypeParam;
    std::vector<AttentionShape> shapes = {{2, 5, 3, 2, 1},    {1, 33, 6, 6, 2},  {2, 67, 3, 64, 1},
                                          {1, 130, 4, 16, 2}, {1, 65, 9, 32, 3}, {1, 40, 2, 128, 1},
                                          {2, 64, 6, 32, 2},  {1, 47, 3, 56, 1}, {1, 31, 4, 100, 2}};
    if (simt::is_gpu())
        shapes.insert(shapes.end(), {{2, 192, 9, 64, 3}, {1, 257, 6, 96, 2}, {2, 320, 4, 128, 1}});
    unsigned seed = 300;
    for (const AttentionShape& s : shapes) expect_all_near<T>(s, ++seed, implementations<T>());
}

// The kernels for tensor cores, over all their head sizes and around the ends of their tiles of 64 and blocks
// of 64 and 128 rows.
Implementation<bfloat16> tensor_cores() {
    return {"tensor cores",
            [](bfloat16* out, float* lse, const bfloat16* qkv, AttentionShape shape) {
                attention_mma_forward(out, lse, qkv, shape, nullptr);
            },
            [](bfloat16* dqkv, const bfloat16* dout, const bfloat16* qkv, const bfloat16* out,
               const float* lse, AttentionShape shape) {
                simt::DeviceBuffer<float> scratch =
                    poisoned<float>(attention_scratch_bytes(shape) / sizeof(float));
                attention_mma_backward(dqkv, dout, qkv, out, lse, scratch.data(), shape, nullptr);
            }};
}
struct TensorCores : testing::TestWithParam<AttentionShape> {};
TEST_P(TensorCores, MatchDoublePrecision) { expect_all_near<bfloat16>(GetParam(), 20, {tensor_cores()}); }
const AttentionShape tensor_core_shapes[] = {
    {3, 1, 5, 16},      {1, 2, 3, 64},      {1, 15, 3, 128},    {1, 16, 1, 24},    {3, 17, 1, 96},
    {1, 31, 1, 40},     {1, 33, 3, 72},     {1, 63, 1, 64},     {1, 64, 1, 8},     {1, 65, 3, 32},
    {1, 79, 1, 80},     {1, 97, 1, 112},    {1, 127, 1, 64},    {1, 129, 1, 16},   {1, 129, 1, 128},
    {1, 193, 1, 64},    {1, 255, 1, 32},    {1, 257, 1, 64},    {2, 17, 3, 16, 1}, {1, 65, 4, 64, 2},
    {1, 129, 6, 32, 2}, {1, 200, 3, 64, 1}, {1, 70, 2, 128, 1}, {1, 128, 2, 96, 1}};
INSTANTIATE_TEST_SUITE_P(Shapes, TensorCores, testing::ValuesIn(tensor_core_shapes), [](const auto& info) {
    const AttentionShape s = info.param;
    return fmt::format("B{}_T{}_NH{}_HS{}_NKV{}", s.B, s.T, s.NH, s.HS, s.NKV);
});

// One thread records the work of its block, from the matrices that it gets.
struct WorkOfBlock {
    size_t head, packed, plain;  // of B * NH; the first elements of its v in qkv and of its rows of out
    int tile, tiles;
};
__global__ void work_of_block_kernel(WorkOfBlock* work, const float* qkv, const float* out,
                                     AttentionShape shape, int rows, int group) {
    if (threadIdx.x > 0) return;
    const AttentionBlock block(shape, rows, group);
    work[blockIdx.x] = {block.statistics() / shape.T, static_cast<size_t>(block.packed(qkv, 2).first - qkv),
                        static_cast<size_t>(block.plain(out).first - out), block.tile, block.tiles};
}
// Heads come in groups, the last of which may be smaller; within a group every head's first tile, then every
// head's second. Where the kernels need more than one group heads are too many, or too long, for the other
// tests.
TEST(Attention, BlocksWorkOnEveryTileOfEveryHeadOnceGroupByGroup) {
    struct Case {
        int B, NH, T, group;
    };
    const Case cases[] = {{1, 7, 128, 3}, {7, 1, 65, 3},  {2, 3, 200, 4},
                          {2, 3, 64, 5},  {3, 2, 129, 1}, {2, 2, 129, 4}};
    constexpr int rows = 64, HS = 8;
    for (const auto& [B, NH, T, group] : cases) {
        SCOPED_TRACE(fmt::format("B={} NH={} T={}, groups of {}", B, NH, T, group));
        const AttentionShape shape{B, T, NH, HS};
        const size_t heads = static_cast<size_t>(B) * NH, length = static_cast<size_t>(T),
                     width = static_cast<size_t>(NH) * HS;
        const int tiles = ceil_div(T, rows);
        const auto work = poisoned<WorkOfBlock>(heads * tiles);
        const simt::DeviceBuffer<float> qkv(3 * elements(shape)), out(elements(shape));
        simt::launch(work_of_block_kernel, static_cast<unsigned>(work.size()), 32, 0, nullptr, work.data(),
                     qkv.data(), out.data(), shape, rows, group);
        const std::vector<WorkOfBlock> found = download_raw(work);
        size_t block = 0;
        for (size_t begin = 0; begin < heads; begin += static_cast<size_t>(group)) {
            for (int tile = 0; tile < tiles; tile++) {
                for (size_t head = begin; head < std::min(heads, begin + static_cast<size_t>(group));
                     head++, block++) {
                    const size_t b = head / NH, h = head % NH;
                    EXPECT_EQ(found[block].head, head) << "block " << block;
                    EXPECT_EQ(found[block].tile, tile) << "block " << block;
                    EXPECT_EQ(found[block].tiles, tiles) << "block " << block;
                    EXPECT_EQ(found[block].packed, (b * length * 3 + 2) * width + h * HS)
                        << "block " << block;
                    EXPECT_EQ(found[block].plain, b * length * width + h * HS) << "block " << block;
                }
            }
        }
        EXPECT_EQ(block, found.size());
    }
    EXPECT_EQ(attention_mma_group({1, 1024, 100, 64}), 64);  // 256 KiB of keys and values a head
    EXPECT_EQ(attention_mma_group({2, 1024, 12, 64}), 24);
    EXPECT_EQ(attention_mma_group({1, 1 << 20, 12, 64}), 1);
}

// At a GPU's width bf16 uses the kernels for tensor cores if a head's rows are aligned, and those of
// attention.cuh otherwise. The bits equal those of attention_mma.cuh only in the first case.
TEST(Attention, BfloatGoesToTensorCoresWhereRowsAreAligned) {
    using T = bfloat16;
    std::vector<Implementation<T>> gpu;
    add_kernels(gpu, std::tuple<simt::GpuWidth<32>>{});
    const AttentionShape s{1, 40, 2, 24};
    const std::vector<float> qkv = random_values<T>(3 * elements(s), 22),
                             dout = random_values<T>(elements(s), 23);
    const Computed chosen = compute<T>(gpu[0], qkv, dout, s),
                   on_tensor_cores = compute<T>(tensor_cores(), qkv, dout, s);
    expect_same_bits(chosen, on_tensor_cores);
    EXPECT_TRUE(attention_mma_takes({1, 40, 2, 8}));
    EXPECT_FALSE(attention_mma_takes({1, 40, 2, 12}));
}

// automatic switches its backend between these lengths.
TYPED_TEST(AttentionTest, EveryOfferedBackendMatchesDoublePrecision) {
    using T = TypeParam;
    std::vector<Implementation<T>> all = {offered<T>(AttentionBackend::automatic)};
    for (const AttentionBackend backend : Attention::available<T>()) all.push_back(offered<T>(backend));
    for (const AttentionShape& s :
         {AttentionShape{2, 33, 2, 12}, AttentionShape{1, 260, 2, 6}, AttentionShape{3, 33, 1, 8}})
        expect_all_near<T>(s, 5, all);
}

// cuDNN's bound is below the effect of a wrong mask: one key more or less changes lse by about 1 / T.
TEST(Attention, ABoundOfLseSeesAKeyTooMany) {
    for (const AttentionShape& s : {AttentionShape{2, 511, 2, 40}, AttentionShape{3, 320, 1, 128}}) {
        const std::vector<float> qkv = random_values<bfloat16>(3 * elements(s), 14), dout(elements(s), 0.0f);
        const Expected expected(qkv, dout, s);
        const LseBound bound = cudnn_lse_bound(s);
        for (const Bounded& lse : expected.lse)
            EXPECT_LE(bound.units * epsilon<float> * lse.size() + bound.beside, 0.1 / s.T);
    }
}

TYPED_TEST(AttentionTest, LaterTokensChangeNothingEarlier) {
    using T = TypeParam;
    const AttentionShape s{1, 70, 2, 24};
    const size_t row = static_cast<size_t>(s.NH) * s.HS;
    const std::vector<float> qkv = random_values<T>(3 * elements(s), 7),
                             other = random_values<T>(3 * elements(s), 8), dout(elements(s), 0.0f);
    for (const Implementation<T>& implementation : implementations<T>()) {
        const Computed before = compute<T>(implementation, qkv, dout, s);
        for (int t : {1, 32, 69}) {
            SCOPED_TRACE(fmt::format("{}, token {} and later changed", implementation.name, t));
            std::vector<float> changed = qkv;
            std::copy(other.begin() + t * 3 * row, other.end(), changed.begin() + t * 3 * row);
            const Computed after = compute<T>(implementation, changed, dout, s);
            EXPECT_EQ(std::memcmp(after.out.data(), before.out.data(), t * row * sizeof(float)), 0);
            EXPECT_NE(
                std::memcmp(after.out.data() + t * row, before.out.data() + t * row, row * sizeof(float)), 0);
        }
    }
}

TYPED_TEST(AttentionTest, TheGradientOfAnEarlyQueryReachesNoLaterToken) {
    using T = TypeParam;
    const AttentionShape s{1, 70, 1, 16};
    const std::vector<float> qkv = random_values<T>(3 * elements(s), 9);
    std::vector<float> dout(elements(s), 0.0f);
    std::fill(dout.begin(), dout.begin() + 20 * s.HS, 1.0f);  // queries 0 to 19
    for (const Implementation<T>& implementation : implementations<T>()) {
        SCOPED_TRACE(implementation.name);
        const Computed computed = compute<T>(implementation, qkv, dout, s);
        for (size_t i = static_cast<size_t>(20) * 3 * s.HS; i < computed.dqkv.size(); i++)
            ASSERT_EQ(computed.dqkv[i], 0.0f) << "element " << i;
    }
}

// Scores up to a few thousand: exp of one overflows, and all but the largest of a row underflow.
TYPED_TEST(AttentionTest, LargeScoresStayFinite) {
    using T = TypeParam;
    const AttentionShape s{1, 65, 1, 64};
    const std::vector<float> qkv = random_values<T>(3 * elements(s), 10, 30.0f),
                             dout = random_values<T>(elements(s), 11);
    const Expected expected(qkv, dout, s);
    for (const Implementation<T>& implementation : implementations<T>()) {
        SCOPED_TRACE(implementation.name);
        const Computed computed = compute<T>(implementation, qkv, dout, s);
        expect_each_near<T>(computed, expected, implementation.lse_bound(s));
    }
}

TYPED_TEST(AttentionTest, TheSameBitsTwice) {
    using T = TypeParam;
    const AttentionShape s{2, 67, 2, 24};
    const std::vector<float> qkv = random_values<T>(3 * elements(s), 12),
                             dout = random_values<T>(elements(s), 13);
    for (const Implementation<T>& implementation : implementations<T>()) {
        if (!implementation.deterministic) continue;
        SCOPED_TRACE(implementation.name);
        const Computed first = compute<T>(implementation, qkv, dout, s),
                       second = compute<T>(implementation, qkv, dout, s);
        expect_same_bits(first, second);
    }
}

TYPED_TEST(AttentionTest, WorkspaceGrowsWithTheLengthNotWithItsSquare) {
    for (AttentionBackend backend : Attention::available<TypeParam>()) {
        for (const bool deterministic : {false, true}) {
            const Attention attention(backend, deterministic);
            const auto bytes = [&](int T) {
                return attention.template workspace_bytes<TypeParam>({4, T, 12, 64});
            };
            EXPECT_LE(bytes(8192), 9 * bytes(1024));
            // never more than a gradient of qkv
            EXPECT_LE(bytes(8192), 3 * elements({4, 8192, 12, 64}) * sizeof(float));
        }
    }
}

TEST(Attention, RefusesWhatItCannotCompute) {
    simt::DeviceBuffer<float> memory(1024);
    const auto forward = [&](AttentionShape shape) {
        attention_forward(memory.data(), memory.data(), memory.data(), shape, nullptr);
    };
    EXPECT_THROW(forward({1, 1, 1, 129}), UsageError);
    EXPECT_THROW(forward({0, 1, 1, 8}), UsageError);
    EXPECT_THROW(forward({1, 1, 1, 0}), UsageError);
    EXPECT_THROW(forward({1, 1, 3, 8, 2}), UsageError);
    EXPECT_THROW(Attention{simt::is_gpu() ? AttentionBackend::onednn : AttentionBackend::cudnn}, UsageError);
}

}  // namespace
