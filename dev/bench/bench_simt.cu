// bench_simt.cu: the CPU executor's own costs, for the table of docs/simt.md: a launch, a block, a thread,
// and a meeting of threads.
//   The column "each" is the time of one of these. OMP_NUM_THREADS=1 gives the cost on one core.
#include <benchmark/benchmark.h>

#include "kernels/simt/simt.cuh"

namespace {

__global__ void empty_kernel() {}

constexpr int meetings = 64;  // per kernel, so that their cost exceeds that of a block

__global__ void syncthreads_kernel(float*) {
    for (int i = 0; i < meetings; i++) __syncthreads();
}
__global__ void syncwarp_kernel(float*) {
    for (int i = 0; i < meetings; i++) __syncwarp();
}
__global__ void shuffle_kernel(float* out) {
    float value = static_cast<float>(threadIdx.x);
    for (int i = 0; i < meetings; i++) value = __shfl_xor_sync(0xffffffffu, value, 1);
    out[threadIdx.x] = value;
}
__global__ void warp_sum_kernel(float* out) {
    float value = 1.0f;
    for (int i = 0; i < meetings; i++) value = simt::warp_sum(value) * 0x1p-5f;
    out[threadIdx.x] = value;
}
__global__ void block_sum_kernel(float* out) {
    float value = 1.0f;
    for (int i = 0; i < meetings; i++) value = simt::block_sum(value) / static_cast<float>(blockDim.x);
    out[threadIdx.x] = value;
}

// Times `body`, which does the measured thing `count` times.
template <class Body>
void measure(benchmark::State& state, double count, Body body) {
    const event_t start = simt::event_create(), stop = simt::event_create();
    body();  // warm up: stacks are mapped
    for (auto iteration : state) {
        (void)iteration;
        simt::event_record(start, nullptr);
        body();
        simt::event_record(stop, nullptr);
        state.SetIterationTime(simt::event_elapsed_ms(start, stop) * 1e-3);
    }
    simt::event_destroy(start);
    simt::event_destroy(stop);
    state.counters["each"] = benchmark::Counter(
        count, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// A thousand launches in a row, as a training step makes them.
void launches(benchmark::State& state) {
    constexpr int count = 1000;
    measure(state, count, [&] {
        for (int i = 0; i < count; i++)
            simt::launch(empty_kernel, static_cast<unsigned>(state.range(0)), 32, 0, nullptr);
    });
}

void blocks(benchmark::State& state) {
    constexpr unsigned count = 1024;
    measure(state, count,
            [&] { simt::launch(empty_kernel, count, static_cast<unsigned>(state.range(0)), 0, nullptr); });
}

template <void (*Kernel)(float*)>
void meetings_of_block(benchmark::State& state) {
    const auto block = static_cast<unsigned>(state.range(0));
    simt::DeviceBuffer<float> out(block);
    measure(state, meetings, [&] { simt::launch(Kernel, 1, block, 0, nullptr, out.data()); });
}

}  // namespace

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    simt::select_device();
    const auto add = [](const char* name, const char* argument, std::initializer_list<int64_t> values,
                        void (*function)(benchmark::State&)) {
        auto* added = benchmark::RegisterBenchmark(name, function)->ArgName(argument)->UseManualTime();
        for (const int64_t value : values) added->Arg(value);
    };
    add("launches", "grid", {1, 2, 24, 1000}, launches);
    add("blocks", "block", {32, 256, 1024}, blocks);
    add("syncthreads", "block", {32, 128, 1024}, meetings_of_block<syncthreads_kernel>);
    add("syncwarp", "block", {32, 128}, meetings_of_block<syncwarp_kernel>);
    add("shuffle", "block", {32, 128}, meetings_of_block<shuffle_kernel>);
    add("warp_sum", "block", {32, 128}, meetings_of_block<warp_sum_kernel>);
    add("block_sum", "block", {32, 128, 1024}, meetings_of_block<block_sum_kernel>);
    benchmark::RunSpecifiedBenchmarks();
}
