// cublaslt_product.h: one matrix product of cuBLASLt
// (https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api): what is asked of it, and the algorithms that
//   can compute it.
#pragma once
#include <cublasLt.h>

#include <algorithm>
#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gemm/gemm_choices.h"
#include "kernels/simt/device.h"

// The vector and the matrix that an epilogue reads or writes, beside D.
struct EpilogueData {
    const void* bias = nullptr;  // BIAS: m elements; BGRADB: n elements, written; of output_type
    const void* aux = nullptr;   // (m, n): the GELU's input, which GELU_AUX writes and DGELU reads
};
struct LtOperands {
    void* d;
    const void *a, *b;
    EpilogueData data = {};
};

// The largest power of two up to 256 that divides each address. cuBLASLt chooses among its algorithms by
// this, and 256 is the most that it knows; an operand that is not there (nullptr) restricts nothing.
struct LtAlignment {
    size_t a = 256, b = 256, d = 256, bias = 256, aux = 256;
    auto operator<=>(const LtAlignment&) const = default;

    static LtAlignment of(const LtOperands& operands);
    size_t least() const { return std::min({a, b, d, bias, aux}); }
    std::string describe() const;  // ", B aligned to 16": those below 256
};

// D (m, n) = op(A) (m, k) op(B) (k, n), column-major and contiguous: A and B of input_type, D of output_type.
struct LtProblem {
    size_t m, n, k;
    bool transpose_a, transpose_b;
    cudaDataType_t input_type, output_type;
    cublasComputeType_t compute;
    bool accumulate;             // D += instead of D =
    LtAlignment alignment = {};  // of the operands' addresses
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    auto operator<=>(const LtProblem&) const = default;

    LtProblem with(cublasLtEpilogue_t wanted) const {
        LtProblem other = *this;
        other.epilogue = wanted;
        return other;
    }
    double operations() const {
        return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    }
    bool reads_aux() const { return epilogue == CUBLASLT_EPILOGUE_DGELU; }
    bool writes_aux() const {
        return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    }
    // The sums over tokens: few tiles of D, many terms each.
    bool is_weight_gradient() const { return !transpose_a && transpose_b; }
    std::string describe() const;
};

// What cuBLASLt may use beside them.
struct LtWorkspace {
    void* memory;
    size_t bytes;
};

// Owns one of cuBLASLt's descriptors.
template <class Handle, cublasStatus_t (*destroy)(Handle)>
class LtDescriptor {
public:
    template <class Create, class... Arguments>
    LtDescriptor(const LtProblem& problem, Create create, Arguments... arguments);
    LtDescriptor(LtDescriptor&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
    ~LtDescriptor() {
        if (handle_) destroy(handle_);
    }
    operator Handle() const { return handle_; }

private:
    Handle handle_ = nullptr;
};

// How one problem is solved: its descriptors, and the algorithm in use.
class LtProduct {
public:
    // data: of the first product; the addresses of later ones may differ but are as well aligned, which is
    // part of the problem.
    LtProduct(cublasLtHandle_t library, const LtProblem& problem, const EpilogueData& data);

    // What may be worth timing with so many bytes of workspace, all of which use() takes: up to 16 that the
    // heuristic names, in its order; behind them, for weight gradients, the first three of these that differ
    // in more than the parts of K, with K in 1 to 12 parts, added up in place or in
    // fp32. Empty: cuBLASLt has none.
    std::vector<GemmAlgorithm> candidates(size_t workspace_bytes) const;
    // The heuristic's first choice; none if cuBLASLt cannot solve the problem on this GPU.
    void use_first_choice(size_t workspace_bytes);
    // False, and nothing changed, if cuBLASLt does not take this algorithm for this problem, on this GPU,
    // with this workspace.
    bool use(const GemmAlgorithm& algorithm, size_t workspace_bytes);
    void use_none() { algorithm_.reset(); }
    const std::optional<GemmAlgorithm>& algorithm() const { return algorithm_; }

    // False, with nothing launched, if there is no algorithm or cuBLASLt refuses it. If the product has an
    // epilogue, which can be done without, there is none from then on.
    bool run(const LtOperands& operands, const LtWorkspace& workspace, stream_t stream);
    // With another algorithm. False if it was not launched, whatever the reason.
    bool try_algorithm(const GemmAlgorithm& algorithm, const LtOperands& operands,
                       const LtWorkspace& workspace, stream_t stream);

private:
    template <class Value>
    void set(cublasLtMatmulDescAttributes_t attribute, Value value);
    void set_epilogue_data(const EpilogueData& data);
    bool is_refusal(cublasStatus_t status) const;
    cublasStatus_t launch(const GemmAlgorithm& algorithm, const LtOperands& operands,
                          const LtWorkspace& workspace, stream_t stream);
    std::vector<GemmAlgorithm> heuristic(int most, size_t workspace_bytes) const;
    bool accepts(const GemmAlgorithm& algorithm, size_t workspace_bytes) const;
    uint32_t reduction_schemes() const;

    cublasLtHandle_t library_;
    LtProblem problem_;
    LtDescriptor<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
    LtDescriptor<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> a_, b_, d_;
    std::optional<GemmAlgorithm> algorithm_;
};

// "algorithm 66, tile 20, stages 35, 4 parts of K added in place"
std::string describe(const GemmAlgorithm& algorithm);
