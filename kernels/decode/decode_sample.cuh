// decode_sample.cuh: draws a token from each row of logits, as sampling.h says
//   weight = exp((logit - largest) / temperature);   token = the first id at which the sum of the kept
//   weights, in the order of ids, exceeds uniform(draw) * their total
//   logits (rows, V), a row every `stride` elements   tokens (rows)
//   Weights are integers, floor(2^36 weight): their sums do not depend on the order of adding, so any number
//   of threads draws the same token.
//   Which tokens are kept is one number. A token's key is its place in the order from the likeliest to the
//   least likely, and among equally likely ones in the order of ids; top-k and top-p each find the last key
//   that is kept, a digit of some bits at a time from the highest on (radix selection): a pass over the row
//   adds up the tokens, or their weights, by the next digit of their keys.
// W::threads threads process a row: on a GPU a block.
#pragma once
#include <algorithm>
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
constexpr int id_bits = 32, key_bits = 64;

struct Choice {
    int top_k;
    double top_p, inverse_temperature;  // 0: the likeliest token
    Draw first;                         // of row 0; row r is its sample first.sample + r
};

// The greatest logit has the smallest key; a NaN has key 0, and plus infinity a smaller key than any number.
__device__ __forceinline__ Sum key_of(float logit, int id) {
    const uint32_t bits = simt::float_bits(logit + 0.0f);  // -0 counts as 0
    const uint32_t falling = logit != logit ? 0 : bits >> 31 ? bits : ~bits & 0x7fffffffu;
    return static_cast<Sum>(falling) << id_bits | static_cast<Sum>(id);
}

// The shared memory of a block. Each thread adds up its tokens for itself, so that nothing is atomic: that
// takes 48 KiB for 256 threads.
template <int threads>
struct Shared {
    static constexpr int digit_bits = threads == 1 ? 8 : 4, digits = 1 << digit_bits, group = 32;
    static constexpr int most_values = threads > digits ? threads : digits;
    static constexpr int groups = (most_values + group - 1) / group;
    unsigned* counts;  // tokens, by digit and thread
    Sum* sums;         // what they add up to
    Sum *values, *of_group;

    static size_t bytes() {
        return simt::shared_size<unsigned>(digits * threads) + simt::shared_size<Sum>(digits * threads) +
               simt::shared_size<Sum>(most_values) + simt::shared_size<Sum>(groups);
    }
    __device__ explicit Shared(simt::SharedMemory& memory)
        : counts(memory.take<unsigned>(digits * threads)),
          sums(memory.take<Sum>(digits * threads)),
          values(memory.take<Sum>(most_values)),
          of_group(memory.take<Sum>(groups)) {}

    // Adds up a digit's counts and sums, those of every stride-th thread from `first` on, and leaves them at
    // `first`.
    __device__ void fold(int digit, int first, int end, int stride) const {
        unsigned* const count = counts + digit * threads;
        Sum* const sum = sums + digit * threads;
        for (int t = first + stride; t < end; t += stride) count[first] += count[t], sum[first] += sum[t];
    }
    // values[digit] and counts[digit * threads] = those of all threads.
    __device__ void fold_all() const {
        constexpr int parts = threads > digits ? threads / digits : 1;
        const int lane = simt::row_lane<threads>();
        simt::row_barrier<threads>();
        for (int i = lane; i < digits * parts; i += threads) fold(i / parts, i % parts, threads, parts);
        simt::row_barrier<threads>();
        for (int digit = lane; digit < digits; digit += threads) {
            fold(digit, 0, parts, 1);
            values[digit] = sums[digit * threads];
        }
    }
};

// Combines each group of 32 of the n values. Every thread has written its values; afterwards all see
// of_group.
template <int threads, class Combine>
__device__ void combine_groups(const Shared<threads>& s, int n, Combine combine) {
    simt::row_barrier<threads>();
    for (int g = simt::row_lane<threads>(); g * s.group < n; g += threads) {
        Sum combined = s.values[g * s.group];
        for (int i = g * s.group + 1; i < min((g + 1) * s.group, n); i++)
            combined = combine(combined, s.values[i]);
        s.of_group[g] = combined;
    }
    simt::row_barrier<threads>();
}

template <int threads, class Combine>
__device__ Sum combine_all(const Shared<threads>& s, int n, Combine combine) {
    combine_groups(s, n, combine);
    Sum combined = s.of_group[0];
    for (int g = 1; g * s.group < n; g++) combined = combine(combined, s.of_group[g]);
    return combined;
}

struct Add {
    __device__ Sum operator()(Sum a, Sum b) const { return a + b; }
};
struct Smaller {
    __device__ Sum operator()(Sum a, Sum b) const { return a < b ? a : b; }
};

// The first of n values at which the sum from the first on reaches `wanted`, and the sum of those before it.
// Needs combine_groups with Add.
struct Place {
    int index;
    Sum before;
};
template <int threads>
__device__ Place reach(const Shared<threads>& s, int n, Sum wanted) {
    Place at{0, 0};
    int g = 0;
    while ((g + 1) * s.group < n && at.before + s.of_group[g] < wanted) at.before += s.of_group[g++];
    at.index = g * s.group;
    while (at.index + 1 < n && at.before + s.values[at.index] < wanted) at.before += s.values[at.index++];
    return at;
}

template <int threads, class T>
struct Row {
    const T* logits;
    int V;
    float largest;
    double inverse_temperature;
    Sum last_key;  // tokens with greater keys are not kept

    __device__ float logit(int id) const { return static_cast<float>(logits[id]); }
    __device__ Sum weight(float logit) const {
        const double x = (static_cast<double>(logit) - static_cast<double>(largest)) * inverse_temperature;
        return static_cast<Sum>(
            static_cast<long long>(simt::exp_nonpositive(static_cast<float>(x)) * 0x1p36f));
    }
    __device__ Sum kept_weight(int id) const {
        const float own = logit(id);
        return key_of(own, id) <= last_key ? weight(own) : 0;
    }
    // The ids that this thread adds up.
    __device__ int begin_of_share() const { return min(V, simt::row_lane<threads>() * share()); }
    __device__ int end_of_share() const { return min(V, begin_of_share() + share()); }
    __device__ int share() const { return ceil_div(V, threads); }

    // The total of the kept weights, of which s.values has each thread's part.
    __device__ Sum total(const Shared<threads>& s) const {
        Sum part = 0;
        for (int id = begin_of_share(); id < end_of_share(); id++) part += kept_weight(id);
        s.values[simt::row_lane<threads>()] = part;
        return combine_all(s, threads, Add{});
    }

    // The first token of this thread's share at which the sum, `before` those of the share, exceeds point.
    __device__ int token_at(Sum before, Sum point) const {
        int id = begin_of_share();
        while (id + 1 < end_of_share() && (before += kept_weight(id)) <= point) id++;
        return id;
    }

    // The last key of the fewest likeliest tokens of which there are `wanted`, or whose weights sum to that.
    template <bool by_weight>
    __device__ Sum find_last_key(const Shared<threads>& s, Sum wanted) const {
        constexpr int digit_bits = Shared<threads>::digit_bits, digits = Shared<threads>::digits;
        const int lane = simt::row_lane<threads>();
        Sum prefix = 0;  // of the key
        for (int shift = key_bits - digit_bits;; shift -= digit_bits) {
            for (int digit = 0; digit < digits; digit++)
                s.counts[digit * threads + lane] = 0, s.sums[digit * threads + lane] = 0;
            for (int id = lane; id < V; id += threads) {
                const float own = logit(id);
                const Sum key = key_of(own, id);
                if (key > last_key || key >> shift >> digit_bits != prefix) continue;
                const int at = static_cast<int>(key >> shift & (digits - 1)) * threads + lane;
                s.counts[at]++;
                s.sums[at] += by_weight ? weight(own) : 1;
            }
            s.fold_all();
            combine_groups(s, digits, Add{});
            const Place place = reach(s, digits, wanted);
            wanted -= place.before;
            prefix = prefix << digit_bits | static_cast<Sum>(place.index);
            // All tokens that begin with these digits are kept: no more digits are needed.
            const bool whole =
                s.counts[place.index * threads] == 1 || s.values[place.index] == wanted || shift == 0;
            simt::row_barrier<threads>();  // before the next digits are counted
            // Tokens that top-k has excluded may begin with the same digits.
            if (whole) return Smaller{}(last_key, (prefix + 1) * (Sum{1} << shift) - 1);
        }
    }
};

// token = -1 for logits that are not finite: a NaN, plus infinity, or nothing but minus infinity.
template <class W, class T>
__global__ void __launch_bounds__(simt::block_of<W>, 1)
    kernel(int* tokens, SampledRows<T> rows, Choice choice) {
    constexpr int threads = W::threads;
    simt::SharedMemory memory;
    const Shared<threads> s(memory);
    Row<threads, T> row{rows.logits + blockIdx.x * rows.stride, rows.V, 0, choice.inverse_temperature,
                        ~Sum{0}};
    const int lane = simt::row_lane<threads>();
    Sum first = ~Sum{0};
    for (int id = lane; id < rows.V; id += threads) first = Smaller{}(first, key_of(row.logit(id), id));
    s.values[lane] = first;
    first = combine_all(s, threads, Smaller{});
    simt::row_barrier<threads>();  // before s is used again
    const int likeliest = static_cast<int>(first & 0xffffffffu);
    row.largest = row.logit(likeliest);
    const bool finite = row.largest > -INFINITY && row.largest < INFINITY;
    int token = finite ? likeliest : -1, writer = 0;
    if (finite && choice.inverse_temperature > 0) {  // the same for all threads of the block
        if (choice.top_k > 0 && choice.top_k < rows.V)
            row.last_key = row.template find_last_key<false>(s, static_cast<Sum>(choice.top_k));
        if (choice.top_p < 1) {
            const Sum total = row.total(s);
            const double share = choice.top_p * static_cast<double>(total);
            const Sum below = static_cast<Sum>(share),
                      wanted = static_cast<double>(below) < share ? below + 1 : below;
            row.last_key = row.template find_last_key<true>(s, Smaller{}(wanted, total));
        }
        Draw draw = choice.first;
        draw.sample += blockIdx.x;
        const Sum total = row.total(s),
                  point = Smaller{}(static_cast<Sum>(uniform(draw) * static_cast<double>(total)), total - 1);
        const Place place = reach(s, threads, point + 1);
        writer = place.index;
        if (lane == writer) token = row.token_at(place.before, point);
    }
    if (lane == writer) tokens[blockIdx.x] = token;
}

}  // namespace decode_sample_detail

// tokens[r] = the token drawn from row r for sample first.sample + r, or -1 if the row has a NaN or plus
// infinity or nothing but minus infinity. Reads a row three times, with top-p once more, and with either of
// top-k and top-p once more for every digit of a key that it needs: at most 16, usually half as many.
template <class W = simt::NativeWidth<256>, class T>
void decode_sample(int* tokens, const SampledRows<T>& rows, const Sampling& sampling, const Draw& first,
                   stream_t stream) {
    using namespace decode_sample_detail;
    check(sampling);
    CHECK(rows.count > 0 && rows.V > 0, "decode_sample: {} rows of {} logits; expected 1 or more of both",
          rows.count, rows.V);
    const double t = sampling.temperature;
    launch(kernel<W, T>, static_cast<unsigned>(rows.count), W::threads, Shared<W::threads>::bytes(), stream,
           tokens, rows, Choice{sampling.top_k, sampling.top_p, t > 0 ? std::min(1 / t, DBL_MAX) : 0, first});
}
