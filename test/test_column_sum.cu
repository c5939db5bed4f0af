// test_column_sum.cu: column_sum.cuh against double precision, at both widths.
#include "common.cuh"
#include "kernels/column_sum.cuh"

namespace {

template <class T_, class W_>
struct Case {
    using T = T_;
    using W = W_;
};
template <class Case>
class ColumnSum : public testing::Test {};
using Cases = testing::Types<Case<float, simt::NativeWidth<32>>, Case<bfloat16, simt::NativeWidth<32>>,
                             Case<float, simt::GpuWidth<32>>, Case<bfloat16, simt::GpuWidth<32>>>;
TYPED_TEST_SUITE(ColumnSum, Cases);

struct Shape {
    size_t rows, columns;
};
const Shape shapes[] = {{1, 8},      {3, 768},    {7, 1},     {5, 33},    {1000, 72},
                        {255, 2304}, {4097, 128}, {2, 50304}, {70000, 16}};

// Adds to what out holds already.
template <class W, class T>
std::vector<float> run(const std::vector<float>& inp, const std::vector<float>& before, size_t rows,
                       size_t columns) {
    const auto device_inp = upload<T>(inp);
    const auto out = upload<float>(before);
    const auto scratch = poisoned<char>(column_sum_scratch_bytes<W, T>(rows, columns));
    column_sum<W>(out.data(), device_inp.data(), rows, columns, reinterpret_cast<float*>(scratch.data()),
                  nullptr);
    return download(out);
}

TYPED_TEST(ColumnSum, AddsTheColumnsToWhatIsThere) {
    using T = typename TypeParam::T;
    for (const auto& [rows, columns] : shapes) {
        SCOPED_TRACE(testing::Message() << "rows " << rows << ", columns " << columns);
        const std::vector<float> inp = random_values<T>(rows * columns, 1, 1.0f, 0.1f),
                                 before = random_values<float>(columns, 2);
        std::vector<Bounded> expected = exact(before);
        for (size_t i = 0; i < inp.size(); i++) expected[i % columns] += Bounded(inp[i]);
        const std::vector<float> out = run<typename TypeParam::W, T>(inp, before, rows, columns);
        // the sums are fp32 whatever the inputs are
        EXPECT_LE(relative_error(out, expected), 1e-5);
        expect_elements(out, expected, epsilon<float>);
    }
}

TYPED_TEST(ColumnSum, GivesTheSameBitsTwice) {
    using T = typename TypeParam::T;
    const size_t rows = 4097, columns = 200;
    const std::vector<float> inp = random_values<T>(rows * columns, 3), before(columns, 0.0f);
    EXPECT_EQ((run<typename TypeParam::W, T>(inp, before, rows, columns)),
              (run<typename TypeParam::W, T>(inp, before, rows, columns)));
}

TYPED_TEST(ColumnSum, KeepsANaN) {
    using T = typename TypeParam::T;
    std::vector<float> inp(100 * 24, 1.0f);
    inp[57 * 24 + 5] = NAN;
    const std::vector<float> out = run<typename TypeParam::W, T>(inp, std::vector<float>(24, 0.0f), 100, 24);
    for (size_t c = 0; c < 24; c++) EXPECT_EQ(std::isnan(out[c]), c == 5) << "column " << c;
}

}  // namespace
