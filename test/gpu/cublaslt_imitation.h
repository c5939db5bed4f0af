// cublaslt_imitation.h: an imitated GPU for tests of gemm_cublaslt.cpp: cuBLASLt, simt/device.h and our
// kernels after the products
//   It computes in ordinary memory and in double precision, with the defects that a test plants. Its clock
//   advances by the times that a test sets.
#pragma once
#include <cublasLt.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/simt/device.h"

// An algorithm that the heuristic offers.
struct PlannedAlgorithm {
    int id;
    // after the caches were filled with other data, and right after another product
    double cold_ms, warm_ms;
    int parts = 1;                   // number into which the heuristic divides K
    int best_parts = 0;              // number with which it is fastest; 0: it cannot divide K
    size_t workspace = 0;            // beside that for the parts
    size_t alignment = 1;            // required of every address, in bytes
    bool passes_check = true;        // cublasLtMatmulAlgoCheck takes it
    bool forgets_last_term = false;  // of every sum
    bool overwrites = false;         // also where it should add
    bool writes_nothing = false;
    double bias_gradient_error = 0;  // relative; the product beside it is right
    // of cublasLtMatmul, which launches nothing if it is another
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
};

struct Launch {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    cublasLtEpilogue_t epilogue;
    bool adds, timed, cold;
    int id, parts;
    uint32_t scheme;
    size_t workspace_bytes;
    bool is_weight_gradient() const { return !transpose_a && transpose_b; }
};

struct Imitation {
    Imitation();
    ~Imitation();

    std::vector<PlannedAlgorithm> algorithms;          // in the heuristic's order
    std::map<cublasLtEpilogue_t, double> epilogue_ms;  // added to any product's time
    double kernel_ms = 0.5;                            // of one of our own kernels
    simt::DeviceInfo info{.name = "Imitation 9000",
                          .total_memory = size_t{80} << 30,
                          .free_memory = size_t{40} << 30,
                          .multiprocessors = 132,
                          .compute_capability = 90,
                          .cache_bytes = size_t{1} << 20};
    size_t version = 130100;

    std::vector<Launch> launches;
    std::set<int> refused;            // algorithms whose launches were refused
    std::vector<size_t> allocations;  // bytes
    size_t allocated = 0;             // at the moment
    int checks = 0;                   // calls of cublasLtMatmulAlgoCheck
    int without_room = 0;             // products requested with too little workspace
    int misaligned = 0;               // products requested with addresses that their algorithm rejects

    double now_ms = 0;
    bool cold = false, timing = false;
};
extern Imitation* imitation;
