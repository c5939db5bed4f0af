// Diagnostics of a step: norms by layer against double precision, and an update skipped by a veto.
#include <map>
#include <nlohmann/json.hpp>

#include "model.cuh"
#include "trainer/engine/norms_by_layer.h"

namespace {

double squares_of(const std::vector<float>& values) {
    double sum = 0;
    for (const float v : values) sum += static_cast<double>(v) * v;
    return sum;
}

template <class T>
void expect_norms_of_double_precision() {
    const SafetensorsFile dump = reference("model");
    const auto model = reference_model<T>(dump);
    std::map<std::string, double> expected[4];
    const StepResult result = train_step(*model, reference_batch(dump));
    EXPECT_EQ(result.skipped, "");
    for (const Tensor& tensor : model->table().tensors()) {
        const std::string name = tensor.name.substr(std::string("transformer.").size());
        const bool in_block = name.starts_with("h.");  // the model has fewer than ten
        const std::string layer = in_block ? name.substr(0, 3) : name.substr(0, name.find('.')),
                          kind = in_block ? name.substr(4) : name;
        const double grad = squares_of(model->gradient(tensor)),
                     weight = squares_of(model->parameter(tensor));
        expected[0][layer] += grad, expected[1][layer] += weight, expected[2][kind] += grad,
            expected[3][kind] += weight;
    }
    const nlohmann::ordered_json norms = norms_by_layer(model->table(), model->squared_norms());
    const char* maps[] = {"grad", "weight", "grad_by_kind", "weight_by_kind"};
    ASSERT_EQ(norms.size(), 4u);
    for (int m = 0; m < 4; m++) {
        const nlohmann::ordered_json& map = norms.at(maps[m]);
        ASSERT_EQ(map.size(), expected[m].size()) << map.dump();
        double total = 0;
        for (const std::pair<const std::string, double>& sum : expected[m]) {
            const double norm = map.at(sum.first).get<double>();
            // A sum of up to 20,000 squares, added in pieces in fp32.
            EXPECT_NEAR(norm / std::sqrt(sum.second), 1.0, 1e-6) << maps[m] << " " << sum.first;
            total += norm * norm;
        }
        if (m % 2 == 1) continue;
        EXPECT_NEAR(std::sqrt(total) / result.grad_norm, 1.0, 1e-6)
            << "together they are the norm that clipping sees";
    }
    EXPECT_EQ(norms.at("grad").begin().key(), "wte");
    EXPECT_TRUE(norms.at("weight").contains("h.1"));
    EXPECT_TRUE(norms.at("weight_by_kind").contains("attn.c_attn.weight"));
}
TEST(NormsByLayer, AreThoseOfDoublePrecisionAndAddUpToTheGlobalNorm) {
    expect_norms_of_double_precision<float>();
    expect_norms_of_double_precision<bfloat16>();
}

TEST(NormsByLayer, WhatIsNotFiniteIsNull) {
    const TensorTable table = table_of(reference_config);
    SquaredNorms norms{std::vector<float>(table.tensors().size(), 4.0f),
                       std::vector<float>(table.tensors().size(), 1.0f)};
    norms.gradients[0] = NAN;
    norms.gradients.back() = INFINITY;
    const std::string text = norms_by_layer(table, norms).dump();
    const auto read = nlohmann::json::parse(text);
    EXPECT_TRUE(read.at("grad").at("wte").is_null());
    EXPECT_TRUE(read.at("grad").at("ln_f").is_null());
    EXPECT_EQ(read.at("grad").at("wpe"), 2.0);
    // a layer's twelve tensors
    EXPECT_NEAR(read.at("weight").at("h.0").get<double>(), std::sqrt(12.0), 1e-12);
}

// A vetoed step is as if its batch had never existed: parameters, optimizer state and count, and all later
// steps are the same.
template <class T>
void expect_a_veto_to_leave_nothing_behind() {
    const SafetensorsFile dump = reference("model");
    const Trajectory trajectory;
    const auto plain = reference_model<T>(dump), watched = reference_model<T>(dump);
    const auto step = [&](Model<T>& model, int batch, const Veto& veto) {
        return train_step(model, trajectory.at(batch), reference_adamw, veto);
    };
    StepResult seen;
    const Veto refuse = [&](const StepResult& result) { return seen = result, "loss z 8.31 > 7"; };
    const Veto accept = [&](const StepResult& result) { return seen = result, ""; };
    step(*plain, 0, {});
    step(*watched, 0, accept);
    const StepResult refused = step(*watched, 1, refuse);
    EXPECT_EQ(refused.skipped, "loss z 8.31 > 7");
    EXPECT_EQ(refused.loss, seen.loss);
    EXPECT_EQ(refused.grad_norm, seen.grad_norm);
    EXPECT_GT(refused.grad_norm, 0);
    EXPECT_EQ(watched->optimizer_step(), 1);
    const StepResult expected = step(*plain, 2, {}), actual = step(*watched, 2, accept);
    EXPECT_EQ(actual.skipped, "");
    EXPECT_EQ(actual.loss, expected.loss);
    EXPECT_EQ(actual.grad_norm, expected.grad_norm);
    EXPECT_EQ(seen.loss, expected.loss);
    EXPECT_EQ(watched->optimizer_step(), 2);
    EXPECT_EQ(parameters_of(*watched), parameters_of(*plain));
}
TEST(StepWatch, AVetoedStepChangesNothing) {
    expect_a_veto_to_leave_nothing_behind<float>();
    if (!simt::checked) expect_a_veto_to_leave_nothing_behind<bfloat16>();
}

}  // namespace
