// parameter_update.cuh: the optimizers' kernels, range by range
#pragma once
#include <cstddef>

#include "kernels/adamw.cuh"
#include "kernels/optimizer_state.cuh"
#include "kernels/rmsprop.cuh"
#include "kernels/sgd.cuh"
#include "trainer/engine/parameter_update.h"

template <class T>
ParameterUpdate<T>::ParameterUpdate(const TensorTable& table, Context& context, Gradients& gradients,
                                    Parameters<T>& parameters, Memory& memory)
    : table_(table),
      context_(context),
      gradients_(gradients),
      parameters_(parameters),
      matrices_(table, context, memory) {
    if (!context.options.training) return;
    for (size_t i = 0; i < buffers().size(); i++) memory.optimizer.reserve(buffers_[i], state_elements(i));
    memory.optimizer.reserve(state_, 1);
}

template <class T>
void ParameterUpdate<T>::clear() {
    for (size_t i = 0; i < 2; i++) {
        if (buffers_[i]) simt::fill_zero(buffers_[i], state_elements(i) * sizeof(float), context_.stream);
    }
    if (state_) simt::fill_zero(state_, sizeof(OptimizerState), context_.stream);
}

template <class T>
void ParameterUpdate<T>::copy_rates(const double (&rates)[2]) {
    static_assert(offsetof(OptimizerState, gradient_weight) == offsetof(OptimizerState, lr) + sizeof(double));
    context_.operation("learning rate to the device");
    simt::copy_to_device(&state_->lr, rates, sizeof(rates), context_.stream);
}

template <class T>
void ParameterUpdate<T>::run(const OptimizerOptions& options, const float* norm_squared) {
    context_.operation("clip and count");
    optimizer_prepare(state_, norm_squared, static_cast<float>(options.clip), options.beta1, options.beta2,
                      context_.stream);
    Matrices matrices;
    for (const FlatRange& r : gradients_.updated()) update(r, options, matrices);
    matrices_.run(matrices, options, state_);
}

template <class T>
void ParameterUpdate<T>::update(const FlatRange& r, const OptimizerOptions& o, Matrices& matrices) {
    T* const params = parameters_.values(r);
    float* const masters = parameters_.masters(r);
    float* const grads = gradients_.flat() + r.offset;
    float* const first = buffers_[0] ? buffers_[0] + r.state_offset : nullptr;
    const Tensor& tensor = table_[r.tensor];
    if (table_.updates_whole(tensor)) return matrices.push_back({params, masters, first, grads, &tensor});
    float* const second = buffers_[1] ? buffers_[1] + r.second_offset : nullptr;
    const double decay = r.weight_decay ? o.weight_decay : 0.0;
    const Optimizer optimizer = context_.options.optimizer;
    const size_t buffers = (first ? 1u : 0u) + (second ? 1u : 0u);
    context_.operation("optimizer",
                       cost::update(r.elements, buffers, std::is_same_v<T, float> ? 0 : sizeof(T)));
    switch (optimizer) {
        case Optimizer::adamw:
        case Optimizer::adam:
        case Optimizer::muon:  // of all but matrices
            adamw_update(params, masters, first, second, grads, r.elements,
                         {.beta1 = o.beta1,
                          .beta2 = o.beta2,
                          .eps = o.eps,
                          .weight_decay = optimizer == Optimizer::muon ? 0 : decay,
                          .decoupled = optimizer != Optimizer::adam,
                          .rate = o.rate(tensor.role)},
                         state_, context_.stream);
            break;
        case Optimizer::sgd:
            sgd_update(params, masters, first, grads, r.elements,
                       {.momentum = o.momentum, .weight_decay = decay, .nesterov = o.nesterov}, state_,
                       context_.stream);
            break;
        case Optimizer::rmsprop:
            rmsprop_update(params, masters, first, second, grads, r.elements,
                           {.alpha = o.beta2, .eps = o.eps, .momentum = o.momentum, .weight_decay = decay},
                           state_, context_.stream);
            break;
    }
}
