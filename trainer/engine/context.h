// context.h: what the parts of a model share: its options, its stream, and the batch it works on.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels/attention/attention.h"
#include "kernels/gemm/gemm.h"
#include "trainer/distributed/communicator.h"
#include "trainer/engine/optimizer.h"
#include "trainer/engine/profile.h"
#include "trainer/engine/tensor_table.h"

// How much of the activations backward recomputes instead of keeping: nothing, the output of the MLP's
// activation, or everything inside a block.
enum class Recompute { none, activation, block };

struct ModelOptions {
    int B = 0, T = 0;  // a micro-step has B sequences of T tokens
    // Tokens of a step, over all micro-steps and ranks. Losses and gradients are divided by it, unless a
    // batch sets step_targets.
    size_t total_batch = 0;
    bool training = true;  // false: no gradients, no optimizer state
    // Model::decoder() generates texts of up to this many tokens; 0: there is none.
    int generated_tokens = 0;
    bool tf32 = false;
    Recompute recompute = Recompute::none;
    int head_chunks = 1;  // the head's logits are computed for 1/head_chunks of the tokens at a time
    AttentionBackend attention = AttentionBackend::automatic;
    bool deterministic = false;  // true: the same step gives the same bits; false: cuDNN's may differ
    bool graphs = true;          // CUDA graphs, on a GPU only
    uint64_t seed = 0;
    Optimizer optimizer = Optimizer::adamw;
    bool momentum = false;  // for sgd and rmsprop
    // Processes that train together; each takes its share of a step's samples.
    int rank = 0, world_size = 1;
    // ZeRO-1: each process keeps and updates 1/world_size of the optimizer state and, with bf16, of the
    // fp32 masters.
    bool zero = false;
    bool reduce_bf16 = false;  // gradients are rounded to bf16 before they are reduced over processes

    bool sharded() const { return zero && world_size > 1; }
    bool alone() const { return world_size == 1; }
};

struct Context {
    explicit Context(const ModelOptions& o) : options(o) {}
    Context(const Context&) = delete;
    ~Context() {
        gemm.reset();
        if (stream) simt::stream_destroy(stream);
    }

    const ModelOptions options;
    stream_t stream = nullptr;
    Communicator* communicator = nullptr;  // nullptr: one process
    std::unique_ptr<Gemm> gemm;
    Profile profile;
    int B = 0, T = 0;           // shape of the latest batch
    int32_t* tokens = nullptr;  // its inputs, targets and order, (3, N)
    int micro_step = 0;         // backward passes since the last update

    size_t rows() const { return static_cast<size_t>(B) * static_cast<size_t>(T); }  // N = B*T
    const int32_t* inputs() const { return tokens; }
    const int32_t* targets() const { return tokens + rows(); }
    const int32_t* order() const { return tokens + 2 * rows(); }
    // Matrix products overwrite their weights' gradients in a step's first micro-step and add to them later.
    bool accumulates() const { return micro_step > 0; }
    // Names the next call for --profile and for a timeline.
    void operation(const char* name, const Cost& cost = {}) { profile.begin(name, cost, stream); }
};
