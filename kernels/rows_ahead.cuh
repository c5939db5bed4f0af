// rows_ahead.cuh: sums over rows, with the loads of several rows under way at once
//   A GPU's thread that added up each row before it loaded the next would wait for memory at every row. A CPU
//   loads ahead by itself.
#pragma once
#include "kernels/common.cuh"

constexpr int rows_ahead = 8;

// Calls add(vector, row) with N elements of each of the rows first, first + step, ... before last, in this
// order. at(row) is the address of the row's elements.
template <class W, int N, class At, class Add>
__device__ __forceinline__ void for_each_row_ahead(size_t first, size_t last, size_t step, At at, Add add) {
    if constexpr (W::threads == 1) {
        for (size_t row = first; row < last; row += step) add(load<N>(at(row)), row);
    } else {
        for (size_t row = first; row < last; row += rows_ahead * step) {
            decltype(load_raw<N>(at(row))) held[rows_ahead] = {};
            UNROLL
            for (int u = 0; u < rows_ahead; u++) {
                simt::one_at_a_time();
                if (row + u * step < last) held[u] = load_raw<N>(at(row + u * step));
            }
            UNROLL
            for (int u = 0; u < rows_ahead; u++) {
                simt::one_at_a_time();
                if (row + u * step < last) add(widen(held[u]), row + u * step);
            }
        }
    }
}

// sum += N elements of each of these rows, in this order.
template <class W, int N, class At>
__device__ __forceinline__ void add_rows_ahead(Vec<float, N>& sum, size_t first, size_t last, size_t step,
                                               At at) {
    for_each_row_ahead<W, N>(first, last, step, at,
                             [&](const Vec<float, N>& v, size_t) INLINE { add(sum, v); });
}
