// model.h: trains any table of tensors. Forward, backward and update are lists of kernel calls on
// preallocated flat buffers; the blocks are those of a family (family.h).
//   model.cuh: a training step            model_memory.cuh: the buffers
//   model_evaluation.cuh: forward passes outside of training steps
//   T is the type of parameters and activations: float, or bfloat16 with fp32 master weights. Parameter
//   gradients, optimizer state, statistics and losses are fp32 in both cases.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/batch.h"
#include "trainer/engine/arena.h"
#include "trainer/engine/context.h"
#include "trainer/engine/decoder.h"
#include "trainer/engine/family.h"
#include "trainer/engine/gradients.h"
#include "trainer/engine/parameter_update.h"
#include "trainer/engine/parameters.h"
#include "trainer/engine/step_graphs.h"
#include "trainer/engine/steps_in_flight.h"

template <class T>
class Model {
public:
    // Plans the memory and allocates nothing. UsageError for impossible shapes (the family's, T > context,
    // B < 1).
    Model(std::unique_ptr<Family<T>> family, const ModelOptions& options);
    ~Model();
    Model(const Model&) = delete;

    const ModelConfig& config() const { return family_->config(); }
    const TensorTable& table() const { return table_; }
    const ModelOptions& options() const { return context_.options; }
    MemoryPlan memory_plan() const { return memory_.plan(); }

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
    StepResult finish_update() { return steps_.finish(); }
    StepResult update(const OptimizerOptions& options, const Veto& veto = {}) {
        begin_update(options, {}, veto);
        return finish_update();
    }
    // Call before the step's first batch is requested. StepResult::ms counts from here if no other step
    // is in flight, and --profile measures from here.
    void begin_step();
    size_t updates_in_flight() const { return steps_.count(); }

    // Call before the first step: runs forward and backward on one batch with the same operations as a
    // step, but without communication, so that matmuls can be tuned. Gradients are undefined afterwards;
    // nothing else changes.
    void rehearse(const Batch& batch);
    Gemm& gemm() { return *context_.gemm; }

    // Sum of the losses of the batch's targets that are not ignored. Does not change the step's loss or
    // gradients.
    double evaluate(const Batch& batch);
    // Generates with the parameters as they are now and changes no state of training. Call it again after
    // each update, because it waits for parameters that other processes send. Error without
    // ModelOptions::generated_tokens.
    Decoder<T>& decoder();

    // fp32 values of a tensor: of its master, or of the rounded parameter if only a shard of the masters
    // is kept. Padding is included.
    std::vector<float> parameter(const Tensor& tensor) { return parameters_.read(tensor); }
    void set_parameter(const Tensor& tensor, std::span<const float> values) {
        parameters_.write(tensor, values);
    }
    std::vector<float> gradient(const Tensor& tensor) const {
        return to_host(gradients_.flat() + tensor.offset, tensor.elements, context_.stream);
    }
    // Collective. Squared norms of the last step's gradients, before clipping, and of the masters as they
    // are now. Reads both once; bound by memory bandwidth.
    SquaredNorms squared_norms() { return parameters_.squared_norms(steps_.gradient_weight()); }

    // The state from which training resumes, as flat host buffers. They have table().elements() floats at
    // the table's offsets, gaps included. Only read_optimizer gives state_elements(i) floats for buffer i:
    // with ZeRO-1, the parts that this process keeps (FlatRange::offset_in).

    // Collective; call before the next forward. May overwrite the gradients. With host = nullptr this
    // process only takes part.
    void read_masters(float* host) { parameters_.read_masters(host); }
    // Sets the parameters too: they are the masters, rounded.
    void write_masters(const float* host) { parameters_.write_masters(host); }
    // Names as in torch: exp_avg, exp_avg_sq; see optimizer.h.
    std::vector<std::string> optimizer_buffers() const { return update_.buffers(); }
    size_t state_elements(size_t buffer = 0) const { return update_.state_elements(buffer); }
    void read_optimizer(const std::string& buffer, float* host) const { update_.read(buffer, host); }
    void write_optimizer(const std::string& buffer, const float* host) { update_.write(buffer, host); }
    int optimizer_step() const { return update_.step(); }  // updates that changed the parameters; Adam's t
    void set_optimizer_step(int step) { update_.set_step(step); }

    Profile& profile() { return context_.profile; }  // timings of forward, backward and update
    // Checksum of the parameters, over every bit; it must be equal on all processes. Reads them once.
    uint64_t checksum() { return parameters_.checksum(); }

    // For tests: an activation of the last forward: "logits" (needs head_chunks = 1; they hold gradients
    // after forward), or one of the family's. Error for logits in chunks and for an unknown name.
    std::vector<float> activation(const std::string& name, int layer = -1) const;
    std::vector<float> losses() const;  // (B*T), from the last forward

private:
    // model.cuh
    void upload(const Batch& batch);
    void forward_to_head();
    void forward_pass();
    void backward_pass(bool last_micro_step);
    void head_chunks(bool training);
    void head_forward(size_t begin, size_t count, bool training);
    void head_backward(size_t begin, size_t count);
    void sum_over_ranks(StepsInFlight::Step& step, const StepFlags& flags);
    void update_parameters(StepsInFlight::Step& step, const OptimizerOptions& options);
    size_t rows() const { return context_.rows(); }
    size_t channels() const { return table_[family_->head().weight].shape[1]; }
    size_t Vp() const { return table_[family_->head().weight].shape[0]; }
    // the batch has the shape for which graphs are captured
    bool whole_batch() const { return context_.B == options().B && context_.T == options().T; }
    bool head_in_chunks() const { return options().head_chunks > 1; }
    size_t head_rows() const;  // rows of a chunk of the head; the last chunk may have fewer
    void operation(const char* name, const Cost& cost = {}) { context_.operation(name, cost); }
    // Runs a part of the step as a graph or, while the profile measures its operations, kernel by kernel.
    template <class Work>
    void part(StepGraphs::Part which, const Work& work);

    // model_memory.cuh
    void check_options() const;
    void reserve();
    size_t gemm_workspace_bytes() const;

    Context context_;
    const std::unique_ptr<Family<T>> family_;
    const TensorTable table_;
    Memory memory_;
    std::optional<Decoder<T>> decoder_;
    Gradients gradients_;
    Parameters<T> parameters_;
    ParameterUpdate<T> update_;

    T* logits_ = nullptr;
    float *losses_ = nullptr, *eval_loss_ = nullptr;
    StepSums* step_sums_ = nullptr;  // on the device
    std::byte* gemm_workspace_ = nullptr;
    size_t gemm_workspace_bytes_ = 0;

    StepGraphs graphs_;
    OptimizerOptions captured_{};  // the options that the update's graph was captured with, lr excepted
    StepsInFlight steps_;
    int64_t step_targets_ = -1;  // Batch::step_targets of the latest batch
    event_t copied_[2] = {};     // recorded after the copies of the last two batches to the device
    int uploads_ = 0;
};

extern template class Model<float>;
extern template class Model<bfloat16>;
