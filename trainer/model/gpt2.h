// gpt2.h: GPT-2 on preallocated flat buffers. Forward, backward and update are lists of kernel calls.
//   gpt2_forward_backward.cuh: a micro-step   gpt2_update.cuh: the rest of a step
//   gpt2_memory.cuh: the buffers              gpt2_state.cuh: the state from which training resumes
//   gpt2_inspect.cuh: single tensors and norms
//   T is the type of parameters and activations: float, or bfloat16 with fp32 master weights. Parameter
//   gradients, optimizer state, statistics and losses are fp32 in both cases.
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

// How much of the activations backward recomputes instead of keeping: nothing, the GELU's output, or
// everything inside a block.
enum class Recompute { none, gelu, block };

struct GPT2Options {
    int B = 0, T = 0;  // a micro-step has B sequences of T tokens
    // Tokens of a step, over all micro-steps and ranks. Losses and gradients are divided by it, unless a
    // batch sets step_targets.
    size_t total_batch = 0;
    bool training = true;  // false: no gradients, no optimizer state
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
};

// Flags that are reduced over all processes together with a step's loss and norm, at no extra cost.
struct StepFlags {
    bool stop = false;     // a signal asked this process to end the run
    bool writing = false;  // a checkpoint is being written
    bool unread = false;   // this process could not read its data; no process makes the update
};

struct StepResult {
    // Mean over the step's targets that count, on all processes; NaN if none counts.
    float loss = 0;
    // Before clipping; if it is not finite, the update was skipped. NaN if no target counts.
    float grad_norm = 0;
    bool has_targets = true;   // false: masks hide every target of the step
    std::string skipped = {};  // why the update was skipped; empty if it was not
    // Time since the end of the previous step, or since begin_step() if that was later.
    double ms = 0;
    StepFlags any = {};  // true where any process set the flag
};

// Called before the update with the step's loss and gradient norm. Returns the reason why the update must
// be skipped, or an empty string if it may be made.
using Veto = std::function<std::string(const StepResult&)>;

// Name and bytes of each allocation that the model will make.
using MemoryPlan = std::vector<std::pair<std::string, size_t>>;
size_t total_bytes(const MemoryPlan& plan);

template <class T>
class GPT2 {
public:
    // Plans the memory and allocates nothing. UsageError for impossible shapes (GPT2Config::check, T >
    // context, B < 1).
    GPT2(const GPT2Config& config, const GPT2Options& options);
    ~GPT2();
    GPT2(const GPT2&) = delete;

    const GPT2Config& config() const { return config_; }
    const TensorTable& table() const { return table_; }
    MemoryPlan memory_plan() const;

    // Allocates what the plan says and draws the initial weights. Error if memory cannot be allocated.
    // With several processes it needs a communicator of world_size processes that outlives the model. All
    // processes must then call every function marked "Collective", in the same order.
    void allocate(Communicator* communicator = nullptr);

    // Computes the losses of a micro-step; backward() follows and computes its gradients. The first
    // micro-step after an update overwrites the gradients, later ones add to them.
    void forward(const Batch& batch);
    // Collective. In the last micro-step of a step, and only there, gradients are summed over the
    // processes: one bucket at a time, as soon as it is complete, while backward continues.
    void backward(bool last_micro_step = true);
    // Collective. Clips the gradients and updates the parameters, unless the gradient norm is not finite
    // or there is a veto. A skipped step changes nothing, and optimizer_step() does not count it. Does
    // not wait for the device, except with a veto, which needs the norm.
    void begin_update(const OptimizerOptions& options, const StepFlags& flags = {}, const Veto& veto = {});
    // Waits for the oldest unfinished step and returns its result. Two steps may be in flight, so that
    // the device works on one while the host reads the result of the other.
    StepResult finish_update();
    StepResult update(const OptimizerOptions& options, const Veto& veto = {}) {
        begin_update(options, {}, veto);
        return finish_update();
    }
    // Call before the step's first batch is requested. StepResult::ms counts from here if no other step
    // is in flight, and --profile measures from here.
    void begin_step();
    size_t updates_in_flight() const { return begun_ - finished_; }

    // Call before the first step: runs forward and backward on one batch with the same operations as a
    // step, but without communication, so that matmuls can be tuned. Gradients are undefined afterwards;
    // nothing else changes.
    void rehearse(const Batch& batch);
    Gemm& gemm() { return *gemm_; }

    // Sum of the losses of the batch's targets that are not ignored. Does not change the step's loss or
    // gradients.
    double evaluate(const Batch& batch);
    // Logits (V) of the token that follows `tokens`. UsageError unless there are 1 to T of them, all
    // below V.
    std::vector<float> next_token_logits(const std::vector<int>& tokens);

    // fp32 values of a tensor: of its master, or of the rounded parameter if only a shard of the masters
    // is kept. wte is (Vp, C).
    std::vector<float> parameter(const Tensor& tensor);
    void set_parameter(const Tensor& tensor, const std::vector<float>& values);
    std::vector<float> gradient(const Tensor& tensor) const;
    // Collective. Squared norms of the last step's gradients, before clipping, and of the masters as they
    // are now. Reads both once; bound by memory bandwidth.
    SquaredNorms squared_norms();

    // The state from which training resumes, as flat host buffers. They have table().elements() floats at
    // the table's offsets, gaps included. Only read_optimizer gives state_elements() floats: with ZeRO-1,
    // the parts that this process keeps (Stretch::state_offset).

    // Collective; call before the next forward. May overwrite the gradients. With host = nullptr this
    // process only takes part.
    void read_masters(float* host);
    // Sets the parameters too: they are the masters, rounded.
    void write_masters(const float* host);
    // Names as in torch: exp_avg, exp_avg_sq; see optimizer.h.
    std::vector<std::string> optimizer_buffers() const;
    size_t state_elements() const {
        return table_.elements() / static_cast<size_t>(options_.sharded() ? options_.world_size : 1);
    }
    void read_optimizer(const std::string& buffer, float* host) const;
    void write_optimizer(const std::string& buffer, const float* host);
    const GPT2Options& options() const { return options_; }
    Profile& profile() { return profile_; }  // timings of forward, backward and update
    // Bytes that this process sends in a step: gradients and, with ZeRO-1, parameters.
    size_t bytes_sent() const;
    // Checksum of the parameters, over every bit; it must be equal on all processes. Reads them once.
    uint64_t checksum();
    int optimizer_step() const;  // Adam's t: the number of updates that changed the parameters
    void set_optimizer_step(int step);

    // For tests: an activation of the last forward, by name: "encoded", "logits" (needs head_chunks = 1;
    // they hold gradients after forward), "lnf", and in layer l, "ln1", "qkv", "att", "residual2", "ln2",
    // "fch", "fch_gelu", "residual3". Error for logits in chunks and, in layer l, for another name.
    std::vector<float> activation(const std::string& name, int layer = -1) const;
    std::vector<float> losses() const;  // (B*T), from the last forward

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
    struct Workspace {           // contents last for one kernel call, or until a later one in the same step
        T* branch = nullptr;     // (N, C) output of a projection, before it is added to the residual
        T* dresidual = nullptr;  // (N, C) gradient of the residual stream
        T* dnarrow = nullptr;    // (N, C) gradient of a layernorm's output or of the attention's output
        T* dwide = nullptr;      // (N, 4C) gradient of the GELU's input or of qkv
        // scratch of reductions
        float *layernorm = nullptr, *norm = nullptr, *part_norms = nullptr;
        std::byte *gemm = nullptr, *attention = nullptr;
    };

    // The parameters of a layernorm and of a matmul, and the matmul's operation names in a profile.
    struct Norm {
        Kind weight, bias;
    };
    struct Linear {
        Kind weight, bias;
        // The layernorm backward that runs before this matmul's backward has already written the bias
        // gradient: it is the column sum of dresidual.
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

    // gpt2_forward_backward.cuh: the passes, their parts, and their operations
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
    size_t rows() const { return size(shape_.B) * size(shape_.T); }  // N = B*T of the current batch
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
    // the batch has the shape for which graphs are captured
    bool whole_batch() const { return shape_.B == options_.B && shape_.T == options_.T; }
    bool head_in_chunks() const { return options_.head_chunks > 1; }
    size_t head_rows() const;  // rows of a chunk of the head; the last chunk may have fewer
    // Names the next call for --profile and for a timeline.
    void operation(const char* name, const Cost& cost = {}) { profile_.begin(name, cost, stream_); }
    // Runs a part of the step as a graph or, while the profile measures its operations, kernel by kernel.
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
    // The whole fp32 parameters: the masters or, if only a shard of these is kept, the gradients' memory.
    float* whole_masters() const { return keeps_master_shard() ? grads_ : masters_; }
    // Copies a range of whole_masters() to the parameters, rounded, and to this process's shard of the
    // masters.
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
    bfloat16* rounded_grads_ = nullptr;  // the gradients in bf16 that are reduced, with reduce_bf16
    float* optimizer_buffers_[2] = {};   // one for each of optimizer_buffer_names()
    OptimizerState* optimizer_state_ = nullptr;

    int32_t* tokens_ = nullptr;  // inputs, targets and order of a batch, (3, N)
    T *encoded_ = nullptr, *logits_ = nullptr;
    Normalised lnf_;
    float* losses_ = nullptr;
    // The step's loss, squared gradient norm and flags lie side by side, so that one all-reduce sums them
    // all.
    float* step_sums_ = nullptr;
    float *step_loss_ = nullptr, *norm_squared_ = nullptr, *eval_loss_ = nullptr;
    std::vector<Block> blocks_;
    Workspace work_;

    Attention attention_;
    std::unique_ptr<Gemm> gemm_;
    Profile profile_;
    StepGraphs graphs_;
    OptimizerOptions captured_{};  // the options that the update's graph was captured with, lr excepted
    Communicator* communicator_ = nullptr;  // nullptr: one process
    // stretches that this process updates; stretches whose squared gradients it sums
    std::vector<Stretch> updates_, normed_;
    Communicator::Ticket reduced_ = 0;            // for the last bucket of gradients; 0: none in flight
    std::vector<Communicator::Ticket> gathered_;  // by group, for its parameters; 0: they have arrived
    int micro_step_ = 0;                          // backward passes since the last update
    int64_t step_targets_ = -1;                   // Batch::step_targets of the latest batch
    event_t copied_[2] = {};  // recorded after the copies of the last two batches to the device
    int uploads_ = 0;
    // Numbers of the steps in flight (at most two) and of the one before them, at index step mod 3.
    struct HostNumbers {
        double lr, gradient_weight;  // copied to the device; laid out as in OptimizerState
        // Copied to the host: loss, squared norm, stop, writing. The flags are first copied to the device;
        // with unread, all but the last become NaN, and so do the sums over the processes.
        float sums[4];
        double targets;  // the step's targets that are not ignored; 0 is possible
    };
    static constexpr size_t kept_steps = 3;
    HostNumbers* numbers_ = nullptr;  // (3), pinned memory
    event_t ended_[kept_steps] = {};
    std::string vetoed_[kept_steps];
    size_t begun_ = 0, finished_ = 0;   // updates
    AttentionShape shape_{0, 0, 0, 0};  // shape of the last forward
};

extern template class GPT2<float>;
extern template class GPT2<bfloat16>;
