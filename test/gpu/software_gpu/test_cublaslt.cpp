// cublaslt.cpp against loops in double precision: every form and epilogue, the calls it rejects, and its
// findings. The streams are a list of work that runs when a test calls for it.
#include <cublasLt.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/gemm/cublaslt_product.h"
#include "kernels/simt/bfloat16.h"
#include "one_queue.h"

namespace {

using software_gpu::Fault;

float element(const void* values, cudaDataType_t type, size_t i) {
    return type == CUDA_R_32F ? static_cast<const float*>(values)[i]
                              : static_cast<float>(static_cast<const bfloat16*>(values)[i]);
}
void put(void* values, cudaDataType_t type, size_t i, float value) {
    if (type == CUDA_R_32F) static_cast<float*>(values)[i] = value;
    else static_cast<bfloat16*>(values)[i] = bfloat16(value);
}
float to_tf32(float value) {  // to nearest
    const int exponent = std::ilogb(value);
    return std::ldexp(std::round(std::ldexp(value, 10 - exponent)), exponent - 10);
}

// A column-major matrix in the device's memory, which ends with its last element; the gaps between the
// columns are never written.
struct Matrix {
    cudaDataType_t type;
    size_t rows, columns, leading;
    std::byte* memory = nullptr;

    Matrix(cudaDataType_t type, size_t rows, size_t columns, size_t leading, size_t missing = 0)
        : type(type), rows(rows), columns(columns), leading(leading) {
        memory =
            static_cast<std::byte*>(gpu->memory.allocate(bytes(((columns - 1) * leading) + rows - missing)));
    }
    size_t bytes(size_t elements) const {
        return elements * (type == CUDA_R_32F ? sizeof(float) : sizeof(bfloat16));
    }
    float at(size_t i, size_t j) const { return element(memory, type, i + j * leading); }
    float at(bool transposed, size_t i, size_t j) const { return transposed ? at(j, i) : at(i, j); }
    void set(size_t i, size_t j, float value) {
        put(memory, type, i + j * leading, value);
        gpu->memory.note_write(memory + bytes(i + j * leading), bytes(1), "the test");
    }
    void fill(std::mt19937& random) {
        std::normal_distribution<float> values;
        for (size_t j = 0; j < columns; j++) {
            for (size_t i = 0; i < rows; i++) set(i, j, values(random));
        }
    }
    void fill(float value) {
        for (size_t j = 0; j < columns; j++) {
            for (size_t i = 0; i < rows; i++) set(i, j, value);
        }
    }
};

struct Form {
    size_t m = 40, n = 24, k = 200;
    bool transpose_a = false, transpose_b = false;
    cudaDataType_t input = CUDA_R_32F, output = CUDA_R_32F;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    bool tf32 = false;
    size_t padding = 0;  // between the columns of every matrix
    float alpha = 1, beta = 0;
    bool c_is_d = true;
    size_t bias_missing = 0, d_missing = 0;  // elements
};

// One product with its operands.
class Call {
public:
    explicit Call(const Form& form, size_t workspace_bytes = size_t{512} << 10)
        : f(form), workspace_bytes(workspace_bytes) {
        const auto matrix = [&](cudaDataType_t type, bool transposed, size_t rows, size_t columns,
                                size_t missing = 0) {
            if (transposed) std::swap(rows, columns);
            return std::make_unique<Matrix>(type, rows, columns, rows + f.padding, missing);
        };
        a = matrix(f.input, f.transpose_a, f.m, f.k);
        b = matrix(f.input, f.transpose_b, f.k, f.n);
        c = matrix(f.output, false, f.m, f.n);
        d = matrix(f.output, false, f.m, f.n, f.d_missing);
        aux = matrix(f.output, false, f.m, f.n);
        const size_t count = f.epilogue == CUBLASLT_EPILOGUE_BGRADB ? f.n : f.m;
        bias = std::make_unique<Matrix>(f.output, count - f.bias_missing, 1, count);
        a->fill(random_);
        b->fill(random_);
        if (f.beta != 0) (f.c_is_d ? d : c)->fill(random_);
        if (f.epilogue == CUBLASLT_EPILOGUE_BIAS || f.epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
            f.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
            bias->fill(random_);
        if (f.epilogue == CUBLASLT_EPILOGUE_DGELU) aux->fill(random_);
        cublasLtCreate(&library);
        cublasLtMatmulDescCreate(&operation, f.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                 CUDA_R_32F);
        set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{f.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N});
        set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t{f.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N});
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(f.epilogue));
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(bias->memory));
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(aux->memory));
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<int64_t>(aux->leading));
        a_layout = layout(*a), b_layout = layout(*b), c_layout = layout(*c), d_layout = layout(*d);
        cublasLtMatmulPreferenceCreate(&preference);
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_bytes});
        workspace = static_cast<std::byte*>(gpu->memory.allocate(workspace_bytes));
    }
    ~Call() {
        for (cublasLtMatrixLayout_t one : {a_layout, b_layout, c_layout, d_layout})
            cublasLtMatrixLayoutDestroy(one);
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
    static cublasLtMatrixLayout_t layout(const Matrix& matrix) {
        cublasLtMatrixLayout_t made = nullptr;
        cublasLtMatrixLayoutCreate(&made, matrix.type, matrix.rows, matrix.columns,
                                   static_cast<int64_t>(matrix.leading));
        return made;
    }

    std::vector<cublasLtMatmulHeuristicResult_t> heuristic(cublasStatus_t expected = CUBLAS_STATUS_SUCCESS,
                                                           int most = 20) {
        std::vector<cublasLtMatmulHeuristicResult_t> results(20);
        int count = 0;
        EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(library, operation, a_layout, b_layout, c_layout, d_layout,
                                                 preference, most, results.data(), &count),
                  expected);
        results.resize(static_cast<size_t>(count));
        return results;
    }
    cublasLtMatmulAlgo_t whole() {  // the first that does not split K
        for (const auto& result : heuristic()) {
            if (parts_of(result.algo) == 1) return result.algo;
        }
        ADD_FAILURE() << "no algorithm";
        return {};
    }
    static int32_t parts_of(const cublasLtMatmulAlgo_t& algo) {
        int32_t parts = 0;
        size_t written = 0;
        cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof(parts),
                                             &written);
        return parts;
    }
    static cublasLtMatmulAlgo_t split(cublasLtMatmulAlgo_t algo, int32_t parts, uint32_t scheme) {
        cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof(parts));
        cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                             sizeof(scheme));
        return algo;
    }
    cublasStatus_t check(const cublasLtMatmulAlgo_t& algo, size_t* needs = nullptr) {
        cublasLtMatmulHeuristicResult_t result{};
        const auto status = cublasLtMatmulAlgoCheck(library, operation, a_layout, b_layout, c_layout,
                                                    d_layout, &algo, &result);
        if (needs) *needs = result.workspaceSize;
        return status;
    }
    cublasStatus_t launch(const cublasLtMatmulAlgo_t& algo) {
        return cublasLtMatmul(library, operation, &f.alpha, a_at ? a_at : a->memory, a_layout, b->memory,
                              b_layout, &f.beta, f.c_is_d ? d->memory : c->memory, c_layout, d->memory,
                              d_layout, &algo, workspace, workspace_bytes, nullptr);
    }
    void run(const cublasLtMatmulAlgo_t& algo) {
        ASSERT_EQ(launch(algo), CUBLAS_STATUS_SUCCESS);
        gpu->run();
    }
    // The message of the finding when it runs.
    std::string fault() {
        EXPECT_EQ(launch(whole()), CUBLAS_STATUS_SUCCESS);
        try {
            gpu->run();
        } catch (const Fault& found) { return found.what(); }
        return "";
    }

    Form f;
    std::mt19937 random_{1};
    size_t workspace_bytes;
    std::byte* workspace = nullptr;
    const std::byte* a_at = nullptr;
    std::unique_ptr<Matrix> a, b, c, d, aux, bias;
    cublasLtHandle_t library = nullptr;
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t a_layout = nullptr, b_layout = nullptr, c_layout = nullptr, d_layout = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
};

// The product in double precision.
struct Expected {
    std::vector<double> d, aux, bias;

    explicit Expected(const Call& call) : d(call.f.m * call.f.n), aux(d.size()), bias(call.bias->rows) {
        const Form& f = call.f;
        const auto input = [&](float value) { return static_cast<double>(f.tf32 ? to_tf32(value) : value); };
        for (size_t j = 0; j < f.n; j++) {
            for (size_t i = 0; i < f.m; i++) {
                double x = 0;
                for (size_t l = 0; l < f.k; l++)
                    x += input(call.a->at(f.transpose_a, i, l)) * input(call.b->at(f.transpose_b, l, j));
                x *= f.alpha;
                if (f.beta != 0) x += f.beta * (f.c_is_d ? call.d : call.c)->at(i, j);
                d[i + j * f.m] = epilogue(call, x, i, j);
            }
        }
        for (size_t l = 0; l < f.k; l++) {
            if (f.epilogue == CUBLASLT_EPILOGUE_BGRADB) {
                for (size_t j = 0; j < f.n; j++) bias[j] += call.b->at(f.transpose_b, l, j);
            } else if (f.epilogue == CUBLASLT_EPILOGUE_BGRADA) {
                for (size_t i = 0; i < f.m; i++) bias[i] += call.a->at(f.transpose_a, i, l);
            }
        }
    }

    double epilogue(const Call& call, double x, size_t i, size_t j) {
        const auto t = [](double y) { return std::tanh(std::sqrt(2 / M_PI) * (y + 0.044715 * y * y * y)); };
        switch (call.f.epilogue) {
            case CUBLASLT_EPILOGUE_BIAS:
            case CUBLASLT_EPILOGUE_GELU_BIAS:
            case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: x += call.bias->at(i, 0); break;
            default: break;
        }
        aux[i + j * call.f.m] = x;
        switch (call.f.epilogue) {
            case CUBLASLT_EPILOGUE_GELU:
            case CUBLASLT_EPILOGUE_GELU_BIAS:
            case CUBLASLT_EPILOGUE_GELU_AUX:
            case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return x / 2 * (1 + t(x));
            case CUBLASLT_EPILOGUE_DGELU: {
                const double y = call.aux->at(i, j), inner = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * y * y);
                return x * ((1 + t(y)) / 2 + y / 2 * (1 - t(y) * t(y)) * inner);
            }
            default: return x;
        }
    }
};

// Terms are products of two normal numbers, partial sums up to sqrt(k) of them. k roundings of 2^-24 of
// that, which go either way, are k 2^-24 together, with a factor 4. The rounding to the output's type is
// added.
double tolerance(const Form& f, double value) {
    const double rounding = f.output == CUDA_R_32F ? 0x1p-24 : 0x1p-8;
    return 4 * static_cast<double>(f.k) * 0x1p-24 + std::abs(value) * rounding * 1.01;
}

void expect_matrix(const Form& f, const Matrix& matrix, const std::vector<double>& expected,
                   double factor = 1) {
    for (size_t j = 0; j < matrix.columns; j++) {
        for (size_t i = 0; i < matrix.rows; i++) {
            const double value = expected[i + j * matrix.rows];
            ASSERT_NEAR(matrix.at(i, j), value, factor * tolerance(f, value))
                << "row " << i << ", column " << j;
        }
    }
}

bool begins_with(const std::string& text, const std::string& begin) { return text.starts_with(begin); }
bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

class CublasLt : public testing::Test {
protected:
    void SetUp() override { gpu = std::make_unique<Gpu>(); }
    void TearDown() override { gpu.reset(); }
};
using Types = std::tuple<cudaDataType_t, cudaDataType_t, bool>;
class Forms : public CublasLt, public testing::WithParamInterface<std::tuple<Types, bool, bool, size_t>> {
protected:
    Form form() const {
        const auto& [types, transpose_a, transpose_b, padding] = GetParam();
        const auto& [input, output, tf32] = types;
        return {.transpose_a = transpose_a,
                .transpose_b = transpose_b,
                .input = input,
                .output = output,
                .tf32 = tf32,
                .padding = padding};
    }
    // Also by algorithms that split K.
    void expect_right(const Form& f) {
        Call call(f);
        const Expected expected(call);
        call.run(call.whole());
        expect_matrix(f, *call.d, expected.d);
        if (f.epilogue == CUBLASLT_EPILOGUE_GELU_AUX || f.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
            expect_matrix(f, *call.aux, expected.aux);
        if (f.epilogue == CUBLASLT_EPILOGUE_BGRADA || f.epilogue == CUBLASLT_EPILOGUE_BGRADB)
            expect_matrix(f, *call.bias, expected.bias);
    }
};
const auto every_type =
    testing::Values(Types{CUDA_R_32F, CUDA_R_32F, false}, Types{CUDA_R_32F, CUDA_R_32F, true},
                    Types{CUDA_R_16BF, CUDA_R_16BF, false}, Types{CUDA_R_16BF, CUDA_R_32F, false});
INSTANTIATE_TEST_SUITE_P(Every, Forms,
                         testing::Combine(every_type, testing::Bool(), testing::Bool(),
                                          testing::Values(0, 8)));

TEST_P(Forms, EveryEpilogueMatchesDoublePrecision) {
    for (const auto epilogue :
         {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU,
          CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
          CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
        SCOPED_TRACE(fmt::format("epilogue {}", static_cast<int>(epilogue)));
        Form f = form();
        f.epilogue = epilogue;
        expect_right(f);
        f.beta = 1;
        expect_right(f);
    }
}
TEST_P(Forms, FactorsAndAnOutputElsewhereThanC) {
    Form f = form();
    f.alpha = 0.5f;
    f.beta = -2;
    f.c_is_d = false;
    expect_right(f);
}
TEST_P(Forms, SizesThatFillNoTile) {
    for (const auto& [m, n] : {std::pair{1, 1}, {31, 7}, {33, 9}, {8, 300}, {300, 8}}) {
        SCOPED_TRACE(fmt::format("m = {}, n = {}", m, n));
        Form f = form();
        f.m = static_cast<size_t>(m), f.n = static_cast<size_t>(n), f.k = 259;
        expect_right(f);
    }
}
TEST_P(Forms, PartsOfKAreAddedAsTheSchemeSays) {
    Form f = form();
    f.beta = 1;
    f.alpha = 0.5f;
    for (const auto scheme : {CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                              CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE}) {
        for (const int32_t parts : {2, 3, 7}) {
            SCOPED_TRACE(fmt::format("{} parts, scheme {}", parts, static_cast<int>(scheme)));
            Call call(f);
            const Expected expected(call);
            call.run(call.split(call.whole(), parts, scheme));
            // Each part may be rounded to the output's type, where partial sums are at most about sqrt(k)
            // * 4.
            const bool rounds = scheme != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE && f.output != CUDA_R_32F;
            for (size_t i = 0; i < expected.d.size(); i++) {
                const double value = expected.d[i], room = rounds ? parts * 4 * std::sqrt(f.k) * 0x1p-8 : 0;
                ASSERT_NEAR(call.d->at(i % f.m, i / f.m), value, tolerance(f, value) + room) << i;
            }
        }
    }
}

TEST_F(CublasLt, PartsInPlaceAreRoundedToTheOutputsTypeOneByOne) {
    // 256 + 1 + 1: bf16 has no 257.
    const Form f = {.m = 8, .n = 8, .k = 3, .input = CUDA_R_16BF, .output = CUDA_R_16BF, .padding = 0};
    const auto sum = [&](uint32_t scheme) {
        Form padded = f;
        padded.k = 3;
        padded.transpose_b = true;  // k's place in memory is no leading dimension
        Call call(padded);
        for (size_t i = 0; i < f.m; i++) {
            for (size_t l = 0; l < 3; l++) call.a->set(i, l, l == 0 ? 256 : 1);
        }
        call.b->fill(1);
        call.run(Call::split(call.whole(), 3, scheme));
        return call.d->at(3, 5);
    };
    EXPECT_EQ(sum(CUBLASLT_REDUCTION_SCHEME_INPLACE), 256);
    EXPECT_EQ(sum(CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE), 258);
    EXPECT_EQ(sum(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), 258);
}

TEST_F(CublasLt, PartsOfKAreAddedInAnotherOrder) {
    const Form f = {.m = 64, .n = 64, .k = 1024};
    const auto result = [&](int32_t parts) {
        Call call(f);
        call.run(parts == 1 ? call.whole()
                            : Call::split(call.whole(), parts, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
        std::vector<float> values;
        for (size_t i = 0; i < f.m; i++) values.push_back(call.d->at(i, i));
        return values;
    };
    EXPECT_NE(result(1), result(4));
    EXPECT_EQ(result(4), result(4));
}

TEST_F(CublasLt, Tf32HasTenBitsOfMantissa) {
    const auto product = [&](float factor, bool truncate) {
        gpu->settings.tensor_cores_truncate = truncate;
        Call call({.m = 8, .n = 8, .k = 8, .tf32 = true});
        call.a->fill(0);
        call.b->fill(1);
        call.a->set(2, 5, factor);
        call.run(call.whole());
        return call.d->at(2, 3);
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
    const auto result = [&](bool truncate, cudaDataType_t input) {
        gpu->settings.tensor_cores_truncate = truncate;
        Call call({.k = 512, .input = input});
        for (Matrix* matrix : {call.a.get(), call.b.get()}) {
            for (size_t j = 0; j < matrix->columns; j++) {
                for (size_t i = 0; i < matrix->rows; i++) matrix->set(i, j, std::abs(matrix->at(i, j)));
            }
        }
        const Expected expected(call);
        call.run(call.whole());
        double below = 0;  // the mean relative distance, in units of 2^-24
        for (size_t i = 0; i < expected.d.size(); i++)
            below += 1 - call.d->at(i % call.f.m, i / call.f.m) / expected.d[i];
        return below / static_cast<double>(expected.d.size()) * 0x1p24;
    };
    EXPECT_LT(std::abs(result(false, CUDA_R_16BF)), 4);
    EXPECT_GT(result(true, CUDA_R_16BF),
              30);  // each of 512 additions loses up to 2 units of the sum so far
    EXPECT_LT(std::abs(result(true, CUDA_R_32F)), 4);                     // no tensor cores
    EXPECT_EQ(1 + 0x1p-25f * static_cast<float>(gpu->settings.seed), 1);  // the rounding is as it was
}

TEST_F(CublasLt, ApproximationsMoveTheTanh) {
    using Approximation = software_gpu::Settings::Approximation;
    const auto gelu = [&](Approximation approximation) {
        gpu->settings.approximation = approximation;
        Call call({.m = 8, .n = 8, .k = 8, .epilogue = CUBLASLT_EPILOGUE_GELU});
        call.a->fill(0.25f);
        call.b->fill(0.5f);
        call.run(call.whole());
        return call.d->at(0, 0);  // of 1
    };
    const float nearest = gelu(Approximation::nearest), move = 0.5f * 0x1p-11f * (2 * nearest - 1);
    EXPECT_NEAR(gelu(Approximation::up), nearest + move, 1e-6);
    EXPECT_NEAR(gelu(Approximation::down), nearest - move, 1e-6);
    EXPECT_NEAR(std::abs(gelu(Approximation::seeded) - nearest), move, 1e-6);
}

// ----------------------------------------------------------------------------------------------------
// what it does with memory

TEST_F(CublasLt, AProductRunsInItsTurnAndAsOftenAsAGraphWants) {
    Call call({.beta = 1});
    const auto algorithm = call.whole();
    const Expected once(call);
    ASSERT_EQ(call.launch(algorithm), CUBLAS_STATUS_SUCCESS);
    const auto work = gpu->queue.front();
    call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_GELU});  // of a later call
    const auto before = call.d->at(3, 4);
    work();
    expect_matrix(call.f, *call.d, once.d);
    EXPECT_NE(call.d->at(3, 4), before);
    const Expected twice(call);
    work();
    expect_matrix(call.f, *call.d, twice.d);
}

TEST_F(CublasLt, BetaZeroDoesNotReadC) {
    Call call({.c_is_d = false});
    EXPECT_EQ(call.fault(), "");  // C was never written
}

TEST_F(CublasLt, NothingBetweenColumnsIsTouched) {
    Call call(
        {.input = CUDA_R_16BF, .output = CUDA_R_16BF, .epilogue = CUBLASLT_EPILOGUE_GELU_AUX, .padding = 8});
    EXPECT_EQ(call.fault(), "");
    for (const Matrix* matrix : {call.d.get(), call.aux.get()}) {
        for (size_t j = 0; j + 1 < call.f.n; j++) {
            for (size_t i = call.f.m; i < matrix->leading; i++)
                ASSERT_EQ(reinterpret_cast<const bfloat16*>(matrix->memory)[i + j * matrix->leading].bits,
                          0xffff);
        }
    }
}

TEST_F(CublasLt, WhatWasNeverWrittenIsFoundByOperand) {
    const auto fault = [](Form f, auto spoil) {
        Call call(f);
        spoil(call);
        return call.fault();
    };
    const auto forget = [](Matrix& matrix) {
        gpu->memory.unpoison_gap(matrix.memory + matrix.bytes(matrix.leading + 3), matrix.bytes(1));
    };
    const Form bf16 = {.input = CUDA_R_16BF, .output = CUDA_R_16BF, .padding = 8};
    EXPECT_EQ(fault(bf16, [&](Call& call) { forget(*call.a); }),
              "operand A of cublasLtMatmul (NN bf16 to bf16, m = 40, n = 24, k = 200, epilogue DEFAULT): "
              "reads 80 bytes, of which byte 102 of an "
              "allocation of 19184 was never written");
    EXPECT_PRED2(begins_with, (fault(bf16, [&](Call& call) { forget(*call.b); })),
                 "operand B of cublasLtMatmul (NN bf16");
    Form form = bf16;
    form.beta = 1;
    form.c_is_d = false;
    EXPECT_PRED2(begins_with, (fault(form, [&](Call& call) { forget(*call.c); })),
                 "operand C of cublasLtMatmul");
    form.epilogue = CUBLASLT_EPILOGUE_DGELU;
    EXPECT_PRED2(begins_with, (fault(form, [&](Call& call) { forget(*call.aux); })),
                 "operand aux of cublasLtMatmul");
    form.epilogue = CUBLASLT_EPILOGUE_BIAS;
    const auto forget_bias = [](Call& call) { gpu->memory.unpoison_gap(call.bias->memory, 2); };
    EXPECT_PRED2(contains, fault(form, forget_bias),
                 "operand bias of cublasLtMatmul (NN bf16 to bf16, m = 40, n = 24, k = 200, epilogue BIAS)");
}

TEST_F(CublasLt, WhatIsTooSmallIsFoundByOperand) {
    EXPECT_PRED2(begins_with, Call({.d_missing = 1}).fault(),
                 "operand D of cublasLtMatmul (NN fp32 to fp32, m = 40, n = 24, k = 200");
    EXPECT_PRED2(contains, Call({.padding = 8, .d_missing = 1}).fault(),
                 "writes 160 bytes from byte 4416 of an allocation of 4572 on");
    EXPECT_PRED2(begins_with, Call({.epilogue = CUBLASLT_EPILOGUE_BIAS, .bias_missing = 1}).fault(),
                 "operand bias of");
    EXPECT_PRED2(begins_with, Call({.epilogue = CUBLASLT_EPILOGUE_BGRADB, .bias_missing = 1}).fault(),
                 "operand bias gradient of");
}

TEST_F(CublasLt, TheHostsMemoryIsFound) {
    Call call({});
    alignas(16) static const std::byte host[40 * 200 * 4] = {};
    call.a_at = host;
    EXPECT_PRED2(contains, call.fault(), "is not memory of the device");
}

TEST_F(CublasLt, OverlapsAreFound) {
    Call in_workspace({.epilogue = CUBLASLT_EPILOGUE_BGRADB});
    in_workspace.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(in_workspace.workspace + 4096));
    EXPECT_PRED2(contains, in_workspace.fault(), "operands bias gradient and workspace overlap");
    Call in_d({.m = 200, .n = 200});
    in_d.a_at = in_d.d->memory;
    EXPECT_PRED2(contains, in_d.fault(), "operands A and D overlap");
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

TEST_F(CublasLt, AWorkspaceThatIsTooSmallIsFound) {
    Call call({});
    call.workspace = static_cast<std::byte*>(gpu->memory.allocate(call.workspace_bytes - 1));
    EXPECT_PRED2(begins_with, call.fault(), "operand workspace of cublasLtMatmul");
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
    Call narrow({});
    narrow.d->leading = narrow.f.m - 8;
    cublasLtMatrixLayoutDestroy(std::exchange(narrow.d_layout, Call::layout(*narrow.d)));
    narrow.heuristic(CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_TRUE(gpu->queue.empty());
}

TEST_F(CublasLt, TheLeadingDimensionOfAuxMustBeAMultipleOfEight) {
    for (const auto epilogue :
         {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU}) {
        Call call({.input = CUDA_R_16BF, .output = CUDA_R_16BF, .epilogue = epilogue});
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
}

TEST_F(CublasLt, AnAlgorithmRefusesOperandsThatAreLessAlignedThanItNeeds) {
    const Form bf16 = {.input = CUDA_R_16BF, .output = CUDA_R_16BF};
    Call call(bf16);
    const auto aligned = call.whole();
    call.a_at = call.a->memory + 8;
    EXPECT_EQ(call.launch(aligned), CUBLAS_STATUS_INVALID_VALUE);
    call.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{8});
    const auto any = call.heuristic();
    ASSERT_EQ(any.size(), 1u);
    EXPECT_EQ(call.launch(any[0].algo), CUBLAS_STATUS_SUCCESS);
    call.a_at = call.a->memory + 1;
    EXPECT_EQ(call.launch(any[0].algo), CUBLAS_STATUS_INVALID_VALUE);  // not aligned even to an element
    call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_BIAS});
    call.heuristic(CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQ(call.check(any[0].algo), CUBLAS_STATUS_NOT_SUPPORTED);

    // Leading dimensions must be aligned like addresses.
    Form odd = bf16;
    odd.m = 41;
    EXPECT_EQ(Call(odd).heuristic().size(), 1u);
    EXPECT_EQ(Call(odd).check(aligned), CUBLAS_STATUS_NOT_SUPPORTED);
    odd.epilogue = CUBLASLT_EPILOGUE_BIAS;
    Call(odd).heuristic(CUBLAS_STATUS_NOT_SUPPORTED);

    // The heuristic derives the bias's alignment from its address.
    Call bias({.input = CUDA_R_16BF, .output = CUDA_R_16BF, .epilogue = CUBLASLT_EPILOGUE_BIAS});
    const auto with_bias = bias.whole();
    bias.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(bias.bias->memory + 2));
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
    EXPECT_EQ(call.check(Call::split(whole, 2, CUBLASLT_REDUCTION_SCHEME_NONE)), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(call.check(Call::split(whole, 1, CUBLASLT_REDUCTION_SCHEME_INPLACE)),
              CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(call.check(Call::split(whole, 0, CUBLASLT_REDUCTION_SCHEME_NONE)), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(call.check(Call::split(whole, 201, CUBLASLT_REDUCTION_SCHEME_INPLACE)),
              CUBLAS_STATUS_NOT_SUPPORTED);
    Call gelu({.epilogue = CUBLASLT_EPILOGUE_GELU});
    EXPECT_EQ(gelu.check(Call::split(whole, 2, CUBLASLT_REDUCTION_SCHEME_INPLACE)),
              CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQ(gelu.check(Call::split(whole, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)),
              CUBLAS_STATUS_SUCCESS);
    call.prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_INPLACE});
    bool splits = false;
    for (const auto& result : call.heuristic()) {
        uint32_t scheme = 0;
        size_t written = 0;
        cublasLtMatmulAlgoConfigGetAttribute(&result.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                             sizeof(scheme), &written);
        EXPECT_EQ(scheme & ~uint32_t{CUBLASLT_REDUCTION_SCHEME_INPLACE}, 0u);
        splits |= scheme != 0;
    }
    EXPECT_TRUE(splits);
}

TEST_F(CublasLt, AlgorithmsOfAnotherLibraryAreInvalid) {
    Call call({});
    cublasLtMatmulAlgo_t other{};
    other.data[0] = 0x0000001500000042;
    EXPECT_EQ(call.check(other), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(call.launch(other), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, ValuesOfAnotherSizeAreInvalid) {
    Call call({});
    EXPECT_EQ(call.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int32_t{8}), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(call.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint32_t{8}),
              CUBLAS_STATUS_INVALID_VALUE);
    call.heuristic(CUBLAS_STATUS_INVALID_VALUE, 0);
}

TEST_F(CublasLt, AnEpilogueThatIsNotKnownEndsTheProcess) {
    Call call({});
    EXPECT_EXIT(call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_RELU}),
                testing::ExitedWithCode(86), "software GPU: cuBLASLt: epilogue 2 is not known here");
}

// ----------------------------------------------------------------------------------------------------
// as the trainer uses it

TEST_F(CublasLt, EveryCandidateOfAWeightGradientComputesTheSame) {
    cublasLtHandle_t library = nullptr;
    cublasLtCreate(&library);
    const Form f = {.m = 64,
                    .n = 96,
                    .k = 512,
                    .transpose_b = true,
                    .input = CUDA_R_16BF,
                    .output = CUDA_R_32F,
                    .epilogue = CUBLASLT_EPILOGUE_BGRADB};
    Call call(f);
    const Expected expected(call);
    const LtProblem problem = {.m = f.m,
                               .n = f.n,
                               .k = f.k,
                               .transpose_a = false,
                               .transpose_b = true,
                               .input_type = f.input,
                               .output_type = f.output,
                               .compute = CUBLAS_COMPUTE_32F,
                               .accumulate = false,
                               .epilogue = f.epilogue};
    const LtOperands operands = {call.d->memory, call.a->memory, call.b->memory, {.bias = call.bias->memory}};
    {
        LtProduct product(library, problem, operands.data);
        const auto candidates = product.candidates(call.workspace_bytes);
        EXPECT_GT(candidates.size(), 20u);
        for (const GemmAlgorithm& candidate : candidates) {
            SCOPED_TRACE(describe(candidate));
            call.d->fill(NAN);
            ASSERT_TRUE(
                product.try_algorithm(candidate, operands, {call.workspace, call.workspace_bytes}, nullptr));
            gpu->run();
            expect_matrix(f, *call.d, expected.d);
            expect_matrix(f, *call.bias, expected.bias);
        }
        product.use_first_choice(call.workspace_bytes);
        EXPECT_TRUE(product.algorithm().has_value());
    }
    cublasLtDestroy(library);
}

}  // namespace
