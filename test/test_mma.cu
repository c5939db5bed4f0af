// The instructions of simt/mma.cuh and simt/async_copy.cuh, on either machine, against the layouts of the
// PTX ISA.
#include "common.cuh"
#include "kernels/simt/simt.cuh"

namespace {

using simt::Vec;

// ---- products ----

// The layouts of mma.m16n8k16's fragments, in the words of the PTX ISA: groupID = laneid >> 2,
// threadID_in_group = laneid % 4.
struct Place {
    int row, column;
};
__host__ __device__ Place place_in_a(int lane, int i) {  // i = 0 to 7, two a register
    return {lane / 4 + (i % 4 < 2 ? 0 : 8), lane % 4 * 2 + i % 2 + (i < 4 ? 0 : 8)};
}
__host__ __device__ Place place_in_b(int lane, int i) {  // i = 0 to 3
    return {lane % 4 * 2 + i % 2 + (i < 2 ? 0 : 8), lane / 4};
}
__host__ __device__ Place place_in_c(int lane, int i) {  // i = 0 to 3
    return {lane / 4 + (i < 2 ? 0 : 8), lane % 4 * 2 + i % 2};
}

__device__ uint32_t gather_pair(const bfloat16* matrix, int columns, Place first, Place second) {
    return simt::bf16_pair(static_cast<float>(matrix[first.row * columns + first.column]),
                           static_cast<float>(matrix[second.row * columns + second.column]));
}

// Warp w computes c[w] = a[w] (16, 16) * b[w] (16, 8) + c[w], twice in a row; the odd warps take no part.
__global__ void mma_kernel(float* c, const bfloat16* a, const bfloat16* b) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    if (warp % 2 == 1) return;
    a += warp * 256;
    b += warp * 128;
    c += warp * 128;
    Vec<uint32_t, 4> left;
    for (int r = 0; r < 4; r++)
        left[r] = gather_pair(a, 16, place_in_a(lane, 2 * r), place_in_a(lane, 2 * r + 1));
    uint32_t right[2];
    for (int r = 0; r < 2; r++)
        right[r] = gather_pair(b, 8, place_in_b(lane, 2 * r), place_in_b(lane, 2 * r + 1));
    Vec<float, 4> sums;
    for (int i = 0; i < 4; i++) sums[i] = c[place_in_c(lane, i).row * 8 + place_in_c(lane, i).column];
    for (int time = 0; time < 2; time++) simt::mma(sums, left, right[0], right[1]);
    for (int i = 0; i < 4; i++) c[place_in_c(lane, i).row * 8 + place_in_c(lane, i).column] = sums[i];
}
TEST(Mma, IsTheProductOfMatricesInTheDocumentedLayouts) {
    constexpr int warps = 3;
    const std::vector<float> a = random_values<bfloat16>(warps * 256, 1),
                             b = random_values<bfloat16>(warps * 128, 2);
    const std::vector<float> before = random_values<float>(warps * 128, 3);
    const auto c = upload<float>(before);
    const auto device_a = upload<bfloat16>(a), device_b = upload<bfloat16>(b);
    simt::launch(mma_kernel, 1, 32 * warps, 0, nullptr, c.data(), device_a.data(), device_b.data());
    const std::vector<float> after = download(c);
    for (int w = 0; w < warps; w++) {
        for (int r = 0; r < 16; r++) {
            for (int n = 0; n < 8; n++) {
                const int i = w * 128 + r * 8 + n;
                double expected = before[i], magnitude = std::abs(expected);
                for (int k = 0; k < 16 && w % 2 == 0; k++) {
                    const double term = 2.0 * a[w * 256 + r * 16 + k] * b[w * 128 + k * 8 + n];
                    expected += term;
                    magnitude += std::abs(term);
                }
                // The products are exact; the 32 sums in fp32 may be truncated by tensor cores instead of
                // rounded.
                EXPECT_NEAR(after[i], expected, 32 * 0x1p-23 * magnitude)
                    << "warp " << w << ", row " << r << ", column " << n;
            }
        }
    }
}

// Sums become the left factor of the next product without any exchange between lanes: (a * b) * d, as in
// attention, where a * b consists of small integers.
__global__ void chained_kernel(float* out, const bfloat16* a, const bfloat16* b, const bfloat16* d) {
    const int lane = static_cast<int>(threadIdx.x);
    Vec<uint32_t, 4> left;
    for (int r = 0; r < 4; r++)
        left[r] = gather_pair(a, 16, place_in_a(lane, 2 * r), place_in_a(lane, 2 * r + 1));
    Vec<float, 4> sums[2];  // columns 0 to 7, 8 to 15 of a * b
    for (int n = 0; n < 2; n++) {
        sums[n] = simt::broadcast<4>(0.0f);
        uint32_t right[2];
        for (int r = 0; r < 2; r++) {
            Place first = place_in_b(lane, 2 * r), second = place_in_b(lane, 2 * r + 1);
            first.column += 8 * n;
            second.column += 8 * n;
            right[r] = gather_pair(b, 16, first, second);
        }
        simt::mma(sums[n], left, right[0], right[1]);
    }
    for (int r = 0; r < 4; r++) left[r] = simt::bf16_pair(sums[r / 2][r % 2 * 2], sums[r / 2][r % 2 * 2 + 1]);
    uint32_t right[2];
    for (int r = 0; r < 2; r++)
        right[r] = gather_pair(d, 8, place_in_b(lane, 2 * r), place_in_b(lane, 2 * r + 1));
    Vec<float, 4> result = simt::broadcast<4>(0.0f);
    simt::mma(result, left, right[0], right[1]);
    for (int i = 0; i < 4; i++) out[place_in_c(lane, i).row * 8 + place_in_c(lane, i).column] = result[i];
}
TEST(Mma, SumsAreTheLeftFactorOfTheNextProduct) {
    std::vector<float> a(256), b(256), d(128);
    for (size_t i = 0; i < 256; i++) a[i] = static_cast<float>(i * 7 % 5) - 2;
    for (size_t i = 0; i < 256; i++) b[i] = static_cast<float>(i * 11 % 7) - 3;
    for (size_t i = 0; i < 128; i++) d[i] = static_cast<float>(i * 13 % 9) - 4;
    const auto device_a = upload<bfloat16>(a), device_b = upload<bfloat16>(b), device_d = upload<bfloat16>(d);
    auto out = poisoned<float>(128);
    simt::launch(chained_kernel, 1, 32, 0, nullptr, out.data(), device_a.data(), device_b.data(),
                 device_d.data());
    const std::vector<float> result = download(out);
    for (int r = 0; r < 16; r++) {
        for (int n = 0; n < 8; n++) {
            float expected = 0;
            for (int j = 0; j < 16; j++) {
                float sum = 0;
                for (int k = 0; k < 16; k++) sum += a[r * 16 + k] * b[k * 16 + j];
                expected += sum * d[j * 8 + n];
            }
            EXPECT_EQ(result[r * 8 + n], expected) << "row " << r << ", column " << n;
        }
    }
}

// ---- matrices from shared memory ----

constexpr int matrix_pitch = 24;  // elements: the rows are 48 bytes apart

// Four matrices, one below the other; element number row * 8 + column, as bits. out (32, 4)
template <bool Trans>
__global__ void ldmatrix_kernel(unsigned* out) {
    simt::SharedMemory shared;
    bfloat16* matrices = shared.take<bfloat16>(32 * matrix_pitch);
    const int lane = static_cast<int>(threadIdx.x);
    for (int i = 0; i < 8; i++) matrices[lane * matrix_pitch + i].bits = static_cast<uint16_t>(lane * 8 + i);
    __syncwarp();
    // The matrices' rows are in another order than in memory.
    const int row = lane ^ 13;
    const bfloat16* address = matrices + row * matrix_pitch;
    const Vec<uint32_t, 4> result = Trans ? simt::ldmatrix_trans(address) : simt::ldmatrix(address);
    for (int i = 0; i < 4; i++) out[lane * 4 + i] = result[i];
}
template <bool Trans>
void expect_ldmatrix() {
    const auto out = poisoned<unsigned>(128);
    simt::launch(ldmatrix_kernel<Trans>, 1, 32, simt::shared_size<bfloat16>(32 * matrix_pitch), nullptr,
                 out.data());
    const std::vector<unsigned> result = download_raw(out);
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) {
            const auto element = [&](int row, int column) {
                return static_cast<unsigned>(((i * 8 + row) ^ 13) * 8 + column);
            };
            const int major = lane / 4, minor = lane % 4 * 2;
            const unsigned first = Trans ? element(minor, major) : element(major, minor);
            const unsigned second = Trans ? element(minor + 1, major) : element(major, minor + 1);
            EXPECT_EQ(result[lane * 4 + i], second << 16 | first) << "lane " << lane << ", matrix " << i;
        }
    }
}
TEST(Ldmatrix, GivesEveryLaneItsPairOfEveryMatrix) { expect_ldmatrix<false>(); }
TEST(Ldmatrix, TransGivesThePairsOfTheTransposes) { expect_ldmatrix<true>(); }

// ---- pairs ----

__global__ void pairs_kernel(unsigned* pairs, float* floats, const float* inp, const bfloat16* stored) {
    const unsigned i = threadIdx.x;
    pairs[i] = simt::bf16_pair(inp[2 * i], inp[2 * i + 1]);
    const Vec<float, 2> loaded = simt::floats_of_pair(simt::load_pair(stored + 2 * i));
    floats[2 * i] = loaded[0];
    floats[2 * i + 1] = loaded[1];
}
TEST(Pairs, RoundToNearestAndKeepTheirOrder) {
    std::vector<float> values = random_values<float>(64, 4);
    values[0] = 1.00390625f;  // the middle between 1 and 1 + 2^-7: to even
    values[1] = -INFINITY;
    const auto inp = upload<float>(values);
    const auto stored = upload<bfloat16>(values);
    const auto pairs = poisoned<unsigned>(32);
    const auto floats = poisoned<float>(64);
    simt::launch(pairs_kernel, 1, 32, 0, nullptr, pairs.data(), floats.data(), inp.data(), stored.data());
    const std::vector<unsigned> result = download_raw(pairs);
    const std::vector<float> loaded = download(floats);
    for (size_t i = 0; i < 64; i++) {
        EXPECT_EQ(result[i / 2] >> (i % 2 * 16) & 0xffffu, bfloat16(values[i]).bits) << "element " << i;
        EXPECT_EQ(loaded[i], static_cast<float>(bfloat16(values[i]))) << "element " << i;
    }
}

// ---- asynchronous copies ----

// Three groups of copies, of N elements a thread each, the second empty in the odd threads; the last
// elements come as zeros. After a wait a thread reads its neighbour's copy. out (blocks, 3, threads * N)
template <int N, class T>
__global__ void async_copy_kernel(T* out, const T* inp, int inside) {
    simt::SharedMemory shared;
    const int count = static_cast<int>(blockDim.x) * N, begin = static_cast<int>(threadIdx.x) * N;
    const int neighbour = (static_cast<int>(threadIdx.x) + 33) % static_cast<int>(blockDim.x) * N;
    T* arrays = shared.take<T>(3 * static_cast<size_t>(count));
    out += blockIdx.x * 3 * blockDim.x * N;
    for (int group = 0; group < 3; group++) {
        if (group != 1 || threadIdx.x % 2 == 0) {
            simt::cp_async<N>(arrays + group * count + begin, inp + group * count + begin,
                              group * count + begin < inside);
        } else {
            for (int i = 0; i < N; i++) arrays[group * count + begin + i] = T(-1.0f);
        }
        simt::cp_async_commit();
    }
    simt::cp_async_wait<2>();
    __syncthreads();
    for (int i = 0; i < N; i++) out[neighbour + i] = arrays[neighbour + i];
    simt::cp_async_wait<0>();
    __syncthreads();
    for (int i = 0; i < N; i++) {
        out[count + neighbour + i] = arrays[count + neighbour + i];
        out[2 * count + neighbour + i] = arrays[2 * count + neighbour + i];
    }
}
template <int N, class T>
void expect_async_copies() {
    constexpr int threads = 64, count = threads * N;
    const int inside = 3 * count - 5 * N;
    const std::vector<float> values = random_values<T>(3 * count, 5);
    const auto inp = upload<T>(values);
    for (int blocks : {1, 3}) {  // a block's unfinished copies do not affect others
        const auto out = poisoned<T>(static_cast<size_t>(blocks) * 3 * count);
        simt::launch(async_copy_kernel<N, T>, blocks, threads, simt::shared_size<T>(3 * count), nullptr,
                     out.data(), inp.data(), inside);
        const std::vector<float> result = download(out);
        for (int k = 0; k < blocks * 3 * count; k++) {
            const int i = k % (3 * count);
            const bool not_copied = i / count == 1 && i / N % 2 == 1;
            ASSERT_EQ(result[static_cast<size_t>(k)], not_copied   ? -1.0f
                                                      : i < inside ? values[static_cast<size_t>(i)]
                                                                   : 0.0f)
                << "element " << i << ", " << N << " at once, block " << k / (3 * count);
        }
    }
}
TEST(AsyncCopy, ArrivesByTheWaitAndZerosWhatLiesOutside) {
    expect_async_copies<1, float>();
    expect_async_copies<2, float>();
    expect_async_copies<4, float>();
    expect_async_copies<2, bfloat16>();
    expect_async_copies<4, bfloat16>();
    expect_async_copies<8, bfloat16>();
}

}  // namespace
