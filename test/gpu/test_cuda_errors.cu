// An error of the CUDA runtime is reported where it happens and nowhere else, and later calls work. Uses
// the imitation of the runtime, which keeps the last error until it is queried, as the real one does.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "cuda_imitation.h"
#include "kernels/simt/simt.cuh"

namespace {

__global__ void add_kernel(float* values, float value, int count) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < static_cast<unsigned>(count)) values[i] += value;
}

class CudaErrors : public testing::Test {
protected:
    void SetUp() override { cuda_imitation::take_calls(); }
    void TearDown() override {
        cuda_imitation::refuse("");
        cudaGetLastError();
    }
    void launch(size_t shared_bytes = 0) const {
        simt::launch(add_kernel, 2, 64, shared_bytes, nullptr, reinterpret_cast<float*>(0x1000), 1.5f, 100);
    }
    // Whatever the action throws, the next launch works.
    template <class Work>
    std::string message_of_refused(const std::string& call, Work work) {
        cuda_imitation::refuse(call);
        std::string message;
        try {
            work();
        } catch (const Error& error) { message = error.what(); }
        cuda_imitation::refuse("");
        EXPECT_NO_THROW(launch());
        EXPECT_EQ(cudaGetLastError(), cudaSuccess);
        return message;
    }
};

TEST_F(CudaErrors, ALaunchPassesItsArguments) {
    launch(256);
    EXPECT_EQ(cuda_imitation::take_calls(),
              std::vector<std::string>{
                  "launch (anonymous namespace)::add_kernel <<<2 1 1, 64, 256>>> 1000 3fc00000 64"});
}

TEST_F(CudaErrors, RefusedMemoryFailsNoLaterLaunch) {
    EXPECT_EQ(message_of_refused("cudaMalloc", [] { simt::DeviceBuffer<float> buffer(100); }),
              "CUDA: 400 bytes of GPU memory were wanted: refused");
}

TEST_F(CudaErrors, RefusedSharedMemoryFailsNoLaterLaunch) {
    EXPECT_EQ(message_of_refused("cudaFuncSetAttribute", [&] { launch(100 * 1024); }),
              "launch: refused (grid 2 x 1 x 1, block 64, 102400 bytes of shared memory)");
}

TEST_F(CudaErrors, ARefusedLaunchFailsNoLaterLaunch) {
    EXPECT_EQ(message_of_refused("launch", [&] { launch(); }),
              "launch: refused (grid 2 x 1 x 1, block 64, 0 bytes of shared memory)");
}

// cuBLASLt and cuDNN make calls that the GPU may refuse.
TEST_F(CudaErrors, AnErrorThatALibraryLeftIsNotTheNextLaunchs) {
    cuda_imitation::refuse("cudaMalloc");
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 100), cudaErrorMemoryAllocation);
    EXPECT_NO_THROW(launch());
}

}  // namespace
