// gpt2.h: GPT-2 on preallocated flat buffers: forward, backward and update as lists of kernel calls.
//   gpt2_forward_backward.cuh: a micro-step   gpt2_update.cuh: the rest of a step
//   gpt2_memory.cuh: the buffers              gpt2_state.cuh: reading and writing the model
//   T is the type of parameters and activations: float, or bfloat16 with fp32 master weights. Gradients of
//   parameters, optimizer state, statistics and losses are fp32 in both.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/gemm/gemm.h"
#include "trainer/data/batch.h"
#include "trainer/distributed/communicator.h"
#include "trainer/model/arena.h"
#include "trainer/model/norms_by_layer.h"
#include "trainer/model/optimizer.h"
#include "trainer/model/profile.h"
#include "trainer/model/step_graphs.h"
#include "trainer/model/tensor_table.h"

struct OptimizerState;  // kernels/optimizer_state.cuh

// What backward computes again instead of keeping it: nothing; the GELU's output; everything inside a block.
enum class Recompute { none, gelu, block };

struct GPT2Options {
    int B = 0, T = 0;  // of a micro-step
    // Tokens of a step, over all micro-steps: a loss and its gradients are divided by it, unless a batch has
    // other step_targets.
    size_t total_batch = 0;
    bool training = true;  // false: no gradients, no optimizer state
    bool tf32 = false;
    Recompute recompute = Recompute::none;
    int head_chunks = 1;  // parts of a micro-step's tokens for which logits exist one after another
    AttentionBackend attention = AttentionBackend::automatic;
    bool deterministic = false;  // the same step gives the same bits; else some of cuDNN's may differ
    bool graphs = true;          // CUDA graphs, on a GPU
    uint64_t seed = 0;
    Optimizer optimizer = Optimizer::adamw;
    bool momentum = false;  // of sgd and rmsprop
    // Processes that train together, each on its share of a step's samples.
    int rank = 0, world_size = 1;
    // ZeRO-1: each keeps, and updates with, 1/world_size of the optimizer state and of the fp32 masters
    // beside bf16
    bool zero = false;
    bool reduce_bf16 = false;  // gradients are rounded to bf16 on their way between processes

    bool sharded() const { return zero && world_size > 1; }
};

// What processes tell each other with a step's sums, where it costs nothing.
struct StepFlags {
    bool stop = false;     // a signal asks for the end of the run
    bool writing = false;  // a checkpoint is being written
};

struct StepResult {
    float loss = 0;            // mean over the step's tokens, of all processes, before the update
    float grad_norm = 0;       // before clipping; not finite: the update was skipped
    std::string skipped = {};  // why nothing was updated; empty if it was
    double ms = 0;             // since the end of the step before, or since begin_step() if that was later
    StepFlags any = {};        // raised by any process
};

// Says before the update of a step with this loss and gradient norm why it must not be taken; empty: it may
// be.
using Veto = std::function<std::string(const StepResult&)>;

// Names and bytes of everything the model will allocate.
using MemoryPlan = std::vector<std::pair<std::string, size_t>>;
size_t total_bytes(const MemoryPlan& plan);

template <class T>
class GPT2 {
public:
    // Plans only. UsageError for impossible shapes (GPT2Config::check, T > context, B < 1).
    GPT2(const GPT2Config& config, const GPT2Options& options);
    ~GPT2();
    GPT2(const GPT2&) = delete;

    const GPT2Config& config() const { return config_; }
    const TensorTable& table() const { return table_; }
    MemoryPlan memory_plan() const;

    // Allocates what the plan says and draws the weights. Throws Error if the machine refuses. With several
    // processes the communicator is of their number, and outlives the model; every function marked "together"
    // is then called by all of them, in the same order.
    void allocate(Communicator* communicator = nullptr);

    // Loss and gradients of a micro-step. The first one after update() overwrites the gradients, the others
    // add to them.
    void forward(const Batch& batch);
    // Together. After the last micro-step of a step, and only then, gradients are added up over the
    // processes: a bucket at a time, as soon as it is complete, while backward goes on.
    void backward(bool last_micro_step = true);
    // Together. Clips, and updates the parameters (if the gradient norm is finite and there is no veto). A
    // step that is skipped changes nothing, and optimizer_step() does not count it. Nothing is waited for,
    // but with a veto to ask for the norm.
    void begin_update(const OptimizerOptions& options, const StepFlags& flags = {}, const Veto& veto = {});
    // What the oldest step gave whose update has begun and was not finished: waits for its end. Two steps may
    // be under way, so that the device works on one while the host looks at the one before.
    StepResult finish_update();
    StepResult update(const OptimizerOptions& options, const Veto& veto = {}) {
        begin_update(options, {}, veto);
        return finish_update();
    }
    // Before the step's first batch is asked for. StepResult::ms counts from here if no other step is in
    // flight, and
    // --profile measures from here.
    void begin_step();
    size_t updates_in_flight() const { return begun_ - finished_; }

    // Before the first step: forward and backward as a step will call them, on one batch, without
    // communication. Leaves the gradients without a meaning and changes nothing else.
    void rehearse(const Batch& batch);
    Gemm& gemm() { return *gemm_; }

    // Sum of the losses of the batch's targets that are not ignored. Leaves training's sums alone.
    double evaluate(const Batch& batch);
    // Logits (V) of the token that follows tokens (1 to T of them).
    std::vector<float> next_token_logits(const std::vector<int>& tokens);

    // For tests: fp32 values of a tensor, (Vp, C) for wte; where only a shard of the masters is kept, of the
    // rounded parameter.
    std::vector<float> parameter(const Tensor& tensor);
    void set_parameter(const Tensor& tensor, const std::vector<float>& values);
    std::vector<float> gradient(const Tensor& tensor) const;
    // Together. Of the last step's gradients, before clipping, and of the masters as they are now. Reads both
    // once; bound by memory bandwidth.
    SquaredNorms squared_norms();

    // The state that training goes on from, as flat host buffers of table().elements() floats in the table's
    // offsets (gaps included). Only
    // read_optimizer gives state_elements(): all of them too, or with ZeRO-1 this process's parts
    // (Stretch::state_offset).
    // together, before the next forward: the gradients' memory may be used; host may be null
    void read_masters(float* host);
    // the parameters follow: they are the masters, rounded
    void write_masters(const float* host);
    // torch's names: exp_avg, exp_avg_sq; see optimizer.h
    std::vector<std::string> optimizer_buffers() const;
    size_t state_elements() const {
        return table_.elements() / static_cast<size_t>(options_.sharded() ? options_.world_size : 1);
    }
    void read_optimizer(const std::string& buffer, float* host) const;
    void write_optimizer(const std::string& buffer, const float* host);
    const GPT2Options& options() const { return options_; }
    Profile& profile() { return profile_; }  // of forward, backward and update
    // Gradients, and with ZeRO-1 parameters, that this process sends to the others in a step.
    size_t bytes_sent() const;
    // Of the parameters that forward uses: equal in all processes, or something is broken. Depends on every
    // bit; reads them once.
    uint64_t checksum();
    int optimizer_step() const;  // Adam's t: updates that changed the parameters
    void set_optimizer_step(int step);

    // For tests: an activation of the last forward, by name: "encoded", "logits" (of one chunk; gradients
    // after forward), "lnf", and of layer l, "ln1", "qkv", "att", "residual2", "ln2", "fch", "fch_gelu",
    // "residual3". Error if it was not kept.
    std::vector<float> activation(const std::string& name, int layer = -1) const;
    std::vector<float> losses() const;  // (B*T) of the last forward

private:
    // The output of a layernorm, with the statistics of its input's rows.
    struct Normalised {
        T* out = nullptr;
        float *mean = nullptr, *rstd = nullptr;
    };
    // The activations of a block.
    struct Block {
        Normalised ln1, ln2;
        T *qkv = nullptr, *att = nullptr, *residual2 = nullptr, *fch = nullptr, *fch_gelu = nullptr,
          *residual3 = nullptr;
        float* lse = nullptr;
    };
    struct Workspace {           // what lives only within a kernel call or between two
        T* branch = nullptr;     // (N, C) the output of a projection, before it joins the residual
        T* dresidual = nullptr;  // (N, C) gradient of the residual stream, on its way back
        T* dnarrow = nullptr;    // (N, C) gradient of a layernorm's output or of the attention's
        T* dwide = nullptr;      // (N, 4C) gradient of the GELU's input or of qkv
        // scratch of reductions
        float *layernorm = nullptr, *norm = nullptr, *part_norms = nullptr, *loss = nullptr;
        std::byte *gemm = nullptr, *attention = nullptr;
    };

    // The parameters of a layernorm and of a matmul, and the names of the matmul's operations in a profile.
    struct Norm {
        Kind weight, bias;
    };
    struct Linear {
        Kind weight, bias;
        // the layernorm's backward before it leaves the bias' gradient: the sum of dresidual
        bool bias_from_layernorm;
        const char *forward, *dweight, *dinput;
    };
    static constexpr Norm ln1{Kind::ln1w, Kind::ln1b}, ln2{Kind::ln2w, Kind::ln2b},
        lnf{Kind::lnfw, Kind::lnfb};
    static constexpr Linear qkv{Kind::qkvw, Kind::qkvb, false, "qkv", "qkv dW", "qkv dX"};
    static constexpr Linear attproj{Kind::attprojw, Kind::attprojb, true,
                                    "attproj",      "attproj dW",   "attproj dX"};
    static constexpr Linear fc{Kind::fcw, Kind::fcb, false, "fc + GELU", "fc dW", "fc dX"};
    static constexpr Linear fcproj{Kind::fcprojw, Kind::fcprojb, true,
                                   "fcproj",      "fcproj dW",   "fcproj dX + dGELU"};

    // gpt2_forward_backward.cuh: passes, their parts, and the operations that they are made of
    void upload(const Batch& batch);
    void forward_pass();
    void backward_pass(bool last_micro_step);
    void forward_to_head();
    void block_forward(int l, bool again);
    void block_backward(int l);
    void head_chunks(bool training);
    void head_forward(size_t begin, size_t count, bool training);
    void head_backward(size_t begin, size_t count);
    void zero_gradients();
    void matmul(const Linear& linear, T* out, const T* inp, int l);
    void matmul_gelu(const Linear& linear, T* gelu, T* out, const T* inp, int l);
    void matmul_dweight(const Linear& linear, const T* dout, const T* inp, int l);
    void matmul_dinput(const Linear& linear, T* dinp, const T* dout, int l);
    void matmul_dinput_gelu(const Linear& linear, T* dpre, const T* dout, const T* pre, int l);
    void attention(const Block& a);
    void attention_backward(T* dqkv, const T* datt, const Block& a);
    void gelu_again(const Block& a);
    void layernorm(const Normalised& to, const T* inp, const Norm& norm, int l, const char* name);
    void residual_layernorm(const Normalised& to, T* sum, const T* inp, const T* branch, const Norm& norm,
                            int l);
    void layernorm_backward(T* dresidual, const T* dout, const T* inp, const Normalised& kept,
                            const Norm& norm, int l, float* dsum);

    static size_t size(int n) { return static_cast<size_t>(n); }
    size_t rows() const { return size(shape_.B) * size(shape_.T); }  // of the current batch: N = B*T
    size_t channels() const { return size(config_.C); }
    // OC and C of a matmul: out (N, OC) = inp (N, C) weight (OC, C)^T.
    std::array<size_t, 2> sizes(const Linear& linear, int l) const {
        const std::vector<size_t>& shape = table_.at(linear.weight, l).shape;
        return {shape[0], shape[1]};
    }
    T* param(Kind kind, int layer = -1) const { return params_ + table_.at(kind, layer).offset; }
    float* grad(Kind kind, int layer = -1) const { return grads_ + table_.at(kind, layer).offset; }
    Block& block(int l) { return blocks_[size(l)]; }
    const T* block_input(int l) const { return l == 0 ? encoded_ : blocks_[size(l) - 1].residual3; }
    AttentionShape shape_of(int B, int sequence) const { return {B, sequence, config_.NH, config_.HS()}; }
    // the shape that graphs are for
    bool whole_batch() const { return shape_.B == options_.B && shape_.T == options_.T; }
    bool head_in_chunks() const { return options_.head_chunks > 1; }
    size_t head_rows() const;  // of a chunk of the head; the last one may have fewer
    // Names the next call for --profile and for a timeline.
    void operation(const char* name, const Cost& cost = {}) { profile_.begin(name, cost, stream_); }
    // Runs a part of the step as a graph, or, while its operations are measured, one by one.
    template <class Work>
    void part(StepGraphs::Part which, const Work& work) {
        profile_.end(stream_);
        if (profile_.measuring()) work();
        else graphs_.run(which, stream_, work);
        profile_.end(stream_);
    }

    // gpt2_update.cuh: sums over the processes, and the optimizer
    bool alone() const { return options_.world_size == 1; }
    void reduce(int group);
    void wait_for_gradients();
    void sum_squared_gradients();
    void sum_over_ranks(size_t step, const StepFlags& flags);
    void update_parameters(size_t step, const OptimizerOptions& options);
    void update_stretch(const Stretch& stretch, const OptimizerOptions& options);
    void gather_parameters();
    void await_group(int group);
    void await_parameters();
    StepResult step_result(size_t step) const;

    // gpt2_memory.cuh
    void reserve_parameters();
    void reserve_activations();
    void share_activations();
    void initialise_weights();
    size_t gemm_workspace_bytes() const;

    // gpt2_state.cuh
    bool keeps_master_shard() const { return options_.sharded() && !std::is_same_v<T, float>; }
    // Where fp32 tensors are whole: the masters, or, while only a shard of these is kept, the gradients'
    // memory.
    float* whole_masters() const { return keeps_master_shard() ? grads_ : masters_; }
    // In a range of the flat buffer, the parameters, and a shard of the masters, become what stands there.
    void adopt_masters(size_t offset, size_t elements);
    float* optimizer_buffer(const std::string& name) const;
    template <class E>
    std::vector<float> to_host(const E* device, size_t count) const;

    const GPT2Config config_;
    const GPT2Options options_;
    const TensorTable table_;
    stream_t stream_ = nullptr;

    Arena parameters_{"parameters"}, master_{"master weights (fp32)"}, gradients_{"gradients (fp32)"},
        optimizer_{"optimizer state (fp32)"}, activations_{"activations"}, workspace_{"workspace"};
    T* params_ = nullptr;
    float *masters_ = nullptr, *grads_ = nullptr;
    bfloat16* rounded_grads_ = nullptr;  // on their way between processes, if not in fp32
    float* optimizer_buffers_[2] = {};   // as many as optimizer_buffer_names()
    OptimizerState* optimizer_state_ = nullptr;

    int32_t* tokens_ = nullptr;  // inputs, targets and order of a batch, (3, N)
    T *encoded_ = nullptr, *logits_ = nullptr;
    Normalised lnf_;
    float* losses_ = nullptr;
    // the step's loss, squared gradient norm and flags, side by side: one operation adds all up over the
    // processes
    float* step_sums_ = nullptr;
    float *step_loss_ = nullptr, *norm_squared_ = nullptr, *eval_loss_ = nullptr;
    std::vector<Block> blocks_;
    Workspace work_;

    Attention attention_;
    std::unique_ptr<Gemm> gemm_;
    Profile profile_;
    StepGraphs graphs_;
    OptimizerOptions captured_{};           // what the update's graph was captured with, but for lr
    Communicator* communicator_ = nullptr;  // nullptr: one process
    // what this process updates; what its part of the gradients' norm is of
    std::vector<Stretch> updates_, normed_;
    Communicator::Ticket reduced_ = 0;            // of the last bucket of gradients; 0: none is on its way
    std::vector<Communicator::Ticket> gathered_;  // by group, of its parameters; 0: they are here
    int micro_step_ = 0;                          // backward passes since the last update
    int64_t step_targets_ = -1;                   // the latest batch's
    event_t copied_[2] = {};                      // when the last two batches had left the host's memory
    int uploads_ = 0;
    // Of the steps under way and of the one before them, by step mod 3.
    struct HostNumbers {
        double lr, gradient_weight;  // on their way to the device, as OptimizerState has them
        float sums[4];               // on their way to the host; before, the flags to the device
        double targets;              // of the step, that are not ignored
    };
    static constexpr size_t kept_steps = 3;
    HostNumbers* numbers_ = nullptr;  // (3), pinned memory
    event_t ended_[kept_steps] = {};
    std::string vetoed_[kept_steps];
    size_t begun_ = 0, finished_ = 0;   // updates
    AttentionShape shape_{0, 0, 0, 0};  // of the last forward
};

extern template class GPT2<float>;
extern template class GPT2<bfloat16>;
