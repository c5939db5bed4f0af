// cublaslt.h: the algorithms of the software GPU's cuBLASLt; a test of the choice among them puts others in
// their place, with defects
#pragma once
#include <cublasLt.h>

#include <vector>

namespace software_gpu {

struct LtAlgorithm {
    int32_t id = 0;
    uint32_t tile = 0, stages = 0;
    uint32_t alignment = 1;  // of addresses and columns, in bytes; 1: of the elements
    uint32_t schemes = 0;    // of adding the parts of K; 0: it cannot split K
    size_t workspace = 0;    // beside that for the parts
    bool has_epilogues = true;

    bool passes_check = true;  // cublasLtMatmulAlgoCheck takes it
    // of cublasLtMatmul, which launches nothing if it is another
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    bool forgets_last_term = false;  // of every sum
    bool overwrites = false;         // also where it should add
    bool writes_nothing = false;
    float bias_gradient_error = 0;  // relative; the product beside it is right
};

constexpr uint32_t every_scheme = CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

// In the heuristic's order.
std::vector<LtAlgorithm>& lt_algorithms();

}  // namespace software_gpu
