#include <set>
#include <utility>

#include "kernels/global_norm.cuh"
#include "kernels/muon.cuh"
#include "kernels/random.cuh"
#include "trainer/engine/matrix_update.h"

namespace {

// Rows and columns of every matrix that Muon updates, each shape once.
std::set<std::pair<size_t, size_t>> shapes_of(const TensorTable& table) {
    std::set<std::pair<size_t, size_t>> shapes;
    for (const Tensor& t : table.tensors()) {
        if (table.updates_whole(t)) shapes.emplace(t.rows_of_matrix(), t.shape[1]);
    }
    return shapes;
}

}  // namespace

template <class T>
MatrixUpdate<T>::MatrixUpdate(const TensorTable& table, Context& context, Memory& memory)
    : table_(table), context_(context) {
    size_t most = 0, square = 0;
    for (const auto& [rows, columns] : shapes_of(table)) {
        most = std::max(most, rows * columns);
        square = std::max(square, std::min(rows, columns) * std::min(rows, columns));
    }
    if (most == 0 || !context.options.training) return;
    memory.workspace.reserve(u_, most);
    memory.workspace.reserve(x_, most);
    memory.workspace.reserve(scratch_.other, most);
    memory.workspace.reserve(scratch_.gram, square);
    memory.workspace.reserve(scratch_.polynomial, square);
    memory.workspace.reserve(norm_squared_, 1);
    memory.workspace.reserve(partial_norms_, global_norm_scratch(most));
}

template <class T>
const T* MatrixUpdate<T>::direction(size_t rows, size_t columns) {
    const size_t n = rows * columns;
    context_.operation("normalise momentum", cost::muon_normalise<T>(n));
    global_norm_squared(norm_squared_, partial_norms_, u_, n, context_.stream);
    muon_normalise(x_, u_, n, norm_squared_, context_.stream);
    context_.operation("orthogonalise", cost::orthogonalise<T>(rows, columns));
    return orthogonalise(*context_.gemm, x_, scratch_, rows, columns, context_.stream);
}

template <class T>
void MatrixUpdate<T>::run(const Values& values, const Tensor& tensor, const OptimizerOptions& options,
                          const OptimizerState* state) {
    const size_t rows = tensor.rows_of_matrix(), columns = tensor.shape[1], n = rows * columns;
    const double factor = muon_factor(options.muon_scale, rows, columns);
    for (size_t at = 0; at < tensor.elements; at += n) {
        context_.operation("momentum", cost::pass<float>(4, n));
        muon_momentum(u_, values.momentum + at, values.gradients + at, n, options.momentum, state,
                      context_.stream);
        const T* const x = direction(rows, columns);
        context_.operation("optimizer", cost::muon_update<T>(n));
        muon_update(values.params + at, values.masters + at, x, n, factor, options.weight_decay, state,
                    context_.stream);
    }
}

template <class T>
void MatrixUpdate<T>::rehearse() {
    for (const auto& [rows, columns] : shapes_of(table_)) {
        normal_init(u_, rows * columns, 0.0f, 1.0f, context_.options.seed, 0, context_.stream);
        direction(rows, columns);
    }
}

template <class T>
size_t MatrixUpdate<T>::gemm_workspace_bytes() const {
    size_t bytes = 0;
    for (const auto& [rows, columns] : shapes_of(table_))
        bytes = std::max(bytes, orthogonalise_workspace_bytes<T>(rows, columns));
    return bytes;
}

template class MatrixUpdate<float>;
template class MatrixUpdate<bfloat16>;
