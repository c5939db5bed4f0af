// The training program with other optimizers, vetoed outliers and norms by layer: its output and its errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/simt/host_device.h"
#include "metrics_lines.h"
#include "program.h"
#include "trainer/run/outlier_detector.h"

namespace {

const std::string tiny =
    "--layers 2 --heads 1 --channels 8 --context 8 --warmup 2 --val-every 0 --sample-every 0 ";

ProgramResult train(const std::string& arguments) {
    return run_program(TRAIN_PROGRAM, tiny + arguments, "cd /; export OMP_NUM_THREADS=1");
}

TEST(WatchProgram, OutliersAreLeftOutAndWrittenDown) {
    if (simt::checked)
        GTEST_SKIP() << "a window of 128 steps takes minutes in checked builds; its parts are tested there "
                        "by themselves";
    const TemporaryFolder folder;
    const ProgramResult result = train(
        "--steps 200 --batch-size 1 --lr 1e-6 --skip-loss-z 1 --skip-norm-z 1.5 --out " + folder / "run");
    ASSERT_TRUE(succeeded(result));
    const auto steps = metrics_of(folder / "run", "train"), skipped = metrics_of(folder / "run", "skipped");
    ASSERT_EQ(steps.size(), 200u);
    // The program's decisions follow from the losses and norms that it wrote.
    OutlierDetector detector(1, 1.5);
    std::vector<nlohmann::json> expected;
    for (const nlohmann::json& step : steps) {
        const auto loss = static_cast<float>(step.at("loss").get<double>()),
                   norm = static_cast<float>(step.at("grad_norm").get<double>());
        const std::string reason = detector.judge(loss, norm);
        if (!reason.empty())
            expected.push_back({{"kind", "skipped"},
                                {"step", step.at("step")},
                                {"loss", step.at("loss")},
                                {"grad_norm", step.at("grad_norm")},
                                {"reason", reason}});
    }
    EXPECT_GT(expected.size(), 3u);
    EXPECT_EQ(skipped, expected);
    EXPECT_TRUE(
        says(result.output, skipped.at(0).at("reason").get<std::string>() + "; the update was skipped"));
}

TEST(WatchProgram, WatchingDoesNotDisturbTraining) {
    const TemporaryFolder folder;
    // otherwise two runs on a GPU may choose other algorithms
    const std::string options = "--deterministic --batch-size 1 --steps 10 ";
    ASSERT_TRUE(succeeded(train(options + "--out " + folder / "plain")));
    ASSERT_TRUE(
        succeeded(train(options + "--skip-loss-z 9 --log-layer-norms 3 --out " + folder / "watched")));
    const auto plain = metrics_of(folder / "plain", "train"),
               watched = metrics_of(folder / "watched", "train");
    ASSERT_EQ(plain.size(), 10u);
    for (size_t i = 0; i < 10; i++) {
        EXPECT_EQ(watched[i].at("loss"), plain[i].at("loss"));
        EXPECT_EQ(watched[i].at("grad_norm"), plain[i].at("grad_norm"));
    }
    EXPECT_TRUE(metrics_of(folder / "plain", "layer_norms").empty());
    const auto norms = metrics_of(folder / "watched", "layer_norms");
    ASSERT_EQ(norms.size(), 3u);
    for (size_t i = 0; i < norms.size(); i++) {
        const size_t step = 3 * (i + 1);
        EXPECT_EQ(norms[i].at("step"), step);
        for (const char* map : {"grad", "grad_by_kind"}) {
            double squares = 0;
            for (const auto& norm : norms[i].at(map)) squares += norm.get<double>() * norm.get<double>();
            EXPECT_NEAR(std::sqrt(squares) / watched[step - 1].at("grad_norm").get<double>(), 1.0, 1e-6)
                << map;
        }
        for (const char* map : {"grad", "weight"}) {
            for (const char* layer : {"wte", "wpe", "h.0", "h.1", "ln_f"})
                EXPECT_TRUE(norms[i].at(map).at(layer).is_number()) << layer;
            EXPECT_EQ(norms[i].at(map).size(), 5u);
        }
    }
}

TEST(WatchProgram, EveryOptimizerTrainsAndIsWrittenDown) {
    const TemporaryFolder folder;
    const std::pair<std::string, double> runs[] = {{"adam", 1e-2},
                                                   {"sgd --momentum 0.9 --nesterov", 0.3},
                                                   {"rmsprop --beta2 0.95", 1e-2},
                                                   {"rmsprop --momentum 0.5", 3e-3}};
    int number = 0;
    for (const auto& [optimizer, lr] : runs) {
        const std::string out = folder / std::to_string(number++);
        ASSERT_TRUE(
            succeeded(train("--dtype bf16 --batch-size 8 --steps " + std::string(simt::checked ? "3" : "80") +
                            fmt::format(" --lr {} --out {} --optimizer {}", lr, out, optimizer))));
        const auto steps = metrics_of(out, "train");
        // three steps only show that they run
        const double fallen = simt::checked ? -INFINITY : 1;
        EXPECT_LT(steps.back().at("loss").get<double>(), steps.front().at("loss").get<double>() - fallen)
            << optimizer;
        const nlohmann::json options = metrics_of(out, "run").at(0).at("options");
        EXPECT_EQ(options.at("optimizer"), optimizer.substr(0, optimizer.find(' ')));
        EXPECT_EQ(options.at("nesterov"), optimizer.find("nesterov") != std::string::npos);
        EXPECT_EQ(options.at("weight-decay"), 0.0);  // only AdamW decays by default
    }
}

// The optimizer's buffers, its count and the detector's window are restored from the checkpoint.
TEST(WatchProgram, AResumedRunGoesOnAsItWouldHave) {
    if (simt::checked)
        GTEST_SKIP() << "a window of 128 steps takes minutes in checked builds; its parts are tested there "
                        "by themselves";
    for (const std::string optimizer : {"sgd", "sgd --momentum 0.9", "rmsprop --momentum 0.5", "adam"}) {
        const TemporaryFolder folder;
        const std::string options =
            "--steps 145 --checkpoint-every 135 --batch-size 1 --lr 1e-6 --skip-loss-z 1 --skip-norm-z 0.5 "
            "--log-layer-norms 5 "
            "--optimizer " +
            optimizer + " --out ";
        ASSERT_TRUE(succeeded(train(options + folder / "whole")));
        const ProgramResult resumed =
            train(options + folder / "resumed" + " --resume " + folder / "whole/checkpoints/step_00000135");
        ASSERT_TRUE(succeeded(resumed));
        for (const char* file : {"model.safetensors", "optimizer_0000.safetensors"}) {
            const std::string path = std::string("/checkpoints/step_00000145/") + file;
            EXPECT_TRUE(read_file(folder / "whole" + path) == read_file(folder / "resumed" + path))
                << optimizer << ": " << file;
        }
        for (const char* kind : {"skipped", "layer_norms"}) {
            const auto lines = metrics_of(folder / "whole", kind);
            EXPECT_EQ(metrics_of(folder / "resumed", kind), lines) << optimizer;
            EXPECT_GT(lines.back().at("step"), 135) << kind;
        }
    }
}

TEST(WatchProgram, WhatTheOptimizerDoesNotKnowIsRefused) {
    for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
             {"--optimizer sgd --beta1 0.9", "--beta1 has no effect with --optimizer sgd; leave it out"},
             {"--optimizer sgd --eps 1e-8", "--eps has no effect with --optimizer sgd; leave it out"},
             {"--optimizer rmsprop --beta1 0.9",
              "--beta1 has no effect with --optimizer rmsprop; leave it out"},
             {"--momentum 0.9", "--momentum has no effect with --optimizer adamw; leave it out"},
             {"--optimizer rmsprop --momentum 0.9 --nesterov",
              "--nesterov has no effect with --optimizer rmsprop; leave it out"},
             {"--optimizer sgd --nesterov", "--nesterov needs a --momentum above 0, such as 0.9"},
             {"--optimizer lion", "--optimizer lion; expected adam|adamw|muon|rmsprop|sgd\n"},
             {"--skip-loss-z -1", "--skip-loss-z -1; expected a number from 0 to 1e+30\n"},
             {"--skip-norm-z nan", "--skip-norm-z nan; expected a number from 0 to 1e+30\n"},
             {"--log-layer-norms -1", "--log-layer-norms"}}) {
        EXPECT_TRUE(is_refused(train(arguments), {message})) << arguments;
    }
}

}  // namespace
