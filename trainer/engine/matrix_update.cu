#include "kernels/global_norm.cuh"
#include "kernels/muon.cuh"
#include "kernels/random.cuh"
#include "trainer/engine/matrix_update.h"

template <class T>
MatrixUpdate<T>::MatrixUpdate(const TensorTable& table, Context& context, Memory& memory)
    : context_(context) {
    for (const Tensor& t : table.tensors()) {
        if (!table.updates_whole(t)) continue;
        const auto found = std::ranges::find_if(shapes_, [&](const Shape& s) { return s.is_of(t); });
        if (found != shapes_.end()) found->matrices += t.matrices;
        else shapes_.push_back({t.rows_of_matrix(), t.shape[1], t.matrices});
    }
    if (shapes_.empty() || !context.options.training) return;
    size_t most = 0, batch = 0, square = 0;
    for (const Shape& shape : shapes_) {
        most = std::max(most, shape.elements());
        batch = std::max(batch, shape.batch() * shape.elements());
        square = std::max(square, shape.batch() * shape.square());
    }
    memory.workspace.reserve(u_, most);
    memory.workspace.reserve(x_, batch);
    memory.workspace.reserve(scratch_.other, batch);
    memory.workspace.reserve(scratch_.gram, square);
    memory.workspace.reserve(scratch_.polynomial, square);
    memory.workspace.reserve(norm_squared_, 1);
    memory.workspace.reserve(partial_norms_, global_norm_scratch(most));
}

template <class T>
std::vector<typename MatrixUpdate<T>::Values> MatrixUpdate<T>::matrices_of(
    const Shape& shape, const std::vector<Values>& tensors) {
    std::vector<Values> matrices;
    for (const Values& t : tensors) {
        for (size_t at = 0; shape.is_of(*t.tensor) && at < t.tensor->elements; at += shape.elements())
            matrices.push_back({t.params + at, t.masters + at, t.momentum + at, t.gradients + at, t.tensor});
    }
    return matrices;
}

template <class T>
void MatrixUpdate<T>::normalise(size_t elements, size_t i) {
    context_.operation("normalise momentum", cost::muon_normalise<T>(elements));
    global_norm_squared(norm_squared_, partial_norms_, u_, elements, context_.stream);
    muon_normalise(x_ + i * elements, u_, elements, norm_squared_, context_.stream);
}

template <class T>
const T* MatrixUpdate<T>::orthogonal(const Shape& shape, size_t batch) {
    context_.operation("orthogonalise", cost::orthogonalise<T>(batch, shape.rows, shape.columns));
    return orthogonalise(*context_.gemm, x_, scratch_, batch, shape.rows, shape.columns, context_.stream);
}

template <class T>
void MatrixUpdate<T>::run(const std::vector<Values>& tensors, const OptimizerOptions& options,
                          const OptimizerState* state) {
    for (const Shape& shape : shapes_) {
        const std::vector<Values> of_shape = matrices_of(shape, tensors);
        const size_t n = shape.elements();
        const double factor = muon_factor(options.muon_scale, shape.rows, shape.columns);
        for (size_t begin = 0; begin < of_shape.size(); begin += shape.batch()) {
            const Values* const matrices = of_shape.data() + begin;
            const size_t batch = std::min(shape.batch(), of_shape.size() - begin);
            for (size_t i = 0; i < batch; i++) {
                context_.operation("momentum", cost::pass<float>(4, n));
                muon_momentum(u_, matrices[i].momentum, matrices[i].gradients, n, options.momentum, state,
                              context_.stream);
                normalise(n, i);
            }
            const T* const x = orthogonal(shape, batch);
            for (size_t i = 0; i < batch; i++) {
                context_.operation("optimizer", cost::muon_update<T>(n));
                muon_update(matrices[i].params, matrices[i].masters, x + i * n, n, factor,
                            options.weight_decay, state, context_.stream);
            }
        }
    }
}

template <class T>
void MatrixUpdate<T>::rehearse() {
    for (const Shape& shape : shapes_) {
        normal_init(u_, shape.elements(), 0.0f, 1.0f, context_.options.seed, 0, context_.stream);
        for (size_t i = 0; i < shape.batch(); i++) normalise(shape.elements(), i);
        orthogonal(shape, shape.batch());
    }
}

template <class T>
size_t MatrixUpdate<T>::gemm_workspace_bytes() const {
    size_t bytes = 0;
    for (const Shape& shape : shapes_)
        bytes = std::max(bytes, orthogonalise_workspace_bytes<T>(shape.rows, shape.columns));
    return bytes;
}

template class MatrixUpdate<float>;
template class MatrixUpdate<bfloat16>;
