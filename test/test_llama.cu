// Llama, Qwen3 and nanochat against PyTorch (dev/reference_llama.py): activations, losses and gradients;
// training, generation and resumed state of the same models.

#include "decoder_agrees.cuh"
#include "trainer/checkpoint/open_model.h"
#include "trainer/models/model_file.h"

namespace {

constexpr ModelConfig untied = llama_reference.config;
constexpr int B = llama_reference.B, T = llama_reference.T;

void expect_activations(const std::string& family, const std::vector<const char*>& outside,
                        const std::vector<const char*>& of_block) {
    const SafetensorsFile dump = reference(family);
    const auto model = reference_model<float>(dump);
    const double sum = model->evaluate(reference_batch(dump));
    // Roundings of fp32 through two blocks of sums of up to 80 terms stay well below 1e-5 of the norm.
    constexpr double bound = 1e-5;
    for (const char* name : outside)
        EXPECT_LE(relative_error(model->activation(name), dump.floats(fmt::format("act.{}", name))), bound)
            << name;
    for (int l = 0; l < untied.L; l++) {
        for (const char* name : of_block) {
            const std::string theirs = fmt::format("act.{}.{}", l, name);
            EXPECT_LE(relative_error(model->activation(name, l), dump.floats(theirs)), bound) << theirs;
        }
    }
    expect_logits_and_losses(*model, dump, bound);
    EXPECT_NEAR(sum / (B * T), static_cast<double>(dump.floats("loss")[0]), 1e-5);
}
TEST(Llama, ActivationsMatchPyTorch) {
    expect_activations("llama", {"encoded", "norm"},
                       {"norm1", "qkv", "att", "residual2", "norm2", "gate_up", "act", "residual3"});
}
TEST(Qwen3, ActivationsMatchPyTorch) {
    expect_activations("qwen3", {"encoded", "norm"},
                       {"norm1", "qkv", "att", "residual2", "norm2", "gate_up", "act", "residual3"});
}
TEST(Nanochat, ActivationsMatchPyTorch) {
    expect_activations("nanochat", {"encoded", "embedded", "norm"},
                       {"norm1", "qkv", "att", "residual2", "norm2", "act", "residual3"});
}

TEST(Llama, GradientsMatchPyTorch) { expect_gradients<float>("llama", {}, 1e-4); }
// In bf16 transformers' own Qwen3 is up to 2.4e-2 from these gradients, because what reaches a matrix through
// the norm of heads is a difference.
TEST(Qwen3, GradientsMatchPyTorch) {
    expect_gradients<float>("qwen3", {}, 1e-4);
    expect_gradients<float>("qwen3_bf16", {}, 1e-4);
    expect_gradients<bfloat16>("qwen3_bf16", {}, 3e-2);
}
TEST(Nanochat, GradientsMatchPyTorch) {
    expect_gradients<float>("nanochat", {}, 1e-4);
    expect_gradients<bfloat16>("nanochat_bf16", {}, 2e-2);
}
// With a tied head, in fp32 and in bf16. From weights rounded to bf16, PyTorch in fp64: the difference is our
// own rounding of activations to 8 bits.
TEST(Llama, GradientsOfATiedModelMatchPyTorch) {
    expect_gradients<float>("llama_bf16", {}, 1e-4);
    expect_gradients<bfloat16>("llama_bf16", {}, 2e-2);
}
TEST(Llama, TheHeadInChunksGivesPyTorchsGradients) {
    for (const int chunks : {3, 38}) {
        expect_gradients<float>("llama", {.head_chunks = chunks}, 1e-4);
        expect_gradients<bfloat16>("llama_bf16", {.head_chunks = chunks}, 2e-2);
        expect_gradients<float>("nanochat", {.head_chunks = chunks}, 1e-4);
    }
}

TEST(Llama, RecomputingGivesTheSameBits) { expect_recomputing_saves_memory("llama"); }
TEST(Qwen3, RecomputingGivesTheSameBits) { expect_recomputing_saves_memory("qwen3"); }
TEST(Nanochat, RecomputingGivesTheSameBits) {
    expect_recomputing_saves_memory("nanochat", 0, {Recompute::none, Recompute::block});
    EXPECT_THROW(reference_model<float>(reference("nanochat"), {.recompute = Recompute::activation}),
                 UsageError);
}

// A block of nanochat keeps 12 numbers a channel and token, since its activation is computed in place. Beside
// them it has 14 statistics a token: of two norms, 4 heads of attention, and 8 heads of queries and keys.
TEST(Nanochat, ABlockKeepsTwelveNumbersAChannel) {
    const auto activations = [](int L) {
        const ModelConfig config = family_of({.family = "nanochat"}).complete({.L = L, .family = "nanochat"});
        const auto model = initial_model<float>({config, 12, 64});
        return static_cast<double>(bytes_of(model->memory_plan(), "activations"));
    };
    constexpr double tokens = 12 * 64, channels = 128;
    EXPECT_NEAR((activations(6) - activations(4)) / 2 / (tokens * sizeof(float)), 12 * channels + 14, 4);
}

// The bounds of GPT-2: fp32 1e-5 and 1e-3 for the sums in another order, over ten steps.
void expect_micro_steps_to_add_up(const std::string& family) {
    const SafetensorsFile dump = reference(family);
    const auto whole = reference_model<float>(dump), split = reference_model<float>(dump, {.B = 1});
    for (int step = 0; step < 10; step++) {
        const std::vector<int> x = random_tokens(B * T, untied.V, 100u + static_cast<unsigned>(step)),
                               y = random_tokens(B * T, untied.V, 200u + static_cast<unsigned>(step));
        const StepResult result = train_step(*whole, OwnedBatch(B, T, x, y));
        for (int first = 0; first < B; first++) {
            split->forward(sequences(x, y, T, first, 1));
            split->backward(first + 1 == B);
        }
        const StepResult same = split->update(reference_adamw);
        EXPECT_NEAR(same.loss / result.loss, 1, 1e-5) << "step " << step;
        EXPECT_NEAR(same.grad_norm / result.grad_norm, 1, 1e-3) << "step " << step;
    }
}
TEST(Llama, MicroStepsAddUp) { expect_micro_steps_to_add_up("llama"); }
TEST(Qwen3, MicroStepsAddUp) { expect_micro_steps_to_add_up("qwen3"); }
TEST(Nanochat, MicroStepsAddUp) { expect_micro_steps_to_add_up("nanochat"); }

// The state of a model after some steps is loaded into a new one, which then continues with the same bits.
template <class Type>
void expect_state_round_trip(const std::string& name) {
    const SafetensorsFile dump = reference(name);
    const auto trained = reference_model<Type>(dump, {.deterministic = true});
    const auto step = [&](Model<Type>& model, unsigned number) {
        const std::vector<int> x = random_tokens(B * T, untied.V, number),
                               y = random_tokens(B * T, untied.V, number + 100);
        return train_step(model, OwnedBatch(B, T, x, y));
    };
    for (unsigned s = 0; s < 3; s++) step(*trained, s);
    const auto fresh = initial_model<Type>({trained->config(), B, T}, {.deterministic = true, .seed = 9});
    std::vector<float> state(trained->table().elements());
    trained->read_masters(state.data());
    fresh->write_masters(state.data());
    for (const std::string& buffer : trained->optimizer_buffers()) {
        trained->read_optimizer(buffer, state.data());
        fresh->write_optimizer(buffer, state.data());
    }
    fresh->set_optimizer_step(trained->optimizer_step());
    for (unsigned s = 3; s < 6; s++) EXPECT_EQ(step(*fresh, s).loss, step(*trained, s).loss);
    EXPECT_EQ(parameters_of(*fresh), parameters_of(*trained));
}
TEST(Llama, TrainingContinuesFromItsState) {
    expect_state_round_trip<float>("llama");
    expect_state_round_trip<bfloat16>("llama_bf16");
}
TEST(Qwen3, TrainingContinuesFromItsState) { expect_state_round_trip<bfloat16>("qwen3_bf16"); }
TEST(Nanochat, TrainingContinuesFromItsState) { expect_state_round_trip<bfloat16>("nanochat_bf16"); }

// A token determines the one that follows it. Fewer steps in a checked build, where these take half a minute.
TEST(Llama, LearnsATable) {
    const int steps = simt::checked ? 40 : 200;
    const auto model = initial_model<float>(llama_reference, {.seed = 1});
    StepResult result;
    for (int s = 0; s < steps; s++) {
        std::vector<int> x = random_tokens(B * T, untied.V, static_cast<unsigned>(s)), y;
        for (const int token : x) y.push_back((5 * token + 3) % untied.V);
        OptimizerOptions options = reference_adamw;
        options.lr = 1e-2;
        result = train_step(*model, OwnedBatch(B, T, x, y), options);
        if (s == 0) { EXPECT_NEAR(result.loss, std::log(131.0), 0.2); }
    }
    EXPECT_LT(result.loss, simt::checked ? 2.0f : 0.5f);
}

// Heads that share keys and values, as SmolLM2 does, and others; one sample, to the context's end; a prompt
// that fills the context; many samples; past the attention's chunk.
std::vector<DecoderShape> decoder_shapes(const char* family) {
    const auto shape = [&](int V, int context, int L, int NH, int C, int NKV, int head_size, bool tied) {
        const ModelConfig config{.V = V,
                                 .context = context,
                                 .L = L,
                                 .NH = NH,
                                 .C = C,
                                 .family = family,
                                 .NKV = NKV,
                                 .H = 52,
                                 .head_size = head_size,
                                 .rope_theta = 10000,
                                 .norm_eps = 1e-5,
                                 .tied = tied};
        return family_of(config).complete(config);
    };
    return {{shape(131, 24, 2, 9, 72, 3, 8, true), 1, 1, 24},
            {shape(257, 40, 2, 3, 84, 1, 34, false), 3, 7, 12},
            {shape(64, 20, 1, 2, 192, 2, 96, true), 5, 20, 20},
            {shape(64, 24, 1, 4, 64, 2, 32, false), 17, 3, 6},
            {shape(70, 300, 1, 2, 32, 1, 16, true), 2, 253, 259}};
}

// Logits (tokens, V) from a whole forward pass. Attention is causal, so the padding does not influence the
// tokens before it.
template <class Type>
std::vector<float> model_logits(Model<Type>& model, std::vector<int> tokens) {
    const size_t elements = tokens.size() * static_cast<size_t>(model.config().V);
    tokens.resize(static_cast<size_t>(model.options().T), 0);
    model.evaluate(OwnedBatch(1, model.options().T, tokens, tokens));
    std::vector<float> logits = evaluated_logits(model);
    logits.resize(elements);
    return logits;
}

// The decoder's logits are the model's without a cache.
template <class Type>
void expect_model_logits(const char* family, bool int8) {
    expect_decoder_agrees<Type>(decoder_shapes(family), int8, model_logits<Type>);
}
TEST(Llama, TheDecoderGivesTheModelsLogits) {
    expect_model_logits<float>("llama", false);
    expect_model_logits<bfloat16>("llama", false);
}
TEST(Qwen3, TheDecoderGivesTheModelsLogits) {
    expect_model_logits<float>("qwen3", false);
    expect_model_logits<bfloat16>("qwen3", false);
    expect_model_logits<bfloat16>("qwen3", true);
}
TEST(Nanochat, TheDecoderGivesTheModelsLogits) {
    expect_model_logits<float>("nanochat", false);
    expect_model_logits<bfloat16>("nanochat", true);
}
TEST(Llama, TheInt8DecoderGivesTheLogitsOfTheQuantizedWeights) {
    expect_model_logits<float>("llama", true);
    expect_model_logits<bfloat16>("llama", true);
}

void expect_logits_of_folder(const std::string& family) {
    const SafetensorsFile dump = reference("hugging_face/" + family + "_expected");
    const auto file = open_model(relocated(PROJECT_ROOT "/test/reference/hugging_face/" + family));
    const ModelConfig& config = file->config();
    const auto model = initial_model<float>({config, 1, config.context}, {.training = false});
    load_weights(*model, *file);
    const std::vector<int> x = dump.ints("x");
    const std::vector<float> logits = dump.floats("logits");
    for (const int n : {1, 7, config.context}) {
        const std::vector expected(logits.begin(), logits.begin() + n * config.V);
        EXPECT_LE(relative_error(model_logits(*model, {x.begin(), x.begin() + n}), expected), 1e-5) << n;
    }
}
TEST(Llama, AFolderOfTransformersGivesItsLogits) { expect_logits_of_folder("llama"); }
TEST(Qwen3, AFolderOfTransformersGivesItsLogits) { expect_logits_of_folder("qwen3"); }
TEST(Nanochat, AFolderOfTransformersGivesItsLogits) { expect_logits_of_folder("nanochat"); }

TEST(Llama, JoinedMatricesLieBehindEachOther) {
    for (const int world_size : {1, 3}) {
        const TensorTable table = table_of(untied, world_size);
        const auto id_of = [&](const std::string& name) {
            return static_cast<TensorId>(&table.named(name) - table.tensors().data());
        };
        const TensorId q = id_of("model.layers.1.self_attn.q_proj.weight"),
                       gate = id_of("model.layers.1.mlp.gate_proj.weight");
        EXPECT_EQ(table.matrix(q), (std::array<size_t, 2>{96, 48}));
        EXPECT_EQ(table.matrix(q + 1), (std::array<size_t, 2>{48, 48})) << "k and v";
        EXPECT_EQ(table.matrix(gate), (std::array<size_t, 2>{160, 48}));
        EXPECT_EQ(table[q + 1].name, "model.layers.1.self_attn.k_proj.weight");
        for (const TensorId id : {q + 1, q + 2, gate + 1})
            EXPECT_EQ(table[id].offset, table[id - 1].offset + table[id - 1].elements) << table[id].name;
    }
    EXPECT_EQ(table_of(named_model("smollm2:135m")).parameters(), 134515008u);
    EXPECT_EQ(table_of(named_model("smollm2:360m")).parameters(), 361821120u);
}

// The sizes of the published Qwen3-0.6B, whose model card says 0.6B in all and 0.44B without the embedding.
TEST(Qwen3, TheNamedShapeIsThePublishedOne) {
    const ModelConfig config = named_model("qwen3:0.6b");
    EXPECT_EQ(config.HS(), 128);
    EXPECT_EQ(config.Vp(), 151936) << "a multiple of 128";
    const TensorTable table = table_of(config);
    EXPECT_EQ(table.parameters(), 596049920u);
    EXPECT_EQ(table.parameters() - table.named("model.embed_tokens.weight").elements, 440467456u);
    EXPECT_EQ(table.named("model.layers.27.self_attn.q_proj.weight").shape,
              (std::vector<size_t>{2048, 1024}));
    const Tensor& norm = table.named("model.layers.27.self_attn.k_norm.weight");
    EXPECT_EQ(norm.shape, std::vector<size_t>{128});
    EXPECT_EQ(norm.role, Role::vector) << "AdamW updates it beside muon";
    EXPECT_FALSE(norm.weight_decay);
    // 6 operations for each parameter, and 6 L A T for attention, A = 16 * 128
    EXPECT_EQ(family_of(config).flops_per_token(config, 1024), 6.0 * 596049920 + 6.0 * 28 * 2048 * 1024);
}

TEST(Llama, ImpossibleShapesAreRefused) {
    const auto refused = [](int ModelConfig::*field, int value) {
        ModelConfig config = untied;
        config.*field = value;
        EXPECT_THROW(make_family<float>(config), UsageError) << value;
    };
    refused(&ModelConfig::NKV, 3);  // does not divide 4 heads
    refused(&ModelConfig::NKV, 0);
    refused(&ModelConfig::head_size, 13);  // odd
    refused(&ModelConfig::head_size, 130);
    refused(&ModelConfig::C, 50);  // no multiple of 4
    refused(&ModelConfig::H, 0);
    refused(&ModelConfig::V, 0);
    refused(&ModelConfig::L, 0);
    ModelConfig config = untied;
    config.rope_theta = 0;
    EXPECT_THROW(make_family<float>(config), UsageError);
}

}  // namespace
