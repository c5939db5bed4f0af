// optimizer_buffers.cuh: the optimizer's state, read and written for checkpoints
#pragma once
#include "kernels/optimizer_state.cuh"
#include "system/error.h"
#include "trainer/engine/parameter_update.h"

template <class T>
std::vector<std::string> ParameterUpdate<T>::buffers() const {
    return optimizer_buffer_names(context_.options.optimizer, context_.options.momentum);
}

template <class T>
size_t ParameterUpdate<T>::state_elements(size_t buffer) const {
    return table_.state_elements(buffer, context_.options.sharded());
}

template <class T>
size_t ParameterUpdate<T>::buffer(const std::string& name) const {
    if (!context_.options.training)
        throw Error("this model was allocated for evaluation only: it has no optimizer state");
    const std::vector<std::string> names = buffers();
    for (size_t i = 0; i < names.size(); i++) {
        if (names[i] == name) return i;
    }
    throw Error("the optimizer keeps no buffer called " + name);
}

template <class T>
void ParameterUpdate<T>::read(const std::string& name, float* host) const {
    const size_t i = buffer(name);
    simt::copy_to_host(host, buffers_[i], state_elements(i) * sizeof(float), context_.stream);
    simt::stream_synchronize(context_.stream);
}

template <class T>
void ParameterUpdate<T>::write(const std::string& name, const float* host) {
    const size_t i = buffer(name);
    for (const FlatRange& r : gradients_.updated()) {
        if (i == 1 && table_.updates_whole(table_[r.tensor])) continue;
        simt::copy_to_device(buffers_[i] + r.offset_in(i), host + r.offset, r.elements * sizeof(float),
                             context_.stream);
    }
    simt::stream_synchronize(context_.stream);
}

template <class T>
int ParameterUpdate<T>::step() const {
    OptimizerState state;
    simt::copy_to_host(&state, state_, sizeof(state), context_.stream);
    simt::stream_synchronize(context_.stream);
    return state.step;
}

template <class T>
void ParameterUpdate<T>::set_step(int step) {
    OptimizerState state = {};  // every update computes the other members
    state.step = step;
    simt::copy_to_device(state_, &state, sizeof(state), context_.stream);
    simt::stream_synchronize(context_.stream);
}
