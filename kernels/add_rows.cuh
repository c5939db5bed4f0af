// add_rows.cuh: out (columns) += the sum over the rows of inp (rows, columns), all fp32
//   The second stage of sums over rows: it adds up the partial sums of the blocks of the first stage.
//   There are one to three outputs; inp is then (rows, outputs, columns).
//   Deterministic: the order of the additions depends on the shape alone.
#pragma once
#include "kernels/rows_ahead.cuh"

struct AddRowsOutputs {
    float *first, *second = nullptr, *third = nullptr;
    int count() const { return third ? 3 : second ? 2 : 1; }
};

// blockIdx.y selects the output.
// GPU: a block adds 32 columns; each of its warps adds every 16th row, then the warps' sums are added in
// order. CPU: a thread adds N columns, row by row.
template <class W>
constexpr int add_rows_warps = W::threads == 1 ? 1 : 16;

template <class W, int N>
__global__ void add_rows_kernel(AddRowsOutputs outputs, const float* inp, size_t rows, size_t columns) {
    constexpr int warps = add_rows_warps<W>;
    const int warp = static_cast<int>(threadIdx.x) / simt::warp_size,
              lane = static_cast<int>(threadIdx.x) % simt::warp_size;
    const size_t column = (static_cast<size_t>(blockIdx.x) * simt::warp_size + lane) * N,
                 row_length = gridDim.y * columns;
    float* out = (blockIdx.y == 0   ? outputs.first
                  : blockIdx.y == 1 ? outputs.second
                                    : outputs.third) +
                 column;
    inp += blockIdx.y * columns + column;

    Vec<float, N> sums = simt::broadcast<N>(0.0f);
    const auto at = [&](size_t row) INLINE { return inp + row * row_length; };
    add_rows_ahead<W>(sums, warp, column < columns ? rows : 0, warps, at);
    if constexpr (warps > 1) {
        simt::SharedMemory shared;
        float* of_warp = shared.take<float>(warps * simt::warp_size);
        of_warp[threadIdx.x] = sums[0];
        __syncthreads();
        sums[0] = 0.0f;
        for (int other = 0; warp == 0 && other < warps; other++)
            sums[0] += of_warp[other * simt::warp_size + lane];
    }
    if (warp == 0 && column < columns) {
        add(sums, load<N>(out));
        store(out, sums);
    }
}

// Reads rows * outputs * columns floats, mostly from the L2 cache; bound by its latency.
template <class W = simt::NativeWidth<32>>
void add_rows(AddRowsOutputs outputs, const float* inp, size_t rows, size_t columns, stream_t stream) {
    // GPU: neighbouring threads add neighbouring floats; CPU: a thread adds a vector.
    using Columns = std::conditional_t<W::threads == 1, W, simt::Width<W::threads, sizeof(float)>>;
    simt::for_vector_length<Columns, float>(columns, [&](auto n) {
        constexpr unsigned block = simt::warp_size * add_rows_warps<W>;
        const dim3 grid(static_cast<unsigned>(ceil_div<size_t>(columns, simt::warp_size * n())),
                        static_cast<unsigned>(outputs.count()));
        const size_t shared = add_rows_warps<W> > 1 ? simt::shared_size<float>(block) : 0;
        launch(add_rows_kernel<W, n()>, grid, block, shared, stream, outputs, inp, rows, columns);
    });
}
