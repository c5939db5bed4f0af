// cublaslt_imitation.h: a GPU that is not there, for tests of gemm_cublaslt.cpp: cuBLASLt, simt/device.h and
// our kernels behind the products.
//   It computes what it is asked to, in ordinary memory and in double precision, with the defects that a test
//   plants; and it has a clock, which goes on by what a test says that things take.
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
    // after the caches were filled with something else, and right after another product
    double cold_ms, warm_ms;
    int parts = 1;                   // into which the heuristic divides K
    int best_parts = 0;              // with which it is fastest; 0: it cannot divide K
    size_t workspace = 0;            // besides that for the parts
    size_t alignment = 1;            // that it needs of every address, in bytes
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
    std::map<cublasLtEpilogue_t, double> epilogue_ms;  // that it adds to any product's time
    double kernel_ms = 0.5;                            // of one of our own kernels
    simt::DeviceInfo info{.name = "Imitation 9000",
                          .total_memory = size_t{80} << 30,
                          .free_memory = size_t{40} << 30,
                          .multiprocessors = 132,
                          .compute_capability = 90,
                          .cache_bytes = size_t{1} << 20};
    size_t version = 130100;

    std::vector<Launch> launches;
    std::set<int> refused;            // algorithms that were to be launched and were not
    std::vector<size_t> allocations;  // bytes
    size_t allocated = 0;             // at the moment
    int checks = 0;                   // calls of cublasLtMatmulAlgoCheck
    int without_room = 0;             // products asked for with too little workspace
    int misaligned = 0;               // products asked for with addresses that their algorithm does not take

    double now_ms = 0;
    bool cold = false, timing = false;
};
extern Imitation* imitation;
