#include "cuda_imitation.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

struct CUstream_st {
    size_t given = 0;  // commands
    bool capturing = false, broken = false;
};
struct CUevent_st {
    const CUstream_st* stream = nullptr;
    size_t command = 0;  // the event follows this number of commands of the stream
    std::chrono::steady_clock::time_point time;
};
struct CUgraph_st {};
struct CUgraphExec_st {
    int number;
};

namespace {

std::string variable(const char* name) { return std::getenv(name) ? std::getenv(name) : ""; }

std::mutex mutex;  // a thread that writes a checkpoint also makes calls
std::vector<std::string> calls;
std::string refused = variable("CUDA_REFUSES");
thread_local cudaError_t last_error = cudaSuccess;
thread_local CUstream_st* captured = nullptr;  // the stream that this thread captures
CUstream_st default_stream;
int graphs = 0;

void trace(const std::string& call) {
    const std::lock_guard lock(mutex);
    static std::FILE* const file =
        variable("CUDA_TRACE").empty() ? nullptr : std::fopen(variable("CUDA_TRACE").c_str(), "a");
    calls.push_back((captured ? "| " : "") + call);
    if (file) {
        fmt::print(file, "{}\n", calls.back());
        std::fflush(file);
    }
}

cudaError_t fail(cudaError_t error) {
    if (captured) captured->broken = true;
    return last_error = error;
}
bool refuses(const std::string& call) { return refused == call; }

// A call that a capturing thread must not make.
cudaError_t outside_of_capture(const std::string& call) {
    trace(call);
    return captured ? fail(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

// False if it is only recorded.
bool command(cudaStream_t stream, const std::string& call) {
    trace(call);
    CUstream_st* const s = stream ? stream : &default_stream;
    s->given++;
    return !s->capturing;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream, const char* direction) {
    if (command(stream, fmt::format("copy {} bytes {}", bytes, direction))) std::memcpy(to, from, bytes);
    return cudaSuccess;
}

// ---- kernels

struct Kernel {
    std::string name;
    std::vector<size_t> argument_bytes;
};
std::map<const void*, Kernel>& kernels() {
    static std::map<const void*, Kernel> all;  // filled before main begins
    return all;
}

// "void name<T>(float*, int)": the name without its return type, and the sizes of its parameters (only the
// first 8 bytes of a struct).
Kernel described(const char* mangled) {
    int status = 0;
    char* const demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
    const std::string text = demangled ? demangled : mangled;
    std::free(demangled);
    const size_t end = text.rfind(')');
    size_t begin = end;
    for (int depth = 0; begin != std::string::npos && begin-- > 0;) {
        if (text[begin] == ')') depth++;
        if (text[begin] == '(' && depth-- == 0) break;
    }
    Kernel kernel{text.substr(0, begin), {}};
    int depth = 0;
    std::string type;
    const auto add = [&] {
        if (type.empty()) return;
        const bool four = type == "int" || type == "unsigned int" || type == "float";
        kernel.argument_bytes.push_back(type == "bool" ? 1 : four ? 4 : 8);
        type.clear();
    };
    for (size_t i = begin + 1; i < end; i++) {
        const char c = text[i];
        depth += (c == '<' || c == '(') - (c == '>' || c == ')');
        if (c == ',' && depth == 0) add();
        else if (c != ' ' || !type.empty()) type += c;
    }
    add();
    return kernel;
}

struct Configuration {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};
thread_local Configuration configuration;

cudaError_t launch(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                   cudaStream_t stream) {
    if (refuses("launch")) return fail(cudaErrorInvalidConfiguration);
    if (captured && refuses("captured launch")) return fail(cudaErrorStreamCaptureUnsupported);
    const Kernel& kernel = kernels()[function];
    std::vector<unsigned long long> values;
    for (size_t i = 0; i < kernel.argument_bytes.size(); i++) {
        unsigned long long value = 0;
        std::memcpy(&value, arguments[i], kernel.argument_bytes[i]);
        values.push_back(value);
    }
    command(stream, fmt::format("launch {} <<<{} {} {}, {}, {}>>> {:x}", kernel.name, grid.x, grid.y, grid.z,
                                block.x, shared_bytes, fmt::join(values, " ")));
    return cudaSuccess;
}

}  // namespace

std::vector<std::string> cuda_imitation::take_calls() {
    const std::lock_guard lock(mutex);
    return std::exchange(calls, {});
}
void cuda_imitation::refuse(const std::string& call) { refused = call; }

extern "C" {

// ---- what nvcc makes of kernels and launches
void** __cudaRegisterFatBinary(void*) {
    static void* handle = nullptr;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
    kernels()[function] = described(name);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
    return configuration = {grid, block, shared_bytes, stream}, 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
    *grid = configuration.grid, *block = configuration.block, *shared_bytes = configuration.shared_bytes;
    return *static_cast<cudaStream_t*>(stream) = configuration.stream, cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    return *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function)), cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
    return launch(kernel, grid, block, arguments, shared_bytes, stream);
}
// nvcc 12 makes launches of this one.
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
    return launch(function, grid, block, arguments, shared_bytes, stream);
}

// ---- device and errors
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    *properties = {};
    std::strcpy(properties->name, "an imitation of a GPU");
    properties->multiProcessorCount = 132;
    properties->major = 9;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 227 * 1024
             : attribute == cudaDevAttrMultiProcessorCount        ? 132
                                                                  : 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int) {
    return std::snprintf(id, static_cast<size_t>(length), "0000:00:00.0"), cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    return *free = *total = size_t{8} << 30, cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorStreamCaptureUnsupported ? "not while capturing" : "refused";
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
    return refuses("cudaFuncSetAttribute") ? fail(cudaErrorInvalidValue) : cudaSuccess;
}

// ---- memory
cudaError_t cudaMalloc(void** memory, size_t bytes) {
    const cudaError_t status = outside_of_capture(fmt::format("cudaMalloc {}", bytes));
    if (status != cudaSuccess) return status;
    if (refuses("cudaMalloc")) return fail(cudaErrorMemoryAllocation);
    const size_t rounded_up = (bytes + 255) / 256 * 256;
    *memory = std::memset(std::aligned_alloc(256, rounded_up), 0, rounded_up);
    return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
    if (memory) trace("cudaFree");
    return std::free(memory), cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
    const cudaError_t status = outside_of_capture(fmt::format("cudaMallocHost {}", bytes));
    if (status == cudaSuccess) *memory = std::calloc(1, bytes);
    return status;
}
cudaError_t cudaFreeHost(void* memory) {
    if (memory) trace("cudaFreeHost");
    return std::free(memory), cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return copy(to, from, bytes, stream,
                kind == cudaMemcpyHostToDevice   ? "to the device"
                : kind == cudaMemcpyDeviceToHost ? "to the host"
                                                 : "on the device");
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
    if (command(stream, fmt::format("set {} bytes", bytes))) std::memset(memory, value, bytes);
    return cudaSuccess;
}

// ---- streams and events
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    return *stream = new CUstream_st, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return outside_of_capture("cudaStreamSynchronize"); }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return trace("cudaEventCreate"), *event = new CUevent_st, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const CUstream_st* const s = stream ? stream : &default_stream;
    trace("record an event");
    return *event = {s, s->given, std::chrono::steady_clock::now()}, cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const bool more = event->stream && event->stream->given > event->command;
    return outside_of_capture(more ? "wait for an event that work follows" : "wait for all work");
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t stop) {
    return *ms = std::chrono::duration<float, std::milli>(stop->time - start->time).count(), cudaSuccess;
}

// ---- graphs
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    trace(mode == cudaStreamCaptureModeThreadLocal ? "begin a capture of this thread" : "begin a capture");
    if (captured || refuses("cudaStreamBeginCapture")) return fail(cudaErrorIllegalState);
    captured = stream;
    stream->capturing = true, stream->broken = false;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    *status = !stream->capturing ? cudaStreamCaptureStatusNone
              : stream->broken   ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    stream->capturing = false;
    captured = nullptr;
    trace("end the capture");
    *graph = nullptr;
    if (stream->broken || refuses("cudaStreamEndCapture")) return fail(cudaErrorStreamCaptureInvalidated);
    return *graph = new CUgraph_st, cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t, unsigned long long) {
    if (refuses("cudaGraphInstantiate")) return fail(cudaErrorMemoryAllocation);
    return *executable = new CUgraphExec_st{graphs++}, cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return delete executable, cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    return command(stream, fmt::format("launch graph {}", executable->number)), cudaSuccess;
}

// ---- cuBLASLt
const char* cublasLtGetStatusName(cublasStatus_t) { return "refused"; }
size_t cublasLtGetVersion() { return 130100; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    return *handle = reinterpret_cast<cublasLtHandle_t>(&graphs), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t, cudaDataType_t) {
    return *desc = nullptr, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                                              const void*, size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType, uint64_t, uint64_t,
                                          int64_t) {
    return *layout = nullptr, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    return *preference = nullptr, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t, const void*,
                                                    size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
    results[0] = {};
    return *count = 1, trace("ask cuBLASLt for an algorithm"), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t*, cublasLtMatmulHeuristicResult_t* result) {
    return *result = {}, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t*,
                                                 cublasLtMatmulAlgoCapAttributes_t, void*, size_t, size_t*) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t*,
                                                    cublasLtMatmulAlgoConfigAttributes_t, void*, size_t,
                                                    size_t*) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t*,
                                                    cublasLtMatmulAlgoConfigAttributes_t, const void*,
                                                    size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t, const void* b, cublasLtMatrixLayout_t, const void* beta,
                              const void*, cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
    command(stream, fmt::format("product {} = {} x {} by {} + {}", d, a, b, *static_cast<const float*>(alpha),
                                *static_cast<const float*>(beta)));
    return CUBLAS_STATUS_SUCCESS;
}
}
