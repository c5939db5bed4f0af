// plain_llama.h: the operations of a Llama block in plain loops, beside those of plain_gpt2.h
//   The kernels' tests compare with them. Number is float, double, or Bounded (bounded.h). The gradient of x
//   is dx. Gradients of parameters are added to (+=), all others are written (=).
#pragma once
#include "plain_gpt2.h"

namespace plain {

// out = inp * rstd * weight, rstd = 1 / sqrt(average of inp^2 + eps)
//   inp, out (N, C)   weight (C)   rstd (N)
template <class Number>
void rmsnorm_forward(Number* out, Number* rstd, const Number* inp, const Number* weight, double eps, size_t N,
                     size_t C) {
    for (size_t n = 0; n < N; n++) {
        const Number* x = inp + n * C;
        rstd[n] = Number(1) / sqrt(dot(x, x, C) / Number(C) + Number(eps));
        for (size_t c = 0; c < C; c++) out[n * C + c] = x[c] * rstd[n] * weight[c];
    }
}
// dnorm = dout * weight;  dinp = rstd * (dnorm - norm * average(dnorm * norm))
// dweight += sum of dout * norm
template <class Number>
void rmsnorm_backward(Number* dinp, Number* dweight, const Number* dout, const Number* inp,
                      const Number* weight, const Number* rstd, size_t N, size_t C) {
    for (size_t n = 0; n < N; n++) {
        const Number *x = inp + n * C, *d = dout + n * C;
        Number sum = 0;
        for (size_t c = 0; c < C; c++) {
            sum += d[c] * weight[c] * (x[c] * rstd[n]);
            dweight[c] += d[c] * (x[c] * rstd[n]);
        }
        for (size_t c = 0; c < C; c++)
            dinp[n * C + c] = rstd[n] * (d[c] * weight[c] - x[c] * rstd[n] * (sum / Number(C)));
    }
}

// Turns channels i and i + HS/2 of the queries and keys at position t by the angle t * theta^(-2i / HS), or
// back by it (direction -1).
//   qkv (B, T, NH + 2 NKV, HS)
template <class Number>
void rope(Number* qkv, double theta, double direction, size_t first, size_t B, size_t T, size_t NH,
          size_t NKV, size_t HS) {
    for (size_t row = 0; row < B * T * (NH + NKV); row++) {
        const size_t token = row / (NH + NKV), head = row % (NH + NKV);
        Number* x = qkv + (token * (NH + 2 * NKV) + head) * HS;
        for (size_t i = 0; i < HS / 2; i++) {
            const double angle = static_cast<double>(first + token % T) *
                                 std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(HS));
            const Number cosine = std::cos(angle), sine = direction * std::sin(angle), a = x[i],
                         b = x[i + HS / 2];
            x[i] = a * cosine - b * sine;
            x[i + HS / 2] = b * cosine + a * sine;
        }
    }
}

// out = silu(gate) * up, silu(z) = z sigmoid(z)
//   gate_up, dgate_up (N, 2, H)   out, dout (N, H)
template <class Number>
void swiglu_forward(Number* out, const Number* gate_up, size_t N, size_t H) {
    for (size_t i = 0; i < N * H; i++) {
        const Number gate = gate_up[i / H * 2 * H + i % H], up = gate_up[(i / H * 2 + 1) * H + i % H];
        out[i] = gate * sigmoid(gate) * up;
    }
}
template <class Number>
void swiglu_backward(Number* dgate_up, const Number* dout, const Number* gate_up, size_t N, size_t H) {
    for (size_t i = 0; i < N * H; i++) {
        const size_t at = i / H * 2 * H + i % H;
        const Number gate = gate_up[at], up = gate_up[at + H], s = sigmoid(gate);
        dgate_up[at] = dout[i] * up * (s + gate * s * sigmoid(-gate));
        dgate_up[at + H] = dout[i] * gate * s;
    }
}

// act = max(x, 0)^2;  dx = 2 max(x, 0) dact, from act
template <class Number>
void relu2_forward(Number* act, const Number* x, size_t count) {
    for (size_t i = 0; i < count; i++) act[i] = x[i] < Number(0) ? Number(0) : x[i] * x[i];
}
template <class Number>
void relu2_backward(Number* dx, const Number* dact, const Number* act, size_t count) {
    for (size_t i = 0; i < count; i++) dx[i] = Number(2) * sqrt(act[i]) * dact[i];
}

// As cross_entropy_forward_backward, of the logits cap tanh(logits / cap), whose slope is
// 1 / cosh(logits / cap)^2.
template <class Number>
void capped_cross_entropy(Number* losses, Number* dlogits, const Number* logits, const int* targets,
                          Number dloss, double cap, size_t N, size_t V, size_t Vp) {
    std::vector<Number> capped(N * Vp);
    for (size_t i = 0; i < N * Vp; i++) capped[i] = Number(cap) * tanh(logits[i] / Number(cap));
    cross_entropy_forward_backward(losses, dlogits, capped.data(), targets, dloss, N, V, Vp);
    for (size_t i = 0; i < N * Vp; i++) {
        const Number x = logits[i] / Number(cap), e = exp(x < Number(0) ? x : -x),
                     cosh = (Number(1) + e * e) / (Number(2) * e);
        dlogits[i] = dlogits[i] / (cosh * cosh);
    }
}

// A head of k and v that NH / NKV heads of q share, as that many heads:
// (N, 3, NH, HS) from (N, NH + 2 NKV, HS)
template <class Number>
std::vector<Number> repeat_heads(const std::vector<Number>& qkv, size_t NH, size_t NKV, size_t HS) {
    std::vector<Number> all;
    for (size_t n = 0; n < qkv.size() / ((NH + 2 * NKV) * HS); n++) {
        for (size_t h = 0; h < 3 * NH; h++) {
            const size_t from = h < NH ? h : NH + h / NH * NKV - NKV + h % NH / (NH / NKV);
            const auto at = qkv.begin() + static_cast<std::ptrdiff_t>((n * (NH + 2 * NKV) + from) * HS);
            all.insert(all.end(), at, at + static_cast<std::ptrdiff_t>(HS));
        }
    }
    return all;
}
// The reverse for gradients: those of the repeated heads are added up.
template <class Number>
std::vector<Number> add_heads(const std::vector<Number>& dqkv, size_t NH, size_t NKV, size_t HS) {
    const size_t N = dqkv.size() / (3 * NH * HS);
    std::vector<Number> all(N * (NH + 2 * NKV) * HS, Number(0));
    for (size_t i = 0; i < dqkv.size(); i++) {
        const size_t n = i / (3 * NH * HS), h = i / HS % (3 * NH),
                     to = h < NH ? h : NH + h / NH * NKV - NKV + h % NH / (NH / NKV);
        Number& sum = all[(n * (NH + 2 * NKV) + to) * HS + i % HS];
        if (h < NH) sum = dqkv[i];
        else sum += dqkv[i];
    }
    return all;
}

}  // namespace plain
