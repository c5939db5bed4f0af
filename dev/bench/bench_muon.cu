// bench_muon.cu: Muon's update of one matrix, and the products in it by themselves.
#include "bench.h"
#include "kernels/gemm/orthogonalise.h"
#include "kernels/global_norm.cuh"
#include "kernels/muon.cuh"

namespace {

template <class T>
struct Matrix {
    const size_t rows, columns, n = rows * columns,
                                square = std::min(rows, columns) * std::min(rows, columns);
    simt::DeviceBuffer<T> x = random_buffer<T>(n, 0.01f), other = random_buffer<T>(n, 0.01f),
                          gram = random_buffer<T>(square, 0.01f),
                          polynomial = random_buffer<T>(square, 0.01f);
    simt::DeviceBuffer<char> workspace{orthogonalise_workspace_bytes<T>(rows, columns)};
    Gemm gemm{{}};

    explicit Matrix(BenchRun& run) : rows(run["rows"]), columns(run["columns"]) {
        gemm.use_workspace(workspace.data(), workspace.bytes());
    }
    Cost cost() const { return cost::orthogonalise<T>(rows, columns); }
};

template <class T>
void bench_update(BenchRun& run) {
    Matrix<T> m(run);
    constexpr bool copies = !std::is_same_v<T, float>;
    simt::DeviceBuffer<float> master = random_buffer<float>(m.n), mean(m.n), u(m.n),
                              grads = random_buffer<float>(m.n), norm(1), partial(global_norm_scratch(m.n));
    simt::DeviceBuffer<T> params(copies ? m.n : 0);
    simt::DeviceBuffer<OptimizerState> state(1);
    simt::fill_zero(mean.data(), mean.bytes(), nullptr);
    simt::fill_zero(state.data(), state.bytes(), nullptr);
    T* const written = [&] {
        if constexpr (copies) return params.data();
        else return master.data();
    }();
    global_norm_squared(norm.data(), partial.data(), grads.data(), m.n, nullptr);
    optimizer_prepare(state.data(), norm.data(), 1.0f, 0.9, 0.95, nullptr);
    run.measure(m.cost(), [&](stream_t stream) {
        muon_momentum(u.data(), mean.data(), grads.data(), m.n, 0.95, state.data(), stream);
        global_norm_squared(norm.data(), partial.data(), u.data(), m.n, stream);
        muon_normalise(m.x.data(), u.data(), m.n, norm.data(), stream);
        const T* const x =
            orthogonalise<T>(m.gemm, m.x.data(), {m.other.data(), m.gram.data(), m.polynomial.data()}, m.rows,
                             m.columns, stream);
        muon_update(written, master.data(), x, m.n, 1.0, 0.0, state.data(), stream);
    });
}

// Its fifteen products, without what is added to them.
template <class T>
void bench_products(BenchRun& run) {
    Matrix<T> m(run);
    const bool tall = m.rows > m.columns;
    const size_t n = std::min(m.rows, m.columns), k = std::max(m.rows, m.columns);
    T *const x = m.x.data(), *const to = m.other.data(), *const gram = m.gram.data(),
             *const polynomial = m.polynomial.data();
    run.measure(m.cost(), [&](stream_t stream) {
        for (int step = 0; step < orthogonalise_steps; step++) {
            m.gemm.product(gram, {x, tall}, {x, !tall}, n, n, k, stream);
            m.gemm.product(polynomial, {gram}, {gram}, n, n, n, stream);
            if (tall) m.gemm.product(to, {x}, {polynomial}, m.rows, m.columns, n, stream);
            else m.gemm.product(to, {polynomial}, {x}, m.rows, m.columns, n, stream);
        }
    });
}

}  // namespace

int main(int argc, char** argv) {
    Bench bench("Muon's update of a matrix (rows, columns); --preset has the matrices of a block",
                {{"rows", {768, 3072}, "rows"}, {"columns", {768}, "columns"}}, [](const BenchModel& m) {
                    return BenchShapes{{{"rows", m.C()}, {"columns", m.C()}},
                                       {{"rows", 4 * m.C()}, {"columns", m.C()}},
                                       {{"rows", m.C()}, {"columns", 4 * m.C()}}};
                });
    bench.add("muon", BENCH_TYPES(bench_update));
    bench.add("muon_products", BENCH_TYPES(bench_products));
    return bench.main(argc, argv);
}
