// After the second step neither we nor a library allocates memory for the work: every call of malloc and its
// kin is counted.
//   (Not in checked builds, whose sanitizer owns these functions.)
#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "kernels/simt/simt.cuh"
#include "model.cuh"
#include "system/data_directory.h"
#include "trainer/data/data_files.h"
#include "trainer/data/data_loader.h"
#include "trainer/engine/norms_by_layer.h"
#include "trainer/run/outlier_detector.h"

namespace {

// oneDNN's execute allocates a table of its arguments, a few hundred bytes, and frees it before it
// returns; we cannot prevent that. The test requires that no buffer is allocated, and that nothing
// remains.
constexpr size_t argument_table = 4096;
std::atomic<bool> counting = false;
std::atomic<size_t> calls = 0, large = 0, largest = 0;
std::atomic<long> live = 0;

void count(size_t bytes) {
    if (!counting) return;
    live++;
    calls++;
    if (bytes > argument_table) large++;
    size_t seen = largest;
    while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {}
}

}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t bytes) noexcept { return count(bytes), __libc_malloc(bytes); }
void* calloc(size_t n, size_t bytes) noexcept { return count(n * bytes), __libc_calloc(n, bytes); }
void* realloc(void* old, size_t bytes) noexcept {
    if (counting && old) live--;
    return count(bytes), __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
    return count(bytes), __libc_memalign(alignment, bytes);
}
void* memalign(size_t alignment, size_t bytes) noexcept {
    return count(bytes), __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) noexcept {
    count(bytes);
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : ENOMEM;
}
void free(void* memory) noexcept {
    if (counting && memory) live--;
    __libc_free(memory);
}
}

namespace {

template <class T>
void expect_no_allocation(Recompute recompute, Optimizer optimizer = Optimizer::adamw) {
    const int B = 4, sequence = 32;
    const auto tokenizer = make_tokenizer("byte");
    const DataSplits data = open_data({data_directory() + "/tinyshakespeare.txt"}, {}, *tokenizer);
    DataLoader loader(data.train, {.B = B, .T = sequence, .V = 256, .total_batch = 2 * B * sequence});
    Model<T> model(make_family<T>({256, sequence, 2, 4, 64}), {.B = B,
                                                               .T = sequence,
                                                               .total_batch = 2 * B * sequence,
                                                               .generated_tokens = sequence,
                                                               .recompute = recompute,
                                                               .optimizer = optimizer});
    model.allocate();
    OutlierDetector outliers(optimizer == Optimizer::adamw ? 0 : 3, 0);
    Veto veto;
    if (outliers.active())
        veto = [&](const StepResult& step) { return outliers.judge(step.loss, step.grad_norm); };
    for (int step = 1; step <= 6; step++) {
        if (step == 3) {
            large = largest = 0;
            live = 0;
            counting = true;
        }
        for (int micro = 0; micro < 2; micro++) {
            model.forward(loader.next());
            model.backward();
        }
        model.begin_update(reference_adamw, {}, veto);
        if (step > 1) model.finish_update();
        if (outliers.active()) norms_by_layer(model.table(), model.squared_norms());
        Decoder<T>& decoder = model.decoder();
        decoder.prefill({1, 2, 3});
        decoder.step(decoder.draw({.top_k = 40, .top_p = 0.9}, {}, 1, 256));
    }
    counting = false;
    // Without AVX-512, each product of oneDNN 2.6 takes scratch of its own beside the one that it is given.
    if (__builtin_cpu_supports("avx512f")) {
        EXPECT_EQ(large, 0u) << "the largest had " << largest << " bytes";
    } else {
        EXPECT_LT(largest, size_t{32} << 10);
    }
    EXPECT_EQ(live, 0) << "memory allocated after the second step was not freed";
}

// No event is created either: on the CPU an event is memory.
TEST(Allocation, AStepThatIsNotProfiledPaysNothingForProfiles) {
    Profile profile;
    const auto step = [&] {
        profile.begin_step();
        for (const char* name : {"one", "another", "one"})
            profile.begin(name, {.bytes = 1, .flops = 1}, nullptr);
        profile.end(nullptr);
        return profile.end_step(1);
    };
    const auto calls_in = [&](int steps) {
        calls = 0;
        counting = true;
        for (int i = 0; i < steps; i++) EXPECT_FALSE(step());
        counting = false;
        return calls.load();
    };
    EXPECT_EQ(calls_in(10), 0u);
    profile.measure(1);
    EXPECT_EQ(calls_in(Profile::warm_up - 1), 0u);
    EXPECT_GT(calls_in(1), 0u);  // the rehearsal makes the events
    EXPECT_TRUE(step());
    EXPECT_EQ(calls_in(10), 0u);  // and after the table
}

__global__ void take_shared_kernel() {
    simt::SharedMemory shared;
    shared.take<float>(1)[0] = 1;
}

// On a busy machine a thread of the team may come too late for every block of the first steps.
TEST(Allocation, ALaunchAllocatesNothingForAThreadThatRanNoBlockBefore) {
    const size_t small = simt::shared_size<float>(1);
    simt::launch(take_shared_kernel, 1, 1, small, {});  // on this thread alone
    std::atomic<int> threads = 0;  // the first region makes OpenMP's threads; g++ leaves out an empty one
#pragma omp parallel
    threads++;
    calls = 0;
    counting = true;
    for (int i = 0; i < 100; i++) simt::launch(take_shared_kernel, 64, 1, (i + 1) * small, {});
    counting = false;
    EXPECT_EQ(calls, 0u);
}

TEST(Allocation, NothingIsAllocatedAfterTheSecondStep) {
    expect_no_allocation<float>(Recompute::none);
    expect_no_allocation<bfloat16>(Recompute::block);
    expect_no_allocation<bfloat16>(Recompute::none, Optimizer::rmsprop);
}

}  // namespace
