// Defects that only checked builds find (docs/simt.md): each test plants one and expects it to be found.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/simt/simt.cuh"

namespace {

class SimtChecked : public testing::Test {
protected:
    // the OpenMP threads do not survive a fork
    void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

__global__ void write_kernel(float* out, size_t i) {
    if (threadIdx.x == 7) out[i] = 1.0f;
}
TEST_F(SimtChecked, OneElementPastATensor) {
    simt::DeviceBuffer<float> tensor(101);
    simt::launch(write_kernel, 1, 32, 0, nullptr, tensor.data(), size_t{100});
    EXPECT_DEATH(simt::launch(write_kernel, 1, 32, 0, nullptr, tensor.data(), size_t{101}),
                 "heap-buffer-overflow.*");
}

// Two tensors in one allocation, as in the model's arena; the first one's length is no multiple of
// AddressSanitizer's 8 bytes.
TEST_F(SimtChecked, OneElementPastATensorOfAnArena) {
    simt::DeviceBuffer<float> arena(1024);
    simt::poison_gap(arena.data() + 101, 155 * sizeof(float));
    simt::launch(write_kernel, 1, 32, 0, nullptr, arena.data(), size_t{100});
    simt::launch(write_kernel, 1, 32, 0, nullptr, arena.data(), size_t{256});
    EXPECT_DEATH(simt::launch(write_kernel, 1, 32, 0, nullptr, arena.data(), size_t{101}),
                 "use-after-poison.*");
    EXPECT_DEATH(simt::launch(write_kernel, 1, 32, 0, nullptr, arena.data(), size_t{255}),
                 "use-after-poison.*");
    simt::unpoison_gap(arena.data() + 101, 155 * sizeof(float));
    simt::launch(write_kernel, 1, 32, 0, nullptr, arena.data(), size_t{101});
}

__global__ void shared_kernel(float* out, size_t i) {
    simt::SharedMemory shared;
    float* first = shared.take<float>(33);
    float* second = shared.take<float>(33);
    first[threadIdx.x] = second[threadIdx.x] = 1.0f;
    __syncthreads();
    if (threadIdx.x == 3) second[0] = first[i];
    __syncthreads();
    out[threadIdx.x] = second[threadIdx.x];
}
constexpr size_t two_arrays = 2 * simt::shared_size<float>(33);

TEST_F(SimtChecked, OneElementPastASharedArray) {
    simt::DeviceBuffer<float> out(32);
    simt::launch(shared_kernel, 1, 32, two_arrays, nullptr, out.data(), size_t{32});
    EXPECT_DEATH(simt::launch(shared_kernel, 1, 32, two_arrays, nullptr, out.data(), size_t{33}),
                 "use-after-poison.*");
}

__global__ void one_array_kernel(size_t count) {
    simt::SharedMemory shared;
    shared.take<float>(count)[0] = 1.0f;
}
// A large launch leaves nothing open to the next, which takes less.
TEST_F(SimtChecked, AnArrayOfAnEarlierLaunch) {
    simt::DeviceBuffer<float> out(32);
    simt::launch(one_array_kernel, 1, 1, simt::shared_size<float>(9000), nullptr, size_t{9000});
    EXPECT_DEATH(simt::launch(shared_kernel, 1, 32, two_arrays, nullptr, out.data(), size_t{8000}),
                 "use-after-poison.*");
}

// A block's values in shared memory are gone when the next block starts.
TEST_F(SimtChecked, FreshSharedMemoryIsNaN) {
    simt::DeviceBuffer<float> out(32);
    for (int launch = 0; launch < 2; launch++) {
        // first[32] was never written
        simt::launch(shared_kernel, 1, 32, two_arrays, nullptr, out.data(), size_t{32});
        EXPECT_TRUE(std::isnan(out.data()[0]));
        EXPECT_EQ(out.data()[1], 1.0f);
    }
}

TEST_F(SimtChecked, FreshDeviceMemoryIsNaN) {
    const simt::DeviceBuffer<float> tensor(1000);
    const simt::DeviceBuffer<bfloat16> half(1000);
    for (size_t i = 0; i < 1000; i++)
        EXPECT_TRUE(std::isnan(tensor.data()[i]) && std::isnan(static_cast<float>(half.data()[i])));
}

__global__ void load_kernel(float* out, const float* inp) {
    if (threadIdx.x == 0) simt::store<2>(out, simt::load<2>(inp));
}
TEST_F(SimtChecked, MisalignedVectorsAreRefusedAsOnAGpu) {
    const simt::DeviceBuffer<float> out(8), inp(8);
    simt::fill_zero(inp.data(), inp.bytes(), nullptr);
    simt::launch(load_kernel, 1, 32, 0, nullptr, out.data() + 4, inp.data() + 2);
    EXPECT_THROW(simt::launch(load_kernel, 1, 32, 0, nullptr, out.data(), inp.data() + 1), Error);
    EXPECT_THROW(simt::launch(load_kernel, 1, 32, 0, nullptr, out.data() + 3, inp.data()), Error);
}

__global__ void store_kernel(float* global, bool shared_to_global, bool global_to_shared) {
    simt::SharedMemory shared;
    float* const array = shared.take<float>(4 * 32);
    const int i = static_cast<int>(threadIdx.x) * 4;
    simt::store_shared(shared_to_global ? global + i : array + i, simt::broadcast<4>(1.0f));
    simt::store(global_to_shared ? array + i : global + i, simt::load<4>(array + i));
}
TEST_F(SimtChecked, StoresToTheOtherMemoryAreRefused) {
    const simt::DeviceBuffer<float> out(4 * 32);
    constexpr size_t bytes = simt::shared_size<float>(4 * 32);
    simt::launch(store_kernel, 1, 32, bytes, nullptr, out.data(), false, false);
    EXPECT_EQ(out.data()[127], 1.0f);
    EXPECT_THROW(simt::launch(store_kernel, 1, 32, bytes, nullptr, out.data(), true, false), Error);
    EXPECT_THROW(simt::launch(store_kernel, 1, 32, bytes, nullptr, out.data(), false, true), Error);
}

__global__ void ldmatrix_kernel(size_t pitch, size_t from) {
    simt::SharedMemory shared;
    bfloat16* matrices = shared.take<bfloat16>(32 * 16);
    simt::cp_async<8>(matrices + 16 * threadIdx.x, matrices + from, false);
    simt::cp_async_wait<0>();
    __syncwarp();
    simt::ldmatrix(matrices + pitch * threadIdx.x + from);
}
TEST_F(SimtChecked, MisalignedRowsAreRefusedAsOnAGpu) {
    constexpr size_t bytes = simt::shared_size<bfloat16>(32 * 16);
    simt::launch(ldmatrix_kernel, 1, 32, bytes, nullptr, size_t{16}, size_t{8});
    EXPECT_THROW(simt::launch(ldmatrix_kernel, 1, 32, bytes, nullptr, size_t{12}, size_t{0}), Error);
    EXPECT_THROW(simt::launch(ldmatrix_kernel, 1, 32, bytes, nullptr, size_t{8}, size_t{4}), Error);
    EXPECT_DEATH(simt::launch(ldmatrix_kernel, 1, 32, bytes, nullptr, size_t{16}, size_t{16}),
                 "use-after-poison.*");
}

// A failing kernel leaves its fibers' stacks as they are; the next kernels run on them.
__global__ void fail_kernel(float* out, bool fail) {
    float values[64];
    for (int i = 0; i < 64; i++) values[i] = static_cast<float>(i);
    __syncthreads();
    if (fail && threadIdx.x == 20) throw Error("planted");
    out[threadIdx.x] = simt::block_sum(values[threadIdx.x % 64]);
}
TEST_F(SimtChecked, AFailedKernelLeavesNoPoison) {
    simt::DeviceBuffer<float> out(64);
    for (int launch = 0; launch < 4; launch++) {
        const bool fail = launch % 2 == 0;
        if (fail) EXPECT_THROW(simt::launch(fail_kernel, 1, 64, 0, nullptr, out.data(), true), Error);
        else simt::launch(fail_kernel, 1, 64, 0, nullptr, out.data(), false);
    }
    EXPECT_EQ(out.data()[5], 2016.0f);
}

}  // namespace
