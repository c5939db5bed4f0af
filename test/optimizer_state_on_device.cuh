// optimizer_state_on_device.cuh: the optimizer's state, which lives in device memory, for the tests of its
// kernels.
#pragma once
#include "common.cuh"
#include "kernels/optimizer_state.cuh"

inline OptimizerState download_state(const simt::DeviceBuffer<OptimizerState>& state) {
    OptimizerState value;
    simt::copy_to_host(&value, state.data(), sizeof(value), nullptr);
    simt::stream_synchronize(nullptr);
    return value;
}
inline simt::DeviceBuffer<OptimizerState> state_after(int steps, double lr) {
    OptimizerState value{};
    value.lr = lr;
    value.step = steps;
    simt::DeviceBuffer<OptimizerState> state(1);
    simt::copy_to_device(state.data(), &value, sizeof(value), nullptr);
    simt::stream_synchronize(nullptr);
    return state;
}
inline void set_learning_rate(const simt::DeviceBuffer<OptimizerState>& state, double lr) {
    simt::copy_to_device(&state.data()->lr, &lr, sizeof(lr), nullptr);
    simt::stream_synchronize(nullptr);
}
