// The scaling model against its own formulas, against published measurements, and as --plan prints it.
#include <gtest/gtest.h>

#include <sstream>

#include "kernels/simt/target.h"
#include "program.h"
#include "system/error.h"
#include "trainer/model/tensor_table.h"
#include "trainer/run/options.h"
#include "trainer/run/scaling.h"

namespace {

const Link nvlink3 = parse_link("--link", "nvlink3"), hdr8 = parse_link("--network", "hdr8");

StepShape gpt2_124M() {
    return {.config = GPT2Config::named("gpt2"),
            .seq_len = 1024,
            .most_sequences = 64,
            .total_batch = 524288,
            .gradients = Collective::fp32,
            .parameters = Collective::bf16,
            .tokens_per_second = 218e3};
}

}  // namespace

TEST(Scaling, ARingTakesItsStepsAndItsBytes) {
    const Machines machines{8, {100e9, 3e-6}, {10e9, 9e-6}};
    // Within a machine: N - 1 steps, which together send (N - 1) / N of the bytes.
    EXPECT_NEAR(collective_seconds(Collective::reduce_scatter, 800'000'000, 8, machines),
                7 * 3e-6 + 0.7 / 100, 1e-12);
    EXPECT_NEAR(collective_seconds(Collective::all_gather, 800'000'000, 4, machines), 3 * 3e-6 + 0.6 / 100,
                1e-12);
    EXPECT_NEAR(collective_seconds(Collective::all_reduce, 800'000'000, 8, machines),
                2 * (7 * 3e-6 + 0.7 / 100), 1e-12);
    // Two machines: one of the 15 steps crosses, and the slowest link sets the pace.
    EXPECT_NEAR(collective_seconds(Collective::reduce_scatter, 1'600'000'000, 16, machines),
                14 * 3e-6 + 9e-6 + 1.5 / 10, 1e-12);
    // One process a machine: only the network.
    EXPECT_NEAR(collective_seconds(Collective::reduce_scatter, 400, 4, {1, {100e9, 3e-6}, {10e9, 9e-6}}),
                3 * 9e-6 + 300 / 10e9, 1e-12);
    EXPECT_EQ(collective_seconds(Collective::all_reduce, 800, 1, machines), 0);
}

TEST(Scaling, ManyMachinesReduceSmallMessagesByATree) {
    const Machines machines{8, nvlink3, hdr8};
    const double ring_latency = 2 * (1023 - 127) * 3.4e-6 + 2 * 127 * 9.6e-6;
    EXPECT_LT(collective_seconds(Collective::all_reduce, 1000, 1024, machines), ring_latency / 5);
    // A reduce-scatter has no tree.
    EXPECT_GT(collective_seconds(Collective::reduce_scatter, 1000, 1024, machines), ring_latency / 2);
}

// The model must agree with others' measurements of NCCL alone within 15 %.
TEST(Scaling, AgreesWithPublishedMeasurementsOfNccl) {
    // 24 A100 in 3 machines of 4 x 200 Gb/s (NVIDIA/nccl-tests issue 119): 96 GB/s of bus bandwidth for large
    // messages.
    const Machines hdr4{8, nvlink3, {4 * 24e9, 9.6e-6}};
    const double bytes = 128 << 20, seconds = collective_seconds(Collective::all_reduce, 128 << 20, 24, hdr4);
    EXPECT_NEAR(2 * 23.0 / 24 * bytes / seconds, 96e9, 0.15 * 96e9);
    // 10 Gb/s are at most 1.25 GB/s.
    EXPECT_LT(2 * 0.5 * 1e9 /
                  collective_seconds(Collective::all_reduce, 1'000'000'000, 2,
                                     {1, nvlink3, parse_link("", "ethernet10")}),
              1.25e9);
}

TEST(Scaling, BytesOfAStepAreThoseOfTheBuckets) {
    StepShape step = gpt2_124M();
    for (const size_t processes : {2, 3, 8, 64}) {
        step.total_batch = 1024 * 64 * processes;
        const size_t elements = TensorTable(step.config, static_cast<int>(processes)).elements();
        if (!simt::checked) {  // whose tables have gaps besides the padding
            EXPECT_LE(static_cast<double>(elements), 1.002 * 124'439'808);
        }
        step.zero = 0;
        const StepEstimate all_reduce =
            estimate_step(step, static_cast<int>(processes), {8, nvlink3, hdr8}).value();
        EXPECT_EQ(all_reduce.gradient_bytes, 2 * (processes - 1) * (elements / processes) * sizeof(float));
        EXPECT_EQ(all_reduce.parameter_bytes, 0);
        step.zero = 1;
        const StepEstimate sharded =
            estimate_step(step, static_cast<int>(processes), {8, nvlink3, hdr8}).value();
        EXPECT_EQ(2 * sharded.gradient_bytes, all_reduce.gradient_bytes);
        EXPECT_EQ(2 * sharded.parameter_bytes, sharded.gradient_bytes);  // bf16 and fp32
    }
}

TEST(Scaling, AStepAddsUpItsBucketsAndFourNumbers) {
    const StepShape step = gpt2_124M();
    const Machines machines{2, {1e6, 0}, hdr8};
    const TensorTable table(step.config, 2);
    // loss, gradient norm and two flags
    double expected = collective_seconds(Collective::all_reduce, 4 * sizeof(float), 2, machines);
    for (const Bucket& b : table.buckets())
        expected += collective_seconds(Collective::all_reduce, b.elements * sizeof(float), 2, machines);
    EXPECT_NEAR(estimate_step(step, 2, machines).value().communication, expected, 1e-6);
}

// Otherwise the latency of a ring through a thousand processes would be paid every few MiB.
TEST(Scaling, ManyProcessesCommunicateWholeLayers) {
    const GPT2Config xl = GPT2Config::named("gpt2-xl");
    EXPECT_GT(TensorTable(xl, 8).buckets().size(), 3 * 48);
    EXPECT_EQ(TensorTable(xl, 1024).buckets().size(), 48 + 2);
}

TEST(Scaling, TheStepIsSharedAndWhatBackwardHidesIsNotLost) {
    const StepShape step = gpt2_124M();
    const Machines machines{8, nvlink3, hdr8};
    const StepEstimate alone = estimate_step(step, 1, machines).value();
    EXPECT_EQ(alone.sequences, 64);
    EXPECT_EQ(alone.micro_steps, 8);
    EXPECT_EQ(alone.communication, 0);
    EXPECT_NEAR(alone.compute, 524288 / 218e3, 1e-9);
    const StepEstimate eight = estimate_step(step, 8, machines).value();
    EXPECT_EQ(eight.micro_steps, 1);
    EXPECT_NEAR(eight.compute, alone.compute / 8, 1e-9);
    // The embeddings, 39.4 of 124.4 million parameters, are complete at the very end. Their communication
    // is exposed, and little else: they travel in pieces, each with a latency of its own.
    const double embeddings = (50304 + 1024) * 768 / 124.475904e6;
    EXPECT_NEAR(eight.exposed / eight.communication, embeddings, 0.08);
    // ZeRO-1 sends half as much before the update, and a quarter after it (bf16), during the next forward
    // pass.
    StepShape sharded = step;
    sharded.zero = 1;
    const StepEstimate zero = estimate_step(sharded, 8, machines).value();
    EXPECT_NEAR(zero.exposed, 0.75 * eight.exposed, 0.1 * eight.exposed);
    EXPECT_NEAR(zero.communication, 0.75 * eight.communication, 0.1 * eight.communication);
    // On slow links nearly all communication is exposed; only the part that ends before backward is hidden.
    const StepEstimate slow = estimate_step(step, 8, {8, {0.1e9, 0}, hdr8}).value();
    EXPECT_GT(slow.exposed, 0.9 * slow.communication);
    EXPECT_GT(slow.lost(), 0.9);
    // 512 sequences do not divide among 3 processes, and not among 1024.
    EXPECT_FALSE(estimate_step(step, 3, machines));
    EXPECT_FALSE(estimate_step(step, 1024, machines));
    EXPECT_EQ(estimate_step(step, 512, machines).value().sequences, 1);
}

// llm.c: 8 A100 train 10 billion tokens in about 90 minutes, 8 H100 the 1558M model's 32000 steps of 2^20
// tokens in 24 hours.
TEST(Scaling, AgreesWithThePublishedRunsOfEightGpus) {
    const StepEstimate small = estimate_step(gpt2_124M(), 8, {8, nvlink3, hdr8}).value();
    EXPECT_NEAR(19073 * small.seconds() / 60, 90, 8);
    StepShape large = gpt2_124M();
    large.config = GPT2Config::named("gpt2-xl");
    large.total_batch = 1 << 20;
    large.most_sequences = 16;
    large.zero = 1;
    large.tokens_per_second = 48e3;
    const StepEstimate xl = estimate_step(large, 8, {8, parse_link("", "nvlink4"), hdr8}).value();
    EXPECT_NEAR(32000 * xl.seconds() / 3600, 24, 1);
    EXPECT_LT(xl.lost(), 0.02);
}

TEST(Scaling, AFitFindsTheLinkThatMadeTheTimes) {
    const Link link{12e9, 20e-6};
    for (const int processes : {2, 8}) {
        std::vector<CommunicationSample> samples;
        for (const auto kind : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
            for (size_t bytes = 4096; bytes <= size_t{512} << 20; bytes *= 4) {
                const double noise = bytes % 3 == 1 ? 1.1 : 0.9;
                samples.push_back(
                    {kind, bytes,
                     noise * collective_seconds(kind, bytes, processes, {processes, link, link})});
            }
        }
        const Link fit = fit_link(samples, processes);
        EXPECT_NEAR(fit.bytes_per_second, link.bytes_per_second, 0.15 * link.bytes_per_second);
        EXPECT_NEAR(fit.latency, link.latency, 0.15 * link.latency);
    }
    // Times without any latency, and too few of them.
    EXPECT_EQ(fit_link({{Collective::all_gather, 2000, 1e-6},
                        {Collective::all_gather, 4000, 2e-6},
                        {Collective::all_gather, 1 << 20, 1e-2}},
                       2)
                  .latency,
              0);
    EXPECT_THROW(fit_link({{Collective::all_gather, 2000, 1e-6}}, 2), Error);
}

// Rounding turned it into a latency of half a millisecond, or another bandwidth.
TEST(Scaling, AFitOfOneSizeHasNoLatency) {
    constexpr size_t bytes = 148140;  // not a power of two, whose multiples are exact
    for (int i = 0; i < 100; i++) {
        const double seconds = 1e-3 + i * 1e-6;
        const Link fit = fit_link(
            {{Collective::all_reduce, bytes, 2 * seconds}, {Collective::all_gather, bytes, 1.1 * seconds}},
            3);
        EXPECT_EQ(fit.latency, 0);
        EXPECT_NEAR(fit.bytes_per_second, bytes * 2.0 / 3 / (1.05 * seconds), 0.06 * fit.bytes_per_second);
    }
}

// huggingface/transformers issue 9371: the additional milliseconds per step of DistributedDataParallel on
// two GPUs compared with one, for GPT-2 of three sizes, without and with NVLink. The fit to all sizes
// explains each: time is proportional to bytes.
TEST(Scaling, ExplainsThePublishedStepsOfGpt2OnTwoGpus) {
    const size_t parameters[] = {124'439'808, 354'823'168, 774'030'080};
    const double by_pcie[] = {0.10119, 0.25151, 0.51460}, by_nvlink[] = {0.01878, 0.04373, 0.08247};
    for (const auto& seconds : {by_pcie, by_nvlink}) {
        std::vector<CommunicationSample> samples;
        for (int i = 0; i < 3; i++)
            samples.push_back({Collective::all_reduce, 4 * parameters[i], seconds[i]});
        const Link link = fit_link(samples, 2);
        for (const CommunicationSample& s : samples)
            EXPECT_NEAR(collective_seconds(s.kind, s.bytes, 2, {2, link, link}), s.seconds, 0.05 * s.seconds);
    }
}

TEST(Scaling, LinksAreNamedOrGivenAsNumbers) {
    EXPECT_EQ(nvlink3.bytes_per_second, 235e9);
    const Link own = parse_link("--link", "12.5,4");
    EXPECT_EQ(own.bytes_per_second, 12.5e9);
    EXPECT_DOUBLE_EQ(own.latency, 4e-6);
    for (const char* wrong :
         {"", "12", "12,", "12,4,", "12,4us", "0,4", "-1,4", "nan,4", "nvlink", "1e300,1", "12,-1"}) {
        EXPECT_THROW(parse_link("--link", wrong), UsageError) << wrong;
    }
}

TEST(Scaling, ThePlanShowsATableForMachinesThatAreNotThere) {
    const ProgramResult result = run_program(TRAIN_PROGRAM,
                                             "--model gpt2 --seq-len 1024 --batch-size auto --total-batch "
                                             "524288 --dtype bf16 --plan --device-memory 40G "
                                             "--world-size 64 --tokens-per-second 218000");
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_NE(result.output.find("step: 524288 tokens = 8 x 1024 x 64 processes x 1 micro-step"),
              std::string::npos)
        << result.output;
    EXPECT_NE(result.output.find("memory plan of a process"), std::string::npos);
    std::vector<int> processes;
    std::istringstream lines(result.output);
    for (std::string line; std::getline(lines, line);) {
        if (line.find(" seq. ") != std::string::npos) processes.push_back(std::stoi(line));
    }
    EXPECT_EQ(processes, std::vector<int>({1, 2, 4, 8, 16, 32, 64})) << result.output;
    // The number between two texts.
    const auto number = [](const ProgramResult& plan, const std::string& before, const std::string& after) {
        const size_t begin = plan.output.find(before) + before.size();
        size_t used = 0;
        const double value = std::stod(plan.output.substr(begin), &used);
        EXPECT_TRUE(plan.output.find(before) != std::string::npos &&
                    plan.output.substr(begin + used).starts_with(after))
            << plan.output;
        return value;
    };
    // The options of communication matter: a reduce-scatter of bf16 is a quarter of an all-reduce of fp32.
    const std::string of_gradients = "each of 64 processes sends and receives in a step ";
    const ProgramResult sharded = run_program(TRAIN_PROGRAM,
                                              "--model gpt2 --batch-size 8 --total-batch 524288 --dtype bf16 "
                                              "--plan --device-memory 40G --world-size 64 "
                                              "--zero 1 --reduce-dtype bf16");
    EXPECT_NEAR(number(result, of_gradients, " MiB of gradients (fp32, all-reduce)\n"),
                4 * number(sharded, of_gradients, " MiB of gradients (bf16, reduce-scatter) and "), 0.3);
    EXPECT_GT(number(sharded, "(bf16, reduce-scatter) and ", " MiB of parameters (bf16, all-gather)"), 0);
    // ZeRO-1 divides the optimizer's state, to the padding of the parts.
    const std::string state = "optimizer state (fp32)";
    EXPECT_NEAR(number(sharded, state, " MiB"), number(result, state, " MiB") / 64, 0.1);
    // --device names the GPU whose peak decides the speed; the same speed scales.
    const std::string h100 =
        "--model gpt2 --batch-size 64 --total-batch 524288 --dtype bf16 --steps 19073 --plan "
        "--device-memory 79G --device H100";
    const ProgramResult alone = run_program(TRAIN_PROGRAM, h100);
    const double speed = 0.38 * 989.4e12 / (6.0 * 124439808 + 6 * 12 * 768 * 1024);
    EXPECT_NEAR(number(alone, "run: 19073 steps, 10.0 billion tokens\ntime: ", " hours at "),
                19073 * 524288.0 / speed / 3600, 0.05);
    EXPECT_NEAR(
        number(alone, " hours at ", " tokens/s (an estimate, not measured: 38 % of H100's 989 TFLOP/s)"),
        speed, 0.5);
    const ProgramResult eight = run_program(TRAIN_PROGRAM, h100 + " --world-size 8");
    EXPECT_NEAR(number(eight, "s at ", " tokens/s of 8 processes ("), 8 * speed, 0.5);
    EXPECT_NEAR(number(eight, "nothing is measured): ", " tokens/s a process"), speed, 0.5);
    // Without --world-size the plan is unchanged.
    EXPECT_EQ(run_program(TRAIN_PROGRAM, "--plan --device-memory 1G").output.find("scaling"),
              std::string::npos);
}

TEST(Scaling, OptionsOfThePlanAreRefusedWithoutIt) {
    const auto refusal = [](const std::string& arguments) {
        const ProgramResult result = run_program(TRAIN_PROGRAM, arguments);
        EXPECT_EQ(result.exit_code, 2);
        EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1);
        return result.errors;
    };
    EXPECT_NE(refusal("--world-size 8")
                  .find("--world-size is for --plan only; the number of processes that train is set by their "
                        "launcher, such as mpirun -np 8"),
              std::string::npos);
    EXPECT_NE(refusal("--link pcie4").find("--link is for --plan only"), std::string::npos);
    EXPECT_NE(refusal("--plan --world-size 0").find("--world-size"), std::string::npos);
    EXPECT_NE(refusal("--plan --world-size 8 --total-batch 768")
                  .find("is not a multiple of a micro-step's 12 x 64 x 8 processes = 6144 tokens"),
              std::string::npos);
    EXPECT_NE(refusal("--plan --world-size 5 --batch-size auto --total-batch 768")
                  .find("12 sequences of a step do not divide among 5 processes"),
              std::string::npos);
    EXPECT_NE(refusal("--plan --world-size 8 --network fast").find("--network fast; expected one of"),
              std::string::npos);
}
