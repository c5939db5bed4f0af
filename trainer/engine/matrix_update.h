// matrix_update.h: Muon's update of whole matrices (kernels/muon.cuh), one after the other in one scratch.
#pragma once
#include "kernels/gemm/orthogonalise.h"
#include "trainer/engine/arena.h"
#include "trainer/engine/context.h"
#include "trainer/engine/tensor_table.h"

struct OptimizerState;  // kernels/optimizer_state.cuh

template <class T>
class MatrixUpdate {
public:
    // Reserves scratch if the optimizer is Muon.
    MatrixUpdate(const TensorTable& table, Context& context, Memory& memory);

    // A tensor's parameters, masters, momentum and gradients.
    struct Values {
        T* params;
        float *masters, *momentum;
        const float* gradients;
    };
    void run(const Values& values, const Tensor& tensor, const OptimizerOptions& options,
             const OptimizerState* state);
    // Runs the products of every shape on random numbers, so that they can be tuned.
    void rehearse();
    size_t gemm_workspace_bytes() const;

private:
    // From the momentum in u_ to the orthogonal matrix, whose place is returned.
    const T* direction(size_t rows, size_t columns);

    const TensorTable& table_;
    Context& context_;
    T* x_ = nullptr;
    OrthogonaliseScratch<T> scratch_ = {};
    float *u_ = nullptr, *norm_squared_ = nullptr, *partial_norms_ = nullptr;
};

extern template class MatrixUpdate<float>;
extern template class MatrixUpdate<bfloat16>;
