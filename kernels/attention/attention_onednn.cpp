// attention_onednn.cpp: causal attention by oneDNN's matrix products, for processors with matrix
//   instructions (AMX), which our own kernels do not use
//   A thread takes a head, copies its matrices out of the packed tensors, and processes blocks of
//   queries. The scores of a block against all keys up to its last query are one product, so the softmax
//   is an ordinary one, and memory is O(T).
//   The formulas are those of attention.cuh. In bfloat16 P and dS are rounded before they are
//   multiplied, because the matrix instructions take bfloat16.
#include "kernels/attention/attention_onednn.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/gemm/onednn_product.h"
#include "kernels/simt/math.cuh"

namespace {

// Queries of a block: their scores against 1024 keys are 256 KiB, which fit in a part of the
// second-level cache.
constexpr size_t block_rows = 64;

// Threads share nothing: in forward a thread takes a head of q, in backward all that share k and v.
size_t threads_for(AttentionShape s) {
    return std::min<size_t>(omp_get_max_threads(), static_cast<size_t>(s.B) * s.NH);
}

// One head's matrix in a packed tensor.
template <class T>
struct HeadRows {
    T* first;
    size_t stride, count, columns;
    T* row(size_t t) const { return first + t * stride; }
};
template <class T>
HeadRows<T> packed(T* qkv, AttentionShape s, size_t head, size_t which) {
    const size_t heads = s.NH + 2 * s.NKV, b = head / s.NH, h = head % s.NH, length = s.T, HS = s.HS,
                 at = which == 0 ? h : s.NH + (which - 1) * s.NKV + h / s.queries();
    return {qkv + (b * length * heads + at) * HS, heads * HS, length, HS};
}
template <class T>
HeadRows<T> plain(T* out, AttentionShape s, size_t head) {
    const size_t width = static_cast<size_t>(s.NH) * s.HS, b = head / s.NH, h = head % s.NH, length = s.T;
    return {out + b * length * width + h * s.HS, width, length, static_cast<size_t>(s.HS)};
}

template <class T>
void gather(T* dense, HeadRows<const T> from) {
    for (size_t t = 0; t < from.count; t++) std::copy_n(from.row(t), from.columns, dense + t * from.columns);
}
template <class T>
void scatter(HeadRows<T> to, size_t begin, size_t rows, const float* dense) {
    for (size_t t = 0; t < rows; t++) {
        T* row = to.row(begin + t);
        for (size_t c = 0; c < to.columns; c++) row[c] = T(dense[t * to.columns + c]);
    }
}

template <class T>
float dot(const T* x, const T* y, size_t count) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < count; i++) sum += static_cast<float>(x[i]) * static_cast<float>(y[i]);
    return sum;
}

// p = softmax of scale * scores over the first `seen` of `count` keys, and 0 for the others. Returns the
// logarithm of the sum of exp(scale * scores).
template <class T>
float softmax(T* p, float* scores, size_t seen, size_t count, float scale) {
    float maximum = scores[0];
#pragma omp simd reduction(max : maximum)
    for (size_t k = 0; k < seen; k++) maximum = scores[k] > maximum ? scores[k] : maximum;
    maximum *= scale;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t k = 0; k < seen; k++) {
        scores[k] = simt::exp(scores[k] * scale - maximum);
        sum += scores[k];
    }
    const float reciprocal = 1 / sum;
    for (size_t k = 0; k < seen; k++) p[k] = T(scores[k] * reciprocal);
    for (size_t k = seen; k < count; k++) p[k] = T(0.0f);
    return maximum + std::log(sum);
}

// p = exp(scale * scores - lse) and ds = p * (dp - d) * scale over the first `seen` of `count` keys, and
// 0 for the others
template <class T>
void softmax_gradient(T* p, T* ds, const float* scores, const float* dp, float lse, float d, size_t seen,
                      size_t count, float scale) {
    for (size_t k = 0; k < seen; k++) {
        const float e = simt::exp(scores[k] * scale - lse);
        const float gradient = e * (dp[k] - d) * scale;
        p[k] = T(e);
        ds[k] = T(gradient);
    }
    for (size_t k = seen; k < count; k++) p[k] = ds[k] = T(0.0f);
}

// A thread's part of the workspace.
template <class T>
struct Buffers {
    T *q, *k, *v, *dout, *p, *ds;
    float *scores, *dp, *dk, *dv, *block;
    std::byte* scratch;  // oneDNN's: the rest of the thread's part

    // With memory = nullptr it only counts the bytes.
    Buffers(std::byte* memory, AttentionShape s, size_t* bytes = nullptr) {
        const size_t T_HS = static_cast<size_t>(s.T) * s.HS, rows = std::min<size_t>(block_rows, s.T),
                     products = rows * s.T;
        size_t offset = 0;
        const auto take = [&]<class Element>(Element*& array, size_t count) {
            array = memory ? reinterpret_cast<Element*>(memory + offset) : nullptr;
            offset += (count * sizeof(Element) + 255) / 256 * 256;
        };
        for (T** array : {&q, &k, &v, &dout}) take(*array, T_HS);
        for (T** array : {&p, &ds}) take(*array, products);
        for (float** array : {&scores, &dp}) take(*array, products);
        for (float** array : {&dk, &dv}) take(*array, T_HS);
        take(block, rows * s.HS);
        take(scratch, 0);
        if (bytes) *bytes = offset;
    }
};

// The products of a block of `rows` queries and `keys` keys; their results are fp32, and dkv is added.
struct BlockProducts {
    static constexpr auto fp32 = onednn_type<float>;
    OneDnnShape scores, out, dkv;  // S and dP; O and dQ; dK and dV

    BlockProducts(dnnl::memory::data_type type, size_t rows, size_t keys, size_t HS)
        : scores{.type = type, .result = fp32, .M = rows, .N = keys, .K = HS, .transposed_b = true},
          out{.type = type, .result = fp32, .M = rows, .N = HS, .K = keys},
          dkv{.type = type, .result = fp32, .M = keys, .N = HS, .K = rows, .transposed_a = true, .beta = 1} {}
};

// Calls body(begin, rows, keys) for every block of queries.
template <class Body>
void for_each_block(AttentionShape s, Body body) {
    const size_t length = s.T;
    for (size_t begin = 0; begin < length; begin += block_rows) {
        const size_t rows = std::min(block_rows, length - begin);
        body(begin, rows, begin + rows);
    }
}

// Runs body(thread, team) on every thread of a team, which OpenMP may make smaller than `threads`. Primitives
// that body makes are for its own thread alone; without this, oneDNN would divide each product among several
// threads.
template <class Body>
void on_threads(size_t threads, Body body) {
    std::exception_ptr error;  // an exception must not leave the parallel region
#pragma omp parallel num_threads(threads)
    {
        omp_set_num_threads(1);  // holds until the region ends
        try {
            body(static_cast<size_t>(omp_get_thread_num()), static_cast<size_t>(omp_get_num_threads()));
        } catch (...) {
#pragma omp critical
            error = std::current_exception();
        }
    }
    if (error) std::rethrow_exception(error);
}

}  // namespace

// The products of one thread.
class OneDnnAttention::Thread {
public:
    template <class T>
    void multiply(const OneDnnShape& shape, float* dst, const T* a, const T* b, void* scratch) {
        auto found = products_.find(shape);
        if (found == products_.end()) found = products_.emplace(shape, describe(shape)).first;
        found->second.run(stream_, dst, a, b, nullptr, scratch);
    }

    template <class T>
    void forward(T* out, float* lse, const T* qkv, AttentionShape s, size_t head, const Buffers<T>& buffers) {
        const size_t T_ = s.T, HS = s.HS;
        const float scale = 1 / std::sqrt(static_cast<float>(HS));
        gather(buffers.q, packed(qkv, s, head, 0));
        gather(buffers.k, packed(qkv, s, head, 1));
        gather(buffers.v, packed(qkv, s, head, 2));
        for_each_block(s, [&](size_t begin, size_t rows, size_t keys) {
            const BlockProducts products(onednn_type<T>, rows, keys, HS);
            multiply(products.scores, buffers.scores, buffers.q + begin * HS, buffers.k, buffers.scratch);
            for (size_t i = 0; i < rows; i++) {
                lse[head * T_ + begin + i] =
                    softmax(buffers.p + i * keys, buffers.scores + i * keys, begin + i + 1, keys, scale);
            }
            multiply(products.out, buffers.block, buffers.p, buffers.v, buffers.scratch);
            scatter(plain(out, s, head), begin, rows, buffers.block);
        });
    }

    // head: the first of those that share k and v
    template <class T>
    void backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse, AttentionShape s,
                  size_t head, const Buffers<T>& buffers) {
        const size_t T_ = s.T, HS = s.HS, queries = s.queries();
        gather(buffers.k, packed(qkv, s, head, 1));
        gather(buffers.v, packed(qkv, s, head, 2));
        std::fill_n(buffers.dk, T_ * HS, 0.0f);
        std::fill_n(buffers.dv, T_ * HS, 0.0f);
        for (size_t i = 0; i < queries; i++)
            backward_of_queries(dqkv, dout, qkv, out, lse, s, head + i, buffers);
        scatter(packed(dqkv, s, head, 1), 0, T_, buffers.dk);
        scatter(packed(dqkv, s, head, 2), 0, T_, buffers.dv);
    }

private:
    // Writes dq of a head, and adds to the dk and dv of its keys and values.
    template <class T>
    void backward_of_queries(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse,
                             AttentionShape s, size_t head, const Buffers<T>& buffers) {
        const size_t T_ = s.T, HS = s.HS;
        const float scale = 1 / std::sqrt(static_cast<float>(HS));
        gather(buffers.q, packed(qkv, s, head, 0));
        gather(buffers.dout, plain(dout, s, head));
        for_each_block(s, [&](size_t begin, size_t rows, size_t keys) {
            const BlockProducts products(onednn_type<T>, rows, keys, HS);
            const T *const q = buffers.q + begin * HS, *const dout_rows = buffers.dout + begin * HS;
            multiply(products.scores, buffers.scores, q, buffers.k, buffers.scratch);
            multiply(products.scores, buffers.dp, dout_rows, buffers.v, buffers.scratch);
            for (size_t i = 0; i < rows; i++) {
                const float d = dot(dout_rows + i * HS, plain(out, s, head).row(begin + i), HS);
                softmax_gradient(buffers.p + i * keys, buffers.ds + i * keys, buffers.scores + i * keys,
                                 buffers.dp + i * keys, lse[head * T_ + begin + i], d, begin + i + 1, keys,
                                 scale);
            }
            multiply(products.dkv, buffers.dv, buffers.p, dout_rows, buffers.scratch);
            multiply(products.dkv, buffers.dk, buffers.ds, q, buffers.scratch);
            multiply(products.out, buffers.block, buffers.ds, buffers.k, buffers.scratch);
            scatter(packed(dqkv, s, head, 0), begin, rows, buffers.block);
        });
    }

    dnnl::stream stream_{onednn_cpu()};
    std::map<OneDnnShape, OneDnnProduct> products_;
};

OneDnnAttention::OneDnnAttention() = default;
OneDnnAttention::~OneDnnAttention() = default;

template <class T>
bool OneDnnAttention::supports() {
    return static_cast<bool>(describe(BlockProducts(onednn_type<T>, 16, 16, 16).scores));
}

// Asks oneDNN for the scratch of every product, once for each T and HS: for a million tokens this takes
// half a second, and a memory plan asks for many models of one shape.
template <class T>
size_t OneDnnAttention::part_bytes(AttentionShape s) {
    static std::mutex mutex;
    static std::map<std::pair<int, int>, size_t> known;  // by T and HS
    const std::scoped_lock lock(mutex);
    size_t& bytes = known[{s.T, s.HS}];
    if (bytes > 0) return bytes;
    CHECK(supports<T>(),
          "--attention onednn: oneDNN cannot multiply {} on this processor; use --attention kernel",
          sizeof(T) == 2 ? "bf16" : "fp32");
    size_t arrays = 0, scratch = 0;
    Buffers<T>(nullptr, s, &arrays);
    on_threads(1, [&](size_t, size_t) {
        for_each_block(s, [&](size_t, size_t rows, size_t keys) {
            const BlockProducts products(onednn_type<T>, rows, keys, s.HS);
            for (const OneDnnShape& product : {products.scores, products.out, products.dkv})
                scratch = std::max(scratch, describe(product).scratchpad_desc().get_size());
        });
    });
    bytes = arrays + (scratch + 255) / 256 * 256;
    return bytes;
}

template <class T>
size_t OneDnnAttention::workspace_bytes(AttentionShape shape) {
    return threads_for(shape) * part_bytes<T>(shape);
}

template <class T, class Body>
void OneDnnAttention::for_each_head(AttentionShape shape, size_t step, void* workspace, Body body) {
    const size_t threads = threads_for(shape), part = part_bytes<T>(shape);
    while (threads_.size() < threads) threads_.push_back(std::make_unique<Thread>());
    on_threads(threads, [&](size_t me, size_t team) {
        const Buffers<T> buffers(static_cast<std::byte*>(workspace) + me * part, shape);
        for (size_t head = me * step; head < static_cast<size_t>(shape.B) * shape.NH; head += team * step)
            body(*threads_[me], head, buffers);
    });
}

template <class T>
void OneDnnAttention::forward(T* out, float* lse, const T* qkv, AttentionShape shape, void* workspace) {
    for_each_head<T>(shape, 1, workspace, [&](Thread& thread, size_t head, const Buffers<T>& buffers) {
        thread.forward(out, lse, qkv, shape, head, buffers);
    });
}

template <class T>
void OneDnnAttention::backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse,
                               AttentionShape shape, void* workspace) {
    const size_t step = shape.queries();
    for_each_head<T>(shape, step, workspace, [&](Thread& thread, size_t head, const Buffers<T>& buffers) {
        thread.backward(dqkv, dout, qkv, out, lse, shape, head, buffers);
    });
}

#define INSTANTIATE(T) \
    template bool OneDnnAttention::supports<T>(); \
    template size_t OneDnnAttention::workspace_bytes<T>(AttentionShape); \
    template void OneDnnAttention::forward(T*, float*, const T*, AttentionShape, void*); \
    template void OneDnnAttention::backward(T*, const T*, const T*, const T*, const float*, AttentionShape, \
                                            void*);
INSTANTIATE(float)
INSTANTIATE(bfloat16)
