// decode_sample.cuh: draws a token from each row of logits, as sampling.h says
//   weight = exp((logit - largest) / temperature);   token = the first id at which the sum of the kept
//   weights, in the order of ids, exceeds uniform(draw) * their total
//   logits (rows, V), a row every `stride` elements   tokens (rows)
//   Weights are integers, floor(2^36 weight): their sums do not depend on the order of adding, so any number
//   of threads draws the same token.
//   The warps add up the weights of parts of a row. The part in which the sum exceeds the random number is
//   divided into parts again, and so on, until it is one token.
//   Which tokens are kept is one number. A token's key is its place in the order from the likeliest to the
//   least likely, and among equally likely ones in the order of ids; top-k and top-p each find the last key
//   that is kept, a digit of some bits at a time from the highest on (radix selection): a pass over the row
//   adds up the tokens, or their weights, by the next digit of their keys.
// W::threads threads process a row: on a GPU a block.
#pragma once
#include <bit>
#include <cfloat>

#include "kernels/common.cuh"
#include "kernels/decode/sampling.h"

// Logits of which each row gives a token.
template <class T>
struct SampledRows {
    const T* logits;
    size_t stride;  // 0: all tokens are drawn from the same row
    int V, count;   // only ids below V are drawn
};

namespace decode_sample_detail {

using Sum = unsigned long long;

template <int lanes>
__device__ Sum sum_of_lanes(Sum value) {  // each lane gets it
    UNROLL
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

// The shared memory of a block. Each thread adds up its tokens by digit for itself, so that nothing is
// atomic: digits of 3 bits take 48 KiB for 512 threads.
template <int threads>
struct Shared {
    static constexpr int lanes = threads < simt::warp_size ? threads : simt::warp_size;
    static constexpr int warps = threads / lanes, parts = warps > 16 ? warps : 16;  // of a range of ids
    static constexpr int digit_bits = threads == 1 ? 8 : 3, digits = 1 << digit_bits;
    static constexpr int most_values = parts > digits ? parts : digits;
    unsigned* counts;  // tokens, by digit and thread
    Sum* sums;         // what they add up to
    Sum* values;       // of parts or of digits

    static size_t bytes() {
        return simt::shared_size<unsigned>(digits * threads) + simt::shared_size<Sum>(digits * threads) +
               simt::shared_size<Sum>(most_values);
    }
    __device__ explicit Shared(simt::SharedMemory& memory)
        : counts(memory.take<unsigned>(digits * threads)),
          sums(memory.take<Sum>(digits * threads)),
          values(memory.take<Sum>(most_values)) {}

    __device__ static int warp() { return simt::row_lane<threads>() / lanes; }
    __device__ static int lane() { return simt::row_lane<lanes>(); }

    // values[digit] and counts[digit * threads] = those of all threads.
    __device__ void add_threads() const {
        simt::row_barrier<threads>();
        for (int digit = warp(); digit < digits; digit += warps) {
            Sum count = 0, sum = 0;
            for (int t = digit * threads + lane(); t < (digit + 1) * threads; t += lanes)
                count += counts[t], sum += sums[t];
            count = sum_of_lanes<lanes>(count);
            sum = sum_of_lanes<lanes>(sum);
            if (lane() == 0) counts[digit * threads] = static_cast<unsigned>(count), values[digit] = sum;
        }
        simt::row_barrier<threads>();
    }
};

// The first of n values at which the sum from the first on reaches `wanted`, and the sum of those before it.
// All values together reach it.
struct Place {
    int index;
    Sum before;
};
template <int n>
__device__ Place reach(const Sum* values, Sum wanted) {
    Place at{0, 0};
    Sum sum = 0;
    UNROLL
    for (int i = 0; i < n; i++) {
        sum += values[i];
        if (sum < wanted) at = {i + 1, sum};
    }
    return at;
}

template <int threads, int N, class T>
struct Row {
    using S = Shared<threads>;
    static constexpr int logit_bits = 8 * sizeof(T);
    const T* logits;
    int V, id_bits;  // the largest id needs id_bits bits
    double inverse_temperature;
    float largest = 0;
    Sum last_key = ~Sum{0};  // tokens with greater keys are not kept

    // The greatest logit has the smallest key.
    __device__ Sum key_of(float logit, int id) const {
        const uint32_t bits = simt::float_bits(logit + 0.0f);  // -0 counts as 0
        const uint32_t falling = bits >> 31 ? bits : ~bits & 0x7fffffffu;
        return static_cast<Sum>(falling >> (32 - logit_bits)) << id_bits | static_cast<Sum>(id);
    }
    __device__ Sum weight(float logit) const {
        const double x = (static_cast<double>(logit) - static_cast<double>(largest)) * inverse_temperature;
        return static_cast<Sum>(
            static_cast<long long>(simt::exp_nonpositive(static_cast<float>(x)) * 0x1p36f));
    }

    // Calls body(logit, id) for this thread's ids of [begin, end), which `sharing` threads share. A GPU's
    // thread loads four vectors before it computes with the first, so that it waits once for all of them.
    template <int sharing, class Body>
    __device__ __forceinline__ void for_each(int begin, int end, Body body) const {
        constexpr int batch = threads == 1 ? 1 : 4, step = sharing * N;
        const int lane = simt::row_lane<sharing>();
        const int whole = begin % N == 0 ? begin + (end - begin) / N * N : begin;  // the end of the vectors
        for (int id = begin + lane * N; id < whole;) {
            Vec<T, N> held[batch];
            UNROLL
            for (int v = 0; v < batch; v++) held[v] = load_raw<N>(logits + min(id + v * step, whole - N));
            UNROLL_ONCE  // fewer instructions to fetch
            for (int v = 0; v < batch && id < whole; v++, id += step) {
                const Vec<float, N> values = widen(held[0]);
                UNROLL
                for (int k = 0; k < N; k++) body(values[k], id + k);
                UNROLL
                for (int next = 1; next < batch; next++) {
                    held[next - 1] = held[next];
                    simt::stay_narrow(held[next - 1]);  // nvcc would move every logit by itself
                }
            }
        }
        UNROLL_ONCE
        for (int id = whole + lane; id < end; id += sharing) body(static_cast<float>(logits[id]), id);
    }

    // Plus infinity if there is a NaN.
    __device__ float find_largest() const {
        float own = -INFINITY;
        for_each<threads>(0, V, [&](float logit, int) INLINE {
            own = simt::larger(logit == logit ? logit : INFINITY, own);
        });
        return simt::row_max<threads>(own);
    }

    // Ids in each part of a range: whole vectors as long as there is one for each part.
    __device__ static int part_of(int ids) {
        const int part = ceil_div(ids, S::parts);
        return part < N ? part : ceil_div(part, N) * N;
    }
    // s.values = the kept weights of the parts of [begin, end). Returns their sum.
    __device__ Sum add_parts(const S& s, int begin, int end) const {
        const int part = part_of(end - begin);
        simt::row_barrier<threads>();  // all threads have read s.values
        for (int p = s.warp(); p < S::parts; p += S::warps) {
            const int first = min(end, begin + p * part), last = min(end, first + part);
            Sum sum = 0;
            const auto add = [&](float logit, int) INLINE { sum += weight(logit); };
            const auto add_kept = [&](float logit, int id)
                                      INLINE { sum += key_of(logit, id) <= last_key ? weight(logit) : 0; };
            if (last_key == ~Sum{0}) for_each<S::lanes>(first, last, add);
            else for_each<S::lanes>(first, last, add_kept);
            sum = sum_of_lanes<S::lanes>(sum);
            if (s.lane() == 0) s.values[p] = sum;
        }
        simt::row_barrier<threads>();
        Sum total = 0;
        for (int p = 0; p < S::parts; p++) total += s.values[p];
        return total;
    }
    // The first token at which the sum of the kept weights exceeds point, which is less than their total.
    // Needs the values that add_parts leaves for the whole row.
    __device__ int token_at(const S& s, Sum point) const {
        for (int begin = 0, end = V;; add_parts(s, begin, end)) {
            const int part = part_of(end - begin);
            const Place place = reach<S::parts>(s.values, point + 1);
            point -= place.before;
            begin += place.index * part;
            end = min(end, begin + part);
            if (part == 1) return begin;
        }
    }

    // The last key of the fewest likeliest tokens of which there are `wanted`, or whose weights sum to that.
    template <bool by_weight>
    __device__ Sum find_last_key(const S& s, Sum wanted) const {
        const int lane = simt::row_lane<threads>();
        Sum first = 0, last = last_key;  // the keys among which it is
        for (int shift = logit_bits + id_bits - S::digit_bits;; shift = max(0, shift - S::digit_bits)) {
            simt::row_barrier<threads>();  // all threads have read what is written next
            for (int i = lane; i < S::digits * threads; i += threads) s.counts[i] = 0, s.sums[i] = 0;
            for_each<threads>(0, V, [&](float logit, int id) INLINE {
                const Sum key = key_of(logit, id) - first;
                if (key > last - first) return;
                const int at = static_cast<int>(key >> shift) * threads + lane;
                s.counts[at]++;
                s.sums[at] += by_weight ? weight(logit) : 1;
            });
            s.add_threads();
            const Place place = reach<S::digits>(s.values, wanted);
            wanted -= place.before;
            first += static_cast<Sum>(place.index) << shift;
            last = min(last, first + (Sum{1} << shift) - 1);  // top-k may have excluded the last ones
            // If all tokens whose keys begin with these digits are kept, no more digits are needed.
            if (s.counts[place.index * threads] == 1 || s.values[place.index] == wanted || shift == 0)
                return last;
        }
    }
};

// token = -1 for logits that are not finite: a NaN, plus infinity, or nothing but minus infinity.
template <class W, int N, class T>
__global__ void __launch_bounds__(simt::block_of<W>, 1)
    kernel(int* tokens, SampledRows<T> rows, int id_bits, Sampling sampling, Draw draw) {
    constexpr int threads = W::threads;
    simt::SharedMemory memory;
    const Shared<threads> s(memory);
    Row<threads, N, T> row{rows.logits + blockIdx.x * rows.stride, rows.V, id_bits,
                           min(1 / sampling.temperature, DBL_MAX)};
    row.largest = row.find_largest();
    int token = -1;
    if (row.largest > -INFINITY && row.largest < INFINITY) {  // the same for all threads of the block
        // At temperature 0 only the likeliest tokens weigh anything, and the first of them is taken.
        const bool likeliest = sampling.temperature == 0;
        if (!likeliest && sampling.top_k > 0 && sampling.top_k < rows.V)
            row.last_key = row.template find_last_key<false>(s, static_cast<Sum>(sampling.top_k));
        Sum total = row.add_parts(s, 0, rows.V);
        if (!likeliest && sampling.top_p < 1) {
            const double share = sampling.top_p * static_cast<double>(total);
            const Sum below = static_cast<Sum>(share),
                      wanted = static_cast<double>(below) < share ? below + 1 : below;
            row.last_key = row.template find_last_key<true>(s, min(wanted, total));
            total = row.add_parts(s, 0, rows.V);
        }
        draw.sample += blockIdx.x;  // it was that of row 0
        const Sum point = min(static_cast<Sum>(uniform(draw) * static_cast<double>(total)), total - 1);
        token = row.token_at(s, likeliest ? 0 : point);
    }
    if (simt::row_lane<threads>() == 0) tokens[blockIdx.x] = token;
}

}  // namespace decode_sample_detail

// tokens[r] = the token drawn from row r for sample first.sample + r, or -1 if the row has a NaN or plus
// infinity or nothing but minus infinity. Reads a row twice, with top-p once more, and with either of top-k
// and top-p once more for every digit of a key that it needs: on a GPU at most 11 for bf16 and V = 50257.
// Bound on a GPU by the three conversions and the exponential of a weight, 16 per clock in an SM.
template <class W = simt::NativeWidth<512>, class T>
void decode_sample(int* tokens, const SampledRows<T>& rows, const Sampling& sampling, const Draw& first,
                   stream_t stream) {
    using namespace decode_sample_detail;
    check(sampling);
    CHECK(rows.count > 0 && rows.V > 0, "decode_sample: {} rows of {} logits; expected 1 or more of both",
          rows.count, rows.V);
    const auto id_bits = std::bit_width(static_cast<unsigned>(rows.V - 1));
    simt::for_vector_length<W, T>(rows.stride, [&](auto n) {
        launch(kernel<W, n(), T>, static_cast<unsigned>(rows.count), W::threads, Shared<W::threads>::bytes(),
               stream, tokens, rows, static_cast<int>(id_bits), sampling, first);
    });
}
