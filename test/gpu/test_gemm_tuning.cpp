// gemm_cublaslt.cpp and matmul_tuning.cpp on the software GPU, whose cuBLASLt offers algorithms with planned
// times and defects: which algorithm is chosen, that it computes the same, and that a choice is stored, sent
// and reused only where it is valid.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_choices.h"
#include "software_gpu/cublaslt.h"
#include "software_gpu/stream.h"
#include "software_gpu/trace.h"
#include "temporary_folder.h"
#include "trainer/distributed/single_process.h"
#include "trainer/run/matmul_tuning.h"

namespace {

using software_gpu::LtAlgorithm;

// An algorithm with its times: after the caches were filled with other data, and right after another
// product.
struct Planned {
    int id;
    double cold_ms, warm_ms;
    int best_parts = 0;     // number of K's parts with which it is fastest; 0: it cannot divide K
    LtAlgorithm like = {};  // what it needs, and its defects
};

struct Launch {
    std::string transposes, output, epilogue;
    bool adds, timed, cold;
    int id, parts;
    uint32_t scheme;
    size_t workspace_bytes;
    bool is_weight_gradient() const { return transposes == "NT"; }
};

// The software GPU as these tests describe it. Its clock advances by their times at every traced call.
class Gpu {
public:
    Gpu();
    ~Gpu();
    void offer(std::vector<Planned> algorithms);
    Planned& planned(int id) { return *std::ranges::find(algorithms_, id, &Planned::id); }
    // The calls that were seen since forget() was called last.
    struct Seen {
        std::vector<Launch> launches;
        std::vector<size_t> allocations;  // bytes
        std::set<int> refused;            // algorithms whose launches were refused
        int checks = 0;                   // calls of cublasLtMatmulAlgoCheck
    };
    const Seen& seen() {
        follow();
        return seen_;
    }
    void forget() {
        follow();
        seen_ = {};
    }
    float ms_between(event_t start, event_t stop) {
        follow();
        return static_cast<float>(recorded_ms_.at(stop) - recorded_ms_.at(start));
    }

    std::map<std::string, double> epilogue_ms;  // added to any product's time
    double kernel_ms = 0.5;                     // of one of our own kernels
    simt::DeviceInfo info{.name = "Imitation 9000",
                          .total_memory = size_t{80} << 30,
                          .free_memory = size_t{40} << 30,
                          .multiprocessors = 132,
                          .compute_capability = 90,
                          .cache_bytes = size_t{1} << 20};
    size_t version = 130100;

private:
    void follow();
    void launch(const std::string& call);

    std::vector<Planned> algorithms_;
    const std::vector<LtAlgorithm> own_ = software_gpu::lt_algorithms();
    Seen seen_;
    std::map<event_t, double> recorded_ms_;
    double now_ms_ = 0;
    bool cold_ = false, timing_ = false;
};
Gpu* gpu = nullptr;

Gpu::Gpu() {
    gpu = this;
    software_gpu::take_calls();
}
Gpu::~Gpu() {
    simt::stream_synchronize(nullptr);
    software_gpu::lt_algorithms() = own_;
    gpu = nullptr;
}

void Gpu::offer(std::vector<Planned> algorithms) {
    algorithms_ = std::move(algorithms);
    software_gpu::lt_algorithms().clear();
    for (const Planned& planned : algorithms_) {
        LtAlgorithm algorithm = planned.like;
        algorithm.id = planned.id;
        algorithm.schemes = planned.best_parts > 0 ? software_gpu::every_scheme : 0;
        software_gpu::lt_algorithms().push_back(algorithm);
    }
}

void Gpu::follow() {
    for (const std::string& call : software_gpu::take_calls()) {
        size_t bytes = 0;
        int id = 0;
        void* event = nullptr;
        seen_.checks += call == "cublasLtMatmulAlgoCheck";
        if (call.starts_with("cublasLtMatmul (")) {
            launch(call);
        } else if (std::sscanf(call.c_str(), "cublasLtMatmul refuses algorithm %d", &id) == 1) {
            seen_.refused.insert(id);
        } else if (call.find("<<<") != std::string::npos) {
            now_ms_ += kernel_ms;
        } else if (std::sscanf(call.c_str(), "a fill of %zu bytes", &bytes) == 1) {
            cold_ = cold_ || bytes >= info.cache_bytes;
        } else if (std::sscanf(call.c_str(), "record event %p", &event) == 1) {
            recorded_ms_[static_cast<event_t>(event)] = now_ms_;
            timing_ = !timing_;
        } else if (std::sscanf(call.c_str(), "cudaMalloc %zu", &bytes) == 1) {
            seen_.allocations.push_back(bytes);
        }
    }
}

void Gpu::launch(const std::string& call) {
    Launch l{};
    char transposes[3], output[5], epilogue[32];
    double beta = 0;
    ASSERT_EQ(
        std::sscanf(call.c_str(),
                    "cublasLtMatmul (%2s %*s to %4[^,], m = %*u, n = %*u, k = %*u, epilogue %31[^)]) "
                    "algorithm %d, %d parts, scheme %u, %zu bytes of workspace, %*s = %*s x %*s + %lf",
                    transposes, output, epilogue, &l.id, &l.parts, &l.scheme, &l.workspace_bytes, &beta),
        8)
        << call;
    l.transposes = transposes, l.output = output, l.epilogue = epilogue, l.adds = beta != 0,
    l.timed = timing_, l.cold = cold_;
    const Planned& plan = planned(l.id);
    const double slower = plan.best_parts > 0 ? 1 + 0.1 * std::abs(l.parts - plan.best_parts) : 1;
    now_ms_ += (cold_ ? plan.cold_ms : plan.warm_ms) * slower + epilogue_ms[l.epilogue];
    cold_ = false;
    seen_.launches.push_back(l);
}

std::string sent;  // by rank 0

}  // namespace

// The linker sends the calls here (--wrap).
simt::DeviceInfo info_of_gpu() asm("__wrap__ZN4simt11device_infoEv");
simt::DeviceInfo info_of_gpu() { return gpu->info; }
float planned_ms(event_t start, event_t stop) asm("__wrap__ZN4simt16event_elapsed_msEP10CUevent_stS1_");
float planned_ms(event_t start, event_t stop) {
    simt::event_synchronize(stop);
    return gpu->ms_between(start, stop);
}

extern "C" size_t __wrap_cublasLtGetVersion() { return gpu->version; }

// Replaces communicator.cpp's function: the processes of a test run one after another, rank 0 first.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& mine) {
    if (communicator.rank() == 0) sent = mine;
    return {sent};
}

namespace {

constexpr size_t N = 24, C = 16, OC = 40, guard = 64;
constexpr double unlimited = 1e6;
const uint32_t in_place = CUBLASLT_REDUCTION_SCHEME_INPLACE, in_fp32 = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

// With elements of another value behind its end.
template <class T>
struct Tensor {
    simt::DeviceBuffer<T> memory;
    Tensor(size_t count, unsigned seed) : memory(count + guard) {
        std::mt19937 generator(seed);
        std::uniform_real_distribution<float> uniform(-1, 1);
        std::vector<T> values;
        for (size_t i = 0; i < count; i++) values.push_back(T(seed ? uniform(generator) : 0.0f));
        values.resize(count + guard, T(7.0f));
        simt::copy_to_device(memory.data(), values.data(), memory.bytes(), nullptr);
    }
    T* data() const { return memory.data(); }
    void append_to(std::vector<float>& all) const {
        std::vector<T> values(memory.size());
        simt::copy_to_host(values.data(), memory.data(), memory.bytes(), nullptr);
        simt::stream_synchronize(nullptr);
        EXPECT_TRUE(std::all_of(values.end() - guard, values.end(),
                                [](T value) { return static_cast<float>(value) == 7.0f; }));
        for (const T value : values) all.push_back(static_cast<float>(value));
    }
};

// Every form of gemm.h: two layers with a GELU between them, as in a block's MLP, and a layer without
// bias, as in the head.
template <class T>
struct Layers {
    Tensor<T> inp{N * C, 1}, weight{OC * C, 2}, bias{OC, 3}, weight2{C * OC, 4}, dout{N * C, 5};
    Tensor<T> pre_gelu{N * OC, 0}, hidden{N * OC, 0}, out{N * C, 0}, plain{N * OC, 0}, dpre_gelu{N * OC, 0},
        dinp{N * C, 0};
    Tensor<float> dweight{OC * C, 0}, dweight2{C * OC, 0}, dbias{OC, 0}, dhead{OC * C, 0};

    void run(Gemm& gemm, int micro_steps = 2) {
        for (int micro = 0; micro < micro_steps; micro++) {
            gemm.forward(hidden.data(), inp.data(), weight.data(), bias.data(), N, C, OC, nullptr,
                         Activation::gelu, pre_gelu.data());
            gemm.forward<T>(out.data(), hidden.data(), weight2.data(), bias.data(), N, OC, C, nullptr);
            gemm.forward<T>(plain.data(), inp.data(), weight.data(), nullptr, N, C, OC, nullptr);
            gemm.backward_weight(dhead.data(), nullptr, hidden.data(), inp.data(), N, C, OC, micro > 0,
                                 nullptr);
            gemm.backward_weight(dweight2.data(), nullptr, dout.data(), hidden.data(), N, OC, C, micro > 0,
                                 nullptr);
            gemm.backward_input(dpre_gelu.data(), dout.data(), weight2.data(), N, OC, C, nullptr,
                                Activation::gelu, pre_gelu.data());
            gemm.backward_weight(dweight.data(), dbias.data(), dpre_gelu.data(), inp.data(), N, C, OC,
                                 micro > 0, nullptr);
            gemm.backward_input(dinp.data(), dpre_gelu.data(), weight.data(), N, C, OC, nullptr);
        }
    }
    void begin_step() { simt::fill_zero(dbias.data(), OC * sizeof(float), nullptr); }

    // Results that every algorithm must give, and the operands, none of which may change.
    std::vector<float> all() const {
        std::vector<float> all;
        for (const Tensor<T>* tensor :
             {&inp, &weight, &bias, &weight2, &dout, &pre_gelu, &hidden, &out, &plain, &dpre_gelu, &dinp})
            tensor->append_to(all);
        for (const Tensor<float>* tensor : {&dweight, &dweight2, &dbias, &dhead}) tensor->append_to(all);
        return all;
    }
};

template <class T>
class Machine {
public:
    explicit Machine(size_t workspace_bytes = size_t{1} << 20) : workspace(workspace_bytes) {
        gemm.use_workspace(workspace.data(), workspace_bytes);
    }
    std::string tune(double seconds = unlimited) {
        return gemm.tune([&] { layers.run(gemm); }, seconds);
    }
    // Runs what a step launches once everything is chosen, and compares it with the first algorithm, which
    // is right, without any choice.
    std::vector<Launch> step() {
        Machine reference;
        reference.layers.begin_step();
        reference.layers.run(reference.gemm);
        gpu->forget();
        layers.begin_step();
        layers.run(gemm);
        const std::vector<Launch> launches = gpu->seen().launches;
        // bf16 is rounded once more where our kernels compute what an epilogue does; fp32 too, at its 24th
        // bit.
        const std::vector<float> expected = reference.layers.all(), values = layers.all();
        for (size_t i = 0; i < expected.size(); i++)
            EXPECT_NEAR(values[i], expected[i], (std::is_same_v<T, float> ? 1e-4 : 0.1)) << i;
        return launches;
    }

    simt::DeviceBuffer<char> workspace;
    Gemm gemm{{}};
    Layers<T> layers;
};

std::set<int> ids(const std::vector<Launch>& launches) {
    std::set<int> ids;
    for (const Launch& launch : launches) ids.insert(launch.id);
    return ids;
}

template <class T>
class GemmTuning : public testing::Test {
protected:
    Gpu fake;
};
using Types = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(GemmTuning, Types);

TYPED_TEST(GemmTuning, WithoutTimingTheFirstChoiceComputes) {
    this->fake.offer({{.id = 1, .cold_ms = 9, .warm_ms = 9}, {.id = 2, .cold_ms = 1, .warm_ms = 1}});
    Machine<TypeParam> machine;
    EXPECT_EQ(ids(machine.step()), std::set{1});
    EXPECT_EQ(this->fake.seen().checks, 0);
}

// Timed back to back, the third would win.
TYPED_TEST(GemmTuning, TheFastestWithColdCachesIsChosen) {
    this->fake.offer({{.id = 1, .cold_ms = 5, .warm_ms = 1},
                      {.id = 2, .cold_ms = 3, .warm_ms = 4},
                      {.id = 3, .cold_ms = 4, .warm_ms = 0.1}});
    Machine<TypeParam> machine;
    const size_t held = software_gpu::device_memory().allocated();
    const std::string said = machine.tune();
    EXPECT_EQ(software_gpu::device_memory().allocated(), held);
    EXPECT_TRUE(said.starts_with("matmuls: ") && said.ends_with(" runs)")) << said;
    size_t timed = 0;
    for (const Launch& launch : this->fake.seen().launches) {
        timed += launch.timed;
        EXPECT_TRUE(launch.cold || !launch.timed);
    }
    EXPECT_GT(timed, 30u);
    EXPECT_EQ(ids(machine.step()), std::set{2});
    for (const Launch& launch : this->fake.seen().launches) EXPECT_FALSE(launch.timed);
}

// The caches are filled from memory allocated temporarily, or from the workspace if too little is free.
TYPED_TEST(GemmTuning, MemoryForColdCachesIsAllocatedOnlyIfItIsThere) {
    this->fake.offer({{.id = 1, .cold_ms = 5, .warm_ms = 1}, {.id = 2, .cold_ms = 3, .warm_ms = 4}});
    const auto allocations = [&](size_t cache, size_t free) {
        this->fake.info.cache_bytes = cache;
        this->fake.info.free_memory = free;
        Machine<TypeParam> machine(size_t{16} << 20);
        this->fake.forget();
        machine.tune();
        const std::vector<size_t> allocations = this->fake.seen().allocations;
        for (const Launch& launch : this->fake.seen().launches) EXPECT_TRUE(launch.cold || !launch.timed);
        this->fake.forget();
        EXPECT_EQ(ids(machine.step()), std::set{2});
        return allocations;
    };
    EXPECT_EQ(allocations(size_t{8} << 20, size_t{1} << 30), std::vector<size_t>{size_t{16} << 20});
    EXPECT_EQ(allocations(size_t{9} << 20, size_t{140} << 20), std::vector<size_t>{});
}

TYPED_TEST(GemmTuning, AFasterOneThatIsWrongOrImpossibleIsNotChosen) {
    this->fake.offer(
        {{.id = 1, .cold_ms = 5, .warm_ms = 5},
         {.id = 2, .cold_ms = 0.5, .warm_ms = 0.5, .like = {.forgets_last_term = true}},
         {.id = 3, .cold_ms = 0.4, .warm_ms = 0.4, .like = {.writes_nothing = true}},
         {.id = 4, .cold_ms = 0.3, .warm_ms = 0.3, .like = {.passes_check = false}},
         {.id = 5, .cold_ms = 0.2, .warm_ms = 0.2, .like = {.status = CUBLAS_STATUS_NOT_SUPPORTED}},
         {.id = 6, .cold_ms = 0.1, .warm_ms = 0.1, .like = {.workspace = size_t{1} << 30}},
         {.id = 7, .cold_ms = 4, .warm_ms = 4},
         // There is no memory for its code; the next algorithm may fit.
         {.id = 8, .cold_ms = 0.2, .warm_ms = 0.2, .like = {.status = CUBLAS_STATUS_ALLOC_FAILED}},
         {.id = 9, .cold_ms = 3, .warm_ms = 3}});
    Machine<TypeParam> machine;
    machine.tune();
    EXPECT_TRUE(ids(this->fake.seen().launches).contains(2));  // it was tried
    EXPECT_EQ(this->fake.seen().refused, (std::set{5, 8}));
    EXPECT_EQ(ids(machine.step()), std::set{9});
}

// The bias's gradient is small beside the weight's: its error must not be hidden by that norm.
TYPED_TEST(GemmTuning, AnOutputThatIsWrongIsSeenBesideALargerOne) {
    this->fake.offer({{.id = 1, .cold_ms = 5, .warm_ms = 5},
                      {.id = 2, .cold_ms = 1, .warm_ms = 1, .like = {.bias_gradient_error = 0.015f}}});
    Machine<TypeParam> machine;
    machine.tune();
    size_t tried = 0, timed = 0;
    for (const Launch& launch : this->fake.seen().launches) {
        if (launch.id != 2 || launch.epilogue != "BGRADB") continue;
        tried++;
        timed += launch.timed;
    }
    EXPECT_GT(tried, 0u);
    EXPECT_EQ(timed, 0u);
}

// An algorithm that overwrites is right only where nothing is added.
TYPED_TEST(GemmTuning, WhatAddsIsChosenApart) {
    this->fake.offer({{.id = 1, .cold_ms = 5, .warm_ms = 5},
                      {.id = 2, .cold_ms = 2, .warm_ms = 2, .like = {.overwrites = true}}});
    Machine<TypeParam> machine;
    machine.tune();
    size_t adding = 0;
    for (const Launch& launch : machine.step()) {
        EXPECT_EQ(launch.id, launch.adds ? 1 : 2);
        adding += launch.adds;
    }
    EXPECT_EQ(adding, 3u);
}

TYPED_TEST(GemmTuning, WeightGradientsAreTimedWithKIn1To12Parts) {
    this->fake.offer({{.id = 1, .cold_ms = 5, .warm_ms = 5, .best_parts = 5},
                      {.id = 2, .cold_ms = 2, .warm_ms = 2, .best_parts = 7}});
    Machine<TypeParam> machine(size_t{129} << 20);
    machine.tune();
    std::map<int, std::map<uint32_t, std::set<int>>> parts;
    std::set<int> others;  // in as many parts as the heuristic returns
    for (const Launch& launch : this->fake.seen().launches) {
        if (!launch.is_weight_gradient()) others.insert(launch.parts);
        else if (launch.timed) parts[launch.id][launch.scheme].insert(launch.parts);  // it was right
        EXPECT_TRUE(launch.scheme != in_place || launch.output == "fp32");  // parts are added in fp32
        // all that the library may have on sm_90
        EXPECT_EQ(launch.workspace_bytes / (size_t{128} << 20), 1u);
    }
    EXPECT_TRUE(std::ranges::includes(std::set{1, 2, 3}, others));
    const std::set<int> several{2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    for (const int id : {1, 2}) {
        EXPECT_EQ(parts[id][CUBLASLT_REDUCTION_SCHEME_NONE], std::set{1});
        EXPECT_EQ(parts[id][in_place], several);
        EXPECT_EQ(parts[id][in_fp32], several);
    }
    for (const Launch& launch : machine.step()) {
        EXPECT_EQ(launch.id, 2);
        EXPECT_EQ(launch.parts, launch.is_weight_gradient() ? 7 : 3);
    }
}

TYPED_TEST(GemmTuning, PartsThatDoNotFitTheWorkspaceAreLeftOut) {
    this->fake.offer({{.id = 1, .cold_ms = 2, .warm_ms = 2, .best_parts = 12}});
    constexpr size_t one = OC * C * sizeof(float), own = 1024;  // own: bias gradients
    Machine<TypeParam> machine(own + 4 * one);
    machine.tune();
    int most = 0;
    for (const Launch& launch : this->fake.seen().launches) {
        if (launch.scheme == in_fp32) most = std::max(most, launch.parts);
    }
    EXPECT_EQ(most, 4);
    EXPECT_TRUE(this->fake.seen().refused.empty());
    for (const Launch& launch : machine.step()) {
        if (!launch.is_weight_gradient()) continue;
        EXPECT_EQ(launch.parts, 12);
        EXPECT_EQ(launch.scheme, in_place);
    }
}

TYPED_TEST(GemmTuning, EpiloguesAndOurKernelsAreTimedAgainstEachOther) {
    this->fake.offer({{.id = 1, .cold_ms = 2, .warm_ms = 2}});
    const auto epilogues = [&](std::map<std::string, double> slow) {
        this->fake.epilogue_ms = std::move(slow);
        Machine<TypeParam> machine;
        machine.tune();
        std::set<std::string> used;
        for (const Launch& launch : machine.step()) used.insert(launch.epilogue);
        return used;
    };
    using Set = std::set<std::string>;
    const auto none = "DEFAULT", bias = "BIAS", gelu = "GELU_AUX_BIAS", dgelu = "DGELU", bgrad = "BGRADB";
    const auto in_this_type = [&](Set expected) {
        if (std::is_same_v<TypeParam, float>) expected.erase(gelu), expected.erase(dgelu);
        return expected;
    };
    // One of our kernels takes 0.5 ms. A bias gradient apart needs two, and one follows BGRADB too.
    EXPECT_EQ(epilogues({}), in_this_type({none, bias, gelu, dgelu, bgrad}));
    EXPECT_EQ(epilogues({{gelu, 0.4}, {dgelu, 0.4}, {bias, 0.4}, {bgrad, 0.6}}),
              in_this_type({none, bias, gelu, dgelu}));
    EXPECT_EQ(epilogues({{gelu, 0.6}}), in_this_type({none, bias, dgelu, bgrad}));
    EXPECT_EQ(epilogues({{gelu, 1.1}, {dgelu, 0.6}, {bias, 0.6}, {bgrad, 0.6}}), (Set{none}));
    this->fake.info.compute_capability = 80;  // where a separate GELU is the choice without timing
    EXPECT_EQ(epilogues({{gelu, 0.3}}), in_this_type({none, bias, gelu, dgelu, bgrad}));
}

// Their tanh is not exact enough for results stored in fp32: such an epilogue is neither used nor timed,
// however fast it is.
TEST(GemmGelu, IsComputedByOurKernelInFp32AndTf32) {
    for (const bool tf32 : {false, true}) {
        Gpu fake;
        fake.offer({{.id = 1, .cold_ms = 2, .warm_ms = 2}});
        Layers<float> layers;
        Gemm gemm({.tf32 = tf32});
        const simt::DeviceBuffer<char> workspace(size_t{1} << 20);
        gemm.use_workspace(workspace.data(), workspace.bytes());
        layers.run(gemm);
        gemm.tune([&] { layers.run(gemm); }, unlimited);
        layers.run(gemm);
        EXPECT_GT(fake.seen().launches.size(), 30u);
        for (const Launch& launch : fake.seen().launches) {
            EXPECT_TRUE(launch.epilogue == "DEFAULT" || launch.epilogue == "BIAS" ||
                        launch.epilogue == "BGRADB")
                << launch.epilogue;
        }
    }
}

// The library receives each operand's alignment: an algorithm that needs more is not offered, and one that
// needs as much is.
TYPED_TEST(GemmTuning, EveryAlignmentHasAnAlgorithmOfItsOwn) {
    constexpr size_t size = sizeof(TypeParam);
    this->fake.offer({{.id = 256, .cold_ms = 1, .warm_ms = 1, .like = {.alignment = 256}},
                      {.id = 64, .cold_ms = 2, .warm_ms = 2, .like = {.alignment = 64}},
                      {.id = 16, .cold_ms = 3, .warm_ms = 3, .like = {.alignment = 16}},
                      {.id = size, .cold_ms = 4, .warm_ms = 4, .like = {.alignment = size}}});
    this->fake.kernel_ms = 10;  // a separate bias never pays
    Machine<TypeParam> machine;
    constexpr size_t wide = 128;  // so that columns have any alignment too
    Tensor<TypeParam> inp(N * wide + 512, 1), weight(wide * wide + 512, 2), bias(wide + 512, 3),
        out(N * wide + 512, 0);
    struct Offsets {
        size_t out, inp, weight, bias;  // bytes from an address that is a multiple of 256
    };
    const auto product = [&](Offsets o) {
        machine.gemm.template forward<TypeParam>(out.data() + o.out / size, inp.data() + o.inp / size,
                                                 weight.data() + o.weight / size, bias.data() + o.bias / size,
                                                 N, wide, wide, nullptr);
    };
    const std::pair<Offsets, int> cases[] = {
        {{0, 0, 0, 0}, 256},  {{256, 512, 256, 1024}, 256}, {{0, 64, 0, 0}, 64}, {{128, 0, 0, 0}, 64},
        {{0, 0, 192, 0}, 64}, {{0, 0, 0, 16}, 16},          {{0, 0, 0, 48}, 16}, {{64, 0, 16, 0}, 16}};
    const auto expect_each = [&] {
        for (const auto& [offsets, id] : cases) {
            this->fake.forget();
            product(offsets);
            ASSERT_EQ(this->fake.seen().launches.size(), 1u);
            EXPECT_EQ(this->fake.seen().launches[0].id, id);
            EXPECT_EQ(this->fake.seen().launches[0].epilogue, "BIAS");
        }
    };
    expect_each();
    machine.gemm.tune(
        [&] {
            for (const auto& [offsets, id] : cases) product(offsets);
        },
        unlimited);
    expect_each();
    EXPECT_TRUE(this->fake.seen().refused.empty());
    const std::string choices = machine.gemm.choices();
    for (const char* named :
         {"epilogue 4\"", "epilogue 4, B aligned to 64\"", "epilogue 4, D aligned to 128\"",
          "epilogue 4, A aligned to 64\"", "epilogue 4, bias aligned to 16\"",
          "epilogue 4, A aligned to 16, D aligned to 64\""})
        EXPECT_TRUE(says(choices, named)) << named;
}

TYPED_TEST(GemmTuning, UnalignedOperandsAreChosenForApart) {
    this->fake.offer({{.id = 1, .cold_ms = 5, .warm_ms = 5}, {.id = 2, .cold_ms = 2, .warm_ms = 2}});
    Machine<TypeParam> machine;
    Tensor<TypeParam> memory(N * C + 1, 1);
    auto* const address = memory.data() + 1;
    const auto products = [&] {
        machine.gemm.template forward<TypeParam>(machine.layers.plain.data(), address,
                                                 machine.layers.weight.data(), machine.layers.bias.data(), N,
                                                 C, OC, nullptr);
    };
    machine.gemm.tune(products, unlimited);
    this->fake.forget();
    products();
    ASSERT_EQ(this->fake.seen().launches.size(), 1u);
    EXPECT_EQ(this->fake.seen().launches[0].id, 2);
    EXPECT_EQ(this->fake.seen().launches[0].epilogue, "DEFAULT");
    EXPECT_TRUE(says(machine.gemm.choices(), fmt::format(", B aligned to {}", sizeof(TypeParam))));
}

TYPED_TEST(GemmTuning, ChoicesAreTakenOverWithoutTiming) {
    this->fake.offer({{.id = 1, .cold_ms = 5, .warm_ms = 5, .best_parts = 2},
                      {.id = 2, .cold_ms = 2, .warm_ms = 2, .best_parts = 7}});
    this->fake.epilogue_ms["GELU_AUX_BIAS"] = 3;
    Machine<TypeParam> chooser, taker;
    const std::string empty = chooser.gemm.choices();
    chooser.tune();
    const std::string choices = chooser.gemm.choices();
    EXPECT_NE(choices, empty);
    EXPECT_EQ(taker.gemm.adopt(choices), "");
    EXPECT_EQ(taker.gemm.choices(), choices);
    const auto same = [](const std::vector<Launch>& a, const std::vector<Launch>& b) {
        return std::ranges::equal(a, b, [](const Launch& x, const Launch& y) {
            return x.id == y.id && x.parts == y.parts && x.scheme == y.scheme && x.epilogue == y.epilogue;
        });
    };
    const std::vector<Launch> chosen = chooser.step();
    EXPECT_TRUE(same(taker.step(), chosen));

    this->fake.forget();
    const std::string said = taker.tune();
    EXPECT_TRUE(said.starts_with("matmuls: 0 timed in ") && said.find(" (0 runs), ") != said.npos &&
                said.ends_with(" known before"))
        << said;
    EXPECT_TRUE(same(this->fake.seen().launches, chosen));
    EXPECT_EQ(taker.gemm.choices(), choices);
}

TYPED_TEST(GemmTuning, ChoicesOfAnotherMachineOrDamagedOnesAreNot) {
    this->fake.offer({{.id = 1, .cold_ms = 5, .warm_ms = 5}, {.id = 2, .cold_ms = 2, .warm_ms = 2}});
    Machine<TypeParam> chooser;
    chooser.tune();
    const std::string choices = chooser.gemm.choices();
    const auto refusal = [&](const std::string& text) {
        Machine<TypeParam> taker;
        const std::string before = taker.gemm.choices(), reason = taker.gemm.adopt(text);
        EXPECT_EQ(taker.gemm.choices(), before);
        EXPECT_EQ(ids(taker.step()), std::set{1});
        return reason;
    };
    std::string changed = choices;
    changed[changed.find("\"algorithm\": \"") + 20] ^= 1;
    EXPECT_EQ(refusal(changed), "it is damaged: its checksum is wrong");
    EXPECT_EQ(refusal(choices.substr(0, choices.size() / 2)), "it is damaged: not JSON");
    EXPECT_EQ(refusal(""), "it is damaged: not JSON");
    this->fake.version = 130200;
    EXPECT_EQ(refusal(choices), "it is of another cuBLASLt: 130100, not 130200");
    this->fake.info.name = "Imitation 9500";
    EXPECT_EQ(
        refusal(choices),
        "it is of another GPU: \"Imitation 9000\" with 132 multiprocessors, not Imitation 9500 with 132");
}

TYPED_TEST(GemmTuning, AnAlgorithmThatCuBlasLtNoLongerTakesIsNotUsed) {
    this->fake.offer({{.id = 1, .cold_ms = 5, .warm_ms = 5},
                      {.id = 2, .cold_ms = 2, .warm_ms = 2},
                      {.id = 3, .cold_ms = 3, .warm_ms = 3}});
    Machine<TypeParam> chooser, taker, tuner;
    chooser.tune();
    software_gpu::lt_algorithms()[1].passes_check = false;
    for (Machine<TypeParam>* machine : {&taker, &tuner})
        ASSERT_EQ(machine->gemm.adopt(chooser.gemm.choices()), "");
    testing::internal::CaptureStderr();
    EXPECT_EQ(ids(taker.step()), std::set{1});
    EXPECT_EQ(ids(taker.step()), std::set{1});
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(said.starts_with("gemm: cuBLASLt no longer takes the algorithm chosen for ")) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 11);  // once a product

    testing::internal::CaptureStderr();
    EXPECT_TRUE(says(tuner.tune(), " of them no longer possible"));
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(ids(tuner.step()), std::set{3});
}

// Products left out for lack of time keep their choice, also in runs that reuse these choices.
TYPED_TEST(GemmTuning, WhenTheTimeIsOverTheFirstChoiceStays) {
    this->fake.offer({{.id = 1, .cold_ms = 5, .warm_ms = 5, .best_parts = 4},
                      {.id = 2, .cold_ms = 2, .warm_ms = 2, .best_parts = 4}});
    Machine<TypeParam> machine, taker;
    // without and with GELU and its gradient
    constexpr size_t products = std::is_same_v<TypeParam, float> ? 12 : 14;
    const std::string said = machine.tune(0);
    EXPECT_TRUE(said.starts_with("matmuls: 0 timed in ") &&
                said.ends_with(fmt::format(" s (0 runs); {} left to cuBLASLt after 0 s", products)))
        << said;
    EXPECT_TRUE(std::ranges::none_of(this->fake.seen().launches, &Launch::timed));
    const std::vector<std::string> lines = machine.gemm.chosen_algorithms();
    EXPECT_EQ(lines.size(), products);
    for (const std::string& line : lines)
        EXPECT_TRUE(line.ends_with(": algorithm 1, tile 0, stages 0")) << line;
    EXPECT_EQ(ids(machine.step()), std::set{1});
    ASSERT_EQ(taker.gemm.adopt(machine.gemm.choices()), "");
    EXPECT_TRUE(taker.tune().starts_with("matmuls: 0 timed"));
    EXPECT_EQ(ids(taker.step()), std::set{1});
}

TYPED_TEST(GemmTuning, TheChoiceAndItsSpeedAreShown) {
    this->fake.offer(
        {{.id = 1, .cold_ms = 5, .warm_ms = 5}, {.id = 2, .cold_ms = 2, .warm_ms = 2, .best_parts = 7}});
    Machine<TypeParam> machine;
    machine.tune();
    const std::vector<std::string> lines = machine.gemm.chosen_algorithms();
    const auto line = std::ranges::find_if(lines, [](const std::string& text) {
        return text.starts_with("NT m = 16, n = 40, k = 24") && text.find("epilogue 1,") != text.npos;
    });
    ASSERT_NE(line, lines.end());
    EXPECT_NE(line->find("algorithm 2, tile 0, stages 0, K in 7 parts added in place, 2.000 ms, 0.0 TFLOP/s "
                         "(first choice: 5.000 ms)"),
              std::string::npos)
        << *line;
    // The file has its digits: 2 * 16 * 40 * 24 operations in 2 ms.
    const nlohmann::json products = nlohmann::json::parse(machine.gemm.choices()).at("products");
    EXPECT_EQ(products.at(line->substr(0, line->find(": "))).at("tflops"), 1.536e-5);
}

// ----------------------------------------------------------------------------------------------------
// a run's processes and its folder

class MatmulTuning : public testing::Test {
protected:
    struct Rank : Machine<bfloat16> {
        explicit Rank(int rank) : communicator(process_of(rank)) {}
        static Process process_of(int rank) {
            Process process;
            process.rank = rank;
            process.world_size = 2;
            return process;
        }
        SingleProcess communicator;
        int rehearsals = 0;
        bool has_shorter_product = false;  // beside those of every run
        std::vector<std::string> notes;
        void tune(const ResumePoint& from, double most_seconds = unlimited) {
            const auto rehearse = [&] {
                rehearsals++;
                layers.run(gemm);
                if (has_shorter_product)
                    gemm.forward<bfloat16>(layers.plain.data(), layers.inp.data(), layers.weight.data(),
                                           nullptr, N / 2, C, OC, nullptr);
            };
            tune_matmuls(gemm, rehearse, from, most_seconds, communicator,
                         [&](const std::string& line) { notes.push_back(line); });
        }
    };
    MatmulTuning() {
        fake.offer({{.id = 1, .cold_ms = 5, .warm_ms = 5}, {.id = 2, .cold_ms = 2, .warm_ms = 2}});
    }
    ~MatmulTuning() override {
        unsetenv("FLATGPT_MATMUL_SECONDS");
        unsetenv("FLATGPT_MATMULS");
    }

    ResumePoint run(const std::string& name) const {
        std::filesystem::create_directory(folder / name);
        ResumePoint from;
        from.run_folder = folder / name;
        return from;
    }

    Gpu fake;
    TemporaryFolder folder;
};

TEST_F(MatmulTuning, Rank0ChoosesAndTheOthersGetTheSame) {
    Rank first(0), second(1);
    first.tune(run("run"));
    const size_t launches = fake.seen().launches.size();
    second.tune(run("run"));
    EXPECT_EQ(fake.seen().launches.size(), launches);
    EXPECT_EQ(first.rehearsals, 1);
    EXPECT_EQ(second.rehearsals, 0);
    EXPECT_EQ(first.notes.size(), 1u);
    EXPECT_TRUE(second.notes.empty());
    EXPECT_EQ(second.gemm.choices(), first.gemm.choices());
    EXPECT_EQ(ids(second.step()), std::set{2});
    EXPECT_EQ(read_file(matmul_file(folder / "run")), first.gemm.choices());
    EXPECT_EQ(folder.files().size(), 1u);
}

// As with --deterministic, whatever the variable's value.
TEST_F(MatmulTuning, NothingIsTimedInNoTime) {
    setenv("FLATGPT_MATMUL_SECONDS", "30", 1);
    Rank first(0);
    first.tune(run("run"), 0);
    ASSERT_EQ(first.notes.size(), 1u);
    EXPECT_TRUE(first.notes[0].starts_with("matmuls: 0 timed")) << first.notes[0];
    for (const Launch& launch : fake.seen().launches) EXPECT_FALSE(launch.timed);
    EXPECT_EQ(ids(first.step()), std::set{1});
}

// A second timing would find another algorithm faster.
TEST_F(MatmulTuning, ARunThatGoesOnKeepsItsChoices) {
    Rank once(0), again(0), branch(0);
    once.tune(run("run"));
    fake.planned(2).cold_ms = 10;
    again.tune(run("run"));
    EXPECT_EQ(again.notes.size(), 1u);
    EXPECT_TRUE(again.notes[0].starts_with("matmuls: 0 timed")) << again.notes[0];
    EXPECT_EQ(ids(again.step()), std::set{2});
    ResumePoint from = run("branch");
    from.metrics = folder / "run/metrics.jsonl";
    branch.tune(from);
    EXPECT_EQ(ids(branch.step()), std::set{2});
    EXPECT_EQ(read_file(matmul_file(folder / "branch")), read_file(matmul_file(folder / "run")));
}

TEST_F(MatmulTuning, AFileThatDoesNotHoldIsWrittenAnew) {
    const ResumePoint from = run("run");
    Rank(0).tune(from);
    const std::string whole = read_file(matmul_file(from.run_folder));
    folder.write("run/matmul_algorithms.json", whole.substr(1));
    folder.write("run/matmul_algorithms.json.tmp-0123abcd", "half");
    Rank after_damage(0);
    after_damage.tune(from);
    ASSERT_EQ(after_damage.notes.size(), 2u);
    EXPECT_EQ(after_damage.notes[0],
              matmul_file(from.run_folder) + " is not used and will be replaced: it is damaged: not JSON");
    EXPECT_EQ(
        GemmChoices::parse(read_file(matmul_file(from.run_folder)), {"Imitation 9000", 132, 130100}).size(),
        14u);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(from.run_folder), {}), 1);

    fake.version = 130200;
    Rank updated(0);
    updated.tune(from);
    ASSERT_EQ(updated.notes.size(), 2u);
    EXPECT_TRUE(says(updated.notes[0], "another cuBLASLt: 130100, not 130200"));
    Rank again(0);
    again.tune(from);
    EXPECT_EQ(again.notes.size(), 1u);
}

class SharedMatmuls : public MatmulTuning {
protected:
    SharedMatmuls() { setenv("FLATGPT_MATMULS", shared.c_str(), 1); }
    size_t products_in_shared() const {
        return GemmChoices::parse(read_file(shared), {"Imitation 9000", 132, fake.version}).size();
    }
    const std::string shared = folder / "shared.json";
};

TEST_F(SharedMatmuls, ASeriesOfRunsTunesOnce) {
    Rank first(0), second(0), deterministic(0);
    first.tune(run("first"));
    EXPECT_EQ(read_file(shared), first.gemm.choices());
    // A second timing would find another algorithm faster.
    fake.planned(2).cold_ms = 10;
    second.tune(run("second"));
    ASSERT_EQ(second.notes.size(), 1u);
    EXPECT_TRUE(second.notes[0].starts_with("matmuls: 0 timed")) << second.notes[0];
    EXPECT_EQ(ids(second.step()), std::set{2});
    EXPECT_EQ(read_file(matmul_file(folder / "second")), read_file(shared));
    // A deterministic run neither uses other runs' timings nor writes its own choices, which are not timed.
    deterministic.tune(run("deterministic"), 0);
    EXPECT_EQ(ids(deterministic.step()), std::set{1});
    EXPECT_EQ(read_file(shared), first.gemm.choices());
}

TEST_F(SharedMatmuls, TheRunsOwnFileComesFirst) {
    unsetenv("FLATGPT_MATMULS");
    Rank own(0), other(0), again(0);
    own.tune(run("run"));
    setenv("FLATGPT_MATMULS", shared.c_str(), 1);
    fake.planned(2).cold_ms = 10;
    other.has_shorter_product = again.has_shorter_product = true;
    other.tune(run("other"));
    EXPECT_EQ(ids(other.step()), std::set{1});
    again.tune(run("run"));
    EXPECT_EQ(again.notes.size(), 1u);
    // the other process has timed the new products
    EXPECT_TRUE(again.notes[0].starts_with("matmuls: 0 timed")) << again.notes[0];
    EXPECT_EQ(ids(again.step()), std::set{2});
    EXPECT_EQ(read_file(matmul_file(folder / "run")), again.gemm.choices());
    EXPECT_EQ(read_file(shared), again.gemm.choices());
}

// Otherwise a short run, whose time was over, would leave its first choices to all later ones.
TEST_F(SharedMatmuls, WhatWasNotTimedIsNotShared) {
    setenv("FLATGPT_MATMUL_SECONDS", "0", 1);
    Rank(0).tune(run("untimed"));
    EXPECT_FALSE(std::filesystem::exists(shared));
    unsetenv("FLATGPT_MATMUL_SECONDS");
    Rank timed(0);
    timed.tune(run("timed"));
    EXPECT_EQ(ids(timed.step()), std::set{2});
    EXPECT_EQ(products_in_shared(), 14u);
}

TEST_F(SharedMatmuls, ProductsOfSeveralRunsComeTogether) {
    Rank first(0), second(0);
    first.tune(run("first"));
    second.has_shorter_product = true;
    second.tune(run("second"));
    EXPECT_EQ(products_in_shared(), 15u);
}

TEST_F(SharedMatmuls, AFileOfAnotherMachineIsPassedOverWithOneLine) {
    Rank(0).tune(run("before"));
    fake.version = 130200;
    Rank updated(0);
    updated.tune(run("updated"));
    ASSERT_EQ(updated.notes.size(), 2u);
    EXPECT_EQ(updated.notes[0],
              shared + " is not used and will be replaced: it is of another cuBLASLt: 130100, not 130200");
    EXPECT_FALSE(updated.notes[1].starts_with("matmuls: 0 timed")) << updated.notes[1];
    EXPECT_EQ(products_in_shared(), 14u);
}

TEST_F(SharedMatmuls, AFileThatCannotBeWrittenEndsNoRun) {
    setenv("FLATGPT_MATMULS", (folder / "none/shared.json").c_str(), 1);
    Rank first(0);
    first.tune(run("run"));
    ASSERT_EQ(first.notes.size(), 2u);
    EXPECT_TRUE(first.notes[1].starts_with("FLATGPT_MATMULS=" + (folder / "none/shared.json") +
                                           " cannot be updated: "))
        << first.notes[1];
    EXPECT_EQ(ids(first.step()), std::set{2});
}

TEST_F(MatmulTuning, TheTimeIsLimitedByTheEnvironmentAndByThoseWhoWait) {
    setenv("FLATGPT_MATMUL_SECONDS", "0", 1);
    Rank untimed(0);
    untimed.tune(run("untimed"));
    EXPECT_TRUE(untimed.notes.at(0).ends_with(" left to cuBLASLt after 0 s")) << untimed.notes[0];
    EXPECT_EQ(ids(untimed.step()), std::set{1});
    setenv("FLATGPT_MATMUL_SECONDS", "10s", 1);
    EXPECT_EQ(message_of<UsageError>([&] { Rank(0).tune(run("junk")); }),
              "FLATGPT_MATMUL_SECONDS=10s; expected a number of seconds, 0 for no timing");
    unsetenv("FLATGPT_MATMUL_SECONDS");
    Rank impatient(0);
    impatient.tune(run("impatient"), 1e-9);
    EXPECT_TRUE(says(impatient.notes.at(0), " left to cuBLASLt")) << impatient.notes[0];
}

}  // namespace
