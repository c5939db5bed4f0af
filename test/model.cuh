// model.cuh: small models for the tests of the model and of training.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "common.cuh"
#include "trainer/data/batch.h"
#include "trainer/engine/model.h"
#include "trainer/models/families.h"
#include "trainer/models/llama/llama_table.h"

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

// A model of which test/reference/ has PyTorch's numbers, and the sequences and tokens of its batch.
struct Reference {
    ModelConfig config;
    int B, T;
};
// model.safetensors and model_bf16.safetensors: V = 131, context 32, 2 layers, 3 heads, 48 channels; 3
// sequences of 19 tokens.
constexpr ModelConfig reference_config{131, 32, 2, 3, 48};
constexpr int reference_B = 3, reference_T = 19;
// llama.safetensors: 4 heads over 2; 2 sequences of 19 tokens.
constexpr Reference llama_reference{.config{.V = 131,
                                            .context = 32,
                                            .L = 2,
                                            .NH = 4,
                                            .C = 48,
                                            .family = "llama",
                                            .NKV = 2,
                                            .H = 80,
                                            .head_size = 12,
                                            .rope_theta = 10000,
                                            .norm_eps = 1e-5,
                                            .tied = false},
                                    .B = 2,
                                    .T = 19};

// The model of a dump. llama_bf16.safetensors and qwen3_bf16.safetensors have no head of their own. All have
// the sizes of Llama's, but for Qwen3's heads.
inline Reference reference_of(const SafetensorsFile& dump) {
    if (!dump.contains("model.embed_tokens.weight")) return {reference_config, reference_B, reference_T};
    Reference llama = llama_reference;
    llama.config.tied = !dump.contains("lm_head.weight");
    if (dump.contains("model.layers.0.mlp.fc1.weight")) llama.config.family = "nanochat";
    if (dump.contains("model.layers.0.self_attn.q_norm.weight"))
        llama.config.family = "qwen3", llama.config.head_size = 16;
    return llama;
}

// Random weights; the batch is that of `of` where the options do not say otherwise.
template <class T>
std::unique_ptr<Model<T>> initial_model(const Reference& of, ModelOptions options = {}) {
    options.B = options.B ? options.B : of.B;
    options.T = of.T;
    options.total_batch = options.total_batch ? options.total_batch : static_cast<size_t>(of.B * of.T);
    auto model = std::make_unique<Model<T>>(make_family<T>(of.config), options);
    model->allocate();
    return model;
}

template <class T>
std::unique_ptr<Model<T>> reference_model(const SafetensorsFile& weights, const ModelOptions& options = {}) {
    auto model = initial_model<T>(reference_of(weights), options);
    for (const Tensor& tensor : model->table().tensors())
        model->set_parameter(tensor, weights.floats(tensor.name));
    return model;
}

// A model for inference, whose weights are larger than at the start of training, so that every part of it
// influences the result.
template <class T>
std::unique_ptr<Model<T>> random_model(const ModelConfig& config) {
    auto model = initial_model<T>({config, 1, config.context}, {.training = false});
    unsigned seed = 1;
    for (const Tensor& tensor : model->table().tensors()) {
        const bool scale = tensor.init.value == 1;
        model->set_parameter(tensor, random_values<T>(tensor.unpadded_elements, seed++, scale ? 0.2f : 0.1f,
                                                      scale ? 1.0f : 0.0f));
    }
    return model;
}

inline OwnedBatch reference_batch(const SafetensorsFile& dump) {
    const Reference of = reference_of(dump);
    return OwnedBatch(of.B, of.T, dump.ints("x"), dump.ints("y"));
}

// The logits (rows, V) of the batch that the model evaluated last, as transformers gives them. Those of a
// model that caps them are kept as they were before.
template <class T>
std::vector<float> evaluated_logits(const Model<T>& model) {
    const size_t V = static_cast<size_t>(model.config().V), Vp = static_cast<size_t>(model.config().Vp());
    const float cap = llama_traits(model.config()).logit_cap;
    const std::vector<float> kept = model.activation("logits");
    std::vector<float> logits;
    for (size_t i = 0; i < kept.size(); i++) {
        if (i % Vp < V) logits.push_back(cap > 0 ? cap * std::tanh(kept[i] / cap) : kept[i]);
    }
    return logits;
}

// Compares the logits and losses of the batch that the model evaluated last with the dump's.
inline void expect_logits_and_losses(Model<float>& model, const SafetensorsFile& dump, double bound) {
    EXPECT_LE(relative_error(evaluated_logits(model), dump.floats("logits")), bound);
    EXPECT_LE(relative_error(model.losses(), dump.floats("losses")), bound);
}

// Losses and gradients against those of the dump.
template <class T>
void expect_gradients(const std::string& name, const ModelOptions& options, double bound) {
    const SafetensorsFile dump = reference(name);
    const auto model = reference_model<T>(dump, options);
    model->forward(reference_batch(dump));
    model->backward();
    EXPECT_LE(relative_error(model->losses(), dump.floats("losses")), bound);
    for (const Tensor& tensor : model->table().tensors()) {
        std::vector<float> gradient = model->gradient(tensor);
        for (size_t i = tensor.unpadded_elements; i < gradient.size(); i++)
            ASSERT_EQ(gradient[i], 0.0f) << "padded row of " << tensor.name;
        gradient.resize(tensor.unpadded_elements);
        EXPECT_LE(relative_error(gradient, dump.floats("grad." + tensor.name)), bound) << tensor.name;
    }
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

// The bytes that a plan has for the part whose name begins so; 0 if there is none.
inline size_t bytes_of(const MemoryPlan& plan, const std::string& part) {
    for (const auto& [name, bytes] : plan)
        if (name.starts_with(part)) return bytes;
    return 0;
}

// Two micro-steps with every --recompute: the gradients are equal, or differ by at most `bound`.
inline void expect_recomputing_saves_memory(const std::string& name, double bound = 0,
                                            const std::vector<Recompute>& all = {
                                                Recompute::none, Recompute::activation, Recompute::block}) {
    const SafetensorsFile dump = reference(name);
    const OwnedBatch batch = reference_batch(dump);
    std::vector<std::vector<float>> first;
    size_t bytes = SIZE_MAX;
    for (const Recompute recompute : all) {
        const auto model = reference_model<float>(dump, {.recompute = recompute});
        EXPECT_LT(total_bytes(model->memory_plan()), bytes)
            << "more is computed again, but no memory is saved";
        bytes = total_bytes(model->memory_plan());
        for (int micro = 0; micro < 2; micro++) {
            model->forward(batch);
            model->backward();
        }
        const auto gradients = gradients_of(*model);
        if (first.empty()) first = gradients;
        if (bound == 0) {
            EXPECT_EQ(gradients, first);
            continue;
        }
        for (size_t i = 0; i < first.size(); i++) EXPECT_LE(relative_error(gradients[i], first[i]), bound);
    }
}
