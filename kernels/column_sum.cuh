// column_sum.cuh: out (columns) fp32 += the sum over the rows of inp (rows, columns)
//   This is the gradient of a bias, with inp = dout (N, OC).
//   Two stages, so that tall matrices fill the machine: each range of rows is summed separately, then
//   these partial sums are added in the order of the rows (add_rows.cuh).
//   Deterministic: the order of the additions depends on the shape alone.
#pragma once
#include <algorithm>

#include "kernels/add_rows.cuh"
#include "kernels/common.cuh"
#include "kernels/warp_sums.cuh"

namespace column_sum_detail {

// A thread adds `vectors` neighbouring vectors of N elements. On the GPU 32 lanes cover a strip of
// columns, and 8 warps share its rows. On the CPU every thread has a strip of its own, 128 columns wide:
// it reads as many cache lines a row as the prefetcher handles well, and its sums still fit in registers.
template <class W, int N>
struct Tiling {
    static constexpr int vectors = W::threads == 1 ? std::max(1, 128 / N) : 1;
    static constexpr int warps = W::threads == 1 ? 1 : 8;
    static constexpr unsigned block = simt::warp_size * warps;
    static constexpr size_t columns = static_cast<size_t>(simt::warp_size) * vectors * N;  // of a block
};

// The number of ranges of rows that are summed separately: enough to fill the machine with blocks,
// with at least 16 rows for each warp.
template <class W, int N>
size_t row_ranges(size_t rows, size_t columns) {
    // On a GPU there are several times as many blocks as run at once, so that an incomplete last wave costs
    // little.
    constexpr size_t blocks_wanted = W::threads == 1 ? 32 : 4096;
    const size_t strips = ceil_div(columns, Tiling<W, N>::columns);
    return std::clamp<size_t>(ceil_div(blocks_wanted, strips), 1,
                              ceil_div<size_t>(rows, 16 * Tiling<W, N>::warps));
}

// partial (ranges, columns): row blockIdx.y = the sums over its range
template <class W, int N, class T>
__global__ void partial_kernel(float* partial, const T* inp, size_t rows, size_t columns,
                               size_t rows_per_range) {
    using Tiling = Tiling<W, N>;
    const int lane = threadIdx.x % simt::warp_size, warp = threadIdx.x / simt::warp_size;
    const size_t column = (static_cast<size_t>(blockIdx.x) * simt::warp_size + lane) * Tiling::vectors * N;
    const size_t begin = blockIdx.y * rows_per_range;
    const size_t end = begin + rows_per_range < rows ? begin + rows_per_range : rows;

    Vec<float, N> sums[Tiling::vectors];
    UNROLL
    for (int v = 0; v < Tiling::vectors; v++) sums[v] = simt::broadcast<N>(0.0f);
    // vectors beyond the last column read column 0 and are not stored, so the loop has no branch
    size_t from[Tiling::vectors];
    UNROLL
    for (int v = 0; v < Tiling::vectors; v++) from[v] = column + v * N < columns ? column + v * N : 0;
    if constexpr (W::threads > 1) {
        const auto at = [&](size_t row) INLINE { return inp + row * columns + from[0]; };
        add_rows_ahead<W>(sums[0], begin + warp, column < columns ? end : 0, Tiling::warps, at);
    } else {
        for (size_t row = begin; column < columns && row < end; row++) {
            UNROLL
            for (int v = 0; v < Tiling::vectors; v++) add(sums[v], load<N>(inp + row * columns + from[v]));
        }
    }
    if constexpr (Tiling::warps > 1) {  // add up the warps' sums, in their order
        simt::SharedMemory shared;
        const size_t first = blockIdx.x * Tiling::columns;
        float* const of_warps = shared.take<float>(warp_sums_size<Tiling::warps, N>);
        for_each_warp_sum<Tiling::warps, N>(of_warps, sums[0], [&](int c, float sum) INLINE {
            if (first + c < columns) partial[blockIdx.y * columns + first + c] = sum;
        });
    } else {
        UNROLL
        for (int v = 0; v < Tiling::vectors; v++) {
            if (column + v * N < columns) store<N>(partial + blockIdx.y * columns + column + v * N, sums[v]);
        }
    }
}

}  // namespace column_sum_detail

// Bytes of scratch for column_sum of a matrix of this shape.
template <class W = simt::NativeWidth<32>, class T>
size_t column_sum_scratch_bytes(size_t rows, size_t columns) {
    size_t ranges = 0;
    simt::for_vector_length<W, T>(
        columns, [&](auto n) { ranges = column_sum_detail::row_ranges<W, n()>(rows, columns); });
    return ranges * columns * sizeof(float);
}

// out (columns) += column sums of inp. Reads rows*columns elements; bound by memory bandwidth. scratch:
// column_sum_scratch_bytes, aligned to 64 bytes.
template <class W = simt::NativeWidth<32>, class T>
void column_sum(float* out, const T* inp, size_t rows, size_t columns, float* scratch, stream_t stream) {
    using namespace column_sum_detail;
    CHECK(rows > 0 && columns > 0, "column_sum: rows = {} and columns = {} must be positive", rows, columns);
    simt::for_vector_length<W, T>(columns, [&](auto n) {
        constexpr int N = n();
        using Tiling = Tiling<W, N>;
        const size_t ranges = row_ranges<W, N>(rows, columns);
        const dim3 grid(static_cast<unsigned>(ceil_div(columns, Tiling::columns)),
                        static_cast<unsigned>(ranges));
        const size_t shared =
            Tiling::warps > 1 ? simt::shared_size<float>(warp_sums_size<Tiling::warps, N>) : 0;
        launch(partial_kernel<W, N, T>, grid, Tiling::block, shared, stream, scratch, inp, rows, columns,
               ceil_div(rows, ranges));
        add_rows<W>({out}, scratch, ranges, columns, stream);
    });
}
