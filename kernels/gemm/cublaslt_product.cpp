#include "kernels/gemm/cublaslt_product.h"

#include <fmt/format.h>

#include <bit>

#include "system/error.h"

namespace {

constexpr int most_heuristics = 16, most_split = 3, most_parts = 12;

void check(cublasStatus_t status, const LtProblem& problem) {
    if (status != CUBLAS_STATUS_SUCCESS)
        throw Error(
            fmt::format("gemm: cuBLASLt says {} to {}", cublasLtGetStatusName(status), problem.describe()));
}

// The layout of a matrix for which op() yields (rows, columns).
template <class Layout>
Layout layout(const LtProblem& problem, cudaDataType_t type, bool transpose, size_t rows, size_t columns) {
    if (transpose) std::swap(rows, columns);
    return Layout(problem, cublasLtMatrixLayoutCreate, type, rows, columns, static_cast<int64_t>(rows));
}

template <class Value>
Value configured(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
    Value value{};
    size_t written = 0;
    cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written);
    return value;  // 0 if this version does not have the attribute
}

template <class Value>
Value capability(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoCapAttributes_t attribute) {
    Value value{};
    size_t written = 0;
    cublasLtMatmulAlgoCapGetAttribute(&algorithm, attribute, &value, sizeof(value), &written);
    return value;
}

// The algorithm with K in so many parts, or nothing if it cannot split K so.
std::optional<GemmAlgorithm> with_parts(cublasLtMatmulAlgo_t algorithm, int32_t parts, uint32_t scheme) {
    const auto set = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
        return cublasLtMatmulAlgoConfigSetAttribute(&algorithm, attribute, &value, sizeof(value)) ==
               CUBLAS_STATUS_SUCCESS;
    };
    if (!set(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts) || !set(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme))
        return std::nullopt;
    return std::bit_cast<GemmAlgorithm>(algorithm);
}

}  // namespace

std::string LtProblem::describe() const {
    const auto name = [](cudaDataType_t type) { return type == CUDA_R_32F ? "fp32" : "bf16"; };
    return fmt::format("{}{} m = {}, n = {}, k = {}, {} to {}, compute type {}, epilogue {}{}{}",
                       transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, name(input_type),
                       name(output_type), static_cast<int>(compute), static_cast<int>(epilogue),
                       accumulate   ? ", adding"
                       : adds_other ? ", adding another"
                                    : "",
                       alignment.describe());
}

LtAlignment LtAlignment::of(const LtOperands& operands) {
    const auto alignment = [](const void* address) {
        constexpr uintptr_t most = 256;
        const uintptr_t bits = reinterpret_cast<uintptr_t>(address) | most;  // 256 for nullptr too
        return static_cast<size_t>(bits & -bits);
    };
    return {alignment(operands.a),         alignment(operands.b),        alignment(operands.d),
            alignment(operands.data.bias), alignment(operands.data.aux), alignment(operands.c)};
}

std::string LtAlignment::describe() const {
    std::string text;
    for (const auto& [name, bytes] :
         {std::pair{"A", a}, {"B", b}, {"D", d}, {"bias", bias}, {"aux", aux}, {"C", c}}) {
        if (bytes < LtAlignment{}.a) text += fmt::format(", {} aligned to {}", name, bytes);
    }
    return text;
}

std::string describe(const GemmAlgorithm& algorithm) {
    const auto a = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
    std::string text =
        fmt::format("algorithm {}, tile {}, stages {}", configured<int32_t>(a, CUBLASLT_ALGO_CONFIG_ID),
                    configured<uint32_t>(a, CUBLASLT_ALGO_CONFIG_TILE_ID),
                    configured<uint32_t>(a, CUBLASLT_ALGO_CONFIG_STAGES_ID));
    if (const auto cluster = configured<uint16_t>(a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID))
        text += fmt::format(", cluster {}", cluster);
    if (const auto parts = configured<int32_t>(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM); parts > 1) {
        const bool in_place = configured<uint32_t>(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) ==
                              CUBLASLT_REDUCTION_SCHEME_INPLACE;
        text += fmt::format(", K in {} parts added {}", parts, in_place ? "in place" : "in fp32");
    }
    return text;
}

template <class Handle, cublasStatus_t (*destroy)(Handle)>
template <class Create, class... Arguments>
LtDescriptor<Handle, destroy>::LtDescriptor(const LtProblem& problem, Create create, Arguments... arguments) {
    check(create(&handle_, arguments...), problem);
}

LtProduct::LtProduct(cublasLtHandle_t library, const LtProblem& problem, const EpilogueData& data)
    : library_(library),
      problem_(problem),
      operation_(problem, cublasLtMatmulDescCreate, problem.compute, CUDA_R_32F),
      a_(layout<decltype(a_)>(problem, problem.input_type, problem.transpose_a, problem.m, problem.k)),
      b_(layout<decltype(b_)>(problem, problem.input_type, problem.transpose_b, problem.k, problem.n)),
      d_(layout<decltype(d_)>(problem, problem.output_type, false, problem.m, problem.n)) {
    set(CUBLASLT_MATMUL_DESC_TRANSA, static_cast<int32_t>(problem.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(CUBLASLT_MATMUL_DESC_TRANSB, static_cast<int32_t>(problem.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(problem.epilogue));
    if (data.bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(problem.output_type));
    if (data.aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<int64_t>(problem.m));
    set_epilogue_data(data);  // the choice of an algorithm depends on the alignment of these addresses
}

template <class Value>
void LtProduct::set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    check(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)), problem_);
}

void LtProduct::set_epilogue_data(const EpilogueData& data) {
    if (data.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, data.bias);
    if (data.aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, data.aux);
}

// True if cuBLASLt cannot solve the problem. An epilogue that this version lacks for these types may
// also be reported as an invalid value; its unfused twin does not need it.
bool LtProduct::is_refusal(cublasStatus_t status) const {
    const bool has_twin = problem_.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
    return status == CUBLAS_STATUS_NOT_SUPPORTED || (has_twin && status == CUBLAS_STATUS_INVALID_VALUE);
}

// The results of several parts of K are added in fp32 even if D is bfloat16.
uint32_t LtProduct::reduction_schemes() const {
    const uint32_t in_place = problem_.output_type == CUDA_R_32F ? CUBLASLT_REDUCTION_SCHEME_INPLACE : 0;
    return CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | in_place;
}

std::vector<GemmAlgorithm> LtProduct::heuristic(int most, size_t workspace_bytes) const {
    LtDescriptor<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(
        problem_, cublasLtMatmulPreferenceCreate);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
        check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)), problem_);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction_schemes());
    // The heuristic reads the alignment of bias and aux off their addresses in the descriptor.
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(problem_.alignment.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(problem_.alignment.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
           static_cast<uint32_t>(problem_.adds_other ? problem_.alignment.c : problem_.alignment.d));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(problem_.alignment.d));

    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library_, operation_, a_, b_, d_, d_,
                                                                 preference, most, results.data(), &count);
    if (is_refusal(status)) return {};
    check(status, problem_);
    std::vector<GemmAlgorithm> algorithms;
    for (int i = 0; i < count; i++) {
        const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
        if (result.state == CUBLAS_STATUS_SUCCESS)
            algorithms.push_back(std::bit_cast<GemmAlgorithm>(result.algo));
    }
    return algorithms;
}

bool LtProduct::accepts(const GemmAlgorithm& algorithm, size_t workspace_bytes) const {
    const auto algo = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(library_, operation_, a_, b_, d_, d_, &algo, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes;
}

std::vector<GemmAlgorithm> LtProduct::candidates(size_t workspace_bytes) const {
    std::vector<GemmAlgorithm> candidates = heuristic(most_heuristics, workspace_bytes);
    // An algorithm that cannot be checked again later cannot be kept.
    std::erase_if(candidates,
                  [&](const GemmAlgorithm& candidate) { return !accepts(candidate, workspace_bytes); });
    if (!problem_.is_weight_gradient()) return candidates;
    // the same algorithm may occur several times, with K in different numbers of parts
    std::vector<GemmAlgorithm> whole;
    for (const GemmAlgorithm& candidate : candidates) {
        const auto one =
            with_parts(std::bit_cast<cublasLtMatmulAlgo_t>(candidate), 1, CUBLASLT_REDUCTION_SCHEME_NONE);
        if (one && std::ranges::find(whole, *one) == whole.end()) whole.push_back(*one);
        if (whole.size() == most_split) break;
    }
    const auto add = [&](const std::optional<GemmAlgorithm>& algorithm) {
        if (algorithm && std::ranges::find(candidates, *algorithm) == candidates.end() &&
            accepts(*algorithm, workspace_bytes))
            candidates.push_back(*algorithm);
    };
    for (const GemmAlgorithm& one : whole) {
        add(one);
        const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(one);
        if (capability<int32_t>(algorithm, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT) == 0) continue;
        const uint32_t schemes =
            capability<uint32_t>(algorithm, CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK) & reduction_schemes();
        for (int32_t parts = 2; parts <= most_parts; parts++) {
            for (const uint32_t scheme :
                 {CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) {
                if (schemes & scheme) add(with_parts(algorithm, parts, scheme));
            }
        }
    }
    return candidates;
}

void LtProduct::use_first_choice(size_t workspace_bytes) {
    const std::vector<GemmAlgorithm> first = heuristic(1, workspace_bytes);
    algorithm_.reset();
    if (!first.empty()) algorithm_ = first[0];
}

bool LtProduct::use(const GemmAlgorithm& algorithm, size_t workspace_bytes) {
    if (!accepts(algorithm, workspace_bytes)) return false;
    algorithm_ = algorithm;
    return true;
}

cublasStatus_t LtProduct::launch(const GemmAlgorithm& algorithm, const LtOperands& operands,
                                 const LtWorkspace& workspace, stream_t stream) {
    set_epilogue_data(operands.data);
    const float beta = problem_.accumulate ? 1.0f : operands.beta;
    const void* const c = problem_.adds_other ? operands.c : operands.d;
    const auto algo = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
    return cublasLtMatmul(library_, operation_, &operands.alpha, operands.a, a_, operands.b, b_, &beta, c, d_,
                          operands.d, d_, &algo, workspace.memory, workspace.bytes, stream);
}

bool LtProduct::run(const LtOperands& operands, const LtWorkspace& workspace, stream_t stream) {
    if (!algorithm_) return false;
    const cublasStatus_t status = launch(*algorithm_, operands, workspace, stream);
    if (!is_refusal(status)) {
        check(status, problem_);
        return true;
    }
    // If our own kernel can take the epilogue's place, the algorithm is dropped for good. Otherwise only
    // this call fails, which may be one within a graph capture.
    if (problem_.epilogue != CUBLASLT_EPILOGUE_DEFAULT) algorithm_.reset();
    return false;
}

bool LtProduct::try_algorithm(const GemmAlgorithm& algorithm, const LtOperands& operands,
                              const LtWorkspace& workspace, stream_t stream) {
    // Any failure, such as too little memory for the algorithm's code, is accepted, since there are
    // other algorithms. A broken GPU shows at the next event.
    return launch(algorithm, operands, workspace, stream) == CUBLAS_STATUS_SUCCESS;
}
