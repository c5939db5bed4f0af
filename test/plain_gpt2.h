// plain_gpt2.h: GPT-2 in plain loops: every operation forward and backward, the whole model, and AdamW
//   It says what the kernels compute. They are faster, fuse operations, and keep numbers of fewer bits; their
//   tests compare them with these loops, and test_plain_gpt2.cpp compares the loops with PyTorch.
//
//   B sequences of T tokens are N = B T positions. A position has C channels, in NH heads of HS = C / NH; a
//   matmul makes OC channels of C. There are V tokens in the vocabulary. Arrays are row-major: the last index
//   of a shape runs fastest. Number is float, double, or Bounded (bounded.h).
//   The gradient of x is dx. Gradients of parameters are added to (+=), all others are written (=).
//   Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace plain {

using std::exp, std::log, std::sqrt;

// ---- operations ----

// out = wte[token] + wpe[t], the embeddings of the token and of its place in the sequence
//   out (N, C)   tokens (N)   wte (V, C)   wpe (longest sequence, C)
template <class Number>
void encoder_forward(Number* out, const int* tokens, const Number* wte, const Number* wpe, size_t N, size_t T,
                     size_t C) {
    for (size_t n = 0; n < N; n++) {
        for (size_t c = 0; c < C; c++) out[n * C + c] = wte[tokens[n] * C + c] + wpe[n % T * C + c];
    }
}
template <class Number>
void encoder_backward(Number* dwte, Number* dwpe, const Number* dout, const int* tokens, size_t N, size_t T,
                      size_t C) {
    for (size_t n = 0; n < N; n++) {
        for (size_t c = 0; c < C; c++) {
            dwte[tokens[n] * C + c] += dout[n * C + c];
            dwpe[n % T * C + c] += dout[n * C + c];
        }
    }
}

// The residual stream takes up a branch: out = inp + branch. Both have the gradient dout. Where the stream is
// read twice, its gradient is in turn the sum of two.
template <class Number>
void residual(Number* out, const Number* inp, const Number* branch, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = inp[i] + branch[i];
}

// out = norm * weight + bias, norm = (inp - mean) * rstd, rstd = 1 / sqrt(variance + 1e-5)
//   inp, out (N, C)   weight, bias (C)   mean, rstd (N), which backward needs
//   Ba et al. 2016, arXiv:1607.06450
template <class Number>
void layernorm_forward(Number* out, Number* mean, Number* rstd, const Number* inp, const Number* weight,
                       const Number* bias, size_t N, size_t C) {
    for (size_t n = 0; n < N; n++) {
        const Number* x = inp + n * C;
        Number sum = 0, squares = 0;
        for (size_t c = 0; c < C; c++) sum += x[c];
        mean[n] = sum / Number(C);
        for (size_t c = 0; c < C; c++) squares += (x[c] - mean[n]) * (x[c] - mean[n]);
        rstd[n] = Number(1) / sqrt(squares / Number(C) + Number(1e-5));
        for (size_t c = 0; c < C; c++) out[n * C + c] = (x[c] - mean[n]) * rstd[n] * weight[c] + bias[c];
    }
}

// dnorm = dout * weight;  dinp = rstd * (dnorm - average(dnorm) - norm * average(dnorm * norm)), averages of
// a row;  dweight += the sum of dout * norm over the rows, dbias += that of dout
template <class Number>
void layernorm_backward(Number* dinp, Number* dweight, Number* dbias, const Number* dout, const Number* inp,
                        const Number* weight, const Number* mean, const Number* rstd, size_t N, size_t C) {
    for (size_t n = 0; n < N; n++) {
        const Number *x = inp + n * C, *d = dout + n * C;
        Number sum = 0, sum_norm = 0;
        for (size_t c = 0; c < C; c++) {
            const Number norm = (x[c] - mean[n]) * rstd[n], dnorm = d[c] * weight[c];
            sum += dnorm;
            sum_norm += dnorm * norm;
            dweight[c] += d[c] * norm;
            dbias[c] += d[c];
        }
        for (size_t c = 0; c < C; c++) {
            const Number norm = (x[c] - mean[n]) * rstd[n], dnorm = d[c] * weight[c];
            dinp[n * C + c] = rstd[n] * (dnorm - sum / Number(C) - norm * (sum_norm / Number(C)));
        }
    }
}

// out = inp weight^T + bias
//   inp (N, C)   weight (OC, C)   bias (OC), nullptr for none   out (N, OC)
template <class Number>
void matmul_forward(Number* out, const Number* inp, const Number* weight, const Number* bias, size_t N,
                    size_t C, size_t OC) {
    for (size_t n = 0; n < N; n++) {
        for (size_t o = 0; o < OC; o++) {
            Number sum = bias ? bias[o] : Number(0);
            for (size_t c = 0; c < C; c++) sum += inp[n * C + c] * weight[o * C + c];
            out[n * OC + o] = sum;
        }
    }
}
// dinp = dout weight,  dweight += dout^T inp,  dbias += the sum of dout over the rows
template <class Number>
void matmul_backward(Number* dinp, Number* dweight, Number* dbias, const Number* dout, const Number* inp,
                     const Number* weight, size_t N, size_t C, size_t OC) {
    std::fill(dinp, dinp + N * C, Number(0));
    for (size_t n = 0; n < N; n++) {
        for (size_t o = 0; o < OC; o++) {
            const Number d = dout[n * OC + o];
            for (size_t c = 0; c < C; c++) {
                dinp[n * C + c] += d * weight[o * C + c];
                dweight[o * C + c] += d * inp[n * C + c];
            }
            if (dbias) dbias[o] += d;
        }
    }
}

// sigmoid(z) = 1 / (1 + exp(-z)), written so that exp cannot overflow; 1 - sigmoid(z) = sigmoid(-z)
template <class Number>
Number sigmoid(Number z) {
    const Number e = exp(z < Number(0) ? z : -z);
    return (z < Number(0) ? e : Number(1)) / (Number(1) + e);
}
// gelu(x) = x/2 (1 + tanh u) = x sigmoid(2u),   u = sqrt(2/pi) (x + 0.044715 x^3)
//   Hendrycks and Gimpel 2016, arXiv:1606.08415
template <class Number>
Number gelu(Number x) {
    return x * sigmoid(Number(2 * std::sqrt(2 / M_PI)) * (x + Number(0.044715) * x * x * x));
}
// gelu'(x) = s + x s (1 - s) 2u',   s = sigmoid(2u)
template <class Number>
Number gelu_derivative(Number x) {
    const Number k = Number(2 * std::sqrt(2 / M_PI)), z = k * (x + Number(0.044715) * x * x * x),
                 dz = k * (Number(1) + Number(3 * 0.044715) * x * x);
    return sigmoid(z) + x * sigmoid(z) * sigmoid(-z) * dz;
}
template <class Number>
void gelu_forward(Number* out, const Number* inp, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = gelu(inp[i]);
}
template <class Number>
void gelu_backward(Number* dinp, const Number* dout, const Number* inp, size_t count) {
    for (size_t i = 0; i < count; i++) dinp[i] = dout[i] * gelu_derivative(inp[i]);
}

template <class Number>
Number dot(const Number* x, const Number* y, size_t count) {
    Number sum = 0;
    for (size_t i = 0; i < count; i++) sum += x[i] * y[i];
    return sum;
}
// The largest of some numbers is subtracted before exp, which would overflow otherwise. It cancels, so
// nothing is lost if it is rounded.
template <class Number>
Number largest(const Number* x, size_t count) {
    return Number(static_cast<double>(*std::max_element(x, x + count)));
}

// The queries, keys and values of one head: the vector of position t, of HS numbers.
//   qkv (B, T, 3, NH, HS)
template <class Number>
struct Head {
    Number* qkv;
    size_t b, h, T, NH, HS;
    Number* at(size_t t, size_t which) const { return qkv + (((b * T + t) * 3 + which) * NH + h) * HS; }
    Number* q(size_t t) const { return at(t, 0); }
    Number* k(size_t t) const { return at(t, 1); }
    Number* v(size_t t) const { return at(t, 2); }
};

// Causal attention: position t reads the positions s <= t.
//   score = q[t] . k[s] / sqrt(HS),  lse = log(sum of exp(score)),  p = exp(score - lse),
//   out = sum of p v[s]
//   qkv (B, T, 3, NH, HS)   out (B, T, NH, HS)   lse (B, NH, T), which backward needs
//   Vaswani et al. 2017, arXiv:1706.03762
template <class Number>
void attention_forward(Number* out, Number* lse, const Number* qkv, size_t B, size_t T, size_t NH,
                       size_t HS) {
    const Number scale = Number(1 / std::sqrt(static_cast<double>(HS)));
    std::vector<Number> score(T);
    for (size_t row = 0; row < B * NH * T; row++) {
        const size_t b = row / (NH * T), h = row / T % NH, t = row % T;
        const Head<const Number> head{qkv, b, h, T, NH, HS};
        for (size_t s = 0; s <= t; s++) score[s] = dot(head.q(t), head.k(s), HS) * scale;
        const Number most = largest(score.data(), t + 1);
        Number sum = 0;
        for (size_t s = 0; s <= t; s++) sum += exp(score[s] - most);
        lse[row] = most + log(sum);

        Number* o = out + ((b * T + t) * NH + h) * HS;
        std::fill(o, o + HS, Number(0));
        for (size_t s = 0; s <= t; s++) {
            const Number p = exp(score[s] - lse[row]);
            for (size_t c = 0; c < HS; c++) o[c] += p * head.v(s)[c];
        }
    }
}

// dp = dout[t] . v[s],  dscore = p (dp - dout[t] . out[t]);  the gradients of q, k and v follow
template <class Number>
void attention_backward(Number* dqkv, const Number* dout, const Number* qkv, const Number* out,
                        const Number* lse, size_t B, size_t T, size_t NH, size_t HS) {
    const Number scale = Number(1 / std::sqrt(static_cast<double>(HS)));
    std::fill(dqkv, dqkv + B * T * 3 * NH * HS, Number(0));
    for (size_t row = 0; row < B * NH * T; row++) {
        const size_t b = row / (NH * T), h = row / T % NH, t = row % T, at = ((b * T + t) * NH + h) * HS;
        const Head<const Number> head{qkv, b, h, T, NH, HS};
        const Head<Number> gradient{dqkv, b, h, T, NH, HS};
        const Number delta = dot(dout + at, out + at, HS);
        for (size_t s = 0; s <= t; s++) {
            const Number p = exp(dot(head.q(t), head.k(s), HS) * scale - lse[row]);
            const Number dscore = p * (dot(dout + at, head.v(s), HS) - delta) * scale;
            for (size_t c = 0; c < HS; c++) {
                gradient.q(t)[c] += dscore * head.k(s)[c];
                gradient.k(s)[c] += dscore * head.q(t)[c];
                gradient.v(s)[c] += p * dout[at + c];
            }
        }
    }
}

// loss = -log(probability of the target), probabilities = softmax(logits); 0 where the target is negative.
//   dlogits = dloss * (probability - (1 at the target)); 0 where the target is negative, and past V.
//   logits, dlogits (N, Vp), of which the first V columns count   targets, losses (N)
template <class Number>
void cross_entropy_forward_backward(Number* losses, Number* dlogits, const Number* logits, const int* targets,
                                    Number dloss, size_t N, size_t V, size_t Vp) {
    std::fill(losses, losses + N, Number(0));
    std::fill(dlogits, dlogits + N * Vp, Number(0));
    for (size_t n = 0; n < N; n++) {
        if (targets[n] < 0) continue;
        const Number* x = logits + n * Vp;
        const Number most = largest(x, V);
        Number sum = 0;
        for (size_t v = 0; v < V; v++) sum += exp(x[v] - most);
        losses[n] = log(sum) + (most - x[targets[n]]);
        for (size_t v = 0; v < V; v++) {
            const Number one = static_cast<int>(v) == targets[n] ? 1 : 0;
            dlogits[n * Vp + v] = dloss * (exp(x[v] - most) / sum - one);
        }
    }
}

struct AdamW {
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};
// m, v = running averages of the gradient and of its square, which start from 0 and are therefore divided by
// 1 - beta^step;  x -= lr (m' / (sqrt(v') + eps) + weight_decay x).  Steps count from 1.
//   Loshchilov and Hutter 2017, arXiv:1711.05101
template <class Number>
void adamw_update(Number* x, Number* m, Number* v, const Number* dx, size_t count, int step, const AdamW& o) {
    const Number bias1 = Number(1 - std::pow(o.beta1, step)), bias2 = Number(1 - std::pow(o.beta2, step));
    for (size_t i = 0; i < count; i++) {
        m[i] = Number(o.beta1) * m[i] + Number(1 - o.beta1) * dx[i];
        v[i] = Number(o.beta2) * v[i] + Number(1 - o.beta2) * dx[i] * dx[i];
        const Number direction = m[i] / bias1 / (sqrt(v[i] / bias2) + Number(o.eps));
        x[i] = x[i] - Number(o.lr) * (direction + Number(o.weight_decay) * x[i]);
    }
}
// Gradients are multiplied by this factor, so that the norm of all of them together is at most `clip`.
inline double clipping(double norm, double clip) { return std::min(1.0, clip / (norm + 1e-6)); }

// ---- the model ----

// Values by name. Parameters have the names of Hugging Face's files.
template <class Number>
using Tensors = std::map<std::string, std::vector<Number>>;

struct Config {
    size_t V, L, NH, C;
};

template <class Number>
class GPT2 {
    using Values = std::vector<Number>;

public:
    // Gradients begin at zero, and add up from one backward() to the next until update().
    Tensors<Number> parameters, gradients, activations;

    GPT2(const Config& config, const Tensors<Number>& parameters) : parameters(parameters), o_(config) {
        for (const auto& [name, values] : parameters)
            gradients[name] = m_[name] = v_[name] = std::vector<Number>(values.size(), Number(0));
    }

    // Returns the mean loss over the targets that are not negative. The logits are (B, T, V).
    Number forward(const std::vector<int>& tokens, const std::vector<int>& targets, size_t T) {
        tokens_ = tokens, targets_ = targets, T_ = T, N_ = tokens.size();
        encoder_forward(make("encoder", o_.C), tokens.data(), weight("wte.weight"), weight("wpe.weight"), N_,
                        T, o_.C);
        for (size_t l = 0; l < o_.L; l++) block_forward(block(l), stream(l));
        norm("ln_f", stream(o_.L));
        matmul_forward<Number>(make("logits", o_.V), kept("ln_f"), weight("wte.weight"), nullptr, N_, o_.C,
                               o_.V);
        cross_entropy_forward_backward(make("losses", 1), make("dlogits", o_.V), kept("logits"),
                                       targets.data(), Number(1 / count()), N_, o_.V, o_.V);
        Number sum = 0;
        for (const Number loss : activations["losses"]) sum += loss;
        return sum / Number(count());
    }

    void backward() {
        Values dx(N_ * o_.C);  // the gradient of the residual stream
        matmul_backward<Number>(dx.data(), gradient("wte.weight"), nullptr, kept("dlogits"), kept("ln_f"),
                                weight("wte.weight"), N_, o_.C, o_.V);
        norm_backward(dx, "ln_f", dx, stream(o_.L));
        for (size_t l = o_.L; l-- > 0;) block_backward(dx, block(l), stream(l));
        encoder_backward(gradient("wte.weight"), gradient("wpe.weight"), dx.data(), tokens_.data(), N_, T_,
                         o_.C);
    }

    // One step of AdamW, counted from 1. Matrices have weight decay. Returns the gradients' norm.
    double update(AdamW options, int step, double clip) {
        double squares = 0;
        for (const auto& [name, values] : gradients)
            for (const Number g : values) squares += static_cast<double>(g) * static_cast<double>(g);
        const double norm = std::sqrt(squares), decay = options.weight_decay;
        for (auto& [name, values] : gradients) {
            for (Number& g : values) g = g * Number(clipping(norm, clip));
            const bool is_matrix = name.ends_with("weight") && name.find("ln_") == std::string::npos;
            options.weight_decay = is_matrix ? decay : 0;
            adamw_update(parameters[name].data(), m_[name].data(), v_[name].data(), values.data(),
                         values.size(), step, options);
            std::fill(values.begin(), values.end(), Number(0));
        }
        return norm;
    }

private:
    static std::string block(size_t l) { return "h." + std::to_string(l) + "."; }
    // The residual stream, as block l reads it.
    static std::string stream(size_t l) { return l == 0 ? "encoder" : block(l - 1) + "residual_mlp"; }
    double count() const {
        return std::count_if(targets_.begin(), targets_.end(), [](int target) { return target >= 0; });
    }
    const Number* weight(const std::string& name) { return parameters.at("transformer." + name).data(); }
    Number* gradient(const std::string& name) { return gradients.at("transformer." + name).data(); }
    const Number* kept(const std::string& name) const { return activations.at(name).data(); }
    Number* make(const std::string& name, size_t channels) {
        activations[name].resize(N_ * channels);
        return activations[name].data();
    }

    void norm(const std::string& name, const std::string& inp) {
        layernorm_forward(make(name, o_.C), make(name + ".mean", 1), make(name + ".rstd", 1), kept(inp),
                          weight(name + ".weight"), weight(name + ".bias"), N_, o_.C);
    }
    void norm_backward(Values& dinp, const std::string& name, const Values& dout, const std::string& inp) {
        layernorm_backward(dinp.data(), gradient(name + ".weight"), gradient(name + ".bias"), dout.data(),
                           kept(inp), weight(name + ".weight"), kept(name + ".mean"), kept(name + ".rstd"),
                           N_, o_.C);
    }
    void linear(const std::string& out, const std::string& name, const std::string& inp, size_t C,
                size_t OC) {
        matmul_forward(make(out, OC), kept(inp), weight(name + ".weight"), weight(name + ".bias"), N_, C, OC);
    }
    void linear_backward(Values& dinp, const std::string& name, const Values& dout, const std::string& inp,
                         size_t C, size_t OC) {
        matmul_backward(dinp.data(), gradient(name + ".weight"), gradient(name + ".bias"), dout.data(),
                        kept(inp), weight(name + ".weight"), N_, C, OC);
    }

    // x + attention(layernorm(x)), and then x + mlp(layernorm(x))
    void block_forward(const std::string& h, const std::string& x) {
        const size_t C = o_.C;
        norm(h + "ln_1", x);
        linear(h + "qkv", h + "attn.c_attn", h + "ln_1", C, 3 * C);
        attention_forward(make(h + "attention", C), make(h + "lse", o_.NH), kept(h + "qkv"), N_ / T_, T_,
                          o_.NH, C / o_.NH);
        linear(h + "attproj", h + "attn.c_proj", h + "attention", C, C);
        residual(make(h + "residual_attention", C), kept(x), kept(h + "attproj"), N_ * C);
        norm(h + "ln_2", h + "residual_attention");
        linear(h + "fc", h + "mlp.c_fc", h + "ln_2", C, 4 * C);
        gelu_forward(make(h + "gelu", 4 * C), kept(h + "fc"), N_ * 4 * C);
        linear(h + "fcproj", h + "mlp.c_proj", h + "gelu", 4 * C, C);
        residual(make(h + "residual_mlp", C), kept(h + "residual_attention"), kept(h + "fcproj"), N_ * C);
    }

    // dx: in, the gradient of the stream after the block; out, of the stream x before it.
    void block_backward(Values& dx, const std::string& h, const std::string& x) {
        const size_t C = o_.C;
        Values dbranch(N_ * C), dqkv(N_ * 3 * C), dfc(N_ * 4 * C);
        linear_backward(dfc, h + "mlp.c_proj", dx, h + "gelu", 4 * C, C);
        gelu_backward(dfc.data(), dfc.data(), kept(h + "fc"), N_ * 4 * C);
        linear_backward(dbranch, h + "mlp.c_fc", dfc, h + "ln_2", C, 4 * C);
        norm_backward(dbranch, h + "ln_2", dbranch, h + "residual_attention");
        residual(dx.data(), dx.data(), dbranch.data(), N_ * C);
        linear_backward(dbranch, h + "attn.c_proj", dx, h + "attention", C, C);
        attention_backward(dqkv.data(), dbranch.data(), kept(h + "qkv"), kept(h + "attention"),
                           kept(h + "lse"), N_ / T_, T_, o_.NH, C / o_.NH);
        linear_backward(dbranch, h + "attn.c_attn", dqkv, h + "ln_1", C, 3 * C);
        norm_backward(dbranch, h + "ln_1", dbranch, x);
        residual(dx.data(), dx.data(), dbranch.data(), N_ * C);
    }

    const Config o_;
    Tensors<Number> m_, v_;  // AdamW's averages
    std::vector<int> tokens_, targets_;
    size_t T_ = 0, N_ = 0;
};

}  // namespace plain
