// encoder.cuh: out[b, t] = wte[tokens[b, t]] + wpe[t], the token and position embeddings of GPT-2
//   tokens (B, T)   wte (V, C)   wpe (maxT, C), or nullptr for none   out (B, T, C)
//   Backward: dwte[v] += the sum of dout over all positions that hold token v
//             dwpe[t] += the sum of dout[b, t] over b;   both fp32
//   Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"
#pragma once
#include "kernels/rows_ahead.cuh"
#include "kernels/warp_sums.cuh"

// W::threads threads share a position.
template <class W, int N, class T>
__global__ void encoder_forward_kernel(T* out, const int* tokens, const T* wte, const T* wpe,
                                       size_t positions, int T_, int C) {
    const size_t position = simt::row_index<W::threads>();
    if (position >= positions) return;
    const T* token = wte + static_cast<size_t>(tokens[position]) * C;
    for (int i = simt::row_lane<W::threads>() * N; i < C; i += W::threads * N) {
        Vec<float, N> v = load<N>(token + i);
        add(v, wpe ? load<N>(wpe + position % T_ * C + i) : simt::broadcast<N>(0.0f));
        store(out + position * C + i, v);
    }
}

// Channels that W::threads threads add up together. If one token fills the batch, its gradient is a
// single long sum, and only the channels are left to parallelise over.
template <class W, int N>
constexpr int encoder_chunk = W::threads == 1 ? 128 : W::threads* N;

// `order` lists all positions, sorted by token and then by position, so that equal tokens form one run.
// The warp (CPU: thread) that finds the first entry of a run adds up the whole run, in order, for one chunk
// of channels. Every sum therefore has one writer and a fixed order, without atomics.
//   GPU: a block covers 32 entries of `order`, and each of its warps looks for runs that begin there. A
//   run of more than 32 would occupy a warp for milliseconds (every 25th token of English text is
//   "the"), so all warps of one block add it up together: the first block that begins inside the run.
//   CPU: a block is one thread, which adds up runs of any length.
constexpr int encoder_entries = 32;
template <class W>
constexpr int encoder_teams = W::threads == 1 ? 1 : 8;

// The tokens in the order of `order`.
struct SortedTokens {
    static constexpr size_t no_limit = static_cast<size_t>(-1);
    const int *tokens, *order;
    size_t count;

    __device__ int operator[](size_t entry) const { return tokens[order[entry]]; }
    // The end of the run that contains entry `first`; the search may stop once it is more than `limit`
    // entries further on. All `threads` threads of a row call this together, and each examines one entry.
    template <int threads>
    __device__ size_t end_of_run(size_t first, int lane, size_t limit = no_limit) const {
        const int token = (*this)[first];
        for (size_t end = first + 1;;) {
            const size_t entry = end + lane;
            const bool same = entry < count && (*this)[entry] == token;
            const int found = static_cast<int>(simt::row_sum<threads>(same ? 1.0f : 0.0f));
            end += found;
            if (found < threads || end - first > limit) return end;
        }
    }
};

// The sum of N channels over the entries first, first + step, ... before last.
template <class W, int N, class T>
__device__ __forceinline__ Vec<float, N> encoder_sum(const T* dout, const int* order, size_t first,
                                                     size_t last, size_t step, int C) {
    Vec<float, N> sum = simt::broadcast<N>(0.0f);
    const auto at = [&](size_t entry) INLINE { return dout + static_cast<size_t>(order[entry]) * C; };
    add_rows_ahead<W>(sum, first, last, step, at);
    return sum;
}

template <int N>
__device__ __forceinline__ void encoder_add(float* out, const Vec<float, N>& sum) {
    Vec<float, N> total = load<N>(out);
    add(total, sum);
    store(out, total);
}

// blockIdx.x selects the entries, blockIdx.y the channels.
template <class W, int N, class T>
__global__ void encoder_backward_token_kernel(float* dwte, const T* dout, const int* tokens, const int* order,
                                              size_t positions, int C) {
    constexpr int threads = W::threads, teams = encoder_teams<W>, chunk = encoder_chunk<W, N>;
    const SortedTokens sorted{tokens, order, positions};
    const size_t begin = static_cast<size_t>(blockIdx.x) * encoder_entries,
                 end = min(positions, begin + encoder_entries);
    const int team = static_cast<int>(threadIdx.x) / threads, lane = simt::row_lane<threads>();
    const int chunk_begin = static_cast<int>(blockIdx.y) * chunk, chunk_end = min(C, chunk_begin + chunk);

    // with several warps in a block, a longer run is left to the whole block below
    constexpr size_t limit = teams > 1 ? encoder_entries : SortedTokens::no_limit;
    for (size_t first = begin + team; first < end; first += teams) {
        const int token = sorted[first];
        if (first > 0 && sorted[first - 1] == token) continue;
        const size_t last = sorted.template end_of_run<threads>(first, lane, limit);
        if (last - first > limit) continue;
        for (int i = chunk_begin + lane * N; i < chunk_end; i += threads * N)
            encoder_add(dwte + static_cast<size_t>(token) * C + i,
                        encoder_sum<W, N>(dout + i, order, first, last, 1, C));
    }
    if constexpr (teams > 1) {
        static_assert(encoder_entries == threads && chunk == threads * N,
                      "a warp looks back at all entries of a block, and has its chunk in registers");
        const int token = sorted[begin];
        // the same for all threads of the block
        if (begin >= encoder_entries && sorted[begin - encoder_entries] == token) return;
        const bool before = static_cast<size_t>(lane) < begin && sorted[begin - 1 - lane] == token;
        const size_t first = begin - static_cast<size_t>(simt::row_sum<threads>(before ? 1.0f : 0.0f));
        const size_t last = sorted.template end_of_run<teams * threads>(begin, static_cast<int>(threadIdx.x));
        if (last - first <= encoder_entries) return;
        const int i = chunk_begin + lane * N;
        simt::SharedMemory shared;
        Vec<float, N> sum = simt::broadcast<N>(0.0f);
        if (i < C) sum = encoder_sum<W, N>(dout + i, order, first + team, last, teams, C);
        float* const of_team = shared.take<float>(warp_sums_size<teams, N>);
        for_each_warp_sum<teams, N>(of_team, sum, [&](int c, float of_all) INLINE {
            if (chunk_begin + c < C) dwte[static_cast<size_t>(token) * C + chunk_begin + c] += of_all;
        });
    }
}

// W::threads threads share a position in the sequence and a chunk of channels.
template <class W, int N, class T>
__global__ void encoder_backward_position_kernel(float* dwpe, const T* dout, int B, int T_, int C) {
    constexpr int chunk = encoder_chunk<W, N>;
    const size_t chunks = ceil_div(C, chunk), item = simt::row_index<W::threads>(), t = item / chunks;
    if (t >= static_cast<size_t>(T_)) return;
    const int chunk_begin = static_cast<int>(item % chunks) * chunk, chunk_end = min(C, chunk_begin + chunk);
    for (int i = chunk_begin + simt::row_lane<W::threads>() * N; i < chunk_end; i += W::threads * N) {
        Vec<float, N> sum = load<N>(dwpe + t * C + i);
        const auto at = [&](size_t b) INLINE { return dout + (b * T_ + t) * C + i; };
        add_rows_ahead<W>(sum, 0, B, 1, at);
        store(dwpe + t * C + i, sum);
    }
}

// Reads a row of wte and one of wpe for each position, and writes B*T*C elements; bound by memory bandwidth.
// 0 <= token < V.
template <class W = simt::NativeWidth<32>, class T>
void encoder_forward(T* out, const int* tokens, const T* wte, const T* wpe, int B, int T_, int C,
                     stream_t stream) {
    CHECK(B > 0 && T_ > 0 && C > 0, "encoder: B = {}, T = {} and C = {} must be positive", B, T_, C);
    const size_t positions = static_cast<size_t>(B) * T_;
    simt::for_vector_length<W, T>(C, [&](auto n) {
        launch_rows<W::threads>(encoder_forward_kernel<W, n(), T>, positions, 0, stream, out, tokens, wte,
                                wpe, positions, T_, C);
    });
}

// dwte (V, C) += and dwpe (maxT, C) +=;  order (B*T): the positions, stably sorted by token
// Reads 2*B*T*C elements and the gradients of the tokens that occur; bound by memory bandwidth, unless
// one token fills most of the batch.
template <class W = simt::NativeWidth<32>, class T>
void encoder_backward(float* dwte, float* dwpe, const T* dout, const int* tokens, const int* order, int B,
                      int T_, int C, stream_t stream) {
    CHECK(B > 0 && T_ > 0 && C > 0, "encoder: B = {}, T = {} and C = {} must be positive", B, T_, C);
    const size_t positions = static_cast<size_t>(B) * T_;
    simt::for_vector_length<W, T>(C, [&](auto n) {
        constexpr int chunk = encoder_chunk<W, n()>;
        constexpr unsigned block = W::threads * encoder_teams<W>;
        const dim3 grid(static_cast<unsigned>(ceil_div<size_t>(positions, encoder_entries)),
                        static_cast<unsigned>(ceil_div(C, chunk)));
        const size_t shared =
            encoder_teams<W> > 1 ? simt::shared_size<float>(warp_sums_size<encoder_teams<W>, n()>) : 0;
        launch(encoder_backward_token_kernel<W, n(), T>, grid, block, shared, stream, dwte, dout, tokens,
               order, positions, C);
        if (!dwpe) return;
        const size_t items = static_cast<size_t>(T_) * ceil_div(C, chunk);
        launch_rows<W::threads>(encoder_backward_position_kernel<W, n(), T>, items, 0, stream, dwpe, dout, B,
                                T_, C);
    });
}
