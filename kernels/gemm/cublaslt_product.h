// cublaslt_product.h: one matrix product of cuBLASLt, and the algorithms that can compute it
//   https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api
#pragma once
#include <cublasLt.h>

#include <algorithm>
#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gemm/gemm_choices.h"
#include "kernels/simt/device.h"

// The vector and the matrix that an epilogue reads or writes besides D.
struct EpilogueData {
    const void* bias = nullptr;  // BIAS reads m elements, BGRADB writes n elements; both of output_type
    const void* aux = nullptr;   // (m, n): the activation's input; forward writes and backward reads it
};
struct LtOperands {
    void* d;
    const void *a, *b;
    EpilogueData data = {};
    // of a problem that adds another matrix: D = alpha op(A) op(B) + beta C
    const void* c = nullptr;
    float alpha = 1, beta = 0;
};

// The largest power of two up to 256 that divides each address. cuBLASLt chooses among its algorithms by
// these, and distinguishes none above 256. An operand that is absent (nullptr) restricts nothing.
struct LtAlignment {
    size_t a = 256, b = 256, d = 256, bias = 256, aux = 256, c = 256;
    auto operator<=>(const LtAlignment&) const = default;

    static LtAlignment of(const LtOperands& operands);
    size_t least() const { return std::min({a, b, d, bias, aux, c}); }
    std::string describe() const;  // ", B aligned to 16": only those below 256
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
    bool adds_other = false;  // beta C of the operands, which is not D
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
    // A sum over tokens: few tiles of D, and many terms for each.
    bool is_weight_gradient() const { return !transpose_a && transpose_b; }
    std::string describe() const;
};

// Scratch that cuBLASLt may use.
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

// A problem's descriptors and the algorithm in use for it.
class LtProduct {
public:
    // data belongs to the first call. Later calls may use other addresses of the same alignment, which
    // is part of the problem.
    LtProduct(cublasLtHandle_t library, const LtProblem& problem, const EpilogueData& data);

    // The algorithms that may be worth timing with a workspace of this size; use() accepts each of them.
    // First come up to 16 that the heuristic names, in its order. For weight gradients there follow
    // variants of the first three of these that differ in more than how they split K: each with K in 1
    // to 12 parts, which are added in place or in fp32. Empty if cuBLASLt has no algorithm.
    std::vector<GemmAlgorithm> candidates(size_t workspace_bytes) const;
    // Uses the heuristic's first choice, or none if cuBLASLt cannot solve the problem on this GPU.
    void use_first_choice(size_t workspace_bytes);
    // Returns false and changes nothing if cuBLASLt does not accept this algorithm for this problem, on
    // this GPU, with this workspace.
    bool use(const GemmAlgorithm& algorithm, size_t workspace_bytes);
    void use_none() { algorithm_.reset(); }
    const std::optional<GemmAlgorithm>& algorithm() const { return algorithm_; }

    // Returns false and launches nothing if there is no algorithm or cuBLASLt refuses it. After a
    // refusal, a problem with an epilogue has no algorithm from then on, since it can be computed
    // without the epilogue.
    bool run(const LtOperands& operands, const LtWorkspace& workspace, stream_t stream);
    // Runs another algorithm. Returns false if it was not launched, whatever the reason.
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
