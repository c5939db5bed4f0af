// gpt2_forward_backward.cuh: a micro-step. A block's forward and backward stand one above the other, one
// operation a line.
//   The helpers at the end of the file give each operation its parameters and sizes, and its name and
//   cost for --profile.
#pragma once
#include <algorithm>
#include <bit>

#include "kernels/cross_entropy.cuh"
#include "kernels/encoder.cuh"
#include "kernels/gelu.cuh"
#include "kernels/layernorm.cuh"
#include "system/error.h"
#include "trainer/model/gpt2.h"

// again: backward recomputes the block (--recompute block), up to the last activation that it needs.
template <class T>
void GPT2<T>::block_forward(int l, bool again) {
    Block& a = block(l);
    // In forward, ln1 has been computed already: by the kernel that ends the previous block, or for block 0
    // by forward_to_head.
    if (again) layernorm(a.ln1, block_input(l), ln1, l, "layernorm again");
    matmul(qkv, a.qkv, a.ln1.out, l);
    attention(a);
    matmul(attproj, work_.branch, a.att, l);
    residual_layernorm(a.ln2, a.residual2, block_input(l), work_.branch, ln2, l);
    matmul_gelu(fc, a.fch_gelu, a.fch, a.ln2.out, l);
    if (again) return;
    matmul(fcproj, work_.branch, a.fch_gelu, l);
    await_group(l + 2);  // the parameters of the next block, or of the final layernorm
    // The residual sum that ends this block is normalised in the same kernel, for the next block or for
    // the head.
    const bool is_last = l + 1 == config_.L;
    const Normalised& next = is_last ? lnf_ : block(l + 1).ln1;
    residual_layernorm(next, a.residual3, a.residual2, work_.branch, is_last ? lnf : ln1,
                       is_last ? -1 : l + 1);
}

// work_.dresidual holds the gradient of the block's output; it becomes the gradient of the block's input.
template <class T>
void GPT2<T>::block_backward(int l) {
    Block& a = block(l);
    T *dresidual = work_.dresidual, *dnarrow = work_.dnarrow, *dwide = work_.dwide;
    if (options_.recompute == Recompute::block) block_forward(l, true);
    if (options_.recompute == Recompute::gelu) gelu_again(a);
    matmul_dweight(fcproj, dresidual, a.fch_gelu, l);
    matmul_dinput_gelu(fcproj, dwide, dresidual, a.fch, l);
    matmul_dweight(fc, dwide, a.ln2.out, l);
    matmul_dinput(fc, dnarrow, dwide, l);
    layernorm_backward(dresidual, dnarrow, a.residual2, a.ln2, ln2, l, grad(Kind::attprojb, l));
    matmul_dweight(attproj, dresidual, a.att, l);
    matmul_dinput(attproj, dnarrow, dresidual, l);
    attention_backward(dwide, dnarrow, a);
    matmul_dweight(qkv, dwide, a.ln1.out, l);
    matmul_dinput(qkv, dnarrow, dwide, l);
    layernorm_backward(dresidual, dnarrow, block_input(l), a.ln1, ln1, l,
                       l > 0 ? grad(Kind::fcprojb, l - 1) : nullptr);
}

// Computes everything from the tokens to lnf_, the head's input.
template <class T>
void GPT2<T>::forward_to_head() {
    await_group(0);
    await_group(1);
    operation("encoder", cost::encoder<T>(rows(), channels()));
    encoder_forward(encoded_, tokens_, param(Kind::wte), param(Kind::wpe), shape_.B, shape_.T, config_.C,
                    stream_);
    layernorm(block(0).ln1, encoded_, ln1, 0, "layernorm");
    for (int l = 0; l < config_.L; l++) block_forward(l, false);
}

// Logits and losses of rows begin .. begin + count - 1. In training, the logits' gradients overwrite the
// logits.
template <class T>
void GPT2<T>::head_forward(size_t begin, size_t count, bool training) {
    const size_t Vp = size(config_.Vp());
    operation("head", cost::matmul<T>(count, channels(), Vp));
    gemm_->forward(logits_, lnf_.out + begin * channels(), param(Kind::wte), static_cast<const T*>(nullptr),
                   count, channels(), Vp, stream_);
    operation("classifier", cost::classifier<T>(count, Vp, training));
    const float dloss = training ? 1.0f / static_cast<float>(options_.total_batch) : 0.0f;
    cross_entropy_forward_backward(logits_, losses_ + begin, tokens_ + rows() + begin, dloss, count,
                                   config_.V, config_.Vp(), training, stream_);
}

// dwte is overwritten by the step's first rows and added to by later ones. work_.dnarrow receives these
// rows' gradient of lnf's output.
template <class T>
void GPT2<T>::head_backward(size_t begin, size_t count) {
    const size_t Vp = size(config_.Vp());
    const bool accumulate = micro_step_ > 0 || begin > 0;
    operation("head dW", cost::matmul_weight<T>(count, channels(), Vp, accumulate));
    gemm_->backward_weight(grad(Kind::wte), nullptr, logits_, lnf_.out + begin * channels(), count,
                           channels(), Vp, accumulate, stream_);
    operation("head dX", cost::matmul<T>(count, channels(), Vp));
    gemm_->backward_input(work_.dnarrow + begin * channels(), logits_, param(Kind::wte), count, channels(),
                          Vp, stream_);
}

// The head, one chunk of rows after the other. Each chunk's logits overwrite the gradients of the chunk
// before, so with --head-chunks each chunk's backward follows its forward at once, and backward_pass
// skips the head.
template <class T>
void GPT2<T>::head_chunks(bool training) {
    for (size_t begin = 0; begin < rows(); begin += head_rows()) {
        const size_t count = std::min(head_rows(), rows() - begin);
        head_forward(begin, count, training);
        if (training && head_in_chunks()) head_backward(begin, count);
    }
}

template <class T>
void GPT2<T>::forward_pass() {
    forward_to_head();
    head_chunks(true);
    operation("sum of losses", cost::pass<float>(1, rows()));
    sum_losses(step_loss_, losses_, rows(), micro_step_ > 0, stream_);
}

template <class T>
void GPT2<T>::backward_pass(bool last_micro_step) {
    if (micro_step_ == 0) zero_gradients();
    if (!head_in_chunks()) head_backward(0, rows());
    layernorm_backward(work_.dresidual, work_.dnarrow, block(config_.L - 1).residual3, lnf_, lnf, -1,
                       grad(Kind::fcprojb, config_.L - 1));
    if (last_micro_step) reduce(1 + config_.L);
    for (int l = config_.L - 1; l >= 0; l--) {
        block_backward(l);
        if (last_micro_step) reduce(1 + l);
    }
    operation("encoder backward", cost::encoder<T>(rows(), channels()));
    encoder_backward(grad(Kind::wte), grad(Kind::wpe), work_.dresidual, tokens_, tokens_ + 2 * rows(),
                     shape_.B, shape_.T, config_.C, stream_);
    if (last_micro_step) reduce(0);
}

// Zeroes the gradients that kernels only add to. Matmuls overwrite their weights' gradients in the first
// micro-step.
template <class T>
void GPT2<T>::zero_gradients() {
    for (const Stretch& s : table_.stretches()) {
        if (s.from_matmul) continue;
        operation("zero gradients", cost::pass<float>(1, s.elements));
        simt::fill_zero(grads_ + s.offset, s.elements * sizeof(float), stream_);
    }
}

template <class T>
void GPT2<T>::upload(const Batch& batch) {
    CHECK(batch.B > 0 && batch.B <= options_.B && batch.T > 0 && batch.T <= options_.T,
          "a batch of {} x {} tokens in a model allocated for {} x {}", batch.B, batch.T, options_.B,
          options_.T);
    operation("tokens to the device", {.bytes = batch.bytes()});
    simt::copy_to_device(tokens_, batch.inputs, batch.bytes(), stream_);
    // Two calls after this one the loader may refill this batch's memory. Waiting here for the previous
    // batch's copy makes that safe, and keeps the host at most one micro-step ahead of the GPU.
    simt::event_record(copied_[uploads_ % 2], stream_);
    if (uploads_ > 0) simt::event_synchronize(copied_[(uploads_ - 1) % 2]);
    uploads_++;
    shape_ = shape_of(batch.B, batch.T);
}

template <class T>
void GPT2<T>::forward(const Batch& batch) {
    if (!options_.training) throw Error("forward: this model was allocated for evaluation only");
    upload(batch);
    step_targets_ = batch.step_targets;
    const auto pass = [&] { forward_pass(); };
    // While parameters are in flight, forward waits for events of this step, which a graph could not
    // replay.
    const bool same_every_time = whole_batch() && std::all_of(gathered_.begin(), gathered_.end(),
                                                              [](Communicator::Ticket t) { return t == 0; });
    if (same_every_time) part(micro_step_ > 0 ? StepGraphs::forward_other : StepGraphs::forward_first, pass);
    else pass();
    profile_.end(stream_);
}

template <class T>
void GPT2<T>::backward(bool last_micro_step) {
    const auto pass = [&] { backward_pass(last_micro_step); };
    // With one process, the last micro-step equals the others. With several it communicates gradients and
    // is not captured: the communicator times each operation by its own events (--comm-timeout), which a
    // replay would not record.
    if (whole_batch() && (alone() || !last_micro_step))
        part(micro_step_ > 0 ? StepGraphs::backward_other : StepGraphs::backward_first, pass);
    else pass();
    profile_.end(stream_);
    micro_step_++;
}

template <class T>
double GPT2<T>::evaluate(const Batch& batch) {
    upload(batch);
    forward_to_head();
    head_chunks(false);
    operation("sum of losses", cost::pass<float>(1, rows()));
    sum_losses(eval_loss_, losses_, rows(), false, stream_);
    profile_.end(stream_);
    float loss = 0;
    simt::copy_to_host(&loss, eval_loss_, sizeof(loss), stream_);
    simt::stream_synchronize(stream_);
    return static_cast<double>(loss);
}

template <class T>
std::vector<float> GPT2<T>::next_token_logits(const std::vector<int>& tokens) {
    CHECK(!tokens.empty() && tokens.size() <= size(options_.T), "{} tokens; expected 1 to {}", tokens.size(),
          options_.T);
    for (const int token : tokens)
        CHECK(token >= 0 && token < config_.V, "token {}; expected 0 to {}", token, config_.V - 1);
    // The length is padded to a power of two, so that libraries plan only a few shapes. Attention is
    // causal, so the padding does not influence the tokens before it.
    const int length =
        static_cast<int>(std::min(std::bit_ceil(std::max<size_t>(tokens.size(), 16)), size(options_.T)));
    std::vector<int32_t> padded(tokens.begin(), tokens.end());
    padded.resize(size(length), 0);
    simt::copy_to_device(tokens_, padded.data(), padded.size() * sizeof(int32_t), stream_);
    shape_ = shape_of(1, length);
    forward_to_head();
    profile_.end(stream_);
    const T* const last = lnf_.out + (tokens.size() - 1) * channels();
    gemm_->forward(logits_, last, param(Kind::wte), static_cast<const T*>(nullptr), 1, channels(),
                   size(config_.Vp()), stream_);
    return to_host(logits_, size(config_.V));
}

template <class T>
void GPT2<T>::rehearse(const Batch& batch) {
    const size_t micro_batch = size(options_.B) * size(options_.T) * size(options_.world_size);
    // The second micro-step runs other matmuls: those that add to the gradients.
    for (size_t micro = 0; micro < std::min<size_t>(2, options_.total_batch / micro_batch); micro++) {
        forward(batch);
        backward(false);
    }
    micro_step_ = 0;
    simt::stream_synchronize(stream_);
}

// ----------------------------------------------------------------------------------------------------
// operations

template <class T>
void GPT2<T>::matmul(const Linear& linear, T* out, const T* inp, int l) {
    const auto [OC, C] = sizes(linear, l);
    operation(linear.forward, cost::matmul<T>(rows(), C, OC));
    gemm_->forward(out, inp, param(linear.weight, l), param(linear.bias, l), rows(), C, OC, stream_);
}

// gelu (N, OC) is the activation; out (N, OC) is its input, kept for backward.
template <class T>
void GPT2<T>::matmul_gelu(const Linear& linear, T* gelu, T* out, const T* inp, int l) {
    const auto [OC, C] = sizes(linear, l);
    operation(linear.forward, cost::matmul<T>(rows(), C, OC, 0, 1));
    gemm_->forward_gelu(gelu, out, inp, param(linear.weight, l), param(linear.bias, l), rows(), C, OC,
                        stream_);
}

// dweight is overwritten in the step's first micro-step, else added to. dbias, which zero_gradients has
// zeroed, is always added to, unless the layernorm backward computes it.
template <class T>
void GPT2<T>::matmul_dweight(const Linear& linear, const T* dout, const T* inp, int l) {
    const auto [OC, C] = sizes(linear, l);
    const bool accumulate = micro_step_ > 0;
    operation(linear.dweight, cost::matmul_weight<T>(rows(), C, OC, accumulate));
    float* const dbias = linear.bias_from_layernorm ? nullptr : grad(linear.bias, l);
    gemm_->backward_weight(grad(linear.weight, l), dbias, dout, inp, rows(), C, OC, accumulate, stream_);
}

template <class T>
void GPT2<T>::matmul_dinput(const Linear& linear, T* dinp, const T* dout, int l) {
    const auto [OC, C] = sizes(linear, l);
    operation(linear.dinput, cost::matmul<T>(rows(), C, OC));
    gemm_->backward_input(dinp, dout, param(linear.weight, l), rows(), C, OC, stream_);
}

// dpre (N, C) = the gradient of `pre`, the GELU's input. The GELU's output is the matmul's input.
template <class T>
void GPT2<T>::matmul_dinput_gelu(const Linear& linear, T* dpre, const T* dout, const T* pre, int l) {
    const auto [OC, C] = sizes(linear, l);
    operation(linear.dinput, cost::matmul<T>(rows(), C, OC, 1));
    gemm_->backward_input_gelu(dpre, dout, param(linear.weight, l), pre, rows(), C, OC, stream_);
}

template <class T>
void GPT2<T>::attention(const Block& a) {
    operation("attention", cost::attention_forward<T>(shape_));
    attention_.forward(a.att, a.lse, a.qkv, shape_, work_.attention, stream_);
}

template <class T>
void GPT2<T>::attention_backward(T* dqkv, const T* datt, const Block& a) {
    operation("attention backward", cost::attention_backward<T>(shape_));
    attention_.backward(dqkv, datt, a.qkv, a.att, a.lse, shape_, work_.attention, stream_);
}

template <class T>
void GPT2<T>::gelu_again(const Block& a) {
    operation("GELU again", cost::gelu<T>(rows() * 4 * channels()));
    gelu_forward(a.fch_gelu, a.fch, rows() * 4 * channels(), stream_);
}

template <class T>
void GPT2<T>::layernorm(const Normalised& to, const T* inp, const Norm& norm, int l, const char* name) {
    operation(name, cost::layernorm<T>(rows(), channels()));
    layernorm_forward(to.out, to.mean, to.rstd, inp, param(norm.weight, l), param(norm.bias, l), rows(),
                      config_.C, stream_);
}

// sum = inp + branch; to = layernorm(sum).
template <class T>
void GPT2<T>::residual_layernorm(const Normalised& to, T* sum, const T* inp, const T* branch,
                                 const Norm& norm, int l) {
    operation("residual + layernorm", cost::residual_layernorm<T>(rows(), channels()));
    residual_layernorm_forward(to.out, sum, to.mean, to.rstd, inp, branch, param(norm.weight, l),
                               param(norm.bias, l), rows(), config_.C, stream_);
}

// dresidual += the gradient of inp, or = for the final layernorm, where the residual stream ends. dsum +=
// the column sums of dresidual, which are the bias gradient of the projection added to the stream just
// before.
template <class T>
void GPT2<T>::layernorm_backward(T* dresidual, const T* dout, const T* inp, const Normalised& kept,
                                 const Norm& norm, int l, float* dsum) {
    const bool residual = l >= 0;
    operation("layernorm backward", cost::layernorm_backward<T>(rows(), channels(), residual));
    ::layernorm_backward(dresidual, grad(norm.weight, l), grad(norm.bias, l), dsum, work_.layernorm,
                         residual ? dresidual : static_cast<const T*>(nullptr), dout, inp,
                         param(norm.weight, l), kept.mean, kept.rstd, rows(), config_.C, stream_);
}
