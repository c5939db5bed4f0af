// parameter_update.h: the optimizer's state, and its update of all parameters that this process updates.
#pragma once
#include <string>
#include <vector>

#include "trainer/engine/arena.h"
#include "trainer/engine/context.h"
#include "trainer/engine/gradients.h"
#include "trainer/engine/matrix_update.h"
#include "trainer/engine/optimizer.h"
#include "trainer/engine/parameters.h"

struct OptimizerState;  // kernels/optimizer_state.cuh

template <class T>
class ParameterUpdate {
public:
    ParameterUpdate(const TensorTable& table, Context& context, Gradients& gradients,
                    Parameters<T>& parameters, Memory& memory);

    void clear();  // the state before the first step
    MatrixUpdate<T>& matrices() { return matrices_; }
    const MatrixUpdate<T>& matrices() const { return matrices_; }

    // Copies what changes from step to step: {learning rate, gradient weight}, in pinned memory.
    void copy_rates(const double (&rates)[2]);
    // Clips by the squared norm, counts the step, and updates. norm_squared is on the device; a norm that is
    // not finite changes nothing.
    void run(const OptimizerOptions& options, const float* norm_squared);

    // The functions below are those of Model.
    std::vector<std::string> buffers() const;
    size_t state_elements(size_t buffer) const;
    void read(const std::string& buffer, float* host) const;
    void write(const std::string& buffer, const float* host);
    int step() const;
    void set_step(int step);

private:
    using Matrices = std::vector<typename MatrixUpdate<T>::Values>;
    // A matrix that is updated as a whole is put among `matrices` instead.
    void update(const FlatRange& range, const OptimizerOptions& options, Matrices& matrices);
    size_t buffer(const std::string& name) const;

    const TensorTable& table_;
    Context& context_;
    Gradients& gradients_;
    Parameters<T>& parameters_;
    float* buffers_[2] = {};  // one for each of buffers()
    OptimizerState* state_ = nullptr;
    MatrixUpdate<T> matrices_;
};

extern template class ParameterUpdate<float>;
extern template class ParameterUpdate<bfloat16>;
