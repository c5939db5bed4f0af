// The launches of a training step, traced by the software GPU: what is captured, what is replayed, and which
// calls never occur in the loop.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>

#include "program.h"
#include "software_gpu/trace.h"
#include "system/error.h"
#include "trainer/distributed/single_process.h"
#include "trainer/engine/model.h"
#include "trainer/inference/generator.h"
#include "trainer/models/families.h"

namespace {

using Calls = std::vector<std::string>;

constexpr ModelConfig config{64, 8, 2, 2, 16};
constexpr int rows = 2, length = 8;
constexpr OptimizerOptions adamw{
    .lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0};
// inputs, targets and order of a batch
const std::string tokens = "a copy of 192 bytes to the device";

bool is_graph(const std::string& call) { return call.starts_with("graph "); }
bool is_work(const std::string& call) {
    if (call.starts_with("| ")) return false;  // only captured
    return call.find("<<<") != std::string::npos || call.starts_with("cublasLtMatmul (") ||
           call.starts_with("a fill ") || is_graph(call);
}

// Graphs are numbered in the order of their first occurrence, and events have no names.
Calls renumbered(Calls calls) {
    std::map<std::string, size_t> numbers;
    for (std::string& call : calls) {
        if (is_graph(call))
            call = fmt::format("graph {}", numbers.emplace(call, numbers.size()).first->second);
        if (call.starts_with("record event ")) call = "record an event";
    }
    return calls;
}
Calls take_calls() { return renumbered(software_gpu::take_calls()); }
Calls work_in(const Calls& calls) {
    Calls work;
    std::copy_if(calls.begin(), calls.end(), std::back_inserter(work), is_work);
    return work;
}
Calls captured_in(const Calls& calls) {
    Calls captured;
    for (const std::string& call : calls) {
        if (call.starts_with("| ")) captured.push_back(call.substr(2));
    }
    return captured;
}
long count(const Calls& calls, const std::string& call) {
    return std::count(calls.begin(), calls.end(), call);
}
long captures_in(const Calls& calls) { return count(calls, "begin a capture"); }

// A micro-step whose tokens are all 0.
struct Tokens : Batch {
    std::vector<int32_t> memory;
    explicit Tokens(int sequence = length) : memory(static_cast<size_t>(3 * rows * sequence)) {
        B = rows, T = sequence, target_count = B * T;
        inputs = memory.data(), targets = inputs + B * T, order = targets + B * T;
        std::iota(order, order + B * T, 0);
    }
};

template <class Type = float>
struct Trainer {
    SingleProcess communicator{Process{0, 2, 0, 2, "", "", ""}};  // nothing is sent
    Model<Type> model;
    Tokens batch;

    explicit Trainer(ModelOptions options = {}) : model(make_family<Type>(config), with_shape(options)) {
        model.allocate(&communicator);
        take_calls();
    }
    static ModelOptions with_shape(ModelOptions options) {
        options.B = rows, options.T = length,
        options.total_batch = static_cast<size_t>(2 * rows * length * options.world_size);
        options.generated_tokens = length;
        options.attention = AttentionBackend::kernel;
        return options;
    }
    // Two micro-steps, and an update whose learning rate is never the same. Does not wait for the result.
    void begin(double weight_decay = 0.1) {
        for (const bool last : {false, true}) {
            model.forward(batch);
            model.backward(last);
        }
        OptimizerOptions options = adamw;
        options.lr /= ++steps;
        options.weight_decay = weight_decay;
        model.begin_update(options);
    }
    // The calls of a step.
    Calls step() {
        begin();
        model.finish_update();
        return take_calls();
    }
    int steps = 0;
};

const Calls micro_step = {tokens, "record an event", "wait for an event that work follows"};
Calls replayed_step() {
    Calls calls = micro_step;
    calls.insert(calls.end(), {"graph 0", "graph 1"});
    calls.insert(calls.end(), micro_step.begin(), micro_step.end());
    calls.insert(calls.end(), {"graph 2", "graph 3", "graph 4", "a copy of 12 bytes to the device",
                               "a copy of 20 bytes to the host", "a copy of 16 bytes to the device",
                               "graph 5", "record an event"});
    return calls;
}

template <class Type>
void expect_replays(Recompute recompute, Optimizer optimizer) {
    Trainer<Type> trainer(
        {.recompute = recompute, .optimizer = optimizer, .momentum = optimizer != Optimizer::adamw});
    const Calls first = trainer.step(), second = trainer.step();
    EXPECT_EQ(captures_in(first), 0);
    EXPECT_EQ(captures_in(second), 6);
    // The captured graph has the first step's launches with the same arguments, although its learning rate
    // was different; nothing is copied from the host.
    EXPECT_GT(captured_in(second).size(), 50u);
    EXPECT_EQ(captured_in(second), work_in(first));
    EXPECT_EQ(count(second, "cublasLtMatmulAlgoGetHeuristic"), 0);
    // From then on the host queues the next step before it reads the previous one's results, and waits for
    // nothing else.
    trainer.begin();
    for (int step = 4; step < 8; step++) {
        take_calls();
        trainer.begin();
        EXPECT_EQ(take_calls(), replayed_step());
        trainer.model.finish_update();
        EXPECT_EQ(take_calls(), Calls{"wait for an event that work follows"});
    }
}
TEST(StepGraphs, EveryPartOfTheStepIsCapturedOnceAndReplayed) {
    expect_replays<float>(Recompute::none, Optimizer::adamw);
    expect_replays<float>(Recompute::block, Optimizer::sgd);
    expect_replays<bfloat16>(Recompute::activation, Optimizer::rmsprop);
}

TEST(StepGraphs, OneMicroStepHasFourParts) {
    Trainer<float> trainer;
    const auto step = [&] {
        trainer.model.forward(trainer.batch);
        trainer.model.backward(true);
        trainer.model.update(adamw);
        return take_calls();
    };
    step();
    EXPECT_EQ(captures_in(step()), 4);
    EXPECT_EQ(work_in(step()), (Calls{"graph 0", "graph 1", "graph 2", "graph 3"}));
}

TEST(StepGraphs, WithoutThemEveryStepLaunchesTheSame) {
    Trainer<float> trainer({.graphs = false});
    const Calls first = work_in(trainer.step()), second = trainer.step();
    EXPECT_EQ(captures_in(second), 0);
    EXPECT_EQ(work_in(second), first);
    EXPECT_EQ(work_in(trainer.step()), first);
}

class Refused : public testing::TestWithParam<const char*> {
    void TearDown() override { software_gpu::refuse(""); }
};
TEST_P(Refused, ACaptureIsGivenUpWithOneLine) {
    Trainer<float> trainer;
    const Calls first = work_in(trainer.step());
    software_gpu::refuse(GetParam());
    testing::internal::CaptureStderr();
    const Calls second = trainer.step(), third = trainer.step();
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(said.starts_with("without CUDA graphs: ")) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    EXPECT_EQ(captures_in(second), 1);
    EXPECT_EQ(captures_in(third), 0);
    EXPECT_EQ(work_in(second), first);
    EXPECT_EQ(work_in(third), first);
}
INSTANTIATE_TEST_SUITE_P(StepGraphs, Refused,
                         testing::Values("cudaStreamBeginCapture", "captured launch", "cudaStreamEndCapture",
                                         "cudaGraphInstantiate"));

TEST(StepGraphs, OtherNumbersOfTheOptimizerAreCapturedAnew) {
    Trainer<float> trainer;
    for (int i = 0; i < 3; i++) trainer.step();
    trainer.begin(0.2);
    trainer.model.finish_update();
    EXPECT_EQ(captures_in(take_calls()), 1);
    trainer.begin(0.2);
    trainer.model.finish_update();
    EXPECT_EQ(captures_in(take_calls()), 0);
}

TEST(StepGraphs, ABatchOfAnotherShapeRunsByItself) {
    Trainer<float> trainer;
    for (int i = 0; i < 3; i++) trainer.step();
    const Tokens shorter(length - 1);
    trainer.model.forward(shorter);
    trainer.model.backward(false);
    EXPECT_FALSE(work_in(take_calls()).empty());
    trainer.model.forward(shorter);
    trainer.model.backward(true);
    const Calls calls = take_calls();
    EXPECT_EQ(captures_in(calls), 0);
    EXPECT_TRUE(std::none_of(calls.begin(), calls.end(), is_graph));
    trainer.model.update(adamw);
    take_calls();
    EXPECT_EQ(captures_in(trainer.step()), 0);
}

TEST(StepGraphs, EvaluationInBetweenCapturesNothingAnew) {
    Trainer<float> trainer;
    for (int i = 0; i < 3; i++) trainer.step();
    trainer.model.evaluate(trainer.batch);
    trainer.model.decoder().prefill({1, 2, 3});
    trainer.model.decoder().step({4});
    const Calls calls = take_calls();
    EXPECT_EQ(captures_in(calls), 0);
    EXPECT_GT(work_in(calls).size(), 20u);
    EXPECT_EQ(work_in(trainer.step()).size(), 6u);
}

// The first token's kernels are launched one by one, the second's are captured, and all later ones are a
// replay, until attention processes one more chunk. Only the drawn tokens are copied to the host.
TEST(StepGraphs, ATokenIsOneGraph) {
    constexpr ModelConfig longer{.V = 64, .context = 300, .L = 2, .NH = 2, .C = 16};
    for (const int samples : {1, 3}) {
        Generator<bfloat16> generator(make_family<bfloat16>(longer), {.samples = samples, .max_tokens = 300});
        generator.allocate();
        generator.load([](const Tensor&, size_t, std::span<float> to) { std::ranges::fill(to, 0.01f); });
        Decoder<bfloat16>& decoder = generator.decoder();
        decoder.prefill(std::vector<int>(250, 1));
        std::vector<long> captures;
        for (int i = 0; i < 12; i++) {
            const std::vector<int> drawn = decoder.draw({}, {.index = static_cast<uint64_t>(i)}, samples, 64);
            take_calls();
            decoder.step(drawn);
            const Calls calls = take_calls();
            captures.push_back(captures_in(calls));
            const bool first = i == 0 || i == 6;  // the 251st and the 257th token
            EXPECT_EQ(work_in(calls).size() == 1 && is_graph(work_in(calls)[0]), !first) << i;
        }
        EXPECT_EQ(captures, (std::vector<long>{0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}));
        decoder.draw({.top_k = 5}, {}, samples, 64);
        const Calls calls = take_calls();
        EXPECT_EQ(work_in(calls).size(), 1u);  // the kernel that draws
        EXPECT_EQ(count(calls, fmt::format("a copy of {} bytes to the host", 4 * samples)), 1);
    }
}

// Gradients are sent during backward of the last micro-step; with ZeRO-1 parameters arrive during the
// first forward pass.
TEST(StepGraphs, WhatSendsOrReceivesRunsByItself) {
    for (const bool zero : {false, true}) {
        Trainer<float> trainer({.world_size = 2, .zero = zero});
        for (int i = 0; i < 3; i++) trainer.step();
        const Calls calls = trainer.step();
        Calls outline;  // graphs, and where kernels run by themselves
        for (const std::string& call : work_in(calls)) {
            const std::string what = is_graph(call) ? call : "kernels";
            if (outline.empty() || outline.back() != what || what != "kernels") outline.push_back(what);
        }
        const Calls expected = zero ? Calls{"kernels", "graph 0", "graph 1", "kernels", "graph 2", "graph 3"}
                                    : Calls{"graph 0", "graph 1", "graph 2", "kernels", "graph 3", "graph 4"};
        EXPECT_EQ(outline, expected) << "ZeRO " << zero;
        EXPECT_EQ(count(calls, "cudaStreamSynchronize"), 0);
    }
}

TEST(StepGraphs, OnlyAVetoWaitsForTheNorm) {
    Trainer<float> trainer;
    const Veto refuse = [](const StepResult&) { return "no"; };
    for (int i = 0; i < 3; i++) trainer.step();
    trainer.model.forward(trainer.batch);
    trainer.model.backward();
    EXPECT_EQ(trainer.model.update(adamw, refuse).skipped, "no");
    EXPECT_EQ(count(take_calls(), "cudaStreamSynchronize"), 1);
}

// The whole program: its loop, with a validation in between.
class Program : public testing::Test {
protected:
    static Calls train(const std::string& more = "") {
        const TemporaryFolder folder;
        const ProgramResult result = run_program(
            SOFTWARE_TRAIN_PROGRAM,
            "--layers 2 --heads 2 --channels 16 --context 8 --batch-size 2 --total-batch 32 --steps 12 "
            "--sample-every 0 --val-every 6 --val-steps 1 --checkpoint-every 0 --vocab 256 --out " +
                folder / "run" + more,
            fmt::format("cd /; export FLATGPT_MATMUL_SECONDS=0 SOFTWARE_GPU_TRACE='{}'", folder / "trace"));
        EXPECT_EQ(result.exit_code, 0) << result.errors;
        Calls calls;
        std::istringstream in(read_file(folder / "trace"));
        for (std::string line; std::getline(in, line);) calls.push_back(line);
        return calls;
    }
    // Steps `first` to `last`: two micro-steps each, and a batch of the validation after step 6. Two
    // micro-steps came before, to choose the matmul algorithms.
    static Calls of_steps(const Calls& calls, int first, int last) {
        const auto begin_of = [&](int step) {
            int batch = 2 + 2 * (step - 1) + (step > 6) + 1;
            return std::find_if(calls.begin(), calls.end(),
                                [&](const std::string& call) { return call == tokens && --batch == 0; });
        };
        return {begin_of(first), begin_of(last + 1)};
    }
};

TEST_F(Program, WithoutGraphsNothingIsCaptured) { EXPECT_EQ(captures_in(train(" --no-graph")), 0); }

TEST_F(Program, NeitherAllocatesNorWaitsInItsLoop) {
    const Calls calls = train();
    EXPECT_EQ(captures_in(calls), 6);
    EXPECT_EQ(captures_in(of_steps(calls, 1, 2)), 6);
    Calls step = replayed_step();
    step.push_back("wait for an event that work follows");  // for the step before
    // The validation after step 6 waits for it, and the next step starts its time anew.
    for (const int i : {3, 4, 5, 8, 9, 10, 11})
        EXPECT_EQ(renumbered(of_steps(calls, i, i)), step) << "step " << i;
    const Calls loop = of_steps(calls, 1, 12);
    for (const std::string never : {"cudaMalloc", "cudaMallocHost", "cudaFree", "cudaEventCreate"}) {
        EXPECT_TRUE(std::none_of(loop.begin(), loop.end(), [&](const std::string& call) {
            return call.starts_with(never);
        })) << never;
    }
    for (const std::string& call : captured_in(calls)) EXPECT_TRUE(is_work(call)) << call;
    EXPECT_EQ(count(of_steps(calls, 1, 5), "wait for all work"), 0);
    EXPECT_EQ(count(of_steps(calls, 6, 6), "wait for all work"), 1);
}

}  // namespace
