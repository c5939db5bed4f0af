// An error of the CUDA runtime is reported where it happens and nowhere else, and later calls work: the
// software GPU, like a real one, keeps the last error until it is queried.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "kernels/simt/simt.cuh"

namespace {

__global__ void __launch_bounds__(64) fill_kernel(float* values, float value) {
    __shared__ float tile[1024];
    tile[threadIdx.x] = value;
    values[threadIdx.x] = tile[threadIdx.x];
}

class CudaErrors : public testing::Test {
protected:
    void launch(unsigned threads = 64, size_t shared_bytes = 0) const {
        simt::launch(fill_kernel, 1, threads, shared_bytes, nullptr, memory_.data(), 1.5f);
    }
    // Whatever the action throws, the next launch works.
    template <class Work>
    std::string message_of(Work work) const {
        std::string message;
        try {
            work();
        } catch (const Error& error) { message = error.what(); }
        EXPECT_NO_THROW(launch());
        EXPECT_EQ(cudaGetLastError(), cudaSuccess);
        return message;
    }
    const simt::DeviceBuffer<float> memory_{64};
};

TEST_F(CudaErrors, RefusedMemoryFailsNoLaterLaunch) {
    EXPECT_EQ(message_of([] { simt::DeviceBuffer<char> buffer(size_t{1} << 50); }),
              "CUDA: 1125899906842624 bytes of GPU memory were wanted: out of memory");
}

TEST_F(CudaErrors, RefusedSharedMemoryFailsNoLaterLaunch) {
    EXPECT_EQ(message_of([&] { launch(64, 226 * 1024); }),
              "launch: invalid argument (grid 1 x 1 x 1, block 64, 231424 bytes of shared memory)");
}

TEST_F(CudaErrors, ARefusedLaunchFailsNoLaterLaunch) {
    EXPECT_EQ(message_of([&] { launch(96); }),
              "launch: too many resources requested for launch (grid 1 x 1 x 1, block 96, 0 bytes of shared "
              "memory)");
}

// cuBLASLt and cuDNN make calls that the GPU may refuse.
TEST_F(CudaErrors, AnErrorThatALibraryLeftIsNotTheNextLaunchs) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, size_t{1} << 50), cudaErrorMemoryAllocation);
    EXPECT_NO_THROW(launch());
}

}  // namespace
