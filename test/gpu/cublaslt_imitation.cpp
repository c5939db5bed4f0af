#include "cublaslt_imitation.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/gemm/gemm_unfused.h"

Imitation* imitation = nullptr;
Imitation::Imitation() { imitation = this; }
Imitation::~Imitation() { imitation = nullptr; }

struct CUevent_st {
    double ms;
};

// ----------------------------------------------------------------------------------------------------
// the GPU

namespace simt {

DeviceInfo device_info() { return imitation->info; }
void* device_malloc(size_t bytes) {
    if (bytes == 0) return nullptr;
    constexpr size_t line = 256;
    auto* const memory = static_cast<char*>(std::aligned_alloc(line, (bytes + 2 * line - 1) / line * line));
    std::memcpy(memory, &bytes, sizeof(bytes));
    imitation->allocations.push_back(bytes);
    imitation->allocated += bytes;
    return memory + line;
}
void device_free(void* memory) noexcept {
    if (!memory) return;
    size_t bytes = 0;
    void* const begin = static_cast<char*>(memory) - 256;
    std::memcpy(&bytes, begin, sizeof(bytes));
    imitation->allocated -= bytes;
    std::free(begin);
}
event_t event_create() { return new CUevent_st; }
void event_destroy(event_t event) noexcept { delete event; }
void event_record(event_t event, stream_t) {
    event->ms = imitation->now_ms;
    imitation->timing = !imitation->timing;
}
float event_elapsed_ms(event_t start, event_t stop) { return static_cast<float>(stop->ms - start->ms); }
void stream_synchronize(stream_t) {}
void copy_to_host(void* host, const void* device, size_t bytes, stream_t) {
    std::memcpy(host, device, bytes);
}
void fill_zero(void* device, size_t bytes, stream_t) {
    std::memset(device, 0, bytes);
    imitation->now_ms += 1;
    if (bytes >= imitation->info.cache_bytes) imitation->cold = true;
}

}  // namespace simt

namespace {

double gelu(double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_derivative(double x) {
    const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return (1 + t) / 2 + x / 2 * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

double at(const void* values, cudaDataType_t type, size_t i) {
    return type == CUDA_R_32F
               ? static_cast<double>(static_cast<const float*>(values)[i])
               : static_cast<double>(static_cast<float>(static_cast<const bfloat16*>(values)[i]));
}
void put(void* values, cudaDataType_t type, size_t i, double value) {
    if (type == CUDA_R_32F) static_cast<float*>(values)[i] = static_cast<float>(value);
    else static_cast<bfloat16*>(values)[i] = bfloat16(static_cast<float>(value));
}

void our_kernel() { imitation->now_ms += imitation->kernel_ms; }

}  // namespace

// ----------------------------------------------------------------------------------------------------
// our kernels

template <class T>
void gemm_add_bias(T* out, const T* bias, size_t N, size_t OC, stream_t) {
    our_kernel();
    for (size_t i = 0; i < N * OC; i++)
        out[i] = T(static_cast<float>(out[i]) + static_cast<float>(bias[i % OC]));
}
template <class T>
void gemm_gelu_forward(T* out, const T* pre_gelu, size_t count, stream_t) {
    our_kernel();
    for (size_t i = 0; i < count; i++)
        out[i] = T(static_cast<float>(gelu(static_cast<double>(static_cast<float>(pre_gelu[i])))));
}
template <class T>
void gemm_gelu_backward(T* dpre_gelu, const T* dgelu, const T* pre_gelu, size_t count, stream_t) {
    our_kernel();
    for (size_t i = 0; i < count; i++) {
        const double derivative = gelu_derivative(static_cast<double>(static_cast<float>(pre_gelu[i])));
        dpre_gelu[i] = T(static_cast<float>(static_cast<double>(static_cast<float>(dgelu[i])) * derivative));
    }
}
template <class T>
void gemm_bias_gradient(float* dbias, const T* dout, size_t N, size_t OC, void*, stream_t) {
    our_kernel();
    for (size_t i = 0; i < N * OC; i++) dbias[i % OC] += static_cast<float>(dout[i]);
}
void gemm_add_bias_gradient(float* dbias, const float* fused, size_t OC, stream_t) {
    our_kernel();
    for (size_t i = 0; i < OC; i++) dbias[i] += fused[i];
}
template <class T>
size_t gemm_bias_gradient_scratch_bytes(size_t, size_t OC) {
    return OC * sizeof(float);
}
#define INSTANTIATE(T) \
    template void gemm_add_bias(T*, const T*, size_t, size_t, stream_t); \
    template void gemm_gelu_forward(T*, const T*, size_t, stream_t); \
    template void gemm_gelu_backward(T*, const T*, const T*, size_t, stream_t); \
    template void gemm_bias_gradient(float*, const T*, size_t, size_t, void*, stream_t); \
    template size_t gemm_bias_gradient_scratch_bytes<T>(size_t, size_t);
INSTANTIATE(float)
INSTANTIATE(bfloat16)

// ----------------------------------------------------------------------------------------------------
// cuBLASLt

namespace {

// Contents of the library's opaque structs.
struct Operation {
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    bool transpose_a = false, transpose_b = false;
    void *bias = nullptr, *aux = nullptr;
    int64_t aux_ld = 0;
};
struct Layout {
    cudaDataType_t type;
    size_t rows, columns;
    int64_t ld;
};
struct Preference {
    uint64_t workspace = 0;
    uint32_t schemes = 0;
    uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C and D; the library's default
};
struct Algorithm {
    int32_t id = 0, parts = 1;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
};

template <class Content, class Opaque>
cublasStatus_t make(Opaque** made, const Content& content) {
    static_assert(sizeof(Content) <= sizeof(Opaque));
    *made = new Opaque{};
    std::memcpy(*made, &content, sizeof(content));
    return CUBLAS_STATUS_SUCCESS;
}
template <class Content, class Opaque>
Content read(const Opaque* opaque) {
    Content content;
    std::memcpy(static_cast<void*>(&content), opaque, sizeof(content));
    return content;
}
template <class Content, class Opaque, class Change>
cublasStatus_t change(Opaque* opaque, const Change& apply) {
    Content content = read<Content>(opaque);
    const bool known = apply(content);
    std::memcpy(opaque, &content, sizeof(content));
    return known ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

const PlannedAlgorithm* planned(int id) {
    for (const PlannedAlgorithm& algorithm : imitation->algorithms) {
        if (algorithm.id == id) return &algorithm;
    }
    return nullptr;
}

// Bytes of workspace; it holds the parts that are added up at the end.
size_t workspace_of(const Algorithm& a, const Layout& d) {
    const size_t parts = a.scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                             ? static_cast<size_t>(a.parts) * d.rows * d.columns * sizeof(float)
                             : 0;
    return planned(a.id)->workspace + parts + (a.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE ? 64 : 0);
}

bool aligned(const void* address, size_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

bool check_algorithm(const Algorithm& a) {
    const PlannedAlgorithm* const plan = planned(a.id);
    if (!plan || !plan->passes_check) return false;
    return a.parts == 1 ? a.scheme == CUBLASLT_REDUCTION_SCHEME_NONE
                        : plan->best_parts > 0 && a.scheme != CUBLASLT_REDUCTION_SCHEME_NONE;
}

}  // namespace

extern "C" {
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    return *handle = reinterpret_cast<cublasLtHandle_t>(imitation), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
size_t cublasLtGetVersion() { return imitation->version; }
const char* cublasLtGetStatusName(cublasStatus_t) { return "a status"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t, cudaDataType_t) {
    return make(made, Operation{});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    return delete desc, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t) {
    return change<Operation>(desc, [&](Operation& o) {
        switch (attribute) {
            case CUBLASLT_MATMUL_DESC_TRANSA:
                o.transpose_a = *static_cast<const int32_t*>(value) == CUBLAS_OP_T;
                return true;
            case CUBLASLT_MATMUL_DESC_TRANSB:
                o.transpose_b = *static_cast<const int32_t*>(value) == CUBLAS_OP_T;
                return true;
            case CUBLASLT_MATMUL_DESC_EPILOGUE:
                o.epilogue = static_cast<cublasLtEpilogue_t>(*static_cast<const uint32_t*>(value));
                return true;
            case CUBLASLT_MATMUL_DESC_BIAS_POINTER: o.bias = *static_cast<void* const*>(value); return true;
            case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
                o.aux = *static_cast<void* const*>(value);
                return true;
            case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
                o.aux_ld = *static_cast<const int64_t*>(value);
                return true;
            case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return true;
            default: return false;
        }
    });
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
    return make(made, Layout{type, rows, columns, ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return delete layout, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
    return make(made, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return delete preference, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t) {
    return change<Preference>(preference, [&](Preference& p) {
        if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
            p.workspace = *static_cast<const uint64_t*>(value);
        if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
            p.schemes = *static_cast<const uint32_t*>(value);
        if (attribute >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
            attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
            p.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES] =
                *static_cast<const uint32_t*>(value);
        return true;
    });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
    *count = 0;
    const auto wanted = read<Preference>(preference);
    const auto o = read<Operation>(desc);
    for (const PlannedAlgorithm& plan : imitation->algorithms) {
        if (*count == most) break;
        if (*std::min_element(wanted.alignment, wanted.alignment + 4) < plan.alignment) continue;
        if (!aligned(o.bias, plan.alignment) || !aligned(o.aux, plan.alignment)) continue;
        const Algorithm algorithm{
            plan.id, plan.parts,
            plan.parts > 1 ? CUBLASLT_REDUCTION_SCHEME_INPLACE : CUBLASLT_REDUCTION_SCHEME_NONE};
        cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
        std::memcpy(&result.algo, &algorithm, sizeof(algorithm));
        result.workspaceSize = workspace_of(algorithm, read<Layout>(d));
        result.state =
            result.workspaceSize <= wanted.workspace ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
    imitation->checks++;
    const auto algorithm = read<Algorithm>(algo);
    if (!check_algorithm(algorithm)) return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize = workspace_of(algorithm, read<Layout>(d));
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                 cublasLtMatmulAlgoCapAttributes_t attribute, void* value,
                                                 size_t, size_t* written) {
    *written = 4;
    const PlannedAlgorithm* const plan = planned(read<Algorithm>(algo).id);
    if (attribute == CUBLASLT_ALGO_CAP_SPLITK_SUPPORT) *static_cast<int32_t*>(value) = plan->best_parts > 0;
    else if (attribute == CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK)
        *static_cast<uint32_t*>(value) = CUBLASLT_REDUCTION_SCHEME_MASK;
    else return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* value, size_t) {
    return change<Algorithm>(algo, [&](Algorithm& a) {
        if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) a.parts = *static_cast<const int32_t*>(value);
        else if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)
            a.scheme = *static_cast<const uint32_t*>(value);
        else return false;
        return true;
    });
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t, size_t* written) {
    *written = 4;
    const auto algorithm = read<Algorithm>(algo);
    switch (attribute) {
        case CUBLASLT_ALGO_CONFIG_ID: *static_cast<int32_t*>(value) = algorithm.id; break;
        case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: *static_cast<int32_t*>(value) = algorithm.parts; break;
        case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: *static_cast<uint32_t*>(value) = algorithm.scheme; break;
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_desc, const void* b, cublasLtMatrixLayout_t b_desc,
                              const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_desc, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t) {
    const auto o = read<Operation>(desc);
    const auto la = read<Layout>(a_desc), lb = read<Layout>(b_desc), ld = read<Layout>(d_desc);
    const auto algorithm = read<Algorithm>(algo);
    const size_t m = ld.rows, n = ld.columns, k = o.transpose_a ? la.rows : la.columns;
    const float add = *static_cast<const float*>(beta);
    if (*static_cast<const float*>(alpha) != 1 || c != d || !check_algorithm(algorithm))
        return CUBLAS_STATUS_INVALID_VALUE;
    const PlannedAlgorithm& plan = *planned(algorithm.id);
    if (plan.status != CUBLAS_STATUS_SUCCESS) return imitation->refused.insert(plan.id), plan.status;
    for (const void* address : {a, b, c, static_cast<const void*>(o.bias), static_cast<const void*>(o.aux)}) {
        if (!aligned(address, plan.alignment)) return imitation->misaligned++, CUBLAS_STATUS_INVALID_VALUE;
    }
    if (workspace_of(algorithm, ld) > workspace_bytes)
        return imitation->without_room++, CUBLAS_STATUS_INVALID_VALUE;

    imitation->launches.push_back({o.transpose_a, o.transpose_b, m, n, k, o.epilogue, add != 0,
                                   imitation->timing, imitation->cold, plan.id, algorithm.parts,
                                   algorithm.scheme, workspace_bytes});
    const double slower = plan.best_parts > 0 ? 1 + 0.1 * std::abs(algorithm.parts - plan.best_parts) : 1;
    imitation->now_ms +=
        (imitation->cold ? plan.cold_ms : plan.warm_ms) * slower + imitation->epilogue_ms[o.epilogue];
    imitation->cold = false;
    std::memset(workspace, 0xff, std::min<size_t>(workspace_bytes, 4096));  // it is the library's
    if (plan.writes_nothing) return CUBLAS_STATUS_SUCCESS;

    const auto element = [](const void* values, const Layout& layout, bool transpose, size_t row,
                            size_t column) {
        if (transpose) std::swap(row, column);
        return at(values, layout.type, row + column * static_cast<size_t>(layout.ld));
    };
    const size_t terms = plan.forgets_last_term ? k - 1 : k;
    for (size_t j = 0; j < n; j++) {
        for (size_t i = 0; i < m; i++) {
            double sum = 0;
            for (size_t l = 0; l < terms; l++)
                sum += element(a, la, o.transpose_a, i, l) * element(b, lb, o.transpose_b, l, j);
            const size_t place = i + j * m, aux = i + j * static_cast<size_t>(o.aux_ld);
            switch (o.epilogue) {
                case CUBLASLT_EPILOGUE_BIAS: sum += at(o.bias, ld.type, i); break;
                case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
                    sum += at(o.bias, ld.type, i);
                    put(o.aux, ld.type, aux, sum);
                    sum = gelu(sum);
                    break;
                case CUBLASLT_EPILOGUE_DGELU: sum *= gelu_derivative(at(o.aux, ld.type, aux)); break;
                default: break;
            }
            if (add != 0 && !plan.overwrites) sum += at(d, ld.type, place);
            put(d, ld.type, place, sum);
        }
    }
    for (size_t j = 0; o.epilogue == CUBLASLT_EPILOGUE_BGRADB && j < n; j++) {
        double sum = 0;
        for (size_t l = 0; l < k; l++) sum += element(b, lb, o.transpose_b, l, j);
        put(o.bias, ld.type, j, sum * (1 + plan.bias_gradient_error));
    }
    return CUBLAS_STATUS_SUCCESS;
}
}
