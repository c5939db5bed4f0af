// cublaslt.cpp: replaces cuBLASLt on the software GPU: D = epilogue(alpha op(A) op(B) + beta C), column-major
// and contiguous
//   Written from NVIDIA's documentation (https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api) and
//   the comments of cublasLt.h. It computes when its turn in the stream comes, after checking every
//   operand, and rejects what they document as an error. Where they leave a choice, it makes the one that
//   demands most of the caller: the operands of the fast algorithms and their columns must be aligned to 16
//   bytes, an algorithm without that alignment has no epilogue, and the library leaves garbage in the whole
//   workspace. What our programs do not use ends the process with a line that names it.
#include "cublaslt.h"

#include <cublas_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "blocked_product.h"
#include "kernels/simt/bfloat16.h"
#include "stream.h"
#include "trace.h"

struct cublasLtContext {};

namespace {

using software_gpu::Fault;
using software_gpu::LtAlgorithm;

constexpr size_t multiprocessors = 132;  // of the H200, for the heuristic

[[noreturn]] void stop(const std::string& message) { software_gpu::stop(Fault("cuBLASLt: " + message)); }

// ----------------------------------------------------------------------------------------------------
// descriptors

struct Operation : cublasLtMatmulDescOpaque_t {
    cublasComputeType_t compute;
    int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void* bias = nullptr;
    void* aux = nullptr;
    int64_t aux_leading = 0;
    int32_t bias_type = -1;  // -1: D's
};
struct Layout : cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    size_t rows, columns;

    size_t element_bytes() const { return type == CUDA_R_32F ? sizeof(float) : sizeof(bfloat16); }
    size_t column_bytes() const { return rows * element_bytes(); }
    size_t bytes() const { return columns * column_bytes(); }
};
struct Preference : cublasLtMatmulPreferenceOpaque_t {
    uint64_t workspace = 0;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
    uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C and D
};

template <class T>
cublasStatus_t assign(T& to, const void* from, size_t bytes) {
    if (!from || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t give(const T& value, void* to, size_t bytes, size_t* written) {
    if (!to || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(to, &value, sizeof(T));
    *written = sizeof(T);
    return CUBLAS_STATUS_SUCCESS;
}

bool has_bias(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool has_bias_gradient(uint32_t epilogue) { return epilogue == CUBLASLT_EPILOGUE_BGRADB; }
bool writes_aux(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool has_aux(uint32_t epilogue) { return writes_aux(epilogue) || epilogue == CUBLASLT_EPILOGUE_DGELU; }

// The name without CUBLASLT_EPILOGUE_; nullptr for an unsupported one.
const char* epilogue_name(uint32_t epilogue) {
    switch (epilogue) {
        case CUBLASLT_EPILOGUE_DEFAULT: return "DEFAULT";
        case CUBLASLT_EPILOGUE_BIAS: return "BIAS";
        case CUBLASLT_EPILOGUE_GELU_AUX: return "GELU_AUX";
        case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return "GELU_AUX_BIAS";
        case CUBLASLT_EPILOGUE_DGELU: return "DGELU";
        case CUBLASLT_EPILOGUE_BGRADB: return "BGRADB";
        default: return nullptr;
    }
}

// ----------------------------------------------------------------------------------------------------
// problems and algorithms

struct Problem {
    Operation operation;
    Layout a, b, d;

    bool transposes_a() const { return operation.transpose_a != CUBLAS_OP_N; }
    bool transposes_b() const { return operation.transpose_b != CUBLAS_OP_N; }
    size_t m() const { return d.rows; }
    size_t n() const { return d.columns; }
    size_t k() const { return transposes_a() ? a.rows : a.columns; }
    std::string describe() const;
};

std::string Problem::describe() const {
    const auto name = [](cudaDataType_t type) { return type == CUDA_R_32F ? "fp32" : "bf16"; };
    return fmt::format("cublasLtMatmul ({}{} {} to {}, m = {}, n = {}, k = {}, epilogue {})",
                       transposes_a() ? 'T' : 'N', transposes_b() ? 'T' : 'N',
                       operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? "tf32" : name(a.type),
                       name(d.type), m(), n(), k(), epilogue_name(operation.epilogue));
}

// The fp32 and bf16 rows of cublasLtMatmul's table of data types.
bool knows_types(const Problem& p) {
    const bool tf32 = p.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if ((!tf32 && p.operation.compute != CUBLAS_COMPUTE_32F) || p.a.type != p.b.type) return false;
    if (p.a.type == CUDA_R_32F) return p.d.type == CUDA_R_32F;
    return p.a.type == CUDA_R_16BF && !tf32 && (p.d.type == CUDA_R_16BF || p.d.type == CUDA_R_32F);
}

bool shapes_fit(const Problem& p) {
    const size_t a_rows = p.transposes_a() ? p.a.columns : p.a.rows,
                 b_rows = p.transposes_b() ? p.b.columns : p.b.rows,
                 b_columns = p.transposes_b() ? p.b.rows : p.b.columns;
    return a_rows == p.m() && b_rows == p.k() && b_columns == p.n() && p.m() > 0 && p.n() > 0 && p.k() > 0;
}

// SUCCESS, or the reason why no algorithm computes it.
cublasStatus_t check(const Problem& p) {
    const Operation& o = p.operation;
    if (!knows_types(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!shapes_fit(p)) return CUBLAS_STATUS_INVALID_VALUE;
    const bool reads_or_writes_bias = has_bias(o.epilogue) || has_bias_gradient(o.epilogue);
    if (reads_or_writes_bias && o.bias_type != -1 && o.bias_type != p.d.type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    // "Must be divisible by 8 and be no less than the number of rows in the output matrix."
    const bool holds =
        !has_aux(o.epilogue) || (o.aux_leading % 8 == 0 && o.aux_leading == static_cast<int64_t>(p.m()));
    return holds ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// The content of cublasLtMatmulAlgo_t.
struct Algorithm {
    static constexpr uint32_t mark = 0x5f3a91c7;
    uint32_t marked = mark;
    int32_t id = 0, parts = 1;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;

    static std::optional<Algorithm> of(const cublasLtMatmulAlgo_t* algo) {
        Algorithm algorithm;
        if (algo) std::memcpy(static_cast<void*>(&algorithm), algo, sizeof(algorithm));
        return algo && algorithm.marked == mark && algorithm.kind() ? std::optional(algorithm) : std::nullopt;
    }
    void put(cublasLtMatmulAlgo_t& algo) const {
        algo = {};
        std::memcpy(&algo, this, sizeof(*this));
    }
    const LtAlgorithm* kind() const {
        const auto found = std::ranges::find(software_gpu::lt_algorithms(), id, &LtAlgorithm::id);
        return found == software_gpu::lt_algorithms().end() ? nullptr : &*found;
    }
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

size_t workspace_bytes(const Problem& p, const Algorithm& algorithm) {
    const size_t elements = static_cast<size_t>(algorithm.parts) * p.m() * p.n();
    const size_t counters = 4 * ((p.m() + 127) / 128) * ((p.n() + 127) / 128);
    switch (algorithm.scheme) {
        case CUBLASLT_REDUCTION_SCHEME_INPLACE: return algorithm.kind()->workspace + counters;
        case CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE:
            return algorithm.kind()->workspace + elements * sizeof(float);
        default: return algorithm.kind()->workspace;
    }
}

// SUCCESS, or the reason why this algorithm does not compute the problem, for operands at any addresses.
cublasStatus_t check(const Problem& p, const Algorithm& algorithm) {
    const LtAlgorithm& kind = *algorithm.kind();
    const uint32_t epilogue = p.operation.epilogue;
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT && !kind.has_epilogues) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (const Layout* layout : {&p.a, &p.b, &p.d}) {
        if (layout->column_bytes() % kind.alignment != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (algorithm.parts < 1) return CUBLAS_STATUS_INVALID_VALUE;
    const bool splits = algorithm.parts > 1;
    if (splits != (algorithm.scheme != CUBLASLT_REDUCTION_SCHEME_NONE)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!splits) return CUBLAS_STATUS_SUCCESS;
    const bool can_add = std::has_single_bit(algorithm.scheme) && (algorithm.scheme & kind.schemes);
    // When parts are added in D itself, no epilogue can see the whole sum.
    const bool in_place = algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE;
    const bool sees_sum = epilogue != CUBLASLT_EPILOGUE_DEFAULT && !has_bias_gradient(epilogue);
    const bool possible = can_add && !(in_place && sees_sum) && static_cast<size_t>(algorithm.parts) <= p.k();
    return possible ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// The algorithms that the heuristic would try, the best first: weight gradients have few tiles and many
// terms.
std::vector<Algorithm> proposals(const Problem& p) {
    std::vector<Algorithm> whole, split;
    for (const LtAlgorithm& kind : software_gpu::lt_algorithms()) {
        Algorithm algorithm;
        algorithm.id = kind.id;
        whole.push_back(algorithm);
        for (const auto scheme :
             {CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) {
            if (!(kind.schemes & scheme)) continue;
            algorithm.parts = scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE ? 2 : 3;
            algorithm.scheme = scheme;
            split.push_back(algorithm);
        }
    }
    const size_t tiles = ((p.m() + 127) / 128) * ((p.n() + 255) / 256);
    const bool splits_first = tiles < multiprocessors / 2 && p.k() >= 256;
    whole.insert(splits_first ? whole.begin() : whole.end(), split.begin(), split.end());
    return whole;
}

std::optional<Problem> problem_of(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                  cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                  cublasLtMatrixLayout_t d) {
    if (!operation || !a || !b || !c || !d) return std::nullopt;
    if (c != d) stop("a product whose C has another layout than D is not known here");
    const auto layout = [](cublasLtMatrixLayout_t opaque) { return *static_cast<const Layout*>(opaque); };
    return Problem{*static_cast<const Operation*>(operation), layout(a), layout(b), layout(d)};
}

bool is_aligned(const void* address, size_t bytes) {
    return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

cublasLtMatmulHeuristicResult_t result_of(const Problem& p, const Algorithm& algorithm) {
    cublasLtMatmulHeuristicResult_t result{};
    algorithm.put(result.algo);
    result.workspaceSize = workspace_bytes(p, algorithm);
    result.state = CUBLAS_STATUS_SUCCESS;
    return result;
}

// ----------------------------------------------------------------------------------------------------
// arithmetic

// Its error in cuBLASLt's epilogues is not documented. That of the GPU's own, tanh.approx.f32, is at most
// 2^-11 of the result: the settings' approximations move it by that.
float tanh_of(float x) {
    const float result = 1 - 2 / (std::exp(2 * x) + 1);
    constexpr float error = 0x1p-11f;
    const auto moved = [&](float by) { return std::clamp(result * (1 + by), -1.0f, 1.0f); };
    switch (software_gpu::settings().approximation) {
        case software_gpu::Settings::Approximation::nearest: return result;
        case software_gpu::Settings::Approximation::up: return moved(result > 0 ? error : -error);
        case software_gpu::Settings::Approximation::down: return moved(result > 0 ? -error : error);
        default: {
            const uint64_t bits =
                (std::bit_cast<uint32_t>(x) + software_gpu::settings().seed) * 0x9e3779b97f4a7c15;
            return moved(bits >> 63 ? error : -error);
        }
    }
}

constexpr float gelu_scale = 0.797884560802865f, gelu_cube = 0.044715f;  // sqrt(2 / pi)

float gelu(float x) { return 0.5f * x * (1 + tanh_of(gelu_scale * (x + gelu_cube * x * x * x))); }
float gelu_derivative(float x) {
    const float t = tanh_of(gelu_scale * (x + gelu_cube * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * gelu_scale * (1 + 3 * gelu_cube * x * x);
}

void store(void* values, cudaDataType_t type, size_t offset, const float* from, size_t count) {
    if (type == CUDA_R_32F) {
        std::copy_n(from, count, static_cast<float*>(values) + offset);
    } else {
        bfloat16* const to = static_cast<bfloat16*>(values) + offset;
        for (size_t i = 0; i < count; i++) to[i] = bfloat16(from[i]);
    }
}
// ----------------------------------------------------------------------------------------------------
// products

// One call of cublasLtMatmul with everything that its work in the stream needs, so that a graph can repeat
// it.
struct Product {
    Problem problem;
    Algorithm algorithm;
    float alpha, beta;
    const void *a, *b, *c;
    void *d, *workspace;
    size_t workspace_bytes;

    struct Operand {
        const char* name;
        const void* begin;
        size_t bytes, element_bytes;
        bool read, written;
    };
    std::vector<Operand> operands() const;
    void run() const;
    std::string traced() const;

private:
    std::string who(const char* operand) const {
        return fmt::format("operand {} of {}:", operand, problem.describe());
    }
    void check_operands() const;
    void check_overlaps() const;
    void check_workspace() const;
    std::vector<float> column_block(software_gpu::ProductRange columns) const;
    std::vector<float> part(software_gpu::ProductRange columns, int32_t index) const;
    void add_c(std::vector<float>& sums, software_gpu::ProductRange columns) const;
    std::vector<float> column(const void* values, size_t j) const;
    void finish(float* values, size_t j) const;
    void store_bias_gradient() const;
    software_gpu::ProductInput input(const void* values, const Layout& layout, bool transposed) const;
};

std::vector<Product::Operand> Product::operands() const {
    const Operation& o = problem.operation;
    const size_t element = problem.d.element_bytes(), bytes = problem.d.bytes();
    std::vector<Operand> all = {{"A", a, problem.a.bytes(), problem.a.element_bytes(), true, false},
                                {"B", b, problem.b.bytes(), problem.b.element_bytes(), true, false},
                                {"D", d, bytes, element, beta != 0 && c == d, true}};
    if (beta != 0 && c != d) all.push_back({"C", c, bytes, element, true, false});
    if (has_bias(o.epilogue)) all.push_back({"bias", o.bias, problem.m() * element, element, true, false});
    if (has_bias_gradient(o.epilogue))
        all.push_back({"bias gradient", o.bias, problem.n() * element, element, false, true});
    if (has_aux(o.epilogue))
        all.push_back({"aux", o.aux, bytes, element, !writes_aux(o.epilogue), writes_aux(o.epilogue)});
    return all;
}

// Reads come first: they may be of what is written.
void Product::check_operands() const {
    software_gpu::Memory& memory = software_gpu::device_memory();
    for (const bool writes : {false, true}) {
        for (const Operand& o : operands()) {
            if (writes ? !o.written : !o.read) continue;
            if (!(writes ? memory.note_write(const_cast<void*>(o.begin), o.bytes, who(o.name))
                         : memory.check_read(o.begin, o.bytes, who(o.name))))
                throw Fault(fmt::format("{} {} is not memory of the device, but {}", who(o.name), o.begin,
                                        memory.nearest(o.begin)));
        }
    }
}

// Written memory may not overlap anything else.
void Product::check_overlaps() const {
    std::vector<Operand> all = operands();
    if (workspace_bytes > 0) all.push_back({"workspace", workspace, workspace_bytes, 1, false, true});
    for (size_t i = 0; i < all.size(); i++) {
        for (size_t j = 0; j < i; j++) {
            const Operand &one = all[j], &other = all[i];
            const auto one_begin = reinterpret_cast<uintptr_t>(one.begin),
                       other_begin = reinterpret_cast<uintptr_t>(other.begin);
            if ((one.written || other.written) && one_begin < other_begin + other.bytes &&
                other_begin < one_begin + one.bytes) {
                throw Fault(fmt::format("{}: operands {} and {} overlap, and one of them is written",
                                        problem.describe(), one.name, other.name));
            }
        }
    }
}

// Leaves garbage in the library's workspace: in the bytes that the algorithm needs, in a piece of each 64
// KiB of the rest, and at its end. Filling all of it would take longer than most products.
void Product::check_workspace() const {
    if (workspace_bytes == 0) return;
    software_gpu::Memory& memory = software_gpu::device_memory();
    auto* const begin = static_cast<std::byte*>(workspace);
    const auto* const allocation = memory.find(begin);
    if (!allocation || begin + workspace_bytes > allocation->end()) {
        throw Fault(fmt::format("{} {} bytes at {} are not all in one allocation, but {}", who("workspace"),
                                workspace_bytes, workspace,
                                allocation ? fmt::format("in one that ends {} bytes behind their begin",
                                                         allocation->end() - begin)
                                           : memory.nearest(workspace)));
    }
    constexpr size_t step = size_t{64} << 10, piece = 256;
    const std::string text = who("workspace");
    const auto spoil = [&](size_t offset, size_t bytes) {
        memory.note_write(begin + offset, bytes, text);
        std::memset(begin + offset, 0xff, bytes);
        memory.unpoison_gap(begin + offset, bytes);  // counts as never written from now on
    };
    const size_t needed = std::min(workspace_bytes, std::max(::workspace_bytes(problem, algorithm), step));
    spoil(0, needed);
    for (size_t offset = needed; offset < workspace_bytes; offset += step)
        spoil(offset, std::min(piece, workspace_bytes - offset));
    spoil(workspace_bytes - std::min(piece, workspace_bytes), std::min(piece, workspace_bytes));
}

software_gpu::ProductInput Product::input(const void* values, const Layout& layout, bool transposed) const {
    using software_gpu::Tf32;
    const bool tf32 = problem.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const Tf32 rounding = !tf32                                            ? Tf32::none
                          : software_gpu::settings().tensor_cores_truncate ? Tf32::truncate
                                                                           : Tf32::nearest;
    return {values, layout.type != CUDA_R_32F, transposed, layout.rows, rounding};
}

// op(A) op(B) of these columns over one part of K.
std::vector<float> Product::part(software_gpu::ProductRange columns, int32_t index) const {
    const size_t k = problem.k() - algorithm.kind()->forgets_last_term,
                 parts = static_cast<size_t>(algorithm.parts), i = static_cast<size_t>(index);
    const bool tensor_cores =
        problem.a.type != CUDA_R_32F || problem.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    std::vector<float> sums(problem.m() * (columns.end - columns.begin));
    software_gpu::add_product(sums.data(), input(a, problem.a, problem.transposes_a()),
                              input(b, problem.b, problem.transposes_b()), problem.m(), columns,
                              {k * i / parts, k * (i + 1) / parts},
                              tensor_cores && software_gpu::settings().tensor_cores_truncate);
    if (alpha != 1) {
        for (float& sum : sums) sum *= alpha;
    }
    return sums;
}

// A column of a matrix like D.
std::vector<float> Product::column(const void* values, size_t j) const {
    std::vector<float> loaded(problem.m());
    software_gpu::ProductInput{values, problem.d.type != CUDA_R_32F, false, loaded.size()}.load(
        loaded.data(), 0, j, loaded.size());
    return loaded;
}

// sums += beta C
void Product::add_c(std::vector<float>& sums, software_gpu::ProductRange columns) const {
    if (beta == 0 || algorithm.kind()->overwrites) return;  // C may hold anything
    for (size_t j = columns.begin; j < columns.end; j++) {
        const std::vector<float> before = column(c, j);
        float* const x = sums.data() + (j - columns.begin) * before.size();
        for (size_t i = 0; i < before.size(); i++) x[i] += beta * before[i];
    }
}

// alpha op(A) op(B) + beta C; parts of K that are added in place are added to beta C.
std::vector<float> Product::column_block(software_gpu::ProductRange columns) const {
    std::vector<float> sums = part(columns, 0);
    const bool in_place = algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE;
    if (in_place) add_c(sums, columns);
    for (int32_t i = 1; i < algorithm.parts; i++) {
        const std::vector<float> more = part(columns, i);
        for (size_t e = 0; e < sums.size(); e++) sums[e] += more[e];
    }
    if (!in_place) add_c(sums, columns);
    return sums;
}

// The epilogue of a column, and its store to D.
void Product::finish(float* values, size_t j) const {
    const Operation& o = problem.operation;
    const size_t m = problem.m();
    if (writes_aux(o.epilogue)) {
        store(o.aux, problem.d.type, j * m, values, m);
        for (size_t i = 0; i < m; i++) values[i] = gelu(values[i]);
    }
    if (o.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        const std::vector<float> aux = column(o.aux, j);
        for (size_t i = 0; i < m; i++) values[i] *= gelu_derivative(aux[i]);
    }
    store(d, problem.d.type, j * m, values, m);
}

// The sums of op(B)'s columns over k, in D's type; what was there is overwritten.
void Product::store_bias_gradient() const {
    software_gpu::ProductInput values = input(b, problem.b, false);
    values.tf32 = software_gpu::Tf32::none;  // nothing is multiplied
    std::vector<float> sums(problem.n()), one(problem.b.rows);
    for (size_t j = 0; j < problem.b.columns; j++) {
        values.load(one.data(), 0, j, problem.b.rows);
        for (size_t i = 0; i < problem.b.rows; i++) sums[problem.transposes_b() ? i : j] += one[i];
    }
    for (float& sum : sums) sum *= 1 + algorithm.kind()->bias_gradient_error;
    store(problem.operation.bias, problem.d.type, 0, sums.data(), sums.size());
}

// The product's line in the trace.
std::string Product::traced() const {
    const std::string factor = alpha == 1 ? "" : fmt::format("{} ", alpha),
                      added = c == d ? "D" : fmt::format("{}", c);
    return fmt::format("{} algorithm {}, {} parts, scheme {}, {} bytes of workspace, {} = {}{} x {} + {} {}",
                       problem.describe(), algorithm.id, algorithm.parts, algorithm.scheme, workspace_bytes,
                       d, factor, a, b, beta, added);
}

void Product::run() const {
    check_overlaps();
    check_operands();
    check_workspace();
    if (algorithm.kind()->writes_nothing) return;
    const size_t m = problem.m();
    const Operation& o = problem.operation;
    const std::vector<float> added = has_bias(o.epilogue) ? column(o.bias, 0) : std::vector<float>();
    constexpr size_t block = 256;
    for (size_t first = 0; first < problem.n(); first += block) {
        const software_gpu::ProductRange columns{first, std::min(problem.n(), first + block)};
        std::vector<float> sums = column_block(columns);
        for (size_t j = columns.begin; j < columns.end; j++) {
            float* const x = sums.data() + (j - columns.begin) * m;
            for (size_t i = 0; i < added.size(); i++) x[i] += added[i];
            finish(x, j);
        }
    }
    if (has_bias_gradient(o.epilogue)) store_bias_gradient();
}

// True if every operand of the product is present and has the algorithm's alignment.
bool operands_suit(const Product& product, uint32_t alignment) {
    return std::ranges::all_of(product.operands(), [&](const Product::Operand& o) {
        return o.begin && is_aligned(o.begin, std::max<size_t>(alignment, o.element_bytes));
    });
}

// SUCCESS, or the reason why the product is not launched.
cublasStatus_t check(const Product& product) {
    const Problem& p = product.problem;
    if (const cublasStatus_t status = check(p); status != CUBLAS_STATUS_SUCCESS) return status;
    if (const cublasStatus_t status = check(p, product.algorithm); status != CUBLAS_STATUS_SUCCESS)
        return status;
    const LtAlgorithm& kind = *product.algorithm.kind();
    if (!operands_suit(product, kind.alignment)) return CUBLAS_STATUS_INVALID_VALUE;
    if (product.workspace_bytes > 0 && (!product.workspace || !is_aligned(product.workspace, 256)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_bytes(p, product.algorithm) > product.workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
    return kind.status;
}

}  // namespace

std::vector<LtAlgorithm>& software_gpu::lt_algorithms() {
    static std::vector<LtAlgorithm> algorithms = {{.id = 66,
                                                   .tile = CUBLASLT_MATMUL_TILE_128x256,
                                                   .stages = CUBLASLT_MATMUL_STAGES_64xAUTO,
                                                   .alignment = 16,
                                                   .schemes = every_scheme},
                                                  {.id = 67,
                                                   .tile = CUBLASLT_MATMUL_TILE_256x128,
                                                   .stages = CUBLASLT_MATMUL_STAGES_64xAUTO,
                                                   .alignment = 16,
                                                   .schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                                                   .workspace = size_t{4} << 20},
                                                  {.id = 21,
                                                   .tile = CUBLASLT_MATMUL_TILE_64x64,
                                                   .stages = CUBLASLT_MATMUL_STAGES_32x3,
                                                   .has_epilogues = false}};
    return algorithms;
}

// ----------------------------------------------------------------------------------------------------
// the library's functions

extern "C" {
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
    *handle = new cublasLtContext;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
        default: return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    if (scale != CUDA_R_32F) stop("factors of another type than fp32 are not known here");
    auto* const operation = new Operation;
    operation->compute = compute;
    *made = operation;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    delete static_cast<Operation*>(desc);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
    auto& o = *static_cast<Operation*>(desc);
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_TRANSA: return assign(o.transpose_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB: return assign(o.transpose_b, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: {
            const cublasStatus_t status = assign(o.epilogue, value, bytes);
            if (!epilogue_name(o.epilogue)) stop(fmt::format("epilogue {} is not known here", o.epilogue));
            return status;
        }
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return assign(o.bias, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return assign(o.bias_type, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return assign(o.aux, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return assign(o.aux_leading, value, bytes);
        default:
            stop(fmt::format("attribute {} of an operation is not known here", static_cast<int>(attribute)));
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
    if (leading != static_cast<int64_t>(rows))
        stop(fmt::format("a leading dimension of {} for {} rows is not known here", leading, rows));
    auto* const layout = new Layout;
    layout->type = type;
    layout->rows = rows;
    layout->columns = columns;
    *made = layout;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete static_cast<Layout*>(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
    *made = new Preference;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    delete static_cast<Preference*>(preference);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
    auto& p = *static_cast<Preference*>(preference);
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return assign(p.workspace, value, bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return assign(p.schemes, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return assign(p.alignment[0], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return assign(p.alignment[1], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return assign(p.alignment[2], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return assign(p.alignment[3], value, bytes);
        default:
            stop(fmt::format("attribute {} of a preference is not known here", static_cast<int>(attribute)));
    }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
    const std::optional<Problem> problem = problem_of(operation, a, b, c, d);
    if (!handle || !problem || !preference || !results || !count || most <= 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    software_gpu::trace("cublasLtMatmulAlgoGetHeuristic");
    *count = 0;
    if (const cublasStatus_t status = check(*problem); status != CUBLAS_STATUS_SUCCESS) return status;
    const auto& wanted = *static_cast<const Preference*>(preference);
    const Operation& o = problem->operation;
    for (const Algorithm& algorithm : proposals(*problem)) {
        if (*count == most) break;
        const uint32_t alignment = algorithm.kind()->alignment;
        if (*std::ranges::min_element(wanted.alignment) < alignment) continue;
        // "depend on its value to determine expected pointer alignment"
        if (!is_aligned(o.bias, alignment) || !is_aligned(o.aux, alignment)) continue;
        if (algorithm.scheme & ~wanted.schemes || check(*problem, algorithm) != CUBLAS_STATUS_SUCCESS)
            continue;
        if (workspace_bytes(*problem, algorithm) > wanted.workspace) continue;
        results[(*count)++] = result_of(*problem, algorithm);
    }
    return *count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
    const std::optional<Problem> problem = problem_of(operation, a, b, c, d);
    const std::optional<Algorithm> algorithm = Algorithm::of(algo);
    if (!handle || !problem || !algorithm || !result) return CUBLAS_STATUS_INVALID_VALUE;
    software_gpu::trace("cublasLtMatmulAlgoCheck");
    if (!algorithm->kind()->passes_check) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (const cublasStatus_t status = check(*problem); status != CUBLAS_STATUS_SUCCESS) return status;
    if (const cublasStatus_t status = check(*problem, *algorithm); status != CUBLAS_STATUS_SUCCESS)
        return status;
    const cublasLtMatmulAlgo_t unchanged = result->algo;  // "algo field is never updated"
    *result = result_of(*problem, *algorithm);
    result->algo = unchanged;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                 cublasLtMatmulAlgoCapAttributes_t attribute, void* value,
                                                 size_t bytes, size_t* written) {
    const std::optional<Algorithm> algorithm = Algorithm::of(algo);
    if (!algorithm) return CUBLAS_STATUS_INVALID_VALUE;
    const LtAlgorithm& kind = *algorithm->kind();
    switch (attribute) {
        case CUBLASLT_ALGO_CAP_SPLITK_SUPPORT: return give<int32_t>(kind.schemes != 0, value, bytes, written);
        case CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK:
            return give<uint32_t>(kind.schemes, value, bytes, written);
        default:
            stop(fmt::format("capability {} of an algorithm is not known here", static_cast<int>(attribute)));
    }
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* value, size_t bytes) {
    std::optional<Algorithm> algorithm = Algorithm::of(algo);
    if (!algorithm) return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;  // the algorithm's index is only read
    switch (attribute) {
        case CUBLASLT_ALGO_CONFIG_ID: break;
        case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: status = assign(algorithm->parts, value, bytes); break;
        case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: status = assign(algorithm->scheme, value, bytes); break;
        default:
            stop(fmt::format("setting {} of an algorithm is not known here", static_cast<int>(attribute)));
    }
    algorithm->put(*algo);
    return status;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
    const std::optional<Algorithm> algorithm = Algorithm::of(algo);
    if (!algorithm) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
        case CUBLASLT_ALGO_CONFIG_ID: return give(algorithm->id, value, bytes, written);
        case CUBLASLT_ALGO_CONFIG_TILE_ID: return give(algorithm->kind()->tile, value, bytes, written);
        case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: return give(algorithm->parts, value, bytes, written);
        case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: return give(algorithm->scheme, value, bytes, written);
        case CUBLASLT_ALGO_CONFIG_STAGES_ID: return give(algorithm->kind()->stages, value, bytes, written);
        case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID: return give(uint16_t{0}, value, bytes, written);
        default:
            stop(fmt::format("setting {} of an algorithm is not known here", static_cast<int>(attribute)));
    }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_size,
                              cudaStream_t stream) {
    const std::optional<Problem> problem = problem_of(operation, a_layout, b_layout, c_layout, d_layout);
    const std::optional<Algorithm> algorithm = Algorithm::of(algo);
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!problem || !algorithm || !alpha || !beta) return CUBLAS_STATUS_INVALID_VALUE;
    const Product product{*problem,
                          *algorithm,
                          *static_cast<const float*>(alpha),
                          *static_cast<const float*>(beta),
                          a,
                          b,
                          c,
                          d,
                          workspace,
                          workspace_size};
    const cublasStatus_t status = check(product);
    if (status == CUBLAS_STATUS_SUCCESS) {
        software_gpu::enqueue(
            stream, [product] { product.run(); },
            software_gpu::traces() ? product.traced() : problem->describe());
    } else {
        software_gpu::trace(fmt::format("cublasLtMatmul refuses algorithm {}: {}", algorithm->id,
                                        cublasLtGetStatusName(status)));
    }
    return status;
}
}
