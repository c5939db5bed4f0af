// family.h: what the engine asks of an architecture. A family knows its tensors and its blocks; the engine
// knows batches, the head's loss, sums over processes, updates and the state from which training resumes.
//   A micro-step calls embed, block_forward of each block, the engine's own head with the loss, then
//   head_norm_backward, block_backward of each block from the last to the first, and embed_backward.
#pragma once
#include <string>

#include "trainer/engine/arena.h"
#include "trainer/engine/context.h"
#include "trainer/engine/generation.h"
#include "trainer/engine/model_config.h"
#include "trainer/engine/parameters.h"

// logits (N, Vp) = input (N, C) weight (Vp, C)^T, then cap tanh(logits / cap) unless cap is 0
template <class T>
struct Head {
    const T* input;
    T* dinput;  // receives the gradient of input
    TensorId weight;
    float cap = 0;
};

template <class T>
class Family {
public:
    virtual ~Family() = default;

    virtual const ModelConfig& config() const = 0;
    virtual void add_rows(TensorTable& table) = 0;  // those of its tensors
    // Reserves what a micro-step of N = B*T tokens needs. Called once, when context and parameters are known.
    virtual void reserve(Arena& activations, Arena& workspace) = 0;
    virtual void allocated() {}  // called once, when the reserved pointers are set
    virtual Head<T> head() const = 0;

    virtual void embed() = 0;
    virtual void block_forward(int l) = 0;
    // From the gradient of the head's input to that of the last block's output.
    virtual void head_norm_backward() = 0;
    virtual void block_backward(int l) = 0;
    virtual void embed_backward() = 0;

    // For tests: an activation of the last forward, by name, in block l (-1: outside the blocks).
    struct Activation {
        const T* values;
        size_t elements;
    };
    virtual Activation activation(const std::string& name, int l) const = 0;

    // The table in this layout; called once, before everything else.
    TensorTable make_table(const TableLayout& layout) {
        TensorTable table(config().L, layout);
        add_rows(table);
        table.complete();
        return table;
    }
    // Before reserve(): what the operations work on, to train or evaluate, to generate, or both by turns.
    void attach(Context& context, const TensorTable& table, Parameters<T>* parameters,
                GenerationState<T>* generation) {
        context_ = &context, table_ = &table, parameters_ = parameters, generation_ = generation;
    }

protected:
    size_t rows() const { return context_->rows(); }
    stream_t stream() const { return context_->stream; }
    const ModelOptions& options() const { return context_->options; }
    // Waits until the tensor's group has arrived, if ZeRO-1 still sends it.
    T* param(TensorId id) { return generates() ? generation_->weights[id].values : parameters_->value(id); }
    float* grad(TensorId id) const { return parameters_->gradient(id); }
    bool generates() const { return generation_ && generation_->active; }

    Context* context_ = nullptr;
    const TensorTable* table_ = nullptr;
    Parameters<T>* parameters_ = nullptr;
    GenerationState<T>* generation_ = nullptr;
};
