// model.cuh: small models for the tests of the model and of training.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "common.cuh"
#include "trainer/data/batch.h"
#include "trainer/engine/model.h"
#include "trainer/models/families.h"

// A batch that owns its tokens, in the layout the loader makes.
class OwnedBatch {
public:
    OwnedBatch(int B, int T, const std::vector<int>& inputs, const std::vector<int>& targets)
        : memory_(static_cast<size_t>(3 * B * T)) {
        const size_t N = static_cast<size_t>(B) * static_cast<size_t>(T);
        batch_.B = B;
        batch_.T = T;
        batch_.inputs = memory_.data();
        batch_.targets = memory_.data() + N;
        batch_.order = memory_.data() + 2 * N;
        for (size_t i = 0; i < N; i++) {
            batch_.inputs[i] = inputs[i];
            batch_.targets[i] = targets[i];
            batch_.order[i] = static_cast<int>(i);
            batch_.target_count += targets[i] != Batch::ignored;
        }
        std::stable_sort(batch_.order, batch_.order + N, [&](int a, int b) {
            return inputs[static_cast<size_t>(a)] < inputs[static_cast<size_t>(b)];
        });
    }
    operator const Batch&() const { return batch_; }
    OwnedBatch&& of_step_with(int64_t targets) && {
        batch_.step_targets = targets;
        return std::move(*this);
    }

private:
    std::vector<int32_t> memory_;
    Batch batch_;
};

// Sequences [begin, begin + count) of T tokens of a list of samples of T inputs and T targets.
inline OwnedBatch sequences(const std::vector<int>& inputs, const std::vector<int>& targets, int T, int begin,
                            int count) {
    const auto from = static_cast<std::ptrdiff_t>(begin) * T,
               to = static_cast<std::ptrdiff_t>(begin + count) * T;
    return OwnedBatch(count, T, std::vector<int>(inputs.begin() + from, inputs.begin() + to),
                      std::vector<int>(targets.begin() + from, targets.begin() + to));
}

// The model of test/reference/model.safetensors: V = 131, context 32, 2 layers, 3 heads, 48 channels; 3
// sequences of 19 tokens.
constexpr ModelConfig reference_config{131, 32, 2, 3, 48};
constexpr int reference_B = 3, reference_T = 19;

template <class T>
std::unique_ptr<Model<T>> reference_model(const SafetensorsFile& weights, ModelOptions options = {}) {
    options.B = options.B ? options.B : reference_B;
    options.T = reference_T;
    options.total_batch = options.total_batch ? options.total_batch : reference_B * reference_T;
    auto model = std::make_unique<Model<T>>(make_family<T>(reference_config), options);
    model->allocate();
    for (const Tensor& tensor : model->table().tensors())
        model->set_parameter(tensor, weights.floats(tensor.name));
    return model;
}

inline OwnedBatch reference_batch(const SafetensorsFile& dump) {
    return OwnedBatch(reference_B, reference_T, dump.ints("x"), dump.ints("y"));
}

// The ten batches of test/reference/trajectory.safetensors, and PyTorch's losses and norms.
struct Trajectory {
    const SafetensorsFile dump = reference("trajectory");
    const std::vector<int> x = dump.ints("x"), y = dump.ints("y");
    const std::vector<float> loss = dump.floats("loss.fp64"), grad_norm = dump.floats("grad_norm.fp64");

    OwnedBatch at(int step) const { return sequences(x, y, reference_T, step * reference_B, reference_B); }
};

// The same model in plain loops.
template <class Number, class T>
plain::GPT2<Number> plain_copy(Model<T>& model) {
    const ModelConfig& config = model.config();
    plain::Tensors<Number> parameters;
    for (const Tensor& tensor : model.table().tensors()) {
        const std::vector<float> values = model.parameter(tensor);
        parameters[tensor.name].assign(
            values.begin(), values.begin() + static_cast<std::ptrdiff_t>(tensor.unpadded_elements));
    }
    return {{static_cast<size_t>(config.V), static_cast<size_t>(config.L), static_cast<size_t>(config.NH),
             static_cast<size_t>(config.C)},
            parameters};
}

constexpr OptimizerOptions reference_adamw{
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0};

template <class T>
StepResult train_step(Model<T>& model, const Batch& batch, const OptimizerOptions& options = reference_adamw,
                      const Veto& veto = {}) {
    model.forward(batch);
    model.backward();
    return model.update(options, veto);
}

template <class T>
std::vector<std::vector<float>> gradients_of(const Model<T>& model) {
    std::vector<std::vector<float>> all;
    for (const Tensor& tensor : model.table().tensors()) all.push_back(model.gradient(tensor));
    return all;
}
template <class T>
std::vector<std::vector<float>> parameters_of(Model<T>& model) {
    std::vector<std::vector<float>> all;
    for (const Tensor& tensor : model.table().tensors()) all.push_back(model.parameter(tensor));
    return all;
}
