// bench_muon.cu: Muon's update of a batch of matrices, and the products in it by themselves.
#include "bench.h"
#include "kernels/gemm/orthogonalise.h"
#include "kernels/global_norm.cuh"
#include "kernels/muon.cuh"

namespace {

template <class T>
struct Matrices {
    const size_t batch, rows, columns, n = rows * columns,
                                       square = std::min(rows, columns) * std::min(rows, columns);
    simt::DeviceBuffer<T> x = random_buffer<T>(batch * n, 0.01f), other = random_buffer<T>(batch * n, 0.01f),
                          gram = random_buffer<T>(batch * square, 0.01f),
                          polynomial = random_buffer<T>(batch * square, 0.01f);
    simt::DeviceBuffer<char> workspace{orthogonalise_workspace_bytes<T>(rows, columns)};
    Gemm gemm{{}};

    explicit Matrices(BenchRun& run) : batch(run["batch"]), rows(run["rows"]), columns(run["columns"]) {
        gemm.use_workspace(workspace.data(), workspace.bytes());
    }
    Cost cost() const { return cost::orthogonalise<T>(batch, rows, columns); }
};

template <class T>
void bench_update(BenchRun& run) {
    Matrices<T> m(run);
    constexpr bool copies = !std::is_same_v<T, float>;
    const size_t all = m.batch * m.n;
    simt::DeviceBuffer<float> master = random_buffer<float>(all), mean(all), u(m.n),
                              grads = random_buffer<float>(all), norm(1), partial(global_norm_scratch(m.n));
    simt::DeviceBuffer<T> params(copies ? all : 0);
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
        for (size_t at = 0; at < all; at += m.n) {
            muon_momentum(u.data(), mean.data() + at, grads.data() + at, m.n, 0.95, state.data(), stream);
            global_norm_squared(norm.data(), partial.data(), u.data(), m.n, stream);
            muon_normalise(m.x.data() + at, u.data(), m.n, norm.data(), stream);
        }
        const T* const x =
            orthogonalise<T>(m.gemm, m.x.data(), {m.other.data(), m.gram.data(), m.polynomial.data()},
                             m.batch, m.rows, m.columns, stream);
        for (size_t at = 0; at < all; at += m.n)
            muon_update(written + at, master.data() + at, x + at, m.n, 1.0, 0.0, state.data(), stream);
    });
}

// The fifteen products of an update, without what is added to them.
template <class T>
void bench_products(BenchRun& run) {
    Matrices<T> m(run);
    const bool tall = m.rows > m.columns;
    const size_t n = std::min(m.rows, m.columns), k = std::max(m.rows, m.columns);
    T *const x = m.x.data(), *const to = m.other.data(), *const gram = m.gram.data(),
             *const polynomial = m.polynomial.data();
    run.measure(m.cost(), [&](stream_t stream) {
        const Gemm::Product gram_of_x{.M = n, .N = n, .K = k, .batch = m.batch, .symmetric = true},
            square{.M = n, .N = n, .K = n, .batch = m.batch, .symmetric = true},
            next_x{.M = m.rows, .N = m.columns, .K = n, .batch = m.batch};
        for (int step = 0; step < orthogonalise_steps; step++) {
            m.gemm.product(gram_of_x, gram, {x, tall}, {x, !tall}, stream);
            m.gemm.product(square, polynomial, {gram}, {gram}, stream);
            if (tall) m.gemm.product(next_x, to, {x}, {polynomial}, stream);
            else m.gemm.product(next_x, to, {polynomial}, {x}, stream);
        }
    });
}

}  // namespace

int main(int argc, char** argv) {
    Bench bench("Muon's update of matrices (rows, columns); --preset has those of a block",
                {{"rows", {768, 3072}, "rows"},
                 {"columns", {768}, "columns"},
                 {"batch", {1}, "matrices of this shape"}},
                [](const BenchModel& m) {
                    return BenchShapes{{{"rows", m.C()}, {"columns", m.C()}},
                                       {{"rows", 4 * m.C()}, {"columns", m.C()}},
                                       {{"rows", m.C()}, {"columns", 4 * m.C()}}};
                });
    bench.add("muon", BENCH_TYPES(bench_update));
    bench.add("muon_products", BENCH_TYPES(bench_products));
    return bench.main(argc, argv);
}
