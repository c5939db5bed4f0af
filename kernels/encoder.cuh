// encoder.cuh: out[b, t] = wte[tokens[b, t]] + wpe[t]
//   tokens (B, T)   wte (V, C)   wpe (maxT, C)   out (B, T, C)
//   Backward: dwte[v] += the sum of dout over all positions that hold token v, dwpe[t] += the sum of dout[b, t] over b; both fp32.
#pragma once
#include "common.cuh"

// W::threads share a position.
template <class W, int N, class T>
__global__ void encoder_forward_kernel(T* out, const int* tokens, const T* wte, const T* wpe, size_t positions, int T_, int C) {
    const size_t position = simt::row_index<W::threads>();
    if (position >= positions) return;
    const T* token = wte + static_cast<size_t>(tokens[position]) * C;
    const T* place = wpe + position % T_ * C;
    for (int i = simt::row_lane<W::threads>() * N; i < C; i += W::threads * N) {
        Vec<float, N> v = load<N>(token + i);
        const Vec<float, N> p = load<N>(place + i);
        UNROLL
        for (int k = 0; k < N; k++) v[k] += p[k];
        store(out + position * C + i, v);
    }
}

// Channels that W::threads add up together. A token that fills the batch is one long sum: then only the channels are left to work on in parallel.
template <class W, int N>
constexpr int encoder_chunk = W::threads == 1 ? 128 : W::threads* N;

// order = all positions, sorted by token and then by place in the batch: equal tokens lie in one run. Whoever meets the first of a run adds up all of
// it, in order, for one chunk of channels; the others have nothing to do. So every sum has one writer and a fixed order, without atomics.
template <class W, int N, class T>
__global__ void encoder_backward_token_kernel(float* dwte, const T* dout, const int* tokens, const int* order, size_t positions, int C) {
    constexpr int chunk = encoder_chunk<W, N>;
    const size_t chunks = ceil_div(C, chunk), item = simt::row_index<W::threads>(), first = item / chunks;
    if (first >= positions) return;
    const int token = tokens[order[first]];
    if (first > 0 && tokens[order[first - 1]] == token) return;
    size_t last = first + 1;
    while (last < positions && tokens[order[last]] == token) last++;
    const int chunk_begin = static_cast<int>(item % chunks) * chunk, chunk_end = C < chunk_begin + chunk ? C : chunk_begin + chunk;
    for (int i = chunk_begin + simt::row_lane<W::threads>() * N; i < chunk_end; i += W::threads * N) {
        Vec<float, N> sum = simt::broadcast<N>(0.0f);
        for (size_t at = first; at < last; at++) {
            const Vec<float, N> d = load<N>(dout + static_cast<size_t>(order[at]) * C + i);
            UNROLL
            for (int k = 0; k < N; k++) sum[k] += d[k];
        }
        float* out = dwte + static_cast<size_t>(token) * C + i;
        const Vec<float, N> before = load<N>(out);
        UNROLL
        for (int k = 0; k < N; k++) sum[k] += before[k];
        store(out, sum);
    }
}

// W::threads share a place in the sequence.
template <class W, int N, class T>
__global__ void encoder_backward_place_kernel(float* dwpe, const T* dout, int B, int T_, int C) {
    const size_t t = simt::row_index<W::threads>();
    if (t >= static_cast<size_t>(T_)) return;
    for (int i = simt::row_lane<W::threads>() * N; i < C; i += W::threads * N) {
        Vec<float, N> sum = load<N>(dwpe + t * C + i);
        for (int b = 0; b < B; b++) {
            const Vec<float, N> d = load<N>(dout + (static_cast<size_t>(b) * T_ + t) * C + i);
            UNROLL
            for (int k = 0; k < N; k++) sum[k] += d[k];
        }
        store(dwpe + t * C + i, sum);
    }
}

// Reads and writes B*T*C elements (and reads the B*T rows of wte it needs); bound by memory bandwidth. 0 <= token < V.
template <class W = simt::NativeWidth<32>, class T>
void encoder_forward(T* out, const int* tokens, const T* wte, const T* wpe, int B, int T_, int C, stream_t stream) {
    CHECK(B > 0 && T_ > 0 && C > 0, "encoder: B = {}, T = {} and C = {} must be positive", B, T_, C);
    const size_t positions = static_cast<size_t>(B) * T_;
    simt::for_vector_length<W, T>(C, [&](auto n) {
        launch_rows<W::threads>(encoder_forward_kernel<W, n(), T>, positions, 0, stream, out, tokens, wte, wpe, positions, T_, C);
    });
}

// dwte (V, C) += and dwpe (maxT, C) +=;  order (B*T): the positions, stably sorted by token
// Reads 2 B*T*C elements and the gradients of the tokens met; bound by memory bandwidth unless one token fills most of the batch.
template <class W = simt::NativeWidth<32>, class T>
void encoder_backward(float* dwte, float* dwpe, const T* dout, const int* tokens, const int* order, int B, int T_, int C, stream_t stream) {
    CHECK(B > 0 && T_ > 0 && C > 0, "encoder: B = {}, T = {} and C = {} must be positive", B, T_, C);
    const size_t positions = static_cast<size_t>(B) * T_;
    simt::for_vector_length<W, T>(C, [&](auto n) {
        const size_t items = positions * ceil_div(C, encoder_chunk<W, n()>);
        launch_rows<W::threads>(encoder_backward_token_kernel<W, n(), T>, items, 0, stream, dwte, dout, tokens, order, positions, C);
        launch_rows<W::threads>(encoder_backward_place_kernel<W, n(), T>, T_, 0, stream, dwpe, dout, B, T_, C);
    });
}
