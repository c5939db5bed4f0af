// gemm_cublaslt.cpp: gemm.h on the GPU, by cuBLASLt
//   cuBLASLt is column-major: our row-major (rows, columns) matrix is its (columns, rows) matrix, so
//   every product is computed transposed.
//   Bias, activations and their gradients are epilogues of the product. Where cuBLASLt has no such epilogue
//   (activation_epilogues below; sizes or addresses that are not aligned), or timing found it slower, our
//   kernels follow a plain product.
//   Each product uses the heuristic's first choice of algorithm until tune() has timed the others.
#include <algorithm>
#include <map>
#include <memory>

#include "kernels/gemm/cublaslt_product.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_choices.h"
#include "kernels/gemm/gemm_tuner.h"
#include "kernels/gemm/gemm_unfused.h"
#include "system/error.h"
#include "system/print_line.h"

namespace {

constexpr size_t workspace_alignment = 256;

template <class T>
constexpr cudaDataType_t type_of = CUDA_R_32F;
template <>
constexpr cudaDataType_t type_of<bfloat16> = CUDA_R_16BF;

// The epilogues of an activation; CUBLASLT_EPILOGUE_DEFAULT where cuBLASLt has none that is exact enough.
struct ActivationEpilogues {
    cublasLtEpilogue_t forward = CUBLASLT_EPILOGUE_DEFAULT, forward_bias = CUBLASLT_EPILOGUE_DEFAULT,
                       backward = CUBLASLT_EPILOGUE_DEFAULT;
};

// cuBLASLt does not document how exact the tanh of its GELU is. The GPU's own (tanh.approx.f32) has a
// relative error of up to 2^-11, which rounding the result to bf16 (2^-9) hides. Results in fp32 must be
// within 1e-5 of double precision, so there our own kernel follows the product. TF32 rounds only the
// inputs of products, so it keeps fp32's GELU.
template <class T>
ActivationEpilogues activation_epilogues(Activation activation) {
    if (activation == Activation::none) return {.forward_bias = CUBLASLT_EPILOGUE_BIAS};
    if (activation == Activation::gelu && std::is_same_v<T, bfloat16>)
        return {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU};
    return {};
}

// Workspace for cuBLASLt: more than the smallest products need, so that it can split K. NVIDIA
// recommends 32 MiB, and more on Hopper.
size_t library_workspace_bytes() {
    constexpr size_t mebibyte = size_t{1} << 20;
    return (simt::device_info().compute_capability == 90 ? 128 : 32) * mebibyte;
}

constexpr size_t rounded_up(size_t bytes) {
    return (bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
}
// A bias gradient that the product's epilogue writes, before it is added to the accumulated one.
size_t fused_bias_gradient_bytes(size_t OC) { return rounded_up(OC * sizeof(float)); }

// Our part of the workspace; the rest is for cuBLASLt.
template <class T>
size_t scratch_bytes(size_t N, size_t OC) {
    return rounded_up(std::max(fused_bias_gradient_bytes(OC), gemm_bias_gradient_scratch_bytes<T>(N, OC)));
}

}  // namespace

struct Gemm::State {
    cublasLtHandle_t library = nullptr;
    const bool tf32;
    const bool prefers_fused_activation;
    char* workspace = nullptr;
    size_t workspace_bytes = 0;
    GemmMachine machine;
    std::map<LtProblem, LtProduct> products;
    GemmChoices choices;
    // only while tune() runs:
    std::unique_ptr<GemmTuner> tuner;
    size_t timed = 0, given_up = 0, refused = 0;

    explicit State(bool tf32)
        : tf32(tf32),
          // Measured by others with GELU: in the epilogue it is faster on Hopper and slower before it.
          prefers_fused_activation(simt::device_info().compute_capability >= 90) {
        const cublasStatus_t status = cublasLtCreate(&library);
        if (status != CUBLAS_STATUS_SUCCESS)
            throw Error(fmt::format("gemm: cuBLASLt does not start: {}", cublasLtGetStatusName(status)));
        const simt::DeviceInfo info = simt::device_info();
        machine = {info.name, info.multiprocessors, cublasLtGetVersion()};
    }
    State(const State&) = delete;
    ~State() {
        products.clear();
        cublasLtDestroy(library);
    }

    template <class T, class Result>
    LtProblem problem(size_t m, size_t n, size_t k, bool transpose_a, bool transpose_b,
                      bool accumulate) const {
        const auto compute =
            tf32 && type_of<T> == CUDA_R_32F ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
        return {m, n, k, transpose_a, transpose_b, type_of<T>, type_of<Result>, compute, accumulate};
    }

    // Our own scratch of `bytes` at the front of the workspace. cuBLASLt may use the memory behind it at
    // the same time.
    void* scratch(size_t bytes, const LtProblem& problem) const {
        if (bytes > workspace_bytes) {
            throw Error(
                fmt::format("gemm: {} wants {} bytes of workspace and has {}: call use_workspace with "
                            "Gemm::workspace_bytes",
                            problem.describe(), bytes, workspace_bytes));
        }
        return workspace;
    }

    void run(LtProblem problem, const LtOperands& operands, stream_t stream) {
        problem.alignment = LtAlignment::of(operands);
        LtProduct& product = product_for(problem, operands.data, 0);
        if (tuner && !choices.find(problem.describe())) choose(product, problem, operands, 0, stream);
        if (!product.run(operands, rest_of_workspace(0), stream))
            throw Error(fmt::format("gemm: cuBLASLt has no algorithm for {}", problem.describe()));
    }

    // Runs a product with an epilogue and then finish(); or apart() if the problem has no epilogue, or if
    // there is no such product or it is slower. own: bytes at the front of the workspace that the product
    // must not touch.
    template <class Finish, class Apart>
    void run(LtProblem problem, const LtOperands& operands, size_t own, stream_t stream, const Finish& finish,
             const Apart& apart) {
        if (problem.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return apart();
        problem.alignment = LtAlignment::of(operands);
        // The leading dimension of aux must be a multiple of 8.
        const bool suits = problem.alignment.least() >= 16 &&
                           !((problem.reads_aux() || problem.writes_aux()) && problem.m % 8 != 0);
        if (!suits) return apart();
        LtProduct& product = product_for(problem, operands.data, own);
        if (tuner && !choices.find(problem.describe()))
            choose(product, problem, operands, own, stream, finish, apart);
        if (product.run(operands, rest_of_workspace(own), stream)) return finish();
        apart();
    }

private:
    LtWorkspace rest_of_workspace(size_t own) const {
        return {workspace + own, std::min(workspace_bytes - own, library_workspace_bytes_)};
    }

    // Used without timing: true if the product's epilogue is expected to be faster than our kernel.
    bool prefers_epilogue(const LtProblem& problem) const {
        return prefers_fused_activation || !(problem.reads_aux() || problem.writes_aux());
    }

    LtProduct& product_for(const LtProblem& problem, const EpilogueData& data, size_t own) {
        const auto found = products.find(problem);
        if (found != products.end()) return found->second;
        LtProduct& product = products.try_emplace(problem, library, problem, data).first->second;
        const std::string name = problem.describe();
        const GemmChoice* const choice = choices.find(name);
        const size_t bytes = rest_of_workspace(own).bytes;
        if (choice && (!choice->algorithm || product.use(*choice->algorithm, bytes))) return product;
        if (choice) {
            print_line(stderr, fmt::format("gemm: cuBLASLt no longer takes the algorithm chosen for {}: {}",
                                           name, choice->description));
            choices.erase(name);
            refused++;
        }
        if (prefers_epilogue(problem)) product.use_first_choice(bytes);
        return product;
    }

    static std::vector<GemmTuner::Output> outputs_of(const LtProblem& problem, const LtOperands& operands) {
        const bool bf16 = problem.output_type != CUDA_R_32F;
        std::vector<GemmTuner::Output> outputs = {{operands.d, problem.m * problem.n, bf16}};
        if (problem.writes_aux())
            outputs.push_back({const_cast<void*>(operands.data.aux), problem.m * problem.n, bf16});
        if (problem.epilogue == CUBLASLT_EPILOGUE_BGRADB)
            outputs.push_back({const_cast<void*>(operands.data.bias), problem.n, bf16});
        return outputs;
    }

    // Finds the fastest algorithm for a product, which uses it from now on; none if there is none. When
    // the time is over, the algorithm already in use is kept.
    GemmChoice choose_algorithm(LtProduct& product, const LtProblem& problem, const LtOperands& operands,
                                size_t own, stream_t stream) {
        GemmChoice choice;
        const LtWorkspace rest = rest_of_workspace(own);
        if (tuner->out_of_time()) {
            given_up++;
            choice.algorithm = product.algorithm();
        } else {
            timed++;
            const std::vector<GemmAlgorithm> candidates = product.candidates(rest.bytes);
            const auto launch = [&](size_t i) {
                return product.try_algorithm(candidates[i], operands, rest, stream);
            };
            if (const auto fastest =
                    tuner->fastest(candidates.size(), launch, outputs_of(problem, operands), stream)) {
                choice.algorithm = candidates[fastest->way];
                choice.ms = fastest->ms;
                choice.first_ms = fastest->first_ms;
                choice.tflops = problem.operations() / (choice.ms * 1e9);
            }
        }
        choice.description = choice.algorithm ? describe(*choice.algorithm) : "no algorithm";
        if (choice.algorithm) product.use(*choice.algorithm, rest.bytes);
        return choice;
    }

    void choose(LtProduct& product, const LtProblem& problem, const LtOperands& operands, size_t own,
                stream_t stream) {
        const GemmChoice choice = choose_algorithm(product, problem, operands, own, stream);
        if (choice.algorithm) choices.set(problem.describe(), choice);
    }

    template <class Finish, class Apart>
    void choose(LtProduct& product, const LtProblem& problem, const LtOperands& operands, size_t own,
                stream_t stream, const Finish& finish, const Apart& apart) {
        apart();  // first chooses for the products inside it
        GemmChoice choice = choose_algorithm(product, problem, operands, own, stream);
        if (choice.algorithm && choice.ms > 0) {
            const auto fused = [&] {
                product.run(operands, rest_of_workspace(own), stream);
                finish();
            };
            const double fused_ms = tuner->cold_ms(fused, stream), apart_ms = tuner->cold_ms(apart, stream);
            if (apart_ms < fused_ms) {
                choice.algorithm.reset();
                choice.description =
                    fmt::format("apart from its epilogue in {:.3f} instead of {:.3f} ms ({})", apart_ms,
                                fused_ms, choice.description);
            }
        }
        if (!choice.algorithm) product.use_none();
        choices.set(problem.describe(), choice);
    }

    const size_t library_workspace_bytes_ = library_workspace_bytes();
};

Gemm::Gemm(Options options) : state_(std::make_unique<State>(options.tf32)) {}
Gemm::~Gemm() = default;

template <class T>
size_t Gemm::workspace_bytes(size_t N, size_t, size_t OC) {
    return library_workspace_bytes() + scratch_bytes<T>(N, OC);
}

void Gemm::use_workspace(void* workspace, size_t bytes) {
    CHECK(reinterpret_cast<uintptr_t>(workspace) % workspace_alignment == 0,
          "gemm: the workspace {} is not aligned to {} bytes", workspace, workspace_alignment);
    state_->workspace = static_cast<char*>(workspace);
    state_->workspace_bytes = bytes;
    state_->products.clear();  // their algorithms were chosen for the previous workspace
}

std::string Gemm::tune(const std::function<void()>& products, double seconds) {
    const size_t known = state_->choices.size();
    state_->timed = state_->given_up = state_->refused = 0;
    state_->tuner = std::make_unique<GemmTuner>(seconds, state_->workspace, state_->workspace_bytes);
    try {
        products();
    } catch (...) {
        state_->tuner.reset();
        throw;
    }
    std::string line = fmt::format("matmuls: {} timed in {:.1f} s ({} runs)", state_->timed,
                                   state_->tuner->seconds(), state_->tuner->runs());
    if (known > 0) line += fmt::format(", {} known before", known);
    if (state_->refused > 0) line += fmt::format(", {} of them no longer possible", state_->refused);
    if (state_->given_up > 0)
        line += fmt::format("; {} left to cuBLASLt after {:g} s", state_->given_up, seconds);
    state_->tuner.reset();
    return line;
}

std::string Gemm::choices(bool timed_only) const { return state_->choices.text(state_->machine, timed_only); }

std::string Gemm::adopt(const std::string& choices) {
    try {
        state_->choices.set(GemmChoices::parse(choices, state_->machine));
    } catch (const UsageError& reason) { return reason.what(); }
    state_->products.clear();
    return "";
}

std::vector<std::string> Gemm::chosen_algorithms() const { return state_->choices.lines(); }

template <class T>
void Gemm::forward(T* out, const T* inp, const T* weight, const T* bias, size_t N, size_t C, size_t OC,
                   stream_t stream, Activation activation, T* pre_activation) {
    // out^T (OC, N) = weight (C, OC)^T inp^T (C, N)
    const LtProblem plain = state_->problem<T, T>(OC, N, C, true, false, false);
    const bool activates = activation != Activation::none;
    const auto apart = [&] {
        if (activates) {
            forward(pre_activation, inp, weight, bias, N, C, OC, stream);
            gemm_activation_forward(activation, out, pre_activation, N * OC, stream);
        } else {
            state_->run(plain, {out, weight, inp}, stream);
            if (bias) gemm_add_bias(out, bias, N, OC, stream);
        }
    };
    const auto finish = [] {};
    const ActivationEpilogues epilogues = activation_epilogues<T>(activation);
    const EpilogueData data{.bias = bias, .aux = activates ? pre_activation : nullptr};
    state_->run(plain.with(bias ? epilogues.forward_bias : epilogues.forward), {out, weight, inp, data}, 0,
                stream, finish, apart);
}

template <class T>
void Gemm::backward_input(T* dinp, const T* dout, const T* weight, size_t N, size_t C, size_t OC,
                          stream_t stream, Activation activation, const T* pre_activation) {
    // dinp^T (C, N) = weight^T (C, OC) dout^T (OC, N)
    const LtProblem plain = state_->problem<T, T>(C, N, OC, false, false, false);
    const auto apart = [&] {
        state_->run(plain, {dinp, weight, dout}, stream);
        if (activation != Activation::none)
            gemm_activation_backward(activation, dinp, dinp, pre_activation, N * C, stream);
    };
    const auto finish = [] {};
    state_->run(plain.with(activation_epilogues<T>(activation).backward),
                {dinp, weight, dout, {.aux = pre_activation}}, 0, stream, finish, apart);
}

template <class T>
void Gemm::backward_weight(float* dweight, float* dbias, const T* dout, const T* inp, size_t N, size_t C,
                           size_t OC, bool accumulate, stream_t stream) {
    // dweight^T (C, OC) = inp^T (C, N) (dout^T (OC, N))^T
    const LtProblem plain = state_->problem<T, float>(C, OC, N, false, true, accumulate);
    const LtOperands operands = {dweight, inp, dout};
    if (!dbias) return state_->run(plain, operands, stream);
    // The epilogue overwrites its bias gradient, so it writes to scratch, and the sum follows.
    char* const scratch = static_cast<char*>(state_->scratch(scratch_bytes<T>(N, OC), plain));
    const size_t own = fused_bias_gradient_bytes(OC);
    const auto finish = [&] {
        gemm_add_bias_gradient(dbias, reinterpret_cast<const float*>(scratch), OC, stream);
    };
    const auto apart = [&] {
        state_->run(plain, operands, stream);
        gemm_bias_gradient(dbias, dout, N, OC, scratch, stream);
    };
    state_->run(plain.with(CUBLASLT_EPILOGUE_BGRADB), {dweight, inp, dout, {.bias = scratch}}, own, stream,
                finish, apart);
}

template <class T>
void Gemm::product(const Product& s, T* out, Factor<T> a, Factor<T> b, stream_t stream, const T* add) {
    // out^T (N, M) = b^T (N, K) a^T (K, M)
    LtProblem problem = state_->problem<T, T>(s.N, s.M, s.K, b.transposed, a.transposed, false);
    problem.adds_other = s.beta != 0;
    for (size_t i = 0; i < s.batch; i++) {
        state_->run(problem,
                    {.d = out + i * s.M * s.N,
                     .a = b.values + i * s.K * s.N,
                     .b = a.values + i * s.M * s.K,
                     .c = problem.adds_other ? add + i * s.M * s.N : nullptr,
                     .alpha = s.alpha,
                     .beta = s.beta},
                    stream);
    }
}

template <class T>
size_t Gemm::product_workspace_bytes(size_t, size_t, size_t) {
    return library_workspace_bytes();
}

template <class T>
size_t Gemm::int8_scratch_bytes(size_t, size_t C, size_t OC) {
    return OC * C * sizeof(T);
}

template <class T>
void Gemm::forward_int8(T* out, const T* inp, Int8Weight weight, const T* bias, size_t N, size_t C, size_t OC,
                        std::span<std::byte> scratch, stream_t stream, Activation activation,
                        T* pre_activation) {
    CHECK(scratch.size() >= int8_scratch_bytes<T>(N, C, OC),
          "gemm: N = {}, C = {}, OC = {} wants {} bytes of scratch for int8 and has {}", N, C, OC,
          int8_scratch_bytes<T>(N, C, OC), scratch.size());
    T* const converted = reinterpret_cast<T*>(scratch.data());
    gemm_dequantize(converted, weight.values, weight.scales, OC, C, stream);
    forward(out, inp, converted, bias, N, C, OC, stream, activation, pre_activation);
}

#define INSTANTIATE(T) \
    template size_t Gemm::workspace_bytes<T>(size_t, size_t, size_t); \
    template void Gemm::forward_int8(T*, const T*, Int8Weight, const T*, size_t, size_t, size_t, \
                                     std::span<std::byte>, stream_t, Activation, T*); \
    template size_t Gemm::int8_scratch_bytes<T>(size_t, size_t, size_t); \
    template void Gemm::forward(T*, const T*, const T*, const T*, size_t, size_t, size_t, stream_t, \
                                Activation, T*); \
    template void Gemm::backward_input(T*, const T*, const T*, size_t, size_t, size_t, stream_t, Activation, \
                                       const T*); \
    template void Gemm::backward_weight(float*, float*, const T*, const T*, size_t, size_t, size_t, bool, \
                                        stream_t); \
    template void Gemm::product(const Product&, T*, Factor<T>, Factor<T>, stream_t, const T*); \
    template size_t Gemm::product_workspace_bytes<T>(size_t, size_t, size_t);
INSTANTIATE(float)
INSTANTIATE(bfloat16)
