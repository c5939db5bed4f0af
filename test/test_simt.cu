// The functions of kernels/simt behave the same on both machines: collectives, shuffles, vectors, shared
// memory, launches, arithmetic.
#include <bit>
#include <cfloat>
#include <cmath>

#include "common.cuh"
#include "kernels/simt/simt.cuh"

namespace {

// ---- collectives ----

enum class Reduction { sum, max };

// The butterfly written down: lane 0's sums at distance W/2, ..., 2, 1.
float butterfly(std::vector<float> v, Reduction reduction) {
    for (size_t distance = v.size() / 2; distance > 0; distance /= 2) {
        for (size_t i = 0; i < distance; i++)
            v[i] = reduction == Reduction::sum ? v[i] + v[i + distance] : std::fmax(v[i], v[i + distance]);
    }
    return v[0];
}
float expected_row(const std::vector<float>& row, Reduction reduction) {
    if (row.size() <= 32) return butterfly(row, reduction);
    std::vector<float> of_warp(32, reduction == Reduction::sum ? 0.0f : -INFINITY);
    for (size_t warp = 0; warp < row.size() / 32; warp++) {
        of_warp[warp] = butterfly({row.begin() + static_cast<ptrdiff_t>(warp * 32),
                                   row.begin() + static_cast<ptrdiff_t>(warp * 32 + 32)},
                                  reduction);
    }
    return butterfly(of_warp, reduction);
}

template <int W>
__global__ void collectives_kernel(float* sums, float* maxima, const float* inp) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    sums[i] = simt::row_sum<W>(inp[i]);
    maxima[i] = simt::row_max<W>(inp[i]);
    sums[i] += 0 * simt::row_sum<W>(1.0f);  // a second sum is not affected by the first
}

template <class Threads>
class Collectives : public testing::Test {
protected:
    static constexpr int W = Threads::value;
    static constexpr unsigned block = W <= 32 ? 128 : W;
    // Every thread's result, against its row's butterfly, bit for bit.
    static void expect_bits(const std::vector<float>& values) {
        const auto inp = upload<float>(values);
        auto sums = poisoned<float>(values.size()), maxima = poisoned<float>(values.size());
        simt::launch(collectives_kernel<W>, static_cast<unsigned>(values.size() / block), block, 0, nullptr,
                     sums.data(), maxima.data(), inp.data());
        const std::vector<float> sum = download(sums), max = download(maxima);
        for (size_t i = 0; i < values.size(); i++) {
            const auto begin = values.begin() + static_cast<ptrdiff_t>(i / W * W);
            const std::vector<float> row(begin, begin + W);
            ASSERT_EQ(std::bit_cast<uint32_t>(sum[i]),
                      std::bit_cast<uint32_t>(expected_row(row, Reduction::sum)))
                << "sum in thread " << i;
            ASSERT_EQ(std::bit_cast<uint32_t>(max[i]),
                      std::bit_cast<uint32_t>(expected_row(row, Reduction::max)))
                << "maximum in thread " << i;
        }
    }
};
using CollectiveWidths = testing::Types<std::integral_constant<int, 1>, std::integral_constant<int, 2>,
                                        std::integral_constant<int, 4>, std::integral_constant<int, 8>,
                                        std::integral_constant<int, 16>, std::integral_constant<int, 32>,
                                        std::integral_constant<int, 64>, std::integral_constant<int, 128>,
                                        std::integral_constant<int, 256>, std::integral_constant<int, 1024>>;
TYPED_TEST_SUITE(Collectives, CollectiveWidths);

// Magnitudes from 2^-30 to 2^30: adding in another order gives other bits.
TYPED_TEST(Collectives, AddInTheOrderOfTheButterfly) {
    std::vector<float> values = random_values<float>(3 * TestFixture::block, 1);
    for (size_t i = 0; i < values.size(); i++)
        values[i] = std::ldexp(values[i], static_cast<int>(i * 7 % 61) - 30);
    this->expect_bits(values);
}
TYPED_TEST(Collectives, TakeNegativeRowsAndInfinities) {
    std::vector<float> values(TestFixture::block, -3.0f);
    values.back() = -INFINITY;
    this->expect_bits(values);
    values.front() = INFINITY;
    values.back() = 1.0f;
    this->expect_bits(values);
}

// For every position of the NaN, the sum is NaN in all threads, and the maximum is that of the others in
// all threads.
TYPED_TEST(Collectives, NaNReachesEverySumAndNoMaximum) {
    constexpr int W = TestFixture::W;
    if constexpr (W > 1) {
        constexpr unsigned block = TestFixture::block;
        for (const size_t place : {size_t{0}, size_t{1}, size_t{W - 1}}) {
            std::vector<float> values(block, -2.0f);
            for (size_t row = 0; row < block / W; row++) values[row * W + place] = std::nanf("");
            const auto inp = upload<float>(values);
            auto sums = poisoned<float>(block), maxima = poisoned<float>(block);
            simt::launch(collectives_kernel<W>, 1, block, 0, nullptr, sums.data(), maxima.data(), inp.data());
            const std::vector<float> sum = download(sums), max = download(maxima);
            for (unsigned i = 0; i < block; i++) {
                ASSERT_TRUE(std::isnan(sum[i])) << "thread " << i;
                ASSERT_EQ(max[i], -2.0f) << "thread " << i;
            }
        }
    }
}

// Some warps may skip a warp's collective, and thread 0 may be among those that end first.
__global__ void some_warps_kernel(float* out) {
    const float lane = static_cast<float>(threadIdx.x % 32);
    out[threadIdx.x] = threadIdx.x / 32 % 2 == 1 ? simt::warp_sum(lane) : -1.0f;
}
TEST(Simt, WarpCollectiveBySomeWarpsOnly) {
    auto out = poisoned<float>(160);
    simt::launch(some_warps_kernel, 1, 160, 0, nullptr, out.data());
    const std::vector<float> values = download(out);
    for (size_t i = 0; i < values.size(); i++)
        EXPECT_EQ(values[i], i / 32 % 2 == 1 ? 496.0f : -1.0f) << "thread " << i;
}

// ---- shuffles ----

template <class T>
__global__ void shuffle_kernel(T* from_5, T* other, T* up, T* down) {
    const T value = static_cast<T>(threadIdx.x * 3 + 1);
    from_5[threadIdx.x] = __shfl_sync(0xffffffffu, value, 5);
    other[threadIdx.x] = __shfl_xor_sync(0xffffffffu, value, 17);
    up[threadIdx.x] = __shfl_up_sync(0xffffffffu, value, 3);
    down[threadIdx.x] = __shfl_down_sync(0xffffffffu, value, 30);
}
template <class T>
class Shuffle : public testing::Test {};
using ShuffleTypes = testing::Types<int, unsigned, float, double, unsigned long long>;
TYPED_TEST_SUITE(Shuffle, ShuffleTypes);

TYPED_TEST(Shuffle, TakesTheNamedLanesValue) {
    constexpr unsigned block = 96;
    simt::DeviceBuffer<TypeParam> out(4 * block);
    simt::launch(shuffle_kernel<TypeParam>, 1, block, 0, nullptr, out.data(), out.data() + block,
                 out.data() + 2 * block, out.data() + 3 * block);
    const std::vector<TypeParam> values = download_raw(out);
    const auto value_of = [](unsigned thread) { return static_cast<TypeParam>(thread * 3 + 1); };
    for (unsigned i = 0; i < block; i++) {
        const unsigned lane = i % 32, warp = i - lane;
        EXPECT_EQ(values[i], value_of(warp + 5));
        EXPECT_EQ(values[block + i], value_of(warp + (lane ^ 17)));
        EXPECT_EQ(values[2 * block + i], value_of(lane >= 3 ? i - 3 : i));
        EXPECT_EQ(values[3 * block + i], value_of(lane < 2 ? i + 30 : i));
    }
}

// ---- rows, shared memory, atomics ----

template <int W>
__global__ void visit_kernel(int* visits, size_t rows) {
    const size_t row = simt::row_index<W>();
    if (row < rows) atomicAdd(&visits[row * W + static_cast<size_t>(simt::row_lane<W>())], 1);
}
template <int W>
void expect_every_row_visited_once(size_t rows) {
    const auto visits = upload(std::vector<int>(rows * W, 0));
    simt::launch_rows<W>(visit_kernel<W>, rows, 0, nullptr, visits.data(), rows);
    for (const float count : download(visits)) ASSERT_EQ(count, 1) << "W " << W << ", " << rows << " rows";
}
TEST(Simt, LaunchRowsGivesEveryRowItsThreads) {
    for (const size_t rows : {size_t{1}, size_t{7}, size_t{128}, size_t{1001}}) {
        expect_every_row_visited_once<1>(rows);
        expect_every_row_visited_once<4>(rows);
        expect_every_row_visited_once<32>(rows);
        expect_every_row_visited_once<64>(rows);
        expect_every_row_visited_once<512>(rows);
    }
}

__global__ void row_barrier_kernel(float* out) {
    simt::SharedMemory shared;
    float* values = shared.take<float>(blockDim.x);
    values[threadIdx.x] = static_cast<float>(threadIdx.x);
    simt::row_barrier<32>();
    out[threadIdx.x] = values[threadIdx.x ^ 31];
    simt::row_barrier<64>();
    out[threadIdx.x] += values[threadIdx.x ^ 63];
}
TEST(Simt, RowBarrierLetsARowSeeItsSharedMemory) {
    auto out = poisoned<float>(64);
    simt::launch(row_barrier_kernel, 1, 64, simt::shared_size<float>(64), nullptr, out.data());
    const std::vector<float> values = download(out);
    for (unsigned i = 0; i < 64; i++) EXPECT_EQ(values[i], static_cast<float>((i ^ 31) + (i ^ 63)));
}

__global__ void shared_arrays_kernel(int* ok, int* aligned) {
    simt::SharedMemory shared;
    char* bytes = shared.take<char>(37);
    float* floats = shared.take<float>(blockDim.x);
    bfloat16* halves = shared.take<bfloat16>(33);
    simt::Vec<float, 4>* vectors = shared.take<simt::Vec<float, 4>>(3);
    floats[threadIdx.x] = static_cast<float>(threadIdx.x);
    for (unsigned i = threadIdx.x; i < 37; i += blockDim.x) bytes[i] = static_cast<char>(i);
    for (unsigned i = threadIdx.x; i < 33; i += blockDim.x) halves[i] = bfloat16(static_cast<float>(i));
    for (unsigned i = threadIdx.x; i < 3; i += blockDim.x)
        vectors[i] = simt::broadcast<4>(static_cast<float>(i));
    __syncthreads();
    const unsigned other = blockDim.x - 1 - threadIdx.x;
    bool right = floats[other] == static_cast<float>(other);
    for (unsigned i = 0; i < 37; i++) right = right && bytes[i] == static_cast<char>(i);
    for (unsigned i = 0; i < 33; i++) right = right && static_cast<float>(halves[i]) == static_cast<float>(i);
    for (unsigned i = 0; i < 3; i++) right = right && vectors[i][3] == static_cast<float>(i);
    ok[threadIdx.x] = right;
    const auto place = [](const void* array) {
        return reinterpret_cast<uintptr_t>(array) % simt::shared_alignment;
    };
    if (threadIdx.x == 0) *aligned = place(bytes) + place(floats) + place(halves) + place(vectors) == 0;
}
TEST(Simt, SharedArraysAreAlignedAndApart) {
    constexpr unsigned block = 64;
    const size_t bytes = simt::shared_size<char>(37) + simt::shared_size<float>(block) +
                         simt::shared_size<bfloat16>(33) + simt::shared_size<simt::Vec<float, 4>>(3);
    const auto ok = upload(std::vector<int>(block, 0));
    const auto aligned = upload(std::vector<int>(1, 0));
    simt::launch(shared_arrays_kernel, 1, block, bytes, nullptr, ok.data(), aligned.data());
    for (const float right : download(ok)) EXPECT_EQ(right, 1);
    EXPECT_EQ(download(aligned)[0], 1);
}

__global__ void large_shared_kernel(float* out, size_t count) {
    simt::SharedMemory shared;
    float* values = shared.take<float>(count);
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) values[i] = 1.0f;
    __syncthreads();
    float sum = 0;
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) sum += values[count - 1 - i];
    sum = simt::block_sum(sum);
    if (threadIdx.x == 0) *out = sum;
}
TEST(Simt, LaunchRaisesTheLimitOfSharedMemory) {
    constexpr size_t count = 24 * 1024;  // 96 KiB: all supported GPUs have it, but none without a request
    auto out = poisoned<float>(1);
    simt::launch(large_shared_kernel, 1, 256, simt::shared_size<float>(count), nullptr, out.data(), count);
    EXPECT_EQ(download(out)[0], static_cast<float>(count));
}

// A reduction in one launch: the block that finishes last adds up the results of all blocks, in the order
// of the blocks.
__global__ void last_block_kernel(float* total, float* partials, unsigned* finished, const float* inp,
                                  unsigned count) {
    simt::SharedMemory shared;
    bool* last = shared.take<bool>(1);
    float sum = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        sum += inp[i];
    sum = simt::block_sum(sum);
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = sum;
        __threadfence();
        *last = atomicInc(finished, gridDim.x - 1) == gridDim.x - 1;  // reset to zero for the next launch
        __threadfence();
    }
    __syncthreads();
    if (*last) {
        float of_blocks = 0;
        for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) of_blocks += __ldcg(&partials[i]);
        of_blocks = simt::block_sum(of_blocks);
        if (threadIdx.x == 0) *total = of_blocks;
    }
}
TEST(Simt, LastBlockAddsUpInAFixedOrder) {
    constexpr unsigned count = 100'003, grid = 37;
    const std::vector<float> values = random_values<float>(count, 2);
    const auto inp = upload<float>(values);
    simt::DeviceBuffer<float> partials(grid);
    simt::DeviceBuffer<unsigned> finished(1);
    simt::fill_zero(finished.data(), finished.bytes(), nullptr);
    double expected = 0;
    for (const float value : values) expected += static_cast<double>(value);
    float first = 0;
    for (int run = 0; run < 20; run++) {
        auto total = poisoned<float>(1);
        simt::launch(last_block_kernel, grid, 128, simt::shared_size<bool>(1), nullptr, total.data(),
                     partials.data(), finished.data(), inp.data(), count);
        const float sum = download(total)[0];
        if (run == 0) first = sum;
        EXPECT_EQ(std::bit_cast<uint32_t>(sum), std::bit_cast<uint32_t>(first)) << "run " << run;
        EXPECT_NEAR(sum, expected, 300 * 0x1p-24 * 8);  // 300 is about the sum's and its partial sums' size
    }
}

__global__ void atomics_kernel(unsigned* counts, int* signed_count, unsigned long long* wide) {
    atomicAdd(&counts[0], 2u);
    atomicInc(&counts[1], 6);
    atomicAdd(signed_count, -1);
    atomicAdd(wide, 0x100000001ull);
}
TEST(Simt, AtomicsCountEveryThread) {
    simt::DeviceBuffer<unsigned> counts(2);
    simt::DeviceBuffer<int> signed_count(1);
    simt::DeviceBuffer<unsigned long long> wide(1);
    simt::fill_zero(counts.data(), counts.bytes(), nullptr);
    simt::fill_zero(signed_count.data(), signed_count.bytes(), nullptr);
    simt::fill_zero(wide.data(), wide.bytes(), nullptr);
    simt::launch(atomics_kernel, 100, 64, 0, nullptr, counts.data(), signed_count.data(), wide.data());
    EXPECT_EQ(download(counts)[0], 12800);
    EXPECT_EQ(download(counts)[1], 6400 % 7);
    EXPECT_EQ(download(signed_count)[0], -6400);
    EXPECT_EQ(download_raw(wide)[0], 6400 * 0x100000001ull);
}

// ---- vectors ----

template <class T, int N, bool Streaming>
__global__ void copy_kernel(T* out, const T* inp, float* sums, float* maxima, size_t vectors) {
    const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= vectors) return;
    const simt::Vec<float, N> v =
        Streaming ? simt::load_streaming<N>(inp + i * N) : simt::load<N>(inp + i * N);
    sums[i] = simt::sum(v);
    maxima[i] = simt::max(v);
    if (Streaming) simt::store_streaming(out + i * N, v);
    else simt::store(out + i * N, v);
}
template <class T, int N, bool Streaming>
void expect_copies() {
    constexpr size_t vectors = 77, count = vectors * N;
    const std::vector<float> values = random_values<T>(count, 3);
    const auto inp = upload<T>(values);
    auto out = poisoned<T>(count + 1);
    auto sums = poisoned<float>(vectors), maxima = poisoned<float>(vectors);
    simt::launch(copy_kernel<T, N, Streaming>, 3, 32, 0, nullptr, out.data(), inp.data(), sums.data(),
                 maxima.data(), vectors);
    const std::vector<float> copied = download(out), sum = download(sums), max = download(maxima);
    for (size_t i = 0; i < count; i++) ASSERT_EQ(copied[i], values[i]) << "N " << N << ", element " << i;
    EXPECT_TRUE(std::isnan(copied[count])) << "N " << N << ": one element too many was written";
    for (size_t v = 0; v < vectors; v++) {
        double expected = 0, magnitude = 0;
        float largest = -INFINITY;
        for (size_t k = v * N; k < v * N + N; k++) {
            expected += static_cast<double>(values[k]);
            magnitude += std::abs(static_cast<double>(values[k]));
            largest = std::max(largest, values[k]);
        }
        ASSERT_NEAR(sum[v], expected, 5 * 0x1p-24 * magnitude) << "N " << N;  // 5 = log2(32) roundings
        ASSERT_EQ(max[v], largest) << "N " << N;
    }
}
template <class T>
void expect_copies_of_every_length() {
    [&]<int... N>(std::integer_sequence<int, N...>) {
        (expect_copies<T, (1 << N), false>(), ...);
        (expect_copies<T, (1 << N), true>(), ...);
    }
    (std::make_integer_sequence<int, 6>{});
}
TEST(Vec, FloatsAreLoadedAndStored) { expect_copies_of_every_length<float>(); }
TEST(Vec, BfloatsAreLoadedAndStored) { expect_copies_of_every_length<bfloat16>(); }

// Row r has a NaN in column r, and the last row has nothing else.
template <int N>
void expect_maximum_ignores_nan() {
    std::vector<float> values = random_values<float>((N + 1) * N, 4);
    std::vector<float> expected(N + 1, -INFINITY);
    for (size_t r = 0; r <= N; r++) {
        for (size_t k = 0; k < N; k++) {
            float& value = values[r * N + k];
            if (r == N || r == k) value = NAN;
            else expected[r] = std::max(expected[r], value);
        }
    }
    const auto inp = upload<float>(values);
    auto out = poisoned<float>(values.size()), sums = poisoned<float>(N + 1), maxima = poisoned<float>(N + 1);
    simt::launch(copy_kernel<float, N, false>, 3, 32, 0, nullptr, out.data(), inp.data(), sums.data(),
                 maxima.data(), size_t{N + 1});
    EXPECT_EQ(download(maxima), expected) << "N " << N;
    for (const float sum : download(sums)) EXPECT_TRUE(std::isnan(sum)) << "N " << N;
}
TEST(Vec, MaximumIgnoresNan) {
    [&]<int... N>(std::integer_sequence<int, N...>) { (expect_maximum_ignores_nan<1 << N>(), ...); }
    (std::make_integer_sequence<int, 7>{});
}

template <int N>
__global__ void multiply_add_and_transpose_kernel(float* sums, float* columns, const float* inp) {
    simt::Vec<float, N> rows[N], turned[N], sum = simt::load<N>(inp);
    UNROLL_REGISTERS
    for (int r = 0; r < N; r++) rows[r] = simt::load<N>(inp + r * N);
    simt::multiply_add(sum, 3.0f, rows[1]);
    simt::store(sums, sum);
    simt::transpose(turned, rows);
    UNROLL_REGISTERS
    for (int r = 0; r < N; r++) simt::store(columns + r * N, turned[r]);
}
template <int N>
__global__ void sums_of_rows_kernel(float* together, float* one_by_one, const float* inp) {
    simt::Vec<float, 2 * N> rows[N];
    UNROLL_REGISTERS
    for (int r = 0; r < N; r++) rows[r] = simt::load<2 * N>(inp + r * 2 * N);
    simt::store(together, simt::sums_of_rows(rows));
    for (int r = 0; r < N; r++) one_by_one[r] = simt::sum(rows[r]);
}
template <class W>
class VecOfWidth : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32>;
TYPED_TEST_SUITE(VecOfWidth, Widths);

TYPED_TEST(VecOfWidth, MultiplyAddAndTranspose) {
    constexpr size_t N = TypeParam::bytes / sizeof(float);
    std::vector<float> values(N * N);
    for (size_t i = 0; i < values.size(); i++) values[i] = static_cast<float>(i);
    const auto inp = upload<float>(values);
    auto sums = poisoned<float>(N), columns = poisoned<float>(N * N);
    simt::launch(multiply_add_and_transpose_kernel<N>, 1, 1, 0, nullptr, sums.data(), columns.data(),
                 inp.data());
    const std::vector<float> sum = download(sums), column = download(columns);
    for (size_t i = 0; i < N; i++) EXPECT_EQ(sum[i], values[i] + 3 * values[N + i]);
    for (size_t i = 0; i < N * N; i++) EXPECT_EQ(column[i], values[i % N * N + i / N]);
}
TYPED_TEST(VecOfWidth, SumsOfRowsAreThoseOfEachRow) {
    constexpr size_t N = TypeParam::bytes / sizeof(float);
    const auto inp = upload<float>(random_values<float>(N * 2 * N, 1));
    auto together = poisoned<float>(N), one_by_one = poisoned<float>(N);
    simt::launch(sums_of_rows_kernel<N>, 1, 1, 0, nullptr, together.data(), one_by_one.data(), inp.data());
    EXPECT_EQ(download(together), download(one_by_one));
}

template <class W, class T>
int vector_length(size_t C) {
    int length = 0;
    simt::for_vector_length<W, T>(C, [&](auto n) { length = n(); });
    return length;
}
TEST(Vec, LengthIsTheWidestThatKeepsRowsAligned) {
    EXPECT_EQ((vector_length<simt::GpuWidth<32>, float>(768)), 4);
    EXPECT_EQ((vector_length<simt::GpuWidth<32>, bfloat16>(768)), 8);
    EXPECT_EQ((vector_length<simt::GpuWidth<32>, bfloat16>(764)), 1);
    EXPECT_EQ((vector_length<simt::CpuWidth, float>(768)), 16);
    EXPECT_EQ((vector_length<simt::CpuWidth, bfloat16>(768)), 32);
    EXPECT_EQ((vector_length<simt::CpuWidth, bfloat16>(48)), 16);
    EXPECT_EQ((vector_length<simt::CpuWidth, float>(40)), 8);
    EXPECT_EQ((vector_length<simt::CpuWidth, float>(36)), 1);
}

// ---- arithmetic ----

enum class Function { exp, exp_nonpositive, exp2 };
template <Function F>
__global__ void function_kernel(float* out, const float* inp, size_t count) {
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += static_cast<size_t>(gridDim.x) * blockDim.x) {
        if constexpr (F == Function::exp) out[i] = simt::exp(inp[i]);
        else if constexpr (F == Function::exp2) out[i] = simt::exp2(inp[i]);
        else out[i] = simt::exp_nonpositive(inp[i]);
    }
}
template <Function F>
std::vector<float> on_device(const std::vector<float>& values) {
    const auto inp = upload<float>(values);
    auto out = poisoned<float>(values.size());
    simt::launch(function_kernel<F>, 64, 128, 0, nullptr, out.data(), inp.data(), values.size());
    return download(out);
}

// In units in the last place of the exact result; infinity counts as 2^128.
double error_in_ulp(float actual, double exact) {
    exact = std::min(exact, 0x1p128);
    const double got = std::isinf(actual) ? 0x1p128 : static_cast<double>(actual);
    const double ulp = std::ldexp(1.0, std::max(std::ilogb(std::max(exact, 0x1p-149)), -126) - 23);
    return std::abs(got - exact) / std::min(ulp, 0x1p104);
}
// CPU: the bound of its polynomial. GPU: 2 ulp of ex2.approx, by the PTX ISA, and less than one of the
// steps before it.
double most_ulp_of_exp() { return simt::is_gpu() ? 3 : 2; }

TEST(Math, ExpIsWithinItsUlpForEveryExponent) {
    std::vector<float> values;
    for (uint64_t bits = 0; bits < 0x7f800000; bits += 4099) {  // a prime: all mantissas
        values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
        values.push_back(-values.back());
    }
    // densely where it is neither 0 nor infinity
    for (float x = -104.5f; x < 89.5f; x += 0x1p-11f) values.push_back(x);
    const std::vector<float> results = on_device<Function::exp>(values);
    double worst = 0;
    for (size_t i = 0; i < values.size(); i++) {
        const double error = error_in_ulp(results[i], std::exp(static_cast<double>(values[i])));
        ASSERT_LE(error, most_ulp_of_exp()) << "exp(" << values[i] << ") = " << results[i];
        worst = std::max(worst, error);
    }
    RecordProperty("worst_ulp", std::to_string(worst));
}
TEST(Math, ExpNonpositiveIsExpButForSubnormalResults) {
    std::vector<float> values = {0.0f, -0.0f, -0x1p-149f, -87.0f, -88.0f, -1000.0f, -FLT_MAX, -INFINITY};
    for (float x = -88.5f; x <= 0.0f; x += 0x1p-11f) values.push_back(x);
    const std::vector<float> results = on_device<Function::exp_nonpositive>(values);
    for (size_t i = 0; i < values.size(); i++) {
        const double exact = std::exp(static_cast<double>(values[i]));
        if (exact >= 0x1p-126) EXPECT_LE(error_in_ulp(results[i], exact), most_ulp_of_exp()) << values[i];
        else EXPECT_NEAR(results[i], exact, 0x1p-126) << values[i];
    }
    EXPECT_TRUE(std::isnan(on_device<Function::exp_nonpositive>({std::nanf("")})[0]));
}
__global__ void quick_kernel(float* exps, float* quotients, float* larger, const float* a, const float* b,
                             size_t count) {
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += static_cast<size_t>(gridDim.x) * blockDim.x) {
        exps[i] = simt::quick_exp_nonpositive(a[i]);
        quotients[i] = simt::quick_divide(a[i], b[i]);
        larger[i] = simt::larger(a[i], b[i]);
    }
}
TEST(Math, QuickFormsAreWithinTheirBounds) {
    std::vector<float> a = {0.0f, -87.0f, -88.5f, -1000.0f, -FLT_MAX, -INFINITY, std::nanf("")}, b;
    for (float x = -90.0f; x <= 0.0f; x += 0x1p-9f) a.push_back(x);
    for (size_t i = 0; i < a.size(); i++)
        b.push_back(std::ldexp(1.0f + static_cast<float>(i % 97) / 97, static_cast<int>(i % 250) - 125));
    const auto a_ = upload<float>(a), b_ = upload<float>(b);
    auto exps = poisoned<float>(a.size()), quotients = poisoned<float>(a.size()),
         larger = poisoned<float>(a.size());
    simt::launch(quick_kernel, 64, 128, 0, nullptr, exps.data(), quotients.data(), larger.data(), a_.data(),
                 b_.data(), a.size());
    const std::vector<float> e = download(exps), q = download(quotients), l = download(larger);
    for (size_t i = 0; i < a.size(); i++) {
        if (std::isnan(a[i])) {
            EXPECT_TRUE(std::isnan(e[i]) && std::isnan(q[i]));
            EXPECT_EQ(l[i], b[i]) << "a NaN loses";
            continue;
        }
        const double x = a[i], exact = std::exp(x), quotient = x / static_cast<double>(b[i]);
        if (exact >= 0x1p-126)
            EXPECT_LE(std::abs(e[i] - exact), exact * (0x1p-22 + 1.3 * std::abs(x) * 0x1p-24)) << x;
        else EXPECT_NEAR(e[i], exact, 0x1p-126) << x;
        const bool normal = std::abs(quotient) > 0x1p-126 && std::abs(quotient) < FLT_MAX;
        EXPECT_LE(normal ? error_in_ulp(std::abs(q[i]), std::abs(quotient)) : 0, 2) << x << " / " << b[i];
        EXPECT_EQ(l[i], std::max(a[i], b[i]));
    }
}
TEST(Math, ExpOfSpecialValues) {
    const std::vector<float> results =
        on_device<Function::exp>({0.0f, -0.0f, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0x1p-149f, -0x1p-149f,
                                  1000.0f, -1000.0f, std::nanf(""), -std::nanf("")});
    const std::vector<float> expected = {1, 1, INFINITY, 0, INFINITY, 0, 1, 1, INFINITY, 0};
    for (size_t i = 0; i < expected.size(); i++) EXPECT_EQ(results[i], expected[i]) << "value " << i;
    EXPECT_TRUE(std::isnan(results[10]) && std::isnan(results[11]));
}

TEST(Math, Exp2IsWithinTheErrorOfTheGpusInstruction) {
    std::vector<float> values = {0.0f,     -0.0f,    1.0f,      -1.0f,  0x1p-149f, -126.5f,
                                 -1000.0f, -FLT_MAX, -INFINITY, 128.0f, INFINITY};
    for (float x = -126.0f; x < 128.0f; x += 0x1.8p-9f) values.push_back(x);
    const std::vector<float> results = on_device<Function::exp2>(values);
    for (size_t i = 0; i < values.size(); i++) {
        const double exact = std::exp2(static_cast<double>(values[i]));
        if (values[i] >= 128) EXPECT_EQ(results[i], INFINITY);
        else if (exact < 0x1p-126) EXPECT_EQ(results[i], 0) << values[i];
        else EXPECT_NEAR(results[i], exact, 0x1p-22 * exact) << values[i];
    }
    EXPECT_TRUE(std::isnan(on_device<Function::exp2>({std::nanf("")})[0]));
}

__global__ void elementary_kernel(float* out, float x) {
    out[0] = simt::log(x);
    out[1] = simt::sqrt(x);
    out[2] = simt::rsqrt(x);
    const simt::Sigmoids of_x(x);
    out[3] = of_x.value;
    out[4] = of_x.rest;
}
TEST(Math, LogarithmRootsAndSigmoid) {
    for (const float x : {0x1p-100f, 0.3f, 1.0f, 7.7f, 50.0f}) {
        auto out = poisoned<float>(5);
        simt::launch(elementary_kernel, 1, 1, 0, nullptr, out.data(), x);
        const std::vector<float> results = download(out);
        const double d = static_cast<double>(x);
        const double expected[] = {std::log(d), std::sqrt(d), 1 / std::sqrt(d), 1 / (1 + std::exp(-d)),
                                   1 / (1 + std::exp(d))};
        // On a GPU sigmoids have quick_exp_nonpositive's error, too.
        const double of_exp = simt::is_gpu() ? 0x1p-22 + 1.3 * d * 0x1p-24 : 0;
        for (size_t i = 0; i < 5; i++)
            EXPECT_NEAR(results[i], expected[i], (5 * 0x1p-24 + (i < 3 ? 0 : of_exp)) * std::abs(expected[i]))
                << "function " << i << " of " << x;
    }
}

template <int N>
__global__ void convert_kernel(float* widened, bfloat16* narrowed, const bfloat16* values,
                               const float* floats, size_t count) {
    for (size_t i = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; i < count;
         i += static_cast<size_t>(gridDim.x) * blockDim.x * N) {
        simt::store(widened + i, simt::load<N>(values + i));
        simt::store(narrowed + i, simt::load<N>(floats + i));
    }
}
// All 65536 values widened, and values between each and its successor rounded: on the host, and on the device
// as vectors of N, whose instructions may take what is below 2^-126 for zero.
template <int N>
void expect_conversions_of_all_values() {
    constexpr size_t count = 65536;
    // The lower half of a float's bits: nothing, below the middle, the middle, above it. The largest finite
    // value rounds up to infinity.
    for (const uint32_t fraction : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        std::vector<bfloat16> values(count);
        std::vector<float> floats(count);
        for (uint32_t i = 0; i < count; i++) {
            values[i].bits = static_cast<uint16_t>(i);
            floats[i] = std::bit_cast<float>(i << 16 | fraction);
        }
        simt::DeviceBuffer<bfloat16> device_values(count);
        simt::copy_to_device(device_values.data(), values.data(), device_values.bytes(), nullptr);
        const auto device_floats = upload<float>(floats);
        simt::DeviceBuffer<float> widened(count);
        simt::DeviceBuffer<bfloat16> narrowed(count);
        simt::launch(convert_kernel<N>, 16, 128, 0, nullptr, widened.data(), narrowed.data(),
                     device_values.data(), device_floats.data(), count);
        const std::vector<bfloat16> rounded = download_raw(narrowed);
        const std::vector<float> wide = download(widened);
        for (uint32_t i = 0; i < count; i++) {
            SCOPED_TRACE(testing::Message() << "N " << N << ", " << std::hex << (i << 16 | fraction));
            ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(values[i])), i << 16);
            ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), i << 16);
            const bool up = fraction > 0x8000 || (fraction == 0x8000 && i % 2 == 1);
            for (const bfloat16 got : {rounded[i], bfloat16(floats[i])}) {
                const bool is_zero = N > 1 && std::abs(floats[i]) < 0x1p-126f && (got.bits & 0x7fff) == 0;
                if (std::isnan(floats[i])) ASSERT_TRUE(std::isnan(static_cast<float>(got)));
                else ASSERT_TRUE(is_zero || got.bits == i + up) << got.bits;
            }
        }
    }
}
TEST(Bfloat16, WidensExactlyAndRoundsToTheNearestOrEven) {
    [&]<int... N>(std::integer_sequence<int, N...>) { (expect_conversions_of_all_values<1 << N>(), ...); }
    (std::make_integer_sequence<int, 6>{});
}

// ---- launches and the device ----

__global__ void number_blocks_kernel(unsigned* out) {
    if (threadIdx.x == 0)
        out[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] =
            blockIdx.x + 100 * blockIdx.y + 10000 * blockIdx.z + 1000000 * blockDim.x;
}
TEST(Launch, GridHasThreeDimensions) {
    simt::DeviceBuffer<unsigned> out(5 * 4 * 3);
    simt::launch(number_blocks_kernel, dim3(5, 4, 3), 64, 0, nullptr, out.data());
    const std::vector<unsigned> numbers = download_raw(out);
    for (unsigned i = 0; i < numbers.size(); i++)
        EXPECT_EQ(numbers[i], i % 5 + 100 * (i / 5 % 4) + 10000 * (i / 20) + 64000000);
}

std::string launch_error(dim3 grid, unsigned block, size_t shared_bytes = 0) {
    return message_of<Error>([&] {
        simt::launch(number_blocks_kernel, grid, block, shared_bytes, nullptr,
                     static_cast<unsigned*>(nullptr));
    });
}
TEST(Launch, RefusesWhatAGpuWouldRefuse) {
    EXPECT_EQ(launch_error(1, 0), "launch: a block of 0 threads; expected 1 or a multiple of 32 up to 1024");
    EXPECT_EQ(launch_error(1, 33),
              "launch: a block of 33 threads; expected 1 or a multiple of 32 up to 1024");
    EXPECT_EQ(launch_error(1, 1056),
              "launch: a block of 1056 threads; expected 1 or a multiple of 32 up to 1024");
    EXPECT_EQ(launch_error(0, 32),
              "launch: a grid of 0 x 1 x 1 blocks; expected 1 to 2147483647 x 65535 x 65535");
    EXPECT_EQ(launch_error(dim3(1, 65536), 32),
              "launch: a grid of 1 x 65536 x 1 blocks; expected 1 to 2147483647 x 65535 x 65535");
    EXPECT_EQ(launch_error(1, 32, 228 * 1024),
              "launch: 233472 bytes of shared memory; expected at most 232448");
    EXPECT_THROW(simt::launch_rows<512>(visit_kernel<512>, size_t{1} << 32, 0, nullptr,
                                        static_cast<int*>(nullptr), size_t{1} << 32),
                 Error);
    EXPECT_THROW(
        simt::launch_rows<32>(visit_kernel<32>, 0, 0, nullptr, static_cast<int*>(nullptr), size_t{0}), Error);
}

TEST(DeviceBuffer, OwnsItsMemory) {
    simt::DeviceBuffer<float> a(10), empty(0), none;
    EXPECT_EQ(empty.data(), nullptr);
    EXPECT_EQ(none.size(), 0u);
    float* const memory = a.data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
    simt::DeviceBuffer<float> b = std::move(a);
    EXPECT_EQ(b.data(), memory);
    EXPECT_EQ(b.bytes(), 40u);
    none = std::move(b);
    EXPECT_EQ(none.data(), memory);
    EXPECT_EQ(none.size(), 10u);
}

TEST(Device, CopiesAndFillsToTheByte) {
    constexpr size_t count = (size_t{3} << 20) + 5;  // a large one, and odd
    std::vector<unsigned char> bytes(count), back(count);
    for (size_t i = 0; i < count; i++) bytes[i] = static_cast<unsigned char>(i * 31 % 255 + 1);
    const stream_t stream = simt::stream_create();
    simt::DeviceBuffer<unsigned char> a(count), b(count);
    simt::copy_to_device(a.data(), bytes.data(), count, stream);
    simt::copy_on_device(b.data(), a.data(), count, stream);
    simt::fill_zero(b.data() + 1, count - 2, stream);
    simt::copy_to_host(back.data(), b.data(), count, stream);
    simt::stream_synchronize(stream);
    EXPECT_EQ(back.front(), bytes.front());
    EXPECT_EQ(back.back(), bytes.back());
    EXPECT_EQ(std::count(back.begin(), back.end(), 0), static_cast<ptrdiff_t>(count - 2));
    simt::copy_to_host(back.data(), a.data(), count, stream);
    simt::copy_to_host(nullptr, nullptr, 0, stream);
    simt::stream_synchronize(stream);
    EXPECT_EQ(back, bytes);
    simt::stream_destroy(stream);
}

TEST(Device, EventsMeasureTime) {
    const event_t start = simt::event_create(), stop = simt::event_create();
    simt::DeviceBuffer<char> buffer(size_t{4} << 20);
    simt::event_record(start, nullptr);
    simt::fill_zero(buffer.data(), buffer.bytes(), nullptr);
    simt::event_record(stop, nullptr);
    simt::event_synchronize(stop);
    EXPECT_GT(simt::event_elapsed_ms(start, stop), 0.0f);
    simt::event_destroy(start);
    simt::event_destroy(stop);
}

TEST(Device, SaysWhatItIs) {
    const simt::DeviceInfo info = simt::device_info();
    EXPECT_FALSE(info.name.empty());
    EXPECT_GT(info.multiprocessors, 0);
    EXPECT_GT(info.free_memory, 0u);
    EXPECT_LE(info.free_memory, info.total_memory);
    EXPECT_EQ(info.compute_capability > 0, simt::is_gpu());
}
TEST(Device, RefusesMoreMemoryThanThereIs) { EXPECT_THROW(simt::device_malloc(size_t{1} << 60), Error); }

}  // namespace
