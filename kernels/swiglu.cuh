// swiglu.cuh: out = silu(gate) * up, silu(z) = z sigmoid(z)
//   gate_up (N, 2, H), gate before up in each row, as one product leaves them   out (N, H)
//   Backward, with s = sigmoid(gate):
//     dgate = dout * up * s * (1 + gate * (1 - s)),   dup = dout * gate * s
//   Shazeer 2020, arXiv:2002.05202
#pragma once
#include "kernels/common.cuh"

// W::threads threads share a row.
template <class W, int N, class T>
__global__ void swiglu_forward_kernel(T* out, const T* gate_up, size_t rows, int H) {
    const size_t row = simt::row_index<W::threads>();
    if (row >= rows) return;
    const T* const gate = gate_up + row * 2 * H;
    for (int i = simt::row_lane<W::threads>() * N; i < H; i += W::threads * N) {
        const Vec<float, N> g = load<N>(gate + i), u = load<N>(gate + H + i);
        Vec<float, N> o;
        UNROLL
        for (int k = 0; k < N; k++) {
            const float e = simt::quick_exp_nonpositive(-fabsf(g[k]));
            o[k] = simt::quick_divide(g[k] * (g[k] < 0.0f ? e : 1.0f), 1.0f + e) * u[k];
        }
        store(out + row * H + i, o);
    }
}

template <class W, int N, class T>
__global__ void swiglu_backward_kernel(T* dgate_up, const T* dout, const T* gate_up, size_t rows, int H) {
    const size_t row = simt::row_index<W::threads>();
    if (row >= rows) return;
    const T* const gate = gate_up + row * 2 * H;
    T* const dgate = dgate_up + row * 2 * H;
    for (int i = simt::row_lane<W::threads>() * N; i < H; i += W::threads * N) {
        const Vec<float, N> g = load<N>(gate + i), u = load<N>(gate + H + i), d = load<N>(dout + row * H + i);
        Vec<float, N> dg, du;
        UNROLL
        for (int k = 0; k < N; k++) {
            const Sigmoids s(g[k]);
            dg[k] = d[k] * u[k] * (s.value * (1.0f + g[k] * s.rest));
            du[k] = d[k] * (g[k] * s.value);
        }
        store(dgate + i, dg);
        store(dgate + H + i, du);
    }
}

// out (N, H) = silu(gate) * up. Reads 2*N*H and writes N*H elements; bound by memory bandwidth.
template <class W = simt::NativeWidth<64>, class T>
void swiglu_forward(T* out, const T* gate_up, size_t N, int H, stream_t stream) {
    CHECK(N > 0 && H > 0, "swiglu: N = {} and H = {} must be positive", N, H);
    simt::for_vector_length<W, T>(H, [&](auto n) {
        launch_rows<W::threads>(swiglu_forward_kernel<W, n(), T>, N, 0, stream, out, gate_up, N, H);
    });
}

// dgate_up (N, 2, H) = the gradient of gate_up; it may be gate_up itself. Reads 3*N*H and writes 2*N*H
// elements; bound by memory bandwidth.
template <class W = simt::NativeWidth<64>, class T>
void swiglu_backward(T* dgate_up, const T* dout, const T* gate_up, size_t N, int H, stream_t stream) {
    CHECK(N > 0 && H > 0, "swiglu: N = {} and H = {} must be positive", N, H);
    simt::for_vector_length<W, T>(H, [&](auto n) {
        launch_rows<W::threads>(swiglu_backward_kernel<W, n(), T>, N, 0, stream, dgate_up, dout, gate_up, N,
                                H);
    });
}
