// cublaslt.cpp: replaces cuBLASLt on the software GPU: D = epilogue(alpha op(A) op(B) + beta C),
// column-major
//   Written from NVIDIA's documentation (https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api) and
//   the comments of cublasLt.h. It computes when its turn in the stream comes, after checking every
//   operand, and rejects what they document as an error. Where they leave a choice, it makes the one that
//   demands most of the caller: the operands of the fast algorithms and their leading dimensions must be
//   aligned to 16 bytes, an algorithm without that alignment has no epilogue, and the library leaves
//   garbage in the whole workspace. Unsupported attributes and epilogues end the process with a line that
//   names them.
#include <cublasLt.h>
#include <cublas_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "blocked_product.h"
#include "kernels/simt/bfloat16.h"
#include "stream.h"

struct cublasLtContext {};

namespace {

using software_gpu::Fault;

constexpr size_t multiprocessors = 132;  // of the H200, for the heuristic

[[noreturn]] void stop(const std::string& message) { software_gpu::stop(Fault("cuBLASLt: " + message)); }

// ----------------------------------------------------------------------------------------------------
// descriptors

struct Operation : cublasLtMatmulDescOpaque_t {
    int32_t compute, scale;
    int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
    int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void* bias = nullptr;
    void* aux = nullptr;
    int64_t aux_leading = 0;
    int32_t bias_type = -1, aux_type = -1;  // -1: D's
};
struct Layout : cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    size_t rows, columns;
    int64_t leading;

    size_t element_bytes() const { return type == CUDA_R_32F ? sizeof(float) : sizeof(bfloat16); }
    size_t column_bytes() const { return static_cast<size_t>(leading) * element_bytes(); }
};
struct Preference : cublasLtMatmulPreferenceOpaque_t {
    uint32_t search = CUBLASLT_SEARCH_BEST_FIT;
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
    if (bytes == 0 && !written) return CUBLAS_STATUS_INVALID_VALUE;
    if (bytes != 0 && (!to || bytes != sizeof(T))) return CUBLAS_STATUS_INVALID_VALUE;
    if (bytes != 0) std::memcpy(to, &value, sizeof(T));
    if (written) *written = sizeof(T);
    return CUBLAS_STATUS_SUCCESS;
}

bool has_bias(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool has_bias_gradient(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}
bool writes_aux(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool has_aux(uint32_t epilogue) { return writes_aux(epilogue) || epilogue == CUBLASLT_EPILOGUE_DGELU; }

// The name without CUBLASLT_EPILOGUE_; nullptr for an unsupported one.
const char* epilogue_name(uint32_t epilogue) {
    switch (epilogue) {
        case CUBLASLT_EPILOGUE_DEFAULT: return "DEFAULT";
        case CUBLASLT_EPILOGUE_BIAS: return "BIAS";
        case CUBLASLT_EPILOGUE_GELU: return "GELU";
        case CUBLASLT_EPILOGUE_GELU_BIAS: return "GELU_BIAS";
        case CUBLASLT_EPILOGUE_GELU_AUX: return "GELU_AUX";
        case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return "GELU_AUX_BIAS";
        case CUBLASLT_EPILOGUE_DGELU: return "DGELU";
        case CUBLASLT_EPILOGUE_BGRADA: return "BGRADA";
        case CUBLASLT_EPILOGUE_BGRADB: return "BGRADB";
        default: return nullptr;
    }
}

// ----------------------------------------------------------------------------------------------------
// problems and algorithms

struct Problem {
    Operation operation;
    Layout a, b, c, d;

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
    if ((!tf32 && p.operation.compute != CUBLAS_COMPUTE_32F) || p.operation.scale != CUDA_R_32F) return false;
    if (p.a.type != p.b.type || p.c.type != p.d.type) return false;
    if (p.a.type == CUDA_R_32F) return p.d.type == CUDA_R_32F;
    return p.a.type == CUDA_R_16BF && !tf32 && (p.d.type == CUDA_R_16BF || p.d.type == CUDA_R_32F);
}

bool shapes_fit(const Problem& p) {
    const size_t a_rows = p.transposes_a() ? p.a.columns : p.a.rows,
                 b_rows = p.transposes_b() ? p.b.columns : p.b.rows;
    const size_t b_columns = p.transposes_b() ? p.b.rows : p.b.columns;
    if (a_rows != p.m() || b_rows != p.k() || b_columns != p.n() || p.c.rows != p.m() || p.c.columns != p.n())
        return false;
    const auto holds = [](const Layout& layout) {
        return layout.leading > 0 && static_cast<size_t>(layout.leading) >= layout.rows;
    };
    return p.m() > 0 && p.n() > 0 && p.k() > 0 && holds(p.a) && holds(p.b) && holds(p.c) && holds(p.d);
}

// SUCCESS, or the reason why no algorithm computes it.
cublasStatus_t check(const Problem& p) {
    const Operation& o = p.operation;
    if (!knows_types(p) || o.pointer_mode != CUBLASLT_POINTER_MODE_HOST) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!shapes_fit(p)) return CUBLAS_STATUS_INVALID_VALUE;
    const auto d_type = [&](int32_t type) { return type == -1 || type == p.d.type; };
    if ((has_bias(o.epilogue) || has_bias_gradient(o.epilogue)) && !d_type(o.bias_type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!has_aux(o.epilogue)) return CUBLAS_STATUS_SUCCESS;
    if (!d_type(o.aux_type)) return CUBLAS_STATUS_NOT_SUPPORTED;
    // "Must be divisible by 8 and be no less than the number of rows in the output matrix."
    const bool holds = o.aux_leading % 8 == 0 && o.aux_leading >= static_cast<int64_t>(p.m());
    return holds ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

struct Kind {
    int32_t id;
    uint32_t tile, stages;
    uint32_t alignment;  // of addresses and leading dimensions, in bytes; 1: of the elements
    uint32_t schemes;    // of adding the parts of K; 0: it cannot split K
    size_t workspace;    // of its own
    bool has_epilogues;
};
constexpr uint32_t every_scheme = CUBLASLT_REDUCTION_SCHEME_MASK;
constexpr Kind kinds[] = {
    {66, CUBLASLT_MATMUL_TILE_128x256, CUBLASLT_MATMUL_STAGES_64xAUTO, 16, every_scheme, 0, true},
    {67, CUBLASLT_MATMUL_TILE_256x128, CUBLASLT_MATMUL_STAGES_64xAUTO, 16,
     CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, size_t{4} << 20, true},
    {21, CUBLASLT_MATMUL_TILE_64x64, CUBLASLT_MATMUL_STAGES_32x3, 1, 0, 0, false},
};

// The content of cublasLtMatmulAlgo_t.
struct Algorithm {
    static constexpr uint32_t mark = 0x5f3a91c7;
    uint32_t marked = mark;
    int32_t id = 0, parts = 1;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE, tile = 0, stages = 0, swizzling = 0, custom = 0;
    uint16_t inner_shape = 0, cluster = 0;

    static std::optional<Algorithm> of(const cublasLtMatmulAlgo_t* algo) {
        Algorithm algorithm;
        if (algo) std::memcpy(static_cast<void*>(&algorithm), algo, sizeof(algorithm));
        return algo && algorithm.marked == mark && algorithm.kind() ? std::optional(algorithm) : std::nullopt;
    }
    void put(cublasLtMatmulAlgo_t& algo) const {
        algo = {};
        std::memcpy(&algo, this, sizeof(*this));
    }
    const Kind* kind() const {
        const auto found = std::ranges::find(kinds, id, &Kind::id);
        return found == std::end(kinds) ? nullptr : found;
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
        case CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE:
            return algorithm.kind()->workspace + elements * p.d.element_bytes();
        default: return algorithm.kind()->workspace;
    }
}

// SUCCESS, or the reason why this algorithm does not compute the problem, for operands at any addresses.
cublasStatus_t check(const Problem& p, const Algorithm& algorithm) {
    const Kind& kind = *algorithm.kind();
    const uint32_t epilogue = p.operation.epilogue;
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT && !kind.has_epilogues) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (const Layout* layout : {&p.a, &p.b, &p.c, &p.d}) {
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
    for (const Kind& kind : kinds) {
        Algorithm algorithm;
        algorithm.id = kind.id;
        algorithm.tile = kind.tile;
        algorithm.stages = kind.stages;
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
    const auto layout = [](cublasLtMatrixLayout_t opaque) { return *static_cast<const Layout*>(opaque); };
    return Problem{*static_cast<const Operation*>(operation), layout(a), layout(b), layout(c), layout(d)};
}

bool is_aligned(const void* address, size_t bytes) {
    return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

cublasLtMatmulHeuristicResult_t result_of(const Problem& p, const Algorithm& algorithm) {
    cublasLtMatmulHeuristicResult_t result{};
    algorithm.put(result.algo);
    result.workspaceSize = workspace_bytes(p, algorithm);
    result.state = CUBLAS_STATUS_SUCCESS;
    const size_t blocks =
        ((p.m() + 127) / 128) * ((p.n() + 255) / 256) * static_cast<size_t>(algorithm.parts);
    result.wavesCount = static_cast<float>(blocks) / multiprocessors;
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
void round_to(cudaDataType_t type, std::vector<float>& values) {
    if (type == CUDA_R_32F) return;
    for (float& value : values) value = static_cast<float>(bfloat16(value));
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

    void run() const;

private:
    struct Range {
        const char* name;
        const void* begin;
        size_t bytes;
        bool written;
    };
    std::string who(const char* operand) const {
        return fmt::format("operand {} of {}:", operand, problem.describe());
    }
    void check_matrix(const char* name, const void* values, const Layout& layout, bool written) const;
    void check_range(const std::string& who, const void* values, size_t bytes, bool written) const;
    void check_operands() const;
    void check_overlaps() const;
    void check_workspace() const;
    std::vector<float> column_block(software_gpu::ProductRange columns) const;
    std::vector<float> part(software_gpu::ProductRange columns, int32_t index) const;
    void add_c(std::vector<float>& sums, software_gpu::ProductRange columns) const;
    void finish(float* values, size_t column) const;
    void store_bias_gradient() const;
    software_gpu::ProductInput input(const void* values, const Layout& layout, bool transposed) const;
    Layout aux_layout() const {
        Layout layout = problem.d;
        layout.leading = problem.operation.aux_leading;
        return layout;
    }
    size_t bias_count() const {
        return problem.operation.epilogue == CUBLASLT_EPILOGUE_BGRADB ? problem.n() : problem.m();
    }
    std::vector<float> bias() const;
};

void Product::check_range(const std::string& who, const void* values, size_t bytes, bool written) const {
    software_gpu::Memory& memory = software_gpu::device_memory();
    if (!(written ? memory.note_write(const_cast<void*>(values), bytes, who)
                  : memory.check_read(values, bytes, who))) {
        throw Fault(
            fmt::format("{} {} is not memory of the device, but {}", who, values, memory.nearest(values)));
    }
}

void Product::check_matrix(const char* name, const void* values, const Layout& layout, bool written) const {
    const std::string text = who(name);  // computed once: most of a strided matrix's columns are short
    const size_t bytes = layout.rows * layout.element_bytes();
    if (bytes == layout.column_bytes()) return check_range(text, values, bytes * layout.columns, written);
    for (size_t j = 0; j < layout.columns; j++) {
        check_range(text, static_cast<const std::byte*>(values) + j * layout.column_bytes(), bytes, written);
    }
}

// Reads first: C may be D.
void Product::check_operands() const {
    const Operation& o = problem.operation;
    check_matrix("A", a, problem.a, false);
    check_matrix("B", b, problem.b, false);
    if (beta != 0) check_matrix("C", c, problem.c, false);
    if (has_bias(o.epilogue))
        check_range(who("bias"), o.bias, problem.m() * problem.d.element_bytes(), false);
    if (o.epilogue == CUBLASLT_EPILOGUE_DGELU) check_matrix("aux", o.aux, aux_layout(), false);
    if (has_bias_gradient(o.epilogue))
        check_range(who("bias gradient"), o.bias, bias_count() * problem.d.element_bytes(), true);
    if (writes_aux(o.epilogue)) check_matrix("aux", o.aux, aux_layout(), true);
    check_matrix("D", d, problem.d, true);
}

// Written memory may not overlap anything else, but C may be D.
void Product::check_overlaps() const {
    const Operation& o = problem.operation;
    const auto whole = [](const Layout& layout) {
        return (layout.columns - 1) * layout.column_bytes() + layout.rows * layout.element_bytes();
    };
    std::vector<Range> ranges = {{"A", a, whole(problem.a), false},
                                 {"B", b, whole(problem.b), false},
                                 {"D", d, whole(problem.d), true}};
    if (beta != 0 && c != d) ranges.push_back({"C", c, whole(problem.c), false});
    if (has_bias(o.epilogue))
        ranges.push_back({"bias", o.bias, problem.m() * problem.d.element_bytes(), false});
    if (has_bias_gradient(o.epilogue))
        ranges.push_back({"bias gradient", o.bias, bias_count() * problem.d.element_bytes(), true});
    if (has_aux(o.epilogue)) ranges.push_back({"aux", o.aux, whole(aux_layout()), writes_aux(o.epilogue)});
    if (workspace_bytes > 0) ranges.push_back({"workspace", workspace, workspace_bytes, true});
    for (size_t i = 0; i < ranges.size(); i++) {
        for (size_t j = 0; j < i; j++) {
            const Range &one = ranges[j], &other = ranges[i];
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
    const auto spoil = [&](size_t offset, size_t bytes) {
        memory.note_write(begin + offset, bytes, who("workspace"));
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
    return {values, layout.type != CUDA_R_32F, transposed, static_cast<size_t>(layout.leading), rounding};
}

// op(A) op(B) of these columns over one part of K.
std::vector<float> Product::part(software_gpu::ProductRange columns, int32_t index) const {
    const size_t k = problem.k(), parts = static_cast<size_t>(algorithm.parts),
                 i = static_cast<size_t>(index);
    const bool tensor_cores =
        problem.a.type != CUDA_R_32F || problem.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    std::vector<float> sums(problem.m() * (columns.end - columns.begin));
    software_gpu::add_product(sums.data(), input(a, problem.a, problem.transposes_a()),
                              input(b, problem.b, problem.transposes_b()), problem.m(), columns,
                              {k * i / parts, k * (i + 1) / parts},
                              tensor_cores && software_gpu::settings().tensor_cores_truncate);
    return sums;
}

// sums = alpha sums + beta C
void Product::add_c(std::vector<float>& sums, software_gpu::ProductRange columns) const {
    const size_t m = problem.m();
    std::vector<float> column(m);
    for (size_t j = columns.begin; j < columns.end; j++) {
        float* const x = sums.data() + (j - columns.begin) * m;
        for (size_t i = 0; i < m; i++) x[i] *= alpha;
        if (beta == 0) continue;  // C may hold anything
        software_gpu::ProductInput{c, problem.c.type != CUDA_R_32F, false,
                                   static_cast<size_t>(problem.c.leading)}
            .load(column.data(), 0, j, m);
        for (size_t i = 0; i < m; i++) x[i] += beta * column[i];
    }
}

// alpha op(A) op(B) + beta C; the algorithm decides how the parts of K are added.
std::vector<float> Product::column_block(software_gpu::ProductRange columns) const {
    std::vector<float> sums = part(columns, 0);
    const bool in_place = algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE;
    if (in_place) add_c(sums, columns);
    // A sum in place is kept in D in D's type; parts of other schemes are in the workspace.
    const cudaDataType_t held_as =
        algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? CUDA_R_32F : problem.d.type;
    for (int32_t i = 1; i < algorithm.parts; i++) {
        std::vector<float> more = part(columns, i);
        if (in_place || i == 1) round_to(held_as, sums);
        if (!in_place) round_to(held_as, more);
        const float factor = in_place ? alpha : 1;
        for (size_t e = 0; e < sums.size(); e++) sums[e] += factor * more[e];
    }
    if (!in_place) add_c(sums, columns);
    return sums;
}

std::vector<float> Product::bias() const {
    std::vector<float> values(problem.m());
    software_gpu::ProductInput{problem.operation.bias, problem.d.type != CUDA_R_32F, false, values.size()}
        .load(values.data(), 0, 0, values.size());
    return values;
}

// The epilogue of a column, and its store to D.
void Product::finish(float* values, size_t column) const {
    const Operation& o = problem.operation;
    const size_t m = problem.m();
    const size_t aux_offset = column * static_cast<size_t>(o.aux_leading);
    if (writes_aux(o.epilogue)) store(o.aux, problem.d.type, aux_offset, values, m);
    if (o.epilogue & CUBLASLT_EPILOGUE_GELU) {
        for (size_t i = 0; i < m; i++) values[i] = gelu(values[i]);
    }
    if (o.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        std::vector<float> aux(m);
        software_gpu::ProductInput{o.aux, problem.d.type != CUDA_R_32F, false,
                                   static_cast<size_t>(o.aux_leading)}
            .load(aux.data(), 0, column, m);
        for (size_t i = 0; i < m; i++) values[i] *= gelu_derivative(aux[i]);
    }
    store(d, problem.d.type, column * static_cast<size_t>(problem.d.leading), values, m);
}

// The sum of op(A)'s rows, or of op(B)'s columns, over k, in D's type; what was there is overwritten.
void Product::store_bias_gradient() const {
    const bool of_a = problem.operation.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    const Layout& layout = of_a ? problem.a : problem.b;
    const bool k_in_columns = of_a ? problem.transposes_a() : !problem.transposes_b();
    software_gpu::ProductInput values = input(of_a ? a : b, layout, false);
    values.tf32 = software_gpu::Tf32::none;  // nothing is multiplied
    std::vector<float> sums(bias_count()), column(layout.rows);
    for (size_t j = 0; j < layout.columns; j++) {
        values.load(column.data(), 0, j, layout.rows);
        for (size_t i = 0; i < layout.rows; i++) sums[k_in_columns ? j : i] += column[i];
    }
    store(problem.operation.bias, problem.d.type, 0, sums.data(), sums.size());
}

void Product::run() const {
    check_overlaps();
    check_operands();
    check_workspace();
    const size_t m = problem.m();
    const std::vector<float> added = has_bias(problem.operation.epilogue) ? bias() : std::vector<float>();
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
    if (has_bias_gradient(problem.operation.epilogue)) store_bias_gradient();
}

// True if every operand of the product is present and has the algorithm's alignment.
bool operands_suit(const Product& product, uint32_t alignment) {
    const Problem& p = product.problem;
    const Operation& o = p.operation;
    const auto suits = [&](const void* address, size_t element_bytes) {
        return address && is_aligned(address, std::max<size_t>(alignment, element_bytes));
    };
    if (!suits(product.a, p.a.element_bytes()) || !suits(product.b, p.b.element_bytes()) ||
        !suits(product.d, p.d.element_bytes()))
        return false;
    if (product.beta != 0 && !suits(product.c, p.c.element_bytes())) return false;
    if ((has_bias(o.epilogue) || has_bias_gradient(o.epilogue)) && !suits(o.bias, p.d.element_bytes()))
        return false;
    return !has_aux(o.epilogue) || suits(o.aux, p.d.element_bytes());
}

}  // namespace

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
    auto* const operation = new Operation;
    operation->compute = compute;
    operation->scale = scale;
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
        case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return assign(o.compute, value, bytes);
        case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return assign(o.scale, value, bytes);
        case CUBLASLT_MATMUL_DESC_POINTER_MODE: return assign(o.pointer_mode, value, bytes);
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
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return assign(o.aux_type, value, bytes);
        default:
            stop(fmt::format("attribute {} of an operation is not known here", static_cast<int>(attribute)));
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
    auto* const layout = new Layout;
    layout->type = type;
    layout->rows = rows;
    layout->columns = columns;
    layout->leading = leading;
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
        case CUBLASLT_MATMUL_PREF_SEARCH_MODE: return assign(p.search, value, bytes);
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
    const Kind& kind = *algorithm->kind();
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
        case CUBLASLT_ALGO_CONFIG_TILE_ID: return give(algorithm->tile, value, bytes, written);
        case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: return give(algorithm->parts, value, bytes, written);
        case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: return give(algorithm->scheme, value, bytes, written);
        case CUBLASLT_ALGO_CONFIG_STAGES_ID: return give(algorithm->stages, value, bytes, written);
        case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID: return give(algorithm->cluster, value, bytes, written);
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
    if (const cublasStatus_t status = check(*problem); status != CUBLAS_STATUS_SUCCESS) return status;
    if (const cublasStatus_t status = check(*problem, *algorithm); status != CUBLAS_STATUS_SUCCESS)
        return status;
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
    // How the factors act on a bias gradient is not documented.
    if (has_bias_gradient(problem->operation.epilogue) && product.alpha != 1)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!operands_suit(product, algorithm->kind()->alignment)) return CUBLAS_STATUS_INVALID_VALUE;
    if (c == d && product.beta != 0 && problem->c.leading != problem->d.leading)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_size > 0 && (!workspace || !is_aligned(workspace, 256))) return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_bytes(*problem, *algorithm) > workspace_size) return CUBLAS_STATUS_INVALID_VALUE;
    software_gpu::enqueue(
        stream, [product] { product.run(); }, problem->describe());
    return CUBLAS_STATUS_SUCCESS;
}
}
