// train_gpt2 under its launchers: a real mpirun; the environments of torchrun, srun and SLURM's batch
// scripts.
#include <gtest/gtest.h>

#include <algorithm>

#include "metrics_lines.h"
#include "program.h"
#include "trainer/distributed/communicator.h"

namespace {

const std::string small =
    "--steps 5 --total-batch 768 --seq-len 32 --layers 1 --heads 2 --channels 32 --val-every 0 "
    "--sample-every 0 --checkpoint-every 0";
const std::string batch_script =
    "export SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0; cd /";

ProgramResult mpirun(const std::string& arguments, const std::string& before = "cd /") {
    return run_program(PROJECT_ROOT "/test/mpi/mpirun.sh", arguments, "export OMP_NUM_THREADS=1; " + before);
}

std::string processes(int count, const std::string& options) {
    return fmt::format("-np {} '{}' {} {}", count, TRAIN_PROGRAM, small, options);
}

std::string torchrun(int rank, int world_size) {
    return fmt::format(
        "export RANK={0} LOCAL_RANK={0} WORLD_SIZE={1} LOCAL_WORLD_SIZE={1} MASTER_ADDR=127.0.0.1 "
        "MASTER_PORT=29500; cd /",
        rank, world_size);
}

size_t occurrences(const std::string& text, const std::string& part) {
    size_t count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) count++;
    return count;
}

class LaunchProgram : public testing::Test {
protected:
    void SetUp() override {
        if (!communicator_library().starts_with("MPI")) GTEST_SKIP() << "a build without MPI";
    }
    std::string run(const std::string& name) const { return folder_ / name; }

    void expect_same_losses(const std::string& a, const std::string& b) const {
        const auto expected = metrics_of(run(a), "train"), actual = metrics_of(run(b), "train");
        ASSERT_EQ(expected.size(), 5u);
        ASSERT_EQ(actual.size(), 5u);
        for (size_t i = 0; i < expected.size(); i++) {
            const double loss = expected[i]["loss"], norm = expected[i]["grad_norm"];
            EXPECT_NEAR(actual[i]["loss"], loss, 1e-5 * loss) << "step " << i + 1;
            EXPECT_NEAR(actual[i]["grad_norm"], norm, 1e-3 * norm) << "step " << i + 1;
            EXPECT_EQ(actual[i]["tokens"], expected[i]["tokens"]);
        }
    }

private:
    TemporaryFolder folder_;
};

TEST_F(LaunchProgram, ProcessesUnderMpirunTrainAsOneAndOneOfThemSpeaks) {
    ASSERT_EQ(
        run_program(TRAIN_PROGRAM, fmt::format("{} --batch-size 12 --out '{}'", small, run("one"))).exit_code,
        0);
    for (const int count : {1, 2, 3}) {
        const std::string name = fmt::format("mpirun{}", count);
        const ProgramResult result =
            mpirun(processes(count, fmt::format("--batch-size 4 --out '{}'", run(name))));
        EXPECT_EQ(result.exit_code, 0) << result.errors;
        EXPECT_EQ(occurrences(result.output, "writing to"), 1u) << result.output;
        EXPECT_EQ(metrics_of(run(name), "run").size(), 1u);
        expect_same_losses("one", name);
    }
}

TEST_F(LaunchProgram, MpirunInABatchScriptCountsAsMpirun) {
    const ProgramResult result =
        mpirun(processes(2, fmt::format("--batch-size 4 --out '{}'", run("batch"))), batch_script);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_NE(result.output.find("2 processes over MPI"), std::string::npos) << result.output;
}

TEST_F(LaunchProgram, ABatchScriptAloneStartsOneProcess) {
    const ProgramResult result = run_program(
        TRAIN_PROGRAM, fmt::format("{} --batch-size 12 --out '{}'", small, run("alone")), batch_script);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(result.output.find("processes"), std::string::npos) << result.output;
}

TEST_F(LaunchProgram, TorchrunOnCpusIsToldToBeMpirun) {
    for (const int rank : {0, 1}) {
        const ProgramResult result = run_program(TRAIN_PROGRAM, small + " --batch-size 4", torchrun(rank, 2));
        EXPECT_EQ(result.exit_code, 2);
        EXPECT_EQ(result.errors, fmt::format("train_gpt2: rank {}: torchrun started 2 processes, which on "
                                             "CPUs communicate over MPI; expected mpirun -np 2\n",
                                             rank));
    }
    EXPECT_EQ(run_program(TRAIN_PROGRAM, fmt::format("{} --batch-size 12 --out '{}'", small, run("one")),
                          torchrun(0, 1))
                  .exit_code,
              0);
}

TEST_F(LaunchProgram, SrunWithoutPmixIsToldToBeAnother) {
    const std::string step = "export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2; ";
    const ProgramResult result = run_program(TRAIN_PROGRAM, small + " --batch-size 4", step + batch_script);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.errors,
              "train_gpt2: rank 0: srun started 2 processes that MPI cannot connect; expected srun "
              "--mpi=pmix, or mpirun -np 2\n");
}

TEST_F(LaunchProgram, AnEnvironmentThatContradictsItselfIsOneLine) {
    const ProgramResult beyond = run_program(TRAIN_PROGRAM, small, torchrun(2, 2));
    EXPECT_EQ(beyond.exit_code, 2);
    EXPECT_EQ(beyond.errors, "train_gpt2: RANK=2 in the environment; expected a number from 0 to 1\n");
    const ProgramResult part = run_program(TRAIN_PROGRAM, small, "export RANK=0; cd /");
    EXPECT_EQ(part.exit_code, 2);
    EXPECT_EQ(std::count(part.errors.begin(), part.errors.end(), '\n'), 1) << part.errors;
    EXPECT_NE(part.errors.find("WORLD_SIZE is missing"), std::string::npos) << part.errors;
}

TEST_F(LaunchProgram, ProcessesWithOtherOptionsAreRefusedBeforeTheyWrite) {
    // Not by ":" between two programs, with which Open MPI 5.0.7's mpirun itself fails.
    const ProgramResult result = mpirun(
        fmt::format("-np 2 sh -c 'exec \"{}\" {} --batch-size 4 --out \"{}\" --seed $OMPI_COMM_WORLD_RANK'",
                    TRAIN_PROGRAM, small, run("differ")));
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_NE(result.errors.find("train_gpt2: rank 0: rank 1 was started differently from rank 0"),
              std::string::npos)
        << result.errors;
    EXPECT_EQ(occurrences(result.errors, "train_gpt2: rank"), 1u) << result.errors;
    EXPECT_FALSE(std::filesystem::exists(run("differ")));
}

// An mpirun of another MPI than the program's: its variables contradict MPI.
TEST_F(LaunchProgram, WhatMpirunAndMpiSayDifferentlyIsOneLine) {
    const ProgramResult result = mpirun(fmt::format(
        "-np 2 env OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=3 '{}' --batch-size 1", TRAIN_PROGRAM));
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.errors.find("train_gpt2: rank 0: MPI says process 0 of 2, but mpirun says 0 of 3"),
              std::string::npos)
        << result.errors;
}

TEST(LaunchProgramWithoutMpi, SaysWhatIsMissingWhenMoreThanOneProcessStarts) {
    if (communicator_library().starts_with("MPI")) GTEST_SKIP() << "a build with MPI";
    const auto of = [](int count) {
        return fmt::format(
            "export OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_SIZE={0} "
            "OMPI_COMM_WORLD_LOCAL_SIZE={0}; cd /",
            count);
    };
    const TemporaryFolder folder;
    const std::string options = fmt::format("{} --batch-size 4 --out '{}'", small, folder / "run");
    const ProgramResult two = run_program(TRAIN_PROGRAM, options, of(2));
    EXPECT_EQ(two.exit_code, 2);
    EXPECT_EQ(two.errors,
              "train_gpt2: rank 0: mpirun started 2 processes, but this program was built without MPI "
              "(libopenmpi-dev); expected one process, or a "
              "build with it\n");
    EXPECT_EQ(run_program(TRAIN_PROGRAM, options, of(1)).exit_code, 0);
}

}  // namespace
