// attention_cudnn.cpp with the real cuDNN, without a GPU: the plans that it finds for described GPUs, and
// their memory. CUDA's stub replaces the driver if there is none.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "kernels/attention/attention_cudnn.h"
#include "system/error.h"

namespace {

constexpr size_t unlimited = size_t{1} << 62;

DescribedGpu gpu(int compute_capability, int multiprocessors, int shared_bytes, int threads, int blocks,
                 size_t l2_bytes) {
    return {compute_capability, multiprocessors,
            fmt::format(R"({{"cudaDeviceId":0,"deviceVer":{},"driverVer":13000,"totalGlobalMem":85017624576,)"
                        R"("maxGridSize":[2147483647,65535,65535],)"
                        R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":{},)"
                        R"("warpSize":32,"maxSharedMemoryPerBlock":49152,)"
                        R"("maxSharedMemoryPerBlockOptin":{},"reservedSharedMemoryPerBlock":1024,)"
                        R"("maxRegistersPerSM":65536,"maxCtasPerSM":{},)"
                        R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":{},"pciDeviceId":0,"isTccDriver":0,)"
                        R"("supportCoopLaunch":1,)"
                        R"("smClockRateKHz":1980000,"memClockRateKHz":2619000,"l2CacheSize":{},)"
                        R"("deviceName":"described"}})",
                        compute_capability * 10, multiprocessors, shared_bytes, blocks, threads, l2_bytes)};
}
DescribedGpu a100() { return gpu(80, 108, 166912, 2048, 32, size_t{40} << 20); }
DescribedGpu h100() { return gpu(90, 132, 232448, 2048, 32, size_t{50} << 20); }

std::string describe(AttentionShape s) { return fmt::format("B={} T={} NH={} HS={}", s.B, s.T, s.NH, s.HS); }
size_t gradient_bytes(AttentionShape s) {
    return static_cast<size_t>(s.B) * static_cast<size_t>(s.T) * static_cast<size_t>(s.NH) *
           static_cast<size_t>(s.HS) * sizeof(float);
}

constexpr AttentionShape gpt2_124M{64, 1024, 12, 64}, gpt2_1558M{16, 1024, 25, 64};
constexpr AttentionShape odd_shapes[] = {{3, 19, 3, 16},  {1, 2, 1, 8},    {5, 33, 7, 32},  {1, 1023, 25, 64},
                                         {3, 257, 1, 80}, {1, 130, 5, 96}, {7, 65, 3, 128}, {1, 2048, 3, 128},
                                         {9, 64, 11, 40}, {2, 960, 12, 64}};

void expect_offered(CudnnAttention& cudnn, AttentionShape shape) {
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
        SCOPED_TRACE(
            fmt::format("{}, {}", describe(shape), pass == AttentionPass::forward ? "forward" : "backward"));
        const CudnnOffer& offer = cudnn.plan(shape, pass, unlimited);
        EXPECT_EQ(offer.refusal, "");
        EXPECT_EQ(offer.part.B, shape.B);
        EXPECT_EQ(offer.part.NH, shape.NH);
    }
}

TEST(AttentionCudnn, HasPlansForEveryShapeOfHeadsOfAMultipleOfEight) {
    for (const bool deterministic : {false, true}) {
        SCOPED_TRACE(deterministic ? "deterministic" : "not deterministic");
        for (const DescribedGpu& described : {a100(), h100()}) {
            SCOPED_TRACE(described.compute_capability);
            CudnnAttention cudnn(deterministic, described);
            ASSERT_EQ(cudnn.unavailable(), "");
            for (const AttentionShape& shape : odd_shapes) expect_offered(cudnn, shape);
            for (const AttentionShape& shape : {gpt2_124M, gpt2_1558M}) expect_offered(cudnn, shape);
        }
    }
}

TEST(AttentionCudnn, SaysWhyItRefuses) {
    CudnnAttention cudnn(false, h100());
    const auto reason = [&](AttentionShape shape) {
        return cudnn.plan(shape, AttentionPass::forward, unlimited).refusal;
    };
    EXPECT_EQ(reason({2, 64, 3, 12}),
              "cuDNN's attention needs a head size that is a multiple of 8, and 12 is not");
    EXPECT_EQ(reason({2, 1, 3, 16}), "cuDNN's attention does not train on sequences of one token");
    CudnnAttention turing(false, gpu(75, 68, 65536, 1024, 16, size_t{6} << 20));
    EXPECT_EQ(turing.unavailable(), "cuDNN's attention needs compute capability 8.0, and this GPU has 7.5");
    EXPECT_EQ(turing.plan({2, 64, 3, 16}, AttentionPass::backward, unlimited).refusal, turing.unavailable());
    CudnnAttention nonsense(false, {90, 132, "{}"});
    EXPECT_NE(nonsense.unavailable(), "");
}

// On Hopper the deterministic backward keeps (T, T) numbers a head.
TEST(AttentionCudnn, ADeterministicBackwardRunsInPartsThatFit) {
    CudnnAttention fast(false, h100()), deterministic(true, h100());
    for (const AttentionShape& shape :
         {gpt2_124M, gpt2_1558M, AttentionShape{7, 2048, 25, 64}, AttentionShape{1, 8192, 12, 64}}) {
        SCOPED_TRACE(describe(shape));
        const size_t limit = std::max(size_t{256} << 20, 2 * gradient_bytes(shape));
        const CudnnOffer& whole = fast.plan(shape, AttentionPass::backward, limit);
        EXPECT_EQ(whole.refusal, "");
        EXPECT_EQ(whole.part.B, shape.B);
        EXPECT_EQ(whole.part.NH, shape.NH);
        const CudnnOffer& parts = deterministic.plan(shape, AttentionPass::backward, limit);
        EXPECT_EQ(parts.refusal, "");
        EXPECT_LT(parts.part.B * parts.part.NH, shape.B * shape.NH);
        EXPECT_EQ(shape.B % parts.part.B, 0);
        EXPECT_EQ(shape.NH % parts.part.NH, 0);
        EXPECT_TRUE(parts.part.B == 1 || parts.part.NH == shape.NH);
    }
    // A problem of which not even one head fits is rejected.
    const CudnnOffer& none = deterministic.plan({1, 4096, 3, 64}, AttentionPass::backward, 1 << 20);
    EXPECT_NE(none.refusal.find("orkspace"), std::string::npos) << none.refusal;
}

}  // namespace

int main(int argc, char** argv) {
    // cuDNN opens the driver by this name, and uses a library that is open already.
    if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) dlopen(STUB_OF_LIBCUDA, RTLD_NOW | RTLD_GLOBAL);
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
