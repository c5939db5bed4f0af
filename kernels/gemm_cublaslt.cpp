// gemm_cublaslt.cpp: gemm.h on the GPU, by cuBLASLt (https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api).
//   cuBLASLt is column-major: our row-major (rows, columns) matrix is its (columns, rows) matrix, so every product is computed transposed.
//   A plan (descriptors and an algorithm) is made once for every problem. Bias, GELU and their gradients are epilogues of the product;
//   where cuBLASLt has none (sizes or addresses that are not aligned), our kernels follow a plain product.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <compare>
#include <initializer_list>
#include <map>
#include <optional>

#include "error.h"
#include "gemm.h"
#include "gemm_unfused.h"

namespace {

constexpr size_t workspace_alignment = 256;

// D (m, n) = op(A) (m, k) op(B) (k, n), column-major and contiguous: A and B of input_type, D of output_type.
struct Problem {
    size_t m, n, k;
    bool transpose_a, transpose_b;
    cudaDataType_t input_type, output_type;
    cublasComputeType_t compute;
    bool accumulate;  // D += instead of D =
    bool aligned;     // all addresses are multiples of 16 bytes
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    auto operator<=>(const Problem&) const = default;

    Problem with(cublasLtEpilogue_t wanted) const {
        Problem other = *this;
        other.epilogue = wanted;
        return other;
    }
    std::string describe() const {
        const auto name = [](cudaDataType_t type) { return type == CUDA_R_32F ? "fp32" : "bf16"; };
        return fmt::format("{}{} m = {}, n = {}, k = {}, {} to {}, compute type {}, epilogue {}{}{}", transpose_a ? 'T' : 'N',
                           transpose_b ? 'T' : 'N', m, n, k, name(input_type), name(output_type), static_cast<int>(compute),
                           static_cast<int>(epilogue), accumulate ? ", adding" : "", aligned ? "" : ", not aligned");
    }
};

void check(cublasStatus_t status, const Problem& problem) {
    if (status != CUBLAS_STATUS_SUCCESS) throw Error(fmt::format("gemm: cuBLASLt says {} to {}", cublasLtGetStatusName(status), problem.describe()));
}

// The vector and the matrix that an epilogue reads or writes, beside D.
struct EpilogueData {
    const void* bias = nullptr;  // BIAS: m elements; BGRADB: n elements, written; of output_type
    const void* aux = nullptr;   // (m, n): the GELU's input, which GELU_AUX writes and DGELU reads
};
bool uses_aux(cublasLtEpilogue_t e) {
    return e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || e == CUBLASLT_EPILOGUE_DGELU;
}

// Owns one of cuBLASLt's descriptors.
template <class Handle, cublasStatus_t (*destroy)(Handle)>
class Descriptor {
public:
    template <class Create, class... Arguments>
    Descriptor(const Problem& problem, Create create, Arguments... arguments) {
        check(create(&handle_, arguments...), problem);
    }
    Descriptor(Descriptor&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
    ~Descriptor() {
        if (handle_) destroy(handle_);
    }
    operator Handle() const { return handle_; }

private:
    Handle handle_ = nullptr;
};
using Operation = Descriptor<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Descriptor<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Descriptor<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// A matrix that op() makes (rows, columns).
Layout layout(const Problem& problem, cudaDataType_t type, bool transpose, size_t rows, size_t columns) {
    if (transpose) std::swap(rows, columns);
    return Layout(problem, cublasLtMatrixLayoutCreate, type, rows, columns, static_cast<int64_t>(rows));
}

// How one problem is solved.
class Plan {
public:
    // data: of the first product; the addresses of later ones may differ but must be as well aligned.
    Plan(cublasLtHandle_t library, const Problem& problem, const EpilogueData& data, size_t workspace_bytes)
        : problem_(problem),
          operation_(problem, cublasLtMatmulDescCreate, problem.compute, CUDA_R_32F),
          a_(layout(problem, problem.input_type, problem.transpose_a, problem.m, problem.k)),
          b_(layout(problem, problem.input_type, problem.transpose_b, problem.k, problem.n)),
          d_(layout(problem, problem.output_type, false, problem.m, problem.n)) {
        set(CUBLASLT_MATMUL_DESC_TRANSA, static_cast<int32_t>(problem.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
        set(CUBLASLT_MATMUL_DESC_TRANSB, static_cast<int32_t>(problem.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(problem.epilogue));
        if (data.bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(problem.output_type));
        if (data.aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<int64_t>(problem.m));
        set_epilogue_data(data);  // the choice of an algorithm looks at the alignment of these addresses
        choose_algorithm(library, workspace_bytes);
    }

    // False if cuBLASLt has no algorithm for this problem on this GPU.
    bool possible() const { return algorithm_.has_value(); }

    // False, with nothing launched, if cuBLASLt refuses the algorithm that its heuristic gave: the plan is not possible from then on.
    bool run(cublasLtHandle_t library, void* d, const void* a, const void* b, const EpilogueData& data, void* workspace, size_t workspace_bytes,
             stream_t stream) {
        set_epilogue_data(data);
        const float one = 1.0f, beta = problem_.accumulate ? 1.0f : 0.0f;
        const cublasStatus_t status =
            cublasLtMatmul(library, operation_, &one, a, a_, b, b_, &beta, d, d_, d, d_, &*algorithm_, workspace, workspace_bytes, stream);
        if (is_refusal(status)) algorithm_.reset();
        else check(status, problem_);
        return possible();
    }

private:
    template <class Value>
    void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
        check(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)), problem_);
    }
    void set_epilogue_data(const EpilogueData& data) {
        if (data.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, data.bias);
        if (data.aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, data.aux);
    }

    // cuBLASLt cannot solve the problem. An epilogue that this version does not know for these types can also be an invalid value; its twin
    // does not need it.
    bool is_refusal(cublasStatus_t status) const {
        const bool has_twin = problem_.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
        return status == CUBLAS_STATUS_NOT_SUPPORTED || (has_twin && status == CUBLAS_STATUS_INVALID_VALUE);
    }

    // The heuristic's first choice.
    void choose_algorithm(cublasLtHandle_t library, size_t workspace_bytes) {
        Preference preference(problem_, cublasLtMatmulPreferenceCreate);
        const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
            check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)), problem_);
        };
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
        // What several parts of K give is added in fp32 also where D is bfloat16.
        const uint32_t in_place = problem_.output_type == CUDA_R_32F ? CUBLASLT_REDUCTION_SCHEME_INPLACE : 0;
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) | in_place);
        const auto alignment = [&](cudaDataType_t type) -> uint32_t { return problem_.aligned ? 16 : type == CUDA_R_32F ? 4 : 2; };
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(problem_.input_type));
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(problem_.input_type));
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(problem_.output_type));
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(problem_.output_type));

        std::array<cublasLtMatmulHeuristicResult_t, 1> results{};
        int count = 0;
        const cublasStatus_t status =
            cublasLtMatmulAlgoGetHeuristic(library, operation_, a_, b_, d_, d_, preference, static_cast<int>(results.size()), results.data(), &count);
        if (is_refusal(status)) return;
        check(status, problem_);
        if (count > 0 && results[0].state == CUBLAS_STATUS_SUCCESS) algorithm_ = results[0].algo;
    }

    Problem problem_;
    Operation operation_;
    Layout a_, b_, d_;
    std::optional<cublasLtMatmulAlgo_t> algorithm_;
};

template <class T>
constexpr cudaDataType_t type_of = CUDA_R_32F;
template <>
constexpr cudaDataType_t type_of<bfloat16> = CUDA_R_16BF;

bool aligned(std::initializer_list<const void*> addresses) {
    return std::all_of(addresses.begin(), addresses.end(), [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; });
}

// What cuBLASLt may use: more than the smallest products need, so that it can split K. NVIDIA's advice: 32 MiB, more on Hopper.
size_t library_workspace_bytes() {
    constexpr size_t mebibyte = size_t{1} << 20;
    return (simt::device_info().compute_capability == 90 ? 128 : 32) * mebibyte;
}

constexpr size_t rounded_up(size_t bytes) { return (bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment; }
// A bias gradient as the product's epilogue leaves it, before it is added to the real one.
size_t fused_bias_gradient_bytes(size_t OC) { return rounded_up(OC * sizeof(float)); }

// Our part of the workspace; the rest is cuBLASLt's.
template <class T>
size_t scratch_bytes(size_t N, size_t OC) {
    const size_t fused = fused_bias_gradient_bytes(OC) + gemm_bias_gradient_scratch_bytes<float>(1, OC);
    return rounded_up(std::max(fused, gemm_bias_gradient_scratch_bytes<T>(N, OC)));
}

}  // namespace

struct Gemm::State {
    cublasLtHandle_t library = nullptr;
    bool tf32;
    bool fuse_gelu;
    char* workspace = nullptr;
    size_t workspace_bytes = 0;
    std::map<Problem, Plan> plans;

    explicit State(bool tf32) : tf32(tf32) {
        // Measured by others: GELU in the epilogue gains on Hopper and loses before it.
        fuse_gelu = simt::device_info().compute_capability >= 90;
        const cublasStatus_t status = cublasLtCreate(&library);
        if (status != CUBLAS_STATUS_SUCCESS) throw Error(fmt::format("gemm: cuBLASLt does not start: {}", cublasLtGetStatusName(status)));
    }
    State(const State&) = delete;
    ~State() {
        plans.clear();
        cublasLtDestroy(library);
    }

    template <class T, class Result>
    Problem problem(size_t m, size_t n, size_t k, bool transpose_a, bool transpose_b, bool accumulate,
                    std::initializer_list<const void*> addresses) const {
        const auto compute = tf32 && type_of<T> == CUDA_R_32F ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
        return {m, n, k, transpose_a, transpose_b, type_of<T>, type_of<Result>, compute, accumulate, aligned(addresses)};
    }

    // Memory for `bytes` of our own at the front of the workspace; cuBLASLt may use what is behind it at the same time.
    void* scratch(size_t bytes, const Problem& problem) const {
        if (bytes > workspace_bytes) {
            throw Error(fmt::format("gemm: {} wants {} bytes of workspace and has {}: call use_workspace with Gemm::workspace_bytes",
                                    problem.describe(), bytes, workspace_bytes));
        }
        return workspace;
    }

    // False, and nothing done, if cuBLASLt cannot solve the problem as it stands. own: bytes at the front of the workspace that it must not touch.
    bool try_run(const Problem& problem, void* d, const void* a, const void* b, const EpilogueData& data, size_t own, stream_t stream) {
        if (problem.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !problem.aligned) return false;
        if (uses_aux(problem.epilogue) && problem.m % 8 != 0) return false;  // its leading dimension must be a multiple of 8
        const size_t library_bytes = std::min(workspace_bytes - own, library_workspace_bytes_);
        auto found = plans.find(problem);
        if (found == plans.end()) found = plans.try_emplace(problem, library, problem, data, library_bytes).first;
        return found->second.possible() && found->second.run(library, d, a, b, data, workspace + own, library_bytes, stream);
    }

    void run(const Problem& problem, void* d, const void* a, const void* b, stream_t stream) {
        if (!try_run(problem, d, a, b, {}, 0, stream)) throw Error(fmt::format("gemm: cuBLASLt has no algorithm for {}", problem.describe()));
    }

private:
    const size_t library_workspace_bytes_ = library_workspace_bytes();
};

Gemm::Gemm(Options options) : state_(std::make_unique<State>(options.tf32)) {}
Gemm::~Gemm() = default;

template <class T>
size_t Gemm::workspace_bytes(size_t N, size_t, size_t OC) {
    return library_workspace_bytes() + scratch_bytes<T>(N, OC);
}

void Gemm::use_workspace(void* workspace, size_t bytes) {
    CHECK(reinterpret_cast<uintptr_t>(workspace) % workspace_alignment == 0, "gemm: the workspace {} is not aligned to {} bytes", workspace,
          workspace_alignment);
    state_->workspace = static_cast<char*>(workspace);
    state_->workspace_bytes = bytes;
    state_->plans.clear();  // their algorithms were chosen for the workspace before
}

template <class T>
void Gemm::forward(T* out, const T* inp, const T* weight, const T* bias, size_t N, size_t C, size_t OC, stream_t stream) {
    // out^T (OC, N) = weight (C, OC)^T inp^T (C, N)
    const Problem plain = state_->problem<T, T>(OC, N, C, true, false, false, {out, inp, weight, bias});
    if (bias && state_->try_run(plain.with(CUBLASLT_EPILOGUE_BIAS), out, weight, inp, {.bias = bias}, 0, stream)) return;
    state_->run(plain, out, weight, inp, stream);
    if (bias) gemm_add_bias(out, bias, N, OC, stream);
}

template <class T>
void Gemm::forward_gelu(T* out, T* pre_gelu, const T* inp, const T* weight, const T* bias, size_t N, size_t C, size_t OC, stream_t stream) {
    if (state_->fuse_gelu) {
        const Problem plain = state_->problem<T, T>(OC, N, C, true, false, false, {out, inp, weight, bias, pre_gelu});
        const auto epilogue = bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        if (state_->try_run(plain.with(epilogue), out, weight, inp, {.bias = bias, .aux = pre_gelu}, 0, stream)) return;
    }
    forward(pre_gelu, inp, weight, bias, N, C, OC, stream);
    gemm_gelu_forward(out, pre_gelu, N * OC, stream);
}

template <class T>
void Gemm::backward_input(T* dinp, const T* dout, const T* weight, size_t N, size_t C, size_t OC, stream_t stream) {
    // dinp^T (C, N) = weight^T (C, OC) dout^T (OC, N)
    state_->run(state_->problem<T, T>(C, N, OC, false, false, false, {dinp, dout, weight}), dinp, weight, dout, stream);
}

template <class T>
void Gemm::backward_input_gelu(T* dpre_gelu, const T* dout, const T* weight, const T* pre_gelu, size_t N, size_t C, size_t OC, stream_t stream) {
    if (state_->fuse_gelu) {
        const Problem plain = state_->problem<T, T>(C, N, OC, false, false, false, {dpre_gelu, dout, weight, pre_gelu});
        if (state_->try_run(plain.with(CUBLASLT_EPILOGUE_DGELU), dpre_gelu, weight, dout, {.aux = pre_gelu}, 0, stream)) return;
    }
    backward_input(dpre_gelu, dout, weight, N, C, OC, stream);
    gemm_gelu_backward(dpre_gelu, dpre_gelu, pre_gelu, N * C, stream);
}

template <class T>
void Gemm::backward_weight(float* dweight, float* dbias, const T* dout, const T* inp, size_t N, size_t C, size_t OC, bool accumulate,
                           stream_t stream) {
    // dweight^T (C, OC) = inp^T (C, N) (dout^T (OC, N))^T
    const Problem plain = state_->problem<T, float>(C, OC, N, false, true, accumulate, {dweight, dout, inp});
    if (!dbias) return state_->run(plain, dweight, inp, dout, stream);
    // The epilogue overwrites its bias gradient, so it writes into the workspace.
    char* const scratch = static_cast<char*>(state_->scratch(scratch_bytes<T>(N, OC), plain));
    const size_t own = fused_bias_gradient_bytes(OC);
    if (state_->try_run(plain.with(CUBLASLT_EPILOGUE_BGRADB), dweight, inp, dout, {.bias = scratch}, own, stream)) {
        gemm_bias_gradient(dbias, reinterpret_cast<const float*>(scratch), 1, OC, scratch + own, stream);
    } else {
        state_->run(plain, dweight, inp, dout, stream);
        gemm_bias_gradient(dbias, dout, N, OC, scratch, stream);
    }
}

#define INSTANTIATE(T) \
    template size_t Gemm::workspace_bytes<T>(size_t, size_t, size_t); \
    template void Gemm::forward(T*, const T*, const T*, const T*, size_t, size_t, size_t, stream_t); \
    template void Gemm::forward_gelu(T*, T*, const T*, const T*, const T*, size_t, size_t, size_t, stream_t); \
    template void Gemm::backward_input(T*, const T*, const T*, size_t, size_t, size_t, stream_t); \
    template void Gemm::backward_input_gelu(T*, const T*, const T*, const T*, size_t, size_t, size_t, stream_t); \
    template void Gemm::backward_weight(float*, float*, const T*, const T*, size_t, size_t, size_t, bool, stream_t);
INSTANTIATE(float)
INSTANTIATE(bfloat16)
