// decode_attention.cuh: attention of the newest token of each sample over the keys and values of all
//   tokens so far, and the cache that holds these
//   scores[t] = q k[t] / sqrt(HS), t <= *before;   p = softmax(scores);   out = sum over t of p[t] v[t]
//   qkv (samples, NH + 2 NKV, HS) of the newest tokens   out (samples, NH, HS)
//   keys (samples, NKV, tiles, D, tile)   values (samples, NKV, tiles * tile, D)
//   D is HS rounded up to 32, 64, 96 or 128. A tile is 64 bytes of tokens: 32 in bfloat16, 16 in float.
//   Both arrays are read from front to back. A row of a tile of keys holds one channel of neighbouring
//   tokens, so the q k[t] of a whole tile are one sum of Vecs: each row times one number of q. No sum
//   across a Vec is needed.
//
// A long sequence is cut into chunks, so that few samples fill the machine too. A chunk stores its
// largest score, its sum of exp(score - largest) and its sum of exp(score - largest) v; the second
// kernel brings the chunks to a common scale (Dao et al. 2023, "Flash-Decoding").
// The number of tokens in the cache is read from the device's memory. A launch covers `most` tokens, so that
// one CUDA graph serves the next decode_chunk of them; chunks that are still empty weigh nothing.
//   GPU: a warp processes a chunk of one head; 4 lanes (16 bytes each) cover a row of a tile of keys, 8
//   rows at once.
//   CPU: a thread processes a chunk of one head.
#pragma once
#include <bit>
#include <cmath>

#include "kernels/attention/attention_head.cuh"
#include "kernels/common.cuh"
#include "kernels/decode/decode_cache.h"
#include "kernels/rows_ahead.cuh"
#include "kernels/simt/products.cuh"

namespace decode_attention_detail {

// Tokens of a chunk. A GPU has enough warps for short ones; a long one would wait for memory once for every
// few tokens.
template <class W>
constexpr int chunk_tokens = W::threads == 1 ? decode_chunk : 64;

// W::threads threads copy one head of one token of one sample; columns beyond HS are zeros.
template <class W, class T>
__global__ void append_kernel(DecodeCache<T> cache, const T* qkv, const int* before, int count, bool shared,
                              size_t items) {
    const size_t item = simt::row_index<W::threads>();
    if (item >= items) return;
    const int lane = simt::row_lane<W::threads>(), D = cache.D(), head = static_cast<int>(item % cache.NKV),
              t = static_cast<int>(item / cache.NKV % count);
    const size_t sample = item / cache.NKV / count, width = static_cast<size_t>(cache.NKV) * cache.HS;
    const T* k = qkv + (((shared ? 0 : sample) * count + t) * (cache.NH + 2 * cache.NKV) + cache.NH + head) *
                           static_cast<size_t>(cache.HS);
    const int token = *before + t;
    const size_t of_head = (sample * cache.NKV + head) * cache.head_elements();
    T* key =
        cache.keys + of_head + static_cast<size_t>(token / cache.tile) * D * cache.tile + token % cache.tile;
    T* value = cache.values + of_head + static_cast<size_t>(token) * D;
    for (int d = lane; d < D; d += W::threads) {
        key[static_cast<size_t>(d) * cache.tile] = d < cache.HS ? k[d] : T(0.0f);
        value[d] = d < cache.HS ? k[width + d] : T(0.0f);
    }
}

// Floats that a chunk stores: its largest score, its sum, and D sums of values.
template <int D>
constexpr int partial_floats = D + 2;

template <class W, int D_, class T>
struct Tiling {
    static constexpr bool one_thread = W::threads == 1;
    static constexpr int D = D_;
    static constexpr int N = one_thread ? 64 / sizeof(T) : W::bytes / sizeof(T);
    // Keys: lanes that cover a row of a tile, and rows that the threads read at once.
    static constexpr int lanes = DecodeCache<T>::tile / N, rows = W::threads / lanes;
    // Values: lanes that cover a token (some are idle if D is 96), tokens at once, and Vecs of a lane.
    static constexpr int value_lanes =
        one_thread ? 1 : static_cast<int>(std::bit_ceil(static_cast<unsigned>(D / N)));
    static constexpr int tokens = W::threads / value_lanes;
    static constexpr int vectors = one_thread ? D / N : 1;
    static_assert(one_thread || (W::threads <= simt::warp_size && rows > 0 && tokens > 0 && D % rows == 0));
};

// Sums v over those threads of a row whose index is the same modulo Stride.
template <int Threads, int Stride, int N>
__device__ __forceinline__ void sum_over_groups(Vec<float, N>& v) {
    UNROLL
    for (int distance = Threads / 2; distance >= Stride; distance /= 2) {
        UNROLL
        for (int n = 0; n < N; n++) v[n] += __shfl_xor_sync(0xffffffffu, v[n], distance);
    }
}

// scores[t - begin] = q k[t] for begin <= t < end, and -infinity up to the end of the last tile. Returns
// the largest. begin is a multiple of a tile.
template <class W, class Tiling, class T>
__device__ float score(float* scores, const T* q, const T* keys, int HS, int begin, int end, float scale) {
    constexpr int N = Tiling::N, tile = DecodeCache<T>::tile;
    const int lane = simt::row_lane<W::threads>(), row = lane / Tiling::lanes,
              column = lane % Tiling::lanes * N;
    float own[Tiling::D / Tiling::rows];  // the numbers of q for this thread's rows of a tile
    UNROLL
    for (int i = 0; i < Tiling::D / Tiling::rows; i++) {
        const int d = i * Tiling::rows + row;
        own[i] = begin < end && d < HS ? static_cast<float>(q[d]) * scale : 0.0f;
    }
    float largest = -INFINITY;
    for (int t = begin; t < end; t += tile) {
        const T* keys_of_tile = keys + static_cast<size_t>(t) * Tiling::D + row * tile + column;
        Vec<float, N> sums = simt::broadcast<N>(0.0f);
        UNROLL
        for (int i = 0; i < Tiling::D / Tiling::rows; i++)
            simt::multiply_add(
                sums, own[i],
                simt::load_factors<N>(keys_of_tile + static_cast<size_t>(i) * Tiling::rows * tile));
        if constexpr (Tiling::rows > 1) sum_over_groups<W::threads, Tiling::lanes>(sums);
        UNROLL
        for (int n = 0; n < N; n++) sums[n] = t + column + n < end ? sums[n] : -INFINITY;
        if (row == 0) simt::store_shared(scores + (t - begin) + column, sums);
        largest = fmaxf(largest, simt::max(sums));
    }
    return simt::row_max<W::threads>(largest);
}

// scores = exp(scores - largest); returns their sum
template <class W, class Tiling, class T>
__device__ float exponentiate(float* scores, int count, float largest) {
    constexpr int N = W::threads == 1 ? 16 : 1, tile = DecodeCache<T>::tile;
    const int end = simt::ceil_div(count, tile) * tile;
    Vec<float, N> sums = simt::broadcast<N>(0.0f);
    for (int i = simt::row_lane<W::threads>() * N; i < end; i += W::threads * N) {
        Vec<float, N> v = load<N>(scores + i);
        UNROLL
        for (int n = 0; n < N; n++) {
            v[n] = simt::exp_nonpositive(v[n] - largest);
            sums[n] += v[n];
        }
        simt::store_shared(scores + i, v);
    }
    return simt::row_sum<W::threads>(simt::sum(sums));
}

template <class W, int D, class T>
__global__ void kernel(T* out, float* partial, const T* qkv, DecodeCache<T> cache, const int* before,
                       int chunks, size_t items, float scale) {
    using Tiling = Tiling<W, D, T>;
    constexpr int N = Tiling::N;
    simt::SharedMemory shared;
    float* scores = shared.take<float>(static_cast<size_t>(chunk_tokens<W>) * (blockDim.x / W::threads)) +
                    threadIdx.x / W::threads * chunk_tokens<W>;

    const size_t item = simt::row_index<W::threads>(), head = item / chunks;  // head of samples * NH
    const int begin = item < items ? static_cast<int>(item % chunks) * chunk_tokens<W> : 0;
    const int end = item < items ? max(begin, min(begin + chunk_tokens<W>, *before + 1)) : 0;
    const size_t sample = head / cache.NH, queries = cache.NH / cache.NKV,
                 of_head = (sample * cache.NKV + head % cache.NH / queries) * cache.head_elements(),
                 column_of_head = head % cache.NH * cache.HS;
    const T* q = qkv + sample * (cache.NH + 2 * cache.NKV) * cache.HS + column_of_head;

    const float largest = score<W, Tiling>(scores, q, cache.keys + of_head, cache.HS, begin, end, scale);
    simt::row_barrier<W::threads>();
    const float sum = exponentiate<W, Tiling, T>(scores, end - begin, largest);
    simt::row_barrier<W::threads>();

    const int lane = simt::row_lane<W::threads>(), first_column = lane % Tiling::value_lanes * N;
    Vec<float, N> sums[Tiling::vectors];
    UNROLL_REGISTERS
    for (int v = 0; v < Tiling::vectors; v++) sums[v] = simt::broadcast<N>(0.0f);
    const T* values = cache.values + of_head + first_column;
    if constexpr (Tiling::one_thread) {
        for (int t = begin; t < end; t++) {
            UNROLL_REGISTERS
            for (int v = 0; v < Tiling::vectors; v++)
                simt::multiply_add(sums[v], scores[t - begin],
                                   simt::load_factors<N>(values + static_cast<size_t>(t) * D + v * N));
        }
    } else {
        const auto at = [&](size_t t) INLINE { return values + t * D; };
        const auto add = [&](const Vec<float, N>& v, size_t t)
                             INLINE { simt::multiply_add(sums[0], scores[t - begin], v); };
        for_each_row_ahead<W, N>(begin + lane / Tiling::value_lanes, first_column < D ? end : 0,
                                 Tiling::tokens, at, add);
    }
    if constexpr (Tiling::tokens > 1) sum_over_groups<W::threads, Tiling::value_lanes>(sums[0]);
    if (item >= items || lane >= Tiling::value_lanes || first_column >= D) return;
    if (chunks > 1) {
        float* to = partial + item * partial_floats<D>;
        if (lane == 0) to[0] = largest, to[1] = sum;
        for (int v = 0; v < Tiling::vectors; v++) {
            for (int n = 0; n < N; n++) to[2 + first_column + v * N + n] = sums[v][n];
        }
    } else {
        T* to = out + sample * cache.NH * cache.HS + column_of_head;
        for (int v = 0; v < Tiling::vectors; v++) {
            for (int n = 0; n < N; n++) {
                const int column = first_column + v * N + n;
                if (column < cache.HS) to[column] = T(sums[v][n] / sum);
            }
        }
    }
}

// out[head] = the chunks' sums of values, at the scale of the largest score, divided by the total of the
// chunks' sums. W::threads threads share a head.
template <class W, int D, class T>
__global__ void combine_kernel(T* out, const float* partial, int chunks, int HS, size_t heads) {
    const size_t head = simt::row_index<W::threads>();
    if (head >= heads) return;
    partial += head * chunks * partial_floats<D>;
    float largest = -INFINITY, sum = 0.0f;
    for (int c = 0; c < chunks; c++) largest = fmaxf(largest, partial[c * partial_floats<D>]);
    for (int c = 0; c < chunks; c++)
        sum += partial[c * partial_floats<D> + 1] *
               simt::exp_nonpositive(partial[c * partial_floats<D>] - largest);
    for (int column = simt::row_lane<W::threads>(); column < HS; column += W::threads) {
        float total = 0.0f;
        for (int c = 0; c < chunks; c++) {
            total += partial[c * partial_floats<D> + 2 + column] *
                     simt::exp_nonpositive(partial[c * partial_floats<D>] - largest);
        }
        out[head * HS + column] = T(total / sum);
    }
}

}  // namespace decode_attention_detail

// Floats of scratch for decode_attention over up to max_tokens tokens.
template <class W = simt::NativeWidth<32>>
size_t decode_attention_scratch(int samples, int NH, int HS, int max_tokens) {
    return static_cast<size_t>(samples) * NH *
           ceil_div(max_tokens, decode_attention_detail::chunk_tokens<W>) *
           (DecodeCache<float>::padded_head(HS) + 2);
}

// Writes `count` tokens into every sample's cache, behind the *before tokens that it holds: together at most
// max_tokens. qkv is (samples, count, NH + 2 NKV, HS), or with `shared` (count, NH + 2 NKV, HS) for all
// samples. Reads 2 * NKV * HS elements a token (and sample, unless shared) and writes 2 * NKV * D a token and
// sample; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void decode_append(const DecodeCache<T>& cache, const T* qkv, const int* before, int count, bool shared,
                   stream_t stream) {
    CHECK(count > 0 && count <= cache.max_tokens, "decode_append: {} tokens do not fit in a cache of {}",
          count, cache.max_tokens);
    const size_t items = static_cast<size_t>(cache.samples) * count * cache.NKV;
    launch_rows<W::threads>(decode_attention_detail::append_kernel<W, T>, items, 0, stream, cache, qkv,
                            before, count, shared, items);
}

// out (samples, NH, HS) = attention of q in qkv (samples, NH + 2 NKV, HS) over the cache's first *before + 1
// tokens, of which q's own is the last. These are at most `most`, for which the launch is sized. scratch:
// decode_attention_scratch floats. Reads 2 * (*before + 1) * samples * NKV * D elements; bound by memory
// bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void decode_attention(T* out, const T* qkv, const DecodeCache<T>& cache, const int* before, int most,
                      float* scratch, stream_t stream) {
    using namespace decode_attention_detail;
    CHECK(most > 0 && most <= cache.max_tokens, "decode_attention: {} tokens; expected 1 to {}", most,
          cache.max_tokens);
    CHECK(cache.HS > 0 && cache.HS <= 128, "attention: head size {} is not supported; expected 1 to 128",
          cache.HS);
    const int chunks = ceil_div(most, chunk_tokens<W>);
    const size_t heads = static_cast<size_t>(cache.samples) * cache.NH, items = heads * chunks;
    const float scale = 1.0f / std::sqrt(static_cast<float>(cache.HS));
    for_head_size<32, 64, 96, 128>(cache.HS, [&](auto D) {
        // On the CPU a block has one thread and one chunk of a head, so that the blocks balance the cores.
        constexpr unsigned block = W::threads == 1 ? 1 : 128, rows = block / W::threads;
        launch(kernel<W, D(), T>, static_cast<unsigned>(ceil_div<size_t>(items, rows)), block,
               simt::shared_size<float>(chunk_tokens<W> * rows), stream, out, scratch, qkv, cache, before,
               chunks, items, scale);
        if (chunks > 1)
            launch_rows<W::threads>(combine_kernel<W, D(), T>, heads, 0, stream, out, scratch, chunks,
                                    cache.HS, heads);
    });
}
