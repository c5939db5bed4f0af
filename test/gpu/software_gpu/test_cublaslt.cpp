// cublaslt.cpp: the arithmetic that the settings choose, the calls that it rejects, and its findings. What
// it computes is tested by test/test_gemm.cu. The streams are a list of work that runs when a test calls for
// it.
#include <cublasLt.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/simt/bfloat16.h"
#include "stream.h"

namespace {

struct Gpu {
    software_gpu::Memory memory;
    software_gpu::Settings settings;
    std::deque<std::function<void()>> queue;
};
std::unique_ptr<Gpu> gpu;

}  // namespace

namespace software_gpu {

const Settings& settings() { return gpu->settings; }
Memory& device_memory() { return gpu->memory; }
void enqueue(cudaStream_t, std::function<void()> work, std::string, WaitsFor) {
    gpu->queue.push_back(std::move(work));
}
void stop(const std::exception& fault) {
    fmt::print(stderr, "software GPU: {}\n", fault.what());
    _exit(86);
}

}  // namespace software_gpu

namespace {

using software_gpu::Fault;

// A column-major matrix in the device's memory, which ends with its last element.
struct Matrix {
    cudaDataType_t type;
    size_t rows, columns;
    std::byte* memory;

    Matrix(cudaDataType_t type, size_t rows, size_t columns, size_t missing = 0)
        : type(type),
          rows(rows),
          columns(columns),
          memory(static_cast<std::byte*>(gpu->memory.allocate(bytes(rows * columns - missing)))) {}
    size_t bytes(size_t elements) const {
        return elements * (type == CUDA_R_32F ? sizeof(float) : sizeof(bfloat16));
    }
    float at(size_t i, size_t j) const {
        return type == CUDA_R_32F
                   ? reinterpret_cast<const float*>(memory)[i + j * rows]
                   : static_cast<float>(reinterpret_cast<const bfloat16*>(memory)[i + j * rows]);
    }
    void set(size_t i, size_t j, float value) {
        if (type == CUDA_R_32F) reinterpret_cast<float*>(memory)[i + j * rows] = value;
        else reinterpret_cast<bfloat16*>(memory)[i + j * rows] = bfloat16(value);
        gpu->memory.note_write(memory + bytes(i + j * rows), bytes(1), "the test");
    }
    void fill(float value) {
        for (size_t j = 0; j < columns; j++) {
            for (size_t i = 0; i < rows; i++) set(i, j, value);
        }
    }
    void forget(size_t element) const {
        gpu->memory.unpoison_gap(memory + bytes(element), bytes(1));  // counts as never written
    }
};

struct Form {
    size_t m = 40, n = 24, k = 200;
    cudaDataType_t input = CUDA_R_32F, output = CUDA_R_32F;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    bool tf32 = false;
    float beta = 0;
    size_t bias_missing = 0, d_missing = 0;  // elements
};

// One product with its operands, which are all 1.
class Call {
public:
    explicit Call(const Form& form, size_t workspace_bytes = size_t{512} << 10)
        : f(form),
          a(f.input, f.m, f.k),
          b(f.input, f.k, f.n),
          d(f.output, f.m, f.n, f.d_missing),
          aux(f.output, f.m, f.n),
          bias(f.output, f.epilogue == CUBLASLT_EPILOGUE_BGRADB ? f.n : f.m, 1, f.bias_missing),
          workspace_bytes(workspace_bytes) {
        a.fill(1);
        b.fill(1);
        if (f.beta != 0) d.fill(1);
        if (f.epilogue == CUBLASLT_EPILOGUE_BIAS && f.bias_missing == 0) bias.fill(1);
        if (f.epilogue == CUBLASLT_EPILOGUE_DGELU) aux.fill(1);
        cublasLtCreate(&library);
        cublasLtMatmulDescCreate(&operation, f.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                 CUDA_R_32F);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(f.epilogue));
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(bias.memory));
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(aux.memory));
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<int64_t>(f.m));
        for (const Matrix* matrix : {&a, &b, &d}) {
            cublasLtMatrixLayoutCreate(&layouts.emplace_back(), matrix->type, matrix->rows, matrix->columns,
                                       static_cast<int64_t>(matrix->rows));
        }
        cublasLtMatmulPreferenceCreate(&preference);
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_bytes});
        workspace = static_cast<std::byte*>(gpu->memory.allocate(workspace_bytes));
    }
    ~Call() {
        for (cublasLtMatrixLayout_t one : layouts) cublasLtMatrixLayoutDestroy(one);
        cublasLtMatmulPreferenceDestroy(preference);
        cublasLtMatmulDescDestroy(operation);
        cublasLtDestroy(library);
    }
    Call(const Call&) = delete;

    template <class T>
    cublasStatus_t set(cublasLtMatmulDescAttributes_t attribute, T value) {
        return cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value));
    }
    template <class T>
    cublasStatus_t prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
        return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
    }
    std::vector<cublasLtMatmulHeuristicResult_t> heuristic(cublasStatus_t expected = CUBLAS_STATUS_SUCCESS) {
        std::vector<cublasLtMatmulHeuristicResult_t> results(20);
        int count = 0;
        EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(library, operation, layouts[0], layouts[1], layouts[2],
                                                 layouts[2], preference, 20, results.data(), &count),
                  expected);
        results.resize(static_cast<size_t>(count));
        return results;
    }
    cublasLtMatmulAlgo_t whole() {  // the first that does not split K
        for (const auto& result : heuristic()) {
            int32_t parts = 0;
            size_t written = 0;
            cublasLtMatmulAlgoConfigGetAttribute(&result.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                                 sizeof(parts), &written);
            if (parts == 1) return result.algo;
        }
        ADD_FAILURE() << "no algorithm";
        return {};
    }
    static cublasLtMatmulAlgo_t split(cublasLtMatmulAlgo_t algo, int32_t parts, uint32_t scheme) {
        cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof(parts));
        cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                             sizeof(scheme));
        return algo;
    }
    cublasStatus_t check(const cublasLtMatmulAlgo_t& algo, size_t* needs = nullptr) {
        cublasLtMatmulHeuristicResult_t result{};
        const auto status = cublasLtMatmulAlgoCheck(library, operation, layouts[0], layouts[1], layouts[2],
                                                    layouts[2], &algo, &result);
        if (needs) *needs = result.workspaceSize;
        return status;
    }
    cublasStatus_t launch(const cublasLtMatmulAlgo_t& algo) {
        return cublasLtMatmul(library, operation, &alpha, a_at ? a_at : a.memory, layouts[0], b.memory,
                              layouts[1], &f.beta, other ? other->memory : d.memory, layouts[2], d.memory,
                              layouts[2], &algo, workspace, workspace_bytes, nullptr);
    }
    // C, full of this value; otherwise C is D.
    void add_other(float value) {
        other.emplace(f.output, f.m, f.n);
        other->fill(value);
    }
    // The message of the finding when it runs.
    std::string fault() {
        EXPECT_EQ(launch(whole()), CUBLAS_STATUS_SUCCESS);
        try {
            gpu->queue.front()();
        } catch (const Fault& found) { return found.what(); }
        return "";
    }
    float result(size_t i, size_t j) {
        EXPECT_EQ(fault(), "");
        return d.at(i, j);
    }

    Form f;
    Matrix a, b, d, aux, bias;
    size_t workspace_bytes;
    std::byte* workspace = nullptr;
    const std::byte* a_at = nullptr;
    float alpha = 1;
    std::optional<Matrix> other;
    cublasLtHandle_t library = nullptr;
    cublasLtMatmulDesc_t operation = nullptr;
    std::vector<cublasLtMatrixLayout_t> layouts;
    cublasLtMatmulPreference_t preference = nullptr;
};

class CublasLt : public testing::Test {
protected:
    void SetUp() override { gpu = std::make_unique<Gpu>(); }
    void TearDown() override { gpu.reset(); }

    // The finding of a call that the test has spoiled.
    template <class Spoil>
    static std::string found(const Form& form, const Spoil& spoil) {
        Call call(form);
        spoil(call);
        gpu->queue.clear();
        return call.fault();
    }
    static std::string found(const Form& form) {
        return found(form, [](Call&) {});
    }
};
void expect_begin(const std::string& text, const std::string& begin) {
    EXPECT_EQ(text.substr(0, begin.size()), begin);
}

// ----------------------------------------------------------------------------------------------------
// the settings

TEST_F(CublasLt, Tf32HasTenBitsOfMantissa) {
    const auto product = [&](float factor, bool truncate) {
        gpu = std::make_unique<Gpu>();
        gpu->settings.tensor_cores_truncate = truncate;
        Call call({.m = 8, .n = 8, .k = 8, .tf32 = true});
        call.a.fill(0);
        call.a.set(2, 5, factor);
        return call.result(2, 3);
    };
    EXPECT_EQ(product(1 + 0x1p-10f, false), 1 + 0x1p-10f);
    EXPECT_EQ(product(1 + 0x1p-11f, false), 1 + 0x1p-10f);  // halves away from zero
    EXPECT_EQ(product(-1 - 0x1p-11f, false), -1 - 0x1p-10f);
    EXPECT_EQ(product(1 + 0x1p-12f, false), 1);
    EXPECT_EQ(product(1 + 0x1p-10f - 0x1p-23f, true), 1);
    EXPECT_TRUE(std::isnan(product(std::bit_cast<float>(0xffffffffu), false)));
    EXPECT_TRUE(std::isinf(product(INFINITY, false)));
}

TEST_F(CublasLt, TensorCoresMayCutOffWhatTheyAdd) {
    const auto sum = [&](bool truncate, cudaDataType_t input) {
        gpu = std::make_unique<Gpu>();
        gpu->settings.tensor_cores_truncate = truncate;
        Call call({.m = 8, .n = 8, .k = 3, .input = input});
        for (size_t l = 0; l < 3; l++) call.a.set(2, l, l == 0 ? 0x1p24f : 1.5f);
        return call.result(2, 3);
    };
    EXPECT_EQ(sum(false, CUDA_R_16BF), 0x1p24f + 4);
    EXPECT_EQ(sum(true, CUDA_R_16BF), 0x1p24f);
    EXPECT_EQ(sum(true, CUDA_R_32F), 0x1p24f + 4);  // no tensor cores
    volatile float one = 1;
    EXPECT_EQ(one + 0x1.8p-24f, 1 + 0x1p-23f);  // the rounding is as it was
}

TEST_F(CublasLt, ApproximationsMoveTheTanh) {
    using Approximation = software_gpu::Settings::Approximation;
    const auto gelu = [&](Approximation approximation) {
        gpu = std::make_unique<Gpu>();
        gpu->settings.approximation = approximation;
        Call call({.m = 8, .n = 8, .k = 8, .epilogue = CUBLASLT_EPILOGUE_GELU_AUX});
        call.a.fill(0.125f);
        return call.result(0, 0);  // of 1
    };
    const float nearest = gelu(Approximation::nearest), move = 0.5f * 0x1p-11f * (2 * nearest - 1);
    EXPECT_NEAR(gelu(Approximation::up), nearest + move, 1e-6);
    EXPECT_NEAR(gelu(Approximation::down), nearest - move, 1e-6);
    EXPECT_NEAR(std::abs(gelu(Approximation::seeded) - nearest), move, 1e-6);
}

TEST_F(CublasLt, ScalesAndAddsAnotherMatrix) {
    for (const cudaDataType_t type : {CUDA_R_32F, CUDA_R_16BF}) {
        gpu = std::make_unique<Gpu>();
        Call call({.k = 8, .input = type, .output = type, .beta = -0.5f});
        call.alpha = 2;
        call.add_other(6);
        EXPECT_EQ(call.result(2, 3), 2 * 8 - 3);
        EXPECT_EQ(call.other->at(2, 3), 6);
    }
    expect_begin(found({.beta = 1},
                       [](Call& call) {
                           call.add_other(1);
                           call.other->forget(51);
                       }),
                 "operand C of cublasLtMatmul");
    EXPECT_NE(found({.m = 200, .n = 200, .beta = 1},
                    [](Call& call) {
                        call.add_other(1);
                        call.other->memory = call.d.memory + 4096;
                    })
                  .find("operands D and C overlap"),
              std::string::npos);
}

// ----------------------------------------------------------------------------------------------------
// what it finds

TEST_F(CublasLt, WhatWasNeverWrittenIsFoundByOperand) {
    Form form = {.input = CUDA_R_16BF, .output = CUDA_R_16BF};
    EXPECT_EQ(found(form, [](Call& call) { call.a.forget(51); }),
              "operand A of cublasLtMatmul (NN bf16 to bf16, m = 40, n = 24, k = 200, epilogue DEFAULT): "
              "reads 16000 bytes, of which byte 102 of an allocation of 16000 was never written");
    expect_begin(found(form, [](Call& call) { call.b.forget(51); }), "operand B of cublasLtMatmul (NN bf16");
    form.beta = 1;
    expect_begin(found(form, [](Call& call) { call.d.forget(51); }), "operand D of cublasLtMatmul");
    form.epilogue = CUBLASLT_EPILOGUE_DGELU;
    expect_begin(found(form, [](Call& call) { call.aux.forget(51); }), "operand aux of cublasLtMatmul");
    form.epilogue = CUBLASLT_EPILOGUE_BIAS;
    expect_begin(found(form, [](Call& call) { call.bias.forget(0); }), "operand bias of cublasLtMatmul");
}

TEST_F(CublasLt, WhatIsTooSmallIsFoundByOperand) {
    const std::string form = " of cublasLtMatmul (NN fp32 to fp32, m = 40, n = 24, k = 200, epilogue ";
    EXPECT_EQ(found({.d_missing = 1}), "operand D" + form +
                                           "DEFAULT): writes 3840 bytes from byte 0 of an allocation of 3836 "
                                           "on, past its end");
    expect_begin(found({.epilogue = CUBLASLT_EPILOGUE_BIAS, .bias_missing = 1}), "operand bias" + form);
    expect_begin(found({.epilogue = CUBLASLT_EPILOGUE_BGRADB, .bias_missing = 1}),
                 "operand bias gradient" + form);
    expect_begin(found({},
                       [](Call& call) {
                           call.workspace =
                               static_cast<std::byte*>(gpu->memory.allocate(call.workspace_bytes - 1));
                       }),
                 "operand workspace" + form);
}

TEST_F(CublasLt, TheHostsMemoryIsFound) {
    alignas(16) static const std::byte host[40 * 200 * 4] = {};
    EXPECT_NE(found({}, [](Call& call) { call.a_at = host; }).find("is not memory of the device"),
              std::string::npos);
}

TEST_F(CublasLt, OverlapsAreFound) {
    const auto into_workspace = [](Call& call) {
        call.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(call.workspace + 4096));
    };
    EXPECT_NE(found({.epilogue = CUBLASLT_EPILOGUE_BGRADB}, into_workspace)
                  .find("operands bias gradient and workspace overlap"),
              std::string::npos);
    EXPECT_NE(found({.m = 200, .n = 200}, [](Call& call) { call.a_at = call.d.memory; })
                  .find("operands A and D overlap"),
              std::string::npos);
}

TEST_F(CublasLt, TheWorkspaceHoldsGarbageAfterwards) {
    Call call({});
    std::memset(call.workspace, 0, call.workspace_bytes);
    gpu->memory.note_write(call.workspace, call.workspace_bytes, "the test");
    EXPECT_EQ(call.fault(), "");
    float first = 0, last = 0;
    std::memcpy(&first, call.workspace, 4);
    std::memcpy(&last, call.workspace + call.workspace_bytes - 4, 4);
    EXPECT_TRUE(std::isnan(first) && std::isnan(last));
    EXPECT_THROW(gpu->memory.check_read(call.workspace, 4, "the test"), Fault);
    EXPECT_THROW(gpu->memory.check_read(call.workspace + (size_t{128} << 10), size_t{64} << 10, "the test"),
                 Fault);
}

// ----------------------------------------------------------------------------------------------------
// what it refuses

TEST_F(CublasLt, TypesThatTheTableLacksAreNotSupported) {
    Call({.input = CUDA_R_32F, .output = CUDA_R_16BF}).heuristic(CUBLAS_STATUS_NOT_SUPPORTED);
    Call({.input = CUDA_R_16BF, .output = CUDA_R_16BF, .tf32 = true}).heuristic(CUBLAS_STATUS_NOT_SUPPORTED);
    Call bias({.input = CUDA_R_16BF, .output = CUDA_R_16BF, .epilogue = CUBLASLT_EPILOGUE_BIAS});
    bias.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{CUDA_R_16BF});
    EXPECT_FALSE(bias.heuristic().empty());
    bias.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{CUDA_R_32F});
    bias.heuristic(CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(CublasLt, ShapesThatDoNotFitAreInvalid) {
    Call call({});
    const auto algorithm = call.whole();
    call.set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{CUBLAS_OP_T});
    call.heuristic(CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(call.check(algorithm), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(call.launch(algorithm), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_TRUE(gpu->queue.empty());
}

TEST_F(CublasLt, TheLeadingDimensionOfAuxMustBeAMultipleOfEight) {
    Call call({.input = CUDA_R_16BF, .output = CUDA_R_16BF, .epilogue = CUBLASLT_EPILOGUE_DGELU});
    const auto algorithm = call.whole();
    for (const int64_t leading : {44, 32, 0}) {  // the last two are less than m
        call.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, leading);
        call.heuristic(CUBLAS_STATUS_INVALID_VALUE);
        EXPECT_EQ(call.launch(algorithm), CUBLAS_STATUS_INVALID_VALUE);
    }
    call.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{40});
    call.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(nullptr));
    EXPECT_EQ(call.launch(algorithm), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, AnAlgorithmRefusesOperandsThatAreLessAlignedThanItNeeds) {
    const Form bf16 = {.input = CUDA_R_16BF, .output = CUDA_R_16BF};
    Call call(bf16);
    const auto aligned = call.whole();
    call.a_at = call.a.memory + 8;
    EXPECT_EQ(call.launch(aligned), CUBLAS_STATUS_INVALID_VALUE);
    call.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{8});
    const auto any = call.heuristic();
    ASSERT_EQ(any.size(), 1u);
    EXPECT_EQ(call.launch(any[0].algo), CUBLAS_STATUS_SUCCESS);
    call.a_at = call.a.memory + 1;
    EXPECT_EQ(call.launch(any[0].algo), CUBLAS_STATUS_INVALID_VALUE);  // not aligned even to an element
    call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_BIAS});
    call.heuristic(CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQ(call.check(any[0].algo), CUBLAS_STATUS_NOT_SUPPORTED);

    // Columns must be aligned like addresses.
    Form odd = bf16;
    odd.m = 41;
    EXPECT_EQ(Call(odd).heuristic().size(), 1u);
    EXPECT_EQ(Call(odd).check(aligned), CUBLAS_STATUS_NOT_SUPPORTED);

    // The heuristic derives the bias's alignment from its address.
    Call bias({.input = CUDA_R_16BF, .output = CUDA_R_16BF, .epilogue = CUBLASLT_EPILOGUE_BIAS});
    const auto with_bias = bias.whole();
    bias.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(bias.bias.memory + 2));
    bias.heuristic(CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQ(bias.launch(with_bias), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, TheWorkspaceLimitsTheAlgorithms) {
    Call call({.m = 512, .n = 512, .k = 512}, size_t{8} << 20);
    const size_t all = call.heuristic().size();
    call.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{4096});
    const auto small = call.heuristic();
    EXPECT_LT(small.size(), all);
    for (const auto& result : small) EXPECT_LE(result.workspaceSize, 4096u);
    const auto split = Call::split(call.whole(), 4, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    size_t needs = 0;
    ASSERT_EQ(call.check(split, &needs), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(needs, 4 * 512 * 512 * sizeof(float));
    EXPECT_EQ(call.launch(split), CUBLAS_STATUS_SUCCESS);
    call.workspace_bytes = needs - 1;
    EXPECT_EQ(call.launch(split), CUBLAS_STATUS_INVALID_VALUE);
    call.workspace_bytes = needs;
    call.workspace += 128;
    EXPECT_EQ(call.launch(split), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, PartsOfKMustSuitTheScheme) {
    Call call({});
    const auto whole = call.whole();
    const auto check = [&](Call& with, int32_t parts, uint32_t scheme) {
        return with.check(Call::split(whole, parts, scheme));
    };
    EXPECT_EQ(check(call, 2, CUBLASLT_REDUCTION_SCHEME_NONE), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(check(call, 1, CUBLASLT_REDUCTION_SCHEME_INPLACE), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(check(call, 0, CUBLASLT_REDUCTION_SCHEME_NONE), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(check(call, 201, CUBLASLT_REDUCTION_SCHEME_INPLACE), CUBLAS_STATUS_NOT_SUPPORTED);
    Call gelu({.epilogue = CUBLASLT_EPILOGUE_GELU_AUX});
    EXPECT_EQ(check(gelu, 2, CUBLASLT_REDUCTION_SCHEME_INPLACE), CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQ(check(gelu, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasLt, WhatIsOfAnotherLibraryOrSizeIsInvalid) {
    Call call({});
    cublasLtMatmulAlgo_t other{};
    other.data[0] = 0x0000001500000042;
    EXPECT_EQ(call.check(other), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(call.launch(other), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(call.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int32_t{8}), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(call.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint32_t{8}),
              CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, WhatIsNotKnownEndsTheProcess) {
    const testing::ExitedWithCode found(86);
    Call call({});
    EXPECT_EXIT(call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_RELU}), found,
                "software GPU: cuBLASLt: epilogue 2 is not known here");
    cublasLtMatrixLayout_t layout = nullptr;
    EXPECT_EXIT(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 8, 8, 16), found,
                "a leading dimension of 16 for 8 rows is not known here");
}

}  // namespace
