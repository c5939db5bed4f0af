// attention_forms: causal attention that stores its (T, T) matrices beside attention in tiles, for
// docs/learn/7-attention.md
//   attention_forms HEADS HEAD_SIZE MILLISECONDS LENGTH...
//   One sequence of each length, in fp32, of normally distributed numbers.
//   Forms: naive (below), tiles (kernels/attention/attention.cuh), and blocks (attention_onednn.cpp, which
//   computes 64 queries at a time by the products of the same library as naive).
//   Prints one JSON object a line, for each length and form:
//   forward, backward: milliseconds of the fastest call; the forms take turns for MILLISECONDS, at least
//   three turns
//   kept, scratch: bytes that are allocated between forward and backward beside out, and during a call
//   out_error, dqkv_error: relative to test/plain_gpt2.h in double precision
#include <dnnl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dev/learn/number.h"
#include "kernels/attention/attention.h"
#include "kernels/simt/math.cuh"
#include "system/run_main.h"
#include "test/plain_gpt2.h"

namespace {

using Floats = simt::DeviceBuffer<float>;  // aligned as the kernels expect

// ---- the naive form ----

// c (M, N) = alpha op(a) op(b), the inner size of which is K; a row begins `stride` elements after another
struct Matrix {
    const float* data;
    size_t stride;
    bool transposed = false;
};
void multiply(float* c, size_t c_stride, Matrix a, Matrix b, size_t M, size_t N, size_t K,
              float alpha = 1.0f) {
    const auto size = [](size_t n) { return static_cast<dnnl_dim_t>(n); };
    CHECK(dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', size(M), size(N), size(K), alpha,
                     a.data, size(a.stride), b.data, size(b.stride), 0.0f, c, size(c_stride)) == dnnl_success,
          "oneDNN does not multiply ({}, {}) by ({}, {})", M, K, K, N);
}

// p (T, T) holds scores and becomes the softmax of each row's keys up to the query's own; 0 after them.
void causal_softmax(float* p, size_t T) {
#pragma omp parallel for schedule(static, 8)
    for (size_t t = 0; t < T; t++) {
        float* row = p + t * T;
        float maximum = row[0], sum = 0;
#pragma omp simd reduction(max : maximum)
        for (size_t s = 0; s <= t; s++) maximum = row[s] > maximum ? row[s] : maximum;
#pragma omp simd reduction(+ : sum)
        for (size_t s = 0; s <= t; s++) {
            row[s] = simt::exp(row[s] - maximum);
            sum += row[s];
        }
        const float reciprocal = 1 / sum;
        for (size_t s = 0; s <= t; s++) row[s] *= reciprocal;
        std::fill(row + t + 1, row + T, 0.0f);
    }
}

// ds (T, T) holds dP and becomes P (dP - rowsum(P dP)).
void softmax_backward(float* ds, const float* p, size_t T) {
#pragma omp parallel for schedule(static, 8)
    for (size_t t = 0; t < T; t++) {
        float* row = ds + t * T;
        const float* weights = p + t * T;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t s = 0; s <= t; s++) sum += weights[s] * row[s];
        for (size_t s = 0; s <= t; s++) row[s] = weights[s] * (row[s] - sum);
        std::fill(row + t + 1, row + T, 0.0f);
    }
}

// ---- the three forms behind one interface ----

struct Form {
    std::string name;
    size_t kept, scratch;  // bytes
    std::function<void(float* out, const float* qkv)> forward;
    std::function<void(float* dqkv, const float* dout, const float* qkv, const float* out)> backward;
};

Form naive(AttentionShape s) {
    const size_t T = s.T, HS = s.HS, NH = s.NH, wide = 3 * NH * HS, width = NH * HS;
    const float scale = 1 / std::sqrt(static_cast<float>(HS));
    const auto p = std::make_shared<Floats>(NH * T * T), ds = std::make_shared<Floats>(T * T);
    return {"naive", p->bytes(), ds->bytes(),
            [=](float* out, const float* qkv) {
                for (size_t h = 0; h < NH; h++) {
                    const float *q = qkv + h * HS, *k = q + width, *v = k + width;
                    float* of_head = p->data() + h * T * T;
                    multiply(of_head, T, {q, wide}, {k, wide, true}, T, T, HS, scale);
                    causal_softmax(of_head, T);
                    multiply(out + h * HS, width, {of_head, T}, {v, wide}, T, HS, T);
                }
            },
            [=](float* dqkv, const float* dout, const float* qkv, const float*) {
                for (size_t h = 0; h < NH; h++) {
                    const float *q = qkv + h * HS, *k = q + width, *v = k + width,
                                *of_head = p->data() + h * T * T;
                    float *dq = dqkv + h * HS, *dk = dq + width, *dv = dk + width;
                    const Matrix gradient{dout + h * HS, width};
                    multiply(dv, wide, {of_head, T, true}, gradient, T, HS, T);
                    multiply(ds->data(), T, gradient, {v, wide, true}, T, T, HS);
                    softmax_backward(ds->data(), of_head, T);
                    multiply(dq, wide, {ds->data(), T}, {k, wide}, T, HS, T, scale);
                    multiply(dk, wide, {ds->data(), T, true}, {q, wide}, T, HS, T, scale);
                }
            }};
}

Form of_the_program(const char* name, AttentionBackend backend, AttentionShape s) {
    const auto attention = std::make_shared<Attention>(backend);
    const auto lse = std::make_shared<Floats>(static_cast<size_t>(s.NH) * static_cast<size_t>(s.T));
    const auto workspace = std::make_shared<simt::DeviceBuffer<char>>(attention->workspace_bytes<float>(s));
    return {name, lse->bytes(), workspace->bytes(),
            [=](float* out, const float* qkv) {
                attention->forward(out, lse->data(), qkv, s, workspace->data(), nullptr);
            },
            [=](float* dqkv, const float* dout, const float* qkv, const float* out) {
                attention->backward(dqkv, dout, qkv, out, lse->data(), s, workspace->data(), nullptr);
            }};
}

// ---- what is measured ----

struct Tensors {
    Floats qkv, dout, out, dqkv;

    explicit Tensors(AttentionShape s)
        : qkv(3 * count(s)), dout(count(s)), out(count(s)), dqkv(3 * count(s)) {
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        std::generate_n(qkv.data(), qkv.size(), [&] { return normal(random); });
        std::generate_n(dout.data(), dout.size(), [&] { return normal(random); });
    }
    static size_t count(AttentionShape s) {
        return static_cast<size_t>(s.T) * static_cast<size_t>(s.NH) * static_cast<size_t>(s.HS);
    }
};

struct Exact {
    std::vector<double> out, dqkv;

    // Head by head, as each is a sequence with one head of its own: several threads compute them.
    Exact(const Tensors& tensors, AttentionShape s) : out(tensors.out.size()), dqkv(tensors.dqkv.size()) {
        const size_t T = s.T, NH = s.NH, HS = s.HS;
#pragma omp parallel for
        for (size_t h = 0; h < NH; h++) {
            std::vector<double> qkv(3 * T * HS), dout(T * HS), lse(T), of_head(T * HS), gradient(3 * T * HS);
            for (size_t i = 0; i < 3 * T * HS; i++)
                qkv[i] = tensors.qkv.data()[(i / HS * NH + h) * HS + i % HS];
            for (size_t i = 0; i < T * HS; i++)
                dout[i] = tensors.dout.data()[(i / HS * NH + h) * HS + i % HS];
            plain::attention_forward(of_head.data(), lse.data(), qkv.data(), 1, T, 1, HS);
            plain::attention_backward(gradient.data(), dout.data(), qkv.data(), of_head.data(), lse.data(), 1,
                                      T, 1, HS);
            for (size_t i = 0; i < T * HS; i++) out[(i / HS * NH + h) * HS + i % HS] = of_head[i];
            for (size_t i = 0; i < 3 * T * HS; i++) dqkv[(i / HS * NH + h) * HS + i % HS] = gradient[i];
        }
    }
};

// |computed - exact| / |exact|
double error(const Floats& computed, const std::vector<double>& exact) {
    double difference = 0, length = 0;
    for (size_t i = 0; i < exact.size(); i++) {
        const double d = static_cast<double>(computed.data()[i]) - exact[i];
        difference += d * d;
        length += exact[i] * exact[i];
    }
    return std::sqrt(difference / length);
}

double milliseconds(const std::function<void()>& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

void measure(AttentionShape s, double milliseconds_of_calls) {
    const Tensors t(s);
    const Exact exact(t, s);
    const Form forms[] = {naive(s), of_the_program("tiles", AttentionBackend::kernel, s),
                          of_the_program("blocks", AttentionBackend::onednn, s)};
    struct Result {
        double forward = std::numeric_limits<double>::infinity(), backward = forward, out = 0, dqkv = 0;
    };
    std::vector<Result> results(std::size(forms));
    double taken = 0;
    // The first turn, in which primitives are made, does not count.
    for (int turn = 0; turn <= 3 || taken < milliseconds_of_calls; turn++) {
        for (size_t i = 0; i < std::size(forms); i++) {
            std::fill_n(t.out.data(), t.out.size(), NAN);
            std::fill_n(t.dqkv.data(), t.dqkv.size(), NAN);
            const double forward = milliseconds([&] { forms[i].forward(t.out.data(), t.qkv.data()); });
            const double backward = milliseconds(
                [&] { forms[i].backward(t.dqkv.data(), t.dout.data(), t.qkv.data(), t.out.data()); });
            taken += forward + backward;
            if (turn == 0) {
                results[i].out = error(t.out, exact.out);
                results[i].dqkv = error(t.dqkv, exact.dqkv);
            } else {
                results[i].forward = std::min(results[i].forward, forward);
                results[i].backward = std::min(results[i].backward, backward);
            }
        }
    }
    for (size_t i = 0; i < std::size(forms); i++) {
        const auto& [forward, backward, out, dqkv] = results[i];
        write_output(
            fmt::format(
                "{{\"length\": {}, \"form\": \"{}\", \"forward\": {}, \"backward\": {}, \"kept\": {}, "
                "\"scratch\": {}, \"out_error\": {}, \"dqkv_error\": {}}}\n",
                s.T, forms[i].name, forward, backward, forms[i].kept, forms[i].scratch, out, dqkv),
            "the result");
    }
}

}  // namespace

int main(int argc, char** argv) {
    return run_main("attention_forms", [&] {
        CHECK(argc > 4, "expected HEADS HEAD_SIZE MILLISECONDS LENGTH...");
        simt::select_device();
        for (int i = 4; i < argc; i++)
            measure(
                {.B = 1, .T = number<int>(argv[i]), .NH = number<int>(argv[1]), .HS = number<int>(argv[2])},
                number<int>(argv[3]));
    });
}
