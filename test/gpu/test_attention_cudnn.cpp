// attention_cudnn.cpp with the real cuDNN, without a GPU: the plans that it finds for described GPUs, their
// memory, and which of them runs. CUDA's stub replaces the driver if there is none.
#include <cudnn.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <vector>

#include "kernels/attention/attention_cudnn.h"
#include "system/error.h"

static int handles = 0, compilations = 0;
// While it is true, plans count as compiled, and executing one does only what `execute` does.
static bool imitate_plans = false;
static std::set<cudnnBackendDescriptor_t> execution_plans;
static std::function<void(cudnnBackendDescriptor_t)> execute;
static double clock_ms = 0;

// These take the place of cuDNN's functions. The handle is never used, because it needs a GPU.
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
    handles++;
    *handle = reinterpret_cast<cudnnHandle_t>(&handles);
    return CUDNN_STATUS_SUCCESS;
}
#define REAL(function) reinterpret_cast<decltype(&(function))>(dlsym(RTLD_NEXT, #function))
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* made) {
    const cudnnStatus_t status = REAL(cudnnBackendCreateDescriptor)(type, made);
    execution_plans.erase(*made);
    if (type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        compilations++;
        execution_plans.insert(*made);
    }
    return status;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    if (imitate_plans && execution_plans.count(descriptor)) return CUDNN_STATUS_SUCCESS;
    return REAL(cudnnBackendFinalize)(descriptor);
}
cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t most, int64_t* count, void* values) {
    // The frontend asks the driver about CUDA graphs for engines that compile their kernels themselves.
    if (imitate_plans && name == CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE) {
        *count = 0;
        return CUDNN_STATUS_SUCCESS;
    }
    if (!imitate_plans || !execution_plans.count(descriptor))
        return REAL(cudnnBackendGetAttribute)(descriptor, name, type, most, count, values);
    EXPECT_EQ(name, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    *static_cast<int64_t*>(values) = 0;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t) {
    execute(plan);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnGetStream(cudnnHandle_t, cudaStream_t* stream) {
    *stream = nullptr;
    return CUDNN_STATUS_SUCCESS;
}

simt::DeviceInfo simt::device_info() {
    DeviceInfo info;
    info.compute_capability = 90;
    return info;
}
void* simt::device_malloc(size_t bytes) { return std::calloc(1, bytes); }
void simt::device_free(void* memory) noexcept { std::free(memory); }
void simt::fill_zero(void* memory, size_t bytes, stream_t) { std::memset(memory, 0, bytes); }
void simt::copy_to_host(void* to, const void* from, size_t bytes, stream_t) { std::memcpy(to, from, bytes); }
void simt::stream_synchronize(stream_t) {}
event_t simt::event_create() { return reinterpret_cast<event_t>(new double); }
void simt::event_destroy(event_t event) noexcept { delete reinterpret_cast<double*>(event); }
void simt::event_record(event_t event, stream_t) { *reinterpret_cast<double*>(event) = clock_ms; }
float simt::event_elapsed_ms(event_t start, event_t stop) {
    return static_cast<float>(*reinterpret_cast<double*>(stop) - *reinterpret_cast<double*>(start));
}

namespace {

constexpr size_t unlimited = size_t{1} << 62;

struct Gpu {
    const char* name;
    int compute_capability, multiprocessors;
    int shared_bytes, threads, blocks;  // of a multiprocessor; of the shared memory, what a block may use
    size_t l2_bytes, memory_bytes;
};
constexpr size_t mebibyte = size_t{1} << 20, gibibyte = size_t{1} << 30;
constexpr Gpu turing{"Turing", 75, 68, 65536, 1024, 16, 6 * mebibyte, 11 * gibibyte};
constexpr Gpu a100{"A100", 80, 108, 166912, 2048, 32, 40 * mebibyte, 80 * gibibyte};
constexpr Gpu rtx4090{"RTX 4090", 89, 128, 101376, 1536, 24, 72 * mebibyte, 24 * gibibyte};
constexpr Gpu h100{"H100", 90, 132, 232448, 2048, 32, 50 * mebibyte, 80 * gibibyte};
constexpr Gpu h200{"H200", 90, 132, 232448, 2048, 32, 50 * mebibyte, 140 * gibibyte};
constexpr Gpu b200{"B200", 100, 148, 232448, 2048, 32, 126 * mebibyte, 180 * gibibyte};
constexpr Gpu gpus[] = {a100, rtx4090, h100, h200, b200};

DescribedGpu described(const Gpu& gpu) {
    return {gpu.compute_capability, gpu.multiprocessors,
            fmt::format(R"({{"cudaDeviceId":0,"deviceVer":{},"driverVer":13000,"totalGlobalMem":{},)"
                        R"("maxGridSize":[2147483647,65535,65535],)"
                        R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":{},)"
                        R"("warpSize":32,"maxSharedMemoryPerBlock":49152,)"
                        R"("maxSharedMemoryPerBlockOptin":{},"reservedSharedMemoryPerBlock":1024,)"
                        R"("maxRegistersPerSM":65536,"maxCtasPerSM":{},)"
                        R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":{},"pciDeviceId":0,"isTccDriver":0,)"
                        R"("supportCoopLaunch":1,)"
                        R"("smClockRateKHz":1980000,"memClockRateKHz":2619000,"l2CacheSize":{},)"
                        R"("deviceName":"described"}})",
                        gpu.compute_capability * 10, gpu.memory_bytes, gpu.multiprocessors, gpu.shared_bytes,
                        gpu.blocks, gpu.threads, gpu.l2_bytes)};
}

std::string describe(AttentionShape s) {
    return fmt::format("B={} T={} NH={} HS={} NKV={}", s.B, s.T, s.NH, s.HS, s.NKV);
}
size_t gradient_bytes(AttentionShape s) {
    return static_cast<size_t>(s.B) * static_cast<size_t>(s.T) * static_cast<size_t>(s.NH) *
           static_cast<size_t>(s.HS) * sizeof(float);
}
// The workspace that attention_gpu.cpp allows.
size_t limit(AttentionShape s) { return std::max(256 * mebibyte, 2 * gradient_bytes(s)); }

constexpr AttentionShape gpt2_124M{64, 1024, 12, 64}, gpt2_1558M{16, 1024, 25, 64};
constexpr AttentionShape odd_shapes[] = {{3, 19, 3, 16},  {1, 2, 1, 8},    {5, 33, 7, 32},  {1, 1023, 25, 64},
                                         {3, 257, 1, 80}, {1, 130, 5, 96}, {7, 65, 3, 128}, {1, 2048, 3, 128},
                                         {9, 64, 11, 40}, {2, 960, 12, 64}};
// SmolLM2-135M, nanochat, Qwen3-0.6B, Llama 3.2 1B, and odd ones.
constexpr AttentionShape shared_heads[] = {{8, 1024, 9, 64, 3},  {8, 1024, 6, 128, 6}, {4, 1024, 16, 128, 8},
                                           {4, 1024, 32, 64, 8}, {3, 65, 6, 16, 1},    {1, 257, 4, 80, 2}};

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
        for (const Gpu& gpu : gpus) {
            SCOPED_TRACE(gpu.name);
            CudnnAttention cudnn(deterministic, described(gpu));
            ASSERT_EQ(cudnn.unavailable(), "");
            for (const AttentionShape& shape : odd_shapes) expect_offered(cudnn, shape);
            for (const AttentionShape& shape : shared_heads) expect_offered(cudnn, shape);
            for (const AttentionShape& shape : {gpt2_124M, gpt2_1558M}) expect_offered(cudnn, shape);
        }
    }
}

TEST(AttentionCudnn, SaysWhyItRefuses) {
    CudnnAttention cudnn(false, described(h100));
    const auto reason = [&](AttentionShape shape) {
        return cudnn.plan(shape, AttentionPass::forward, unlimited).refusal;
    };
    EXPECT_EQ(reason({2, 64, 3, 12}),
              "cuDNN's attention needs a head size that is a multiple of 8, and 12 is not");
    EXPECT_EQ(reason({2, 1, 3, 16}), "cuDNN's attention does not train on sequences of one token");
    CudnnAttention old(false, described(turing));
    EXPECT_EQ(old.unavailable(), "cuDNN's attention needs compute capability 8.0, and this GPU has 7.5");
    EXPECT_EQ(old.plan({2, 64, 3, 16}, AttentionPass::backward, unlimited).refusal, old.unavailable());
    CudnnAttention nonsense(false, {90, 132, "{}"});
    EXPECT_NE(nonsense.unavailable(), "");
}

// The model's memory plan asks for these sizes, for many batch sizes.
TEST(AttentionCudnn, SaysTheWorkspaceWithoutCompiling) {
    compilations = 0;
    for (const Gpu& gpu : gpus) {
        CudnnAttention cudnn(false, described(gpu));
        for (const AttentionShape& shape : {gpt2_124M, gpt2_1558M}) {
            SCOPED_TRACE(fmt::format("{}, {}", gpu.name, describe(shape)));
            const size_t forward = cudnn.plan(shape, AttentionPass::forward, limit(shape)).workspace_bytes,
                         backward = cudnn.plan(shape, AttentionPass::backward, limit(shape)).workspace_bytes;
            fmt::print("{:<8} {}: forward {:.1f} MiB, backward {:.1f} MiB\n", gpu.name, describe(shape),
                       static_cast<double>(forward) / mebibyte, static_cast<double>(backward) / mebibyte);
            EXPECT_LE(forward, limit(shape));
            EXPECT_LE(backward, limit(shape));
            EXPECT_GT(backward, gradient_bytes(shape));  // the gradient of q in fp32, and sums of rows
        }
    }
    EXPECT_EQ(compilations, 0);
    // A plan that is to run is compiled, up to loading its code, for which there is no driver.
    CudnnAttention cudnn(false, described(h100));
    cudnn.plan(gpt2_124M, AttentionPass::forward, unlimited);
    cudnn.compiled(gpt2_124M, AttentionPass::forward);
    EXPECT_GT(compilations, 0);
}

// Runs attention's forward with imitated plans: how many milliseconds each takes, and which number it writes.
// Returns which plan computed the second call, counted in the order of their first runs.
int plan_that_stays(bool deterministic, const std::vector<double>& ms, const std::vector<float>& writes) {
    constexpr AttentionShape shape{2, 64, 3, 64};
    std::vector<bfloat16> qkv(3 * 2 * 64 * 3 * 64), out(2 * 64 * 3 * 64);
    std::vector<float> lse(2 * 3 * 64);
    std::vector<cudnnBackendDescriptor_t> seen;
    int last = -1;
    execute = [&](cudnnBackendDescriptor_t plan) {
        const auto found = std::find(seen.begin(), seen.end(), plan);
        last = static_cast<int>(found - seen.begin());
        if (found == seen.end()) seen.push_back(plan);
        clock_ms += ms.at(static_cast<size_t>(last));
        std::fill(out.begin(), out.end(), bfloat16(writes.at(static_cast<size_t>(last))));
        std::fill(lse.begin(), lse.end(), 1.0f);
    };
    CudnnAttention cudnn(deterministic, described(h100));
    imitate_plans = true;
    EXPECT_EQ(cudnn.plan(shape, AttentionPass::forward, unlimited).refusal, "");
    EXPECT_EQ(cudnn.compiled(shape, AttentionPass::forward)->refusal, "");
    std::vector<char> workspace(1 << 20);
    for (int call = 0; call < 2; call++)
        cudnn.forward(out.data(), lse.data(), qkv.data(), shape, workspace.data(), nullptr);
    imitate_plans = false;
    EXPECT_EQ(seen.size(), deterministic ? 1 : ms.size());
    return last;
}

TEST(AttentionCudnn, KeepsTheFastestPlanThatAgreesWithTheFirst) {
    EXPECT_EQ(plan_that_stays(false, {3, 2, 4, 5}, {1, 1, 1, 1}), 1);
    EXPECT_EQ(plan_that_stays(false, {3, 4, 4, 2}, {1, 1, 1, 1}), 3);
    EXPECT_EQ(plan_that_stays(false, {3, 4, 4, 5}, {1, 1, 1, 1}), 0);
    EXPECT_EQ(plan_that_stays(false, {3, 1, 2, 5}, {1, 1.5, 1, 1}), 2);
    EXPECT_EQ(plan_that_stays(true, {3, 2, 4, 5}, {1, 1, 1, 1}), 0);
}

// --batch-size auto makes a model, with its attention, for every batch size that it compares.
TEST(AttentionCudnn, StartsOnceInAProcess) {
    for (int i = 0; i < 3; i++) EXPECT_EQ(CudnnAttention(false).unavailable(), "");
    EXPECT_EQ(handles, 1);
}

// On Hopper the deterministic backward keeps (T, T) numbers a head.
TEST(AttentionCudnn, ADeterministicBackwardRunsInPartsThatFit) {
    CudnnAttention fast(false, described(h100)), deterministic(true, described(h100));
    for (const AttentionShape& shape : {gpt2_124M, gpt2_1558M, AttentionShape{7, 2048, 25, 64},
                                        AttentionShape{1, 8192, 12, 64}, AttentionShape{1, 4096, 9, 64, 3}}) {
        SCOPED_TRACE(describe(shape));
        const CudnnOffer& whole = fast.plan(shape, AttentionPass::backward, limit(shape));
        EXPECT_EQ(whole.refusal, "");
        EXPECT_EQ(whole.part.B, shape.B);
        EXPECT_EQ(whole.part.NH, shape.NH);
        const CudnnOffer& parts = deterministic.plan(shape, AttentionPass::backward, limit(shape));
        EXPECT_EQ(parts.refusal, "");
        EXPECT_LT(parts.part.B * parts.part.NH, shape.B * shape.NH);
        EXPECT_EQ(shape.B % parts.part.B, 0);
        EXPECT_EQ(shape.NH % parts.part.NH, 0);
        EXPECT_EQ(parts.part.queries(), shape.queries());
        EXPECT_TRUE(parts.part.B == 1 || parts.part.NH == shape.NH);
    }
    // A problem of which not even one head fits, or not the heads that share keys, is rejected.
    const AttentionShape shared_keys{1, 8192, 9, 64, 3};
    for (const auto& [shape, most] : {std::pair(AttentionShape{1, 4096, 3, 64}, size_t{1} << 20),
                                      std::pair(shared_keys, limit(shared_keys))}) {
        const CudnnOffer& none = deterministic.plan(shape, AttentionPass::backward, most);
        EXPECT_NE(none.refusal.find("orkspace"), std::string::npos) << describe(shape) << ' ' << none.refusal;
    }
}

}  // namespace

int main(int argc, char** argv) {
    // cuDNN opens the driver by this name, and uses a library that is open already.
    if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) dlopen(STUB_OF_LIBCUDA, RTLD_NOW | RTLD_GLOBAL);
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
