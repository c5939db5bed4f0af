// matrix_update.h: Muon's update of whole matrices (kernels/muon.cuh), those of one shape in batches.
#pragma once
#include <algorithm>
#include <vector>

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

    // The parameters, masters, momentum and gradients of a tensor, or of one of its matrices.
    struct Values {
        T* params;
        float *masters, *momentum;
        const float* gradients;
        const Tensor* tensor;
    };
    void run(const std::vector<Values>& tensors, const OptimizerOptions& options,
             const OptimizerState* state);
    // Runs the products of every shape on random numbers, so that they can be tuned.
    void rehearse();
    size_t gemm_workspace_bytes() const;

private:
    struct Shape {
        size_t rows, columns, matrices;

        bool is_of(const Tensor& t) const { return rows == t.rows_of_matrix() && columns == t.shape[1]; }
        size_t elements() const { return rows * columns; }
        size_t square() const { return std::min(rows, columns) * std::min(rows, columns); }
        // Matrices of a batch: as many as keep a CPU's threads busy, while each of four buffers of scratch
        // has at most 16 MiB in fp32, or one matrix. A GPU launches a product for each matrix, and so gains
        // nothing. In checked builds the small models of tests have several batches too.
        size_t batch() const {
            constexpr size_t most_elements = simt::checked ? 8192 : size_t{1} << 22;
            return simt::is_gpu() ? 1 : std::clamp<size_t>(most_elements / elements(), 1, matrices);
        }
    };

    static std::vector<Values> matrices_of(const Shape& shape, const std::vector<Values>& tensors);
    // Divides the momentum in u_ by its norm; the result is the i-th matrix of the batch in x_.
    void normalise(size_t elements, size_t i);
    // Returns the place of the orthogonal matrices.
    const T* orthogonal(const Shape& shape, size_t batch);

    Context& context_;
    std::vector<Shape> shapes_;  // each with the number of matrices that the table has
    T* x_ = nullptr;
    OrthogonaliseScratch<T> scratch_ = {};
    float *u_ = nullptr, *norm_squared_ = nullptr, *partial_norms_ = nullptr;
};

extern template class MatrixUpdate<float>;
extern template class MatrixUpdate<bfloat16>;
