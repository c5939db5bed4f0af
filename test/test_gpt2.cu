// The whole model against PyTorch (dev/reference.py): activations, losses, gradients, and ten steps of AdamW.
#include <algorithm>
#include <chrono>
#include <thread>

#include "model.cuh"
#include "trainer/distributed/single_process.h"

namespace {

TEST(GPT2, ActivationsMatchPyTorch) {
    const SafetensorsFile dump = reference("model");
    const auto model = reference_model<float>(dump);
    const double sum = model->evaluate(reference_batch(dump));
    // Roundings of fp32 through two blocks of sums of up to 192 terms stay well below 1e-5 of the norm.
    constexpr double bound = 1e-5;
    const auto expect = [&](const std::string& ours, int l, const std::string& theirs) {
        EXPECT_LE(relative_error(model->activation(ours, l), dump.floats("act." + theirs)), bound) << theirs;
    };
    expect("encoded", -1, "encoder");
    expect("lnf", -1, "ln_f");
    for (int l = 0; l < reference_config.L; l++) {
        for (const auto& [ours, theirs] :
             {std::pair{"ln1", "ln_1"}, std::pair{"qkv", "qkv"}, std::pair{"att", "attention"},
              std::pair{"residual2", "residual_attention"}, std::pair{"ln2", "ln_2"}, std::pair{"fch", "fc"},
              std::pair{"fch_gelu", "gelu"}, std::pair{"residual3", "residual_mlp"}})
            expect(ours, l, fmt::format("h.{}.{}", l, theirs));
    }
    expect_logits_and_losses(*model, dump, bound);
    EXPECT_NEAR(sum / (reference_B * reference_T), static_cast<double>(dump.floats("loss")[0]), 1e-5);
}

TEST(GPT2, GradientsMatchPyTorch) { expect_gradients<float>("model", {}, 1e-4); }
// From weights rounded to bf16, PyTorch in fp64: the difference is our own rounding of activations to 8 bits.
TEST(GPT2, Bf16GradientsMatchPyTorch) { expect_gradients<bfloat16>("model_bf16", {}, 2e-2); }

// On a GPU cuBLASLt's epilogue computes the GELU first, and our kernel computes it again: the last bit may
// differ.
TEST(GPT2, RecomputingGivesTheSameBits) {
    expect_recomputing_saves_memory("model", simt::is_gpu() ? 1e-6 : 0);
}

// 57 tokens in 2 to 57 chunks: whole ones, a shorter last one, one token each.
TEST(GPT2, TheHeadInChunksGivesTheSameLossesAndPyTorchsGradients) {
    const SafetensorsFile dump = reference("model");
    const OwnedBatch batch = reference_batch(dump),
                     shorter(1, 7, std::vector<int>(7, 5), std::vector<int>(7, 6));
    const auto whole = reference_model<float>(dump),
               evaluation = reference_model<float>(dump, {.training = false, .head_chunks = 3});
    whole->forward(batch);
    const std::vector<float> losses = whole->losses();
    whole->forward(shorter);
    const std::vector<float> shorter_losses = whole->losses();
    const auto expect_losses = [&](const Model<float>& model, const std::vector<float>& expected) {
        // cuBLASLt, and oneDNN without AVX-512, may choose another algorithm for fewer tokens: sums of 48
        // products in another order.
        EXPECT_LE(relative_error(model.losses(), expected), 1e-6);
    };
    size_t bytes = total_bytes(whole->memory_plan());
    for (const int chunks : {2, 3, 5, 57}) {
        SCOPED_TRACE(chunks);
        const auto model = reference_model<float>(dump, {.head_chunks = chunks});
        EXPECT_LT(total_bytes(model->memory_plan()), bytes);
        bytes = total_bytes(model->memory_plan());
        model->forward(batch);
        expect_losses(*model, losses);
        EXPECT_THROW(model->activation("logits"), Error);
        model->evaluate(shorter);
        expect_losses(*model, shorter_losses);
        expect_gradients<float>("model", {.head_chunks = chunks}, 1e-4);
        expect_gradients<bfloat16>("model_bf16", {.head_chunks = chunks}, 2e-2);
    }
    evaluation->evaluate(batch);
    expect_losses(*evaluation, losses);
}

// An evaluation between the micro-steps of a step must not change the gradients, whose computation now
// begins in forward.
TEST(GPT2, TheHeadInChunksAccumulatesOverMicroSteps) {
    const SafetensorsFile dump = reference("model");
    const OwnedBatch batch = reference_batch(dump);
    OptimizerOptions without_change = reference_adamw;
    without_change.lr = 0;
    const auto gradients = [&](int chunks, bool stale) {
        const auto model = reference_model<float>(dump, {.head_chunks = chunks});
        for (int step = 0; step < (stale ? 2 : 1); step++) {
            if (step > 0) model->update(without_change);
            for (int micro = 0; micro < 2; micro++) {
                model->forward(batch);
                model->backward();
                model->evaluate(batch);
            }
        }
        return gradients_of(*model);
    };
    const auto expected = gradients(1, false);
    for (const bool stale : {false, true}) {
        const auto chunked = gradients(4, stale);
        // Only the sums over tokens are rounded in another order: those of wte.
        for (size_t i = 0; i < expected.size(); i++)
            EXPECT_LE(relative_error(chunked[i], expected[i]), 1e-6) << i;
    }
}

TEST(GPT2, ARehearsalLeavesTheFirstStepAsItIs) {
    const SafetensorsFile dump = reference("model");
    const OwnedBatch batch = reference_batch(dump),
                     other(reference_B, reference_T, std::vector<int>(57, 5), std::vector<int>(57, 6));
    const auto step = [&](bool rehearse, int head_chunks) {
        const auto model = reference_model<float>(
            dump, {.total_batch = 2 * reference_B * reference_T, .head_chunks = head_chunks});
        if (rehearse) model->rehearse(other);
        for (int micro = 0; micro < 2; micro++) {
            model->forward(batch);
            model->backward();
        }
        const StepResult result = model->update(reference_adamw);
        return std::tuple(result.loss, result.grad_norm, gradients_of(*model), parameters_of(*model));
    };
    for (const int head_chunks : {1, 4}) EXPECT_EQ(step(true, head_chunks), step(false, head_chunks));
}

// A step's loss and gradients are means over its targets that are not ignored, over all micro-steps
// together, as in torch's cross_entropy.
TEST(GPT2, IgnoredTargetsDoNotCount) {
    const SafetensorsFile dump = reference("model");
    const std::vector<int> x = dump.ints("x"), y = dump.ints("y");
    constexpr int N = reference_B * reference_T;
    // Dividing by N or 2 N, and then weighting by 1 or 2, gives the same bits.
    const auto state_after = [&](bool with_ignored) {
        const auto model =
            reference_model<float>(dump, {.total_batch = static_cast<size_t>(with_ignored ? 2 * N : N)});
        StepResult result;
        for (int step = 0; step < 3; step++) {
            model->forward(OwnedBatch(reference_B, reference_T, x, y).of_step_with(with_ignored ? N : -1));
            model->backward();
            if (with_ignored) {
                model->forward(OwnedBatch(reference_B, reference_T, y, std::vector<int>(N, Batch::ignored))
                                   .of_step_with(N));
                model->backward();
            }
            result = model->update(reference_adamw);
            EXPECT_GT(result.grad_norm, 1.0f) << "clipped";
        }
        return std::tuple(result.loss, result.grad_norm, parameters_of(*model),
                          model->squared_norms().gradients);
    };
    EXPECT_EQ(state_after(true), state_after(false));

    // The gradients under two masks that complement each other add up to the gradient without a mask.
    std::vector<int> part[2] = {y, y};
    for (size_t i = 0; i < y.size(); i++) part[i * i % 7 < 3][i] = Batch::ignored;
    const auto whole = reference_model<float>(dump);
    whole->forward(OwnedBatch(reference_B, reference_T, x, y));
    whole->backward();
    double loss = 0;
    std::vector<std::vector<float>> sums(whole->table().tensors().size());
    for (const std::vector<int>& targets : part) {
        const auto model = reference_model<float>(dump);
        const auto count = std::count_if(targets.begin(), targets.end(),
                                         [](int target) { return target != Batch::ignored; });
        model->forward(OwnedBatch(reference_B, reference_T, x, targets).of_step_with(count));
        model->backward();
        for (size_t i = 0; i < sums.size(); i++) {
            const std::vector<float> gradient = model->gradient(model->table().tensors()[i]);
            sums[i].resize(gradient.size());
            for (size_t k = 0; k < gradient.size(); k++) sums[i][k] += gradient[k];
        }
        loss += static_cast<double>(model->update(reference_adamw).loss) * static_cast<double>(count) / N;
    }
    for (size_t i = 0; i < sums.size(); i++)
        EXPECT_LE(relative_error(sums[i], whole->gradient(whole->table().tensors()[i])), 1e-5)
            << whole->table().tensors()[i].name;
    EXPECT_NEAR(loss, static_cast<double>(whole->update(reference_adamw).loss), 1e-5);
}

// Weight decay and moments shrank the weights, and Adam counted the step. PyTorch's loss is NaN there.
template <class T>
void expect_a_step_without_targets_changes_nothing(Optimizer optimizer) {
    const SafetensorsFile dump = reference("model");
    const std::vector<int> x = dump.ints("x"), y = dump.ints("y"), none(y.size(), Batch::ignored);
    const auto state_after = [&](bool with_empty_step) {
        const auto model = reference_model<T>(dump, {.optimizer = optimizer, .momentum = true});
        const auto step = [&](const std::vector<int>& targets, int64_t count) {
            for (const bool last : {false, true}) {
                model->forward(OwnedBatch(reference_B, reference_T, x, targets).of_step_with(count));
                model->backward(last);
            }
            OptimizerOptions options = reference_adamw;
            options.momentum = 0.9;
            return model->update(options);
        };
        const int before = simt::checked ? 1 : 2;
        for (int i = 0; i < 2 * before; i++) {
            if (i == before && with_empty_step) {
                const StepResult result = step(none, 0);
                EXPECT_TRUE(std::isnan(result.loss) && std::isnan(result.grad_norm));
                EXPECT_FALSE(result.has_targets);
                EXPECT_EQ(result.skipped, "no target counts, because masks hide all of them");
                EXPECT_EQ(model->optimizer_step(), before);
            }
            EXPECT_EQ(step(y, 2 * static_cast<int64_t>(y.size())).skipped, "");
        }
        std::vector<std::vector<float>> state = parameters_of(*model);
        for (const std::string& buffer : model->optimizer_buffers())
            model->read_optimizer(buffer, state.emplace_back(model->table().elements()).data());
        return state;
    };
    EXPECT_EQ(state_after(true), state_after(false));
}
TEST(GPT2, AStepWithoutTargetsChangesNothing) {
    for (const Optimizer optimizer :
         {Optimizer::adamw, Optimizer::adam, Optimizer::sgd, Optimizer::rmsprop, Optimizer::muon}) {
        SCOPED_TRACE(static_cast<int>(optimizer));
        if (simt::checked && optimizer != Optimizer::adamw && optimizer != Optimizer::muon) continue;
        expect_a_step_without_targets_changes_nothing<float>(optimizer);
        expect_a_step_without_targets_changes_nothing<bfloat16>(optimizer);
    }
}

// Losses and norms may differ by these factors, final parameters by that share of their norm.
template <class T>
void expect_trajectory(double loss_bound, double norm_bound, double parameter_bound) {
    const Trajectory trajectory;
    const SafetensorsFile& dump = trajectory.dump;
    const auto model = reference_model<T>(reference("model"));
    for (size_t s = 0; s < trajectory.loss.size(); s++) {
        const StepResult result = train_step(*model, trajectory.at(static_cast<int>(s)));
        EXPECT_NEAR(result.loss / trajectory.loss[s], 1.0, loss_bound) << "step " << s;
        EXPECT_NEAR(result.grad_norm / trajectory.grad_norm[s], 1.0, norm_bound) << "step " << s;
    }
    for (const Tensor& tensor : model->table().tensors()) {
        if (!dump.contains("final." + tensor.name)) continue;
        std::vector<float> values = model->parameter(tensor);
        values.resize(tensor.unpadded_elements);
        EXPECT_LE(relative_error(values, dump.floats("final." + tensor.name)), parameter_bound)
            << tensor.name;
    }
}

TEST(GPT2, TenStepsFollowPyTorchsTrajectory) { expect_trajectory<float>(1e-5, 1e-4, 1e-4); }

// Rounding to bf16 moves a gradient by up to 2e-2 of its norm (Bf16GradientsMatchPyTorch), and so a norm; a
// loss is a mean over tokens, each moved by a few 2^-9 of its logits. Adam divides by the gradient's own
// size: where a gradient is near zero its step may be any of its ten times 1e-3.
TEST(GPT2, TenStepsInBf16StayNearPyTorchsTrajectory) { expect_trajectory<bfloat16>(2e-3, 2e-2, 2e-2); }

// The state of a model after some steps is loaded into a new one, which then continues with the same bits.
template <class T>
void expect_state_round_trip() {
    const auto trained = reference_model<T>(reference("model"), {.deterministic = true});
    const Trajectory trajectory;
    for (int s = 0; s < 3; s++) train_step(*trained, trajectory.at(s));
    EXPECT_EQ(trained->optimizer_step(), 3);

    Model<T> fresh(make_family<T>(reference_config), {.B = reference_B,
                                                      .T = reference_T,
                                                      .total_batch = reference_B * reference_T,
                                                      .deterministic = true,
                                                      .seed = 7});
    fresh.allocate();
    std::vector<float> host(fresh.table().elements());
    trained->read_masters(host.data());
    fresh.write_masters(host.data());
    for (const std::string& buffer : trained->optimizer_buffers()) {
        trained->read_optimizer(buffer, host.data());
        fresh.write_optimizer(buffer, host.data());
        for (const Tensor& t : fresh.table().tensors()) {
            std::fill(host.begin() + static_cast<std::ptrdiff_t>(t.offset),
                      host.begin() + static_cast<std::ptrdiff_t>(t.offset + t.elements), NAN);
        }
        fresh.read_optimizer(buffer, host.data());
        bool moved = false;
        for (const Tensor& t : fresh.table().tensors()) {
            for (size_t i = t.offset; i < t.offset + t.elements; i++) {
                ASSERT_TRUE(std::isfinite(host[i])) << buffer << " " << t.name;
                moved = moved || host[i] != 0.0f;
            }
        }
        EXPECT_TRUE(moved) << buffer;
    }
    fresh.set_optimizer_step(trained->optimizer_step());
    EXPECT_EQ(fresh.optimizer_step(), 3);
    for (int s = 3; s < 6; s++) {
        const StepResult expected = train_step(*trained, trajectory.at(s)),
                         result = train_step(fresh, trajectory.at(s));
        EXPECT_EQ(result.loss, expected.loss) << "step " << s;
        EXPECT_EQ(result.grad_norm, expected.grad_norm) << "step " << s;
    }
    EXPECT_EQ(parameters_of(fresh), parameters_of(*trained));
}
TEST(GPT2, StateMovesToAFreshModelBitForBit) { expect_state_round_trip<float>(); }
TEST(GPT2, Bf16StateMovesToAFreshModelBitForBit) { expect_state_round_trip<bfloat16>(); }

// A bf16 model computes with its masters rounded: masters that are rounded beforehand give the same
// logits. The masters keep the loaded values.
TEST(GPT2, Bf16ParametersAreTheMastersRounded) {
    const SafetensorsFile dump = reference("model");
    const auto model = reference_model<bfloat16>(dump), rounded = reference_model<bfloat16>(dump);
    const OwnedBatch batch = reference_batch(dump);
    const auto logits_of = [&](Model<bfloat16>& of) {
        of.evaluate(batch);
        return of.activation("logits");
    };
    std::vector<float> masters(model->table().elements());
    model->read_masters(masters.data());
    std::vector<float> changed = masters;
    for (const Tensor& t : model->table().tensors()) {
        for (size_t i = t.offset; i < t.offset + t.unpadded_elements; i++)
            changed[i] = 1.1f * masters[i] + 1e-3f;
    }
    std::vector<float> whole = changed;
    for (float& value : whole) value = static_cast<float>(bfloat16(value));
    const std::vector<float> before = logits_of(*model);
    model->write_masters(changed.data());
    rounded->write_masters(whole.data());
    EXPECT_EQ(logits_of(*model), logits_of(*rounded));
    EXPECT_NE(logits_of(*model), before);
    std::vector<float> kept(masters.size());
    model->read_masters(kept.data());
    for (const Tensor& t : model->table().tensors()) {
        for (size_t i = t.offset; i < t.offset + t.elements; i++)
            ASSERT_EQ(kept[i], changed[i]) << t.name << ": the masters are not rounded";
    }
}

TEST(GPT2, PaddedVocabularyStaysZero) {
    const SafetensorsFile dump = reference("model");
    const auto model = reference_model<bfloat16>(dump);
    const OwnedBatch batch = reference_batch(dump);
    for (int step = 0; step < 3; step++) train_step(*model, batch);
    const Tensor& wte = model->table().named("transformer.wte.weight");
    const std::vector<float> values = model->parameter(wte);
    for (size_t i = wte.unpadded_elements; i < values.size(); i++) ASSERT_EQ(values[i], 0.0f);
}

TEST(GPT2, NonFiniteGradientChangesNothing) {
    const SafetensorsFile dump = reference("model");
    const auto model = reference_model<float>(dump);
    const OwnedBatch batch = reference_batch(dump);
    // An infinite position embedding makes every gradient a NaN.
    const Tensor& wpe = model->table().named("transformer.wpe.weight");
    std::vector<float> broken = model->parameter(wpe);
    broken[5] = INFINITY;
    model->set_parameter(wpe, broken);
    const auto before = parameters_of(*model);
    EXPECT_FALSE(std::isfinite(train_step(*model, batch).grad_norm));
    EXPECT_EQ(parameters_of(*model), before);

    // Adam's count has not moved either: with the right weights the trajectory is PyTorch's from its first
    // step.
    model->set_parameter(wpe, dump.floats(wpe.name));
    const Trajectory trajectory;
    for (int step = 0; step < 3; step++)
        EXPECT_NEAR(train_step(*model, trajectory.at(step)).loss / trajectory.loss[step], 1.0, 1e-5);
}

// The next step begins before the host reads the last one's results: the bits are the same, also around a
// vetoed step and one that is not finite.
TEST(GPT2, ResultsReadAStepLateAreTheSame) {
    const SafetensorsFile dump = reference("model");
    const Trajectory trajectory;
    const auto prompt = reference_model<float>(dump), late = reference_model<float>(dump);
    const int steps = 6;
    const auto begin = [&](Model<float>& model, int step) {
        model.begin_step();
        model.forward(trajectory.at(step));
        model.backward();
        OptimizerOptions options = reference_adamw;
        options.lr *= step == 4 ? 1e30 : step + 1;
        model.begin_update(options, {.stop = step == 3, .writing = step != 3},
                           [&](const StepResult&) { return step == 1 ? "vetoed" : ""; });
    };
    std::vector<StepResult> expected, results;
    for (int step = 0; step < steps; step++) {
        begin(*prompt, step);
        expected.push_back(prompt->finish_update());
        begin(*late, step);
        if (step > 0) results.push_back(late->finish_update());
    }
    results.push_back(late->finish_update());
    EXPECT_EQ(expected[1].skipped, "vetoed");
    EXPECT_EQ(expected[5].skipped, "grad_norm is not finite");
    for (size_t s = 0; s < results.size(); s++) {
        SCOPED_TRACE(s);
        if (s < 5) {  // NaN is not equal to itself
            EXPECT_EQ(results[s].loss, expected[s].loss);
            EXPECT_EQ(results[s].grad_norm, expected[s].grad_norm);
        }
        EXPECT_EQ(results[s].skipped, expected[s].skipped);
        EXPECT_EQ(results[s].any.stop, s == 3);
        EXPECT_EQ(results[s].any.writing, s != 3);
    }
    EXPECT_EQ(parameters_of(*late), parameters_of(*prompt));
    EXPECT_EQ(late->optimizer_step(), prompt->optimizer_step());
}

TEST(GPT2, TimesOfStepsAddUp) {
    const SafetensorsFile dump = reference("model");
    const auto model = reference_model<float>(dump);
    const OwnedBatch batch = reference_batch(dump);
    using Clock = std::chrono::steady_clock;
    const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
    const auto since = [](Clock::time_point begin) {
        return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    };
    double ms = 0, inside = 0;
    wait();  // before the first step: not part of it
    const Clock::time_point before = Clock::now();
    Clock::time_point begun;
    for (int step = 0; step < 4; step++) {
        model->begin_step();
        if (step == 0) {
            parameters_of(*model);  // waits for the device: until then its clock may not have begun
            begun = Clock::now();
        }
        wait();  // for the step's data
        model->forward(batch);
        model->backward();
        inside = since(begun);
        model->begin_update(reference_adamw);
        if (step > 0) ms += model->finish_update().ms;
    }
    ms += model->finish_update().ms;
    // Within a millisecond: an event's clock is not the host's.
    EXPECT_GE(ms, inside - 1);
    EXPECT_LE(ms, since(before) + 1);
}

TEST(GPT2, AtMostTwoStepsAreUnderWay) {
    const auto model = reference_model<float>(reference("model"));
    const OwnedBatch batch = reference_batch(reference("model"));
    const auto begin = [&] {
        model->forward(batch);
        model->backward();
        model->begin_update(reference_adamw);
    };
    EXPECT_THROW(model->finish_update(), Error);
    begin();
    begin();
    EXPECT_THROW(begin(), Error);
    model->finish_update();
    model->finish_update();
    EXPECT_THROW(model->finish_update(), Error);
}

// A model in training generates from its parameters as they are, at every length, from a prompt and one token
// at a time.
TEST(GPT2, GeneratesBetweenTwoSteps) {
    const SafetensorsFile dump = reference("model");
    const auto model = reference_model<float>(dump, {.generated_tokens = reference_T});
    const std::vector<int> x = dump.ints("x");
    const std::vector<float> logits = dump.floats("logits");
    const auto expect = [&](int tokens) {
        const std::vector<float> ours = model->decoder().logits();
        const std::vector<float> expected(logits.begin() + (tokens - 1) * 131, logits.begin() + tokens * 131);
        EXPECT_LE(relative_error(std::vector(ours.begin(), ours.begin() + 131), expected), 1e-5) << tokens;
    };
    for (const int n : {1, 7, reference_T}) {
        model->decoder().prefill(std::vector<int>(x.begin(), x.begin() + n));
        expect(n);
        for (int t = n; t < reference_T; t++)
            model->decoder().step({x[static_cast<size_t>(t)]}), expect(t + 1);
    }
    EXPECT_THROW(reference_model<float>(dump)->decoder(), Error);
    EXPECT_THROW(reference_model<float>(dump, {.generated_tokens = reference_T + 1}), UsageError);
}

// Between two steps or two micro-steps, whatever a backward pass recomputes, and with an update just begun. A
// checked build, which takes long for each, tests Recompute::block alone, which recomputes activations too.
template <class T>
void expect_same_training_with_texts() {
    const SafetensorsFile dump = reference("model");
    const OwnedBatch batch = reference_batch(dump);
    for (const Recompute recompute : {Recompute::none, Recompute::activation, Recompute::block}) {
        if (simt::checked && recompute != Recompute::block) continue;
        const auto alone = reference_model<T>(dump, {.recompute = recompute}),
                   sampled = reference_model<T>(dump, {.generated_tokens = 5, .recompute = recompute});
        std::vector<float> texts;
        const auto generate = [&] {
            sampled->decoder().prefill({1, 2, 3});
            sampled->decoder().step({4});
            return sampled->decoder().logits()[0];
        };
        for (int s = 0; s < (simt::checked ? 2 : 3); s++) {
            for (const bool generates : {false, true}) {
                Model<T>& model = generates ? *sampled : *alone;
                for (const bool last : {false, true}) {
                    model.forward(batch);
                    model.backward(last);
                    if (generates) generate();
                }
                model.begin_update(reference_adamw);
                if (generates) texts.push_back(generate());
                model.finish_update();
                if (generates) { EXPECT_EQ(generate(), texts.back()); }
            }
            EXPECT_EQ(parameters_of(*sampled), parameters_of(*alone)) << s;
        }
        EXPECT_NE(texts[0], texts[1]);
        EXPECT_GT(total_bytes(sampled->memory_plan()), total_bytes(alone->memory_plan()));
    }
}
TEST(GPT2, TextsBetweenStepsChangeNothing) {
    expect_same_training_with_texts<float>();
    expect_same_training_with_texts<bfloat16>();
}

TEST(GPT2, EvaluationModelAgreesWithTrainingModel) {
    const SafetensorsFile dump = reference("model");
    const OwnedBatch batch = reference_batch(dump);
    const auto training = reference_model<float>(dump),
               evaluation = reference_model<float>(dump, {.training = false});
    EXPECT_EQ(training->evaluate(batch), evaluation->evaluate(batch));
    EXPECT_LT(total_bytes(evaluation->memory_plan()), total_bytes(training->memory_plan()));
    EXPECT_THROW(evaluation->forward(batch), Error);
}

TEST(GPT2, WeightsAreAFunctionOfTheSeed) {
    const auto weights = [](uint64_t seed) {
        Model<float> model(make_family<float>(reference_config),
                           {.B = 1, .T = 4, .total_batch = 4, .seed = seed});
        model.allocate();
        return model.parameter(model.table().named("transformer.h.1.mlp.c_proj.weight"));
    };
    const std::vector<float> once = weights(1);
    EXPECT_EQ(weights(1), once);
    EXPECT_NE(weights(2), once);
}

TEST(GPT2, WeightsAreDrawnAsOpenAiDrewThem) {
    Model<float> model(make_family<float>(reference_config), {.B = 1, .T = 4, .total_batch = 4, .seed = 3});
    model.allocate();
    const double residual = 0.02 / std::sqrt(2.0 * reference_config.L);  // 2 L of these add up
    for (const Tensor& tensor : model.table().tensors()) {
        const std::vector<float> all = model.parameter(tensor);
        const std::vector<float> values(all.begin(),
                                        all.begin() + static_cast<std::ptrdiff_t>(tensor.unpadded_elements));
        if (tensor.shape.size() == 1) {  // biases, and the weights of layer norms
            const bool weight = tensor.init.value == 1;
            EXPECT_TRUE(std::all_of(values.begin(), values.end(), [&](float value) {
                return value == (weight ? 1 : 0);
            })) << tensor.name;
            EXPECT_EQ(weight,
                      tensor.name.find("ln_") != std::string::npos && tensor.name.ends_with(".weight"))
                << tensor.name;
            continue;
        }
        double sum = 0, squares = 0;
        for (const float w : values) sum += w, squares += static_cast<double>(w) * static_cast<double>(w);
        // Four standard errors: that of a mean of n draws is 1 / sqrt(n) of the deviation, that of the
        // deviation 1 / sqrt(2 n).
        const double n = static_cast<double>(values.size()),
                     expected = tensor.name.ends_with("c_proj.weight") ? residual : 0.02;
        EXPECT_NEAR(sum / n, 0, 4 * expected / std::sqrt(n)) << tensor.name;
        EXPECT_NEAR(std::sqrt(squares / n), expected, 4 * expected / std::sqrt(2 * n)) << tensor.name;
    }
}

// Two processes, of which the other never answers: nothing may wait for it after an error.
struct DeafOther : SingleProcess {
    DeafOther() : SingleProcess(Process{0, 2, 0, 2, "", "", ""}) {}
    void wait(Ticket, stream_t) override { waits++; }
    void abort_operations() override { aborts++; }
    int waits = 0, aborts = 0;
};
TEST(GPT2, AfterAnErrorItsOperationsAreAbortedInsteadOfWaitedFor) {
    DeafOther all;
    const auto train = [&](bool fails) {
        Model<float> model(make_family<float>(reference_config),
                           {.B = 1, .T = 4, .total_batch = 8, .rank = 0, .world_size = 2});
        model.allocate(&all);
        const std::vector<int> tokens(4, 1);
        model.forward(OwnedBatch(1, 4, tokens, tokens));
        model.backward(true);  // begins the all-reduce of gradients
        all.waits = 0;
        if (fails) throw Error("an error of this process");
    };
    train(false);
    EXPECT_EQ(all.waits, 1);
    EXPECT_EQ(all.aborts, 0);
    EXPECT_THROW(train(true), Error);
    EXPECT_EQ(all.waits, 0);
    EXPECT_EQ(all.aborts, 1);
}

TEST(GPT2, ImpossibleShapesAreRefused) {
    const auto make = [](ModelConfig config, int B, int T) {
        Model<float> model(make_family<float>(config), {.B = B, .T = T, .total_batch = 1});
    };
    // 48 channels, 7 heads: llm.c trains NH = 7 with C = 768 without an error
    EXPECT_THROW(make({131, 32, 2, 7, 48}, 1, 8), UsageError);
    EXPECT_THROW(make({131, 32, 2, 1, 144}, 1, 8), UsageError);  // a head of 144
    EXPECT_THROW(make({131, 32, 2, 3, 48}, 1, 33), UsageError);  // longer than the context
    EXPECT_THROW(make({131, 32, 2, 3, 48}, 0, 8), UsageError);
    EXPECT_THROW(make({0, 32, 2, 3, 48}, 1, 8), UsageError);
    const auto chunks = [](int count) {
        Model<float> model(make_family<float>(reference_config),
                           {.B = 2, .T = 4, .total_batch = 8, .head_chunks = count});
    };
    EXPECT_NO_THROW(chunks(8));
    EXPECT_THROW(chunks(9), UsageError);
    EXPECT_THROW(chunks(0), UsageError);
}

}  // namespace
