// residual_variance: how large the residual stream of an untrained model is, for
// docs/learn/3-residual-projections.md
//   residual_variance LAYERS CHANNELS scaled|unscaled
//   unscaled: the weights of attn.c_proj and mlp.c_proj are multiplied by sqrt(2 LAYERS), which undoes the
//   scale of their initialisation.
//   Prints one JSON object:
//   variance (2 LAYERS + 1): of the stream after each addition, over the channels, mean over the tokens
//   gradient (LAYERS): root mean square of the gradient of each block's attn.c_attn.weight
//   loss: mean over the tokens
//   The tokens are random and independent, 8 sequences of 64.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "dev/learn/number.h"
#include "system/run_main.h"
#include "trainer/engine/model.h"
#include "trainer/models/families.h"

namespace {

constexpr int sequences = 8, tokens_each = 64, vocabulary = 256;

// The batch's inputs, targets and order, in one block of memory.
std::vector<int32_t> random_tokens() {
    constexpr size_t N = size_t{sequences} * tokens_each;
    std::mt19937 random(1);
    std::vector<int32_t> memory(3 * N);
    for (size_t i = 0; i < 2 * N; i++) memory[i] = static_cast<int32_t>(random() % vocabulary);
    const auto order = memory.begin() + 2 * N;
    std::iota(order, memory.end(), 0);
    std::stable_sort(order, memory.end(), [&](int32_t a, int32_t b) {
        return memory[static_cast<size_t>(a)] < memory[static_cast<size_t>(b)];
    });
    return memory;
}

std::string list(const std::vector<double>& values) {
    std::string text;
    for (const double v : values) text += fmt::format("{}{}", text.empty() ? "" : ", ", v);
    return "[" + text + "]";
}

double mean_square(const std::vector<float>& values) {
    double sum = 0;
    for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
    return sum / static_cast<double>(values.size());
}

// Variance over the C channels of a row, mean over the rows.
double variance(const std::vector<float>& rows, size_t C) {
    double of_means = 0;
    for (size_t row = 0; row < rows.size(); row += C) {
        double mean = 0;
        for (size_t i = 0; i < C; i++) mean += static_cast<double>(rows[row + i]) / static_cast<double>(C);
        of_means += mean * mean;
    }
    return mean_square(rows) - of_means * static_cast<double>(C) / static_cast<double>(rows.size());
}

void undo_residual_scale(Model<float>& model) {
    const float factor = std::sqrt(2.0f * static_cast<float>(model.config().L));
    for (const Tensor& tensor : model.table().tensors()) {
        if (!tensor.name.ends_with("c_proj.weight")) continue;
        std::vector<float> weights = model.parameter(tensor);
        for (float& w : weights) w *= factor;
        model.set_parameter(tensor, weights);
    }
}

void measure(int layers, int channels, bool scaled) {
    ModelConfig config;
    config.L = layers, config.C = channels, config.NH = channels % 32 == 0 ? channels / 32 : 1;
    config.V = vocabulary, config.context = tokens_each;
    constexpr size_t N = size_t{sequences} * tokens_each;
    Model<float> model(make_family<float>(config), {.B = sequences, .T = tokens_each, .total_batch = N});
    model.allocate();
    if (!scaled) undo_residual_scale(model);

    std::vector<int32_t> memory = random_tokens();
    Batch batch{.B = sequences, .T = tokens_each, .target_count = static_cast<int>(N)};
    batch.inputs = memory.data(), batch.targets = memory.data() + N, batch.order = memory.data() + 2 * N;
    model.forward(batch);
    const std::vector<float> losses = model.losses();
    std::vector<double> variances{variance(model.activation("encoded"), static_cast<size_t>(channels))};
    for (int l = 0; l < layers; l++) {
        for (const char* stream : {"residual2", "residual3"})
            variances.push_back(variance(model.activation(stream, l), static_cast<size_t>(channels)));
    }
    model.backward();
    std::vector<double> gradients;
    for (int l = 0; l < layers; l++)
        gradients.push_back(std::sqrt(mean_square(
            model.gradient(model.table().named(fmt::format("transformer.h.{}.attn.c_attn.weight", l))))));
    const double loss =
        std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
    write_output(fmt::format("{{\"variance\": {}, \"gradient\": {}, \"loss\": {}}}\n", list(variances),
                             list(gradients), loss),
                 "the result");
}

}  // namespace

int main(int argc, char** argv) {
    return run_main("residual_variance", [&] {
        const std::string scale = argc == 4 ? argv[3] : "";
        CHECK(scale == "scaled" || scale == "unscaled", "expected LAYERS CHANNELS scaled|unscaled");
        simt::select_device();
        measure(number<int>(argv[1]), number<int>(argv[2]), scale == "scaled");
    });
}
